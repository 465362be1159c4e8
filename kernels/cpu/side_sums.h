// Two sums taken in one go over the elements of a run, or one, in double. Sixteen partial sums side by side hide the
// latency of an addition, and the order of the additions is the same on every processor.
#pragma once

#include <cstdint>

namespace moonflow::cpu {

struct Sums {
  double first = 0, second = 0;
};

class SideSums {
 public:
  // Adds term(i), a Sums, for i in [first, last).
  template <class Term>
  void add(int64_t first, int64_t last, const Term& term) {
    int64_t i = first;
    for (; i + kSide <= last; i += kSide) {
#pragma omp simd
      for (int64_t k = 0; k < kSide; ++k) {
        const Sums sums = term(i + k);
        first_[k] += sums.first;
        second_[k] += sums.second;
      }
    }
    for (; i < last; ++i) {
      const Sums sums = term(i);
      first_[0] += sums.first;
      second_[0] += sums.second;
    }
  }

  Sums total() const {
    Sums total;
    for (int64_t k = 0; k < kSide; k += 4) {
      total.first += (first_[k] + first_[k + 1]) + (first_[k + 2] + first_[k + 3]);
      total.second += (second_[k] + second_[k + 1]) + (second_[k + 2] + second_[k + 3]);
    }
    return total;
  }

 private:
  static constexpr int64_t kSide = 16;
  double first_[kSide] = {}, second_[kSide] = {};
};

// One sum alone, of term(i) for i in [0, count), in half the additions.
template <class Term>
double side_sum(int64_t count, const Term& term) {
  constexpr int64_t kSide = 16;
  double side[kSide] = {}, rest = 0;
  int64_t i = 0;
  for (; i + kSide <= count; i += kSide) {
#pragma omp simd
    for (int64_t k = 0; k < kSide; ++k) side[k] += term(i + k);
  }
  for (; i < count; ++i) rest += term(i);
  for (const double sum : side) rest += sum;
  return rest;
}

}  // namespace moonflow::cpu
