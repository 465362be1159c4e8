// Two sums taken in one go over the elements of a run, in double. Eight partial sums side by side fill the vector
// registers, and the order of the additions is the same on every processor.
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
    for (int64_t k = 0; k < kSide; ++k) {
      total.first += first_[k];
      total.second += second_[k];
    }
    return total;
  }

 private:
  static constexpr int64_t kSide = 8;
  double first_[kSide] = {}, second_[kSide] = {};
};

}  // namespace moonflow::cpu
