// Bytes of floats whose range only a run knows: what stands before the layers of models that are quantised dynamically.
// One pass finds the range, a second one rounds.
#include "kernels/dynamic_quantize.h"

#include <algorithm>
#include <cstring>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"
#include "kernels/lacks_gradient.h"
#include "kernels/types.h"

namespace moonflow {

namespace {

struct Ends {
  float least = 0, most = 0;  // 0 is always there
  void take(const Ends& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
  }
};

Ends ends_of(const float* x, int64_t count) {
  Ends ends;
  cpu::widest_register([&](auto wide) {
    using R = decltype(wide);
    constexpr int kHeld = 4;  // registers at once
    typename R::Vector least[kHeld] = {}, most[kHeld] = {};
    int64_t i = 0;
    for (; i + kHeld * R::kWidth <= count; i += kHeld * R::kWidth) {
      for (int k = 0; k < kHeld; ++k) {
        const typename R::Vector some = R::at(x + i + k * R::kWidth);
        least[k] = some < least[k] ? some : least[k];
        most[k] = some > most[k] ? some : most[k];
      }
    }
    for (; i < count; ++i) ends.take({x[i], x[i]});
    for (int k = 0; k < kHeld; ++k)
      for (int lane = 0; lane < R::kWidth; ++lane) ends.take({least[k][lane], most[k][lane]});
  });
  return ends;
}

void write_places(const float* x, int64_t count, const ByteRange& range, uint8_t* places) {
  cpu::widest_register([&](auto wide) {
    using R = decltype(wide);
    const typename R::Vector lowest = typename R::Vector{} - range.zero, highest = lowest + 255;
    int64_t i = 0;
    for (; i + R::kWidth <= count; i += R::kWidth) {  // as range(x[i])
      typename R::Vector place = R::at(x + i) / range.scale;
      place = place > lowest ? place : lowest;
      place = place < highest ? place : highest;
      place = (place + ByteRange::kOnesAreLast) - ByteRange::kOnesAreLast;
      const typename R::Integers whole = __builtin_convertvector(place + range.zero, typename R::Integers);
      alignas(kAlignment) uint8_t bytes[R::kWidth];
      R::narrow(whole, bytes);
      std::memcpy(places + i, bytes, sizeof bytes);
    }
    for (; i < count; ++i) places[i] = range(x[i]);
  });
}

constexpr int64_t kPart = cpu::kGrain;  // elements whose ends are found apart

Launch prepare(KernelCall& call) {
  const int64_t count = call.inputs[0].count(), parts = cpu::divide_up(count, kPart);
  call.scratch_bytes = parts * static_cast<int64_t>(sizeof(Ends));
  return [=](const LaunchCall& at) {
    const float* const x = at.input<float>(0);
    Ends* const of_parts = static_cast<Ends*>(at.scratch);
    cpu::parallel_for(parts, cpu::kWideGrain / kPart, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part)
        of_parts[part] = ends_of(x + part * kPart, std::min(kPart, count - part * kPart));
    });
    Ends ends;
    for (int64_t part = 0; part < parts; ++part) ends.take(of_parts[part]);
    const ByteRange range = ByteRange::of(ends.least, ends.most);
    cpu::parallel_for(count, cpu::kWideGrain, [&](int64_t first, int64_t last) {
      write_places(x + first, last - first, range, at.output<uint8_t>(0) + first);
    });
    *at.output<float>(1) = range.scale;
    *at.output<uint8_t>(2) = range(0);
  };
}

// Whatever order the elements are in, unless there are some that pad an image.
void keep_layout(LayoutCall& call) {
  Layout& x = call.inputs[0];
  const TensorType& type = call.input_types[0];
  if (!cpu::is_blocked(x) || x.bytes_of(type) != type.bytes()) x = {};
  call.outputs.assign(3, {});
  if (!x.row_major()) call.outputs[0] = cpu::layout_of(cpu::blocked(type, x), call.output_types[0]);
}

}  // namespace

void add_dynamic_quantize(Catalog& catalog) {
  OpDef op;
  op.name = "dynamic_quantize";
  op.lua = "nn.dynamic_quantize";
  op.doc =
      "Bytes in place of floats, about a scale and a zero point that take in all of them, and 0: for quantized_dense "
      "and\n"
      "quantized_conv2d, which take zero_point as zero, and scale times that of their weights as scale.\n"
      "  scale = (max(x, 0) - min(x, 0)) / 255, or 1 where that is 0\n"
      "  zero_point = the nearest whole number to -min(x, 0) / scale, halves to the even one\n"
      "  places = the nearest whole number to x / scale + zero_point, cut to 0 ... 255\n"
      "shapes: x of any shape -> places of the same shape, scale and zero_point numbers\n"
      "dtypes: x float32 -> places and zero_point uint8, scale float32\n"
      "errors: there is no gradient";
  op.inputs = {{"x"}};
  op.outputs = {"places", "scale", "zero_point"};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.dtype(0) == DType::Float32, ErrorCode::DtypeMismatch, "x must be float32, got ", call.dtype(0),
            "; cast it first");
    return {{DType::UInt8, call.shape(0)}, f32({}), {DType::UInt8, {}}};
  };
  op.grad = LacksGradient{
      "a gradient goes through it, and it has none: it is for models that have learned; keep it from the loss with "
      "flow.stop_gradient"};
  op.cpu = {prepare, keep_layout};
  op.examples = {{{f32({2, 3})}}, {{f32({7, 100})}, {}, -0.5, 3}, {{f32({5})}, {}, 1, 2}, {{f32({})}, {}, -3, -2}};
  catalog.add(std::move(op));
}

}  // namespace moonflow
