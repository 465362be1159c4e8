// Products in bfloat16 that leave out the pairs of zeros of their first factor, as relu and dropout leave them. Whether
// there are enough of them is seen when the factor is there.
#pragma once

#include "kernels/cpu/matmul_bfloat16_panel.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

class ListedPairs {
 public:
  // What the lists take, or 0 where they could not pay.
  static int64_t scratch_bytes(const NarrowProduct& product);

  // Of a panel that is followed by lists: wider than one in tiles, where the first-level cache holds that, for each
  // list costs a branch that is not foreseen.
  static int64_t vectors(const NarrowProduct& product);

  // Looks at some of a', as it is packed, and takes nothing where too little of it is zero.
  ListedPairs(const NarrowProduct& product, const Terms& left, void* scratch);
  bool pays() const { return pays_; }

  // How many rows are listed together.
  int64_t most_rows() const;
  // Lists `rows` rows from `first` on, which is a multiple of most_rows(), on all threads that pay.
  void list(int64_t first, int64_t rows);

  // Rows [first, last) of those listed, multiples of kRowsTogether from there on; all are rows of end.out. A panel that
  // is not finite is to be multiplied with zeros too, by others.
  void multiply(const Pair* panel, const PanelEnding& end, int64_t first, int64_t last) const;

 private:
  const NarrowProduct& product_;
  const Terms left_;
  bool pays_ = false;
  Term* turned_ = nullptr;  // the rows of a left that lies in columns
  TermsOfTwo* two_ = nullptr;
  TermLists lists_{nullptr, 0};
  Terms rows_{nullptr, 0, 1};  // that are listed
  int64_t count_ = 0;
};

// Whether the second factor has more zeros to leave out than the first, so that the product is better turned over. Of
// factors whose pairs lie across rows, as those of a weight's gradient do, which is what they are seen in as stored.
bool is_better_turned(const NarrowProduct& product, const void* a, const void* b);
// That product: of the second factor's transpose and the first one's.
NarrowProduct turned(const NarrowProduct& product);

// Of a panel, the columns that are packed.
bool is_finite(const Pair* panel, int64_t pairs, int64_t columns);

}  // namespace moonflow::cpu

#endif
