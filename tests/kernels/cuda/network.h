// A network under construction.
#pragma once

#include <string>
#include <vector>

#include "values.h"

namespace moonflow::testing {

// Its variables are made in the order of their names.
struct Layers {
  Graph graph;
  std::vector<ValueId> weights;

  explicit Layers(const Catalog& catalog) : graph(catalog) {}
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, const Attrs& attrs = {}) {
    return graph.append(name, inputs, attrs, text(name, graph.nodes().size()))[0];
  }
  ValueId weight(const Shape& shape) {
    weights.push_back(graph.variable(text("weight", weights.size()), {DType::Float32, shape}));
    return weights.back();
  }
  ValueId dense(ValueId x, int64_t units) {
    const ValueId product = op("matmul", {x, weight({units, graph.type(x).shape[1]})}, {{"transpose_b", true}});
    return op("bias_add", {product, weight({units})});
  }
  ValueId conv(ValueId x, int64_t filters, int64_t size) {
    const ValueId y =
        op("conv2d", {x, weight({filters, graph.type(x).shape[1], size, size})}, {{"padding", std::string("SAME")}});
    return op("bias_add", {y, weight({filters})});
  }
};

}  // namespace moonflow::testing
