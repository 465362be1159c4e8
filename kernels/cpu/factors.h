// Factors of square matrices of doubles, by rows: what a factorisation takes from a row is the sum of multiples of rows
// that are finished. A panel of those, which the second cache holds, is taken from all rows that follow before the next
// one is begun, so a large matrix passes through the caches once a panel. Those rows are shared between threads. Each
// sum has an order of its own, so the bits do not depend on the number of threads.
#pragma once

#include <cstdint>

namespace moonflow::cpu {

// The R above the diagonal with w = R^T R, in the place of w (n, n), of which it reads what is above the diagonal.
// Gives the row without a root, or -1.
int64_t take_root(double* w, int64_t n);

// P w = L U in the place of w, L with ones on its diagonal. Row i has changed places with row swaps[i] >= i, in turn.
void eliminate(double* w, int64_t n, int64_t* swaps);

// On the diagonal.
bool has_zero(const double* w, int64_t n);

enum class Diagonal { Given, Ones };

// Solves with one triangle of w for the columns of x (n, columns), in their place.
template <bool kLower>
void substitute(const double* w, int64_t n, Diagonal diagonal, double* x, int64_t columns);

// Solves w x = b, x in the place of b. False where w is singular; w is written.
bool solve(double* w, int64_t n, int64_t* swaps, double* x, int64_t columns);

}  // namespace moonflow::cpu
