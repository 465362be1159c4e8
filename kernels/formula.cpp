#include "kernels/formula.h"

#include "engine/graph.h"

namespace moonflow {

Term Term::number(double value) const {
  const Attrs attrs{{"value", value}, {"dtype", dtype()}, {"shape", Ints{}}};
  return {*call_, call_->op("constant", {}, attrs)};
}

Term Term::reshaped(const Shape& to) const { return shape() == to ? *this : op("reshape", {{"shape", to.dims()}}); }

Term sum(Term x, const Ints& axes) { return x.op("reduce_sum", {{"axis", axes}, {"keepdims", true}}); }
Term mean(Term x, const Ints& axes) { return x.op("reduce_mean", {{"axis", axes}, {"keepdims", true}}); }

}  // namespace moonflow
