// Ops that make values out of nothing: constants, zeros and ones in the shape of another value, ranges.
// None of them has a gradient.
#include "kernels/boxes.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/elementwise.h"

namespace moonflow {
namespace {

Launch launch_fill(const TensorType& type, double value) {
  return visit(type.dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [count = type.count(), element = functor::convert<T>(value)](const LaunchCall& call) {
      T* out = static_cast<T*>(call.outputs[0]);
      cpu::parallel_for(count, cpu::kGrain,
                        [=](int64_t first, int64_t last) { std::fill(out + first, out + last, element); });
    };
  });
}

std::vector<TensorType> infer_constant(const OpCall& call) {
  require_value_of(call.attrs.dtype("dtype"), call.attrs, "value");
  return {{call.attrs.dtype("dtype"), checked_shape(call.attrs)}};
}

OpDef constant() {
  OpDef op;
  op.name = op.lua = "constant";
  op.doc =
      "One value everywhere.\n"
      "  out = value\n"
      "shapes: -> shape\n"
      "dtypes: all\n"
      "errors: a negative size; a value that an integer dtype does not have";
  op.attrs = {{"value", 0.0, "the value", true},
              {"dtype", DType::Float32, "dtype of out"},
              {"shape", Ints{}, "sizes of out; empty for a scalar"}};
  op.infer = infer_constant;
  op.cpu = {[](KernelCall& call) { return launch_fill(call.outputs[0], call.attrs.number("value")); }};
  op.examples = {{{}, {{"value", 2.5}, {"shape", Ints{2, 3}}}},
                 {{}, {{"value", 0.1}, {"dtype", DType::Float64}}},
                 {{}, {{"value", -3.0}, {"dtype", DType::Int8}, {"shape", Ints{4}}}}};
  return op;
}

OpDef like(const char* name, double value) {
  OpDef op;
  op.name = op.lua = name;
  op.doc = text(value == 0 ? "Zeros" : "Ones", " of the type of another value, whose elements are not read.\n  out = ",
                value, "\nshapes: x of any shape -> out of the same shape\ndtypes: all");
  op.inputs = {{"x"}};
  op.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  op.cpu = {[value](KernelCall& call) { return launch_fill(call.outputs[0], value); }};
  op.inplace = {{0, 0}};
  op.examples = {{{{DType::Float32, {2, 3}}}}, {{{DType::Int64, {}}}}};
  return op;
}

std::vector<TensorType> infer_range(const OpCall& call) {
  const double start = call.attrs.number("start"), stop = call.attrs.number("stop"), step = call.attrs.number("step");
  require(step != 0 && std::isfinite(step) && std::isfinite(start) && std::isfinite(stop), ErrorCode::InvalidArgument,
          "start, stop and step must be finite and step not 0, got ", start, ", ", stop, ", ", step);
  const double count = std::max(0.0, std::ceil((stop - start) / step));
  require(count < 1e15, ErrorCode::OutOfRange, "a range of ", count, " elements");
  return {{call.attrs.dtype("dtype"), {static_cast<int64_t>(count)}}};
}

OpDef range() {
  OpDef op;
  op.name = op.lua = "range";
  op.doc =
      "Evenly spaced values.\n"
      "  out[i] = start + i * step, as long as that is before stop\n"
      "In Lua also with stop alone, from 0: flow.range(stop).\n"
      "shapes: -> (ceil((stop - start) / step)), empty when stop lies behind start\n"
      "dtypes: all; computed in float64\n"
      "errors: step is 0; a bound that is not finite";
  op.attrs = {{"start", 0.0, "first value", true},
              {"stop", 0.0, "end, not included", true},
              {"step", 1.0, "distance of neighbours, may be negative"},
              {"dtype", DType::Float32, "dtype of out"}};
  op.infer = infer_range;
  op.cpu = {[](KernelCall& call) {
    return visit(call.outputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      const double start = call.attrs.number("start"), step = call.attrs.number("step");
      const int64_t count = call.outputs[0].count();
      // Whole numbers of the dtype need no float64: of those up to 2^53 it would give the same.
      const auto is_one = [](double x) {
        constexpr double kMost = 9007199254740992;
        return std::is_integral_v<T> && std::fabs(x) <= kMost && static_cast<double>(functor::convert<T>(x)) == x;
      };
      const bool are_whole =
          is_one(start) && is_one(start + static_cast<double>(count) * step) && std::rint(step) == step;
      return [=](const LaunchCall& launch) {
        T* const out = launch.output<T>(0);
        cpu::parallel_for(count, cpu::kGrain, [=](int64_t first, int64_t last) {
          if (are_whole) {
            const auto from = static_cast<int64_t>(start), by = static_cast<int64_t>(step);
            cpu::widest([=] {
              for (int64_t i = first; i < last; ++i) out[i] = static_cast<T>(from + i * by);
            });
            return;
          }
          constexpr int64_t kBlock = 1 << 12;  // counted in 32 bits, which any processor makes float64 of
          for (int64_t begin = first; begin < last; begin += kBlock) {
            const double before = static_cast<double>(begin);
            const int32_t n = static_cast<int32_t>(std::min(kBlock, last - begin));
            T* const to = out + begin;
            for (int32_t i = 0; i < n; ++i) to[i] = functor::convert<T>(start + (before + i) * step);
          }
        });
      };
    });
  }};
  op.examples = {{{}, {{"start", 0.0}, {"stop", 5.0}}},
                 {{}, {{"start", 1.0}, {"stop", -1.0}, {"step", -0.25}, {"dtype", DType::Float64}}},
                 {{}, {{"start", 2.0}, {"stop", 9.0}, {"step", 3.0}, {"dtype", DType::Int64}}}};
  return op;
}

}  // namespace

void add_fill(Catalog& catalog) {
  catalog.add(constant());
  catalog.add(like("zeros_like", 0));
  catalog.add(like("ones_like", 1));
  catalog.add(range());
}

}  // namespace moonflow
