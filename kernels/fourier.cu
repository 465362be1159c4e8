// The Fourier transforms on CUDA: a launch for each pass, in which a thread makes one number. Turns are reckoned once
// in a launch of their own.
#include "kernels/fourier.h"

#include "kernels/cuda/block.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct Turns {
  int64_t size;
  bool inverse;
  Complex<T>* turns;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const Complex<double> turn = turned(i, size);
    turns[i] = {static_cast<T>(turn.real), static_cast<T>(inverse ? -turn.imaginary : turn.imaginary)};
  }
};

// The rows of an input as complex numbers, of each of which there are `size`.
template <class T>
struct Begin {
  FourierCall::Kind kind;
  FourierWeights weights;
  LongDivisor size;
  int64_t from;  // elements of a row
  const T* x;
  Complex<T>* numbers;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    int64_t i = 0;
    const T* const row = x + size.quotient(element, i) * from;
    Complex<T> number{0, 0};
    if (kind == FourierCall::Kind::OfReal) {
      if (i < from) number.real = row[i];
    } else if (2 * i < from) {
      const T by = kind == FourierCall::Kind::ToReal ? static_cast<T>(weights.of(i, size.value)) : T(1);
      number = {by * row[2 * i], by * row[2 * i + 1]};
    }
    numbers[element] = number;
  }
};

// Sums of a large prime's many numbers are in double.
template <class T, class Sum>
struct OnePass {
  LongDivisor size, stride, factor;
  int64_t groups;
  const Complex<T>*from, *turns;
  Complex<T>* to;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    int64_t at = 0, q = 0, k = 0;
    const int64_t row = size.quotient(element, at);
    const int64_t p = factor.quotient(stride.quotient(at, q), k);
    const Complex<T>* number = from + row * size.value + p * stride.value + q;
    const int64_t step = groups * stride.value;
    int64_t turn = k * p * stride.value;
    Sum real = 0, imaginary = 0;
    for (int64_t i = 0; i < factor.value; ++i, number += step) {
      const Complex<T> x = *number, by = turns[turn];
      real += x.real * by.real - x.imaginary * by.imaginary;
      imaginary += x.real * by.imaginary + x.imaginary * by.real;
      turn += k * step;
      if (turn >= size.value) turn -= size.value;
    }
    to[element] = {static_cast<T>(real), static_cast<T>(imaginary)};
  }
};

// The other way: an element of the output.
template <class T>
struct End {
  FourierCall::Kind kind;
  FourierWeights weights;
  double scale;
  LongDivisor to;  // elements of a row
  int64_t size;
  const Complex<T>* numbers;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    int64_t i = 0;
    const Complex<T>* const row = numbers + to.quotient(element, i) * size;
    if (kind == FourierCall::Kind::ToReal) {
      out[element] = i < size ? row[i].real : T(0);
    } else {
      const double by = kind == FourierCall::Kind::OfReal ? weights.of(i / 2, size) : scale;
      out[element] = static_cast<T>(by) * (i % 2 == 0 ? row[i / 2].real : row[i / 2].imaginary);
    }
  }
};

Launch prepare(KernelCall& kernel, FourierCall::Kind kind) {
  const FourierCall call = fourier_call(kernel, kind);
  const bool inverse = call.inverse || kind == FourierCall::Kind::ToReal;
  return visit_floating(kernel.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const int64_t count = call.rows * call.size, results = call.rows * call.to;
    kernel.scratch_bytes = (call.size + 2 * count) * static_cast<int64_t>(sizeof(Complex<T>));
    return [=, passes = fourier_passes(call.size)](const LaunchCall& at) {
      Complex<T>* const turns = static_cast<Complex<T>*>(at.scratch);
      Complex<T>*from = turns + call.size, *to = from + count;
      const LongDivisor size(call.size);
      for_each(at.stream, call.size, Turns<T>{call.size, inverse, turns});
      for_each(at.stream, count, Begin<T>{kind, call.weights, size, call.from, at.input<T>(0), from});
      for (const FourierPass& pass : passes) {
        const auto run = [&](auto sum) {
          for_each(at.stream, count,
                   OnePass<T, decltype(sum)>{size, LongDivisor(pass.stride), LongDivisor(pass.factor), pass.groups,
                                             from, turns, to});
        };
        if (pass.factor > kLargestFactor)
          run(double{});
        else
          run(T{});
        std::swap(from, to);
      }
      for_each(at.stream, results,
               End<T>{kind, call.weights, call.scale, LongDivisor(call.to), call.size, from, at.output<T>(0)});
    };
  });
}

}  // namespace

void add_fourier(Kernels& kernels) {
  using Kind = FourierCall::Kind;
  for (const auto& [name, kind] : {std::pair{"fft", Kind::Complex}, {"rfft", Kind::OfReal}, {"irfft", Kind::ToReal}})
    kernels[name] = {{[kind = kind](KernelCall& call) { return prepare(call, kind); }}};
}

}  // namespace moonflow::cuda
