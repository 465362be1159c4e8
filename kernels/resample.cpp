// Images made larger: upsample_2d and reflection_pad2d, what they mean, and the CPU's loops. Their sizes and the way
// between the places of both images are in resample.h.
#include "kernels/resample.h"

#include <cstring>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/types.h"
#include "kernels/window.h"

namespace moonflow {
namespace {

// An op of the family and its gradient: how its attributes give the sizes.
using SizesOf = Resampling (*)(const Attrs& attrs, const Shape& x);

// ---- kernels ---------------------------------------------------------------------------------------------------

struct Division {
  int64_t by;

  explicit Division(int64_t by) : by(std::max<int64_t>(by, 1)) {}
  constexpr int64_t quotient(int64_t n) const { return n / by; }
  constexpr int64_t quotient(int64_t n, int64_t& rest) const {
    rest = n % by;
    return n / by;
  }
};

// What one output is made of, and which outputs one input is a part of, with their weights: an axis written out, since
// every row takes the columns in the same way.
template <class T>
struct Axis {
  struct Source {
    int64_t low, high;
    T share;  // of `high`
  };
  struct Reader {
    int64_t output;
    T weight;
  };
  std::vector<Source> sources;  // by output
  std::vector<Reader> readers;  // those of input i are [starts[i], starts[i + 1])
  std::vector<int64_t> starts{0};
  bool blends;

  explicit Axis(const ResampledAxis& axis) : blends(axis.kind == ResampledAxis::Blend) {
    const AxisMap<Division> map(axis);
    for (int64_t o = 0; o < axis.out; ++o) {
      const Mixture from = map.mixture(o);
      sources.push_back({from.low, from.high, from.share<T>()});
    }
    for (int64_t i = 0; i < axis.in; ++i) {
      const Readers of = map.readers(i);
      for (int64_t o = of.first; o < of.past; o = of.after(o)) readers.push_back({o, map.mixture(o).weight<T>(i)});
      starts.push_back(static_cast<int64_t>(readers.size()));
    }
  }
};

// A resampling over planes whose places have so many channels side by side.
template <class T>
struct Planes {
  Axis<T> rows, columns;
  int64_t planes, lanes;
  int64_t in_height, in_width, out_height, out_width;

  Planes(const Resampling& sizes, const ChannelForm& form)
      : rows(sizes.rows),
        columns(sizes.columns),
        planes(form.count() / std::max<int64_t>(1, form.lanes * sizes.out.height * sizes.out.width)),
        lanes(form.lanes),
        in_height(sizes.image.height),
        in_width(sizes.image.width),
        out_height(sizes.out.height),
        out_width(sizes.out.width) {}

  void run(const T* x, T* out) const {
    each_row(out_height, out_width, [&](int64_t plane, int64_t y) {
      const T* const image = x + plane * in_height * in_width * lanes;
      const auto& row = rows.sources[y];
      const T *const low = image + row.low * in_width * lanes, *const high = image + row.high * in_width * lanes;
      T* const to = out + (plane * out_height + y) * out_width * lanes;
      if (!columns.blends)
        pick(low, to);
      else if (lanes == 1)
        blend<true>(low, high, row.share, to);
      else
        blend<false>(low, high, row.share, to);
    });
  }

  void run_grad(const T* dy, T* dx) const {
    each_row(in_height, in_width, [&](int64_t plane, int64_t y) {
      const T* const image = dy + plane * out_height * out_width * lanes;
      T* const to = dx + (plane * in_height + y) * in_width * lanes;
      if (lanes == 1)
        gather<true>(image, y, to);
      else
        gather<false>(image, y, to);
    });
  }

 private:
  // Calls body(plane, row) for the rows of all planes of a result.
  template <class Body>
  void each_row(int64_t height, int64_t width, const Body& body) const {
    const int64_t grain = std::max<int64_t>(1, cpu::kGrain / std::max<int64_t>(1, width * lanes));
    cpu::parallel_for(planes * height, grain, [&](int64_t first, int64_t last) {
      cpu::widest([&] {
        for (int64_t i = first; i < last; ++i) body(i / height, i % height);
      });
    });
  }

  void pick(const T* from, T* to) const {
    if (lanes == 1) {
      for (int64_t x = 0; x < out_width; ++x) to[x] = from[columns.sources[x].low];
      return;
    }
    for (int64_t x = 0; x < out_width; ++x)
      std::memcpy(to + x * lanes, from + columns.sources[x].low * lanes, lanes * sizeof(T));
  }

  template <bool kSingle>
  void blend(const T* low, const T* high, T share, T* to) const {
    const int64_t count = kSingle ? 1 : lanes;
    for (int64_t x = 0; x < out_width; ++x, to += count) {
      const auto& column = columns.sources[x];
      const int64_t left = column.low * count, right = column.high * count;
      for (int64_t lane = 0; lane < count; ++lane) {
        const T above = low[left + lane] + column.share * (low[right + lane] - low[left + lane]);
        const T below = high[left + lane] + column.share * (high[right + lane] - high[left + lane]);
        to[lane] = above + share * (below - above);
      }
    }
  }

  template <bool kSingle>
  void gather(const T* dy, int64_t y, T* to) const {
    const int64_t count = kSingle ? 1 : lanes;
    for (int64_t x = 0; x < in_width; ++x, to += count) {
      std::fill(to, to + count, T(0));
      for (int64_t r = rows.starts[y]; r < rows.starts[y + 1]; ++r) {
        const auto& row = rows.readers[r];
        for (int64_t c = columns.starts[x]; c < columns.starts[x + 1]; ++c) {
          const auto& column = columns.readers[c];
          const T weight = row.weight * column.weight;
          const T* const from = dy + (row.output * out_width + column.output) * count;
          for (int64_t lane = 0; lane < count; ++lane) to[lane] += weight * from[lane];
        }
      }
    }
  }
};

enum class Direction { There, Back };

Launch prepare(SizesOf sizes_of, Direction direction, KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};  // however long its axes are
  const bool there = direction == Direction::There;
  const Resampling sizes = sizes_of(call.attrs, there ? call.inputs[0].shape : call.outputs[0].shape);
  // Of the larger image: a single place may be taken for channels last, whatever it becomes.
  const std::optional<ChannelForm> form = cpu::channel_form(there ? call.outputs[0] : call.inputs[0],
                                                            there ? call.output_layouts[0] : call.input_layouts[0],
                                                            sizes.format.channel_axis());
  require(form.has_value(), ErrorCode::Unsupported, "the image lies in a layout without a channel form");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [planes = Planes<T>(sizes, *form), there](const LaunchCall& launch) {
      if (there)
        planes.run(launch.input<T>(0), launch.output<T>(0));
      else
        planes.run_grad(launch.input<T>(0), launch.output<T>(0));
    };
  });
}

// ---- the ops ---------------------------------------------------------------------------------------------------

TensorType infer_out(SizesOf sizes_of, const OpCall& call) {
  require_floating(call, 0, "x");
  const Resampling sizes = sizes_of(call.attrs, call.shape(0));
  return {call.dtype(0), sizes.out.shape(sizes.format)};
}

// The op and its gradient, from what the op has of its own.
void add_pair(Catalog& catalog, OpDef op, SizesOf sizes_of) {
  OpDef grad;
  grad.name = op.name + "_grad";
  grad.doc = "Gradient of " + op.name +
             ": each element of x gets what the places that were made of it bring, by its "
             "part in them.";
  grad.inputs = {{"dy"}};
  grad.outputs = {"dx"};
  grad.attrs = op.attrs;
  grad.attrs.push_back({"shape", Ints{}, "shape of x", true});
  grad.infer = [sizes_of](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "dy");
    const Shape shape(call.attrs.ints("shape"));
    const Resampling sizes = sizes_of(call.attrs, shape);
    require_type(call, 0, "dy", {call.dtype(0), sizes.out.shape(sizes.format)});
    return {{call.dtype(0), shape}};
  };
  grad.grad = gradient_of_linear(op.name);

  op.inputs = {{"x"}};
  op.infer = [sizes_of](const OpCall& call) -> std::vector<TensorType> { return {infer_out(sizes_of, call)}; };
  op.grad = linear_gradient(grad.name);
  for (const Example& example : op.examples) {
    Attrs attrs;
    for (const AttrDef& attr : op.attrs) attrs.set(attr.name, attr.fallback);
    for (const auto& [name, value] : example.attrs) attrs.set(name, value);
    const TensorType out = infer_out(sizes_of, {{&example.inputs[0]}, attrs});
    attrs = example.attrs;
    attrs.set("shape", example.inputs[0].shape.dims());
    grad.examples.push_back({{out}, attrs});
  }

  for (auto* each : {&op, &grad}) {
    const Direction direction = each == &op ? Direction::There : Direction::Back;
    each->cpu = {[=](KernelCall& call) { return prepare(sizes_of, direction, call); },
                 [](LayoutCall& call) { cpu::lie_alike(call, 0); }};
    each->narrow = follows_off_cpu();
    catalog.add(std::move(*each));
  }
}

OpDef upsample() {
  OpDef op;
  op.name = "upsample_2d";
  op.lua = "layers.upsample_2d";
  op.doc =
      "An image made larger by whole factors.\n"
      "  nearest:  out[n, c, y, x] = x[n, c, floor(y / size), floor(x / size)]\n"
      "  bilinear: between the four places around the point, along each axis (o + 1/2) / size - 1/2, at the border "
      "those that are there;\n"
      "  with align_corners at o * (in - 1) / (out - 1), so that corners fall on corners\n"
      "shapes: x (batch, channels, height, width) -> (batch, channels, size * height, size * width); channels last "
      "with "
      "data_format \"NHWC\"\n"
      "dtypes: float32, float64, bfloat16 or float16 -> the same\n"
      "defaults: size = {2}, interpolation = \"nearest\"\n"
      "errors: a size below 1; an axis of 2^24 or more; align_corners with \"nearest\"\n"
      "note: flow.nn.interpolate gives any size";
  op.attrs = {{"size", Ints{2}, "how many times as large: one whole number, or one each for height and width"},
              data_format_attr({}),
              {"interpolation", std::string("nearest"), "\"nearest\" or \"bilinear\""},
              {"align_corners", false, "bilinear: the corners of both images are at the same points"}};
  const std::string nhwc = "NHWC", bilinear = "bilinear";
  op.examples = {
      {{f32({2, 3, 3, 2})}},
      {{f32({1, 2, 2, 3})}, {{"size", Ints{3, 1}}}},
      {{f32({1, 3, 2, 5})}, {{"data_format", nhwc}, {"size", Ints{2, 4}}}},
      {{f32({2, 2, 3, 4})}, {{"interpolation", bilinear}}},
      {{f32({1, 2, 1, 3})}, {{"interpolation", bilinear}, {"size", Ints{3, 5}}}},
      {{f32({1, 3, 4, 20})}, {{"interpolation", bilinear}, {"data_format", nhwc}, {"size", Ints{1, 3}}}},
      {{f32({1, 2, 3, 4})}, {{"interpolation", bilinear}, {"align_corners", true}}},
      {{f32({1, 1, 1, 2})}, {{"interpolation", bilinear}, {"align_corners", true}, {"size", Ints{2, 5}}}},
  };
  return op;
}

OpDef reflection_pad() {
  OpDef op;
  op.name = op.lua = "reflection_pad2d";
  op.doc =
      "An image with a border that mirrors what is inside, without the outermost rows and columns themselves: "
      "a b c becomes c b a b c b a with 2 on each side.\n"
      "shapes: x (batch, channels, height, width) -> (batch, channels, top + height + bottom, left + width + right); "
      "channels last with data_format \"NHWC\"\n"
      "dtypes: float32, float64, bfloat16 or float16 -> the same\n"
      "errors: padding below 0, or as large as the axis";
  op.attrs = {
      {"padding", Ints{}, "{left, right, top, bottom}, {{top, bottom}, {left, right}}, or one number for all", true},
      data_format_attr({})};
  op.examples = {
      {{f32({2, 2, 4, 3})}, {{"padding", Ints{1}}}},
      {{f32({1, 2, 3, 5})}, {{"padding", Ints{4, 0, 2, 1}}}},
      {{f32({1, 4, 3, 5})}, {{"padding", Ints{1, 2, 3, 0}}, {"data_format", std::string("NHWC")}}},
      {{f32({1, 1, 1, 2})}, {{"padding", Ints{1, 1, 0, 0}}}},
  };
  return op;
}

}  // namespace

void add_resample(Catalog& catalog) {
  add_pair(catalog, upsample(), upsampling_of);
  add_pair(catalog, reflection_pad(), reflection_of);
}

}  // namespace moonflow
