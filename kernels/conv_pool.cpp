// Convolution with bias, relu and max pooling of 2x2 windows in one pass, and its gradients, as fusion makes them. What
// lies between is never stored: the forward pass keeps the largest of each window and where it was, and the gradients
// spread what comes back over the windows while they read it. A quarter of the memory goes in and out.
// On the CPU there are own kernels for float32; the loops here are for everything else.
#include <array>

#include "engine/graph.h"
#include "engine/plan.h"
#include "kernels/catalog.h"
#include "kernels/conv.h"
#include "kernels/cpu.h"
#include "kernels/pool.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- sizes and inference
// ---------------------------------------------------------------------------------------------

ImageSize pooled(const Conv& conv) {
  return {conv.out.batch, conv.out.channels, conv.out.height / 2, conv.out.width / 2};
}

struct ConvPoolOp {
  ConvKind kind;

  bool is_forward() const { return kind == ConvKind::ForwardPool; }

  // From the inputs of the op. Gradients know the shape they are to give from the attribute `shape`.
  Conv sizes(const Attrs& attrs, const Shape& first, const Shape& second, const Shape& third) const {
    if (is_forward()) return even(conv_of(attrs, first, second, 2));
    const Shape shape(attrs.ints("shape"));
    const Conv conv =
        even(kind == ConvKind::PoolInputGrad ? conv_of(attrs, shape, third, 2) : conv_of(attrs, third, shape, 2));
    const Shape wanted = pooled(conv).shape(conv.format);
    require(first == wanted && second == wanted, ErrorCode::ShapeMismatch, "dy is ", first, " and places is ", second,
            ", wanted ", wanted);
    return conv;
  }

  static Conv even(const Conv& conv) {
    require(conv.out.height % 2 == 0 && conv.out.width % 2 == 0, ErrorCode::ShapeMismatch, "the convolution gives ",
            conv.out.shape(conv.format), ", which windows of 2x2 do not cover");
    return conv;
  }

  std::vector<TensorType> infer(const OpCall& call) const {
    const DType dtype = call.dtype(0);
    require(is_floating(dtype) && call.dtype(is_forward() ? 1 : 2) == dtype, ErrorCode::DtypeMismatch,
            "needs float32 or float64, one for all");
    const Conv conv = sizes(call.attrs, call.shape(0), call.shape(1), call.shape(2));
    if (is_forward()) {
      require_type(call, 2, "bias", {dtype, {conv.filters()}});
      const Shape shape = pooled(conv).shape(conv.format);
      return {{dtype, shape}, {DType::UInt8, shape}};
    }
    require(call.dtype(1) == DType::UInt8, ErrorCode::DtypeMismatch, "places is ", call.dtype(1), ", wanted uint8");
    const TensorType grad{dtype, Shape(call.attrs.ints("shape"))};
    if (kind == ConvKind::PoolInputGrad) return {grad};
    return {grad, {dtype, {conv.filters()}}};
  }

  Conv sizes(const Attrs& attrs, const std::vector<TensorType>& inputs) const {
    return sizes(attrs, inputs[0].shape, inputs[1].shape, inputs[2].shape);
  }

  void layouts(LayoutCall& call) const {
    if (call.input_types[0].dtype == DType::Float32) {
      try {
        const Conv conv = sizes(call.attrs, call.input_types);
        if (cpu::own_conv_layouts(conv, kind, call.attrs.string("algorithm"), call)) return;
      } catch (const dnnl::error&) {
      }
    }
    std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
    std::fill(call.outputs.begin(), call.outputs.end(), Layout{});
  }

  Launch prepare(KernelCall& call) const;
};

// ---- loops
// -----------------------------------------------------------------------------------------------------------

// Calls body(element of the pooled image, elements of its window) for each window; each channel of each image is one
// thread's.
template <class Body>
void each_window(const Conv& conv, const Body& body) {
  const ImageSize &size = conv.out, half = pooled(conv);
  const int64_t step = conv.format.channels_last ? size.channels : 1, row = size.width * step;
  cpu::parallel_for(size.batch * size.channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const int64_t n = plane / size.channels, c = plane % size.channels;
      const auto start = [&](const ImageSize& image) {
        const int64_t places = image.height * image.width;
        return conv.format.channels_last ? n * places * size.channels + c : plane * places;
      };
      for (int64_t y = 0; y < half.height; ++y) {
        for (int64_t x = 0; x < half.width; ++x) {
          const int64_t corner = start(size) + 2 * y * row + 2 * x * step;
          body(start(half) + (y * half.width + x) * step,
               std::array<int64_t, 4>{corner, corner + step, corner + row, corner + row + step});
        }
      }
    }
  });
}

// The convolution's own loops over all places, which are in scratch.
template <class T>
Launch loops(const Conv& conv, ConvKind kind, KernelCall& call) {
  const DType dtype = call.inputs[0].dtype;
  call.scratch_bytes = conv.out.shape(conv.format).count() * static_cast<int64_t>(sizeof(T));
  if (kind == ConvKind::ForwardPool) {
    return [conv, inner = conv_loops(conv, ConvKind::ForwardBias, dtype, true)](const LaunchCall& launch) {
      T* all = static_cast<T*>(launch.scratch);
      void* outputs[] = {all};
      inner(LaunchCall{launch.stream, launch.inputs, outputs, nullptr});
      T* out = launch.output<T>(0);
      uint8_t* places = launch.output<uint8_t>(1);
      each_window(conv, [=](int64_t at, const std::array<int64_t, 4>& window) {
        uint8_t best = 0;
        for (uint8_t i = 1; i < 4; ++i) best = all[window[i]] > all[window[best]] ? i : best;
        out[at] = all[window[best]];
        places[at] = out[at] > 0 ? best : 4;
      });
    };
  }
  const ConvKind plain = kind == ConvKind::PoolInputGrad ? ConvKind::InputGrad : ConvKind::FilterBiasGrad;
  return [conv, inner = conv_loops(conv, plain, dtype, false)](const LaunchCall& launch) {
    T* all = static_cast<T*>(launch.scratch);
    const T* dy = launch.input<T>(0);
    const uint8_t* places = launch.input<uint8_t>(1);
    each_window(conv, [=](int64_t at, const std::array<int64_t, 4>& window) {
      for (uint8_t i = 0; i < 4; ++i) all[window[i]] = places[at] == i ? dy[at] : T(0);
    });
    void* inputs[] = {all, launch.inputs[2]};
    inner(LaunchCall{launch.stream, inputs, launch.outputs, nullptr});
  };
}

Launch ConvPoolOp::prepare(KernelCall& call) const {
  const Conv conv = sizes(call.attrs, call.inputs);
  if (call.inputs[0].dtype == DType::Float32) {
    if (Launch launch = cpu::own_conv(conv, kind, call.attrs.string("algorithm"), is_forward(), call)) return launch;
  }
  return visit_floating(call.inputs[0].dtype, [&](auto zero) { return loops<decltype(zero)>(conv, kind, call); });
}

// ---- examples
// --------------------------------------------------------------------------------------------------------

std::vector<Example> examples(ConvKind kind) {
  const std::string same = "SAME", nhwc = "NHWC", winograd = "winograd";
  std::vector<Example> forward = {
      {{f32({2, 3, 5, 8}), f32({4, 3, 2, 3})}, {{"padding", same}, {"pads", Ints{1, 1}}}},
      {{f32({1, 1, 8, 6}), f32({3, 1, 3, 3})}, {{"padding", same}}},
      {{f32({1, 3, 6, 8}), f32({2, 3, 3, 3})}, {{"padding", same}, {"algorithm", winograd}}},
      {{f32({2, 10, 6, 16}), f32({16, 3, 3, 16})}, {{"data_format", nhwc}, {"algorithm", winograd}}},
      {{f32({1, 6, 8, 16}), f32({16, 5, 5, 16})},
       {{"data_format", nhwc}, {"padding", same}, {"algorithm", winograd}},
       -0.25,
       0.25},
  };
  std::vector<Example> result;
  const ConvPoolOp op{ConvKind::ForwardPool};
  for (Example& example : forward) {
    const Shape x = example.inputs[0].shape, filter = example.inputs[1].shape;
    example.inputs.push_back(f32({filter[0]}));
    if (kind == ConvKind::ForwardPool) {
      result.push_back(example);
      continue;
    }
    Attrs attrs;
    for (const AttrDef& attr : conv_attrs(2)) attrs.set(attr.name, attr.fallback);
    for (const auto& [name, value] : example.attrs) attrs.set(name, value);
    const std::vector<TensorType> outs =
        op.infer({{&example.inputs[0], &example.inputs[1], &example.inputs[2]}, attrs});
    const bool for_input = kind == ConvKind::PoolInputGrad;
    Example grad{{outs[0], outs[1], f32(for_input ? filter : x)}, example.attrs, example.low, example.high, 5};
    grad.attrs.set("shape", (for_input ? x : filter).dims());
    result.push_back(grad);
  }
  return result;
}

OpDef op(ConvKind kind, std::string name, std::vector<InputDef> inputs, std::vector<std::string> outputs) {
  OpDef op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  op.attrs = conv_attrs(2);
  const ConvPoolOp self{kind};
  op.infer = [self](const OpCall& call) { return self.infer(call); };
  op.cpu = {[self](KernelCall& call) { return self.prepare(call); }, [self](LayoutCall& call) { self.layouts(call); }};
  op.flops = [self](const KernelCall& call) { return conv_flops(self.sizes(call.attrs, call.inputs)); };
  op.examples = examples(kind);
  return op;
}

}  // namespace

// ---- fusion
// ----------------------------------------------------------------------------------------------------------

// conv2d_bias with relu, max_pool2d behind it, and in training max_pool2d_grad with the gradients of filter, bias and
// perhaps x: when nobody else reads what is between them, and where there are kernels for all of it.
bool fuse_conv_pool(Rewriter& graph, NodeId id) {
  const Node& conv_node = graph.node(id);
  const ValueId active = conv_node.outputs[0];
  if (conv_node.attrs.string("activation") != "relu" || graph.tapped(active)) return false;
  NodeId pool_id = kNone, pool_grad_id = kNone, filter_grad_id = kNone, input_grad_id = kNone;
  // One node of each op at most. False when there is another, or a second.
  const auto sort = [&](ValueId value, std::initializer_list<std::pair<const char*, NodeId*>> places) {
    for (const NodeId reader : graph.readers(value)) {
      bool known = false;
      for (const auto& [op, place] : places) {
        if (graph.node(reader).op->name != op || *place != kNone) continue;
        *place = reader;
        known = true;
      }
      if (!known) return false;
    }
    return true;
  };
  if (!sort(active, {{"max_pool2d", &pool_id}, {"max_pool2d_grad", &pool_grad_id}}) || pool_id == kNone) return false;
  const Node& pool = graph.node(pool_id);
  const Attrs& attrs = conv_node.attrs;
  const TensorType& type = graph.type(active);
  const bool windows_fit = type.dtype == DType::Float32 && pools_by_two(pool.attrs, type.shape) &&
                           pool.attrs.string("data_format") == attrs.string("data_format");
  if (!windows_fit) return false;

  const ValueId x = conv_node.inputs[0], filter = conv_node.inputs[1];
  const Conv conv = conv_of(attrs, graph.type(x).shape, graph.type(filter).shape, 2);
  const std::string& algorithm = attrs.string("algorithm");
  const auto own = [&](ConvKind kind) { return cpu::has_own_conv(conv, kind, algorithm); };
  if (!own(ConvKind::ForwardPool)) return false;
  if (pool_grad_id != kNone) {
    const Node& grad = graph.node(pool_grad_id);
    const bool fits =
        grad.inputs[1] == active && grad.inputs[0] != active && grad.attrs.flag("relu") &&
        pools_by_two(grad.attrs, type.shape) && !graph.tapped(grad.outputs[0]) &&
        sort(grad.outputs[0], {{"conv2d_filter_bias_grad", &filter_grad_id}, {"conv2d_input_grad", &input_grad_id}});
    if (!fits || filter_grad_id == kNone || graph.node(filter_grad_id).inputs[1] != x) return false;
    if (!own(ConvKind::PoolFilterGrad)) return false;
    if (input_grad_id != kNone && (graph.node(input_grad_id).inputs[1] != filter || !own(ConvKind::PoolInputGrad))) {
      return false;
    }
  }

  const auto without = [](const Attrs& attrs, const char* left_out) {
    Attrs rest;
    for (const auto& [name, value] : attrs)
      if (name != left_out) rest.set(name, value);
    return rest;
  };
  const ValueId places = graph.add_value({DType::UInt8, graph.type(pool.outputs[0]).shape});
  const ValueId dy = pool_grad_id == kNone ? kNone : graph.node(pool_grad_id).inputs[0];
  graph.fuse({id, pool_id}, "conv2d_relu_pool", conv_node.inputs, without(attrs, "activation"),
             {pool.outputs[0], places});
  if (pool_grad_id == kNone) return true;
  // The pooling's gradient goes with the last of its readers.
  const Node& filter_grad = graph.node(filter_grad_id);
  std::vector<NodeId> replaced{filter_grad_id};
  if (input_grad_id == kNone) replaced.push_back(pool_grad_id);
  graph.fuse(replaced, "conv2d_relu_pool_filter_grad", {dy, places, x}, without(filter_grad.attrs, "mixed"),
             filter_grad.outputs);
  if (input_grad_id == kNone) return true;
  const Node& input_grad = graph.node(input_grad_id);
  graph.fuse({input_grad_id, pool_grad_id}, "conv2d_relu_pool_input_grad", {dy, places, filter}, input_grad.attrs,
             input_grad.outputs);
  return true;
}

void add_conv_pool(Catalog& catalog) {
  OpDef forward = op(ConvKind::ForwardPool, "conv2d_relu_pool", {{"x"}, {"filter"}, {"bias"}}, {"out", "places"});
  forward.doc =
      "conv2d, bias_add over the filters, relu, and max pooling of 2x2 windows in one pass. Made by fusion, after "
      "gradients.\n"
      "  places: which of its window's four each maximum is, in row-major order; 4 where it is not positive";
  catalog.add(std::move(forward));

  OpDef input_grad =
      op(ConvKind::PoolInputGrad, "conv2d_relu_pool_input_grad", {{"dy"}, {"places"}, {"filter"}}, {"dx"});
  input_grad.attrs.push_back(shape_attr("x"));
  input_grad.doc = "Gradient of conv2d_relu_pool with respect to x. Made by fusion.";
  catalog.add(std::move(input_grad));

  OpDef filter_grad =
      op(ConvKind::PoolFilterGrad, "conv2d_relu_pool_filter_grad", {{"dy"}, {"places"}, {"x"}}, {"dfilter", "dbias"});
  filter_grad.attrs.push_back(shape_attr("the filter"));
  filter_grad.doc = "Gradients of conv2d_relu_pool with respect to filter and bias in one pass. Made by fusion.";
  catalog.add(std::move(filter_grad));
}

}  // namespace moonflow
