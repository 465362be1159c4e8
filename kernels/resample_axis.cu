// resample_axis on CUDA: a thread makes one element of the result. Weights are reckoned where they are needed.
#include "kernels/resample_axis.h"

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/lanes.h"

namespace moonflow::cuda {
namespace {

// Where an element of a result lies along the axis, and the first element of its lane in what it is made of.
struct Line {
  LongDivisor stride, places;
  int64_t in;  // places of what it is made of

  Line(const Lanes& from, const Lanes& to) : stride(to.stride), places(to.n), in(from.n) {}

  MOONFLOW_DEVICE int64_t place(int64_t element, int64_t& start) const {
    int64_t beside = 0, place = 0;
    const int64_t row = stride.quotient(element, beside);
    start = places.quotient(row, place) * in * stride.value + beside;
    return place;
  }
};

template <class X, class T>
struct Resample {
  using C = Computed<T>;
  AxisFilter filter;
  Line line;
  const X* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    int64_t start = 0;
    const int64_t o = line.place(element, start);
    double total = 0;
    C sum = 0;
    filter.each_part(o, [&](int64_t i, double weight) {
      total += weight;
      sum += static_cast<C>(weight) * static_cast<C>(x[start + i * line.stride.value]);
    });
    out[element] = total == 0 ? T(0) : static_cast<T>(sum / static_cast<C>(total));
  }
};

template <class T>
struct ResampleGrad {
  using C = Computed<T>;
  AxisFilter filter;
  Line line;
  const T* dy;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    int64_t start = 0;
    const int64_t i = line.place(element, start);
    const AxisFilter::Readers readers = filter.readers(i);
    C sum = 0;
    for (int64_t o = readers.first; o < readers.past; ++o) {
      double total = 0, own = 0;
      filter.each_part(o, [&](int64_t place, double weight) {
        total += weight;
        if (place == i) own += weight;
      });
      if (own != 0) sum += static_cast<C>(own / total) * static_cast<C>(dy[start + o * line.stride.value]);
    }
    dx[element] = static_cast<T>(sum);
  }
};

Launch prepare(KernelCall& call) {
  const int64_t axis = call.attrs.integer("axis"), count = call.outputs[0].count();
  const Lanes from(call.inputs[0].shape, axis), to(call.outputs[0].shape, axis);
  const AxisFilter filter = axis_filter(call.attrs, from.n);
  const auto of_types = [=, line = Line(from, to)](auto of_x, auto of_out) -> Launch {
    using X = decltype(of_x);
    using T = decltype(of_out);
    return [=](const LaunchCall& at) {
      for_each(at.stream, count, Resample<X, T>{filter, line, at.input<X>(0), at.output<T>(0)});
    };
  };
  if (call.inputs[0].dtype == DType::UInt8) return of_types(uint8_t{}, float{});
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) { return of_types(zero, zero); });
}

Launch prepare_grad(KernelCall& call) {
  const int64_t axis = call.attrs.integer("axis"), count = call.outputs[0].count();
  const Lanes from(call.inputs[0].shape, axis), to(call.outputs[0].shape, axis);
  const AxisFilter filter = axis_filter(call.attrs, to.n);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=, line = Line(from, to)](const LaunchCall& at) {
      for_each(at.stream, count, ResampleGrad<T>{filter, line, at.input<T>(0), at.output<T>(0)});
    };
  });
}

}  // namespace

void add_resample_axis(Kernels& kernels) {
  kernels["resample_axis"] = {{prepare}, true};
  kernels["resample_axis_grad"] = {{prepare_grad}, true};
}

}  // namespace moonflow::cuda
