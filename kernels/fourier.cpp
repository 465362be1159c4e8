// The Fourier transforms, what they mean, and the CPU's loops over rows. Real numbers of an even count are pairs of
// half as many complex ones, whose transform is split into that of the even places and that of the odd ones.
#include "kernels/fourier.h"

#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/fourier.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/square.h"
#include "kernels/types.h"

namespace moonflow {

namespace {

using Kind = FourierCall::Kind;
using cpu::Fourier;
using cpu::FourierRow;

// ---- kernels ---------------------------------------------------------------------------------------------------

// One lane, which is a row itself.
template <class T>
struct OneLane {
  using Element = T;
  using Vector = T;
  static constexpr int kWidth = 1;
  static const T& at(const T* place) { return *place; }
  static T& at(T* place) { return *place; }
};

// What is done to numbers of the lanes of R before and after they are transformed.
template <class T>
struct Halves {
  FourierCall call;
  std::vector<Complex<T>> turns;  // of an even size, up to its half

  explicit Halves(const FourierCall& call) : call(call) {
    if (call.kind == Kind::Complex || call.size % 2 == 1) return;
    for (int64_t k = 0; k < call.size / 2; ++k) {
      const Complex<double> number = turned(k, call.size);
      turns.push_back({static_cast<T>(number.real), static_cast<T>(number.imaginary)});
    }
  }

  bool is_even() const { return call.size % 2 == 0; }
  T edge() const { return static_cast<T>(call.weights.edge); }
  T middle() const { return static_cast<T>(call.weights.middle); }

  // The spectrum of numbers, of which `from` has that of their pairs.
  template <class R>
  void split(const T* from, T* to) const {
    using V = typename R::Vector;
    constexpr int64_t kWidth = R::kWidth, kNumber = 2 * kWidth;
    const int64_t half = call.size / 2;
    const V first = R::at(from), second = R::at(from + kWidth);
    store<R>(to, edge() * (first + second), V{});
    store<R>(to + half * kNumber, edge() * (first - second), V{});
    const T by = middle() / 2;
    for (int64_t k = 1; k < half; ++k) {
      const T *const low = from + k * kNumber, *const high = from + (half - k) * kNumber;
      const V a = R::at(low), b = R::at(low + kWidth), c = R::at(high), d = R::at(high + kWidth);
      const V odd = b + d, odd_i = c - a;
      const Complex<T>& turn = turns[k];
      store<R>(to + k * kNumber, by * (a + c + (turn.real * odd - turn.imaginary * odd_i)),
               by * (b - d + (turn.real * odd_i + turn.imaginary * odd)));
    }
  }

  // The spectrum of the pairs of real numbers, of whose spectrum `from` has the half.
  template <class R>
  void merge(const T* from, T* to) const {
    using V = typename R::Vector;
    constexpr int64_t kWidth = R::kWidth, kNumber = 2 * kWidth;
    const int64_t half = call.size / 2;
    const V first = edge() * R::at(from), last = edge() * R::at(from + half * kNumber);
    store<R>(to, first + last, first - last);
    const T by = middle() / 2;
    for (int64_t k = 1; k < half; ++k) {
      const T *const low = from + k * kNumber, *const high = from + (half - k) * kNumber;
      const V a = R::at(low), b = R::at(low + kWidth), c = R::at(high), d = R::at(high + kWidth);
      const V even = a + c, even_i = b - d, difference = a - c, difference_i = b + d;
      const Complex<T>& turn = turns[k];  // whose conjugate turns back
      const V odd = turn.real * difference + turn.imaginary * difference_i;
      const V odd_i = turn.real * difference_i - turn.imaginary * difference;
      store<R>(to + k * kNumber, by * (even - odd_i), by * (even_i + odd));
    }
  }

  // Of an odd count: real numbers as complex ones.
  template <class R>
  void widen(const T* from, T* to) const {
    for (int64_t i = 0; i < call.size; ++i) {
      const typename R::Vector number = R::at(from + i * R::kWidth);
      store<R>(to + 2 * i * R::kWidth, number, typename R::Vector{});
    }
  }
  template <class R>
  void narrow(const T* from, T* to) const {
    for (int64_t i = 0; i < call.size; ++i) R::at(to + i * R::kWidth) = R::at(from + 2 * i * R::kWidth);
  }
  // The half of a spectrum, weighted, with zeros in place of the other frequencies.
  template <class R>
  void weight(const T* from, T* to, int64_t numbers) const {
    constexpr int64_t kNumber = 2 * R::kWidth;
    for (int64_t k = 0; k <= call.size / 2; ++k) {
      const T by = k == 0 ? edge() : middle();
      store<R>(to + k * kNumber, by * R::at(from + k * kNumber), by * R::at(from + k * kNumber + R::kWidth));
    }
    std::fill(to + (call.size / 2 + 1) * kNumber, to + numbers * kNumber, T(0));
  }

 private:
  template <class R>
  static void store(T* to, const typename R::Vector& real, const typename R::Vector& imaginary) {
    R::at(to) = real;
    R::at(to + R::kWidth) = imaginary;
  }
};

int64_t complex_numbers(const FourierCall& call) {
  return call.kind != Kind::Complex && call.size % 2 == 0 ? call.size / 2 : call.size;
}

// Numbers of a row with which others beside it, one in each lane, leave the nearer caches.
constexpr int64_t kLong = 1 << 13;

// Rows one after the other.
template <class T>
struct ByRow {
  FourierCall call;
  Halves<T> halves;
  FourierRow<T> row;

  explicit ByRow(const FourierCall& call) : call(call), halves(call), row(complex_numbers(call)) {}

  int64_t scratch() const { return 2 * (call.size + 2) + row.scratch(); }
  void run(const T* x, T* out, int64_t, T* scratch) const {
    T *const numbers = scratch, *const more = scratch + 2 * (call.size + 2);
    using One = OneLane<T>;
    switch (call.kind) {
      case Kind::Complex:
        row.run(x, out, more, call.inverse);
        if (call.scale != 1)
          for (int64_t i = 0; i < call.to; ++i) out[i] *= static_cast<T>(call.scale);
        break;
      case Kind::OfReal:
        if (halves.is_even()) {
          row.run(whole(x, call.size, numbers), numbers, more, false);
          cpu::widest([=] { halves.template split<One>(numbers, out); });
        } else {
          halves.template widen<One>(whole(x, call.size, more), numbers);
          row.run(numbers, numbers, more, false);
          halves.template weight<One>(numbers, out, call.size / 2 + 1);
        }
        break;
      case Kind::ToReal:
        if (!halves.is_even()) {
          halves.template weight<One>(x, numbers, call.size);
          row.run(numbers, numbers, more, true);
          halves.template narrow<One>(numbers, numbers);
          std::copy_n(numbers, std::min(call.to, call.size), out);
        } else {
          cpu::widest([=] { halves.template merge<One>(x, numbers); });
          row.run(numbers, call.to < call.size ? numbers : out, more, true);
          if (call.to < call.size) std::copy_n(numbers, call.to, out);
        }
        if (call.to > call.size) std::fill(out + call.size, out + call.to, T(0));
        break;
    }
  }

 private:
  // The row with as many numbers as are transformed.
  const T* whole(const T* x, int64_t count, T* room) const {
    if (call.from >= count) return x;
    std::fill(std::copy_n(x, call.from, room), room + count, T(0));
    return room;
  }
};

// A row in each lane.
template <class T>
struct ByLane {
  FourierCall call;
  Halves<T> halves;
  Fourier<T> fourier;
  int64_t lanes = cpu::fourier_lanes<T>();

  explicit ByLane(const FourierCall& call) : call(call), halves(call), fourier(complex_numbers(call)) {}

  // Of each of two arrays: for what is transformed, for all numbers that come, and for the half of a spectrum.
  int64_t room() const { return 2 * lanes * std::max(fourier.room(), call.size / 2 + 1); }
  int64_t scratch() const { return 2 * room(); }

  void run(const T* x, T* out, int64_t rows, T* scratch) const {
    cpu::widest_register(
        [&](auto wide) { run_in<cpu::Holding<T, decltype(wide)>>(x, out, rows, scratch, scratch + room()); });
  }

 private:
  template <class R>
  void run_in(const T* x, T* out, int64_t rows, T* data, T* other) const {
    const int64_t numbers = fourier.size();
    switch (call.kind) {
      case Kind::Complex: {
        load<R>(x, rows, call.from, data);
        T* const result = fourier.run(data, other, call.inverse);
        const T by = static_cast<T>(call.scale);
        if (by != 1)
          for (int64_t i = 0; i < call.to; ++i) R::at(result + i * R::kWidth) *= by;
        return store<R>(result, rows, call.to, out);
      }
      case Kind::OfReal: {
        load<R>(x, rows, call.size, halves.is_even() ? data : other);
        if (!halves.is_even()) halves.template widen<R>(other, data);
        T* const result = fourier.run(data, other, false);
        T* const spectrum = result == data ? other : data;
        if (halves.is_even())
          halves.template split<R>(result, spectrum);
        else
          halves.template weight<R>(result, spectrum, call.size / 2 + 1);
        return store<R>(spectrum, rows, call.to, out);
      }
      case Kind::ToReal: {
        load<R>(x, rows, call.from, other);
        if (halves.is_even())
          halves.template merge<R>(other, data);
        else
          halves.template weight<R>(other, data, numbers);
        T* const result = fourier.run(data, other, true);
        T* const real = halves.is_even() ? result : result == data ? other : data;
        if (!halves.is_even()) halves.template narrow<R>(result, real);
        return store<R>(real, rows, call.to, out);
      }
    }
  }

  // `count` elements of each row, with zeros for those that a row or a lane lacks.
  template <class R>
  void load(const T* x, int64_t rows, int64_t count, T* to) const {
    const int64_t have = std::min(count, call.from), width = R::kWidth;
    const int64_t squares = rows == width ? have / width * width : 0;
    for (int64_t i = 0; i < squares; i += width)
      cpu::copy_square<R>(x + i, call.from, to + i * width, width, [](const auto&) {});
    for (int64_t i = squares; i < have; ++i)
      for (int64_t lane = 0; lane < width; ++lane) to[i * width + lane] = lane < rows ? x[lane * call.from + i] : T(0);
    std::fill(to + have * width, to + count * width, T(0));
  }
  // Elements from the size on are zeros, of real numbers.
  template <class R>
  void store(const T* from, int64_t rows, int64_t count, T* out) const {
    const int64_t have = call.kind == Kind::ToReal ? std::min(count, call.size) : count, width = R::kWidth;
    const int64_t squares = rows == width ? have / width * width : 0;
    for (int64_t i = 0; i < squares; i += width)
      cpu::copy_square<R>(from + i * width, width, out + i, call.to, [](const auto&) {});
    for (int64_t lane = 0; lane < rows; ++lane) {
      for (int64_t i = squares; i < have; ++i) out[lane * call.to + i] = from[i * width + lane];
      std::fill(out + lane * call.to + have, out + (lane + 1) * call.to, T(0));
    }
  }
};

double fourier_flops(const FourierCall& call) {
  const double size = static_cast<double>(call.size);
  return static_cast<double>(call.rows) * size * std::log2(size) * (call.kind == Kind::Complex ? 5 : 2.5);
}

template <class Rows>
Launch over_rows(KernelCall& kernel, const FourierCall& call, Rows rows, int64_t at_once) {
  constexpr double kWorkOfThread = 1 << 17;  // floating-point operations
  const int64_t groups = (call.rows + at_once - 1) / at_once;
  const int64_t parts = std::min<int64_t>(groups, cpu::threads_for(fourier_flops(call), kWorkOfThread));
  const int64_t scratch = (rows.scratch() + 15) / 16 * 16;  // elements of a part
  using T = std::decay_t<decltype(rows.halves.edge())>;
  kernel.scratch_bytes = parts * scratch * static_cast<int64_t>(sizeof(T));
  return [=, rows = std::move(rows)](const LaunchCall& launch) {
    const T* const x = launch.input<T>(0);
    T* const out = launch.output<T>(0);
    T* const all_scratch = static_cast<T*>(launch.scratch);
    cpu::parallel_for(parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        for (int64_t group = groups * part / parts; group < groups * (part + 1) / parts; ++group) {
          const int64_t row = group * at_once;
          rows.run(x + row * call.from, out + row * call.to, std::min(at_once, call.rows - row),
                   all_scratch + part * scratch);
        }
      }
    });
  };
}

Launch prepare(KernelCall& kernel, Kind kind) {
  const FourierCall call = fourier_call(kernel, kind);
  if (kernel.outputs[0].count() == 0) return [](const LaunchCall&) {};
  return visit_floating(kernel.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    // By the size alone, so that a row's spectrum is the same whatever rows are beside it.
    const int64_t numbers = complex_numbers(call);
    if (FourierRow<T>::fills(numbers) || (numbers >= kLong && FourierRow<T>::takes(numbers)))
      return over_rows(kernel, call, ByRow<T>(call), 1);
    return over_rows(kernel, call, ByLane<T>(call), cpu::fourier_lanes<T>());
  });
}

// ---- the ops ---------------------------------------------------------------------------------------------------

AttrDef weight_attr(const char* name, const char* what) { return {name, 1.0, text("what is multiplied by at ", what)}; }

std::vector<AttrDef> real_attrs() {
  return {{"size", int64_t{0}, "numbers that are transformed", true},
          weight_attr("edge", "frequencies 0 and size / 2"),
          weight_attr("middle", "the others")};
}

// Of larger ones alone what is known before would fill the memory.
int64_t checked_size(int64_t size) {
  constexpr int64_t kMost = int64_t{1} << 27;
  require(size >= 1 && size <= kMost, ErrorCode::OutOfRange, "size must be 1 to ", kMost, ", got ", size);
  return size;
}
int64_t size_of(const Attrs& attrs) { return checked_size(attrs.integer("size")); }

// All sizes but the last `count`, and these instead.
Shape with_last(const Shape& shape, int count, const std::vector<int64_t>& last) {
  std::vector<int64_t> sizes = shape.dims();
  sizes.resize(sizes.size() - count);
  sizes.insert(sizes.end(), last.begin(), last.end());
  return Shape(sizes);
}

void require_pairs(const OpCall& call) {
  const Shape& shape = call.shape(0);
  require(shape.rank() >= 2 && shape[shape.rank() - 1] == 2, ErrorCode::ShapeMismatch,
          "needs pairs along a last axis, ", "real and imaginary, got ", shape);
}

OpDef fft() {
  OpDef op;
  op.name = "fft";
  op.doc =
      "The discrete Fourier transform of complex numbers, each a pair along the last axis.\n"
      "  out[k] = scale * sum over n of x[n] * exp(-2 pi i k n / size), with inverse of exp(+2 pi i k n / size)\n"
      "shapes: x (..., size, 2) -> out alike\n"
      "dtypes: float32 or float64 -> the same\n"
      "errors: a last axis other than of 2; a size below 1 or above 2^27";
  op.inputs = {{"x"}};
  op.attrs = {{"inverse", false, "with exp(+2 pi i k n / size)"}, {"scale", 1.0, "what the sums are multiplied by"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require_pairs(call);
    checked_size(call.shape(0)[call.shape(0).rank() - 2]);
    return {call.type(0)};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    return {call.op("fft", {call.grads[0]}, with(call.attrs, "inverse", !call.attrs.flag("inverse")))};
  };
  for (const int64_t size : {1, 6, 16, 35, 67}) op.examples.push_back({{f32({2, size, 2})}});
  op.examples.push_back({{f32({64, 2})}, {{"inverse", true}, {"scale", 1.0 / 64}}});
  op.examples.push_back({{f32({3, 2, 20, 2})}, {{"inverse", true}}});
  op.examples.push_back({{f32({256, 2})}, {{"scale", 0.5}}});
  return op;
}

OpDef rfft() {
  OpDef op;
  op.name = "rfft";
  op.doc =
      "The discrete Fourier transform of real numbers, up to half of their rate.\n"
      "  out[k] = weight(k) * sum over n < size of x[n] * exp(-2 pi i k n / size), where x[n] is 0 from length on\n"
      "shapes: x (..., length) -> (..., floor(size / 2) + 1, 2), real and imaginary\n"
      "dtypes: float32 or float64 -> the same\n"
      "errors: a size below 1 or above 2^27";
  op.inputs = {{"x"}};
  op.attrs = real_attrs();
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require(call.shape(0).rank() >= 1, ErrorCode::ShapeMismatch, "needs an axis, got a scalar");
    return {{call.dtype(0), with_last(call.shape(0), 1, {size_of(call.attrs) / 2 + 1, 2})}};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    const Shape& shape = call.type(call.inputs[0]).shape;
    return {call.op("irfft", {call.grads[0]}, with(call.attrs, "length", shape.back()))};
  };
  for (const int64_t size : {1, 2, 7, 12, 32, 45, 134})
    op.examples.push_back({{f32({3, size})}, {{"size", size}, {"middle", 2.0}}});
  op.examples.push_back({{f32({2, 10, 9})}, {{"size", int64_t{16}}, {"edge", 0.25}, {"middle", 0.5}}});
  op.examples.push_back({{f32({17, 20})}, {{"size", int64_t{15}}}});
  op.examples.push_back({{f32({2, 500})}, {{"size", int64_t{512}}, {"edge", 0.5}}});
  return op;
}

OpDef irfft(const OpDef& there) {
  OpDef op;
  op.name = "irfft";
  op.doc =
      "Real numbers of the half of a spectrum. The way back of rfft, with weights 1 / size and 2 / size; with those of "
      "rfft its gradient.\n"
      "  out[n] = real part of the sum over k <= size / 2 of weight(k) * x[k] * exp(+2 pi i k n / size), 0 from size "
      "on\n"
      "shapes: x (..., floor(size / 2) + 1, 2), real and imaginary -> (..., length)\n"
      "dtypes: float32 or float64 -> the same\n"
      "errors: a size below 1 or above 2^27; another number of frequencies";
  op.inputs = {{"x"}};
  op.attrs = real_attrs();
  op.attrs.push_back({"length", int64_t{0}, "numbers of the result", true});
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require_pairs(call);
    const Shape& shape = call.shape(0);
    const int64_t size = size_of(call.attrs), length = call.attrs.integer("length");
    require(length >= 0, ErrorCode::OutOfRange, "length must be 0 or more, got ", length);
    require(shape[shape.rank() - 2] == size / 2 + 1, ErrorCode::ShapeMismatch, "has ", shape[shape.rank() - 2],
            " frequencies, size ", size, " wants ", size / 2 + 1);
    return {{call.dtype(0), with_last(shape, 2, {length})}};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    return {call.op("rfft", {call.grads[0]}, without(call.attrs, "length"))};
  };
  for (const Example& example : there.examples) {
    const Shape& shape = example.inputs[0].shape;
    Attrs attrs = example.attrs;
    attrs.set("length", shape[shape.rank() - 1]);
    op.examples.push_back({{f32(with_last(shape, 1, {attrs.integer("size") / 2 + 1, 2}))}, attrs});
  }
  return op;
}

}  // namespace

void add_fourier(Catalog& catalog) {
  OpDef of_complex = fft(), of_real = rfft(), to_real = irfft(of_real);
  const std::pair<OpDef*, Kind> all[] = {
      {&of_complex, Kind::Complex}, {&of_real, Kind::OfReal}, {&to_real, Kind::ToReal}};
  for (const auto& [op, kind] : all) {
    op->cpu = {[kind = kind](KernelCall& call) { return prepare(call, kind); }};
    op->flops = [kind = kind](const KernelCall& call) { return fourier_flops(fourier_call(call, kind)); };
    catalog.add(std::move(*op));
  }
}

}  // namespace moonflow
