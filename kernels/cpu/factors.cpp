#include "kernels/cpu/factors.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

namespace {

constexpr int64_t kPanel = 32;    // rows that are taken from the others together
constexpr int64_t kColumns = 64;  // right sides that are solved for together

// to -= the sum over k of factors[k * stride] times row k of `rows`.
void subtract(double* to, const double* factors, int64_t stride, const double* rows, int64_t width, int64_t count,
              int64_t columns) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4, rows += 4 * width) {
    const double* const factor = factors + k * stride;
    const double f0 = factor[0], f1 = factor[stride], f2 = factor[2 * stride], f3 = factor[3 * stride];
    const double *const r0 = rows, *const r1 = r0 + width, *const r2 = r1 + width, *const r3 = r2 + width;
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; ++j) to[j] -= f0 * r0[j] + f1 * r1[j] + f2 * r2[j] + f3 * r3[j];
  }
  for (; k < count; ++k, rows += width) {
    const double factor = factors[k * stride];
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; ++j) to[j] -= factor * rows[j];
  }
}

// Calls body(i) for i in [first, last), each of so many operations.
template <class Body>
void for_each_row(int64_t first, int64_t last, int64_t operations, const Body& body) {
  const int64_t grain = kGrain / std::max<int64_t>(operations, 1) + 1;
  parallel_for(last - first, grain, [=](int64_t begin, int64_t end) {
    widest([=] {
      for (int64_t i = first + begin; i < first + end; ++i) body(i);
    });
  });
}

}  // namespace

int64_t take_root(double* w, int64_t n) {
  for (int64_t start = 0; start < n; start += kPanel) {
    const int64_t end = std::min(start + kPanel, n);
    int64_t rootless = -1;
    widest([=, &rootless] {
      for (int64_t c = start; c < end; ++c) {
        double* const row = w + c * n;
        if (!(row[c] > 0)) {
          rootless = c;
          return;
        }
        const double root = std::sqrt(row[c]);
        for (int64_t j = c; j < n; ++j) row[j] /= root;
        for (int64_t i = c + 1; i < end; ++i) subtract(w + i * n + i, row + i, 0, row + i, n, 1, n - i);
      }
    });
    if (rootless >= 0) return rootless;
    for_each_row(end, n, kPanel * (n - end), [=](int64_t i) {
      subtract(w + i * n + i, w + start * n + i, n, w + start * n + i, n, end - start, n - i);
    });
  }
  return -1;
}

void eliminate(double* w, int64_t n, int64_t* swaps) {
  for (int64_t start = 0; start < n; start += kPanel) {
    const int64_t end = std::min(start + kPanel, n);
    widest([=] {
      for (int64_t c = start; c < end; ++c) {
        int64_t best = c;
        for (int64_t i = c + 1; i < n; ++i)
          if (std::fabs(w[i * n + c]) > std::fabs(w[best * n + c])) best = i;
        swaps[c] = best;
        for (int64_t j = 0; best != c && j < n; ++j) std::swap(w[c * n + j], w[best * n + j]);
        const double* const row = w + c * n;
        if (row[c] == 0) continue;
        for (int64_t i = c + 1; i < n; ++i) {
          const double factor = w[i * n + c] /= row[c];
          subtract(w + i * n + c + 1, &factor, 0, row + c + 1, n, 1, end - c - 1);
        }
      }
      for (int64_t i = start + 1; i < end; ++i)
        subtract(w + i * n + end, w + i * n + start, 1, w + start * n + end, n, i - start, n - end);
    });
    for_each_row(end, n, kPanel * (n - end), [=](int64_t i) {
      subtract(w + i * n + end, w + i * n + start, 1, w + start * n + end, n, end - start, n - end);
    });
  }
}

bool has_zero(const double* w, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (w[i * n + i] == 0) return true;
  return false;
}

template <bool kLower>
void substitute(const double* w, int64_t n, Diagonal diagonal, double* x, int64_t columns) {
  const int64_t blocks = (columns + kColumns - 1) / kColumns;
  for_each_row(0, blocks, n * n / 2 * std::min(columns, kColumns), [=](int64_t block) {
    const int64_t first = block * kColumns, count = std::min(kColumns, columns - first);
    for (int64_t step = 0; step < n; ++step) {
      const int64_t i = kLower ? step : n - 1 - step, from = kLower ? 0 : i + 1;
      double* const row = x + i * columns + first;
      subtract(row, w + i * n + from, 1, x + from * columns + first, columns, step, count);
      if (diagonal == Diagonal::Given)
        for (int64_t j = 0; j < count; ++j) row[j] /= w[i * n + i];
    }
  });
}

bool solve(double* w, int64_t n, int64_t* swaps, double* x, int64_t columns) {
  eliminate(w, n, swaps);
  if (has_zero(w, n)) return false;
  for (int64_t i = 0; i < n; ++i)
    if (swaps[i] != i) std::swap_ranges(x + i * columns, x + (i + 1) * columns, x + swaps[i] * columns);
  substitute<true>(w, n, Diagonal::Ones, x, columns);
  substitute<false>(w, n, Diagonal::Given, x, columns);
  return true;
}

template void substitute<true>(const double*, int64_t, Diagonal, double*, int64_t);
template void substitute<false>(const double*, int64_t, Diagonal, double*, int64_t);

}  // namespace moonflow::cpu
