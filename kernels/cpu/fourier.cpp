#include "kernels/cpu/fourier.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {

namespace {

template <class T>
Complex<T> rounded(const Complex<double>& number) {
  return {static_cast<T>(number.real), static_cast<T>(number.imaginary)};
}

// ---- one pass --------------------------------------------------------------------------------------------------

template <class V>
void of_two(V* real, V* imaginary) {
  const V a = real[0], b = imaginary[0];
  real[0] = a + real[1];
  imaginary[0] = b + imaginary[1];
  real[1] = a - real[1];
  imaginary[1] = b - imaginary[1];
}

template <class V>
void of_four(V* real, V* imaginary) {
  const V even = real[0] + real[2], even_i = imaginary[0] + imaginary[2];
  const V odd = real[1] + real[3], odd_i = imaginary[1] + imaginary[3];
  const V left = real[0] - real[2], left_i = imaginary[0] - imaginary[2];
  const V right = real[1] - real[3], right_i = imaginary[1] - imaginary[3];
  real[0] = even + odd;
  imaginary[0] = even_i + odd_i;
  real[1] = left + right_i;
  imaginary[1] = left_i - right;
  real[2] = even - odd;
  imaginary[2] = even_i - odd_i;
  real[3] = left - right_i;
  imaginary[3] = left_i + right;
}

// Of number j and the one that mirrors it, cosines take the sum and sines the difference.
template <int kMost, class V, class T, class Factor>
void of_odd(V* real, V* imaginary, Factor factor, const Complex<T>* roots) {
  const int half = factor / 2;
  V sum[kMost / 2], sum_i[kMost / 2], difference[kMost / 2], difference_i[kMost / 2];
#pragma GCC unroll 4
  for (int j = 0; j < half; ++j) {
    const int mirror = factor - 1 - j;
    sum[j] = real[j + 1] + real[mirror];
    sum_i[j] = imaginary[j + 1] + imaginary[mirror];
    difference[j] = real[j + 1] - real[mirror];
    difference_i[j] = imaginary[j + 1] - imaginary[mirror];
  }
  const V first = real[0], first_i = imaginary[0];
#pragma GCC unroll 4
  for (int j = 0; j < half; ++j) {
    real[0] += sum[j];
    imaginary[0] += sum_i[j];
  }
#pragma GCC unroll 4
  for (int k = 1; k <= half; ++k) {
    V even = first, even_i = first_i, odd = V{}, odd_i = V{};
#pragma GCC unroll 4
    for (int j = 0; j < half; ++j) {
      const Complex<T>& root = roots[(j + 1) * k % factor];
      even += root.real * sum[j];
      even_i += root.real * sum_i[j];
      odd -= root.imaginary * difference_i[j];
      odd_i += root.imaginary * difference[j];
    }
    real[k] = even + odd;
    imaginary[k] = even_i + odd_i;
    real[factor - k] = even - odd;
    imaginary[factor - k] = even_i - odd_i;
  }
}

// Where the parts of a number are: the inverse is the transform of numbers whose parts have changed places.
template <class R>
struct Parts {
  int64_t real, imaginary;
  explicit Parts(bool inverse) : real(inverse ? R::kWidth : 0), imaginary(inverse ? 0 : R::kWidth) {}
};

}  // namespace

template <class T>
template <class R, class Factor>
void Fourier<T>::run_pass(const Pass& pass, Factor factor, const T* from, T* to, bool inverse) {
  using V = typename R::Vector;
  constexpr bool kKnown = !std::is_same_v<Factor, int>;
  constexpr int kMost = kKnown ? static_cast<int>(Factor()) : static_cast<int>(kLargestFactor);
  constexpr int64_t kNumber = 2 * R::kWidth;
  const Parts<R> at(inverse);
  const int count = factor;
  const int64_t stride = pass.sizes.stride, groups = pass.sizes.groups;
  const Complex<T>* turn = pass.turns.data();
  for (int64_t p = 0; p < groups; ++p, turn += count - 1) {
    for (int64_t q = 0; q < stride; ++q) {
      V real[kMost] = {}, imaginary[kMost] = {};
      const T* number = from + (p * stride + q) * kNumber;
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i, number += groups * stride * kNumber) {
        real[i] = R::at(number + at.real);
        imaginary[i] = R::at(number + at.imaginary);
      }
      if constexpr (kMost == 2)
        of_two(real, imaginary);
      else if constexpr (kMost == 4)
        of_four(real, imaginary);
      else
        of_odd<kMost>(real, imaginary, factor, pass.roots.data());
      T* result = to + (p * count * stride + q) * kNumber;
      R::at(result + at.real) = real[0];
      R::at(result + at.imaginary) = imaginary[0];
#pragma GCC unroll 8
      for (int k = 1; k < count; ++k) {
        result += stride * kNumber;
        const Complex<T>& by = turn[k - 1];
        R::at(result + at.real) = by.real * real[k] - by.imaginary * imaginary[k];
        R::at(result + at.imaginary) = by.real * imaginary[k] + by.imaginary * real[k];
      }
    }
  }
}

// ---- of lanes --------------------------------------------------------------------------------------------------

template <class T>
int64_t fourier_lanes() {
  int64_t lanes = 0;
  widest_register([&](auto wide) { lanes = Holding<T, decltype(wide)>::kWidth; });
  return lanes;
}

namespace {

bool has_large_prime(const std::vector<FourierPass>& passes) {
  return !passes.empty() && passes.back().factor > kLargestFactor;
}

}  // namespace

// The squares of places, in halves of a turn; what is transformed is their conjugate, on both sides of 0.
template <class T>
Chirp<T>::Chirp(int64_t size) {
  while (power < 2 * size - 1) power *= 2;
  std::vector<double> conjugate(2 * power);
  for (int64_t i = 0; i < size; ++i) {
    const Complex<double> number = turned(i * i % (2 * size), 2 * size);
    numbers.push_back(rounded<T>(number));
    for (const int64_t place : {i, (power - i) % power}) {
      conjugate[2 * place] = number.real / static_cast<double>(power);
      conjugate[2 * place + 1] = -number.imaginary / static_cast<double>(power);
    }
  }
  const FourierRow<double> row(power);
  std::vector<double> scratch(row.scratch());
  row.run(conjugate.data(), conjugate.data(), scratch.data(), false);
  for (int64_t i = 0; i < power; ++i) spectrum.push_back(rounded<T>({conjugate[2 * i], conjugate[2 * i + 1]}));
}

template <class T>
Fourier<T>::Fourier(int64_t size) : size_(size) {
  const std::vector<FourierPass> passes = fourier_passes(size);
  if (has_large_prime(passes)) {
    chirp_ = std::make_shared<Chirp<T>>(size);
    chirped_ = std::make_shared<Fourier>(chirp_->power);
    return;
  }
  for (const FourierPass& sizes : passes) {
    Pass pass{sizes, {}, {}};
    for (int64_t p = 0; p < sizes.groups; ++p) {
      for (int64_t k = 1; k < sizes.factor; ++k) pass.turns.push_back(rounded<T>(turned(p * k * sizes.stride, size)));
    }
    for (int64_t k = 0; k < sizes.factor; ++k) pass.roots.push_back(rounded<T>(turned(k, sizes.factor)));
    passes_.push_back(std::move(pass));
  }
}

template <class T>
template <class R>
T* Fourier<T>::run_in(T* data, T* other, bool inverse) const {
  if (chirped_) return run_chirped<R>(data, other, inverse);
  for (const Pass& pass : passes_) {
    const auto as = [&](auto factor) { run_pass<R>(pass, factor, data, other, inverse); };
    switch (pass.sizes.factor) {
      case 2:
        as(std::integral_constant<int, 2>());
        break;
      case 3:
        as(std::integral_constant<int, 3>());
        break;
      case 4:
        as(std::integral_constant<int, 4>());
        break;
      case 5:
        as(std::integral_constant<int, 5>());
        break;
      default:
        as(static_cast<int>(pass.sizes.factor));
    }
    std::swap(data, other);
  }
  return data;
}

template <class T>
template <class R>
T* Fourier<T>::run_chirped(T* data, T* other, bool inverse) const {
  constexpr int64_t kNumber = 2 * R::kWidth;
  const Parts<R> at(inverse);
  const auto multiply = [&](T* numbers, const std::vector<Complex<T>>& factors) {
    for (const Complex<T>& by : factors) {
      const typename R::Vector real = R::at(numbers + at.real), imaginary = R::at(numbers + at.imaginary);
      R::at(numbers + at.real) = by.real * real - by.imaginary * imaginary;
      R::at(numbers + at.imaginary) = by.real * imaginary + by.imaginary * real;
      numbers += kNumber;
    }
  };
  multiply(data, chirp_->numbers);
  std::fill(data + size_ * kNumber, data + chirped_->size_ * kNumber, T(0));
  T* const there = chirped_->template run_in<R>(data, other, inverse);
  multiply(there, chirp_->spectrum);
  T* const back = chirped_->template run_in<R>(there, there == data ? other : data, !inverse);
  multiply(back, chirp_->numbers);
  return back;
}

template <class T>
T* Fourier<T>::run(T* data, T* other, bool inverse) const {
  T* result = nullptr;
  widest_register([&](auto wide) { result = run_in<Holding<T, decltype(wide)>>(data, other, inverse); });
  return result;
}

// ---- of one row ------------------------------------------------------------------------------------------------

namespace {

// Pairs of neighbours as real parts and imaginary ones, and back.
template <class R, int... kLane>
void part(const typename R::Vector& low, const typename R::Vector& high, typename R::Vector& real,
          typename R::Vector& imaginary, std::integer_sequence<int, kLane...>) {
  using Lanes = LanesOf<R>;
  real = __builtin_shuffle(low, high, Lanes{(2 * kLane)...});
  imaginary = __builtin_shuffle(low, high, Lanes{(2 * kLane + 1)...});
}
template <class R, int... kLane>
void pair(const typename R::Vector& real, const typename R::Vector& imaginary, typename R::Vector& low,
          typename R::Vector& high, std::integer_sequence<int, kLane...>) {
  using Lanes = LanesOf<R>;
  constexpr int kHalf = R::kWidth / 2;
  low = __builtin_shuffle(real, imaginary, Lanes{(kLane % 2 * R::kWidth + kLane / 2)...});
  high = __builtin_shuffle(real, imaginary, Lanes{(kLane % 2 * R::kWidth + kHalf + kLane / 2)...});
}

}  // namespace

template <class T>
bool FourierRow<T>::takes(int64_t size) {
  return size % fourier_lanes<T>() == 0 || has_large_prime(fourier_passes(size));
}
template <class T>
bool FourierRow<T>::fills(int64_t size) {
  const int64_t lanes = fourier_lanes<T>();
  return size % (lanes * lanes) == 0 && !has_large_prime(fourier_passes(size));
}

template <class T>
FourierRow<T>::FourierRow(int64_t size)
    : size_(size),
      chirp_(has_large_prime(fourier_passes(size)) ? std::make_shared<Chirp<T>>(size) : nullptr),
      chirped_(chirp_ ? std::make_shared<FourierRow>(chirp_->power) : nullptr),
      along_(chirp_ ? 1 : size / fourier_lanes<T>()),
      across_(chirp_ ? 1 : fourier_lanes<T>()),
      turns_(chirp_ ? 2 : 2 * size) {
  const int64_t lanes = across_.size();
  for (int64_t c = 0; c < along_.size(); ++c) {
    for (int64_t b = 0; b < lanes; ++b) {
      const Complex<T> number = rounded<T>(turned(b * c, size));
      turns_[2 * c * lanes + b] = number.real;
      turns_[(2 * c + 1) * lanes + b] = number.imaginary;
    }
  }
}

template <class T>
template <class R>
void FourierRow<T>::run_chirped(const T* from, T* to, T* scratch, bool inverse) const {
  const int64_t real = inverse ? 1 : 0, imaginary = 1 - real;
  const auto multiply = [=](const T* numbers, const std::vector<Complex<T>>& factors, T* products) {
    const int64_t count = static_cast<int64_t>(factors.size());
    const Complex<T>* const by = factors.data();
    for (int64_t i = 0; i < count; ++i) {
      const T a = numbers[2 * i + real], b = numbers[2 * i + imaginary];
      products[2 * i + real] = by[i].real * a - by[i].imaginary * b;
      products[2 * i + imaginary] = by[i].real * b + by[i].imaginary * a;
    }
  };
  T *const numbers = scratch, *const more = scratch + 2 * chirp_->power;
  multiply(from, chirp_->numbers, numbers);
  std::fill(numbers + 2 * size_, more, T(0));
  chirped_->template run_in<R>(numbers, numbers, more, inverse);
  multiply(numbers, chirp_->spectrum, numbers);
  chirped_->template run_in<R>(numbers, numbers, more, !inverse);
  multiply(numbers, chirp_->numbers, to);
}

template <class T>
template <class R>
void FourierRow<T>::run_in(const T* from, T* to, T* scratch, bool inverse) const {
  if (chirp_) return run_chirped<R>(from, to, scratch, inverse);
  using V = typename R::Vector;
  constexpr int64_t kWidth = R::kWidth, kNumber = 2 * kWidth;
  constexpr auto kLanes = std::make_integer_sequence<int, R::kWidth>();
  const Parts<R> at(inverse);
  const int64_t count = along_.size();
  T* const other = scratch + 2 * size_;
  for (int64_t i = 0; i < 2 * size_; i += kNumber) {
    const V low = R::at(from + i), high = R::at(from + i + kWidth);
    V real, imaginary;
    part<R>(low, high, real, imaginary, kLanes);
    R::at(scratch + i + at.real) = real;
    R::at(scratch + i + at.imaginary) = imaginary;
  }
  const T* number = along_.template run_in<R>(scratch, other, false);
  const T* turn = turns_.data();
  const auto across = [&](int64_t c, auto some) {
    V real[kWidth] = {}, imaginary[kWidth] = {};
    for (int64_t i = 0; i < some; ++i, number += kNumber, turn += kNumber) {
      const V by = R::at(turn), by_i = R::at(turn + kWidth);
      const V a = R::at(number), b = R::at(number + kWidth);
      real[i] = by * a - by_i * b;
      imaginary[i] = by * b + by_i * a;
    }
    transpose<R>(real);
    transpose<R>(imaginary);
    T square[2 * kWidth * kWidth], more[2 * kWidth * kWidth];
    for (int64_t i = 0; i < kWidth; ++i) {
      R::at(square + i * kNumber) = real[i];
      R::at(square + i * kNumber + kWidth) = imaginary[i];
    }
    const T* const result = across_.template run_in<R>(square, more, false);
    for (int64_t d = 0; d < kWidth; ++d) {
      const V a = R::at(result + d * kNumber + at.real), b = R::at(result + d * kNumber + at.imaginary);
      V low, high;
      pair<R>(a, b, low, high, kLanes);
      T* const place = to + 2 * (d * count + c);
      if constexpr (std::is_same_v<decltype(some), int64_t>) {
        T pairs[kNumber];
        R::at(pairs) = low;
        R::at(pairs + kWidth) = high;
        std::copy_n(pairs, 2 * some, place);
      } else {
        R::at(place) = low;
        R::at(place + kWidth) = high;
      }
    }
  };
  for (int64_t c = 0; c + kWidth <= count; c += kWidth) across(c, std::integral_constant<int64_t, kWidth>());
  if (count % kWidth > 0) across(count - count % kWidth, count % kWidth);
}

template <class T>
void FourierRow<T>::run(const T* from, T* to, T* scratch, bool inverse) const {
  widest_register([&](auto wide) { run_in<Holding<T, decltype(wide)>>(from, to, scratch, inverse); });
}

template int64_t fourier_lanes<float>();
template int64_t fourier_lanes<double>();
template struct Chirp<float>;
template struct Chirp<double>;
template class Fourier<float>;
template class Fourier<double>;
template class FourierRow<float>;
template class FourierRow<double>;

}  // namespace moonflow::cpu
