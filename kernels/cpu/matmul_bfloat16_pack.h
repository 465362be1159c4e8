// How the factors of a product in bfloat16 are laid out for the loops that multiply them: in pairs along the inner
// axis.
#pragma once

#include "kernels/cpu/matmul_bfloat16_panel.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

// A matrix as it is stored, in one of the two dtypes.
struct Stored {
  const void* data;
  int64_t row;  // elements from row to row
  bool narrow;

  const float* wide(int64_t i, int64_t j) const { return static_cast<const float*>(data) + i * row + j; }
  const uint16_t* half(int64_t i, int64_t j) const { return static_cast<const uint16_t*>(data) + i * row + j; }
};

// a' of every product of a batch.
class PackedLeft {
 public:
  // What it takes of one product, which is nothing where it is read as it is stored.
  static int64_t pairs_of_one(const NarrowProduct& product);

  // Packs, on all threads that pay.
  PackedLeft(const NarrowProduct& product, const void* a, Pair* packed);
  // Of product n: its terms, and its tiles where multiplies_in_tiles().
  Terms terms(int64_t n) const;
  LeftTiles tiles(int64_t n) const;

 private:
  const NarrowProduct& product_;
  const bool as_stored_;
  const Pair* const data_;
};

// Columns [first, first + width) of b' as a panel: one row of pairs after the other, filled up with zeros to whole
// vectors, and to panel_depth() rows.
void pack_panel(const NarrowProduct& product, const void* b, int64_t first, int64_t width, Pair* panel);

}  // namespace moonflow::cpu

#endif
