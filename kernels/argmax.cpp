// Positions of extremes along an axis: argmax and argmin.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/lanes.h"

namespace moonflow {
namespace {

// Whether a value takes the place of the one that leads: the first of equals stays, and so does the first NaN.
template <bool kLargest, class T>
bool takes_over(T value, T leader) {
  const bool ahead = kLargest ? value > leader : value < leader;
  return ahead || (value != value && leader == leader);
}

// Of n neighbours: of a few one after the other; else what the place holds first, in registers, and then where that is,
// block by block.
template <bool kLargest, class T>
int64_t place_in_row(const T* x, int64_t n) {
  constexpr int64_t kFew = 16;
  if (n < kFew) {
    int64_t place = 0;
    T leader = x[0];
    for (int64_t i = 1; i < n; ++i) {
      const bool takes = takes_over<kLargest>(x[i], leader);
      leader = takes ? x[i] : leader;
      place = takes ? i : place;
    }
    return place;
  }
  constexpr int64_t kBlock = 64;
  T most = x[0];
  int any_nan = 0;
#pragma omp simd reduction(| : any_nan)
  for (int64_t i = 0; i < n; ++i) any_nan |= x[i] != x[i];
  if constexpr (kLargest) {
#pragma omp simd reduction(max : most)
    for (int64_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
  } else {
#pragma omp simd reduction(min : most)
    for (int64_t i = 1; i < n; ++i) most = x[i] < most ? x[i] : most;
  }
  int64_t start = 0;
  if (any_nan) {
    while (x[start] == x[start]) ++start;
    return start;
  }
  for (int found = 0; start + kBlock < n; start += kBlock) {
#pragma omp simd reduction(| : found)
    for (int64_t i = start; i < start + kBlock; ++i) found |= x[i] == most;
    if (found) break;
  }
  while (x[start] != most) ++start;
  return start;
}

// Of so many lanes beside one another, whose elements are `stride` apart.
template <bool kLargest, class T>
void places_beside(const T* x, int64_t n, int64_t stride, int64_t count, int64_t* out) {
  T leader[cpu::kBeside];
  int64_t place[cpu::kBeside] = {};
  std::copy(x, x + count, leader);
  for (int64_t i = 1; i < n; ++i) {
    x += stride;
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
      const bool takes = takes_over<kLargest>(x[j], leader[j]);
      leader[j] = takes ? x[j] : leader[j];
      place[j] = takes ? i : place[j];
    }
  }
  std::copy(place, place + count, out);
}

template <class T, bool kLargest>
Launch launch_arg(const Lanes& lanes) {
  return [lanes](const LaunchCall& call) {
    const T* x = static_cast<const T*>(call.inputs[0]);
    int64_t* out = static_cast<int64_t*>(call.outputs[0]);
    const auto row = [=](int64_t lane) { out[lane] = place_in_row<kLargest>(x + lane * lanes.n, lanes.n); };
    cpu::for_each_lane(lanes, cpu::kGrain / 2 / lanes.n + 1, row, [=](int64_t lane, int64_t count) {
      places_beside<kLargest>(x + lanes.start(lane), lanes.n, lanes.stride, count, out + lane);
    });
  };
}

template <bool kLargest>
OpDef arg() {
  OpDef op;
  op.name = kLargest ? "argmax" : "argmin";
  op.lua = text("math.", op.name);
  op.doc = text("Position of the ", kLargest ? "largest" : "smallest",
                " element along an axis, counted from 0; the first of equals; a NaN wins. No gradient.\n  out = ",
                kLargest ? "argmax(x)" : "argmin(x)",
                "\nshapes: x of rank 1 or more -> out without the axis"
                "\ndtypes: all -> int64\nerrors: an axis outside x, or of size 0");
  op.inputs = {{"x"}};
  op.attrs = {{"axis", int64_t{-1}, "the axis, a negative one counts from the end"}};
  op.infer = [](const OpCall& call) {
    const int axis = wrap_axis(call.attrs.integer("axis"), call.shape(0).rank());
    require(call.shape(0)[axis] > 0, ErrorCode::InvalidArgument, "axis ", axis, " of x ", call.type(0), " is empty");
    Shape out = call.shape(0);
    out.erase(axis);
    return std::vector<TensorType>{{DType::Int64, out}};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
    return visit(call.inputs[0].dtype, [&](auto zero) { return launch_arg<decltype(zero), kLargest>(lanes); });
  }};
  op.examples = {{{{DType::Float32, {3, 4}}}},
                 {{{DType::Float32, {3, 4, 2}}}, {{"axis", int64_t{1}}}},
                 {{{DType::Int32, {5}}}, {{"axis", int64_t{0}}}}};
  return op;
}

}  // namespace

void add_argmax(Catalog& catalog) {
  catalog.add(arg<true>());
  catalog.add(arg<false>());
}

}  // namespace moonflow
