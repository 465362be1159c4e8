// Fourier transforms of complex numbers on the CPU, of a register's lanes at once or of one row.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/fourier.h"

namespace moonflow::cpu {

// How many transforms go beside one another: one in each lane of the widest register of T.
template <class T>
int64_t fourier_lanes();

// Of a size with a large prime: what is transformed is a convolution, with these numbers and by a transform of a power
// of two (L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", IEEE
// Transactions on Audio and Electroacoustics 1970).
template <class T>
struct Chirp {
  explicit Chirp(int64_t size);

  int64_t power = 1;
  std::vector<Complex<T>> numbers, spectrum;
};

// Number i of the transform in lane l is real at [2 * i * lanes + l], and imaginary at [(2 * i + 1) * lanes + l].
template <class T>
class Fourier {
 public:
  explicit Fourier(int64_t size);

  int64_t size() const { return size_; }
  // Numbers that an array of a lane has room for.
  int64_t room() const { return chirped_ ? chirped_->room() : size_; }

  // Of arrays with that room `data` has what is transformed, and both are written. Gives the one with the result. The
  // inverse has exp(+2 pi i k n / size), and is not divided by anything.
  T* run(T* data, T* other, bool inverse) const;
  // The same in a function that is compiled for registers R.
  template <class R>
  T* run_in(T* data, T* other, bool inverse) const;

 private:
  struct Pass {
    FourierPass sizes;
    std::vector<Complex<T>> turns;  // by group, of each number but the first
    std::vector<Complex<T>> roots;  // the factor's
  };

  template <class R, class Factor>
  static void run_pass(const Pass& pass, Factor factor, const T* from, T* to, bool inverse);
  template <class R>
  T* run_chirped(T* data, T* other, bool inverse) const;

  int64_t size_;
  std::vector<Pass> passes_;
  std::shared_ptr<const Chirp<T>> chirp_;
  std::shared_ptr<const Fourier> chirped_;
};

// One transform, whose lanes are parts of it: number a * lanes + b is number a of lane b. Then what the lanes have is
// transformed across them, a square of lanes at a time.
template <class T>
class FourierRow {
 public:
  static bool takes(int64_t size);
  // Takes it, and goes across whole squares alone: no slower than rows beside one another.
  static bool fills(int64_t size);
  explicit FourierRow(int64_t size);

  int64_t scratch() const { return chirp_ ? 2 * chirp_->power + chirped_->scratch() : 4 * size_; }  // in elements
  // Pairs to pairs, which may be the same.
  void run(const T* from, T* to, T* scratch, bool inverse) const;

 private:
  template <class R>
  void run_in(const T* from, T* to, T* scratch, bool inverse) const;
  template <class R>
  void run_chirped(const T* from, T* to, T* scratch, bool inverse) const;

  int64_t size_;
  std::shared_ptr<const Chirp<T>> chirp_;
  std::shared_ptr<const FourierRow> chirped_;
  Fourier<T> along_, across_;  // of one number where there is a chirp
  std::vector<T> turns_;  // by number of a lane, real parts of the lanes and then imaginary ones
};

}  // namespace moonflow::cpu
