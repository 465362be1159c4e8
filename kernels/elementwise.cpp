// Element-wise ops of one input: a functor each (kernels/elementwise.h), one loop for all, one table row per OpDef.
// Values may stay in a private layout, since the order of the elements is all the same to these ops.
#include "kernels/elementwise.h"

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/catalog.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/types.h"

namespace moonflow {
namespace elementwise {

void check_dtype(Dtypes dtypes, const TensorType& type) {
  require(dtypes == Dtypes::All || is_floating(type.dtype), ErrorCode::DtypeMismatch, "needs float32 or float64, got ",
          type, "; cast it first");
}

NarrowUse narrow_use(const std::string& name) {
  static const auto& follow = *new std::set<std::string>{
      "abs",      "add",        "clip_by_value", "elu",      "gelu",     "hardsigmoid", "hardswish",
      "hardtanh", "leaky_relu", "maximum",       "minimum",  "mish",     "multiply",    "negative",
      "relu",     "relu6",      "sigmoid",       "softplus", "subtract", "swish",       "tanh"};
  return follow.count(name) > 0 ? follows_off_cpu() : NarrowUse{};
}

namespace {

// Whether there is an element for each channel of an image (batch, channels, ...), of all of the batch or of each.
bool has_channels_of(const TensorType& image, const TensorType& type) {
  const int rank = image.shape.rank(), skipped = rank - type.shape.rank();
  if (rank < 3 || skipped < 0 || type.dtype != image.dtype) return false;
  const auto size = [&](int axis) { return axis < skipped ? 1 : type.shape[axis - skipped]; };
  for (int axis = 2; axis < rank; ++axis)
    if (size(axis) != 1) return false;
  return size(1) == image.shape[1] && (size(0) == 1 || size(0) == image.shape[0]);
}

}  // namespace

void keep_layout(LayoutCall& call, const std::function<bool()>& gives_zero, bool takes_channels) {
  const TensorType& out = call.output_types[0];
  const auto is_there = [&](size_t i) { return call.present[i] && call.input_types[i] == out; };
  Layout dense, padded;  // the first of each
  bool singles = false, channels = false, others = false;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.present[i]) continue;
    if (is_there(i)) {
      Layout& first = call.inputs[i].bytes == out.bytes() ? dense : padded;
      if (first.row_major()) first = call.inputs[i];
    } else if (call.input_types[i].count() == 1) {
      singles = true;
    } else if (takes_channels && has_channels_of(out, call.input_types[i])) {
      channels = true;
    } else {
      others = true;
    }
  }
  Layout chosen = dense;
  if (dense.row_major() && !padded.row_major() && !singles && !channels && gives_zero()) chosen = padded;
  const auto in_blocks = [&] {
    const std::optional<ChannelForm> form = cpu::channel_form(out, chosen, 1);
    return form && form->outer == out.shape[0];
  };
  if (others || (channels && !in_blocks())) chosen = {};
  for (size_t i = 0; i < call.inputs.size(); ++i) call.inputs[i] = is_there(i) ? chosen : Layout{};
  call.outputs[0] = chosen;
}

bool gives_zero(const Loop& loop) {
  const AnyElement zero;
  AnyElement out;
  const Operand operands[] = {{zero.bytes, true}, {zero.bytes, true}};
  loop.run(1, operands, out.bytes);
  return out.is_zero();
}

int64_t stored_elements(const TensorType& type, const Layout& layout) {
  return layout.bytes_of(type) / size_of(type.dtype);
}

Launch launch_over(Loop loop, const KernelCall& call) {
  const int64_t count = stored_elements(call.outputs[0], call.output_layouts[0]);
  const int64_t out_size = size_of(call.outputs[0].dtype), size = size_of(call.inputs[0].dtype);  // of every input
  return [loop = std::move(loop), count, size, out_size, pair = call.inputs.size() > 1](const LaunchCall& launch) {
    parallel_for(count, loop.grain, [&](int64_t first, int64_t last) {
      const Operand operands[] = {{launch.input<char>(0) + first * size, true},
                                  {pair ? launch.input<char>(1) + first * size : nullptr, true}};
      loop.run(last - first, operands, launch.output<char>(0) + first * out_size);
    });
  };
}

namespace {

std::function<void(LayoutCall&)> keeping_layout(MakeLoop make, bool takes_channels = false) {
  return [=](LayoutCall& call) {
    const auto zero_stays = [&] { return gives_zero(make(call.attrs, call.input_types[0].dtype)); };
    keep_layout(call, zero_stays, takes_channels);
  };
}

// Beside an image in blocks of channels, a value with an element for each channel: those of a block are repeated until
// a loop over them pays.
Launch launch_beside_channels(Loop loop, KernelCall& call) {
  constexpr int64_t kPatternBytes = 1 << 12;
  const TensorType& image = call.outputs[0];
  const ChannelForm form = *cpu::channel_form(image, call.output_layouts[0], 1);
  const int channels_input = call.inputs[0] == image ? 1 : 0;
  const int64_t size = size_of(image.dtype), block_bytes = form.lanes * size;
  const int64_t blocks = call.inputs[channels_input].count() / form.lanes;                     // of one image or of all
  const int64_t places = std::clamp<int64_t>(kPatternBytes / block_bytes, 1, form.positions);  // of the pattern
  call.scratch_bytes = cpu::threads() * places * block_bytes;
  return [=](const LaunchCall& launch) {
    const char *channels = launch.input<char>(channels_input), *values = launch.input<char>(1 - channels_input);
    const int64_t slabs = form.outer * form.blocks, slab = form.positions * form.lanes;
    const int parts = cpu::threads_for(static_cast<double>(slabs * slab), static_cast<double>(loop.grain));
    cpu::parallel_for(parts, 1, [&](int64_t first_part, int64_t last_part) {
      for (int64_t part = first_part; part < last_part; ++part) {
        char* const pattern = static_cast<char*>(launch.scratch) + part * places * block_bytes;
        for (int64_t i = slabs * part / parts; i < slabs * (part + 1) / parts; ++i) {
          for (int64_t place = 0; place < places; ++place)
            std::memcpy(pattern + place * block_bytes, channels + i % blocks * block_bytes, block_bytes);
          for (int64_t at = 0; at < form.positions; at += places) {
            const int64_t offset = (i * form.positions + at) * block_bytes;
            Operand operands[2];
            operands[channels_input] = {pattern, true};
            operands[1 - channels_input] = {values + offset, true};
            loop.run(std::min(places, form.positions - at) * form.lanes, operands, launch.output<char>(0) + offset);
          }
        }
      }
    });
  };
}

// Runs of neighbours as short as this cost less than beginning a loop over them. So what is repeated is written out,
// for a block of the result at a time that stays in the nearest cache, and the loop goes over the block.
constexpr int64_t kShortRun = 128, kBlock = 1024;

std::vector<Broadcast<1>::Axis> axes_around_runs(const Broadcast<2>& geometry, int operand) {
  std::vector<Broadcast<1>::Axis> axes;
  for (const auto& axis : geometry.axes) axes.push_back({axis.size, {axis.steps[operand]}});
  axes.pop_back();
  return axes;
}

// Writes what an operand has for some runs of the result, one behind the other.
struct Runs {
  Broadcast<1> starts;  // where in the operand the runs of the result begin, a run for each element
  int64_t length;
  bool is_repeated;
  bool steps;   // from element to element of a run, which are one otherwise
  bool is_one;  // the same run everywhere

  Runs(const Broadcast<2>& geometry, int operand, bool repeated)
      : starts(axes_around_runs(geometry, operand)),
        length(geometry.axes.back().size),
        is_repeated(repeated),
        steps(geometry.axes.back().steps[operand] != 0),
        is_one(steps && starts.axes.size() == 1 && starts.axes[0].steps[0] == 0) {}

  // The block has room for a register more, which the next run overwrites.
  template <class T>
  void write(const void* data, int64_t first, int64_t last, void* block) const {
    constexpr int64_t kLanes = 64 / sizeof(T);
    const int64_t n = length, step = starts.axes.back().steps[0];
    widest([&] {
      starts.for_each_run(first, last, [&](int64_t at, int64_t count, const std::array<int64_t, 1>& offsets) {
        const T* from = static_cast<const T*>(data) + offsets[0];
        T* to = static_cast<T*>(block) + (at - first) * n;
        if (steps) {
          for (int64_t i = 0; i < count; ++i, from += step, to += n) std::memcpy(to, from, n * sizeof(T));
        } else {
          for (int64_t i = 0; i < count; ++i, from += step, to += n)
            for (int64_t k = 0; k < n; k += kLanes) std::fill_n(to + k, kLanes, *from);
        }
      });
    });
  }
};

Launch launch_by_blocks(Loop loop, const Broadcast<2>& geometry, const KernelCall& call) {
  const auto write = visit(call.inputs[0].dtype, [](auto zero) { return &Runs::write<decltype(zero)>; });
  const int64_t count = call.outputs[0].count(), length = geometry.axes.back().size;
  const int64_t run_bytes = length * size_of(call.inputs[0].dtype), out_bytes = length * size_of(call.outputs[0].dtype);
  const std::array<Runs, 2> operands{Runs(geometry, 0, call.inputs[0].count() != count),
                                     Runs(geometry, 1, call.inputs[1].count() != count)};
  return [=](const LaunchCall& launch) {
    parallel_for(count / length, std::max<int64_t>(1, loop.grain / length), [&](int64_t first, int64_t last) {
      alignas(64) char blocks[2][kBlock * sizeof(AnyElement) + 64];
      bool is_written = false;
      for (int64_t end; first < last; first = end, is_written = true) {
        end = std::min(first + kBlock / length, last);
        Operand read[2];
        for (int i = 0; i < 2; ++i) {
          read[i] = {launch.input<char>(i) + first * run_bytes, true};
          if (!operands[i].is_repeated) continue;
          if (!is_written || !operands[i].is_one) (operands[i].*write)(launch.inputs[i], first, end, blocks[i]);
          read[i].data = blocks[i];
        }
        loop.run((end - first) * length, read, launch.output<char>(0) + first * out_bytes);
      }
    });
  };
}

}  // namespace

Kernel kernel_over(MakeLoop make) {
  return {[make](KernelCall& call) { return launch_over(make(call.attrs, call.inputs[0].dtype), call); },
          keeping_layout(make)};
}

Kernel broadcast_kernel(MakeLoop make) {
  const auto prepare = [make](KernelCall& call) -> Launch {
    if (call.inputs[0].shape == call.inputs[1].shape) return launch_over(make(call.attrs, call.inputs[0].dtype), call);
    const bool with_single = call.inputs[0].count() == 1 || call.inputs[1].count() == 1;
    if (!call.output_layouts[0].row_major() && !with_single)
      return launch_beside_channels(make(call.attrs, call.inputs[0].dtype), call);
    const Broadcast<2> geometry({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
    const bool has_runs = geometry.axes.size() > 1 && call.outputs[0].count() > 0;
    if (has_runs && geometry.axes.back().size <= kShortRun)
      return launch_by_blocks(make(call.attrs, call.inputs[0].dtype), geometry, call);
    const int64_t count = call.outputs[0].count(), out_size = size_of(call.outputs[0].dtype);
    const int64_t size = size_of(call.inputs[0].dtype);
    return [loop = make(call.attrs, call.inputs[0].dtype), geometry, count, size, out_size](const LaunchCall& launch) {
      const auto& steps = geometry.axes.back().steps;
      parallel_for(count, loop.grain, [&](int64_t first, int64_t last) {
        geometry.for_each_run(first, last, [&](int64_t at, int64_t n, const std::array<int64_t, 2>& offsets) {
          const Operand operands[] = {{launch.input<char>(0) + offsets[0] * size, steps[0] != 0},
                                      {launch.input<char>(1) + offsets[1] * size, steps[1] != 0}};
          loop.run(n, operands, launch.output<char>(0) + at * out_size);
        });
      });
    };
  };
  return {prepare, keeping_layout(make, true)};
}

std::string doc(const std::string& says, const std::string& formula, Dtypes dtypes, const std::string& shapes,
                const std::string& end) {
  return text(says, "\n  ", formula, "\nshapes: ", shapes,
              "\ndtypes: ", dtypes == Dtypes::All ? "all" : "float32, float64", end);
}

namespace {

std::vector<TensorType> infer_unary(Dtypes dtypes, const std::vector<AttrDef>& attrs, const OpCall& call) {
  const TensorType& type = call.type(0);
  check_dtype(dtypes, type);
  for (const AttrDef& attr : attrs) {
    const double value = call.attrs.number(attr.name);
    require(is_floating(type.dtype) || value == std::floor(value), ErrorCode::DtypeMismatch, attr.name, " is ", value,
            ", and ", type, " has whole numbers; cast it first");
  }
  return {type};
}

std::vector<TensorType> infer_unary_grad(const OpCall& call) {
  check_dtype(Dtypes::Floating, call.type(0));
  require(call.type(0) == call.type(1), ErrorCode::ShapeMismatch, "the gradient is ", call.type(0), ", the value is ",
          call.type(1));
  return {call.type(0)};
}

// ---- one input -----------------------------------------------------------------------------------------------

// What differs by type between the rows; the rest of an OpDef is made by plain functions, for the sake of the code
// size.
struct UnaryLoops {
  MakeLoop forward, backward;  // backward may be absent: no gradient
  Dtypes dtypes;
  bool is_bool;
};

void add_unary_grad(const Family& family, const UnaryRow& row, const std::string& name, MakeLoop loop) {
  const char* value = row.reads == Reads::Input ? "x" : "y";
  OpDef op;
  op.name = name;
  op.doc = doc(text("Gradient of ", row.name, "."), text("dx = dy * d(", row.formula, ") / dx, given ", value),
               Dtypes::Floating, text("dy and ", value, " of one shape -> dx of that shape"));
  op.inputs = {{"dy"}, {value}};
  op.outputs = {"dx"};
  op.attrs = row.attrs;
  op.infer = infer_unary_grad;
  op.grad = gradient_of_unary_grad(row.name);
  op.cpu = kernel_over(loop);
  family.add_link(op, loop);
  op.narrow = narrow_use(row.name);
  op.inplace = {{0, 0}, {0, 1}};
  // Both inputs are drawn from one range: that of x, or a part of what y can be.
  const double low = row.reads == Reads::Input ? row.low : 0.1, high = row.reads == Reads::Input ? row.high : 0.9;
  const TensorType type{DType::Float32, {2, 3}};
  op.examples = {{{type, type}, row.example, low, high}};
  family.catalog.add(std::move(op));
}

void add_unary(const Family& family, const UnaryRow& row, const UnaryLoops& loops) {
  OpDef op;
  op.name = row.name;
  op.lua = row.lua;
  op.doc = doc(row.says, row.formula, loops.dtypes, "x of any shape -> out of the same shape",
               loops.is_bool ? " -> int8, 1 for true" : "");
  op.inputs = {{"x"}};
  op.attrs = row.attrs;
  op.infer = [dtypes = loops.dtypes, attrs = row.attrs](const OpCall& call) {
    return infer_unary(dtypes, attrs, call);
  };
  if (loops.is_bool) {
    op.infer = [](const OpCall& call) { return std::vector<TensorType>{{DType::Int8, call.shape(0)}}; };
  }
  op.cpu = kernel_over(loops.forward);
  family.add_link(op, loops.forward);
  op.narrow = narrow_use(row.name);
  op.inplace = {{0, 0}};
  for (const Shape& shape : {Shape{2, 3}, Shape{3, 1, 7, 5}, Shape{}}) {
    op.examples.push_back({{{DType::Float32, shape}}, row.example, row.low, row.high});
  }
  if (loops.dtypes == Dtypes::All) {
    for (DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
      op.examples.push_back({{{dtype, {5}}}, row.example});
    }
  }
  if (loops.backward) {
    const std::string gradient = text(row.name, "_grad");
    op.grad = [gradient, reads = row.reads](GradCall& call) -> std::vector<ValueId> {
      if (!is_floating(call.type(call.inputs[0]).dtype)) return {kNone};
      return {call.op(gradient, {call.grads[0], reads == Reads::Input ? call.inputs[0] : call.outputs[0]}, call.attrs)};
    };
    add_unary_grad(family, row, gradient, loops.backward);
  }
  family.catalog.add(std::move(op));
}

template <class F, class G, Dtypes dtypes>
void add_unary(const Family& family, const UnaryRow& row) {
  MakeLoop backward = nullptr;
  if constexpr (!std::is_same_v<G, functor::None>) backward = make_pair_loop<G>;
  add_unary(family, row,
            {make_unary_loop<F, dtypes>, backward, dtypes, std::is_same_v<std::invoke_result_t<F, float>, bool>});
}

// ---- cast ----------------------------------------------------------------------------------------------------

template <class To>
struct Convert : functor::Cheap {
  template <class From>
  To operator()(From x) const {
    return functor::convert<To>(x);
  }
};

std::vector<ValueId> cast_grad(GradCall& call) {
  const DType from = call.type(call.inputs[0]).dtype;
  if (!is_floating(from) || !is_floating(call.attrs.dtype("dtype"))) return {kNone};
  return {call.op("cast", {call.grads[0]}, {{"dtype", from}})};
}

// The elements of either dtype lie alike. Those that pad an image are zeros in both.
void keep_layout_of_cast(LayoutCall& call) {
  Layout& x = call.inputs[0];
  if (!cpu::is_blocked(x)) x = {};
  call.outputs[0] =
      x.row_major() ? Layout{} : cpu::layout_of(cpu::blocked(call.input_types[0], x), call.output_types[0]);
}

void add_cast(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "cast";
  op.doc =
      "The same values in another dtype.\n"
      "  out = x, rounded to the nearest float; to an integer: truncated toward 0\n"
      "shapes: x of any shape -> out of the same shape\n"
      "dtypes: from any to any. A floating value outside an integer's range becomes its end, a NaN 0;\n"
      "        an integer outside a smaller integer's range wraps around";
  op.inputs = {{"x"}};
  op.attrs = {{"dtype", DType::Float32, "dtype of out", true}};
  op.infer = [](const OpCall& call) { return std::vector<TensorType>{{call.attrs.dtype("dtype"), call.shape(0)}}; };
  op.grad = cast_grad;
  op.cpu = {[](KernelCall& call) -> Launch {
              return visit_stored(call.outputs[0].dtype, [&](auto to) {
                using F = Convert<decltype(to)>;
                return visit_stored(call.inputs[0].dtype,
                                    [&](auto from) { return launch_over(unary_loop<F, decltype(from)>(F{}), call); });
              });
            },
            keep_layout_of_cast};
  op.examples = {{{{DType::Float32, {2, 3}}}, {{"dtype", DType::Float64}}},
                 {{{DType::Int32, {5}}}, {{"dtype", DType::Float32}}},
                 {{{DType::Float32, {4}}}, {{"dtype", DType::Int8}}, -200, 200},
                 {{{DType::UInt8, {2, 2}}}, {{"dtype", DType::Int64}}},
                 {{{DType::Float32, {3, 7}}}, {{"dtype", DType::BFloat16}}},
                 {{{DType::BFloat16, {5}}}, {{"dtype", DType::Float32}}},
                 {{{DType::BFloat16, {4}}}, {{"dtype", DType::UInt8}}, -200, 300},
                 {{{DType::Float32, {3, 7}}}, {{"dtype", DType::Float16}}},
                 {{{DType::Float16, {5}}}, {{"dtype", DType::BFloat16}}}};
  op.narrow.in_kernels = true;
  catalog.add(std::move(op));
}

}  // namespace
}  // namespace elementwise

void add_elementwise(Catalog& catalog) {
  const elementwise::Family family{catalog, std::make_shared<elementwise::Links>()};
  elementwise::for_each_unary([&](auto computes, const elementwise::UnaryRow& row) {
    using Row = decltype(computes);
    elementwise::add_unary<typename Row::Functor, typename Row::Gradient, Row::dtypes>(family, row);
  });
  elementwise::add_cast(catalog);
  elementwise::add_binary_ops(family);
  elementwise::add_where(catalog);
  elementwise::add_chain(family);
}

}  // namespace moonflow
