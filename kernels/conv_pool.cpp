// Convolution with bias, relu and max pooling of 2x2 windows in one pass, and its gradients, as fusion makes them. What
// lies between is never stored: the forward pass keeps the largest of each window and where it was, and the gradients
// spread what comes back over the windows while they read it. A quarter of the memory goes in and out.
// On the CPU there are own kernels for float32; products of matrices are for everything else. A card has kernels for
// images with few channels; others its library convolves, and then the pooling has ops of its own, with the same
// places.
#include <array>
#include <limits>
#include <optional>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/conv_few_channels.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/pool.h"
#include "kernels/row_major.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- sizes and inference -------------------------------------------------------------------------------------

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
      const Conv conv = sizes(call.attrs, call.input_types);
      if (cpu::own_conv_layouts(conv, kind, conv_way(call.attrs), call)) return;
    }
    lie_in_rows(call);
  }

  Launch prepare(KernelCall& call) const;
};

// ---- pooling -------------------------------------------------------------------------------------------------

// Calls body(element of the pooled image, elements of its window) for each window of images of this size; each channel
// of each image is one thread's.
template <class Body>
void each_window(const ImageSize& size, bool channels_last, const Body& body) {
  const ImageSize half{size.batch, size.channels, size.height / 2, size.width / 2};
  if (half.height == 0 || half.width == 0) return;  // of however many channels
  const int64_t step = channels_last ? size.channels : 1, row = size.width * step;
  cpu::parallel_for(size.batch * size.channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const int64_t n = plane / size.channels, c = plane % size.channels;
      const auto start = [&](const ImageSize& image) {
        const int64_t places = image.height * image.width;
        return channels_last ? n * places * size.channels + c : plane * places;
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

// What has passed relu goes to `out`, and which of the window it is to `places`.
template <class T>
void pool_windows(const ImageSize& size, bool channels_last, const T* all, T* out, uint8_t* places) {
  each_window(size, channels_last, [=](int64_t at, const std::array<int64_t, 4>& window) {
    uint8_t best = 0;
    for (uint8_t i = 1; i < 4; ++i) best = gives_way(all[window[best]], all[window[i]]) ? i : best;
    out[at] = all[window[best]] < 0 ? T(0) : all[window[best]];
    places[at] = out[at] > 0 ? best : 4;
  });
}

template <class T>
void spread_windows(const ImageSize& size, bool channels_last, const T* dy, const uint8_t* places, T* all) {
  each_window(size, channels_last, [=](int64_t at, const std::array<int64_t, 4>& window) {
    for (uint8_t i = 0; i < 4; ++i) all[window[i]] = places[at] == i ? dy[at] : T(0);
  });
}

// The convolution over all places, which are in scratch behind its own, and the pooling one after the other.
template <class T>
Launch in_turn(const Conv& conv, ConvKind kind, KernelCall& call) {
  const ConvKind plain = kind == ConvKind::ForwardPool     ? ConvKind::ForwardBias
                         : kind == ConvKind::PoolInputGrad ? ConvKind::InputGrad
                                                           : ConvKind::FilterBiasGrad;
  const Activation activation = plain == ConvKind::ForwardBias ? Activation::Relu : Activation::None;
  const Launch inner = cpu::conv_packed(conv, plain, call.inputs[0].dtype, activation, call);
  const int64_t all_at = aligned(call.scratch_bytes);
  call.scratch_bytes =
      checked_sum(all_at, checked_product(conv.out.shape(conv.format).count(), static_cast<int64_t>(sizeof(T))));
  const bool last = conv.format.channels_last;
  if (kind == ConvKind::ForwardPool) {
    return [=](const LaunchCall& launch) {
      void* all[] = {static_cast<char*>(launch.scratch) + all_at};
      inner(LaunchCall{launch.stream, launch.inputs, all, launch.scratch});
      pool_windows<T>(conv.out, last, static_cast<T*>(all[0]), launch.output<T>(0), launch.output<uint8_t>(1));
    };
  }
  return [=](const LaunchCall& launch) {
    void* inputs[] = {static_cast<char*>(launch.scratch) + all_at, launch.inputs[2]};
    spread_windows<T>(conv.out, last, launch.input<T>(0), launch.input<uint8_t>(1), static_cast<T*>(inputs[0]));
    inner(LaunchCall{launch.stream, inputs, launch.outputs, launch.scratch});
  };
}

Launch ConvPoolOp::prepare(KernelCall& call) const {
  const Conv conv = sizes(call.attrs, call.inputs);
  if (call.inputs[0].dtype == DType::Float32) {
    const Activation activation = is_forward() ? Activation::Relu : Activation::None;
    if (Launch launch = cpu::own_conv(conv, kind, conv_way(call.attrs), activation, call)) return launch;
  }
  return visit_floating(call.inputs[0].dtype, [&](auto zero) { return in_turn<decltype(zero)>(conv, kind, call); });
}

// ---- examples ------------------------------------------------------------------------------------------------

std::vector<Example> examples(ConvKind kind) {
  const std::string same = "SAME", nhwc = "NHWC", winograd = "winograd";
  std::vector<Example> forward = {
      {{f32({2, 3, 5, 8}), f32({4, 3, 2, 3})}, {{"padding", same}, {"pads", Ints{1, 1}}}},
      {{f32({1, 1, 8, 6}), f32({3, 1, 3, 3})}, {{"padding", same}}},
      {{f32({3, 1, 7, 9}), f32({6, 1, 5, 5})}, {{"pads", Ints{0, 0, 0, 0, 3, 2, 2, 1}}}},
      {{f32({3, 4, 12, 10}), f32({5, 4, 7, 7})}},
      {{f32({2, 6, 8, 3}), f32({9, 5, 5, 3})}, {{"data_format", nhwc}, {"padding", same}}},
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

// ---- relu and pooling by themselves --------------------------------------------------------------------------

ImageFormat format_of(const Attrs& attrs) { return image_format(attrs.string("data_format"), 2); }

// Of the image that is pooled.
struct ReluPool {
  ImageFormat format;
  ImageSize size;

  Shape shape() const { return size.shape(format); }
  Shape pooled() const { return ImageSize{size.batch, size.channels, size.height / 2, size.width / 2}.shape(format); }
};

std::vector<TensorType> infer_relu_pool(const OpCall& call) {
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  const ImageFormat format = format_of(call.attrs);
  const ReluPool pool{format, image_size(call.shape(0), format, "x")};
  require(pool.size.height % 2 == 0 && pool.size.width % 2 == 0, ErrorCode::ShapeMismatch, "x is ", call.shape(0),
          ", which windows of 2x2 do not cover");
  return {{call.dtype(0), pool.pooled()}, {DType::UInt8, pool.pooled()}};
}

std::vector<TensorType> infer_relu_pool_grad(const OpCall& call) {
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  require_type(call, 1, "places", {DType::UInt8, call.shape(0)});
  const ImageFormat format = format_of(call.attrs);
  ReluPool pool{format, image_size(call.shape(0), format, "dy")};
  pool.size.height *= 2;
  pool.size.width *= 2;
  return {{call.dtype(0), pool.shape()}, {call.dtype(0), {pool.size.channels}}};
}

Launch prepare_relu_pool(KernelCall& call) {
  const ImageFormat format = format_of(call.attrs);
  const ImageSize size = image_size(call.inputs[0].shape, format, "x");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [size, last = format.channels_last](const LaunchCall& at) {
      pool_windows<T>(size, last, at.input<T>(0), at.output<T>(0), at.output<uint8_t>(1));
    };
  });
}

Launch prepare_relu_pool_grad(KernelCall& call) {
  const ImageFormat format = format_of(call.attrs);
  const ImageSize size = image_size(call.outputs[0].shape, format, "dx");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [size, last = format.channels_last](const LaunchCall& at) {
      const T* dx = at.output<T>(0);
      T* dbias = at.output<T>(1);
      spread_windows<T>(size, last, at.input<T>(0), at.input<uint8_t>(1), at.output<T>(0));
      const int64_t plane = size.height * size.width, step = last ? size.channels : 1;
      cpu::parallel_for(size.channels, 1, [&](int64_t first, int64_t end) {
        for (int64_t c = first; c < end; ++c) {
          double sum = 0;
          for (int64_t n = 0; n < size.batch; ++n) {
            const T* from = dx + (last ? n * plane * size.channels + c : (n * size.channels + c) * plane);
            for (int64_t i = 0; i < plane; ++i) sum += from[i * step];
          }
          dbias[c] = static_cast<T>(sum);
        }
      });
    };
  });
}

std::vector<OpDef> relu_pool_ops() {
  const std::string nhwc = "NHWC";
  OpDef forward;
  forward.name = "relu_max_pool2d";
  forward.doc =
      "relu, and max pooling of 2x2 windows that tile x. Made by fusion, after gradients.\n"
      "  places: which of its window's four each maximum is, in row-major order; 4 where it is not positive";
  forward.inputs = {{"x"}};
  forward.outputs = {"out", "places"};
  forward.attrs = {data_format_attr({})};
  forward.infer = infer_relu_pool;
  forward.cpu = {prepare_relu_pool};
  forward.examples = {
      {{f32({2, 3, 4, 6})}},
      {{f32({3, 5, 14, 2})}},
      {{f32({1, 8, 6, 3})}, {{"data_format", nhwc}}},
      {{f32({3, 2, 10, 8})}, {{"data_format", nhwc}}},
  };

  OpDef grad;
  grad.name = "relu_max_pool2d_grad";
  grad.doc =
      "Gradient of relu_max_pool2d with respect to x, and of a bias that x is the sum of: dx summed over all but the "
      "channels. Made by fusion.";
  grad.inputs = {{"dy"}, {"places"}};
  grad.outputs = {"dx", "dbias"};
  grad.attrs = {data_format_attr({})};
  grad.infer = infer_relu_pool_grad;
  grad.cpu = {prepare_relu_pool_grad};
  for (const Example& example : forward.examples) {
    Attrs attrs = example.attrs;
    if (!attrs.find("data_format")) attrs.set("data_format", std::string("NCHW"));
    const std::vector<TensorType> outs = infer_relu_pool({{&example.inputs[0]}, attrs});
    grad.examples.push_back({outs, example.attrs, -1, 1, 5});
  }
  return {std::move(forward), std::move(grad)};
}

}  // namespace

// ---- fusion --------------------------------------------------------------------------------------------------

namespace {

// max_pool2d of 2x2 windows behind conv2d_bias with relu, and in training max_pool2d_grad with the gradients of filter,
// bias and perhaps x, where nobody else reads what is between them.
struct PooledConv {
  NodeId conv = kNone, pool = kNone, pool_grad = kNone, filter_grad = kNone, input_grad = kNone;
};

std::optional<PooledConv> find_pooled(Rewriter& graph, NodeId id) {
  const Node& conv = graph.node(id);
  const ValueId active = conv.outputs[0];
  if (conv.attrs.string("activation") != "relu" || graph.tapped(active)) return std::nullopt;
  PooledConv found;
  found.conv = id;
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
  if (!sort(active, {{"max_pool2d", &found.pool}, {"max_pool2d_grad", &found.pool_grad}})) return std::nullopt;
  if (found.pool == kNone) return std::nullopt;
  const Node& pool = graph.node(found.pool);
  const TensorType& type = graph.type(active);
  const bool windows_fit = type.dtype == DType::Float32 && pools_by_two(pool.attrs, type.shape) &&
                           pool.attrs.string("data_format") == conv.attrs.string("data_format");
  if (!windows_fit) return std::nullopt;
  if (found.pool_grad == kNone) return found;

  const Node& grad = graph.node(found.pool_grad);
  const bool fits = grad.inputs[1] == active && grad.inputs[0] != active && grad.attrs.flag("relu") &&
                    pools_by_two(grad.attrs, type.shape) && !graph.tapped(grad.outputs[0]) &&
                    sort(grad.outputs[0],
                         {{"conv2d_filter_bias_grad", &found.filter_grad}, {"conv2d_input_grad", &found.input_grad}});
  if (!fits || found.filter_grad == kNone) return std::nullopt;
  if (graph.node(found.filter_grad).inputs[1] != conv.inputs[0]) return std::nullopt;
  if (found.input_grad != kNone && graph.node(found.input_grad).inputs[1] != conv.inputs[1]) return std::nullopt;
  return found;
}

Conv sizes_of(Rewriter& graph, const PooledConv& found) {
  const Node& conv = graph.node(found.conv);
  return conv_of(conv.attrs, graph.type(conv.inputs[0]).shape, graph.type(conv.inputs[1]).shape, 2);
}

ValueId add_places(Rewriter& graph, const PooledConv& found) {
  return graph.add_value({DType::UInt8, graph.type(graph.node(found.pool).outputs[0]).shape});
}

void fuse_all(Rewriter& graph, const PooledConv& found) {
  const Node &conv = graph.node(found.conv), &pool = graph.node(found.pool);
  const ValueId x = conv.inputs[0], filter = conv.inputs[1], places = add_places(graph, found);
  const ValueId dy = found.pool_grad == kNone ? kNone : graph.node(found.pool_grad).inputs[0];
  graph.fuse({found.conv, found.pool}, "conv2d_relu_pool", conv.inputs, without(conv.attrs, "activation"),
             {pool.outputs[0], places});
  if (found.pool_grad == kNone) return;
  // The pooling's gradient goes with the last of its readers.
  const Node& filter_grad = graph.node(found.filter_grad);
  std::vector<NodeId> replaced{found.filter_grad};
  if (found.input_grad == kNone) replaced.push_back(found.pool_grad);
  graph.fuse(replaced, "conv2d_relu_pool_filter_grad", {dy, places, x}, without(filter_grad.attrs, "mixed"),
             filter_grad.outputs);
  if (found.input_grad == kNone) return;
  const Node& input_grad = graph.node(found.input_grad);
  graph.fuse({found.input_grad, found.pool_grad}, "conv2d_relu_pool_input_grad", {dy, places, filter}, input_grad.attrs,
             input_grad.outputs);
}

}  // namespace

// On the CPU, where it has kernels for all of it.
bool fuse_conv_pool(Rewriter& graph, NodeId id) {
  if (graph.launches_cost()) return false;
  const std::optional<PooledConv> found = find_pooled(graph, id);
  if (!found) return false;
  const Conv conv = sizes_of(graph, *found);
  const ConvWay way = conv_way(graph.node(id).attrs);
  const auto own = [&](ConvKind kind) { return cpu::has_own_conv(conv, kind, way); };
  if (!own(ConvKind::ForwardPool)) return false;
  if (found->pool_grad != kNone && !own(ConvKind::PoolFilterGrad)) return false;
  if (found->input_grad != kNone && !own(ConvKind::PoolInputGrad)) return false;
  fuse_all(graph, *found);
  return true;
}

// On a card: all of it where there are few channels and nobody asks for the gradient of x. Otherwise convolution and
// pooling stay apart, and in training the pooling takes note of its places, so that its gradient and the bias's come
// in one pass that does not read what was pooled.
bool fuse_conv_pool_on_card(Rewriter& graph, NodeId id) {
  if (!graph.launches_cost()) return false;
  const std::optional<PooledConv> found = find_pooled(graph, id);
  if (!found) return false;
  if (found->input_grad == kNone &&
      card_sums_few_channels(sizes_of(graph, *found), graph.type(graph.node(found->conv).inputs[0]).dtype)) {
    fuse_all(graph, *found);
    return true;
  }
  const std::vector<ValueId> active = graph.node(id).outputs;
  // Its kernels count in 32 bits.
  if (found->pool_grad == kNone || graph.type(active[0]).count() > std::numeric_limits<int>::max()) return false;
  const Node &pool = graph.node(found->pool), &pool_grad = graph.node(found->pool_grad);
  const Node& filter_grad = graph.node(found->filter_grad);
  const Attrs attrs{{"data_format", pool.attrs.string("data_format")}};
  const ValueId places = add_places(graph, *found), dx = pool_grad.outputs[0];
  graph.fuse({found->pool}, "relu_max_pool2d", active, attrs, {pool.outputs[0], places});
  graph.fuse({found->pool_grad}, "relu_max_pool2d_grad", {pool_grad.inputs[0], places}, attrs,
             {dx, filter_grad.outputs[1]});
  graph.fuse({found->filter_grad}, "conv2d_filter_grad", filter_grad.inputs, filter_grad.attrs,
             {filter_grad.outputs[0]});
  // The pooling cuts off what is negative, and nobody else reads it.
  const Node& conv = graph.node(id);
  graph.fuse({id}, conv.op->name, conv.inputs, with(conv.attrs, "activation", std::string("none")), active);
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

  for (OpDef& op : relu_pool_ops()) catalog.add(std::move(op));
}

}  // namespace moonflow
