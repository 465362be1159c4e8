// resample_axis, of which images of any other size are made, what it means, and the CPU's loops.
#include "kernels/resample_axis.h"

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/lanes.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- kernels ---------------------------------------------------------------------------------------------------

// Which places of one axis each place of another is the sum of, with their weights.
template <class T>
struct Sums {
  struct Part {
    int64_t place;
    T weight;
  };
  std::vector<int64_t> starts{0};  // the parts of place o are [starts[o], starts[o + 1])
  std::vector<Part> parts;

  explicit Sums(const AxisFilter& filter) {
    for (int64_t o = 0; o < filter.out; ++o) {
      double total = 0;
      filter.each_part(o, [&](int64_t, double weight) { total += weight; });
      // What lies outside comes first or last, so its places are neighbours in the list.
      double weights = 0;
      filter.each_part(o, [&](int64_t place, double weight) {
        const bool again = static_cast<int64_t>(parts.size()) > starts.back() && parts.back().place == place;
        weights = again ? weights + weight : weight;
        if (!again) parts.push_back({place, T(0)});
        parts.back().weight = static_cast<T>(weights / total);
      });
      starts.push_back(static_cast<int64_t>(parts.size()));
    }
  }

  // The way back: of each old place, what it is a part of.
  Sums reversed(int64_t in) const {
    Sums back;
    back.starts.assign(in + 1, 0);
    for (const Part& part : parts) ++back.starts[part.place + 1];
    for (int64_t i = 0; i < in; ++i) back.starts[i + 1] += back.starts[i];
    back.parts.resize(parts.size());
    std::vector<int64_t> next(back.starts.begin(), back.starts.end() - 1);
    for (int64_t o = 0; o + 1 < static_cast<int64_t>(starts.size()); ++o) {
      for (int64_t p = starts[o]; p < starts[o + 1]; ++p) back.parts[next[parts[p].place]++] = {o, parts[p].weight};
    }
    return back;
  }

  int64_t places() const { return static_cast<int64_t>(starts.size()) - 1; }

 private:
  Sums() = default;
};

// `count` elements that lie side by side, of the places whose elements are `stride` apart.
template <class X, class T>
void sum_beside(const typename Sums<T>::Part* part, const typename Sums<T>::Part* past, const X* from, int64_t stride,
                T* to, int64_t count) {
  const auto at = [&](const auto& one) { return from + one.place * stride; };
  if ((past - part) % 2 == 1) {
    const X* const a = at(*part);
    const T of_a = part++->weight;
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) to[j] = of_a * static_cast<T>(a[j]);
  } else {
    std::fill(to, to + count, T(0));
  }
  for (; part != past; part += 2) {
    const X *const a = at(part[0]), *const b = at(part[1]);
    const T of_a = part[0].weight, of_b = part[1].weight;
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) to[j] += of_a * static_cast<T>(a[j]) + of_b * static_cast<T>(b[j]);
  }
}

template <class X, class T>
struct Resample {
  Sums<T> sums;
  int64_t outer, in, stride;

  void run(const X* from, T* to) const {
    if (stride == 1) return in_rows<1, 8>(from, to);
    if (stride == 3) return in_rows<3, 2>(from, to);
    if (stride == 4) return in_rows<4, 2>(from, to);
    const int64_t places = sums.places();
    each(outer * places, stride * parts_of_place(), [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) place(from + i / places * in * stride, i % places, to + i * stride);
    });
  }

 private:
  static constexpr int64_t kStrip = 2048;  // elements whose sums stay in the first cache

  int64_t parts_of_place() const {
    return static_cast<int64_t>(sums.parts.size()) / std::max<int64_t>(1, sums.places()) + 1;
  }

  // loop(first, last) in parallel, where one of them is so much work.
  template <class Loop>
  static void each(int64_t count, int64_t work, const Loop& loop) {
    cpu::parallel_for(count, std::max<int64_t>(1, cpu::kGrain / work),
                      [&](int64_t first, int64_t last) { cpu::widest([&] { loop(first, last); }); });
  }

  void place(const X* from, int64_t o, T* to) const {
    const auto *const part = sums.parts.data() + sums.starts[o], *const past = sums.parts.data() + sums.starts[o + 1];
    for (int64_t j = 0; j < stride; j += kStrip)
      sum_beside<X, T>(part, past, from + j, stride, to + j, std::min(kStrip, stride - j));
  }

  // Where few elements lie side by side, some rows at a time have their sums in registers.
  template <int kCount, int kRows>
  void in_rows(const X* from, T* to) const {
    const int64_t rows = (outer + kRows - 1) / kRows, from_row = in * kCount, to_row = sums.places() * kCount;
    each(rows, kRows * to_row * parts_of_place(), [=](int64_t first, int64_t last) {
      for (int64_t i = first * kRows; i < std::min(outer, last * kRows); i += kRows) {
        if (i + kRows <= outer)
          sum_rows<kCount, kRows>(from + i * from_row, to + i * to_row);
        else
          for (int64_t row = i; row < outer; ++row) sum_rows<kCount, 1>(from + row * from_row, to + row * to_row);
      }
    });
  }

  template <int kCount, int kRows>
  void sum_rows(const X* from, T* to) const {
    const int64_t places = sums.places(), from_row = in * kCount, to_row = places * kCount;
    const auto* part = sums.parts.data();
    for (int64_t o = 0; o < places; ++o) {
      T of_rows[kRows][kCount] = {};
      for (const auto* const past = sums.parts.data() + sums.starts[o + 1]; part != past; ++part) {
        const X* const at = from + part->place * kCount;
        for (int row = 0; row < kRows; ++row) {
          for (int j = 0; j < kCount; ++j) of_rows[row][j] += part->weight * static_cast<T>(at[row * from_row + j]);
        }
      }
      for (int row = 0; row < kRows; ++row) {
        for (int j = 0; j < kCount; ++j) to[row * to_row + o * kCount + j] = of_rows[row][j];
      }
    }
  }
};

enum class Direction { There, Back };

Launch prepare(Direction direction, KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
  const Lanes lanes_of_x(direction == Direction::There ? call.inputs[0].shape : call.outputs[0].shape,
                         call.attrs.integer("axis"));
  const AxisFilter filter = axis_filter(call.attrs, lanes_of_x.n);
  const auto of_types = [&](auto from, auto to) -> Launch {
    using X = decltype(from);
    using T = decltype(to);
    const Sums<T> sums(filter);
    return [resample = Resample<X, T>{direction == Direction::There ? sums : sums.reversed(filter.in),
                                      lanes.count / lanes.stride, lanes.n, lanes.stride}](const LaunchCall& launch) {
      resample.run(launch.input<X>(0), launch.output<T>(0));
    };
  };
  if (call.inputs[0].dtype == DType::UInt8) return of_types(uint8_t{}, float{});
  return visit_floating(call.inputs[0].dtype, [&](auto zero) { return of_types(zero, zero); });
}

// ---- the ops ---------------------------------------------------------------------------------------------------

// The shape with so many places along the axis of the op.
Shape with_places(const Shape& shape, const Attrs& attrs, int64_t places) {
  std::vector<int64_t> sizes = shape.dims();
  sizes[wrap_axis(attrs.integer("axis"), shape.rank())] = places;
  return Shape(sizes);
}

std::vector<AttrDef> attributes() {
  return {{"axis", int64_t{0}, "the axis", true},
          {"size", int64_t{0}, "places of the result", true},
          {"slope", 1.0, "how many old places a new one is behind the one before", true},
          {"offset", 0.0, "where the first one lies"},
          {"filter", std::string("linear"), "\"linear\" or \"cubic\""},
          {"coefficient", -0.75, "a of the cubic filter: the slope at a distance of 1"},
          {"spread", 1.0, "how many places wide what lies between neighbours is"},
          {"extends", true, "what lies outside is the place next to it; false: no part"},
          {"stays_inside", false, "points outside are moved to the first or last place"}};
}

OpDef resample_axis() {
  OpDef op;
  op.name = "resample_axis";
  op.doc =
      "An axis of another length.\n"
      "  out[o] = sum of w(|p - i| / spread) * x[i] over sum of w(|p - i| / spread), with p = slope * o + offset\n"
      "  linear: w(d) = 1 - d up to 1\n"
      "  cubic:  w(d) = (a + 2) d^3 - (a + 3) d^2 + 1 up to 1, a d^3 - 5 a d^2 + 8 a d - 4 a up to 2\n"
      "shapes: x (..., in, ...) -> (..., size, ...)\n"
      "dtypes: float32, float64, bfloat16 or float16 -> the same; uint8 -> float32\n"
      "errors: a size below 1, or of 2^24 or more; a spread below 1 or above in + 1\n"
      "source: Keys, \"Cubic convolution interpolation for digital image processing\", 1981";
  op.inputs = {{"x"}};
  op.attrs = attributes();
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const bool has_bytes = call.dtype(0) == DType::UInt8;
    if (!has_bytes) require_floating(call, 0, "x");
    const Lanes lanes(call.shape(0), call.attrs.integer("axis"));
    return {{has_bytes ? DType::Float32 : call.dtype(0),
             with_places(call.shape(0), call.attrs, axis_filter(call.attrs, lanes.n).out)}};
  };
  op.grad = linear_gradient("resample_axis_grad");
  const std::string cubic = "cubic";
  op.examples = {
      {{f32({2, 3, 4})}, {{"axis", 1}, {"size", 5}, {"slope", 0.6}, {"offset", -0.2}}},
      {{f32({2, 7})},
       {{"axis", -1}, {"size", 3}, {"slope", 7.0 / 3}, {"offset", 2.0 / 3}, {"spread", 7.0 / 3}, {"extends", false}}},
      {{f32({5, 3})}, {{"axis", 0}, {"size", 9}, {"slope", 0.5}, {"filter", cubic}}},
      {{f32({2, 6, 1, 4})},
       {{"axis", 1},
        {"size", 4},
        {"slope", 1.5},
        {"offset", 0.25},
        {"filter", cubic},
        {"coefficient", -0.5},
        {"spread", 1.5},
        {"extends", false}}},
      {{f32({4, 9})}, {{"axis", 0}, {"size", 3}, {"slope", -1.5}, {"offset", 3.5}, {"stays_inside", true}}},
      {{f32({1})}, {{"axis", 0}, {"size", 1}, {"slope", 0.0}}},
      {{{DType::UInt8, {4, 5, 3}}}, {{"axis", 1}, {"size", 3}, {"slope", 1.7}, {"spread", 1.7}}},
  };
  return op;
}

OpDef resample_axis_grad(const OpDef& of) {
  OpDef op;
  op.name = of.name + "_grad";
  op.doc = "Gradient of resample_axis: each place of x gets what the places that it is a part of bring, by its weight.";
  op.inputs = {{"dy"}};
  op.outputs = {"dx"};
  op.attrs = of.attrs;
  op.attrs.push_back({"shape", Ints{}, "shape of x", true});
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "dy");
    const Shape shape(call.attrs.ints("shape"));
    const AxisFilter filter = axis_filter(call.attrs, Lanes(shape, call.attrs.integer("axis")).n);
    require_type(call, 0, "dy", {call.dtype(0), with_places(shape, call.attrs, filter.out)});
    return {{call.dtype(0), shape}};
  };
  op.grad = gradient_of_linear(of.name);
  for (const Example& example : of.examples) {
    const TensorType& x = example.inputs[0];
    if (!is_floating(x.dtype)) continue;
    Attrs attrs = example.attrs;
    attrs.set("shape", x.shape.dims());
    op.examples.push_back({{f32(with_places(x.shape, attrs, attrs.integer("size")))}, attrs});
  }
  return op;
}

}  // namespace

void add_resample_axis(Catalog& catalog) {
  OpDef op = resample_axis(), grad = resample_axis_grad(op);
  for (auto* each : {&op, &grad}) {
    const Direction direction = each == &op ? Direction::There : Direction::Back;
    each->cpu = {[direction](KernelCall& call) { return prepare(direction, call); }};
    each->narrow = follows_off_cpu();
    catalog.add(std::move(*each));
  }
}

}  // namespace moonflow
