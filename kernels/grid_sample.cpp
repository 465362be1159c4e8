// grid_sample and its gradients on the CPU. The pixels and shares of a few hundred places are reckoned at a time, and
// serve all channels, each of which is a plane.
#include "kernels/grid_sample.h"

#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

constexpr int64_t kTapsAtOnce = 1024;

// Of some places side by side: the pixels that each is made of, with what each counts.
template <class T, int kSide>
struct Taps {
  static constexpr int kTaps = kSide * kSide;
  static constexpr int64_t kPlaces = kTapsAtOnce / std::max(kTaps, 4);
  int32_t pixel[kTaps][kPlaces];
  T share[kTaps][kPlaces];
};

// The same with what each comes to count when the column or the row of the grid grows.
template <class T, int kSide>
struct Slopes : Taps<T, kSide> {
  using Base = Taps<T, kSide>;
  T by_column[Base::kTaps][Base::kPlaces], by_row[Base::kTaps][Base::kPlaces];
};

template <class T, int kSide>
class Sampler {
 public:
  using TapsHere = Taps<T, kSide>;
  static constexpr int kTaps = TapsHere::kTaps;
  static constexpr int64_t kPlaces = TapsHere::kPlaces;

  explicit Sampler(const GridSampling& of) : of_(of), rows_(of, of.height), columns_(of, of.width) {}

  // Places of one picture and channel after the other.
  void sample(const T* x, const T* grid, T* out) const {
    each_block([&](int64_t picture, int64_t first, int64_t count) {
      TapsHere taps;
      fill(taps, grid + 2 * (picture * of_.places() + first), count);
      for (int64_t c = 0; c < of_.channels; ++c) {
        const int64_t plane = picture * of_.channels + c;
        const T* const from = x + plane * of_.plane();
        T* const to = out + plane * of_.places() + first;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) to[i] = sum(taps.pixel, taps.share, from, i);
      }
    });
  }

  // A thread has whole planes and goes through all places in order, so that every sum has one order.
  void spread(const T* grid, const T* dy, T* dx) const {
    const int64_t work = of_.plane() + of_.places() * kTaps + 1;
    cpu::parallel_for(of_.batch * of_.channels, cpu::kGrain / work + 1, [&](int64_t first, int64_t last) {
      cpu::widest([&] {
        std::fill(dx + first * of_.plane(), dx + last * of_.plane(), T(0));
        while (first < last) {
          const int64_t picture = first / of_.channels, end = std::min(last, (picture + 1) * of_.channels);
          spread_planes(picture, first, end, grid, dy, dx);
          first = end;
        }
      });
    });
  }

  void slopes(const T* x, const T* grid, const T* dy, T* dgrid) const {
    each_block([&](int64_t picture, int64_t first, int64_t count) {
      Slopes<T, kSide> taps;
      const int64_t place = 2 * (picture * of_.places() + first);
      fill(taps, grid + place, count);
      T by_column[kPlaces] = {}, by_row[kPlaces] = {};
      for (int64_t c = 0; c < of_.channels; ++c) {
        const int64_t plane = picture * of_.channels + c;
        const T *const from = x + plane * of_.plane(), *const given = dy + plane * of_.places() + first;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) {
          by_column[i] += given[i] * sum(taps.pixel, taps.by_column, from, i);
          by_row[i] += given[i] * sum(taps.pixel, taps.by_row, from, i);
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        dgrid[place + 2 * i] = by_column[i];
        dgrid[place + 2 * i + 1] = by_row[i];
      }
    });
  }

 private:
  // work(picture, first, count) for all places, in parallel.
  template <class Work>
  void each_block(const Work& work) const {
    const int64_t blocks = (of_.places() + kPlaces - 1) / kPlaces;
    const int64_t of_block = kPlaces * kTaps * (of_.channels + 4);
    cpu::parallel_for(of_.batch * blocks, cpu::kGrain / of_block + 1, [&](int64_t first, int64_t last) {
      cpu::widest([&] {
        for (int64_t b = first; b < last; ++b) {
          const int64_t place = b % blocks * kPlaces;
          work(b / blocks, place, std::min(kPlaces, of_.places() - place));
        }
      });
    });
  }

  // What lies along one axis, for places whose numbers are two apart. Not inlined: it is needed in many places, and
  // takes long to compile.
  struct Along {
    int32_t pixel[kSide][kPlaces];
    T share[kSide][kPlaces], slope[kSide][kPlaces];

    [[gnu::noinline]] Along(const GridAxis<T>& axis, const T* grid, int64_t count) {
      cpu::widest([&] {
        if (axis.padding == GridSampling::Zeros) find(axis, grid, count, GridSampling::Zeros);
        if (axis.padding == GridSampling::Border) find(axis, grid, count, GridSampling::Border);
        if (axis.padding == GridSampling::Reflection) find(axis, grid, count, GridSampling::Reflection);
      });
    }

   private:
    void find(GridAxis<T> axis, const T* grid, int64_t count, GridSampling::Padding padding) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        const auto taps = axis.template taps<kSide>(grid[2 * i], padding);
        for (int k = 0; k < kSide; ++k) {
          pixel[k][i] = taps.pixel[k];
          share[k][i] = taps.share[k];
          slope[k][i] = taps.slope[k];
        }
      }
    }
  };

  template <class Given>
  [[gnu::noinline]] void fill(Given& taps, const T* grid, int64_t count) const {
    const Along column(columns_, grid, count), row(rows_, grid + 1, count);
    cpu::widest([&] {
      for (int k = 0; k < kTaps; ++k) {
        const int r = k / kSide, c = k % kSide;
        for (int64_t i = 0; i < count; ++i) {
          taps.pixel[k][i] = row.pixel[r][i] * columns_.size + column.pixel[c][i];
          taps.share[k][i] = row.share[r][i] * column.share[c][i];
          if constexpr (!std::is_same_v<Given, TapsHere>) {
            taps.by_column[k][i] = row.share[r][i] * column.slope[c][i];
            taps.by_row[k][i] = row.slope[r][i] * column.share[c][i];
          }
        }
      }
    });
  }

  static T sum(const int32_t (&pixel)[kTaps][kPlaces], const T (&factor)[kTaps][kPlaces], const T* from, int64_t i) {
    T sum = 0;
    for (int k = 0; k < kTaps; ++k) {
      const T part = factor[k][i] * from[pixel[k][i]];
      sum += factor[k][i] != 0 ? part : T(0);
    }
    return sum;
  }

  void spread_planes(int64_t picture, int64_t first_plane, int64_t last_plane, const T* grid, const T* dy,
                     T* dx) const {
    TapsHere taps;
    for (int64_t first = 0; first < of_.places(); first += kPlaces) {
      const int64_t count = std::min(kPlaces, of_.places() - first);
      fill(taps, grid + 2 * (picture * of_.places() + first), count);
      for (int64_t plane = first_plane; plane < last_plane; ++plane) {
        const T* const given = dy + plane * of_.places() + first;
        T* const to = dx + plane * of_.plane();
        for (int64_t i = 0; i < count; ++i) {
          for (int k = 0; k < kTaps; ++k) {
            if (taps.share[k][i] != 0) to[taps.pixel[k][i]] += taps.share[k][i] * given[i];
          }
        }
      }
    }
  }

  GridSampling of_;
  GridAxis<T> rows_, columns_;
};

// The nearest pixels of any dtype, units of its size.
template <class Unit, class G>
void pick(const GridSampling& of, const Unit* x, const G* grid, Unit* out) {
  const GridAxis<G> rows(of, of.height), columns(of, of.width);
  const int64_t places = of.places();
  cpu::parallel_for(of.batch * places, cpu::kGrain / (of.channels + 4) + 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto column = columns.template taps<1>(grid[2 * i]), row = rows.template taps<1>(grid[2 * i + 1]);
      const bool is_there = row.share[0] * column.share[0] == 1;
      const int64_t pixel = row.pixel[0] * of.width + column.pixel[0];
      for (int64_t c = 0, plane = i / places * of.channels; c < of.channels; ++c, ++plane)
        out[plane * places + i % places] = is_there ? x[plane * of.plane() + pixel] : Unit(0);
    }
  });
}

// Calls f with a sampler for the mode.
template <class F>
Launch with_sampler(const GridSampling& of, DType dtype, const F& f) {
  return visit_floating(dtype, [&](auto zero) {
    return visit_taps(of.mode, [&](auto side) { return f(zero, Sampler<decltype(zero), side()>(of)); });
  });
}

Launch prepare(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.inputs[0].shape, call.inputs[1].shape);
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const DType dtype = call.inputs[0].dtype, of_grid = call.inputs[1].dtype;
  if (!is_floating(dtype)) {
    const auto of_unit = [&](auto unit) {
      return visit_floating(of_grid, [&](auto g) -> Launch {
        return [=](const LaunchCall& at) {
          pick(of, at.input<decltype(unit)>(0), at.input<decltype(g)>(1), at.output<decltype(unit)>(0));
        };
      });
    };
    return visit(dtype, of_unit);
  }
  return with_sampler(of, dtype, [](auto zero, const auto& sampler) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) { sampler.sample(at.input<T>(0), at.input<T>(1), at.output<T>(0)); };
  });
}

Launch prepare_image_grad(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.outputs[0].shape, call.inputs[0].shape);
  return with_sampler(of, call.inputs[1].dtype, [](auto zero, const auto& sampler) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) { sampler.spread(at.input<T>(0), at.input<T>(1), at.output<T>(0)); };
  });
}

Launch prepare_grid_grad(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.inputs[0].shape, call.inputs[1].shape);
  return with_sampler(of, call.inputs[0].dtype, [](auto zero, const auto& sampler) -> Launch {
    using T = decltype(zero);
    return
        [=](const LaunchCall& at) { sampler.slopes(at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0)); };
  });
}

// ---- the ops ---------------------------------------------------------------------------------------------------

Shape sampled(const GridSampling& of) { return {of.batch, of.channels, of.rows, of.columns}; }

// Places of narrow images are float32: in two bytes neighbours would be one.
void require_grid(const OpCall& call, int grid, DType of_image) {
  const DType dtype = call.dtype(grid);
  require(is_floating(dtype) && !is_narrow(dtype), ErrorCode::DtypeMismatch, "grid is ", call.type(grid),
          ", wanted float32 or float64");
  const DType wanted = is_narrow(of_image) ? DType::Float32 : of_image;
  require(!is_floating(wanted) || dtype == wanted, ErrorCode::DtypeMismatch, "grid is ", call.type(grid),
          " beside x of ", of_image, ", wanted ", wanted);
}

std::vector<AttrDef> attributes() {
  return {{"mode", std::string("bilinear"), "\"nearest\", \"bilinear\" or \"bicubic\""},
          {"padding_mode", std::string("zeros"), "what lies outside: \"zeros\", \"border\" or \"reflection\""},
          {"align_corners", false, "-1 and 1 are the middles of the outermost pixels, not their edges"}};
}

OpDef grid_sample() {
  OpDef op;
  op.name = "grid_sample";
  op.doc =
      "Images at the places of a grid.\n"
      "  out[n, c, i, j] = sum over r, s of w(p - r) * w(q - s) * x[n, c, r, s], with p the row and q the column that\n"
      "  grid[n, i, j, 1] and grid[n, i, j, 0] name: -1 and 1 are the edges of x, or with align_corners the middles "
      "of\n"
      "  its outermost pixels\n"
      "  bilinear: w(d) = 1 - |d| up to 1; bicubic: that of Keys for -0.75; nearest: the nearest pixel, of two the "
      "even\n"
      "shapes: x (n, c, h, w), grid (n, rows, columns, 2) -> (n, c, rows, columns)\n"
      "dtypes: x float32 or float64, grid the same; bfloat16 or float16 with a grid in float32; others for "
      "\"nearest\"\n"
      "source: Jaderberg and others, \"Spatial Transformer Networks\", 2015; Keys, \"Cubic convolution interpolation "
      "for "
      "digital image processing\", 1981";
  op.inputs = {{"x"}, {"grid"}};
  op.attrs = attributes();
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_grid(call, 1, call.dtype(0));
    const GridSampling of = grid_sampling(call.attrs, call.shape(0), call.shape(1));
    if (of.mode != GridSampling::Nearest) require_floating(call, 0, "x");
    return {{call.dtype(0), sampled(of)}};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    const TensorType& x = call.type(call.inputs[0]);
    if (!is_floating(x.dtype)) return {kNone, kNone};
    const ValueId grid = call.inputs[1], dy = call.grads[0];
    const bool has_slopes = call.attrs.string("mode") != "nearest";
    return {call.op("grid_sample_image_grad", {grid, dy}, with(call.attrs, "shape", x.shape.dims())),
            has_slopes ? call.op("grid_sample_grid_grad", {call.inputs[0], grid, dy}, call.attrs) : kNone};
  };
  op.cpu = {prepare};
  op.narrow = follows_off_cpu({1});
  const std::string nearest = "nearest", bicubic = "bicubic", border = "border", reflection = "reflection";
  const TensorType x = f32({2, 3, 4, 5}), grid = f32({2, 3, 2, 2});
  const double far = 2;  // times as far from the middle as the edges
  op.examples = {
      {{x, grid}, {}, -far, far},
      {{x, grid}, {{"padding_mode", border}, {"align_corners", true}}, -far, far},
      {{x, grid}, {{"mode", nearest}, {"padding_mode", reflection}}, -far, far},
      {{x, grid}, {{"mode", bicubic}}, -far, far},
      {{x, grid}, {{"mode", bicubic}, {"padding_mode", reflection}, {"align_corners", true}}, -far, far},
      {{f32({1, 1, 1, 1}), f32({1, 1, 1, 2})}, {{"padding_mode", reflection}}},
      {{{DType::UInt8, {2, 3, 4, 5}}, grid}, {{"mode", nearest}}, -far, far},
  };
  return op;
}

OpDef image_grad(const OpDef& of) {
  OpDef op;
  op.name = of.name + "_image_grad";
  op.doc = "Gradient of grid_sample for x: each pixel gets what the places that it is a part of bring, by its share.";
  op.inputs = {{"grid"}, {"dy"}};
  op.outputs = {"dx"};
  op.attrs = of.attrs;
  op.attrs.push_back({"shape", Ints{}, "shape of x", true});
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType x = {call.dtype(1), Shape(call.attrs.ints("shape"))};
    require_floating(call, 1, "dy");
    require_grid(call, 0, x.dtype);
    require_type(call, 1, "dy", {x.dtype, sampled(grid_sampling(call.attrs, x.shape, call.shape(0)))});
    return {x};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    const Attrs attrs = without(call.attrs, "shape");
    const ValueId grid = call.inputs[0], dy = call.inputs[1];
    const bool has_slopes = attrs.string("mode") != "nearest";
    return {has_slopes ? call.op("grid_sample_grid_grad", {call.grads[0], grid, dy}, attrs) : kNone,
            call.op("grid_sample", {call.grads[0], grid}, attrs)};
  };
  op.cpu = {prepare_image_grad};
  op.narrow = follows_off_cpu({0});
  for (const Example& example : of.examples) {
    if (!is_floating(example.inputs[0].dtype)) continue;
    const Shape x = example.inputs[0].shape, grid = example.inputs[1].shape;
    op.examples.push_back({{f32(grid), f32({x[0], x[1], grid[1], grid[2]})},
                           with(example.attrs, "shape", x.dims()),
                           example.low,
                           example.high});
  }
  return op;
}

OpDef grid_grad(const OpDef& of) {
  OpDef op;
  op.name = of.name + "_grid_grad";
  op.doc = "Gradient of grid_sample for grid, summed over the channels. It is 0 where \"nearest\" has no slope.";
  op.inputs = {{"x"}, {"grid"}, {"dy"}};
  op.outputs = {"dgrid"};
  op.attrs = of.attrs;
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require_grid(call, 1, call.dtype(0));
    const GridSampling of = grid_sampling(call.attrs, call.shape(0), call.shape(1));
    require_type(call, 2, "dy", {call.dtype(0), sampled(of)});
    return {call.type(1)};
  };
  op.cpu = {prepare_grid_grad};
  op.narrow = follows_off_cpu({1});
  for (const Example& example : of.examples) {
    if (!is_floating(example.inputs[0].dtype)) continue;
    const Shape x = example.inputs[0].shape, grid = example.inputs[1].shape;
    op.examples.push_back(
        {{f32(x), f32(grid), f32({x[0], x[1], grid[1], grid[2]})}, example.attrs, example.low, example.high});
  }
  return op;
}

}  // namespace

void add_grid_sample(Catalog& catalog) {
  const OpDef op = grid_sample();
  catalog.add(image_grad(op));
  catalog.add(grid_grad(op));
  catalog.add(op);
}

}  // namespace moonflow
