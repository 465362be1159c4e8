// Several arrays, each with companions of its length, in one launch: what an update of a network's variables does,
// which are many and mostly small. The addresses go to the card as the kernel's argument, in a table.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/block.h"

namespace moonflow::cuda {

// One array and its companions; what a body does not take as an array may be anything else it wants an address of.
template <int kPointers>
struct ArrayRow {
  void* data[kPointers];
  int64_t count;
};

// A body is a struct of plain data with
//   kPointers        addresses of a row
//   kN               elements that a thread takes at once
//   skips()          whether there is nothing to do after all
//   is_aligned(row)  whether all arrays of a row can be moved in packs of kN
//   begin(row)       what the elements of a row have in common, with
//                    operator()(row, first, rest, whole): computes kN of them, or `rest` where that is less
template <class Body>
struct OverArrays {
  static constexpr int kThreads = 256;
  static constexpr int64_t kPerBlock = int64_t{kThreads} * Body::kN * 4;
  using Row = ArrayRow<Body::kPointers>;
  static constexpr int kMost =
      (kArgumentBytes - static_cast<int>(sizeof(Body))) / static_cast<int>(sizeof(Row) + sizeof(uint32_t) + 1);

  Body body;
  int rows = 0;
  Row row[kMost];
  uint32_t first_block[kMost];
  bool aligned[kMost];

  explicit OverArrays(const Body& body) : body(body) {}

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (body.skips()) return;
    int of = 0;
    for (int behind = rows; behind - of > 1;) {
      const int middle = (of + behind) / 2;
      if (first_block[middle] <= block.index())
        of = middle;
      else
        behind = middle;
    }
    const int64_t first = (block.index() - first_block[of]) * kPerBlock, count = row[of].count;
    const int64_t last = first + kPerBlock < count ? first + kPerBlock : count;
    const auto elements = body.begin(row[of]);
    for (int64_t i = first + block.thread() * Body::kN; i < last; i += kThreads * Body::kN)
      elements(row[of], i, last - i, aligned[of] && last - i >= Body::kN);
  }
};

// next(i) gives the row of array i.
template <class Body, class Next>
void over_arrays(Stream& stream, const Body& body, int64_t count, const Next& next) {
  using K = OverArrays<Body>;
  K kernel(body);
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) {
    const typename K::Row row = next(i);
    if (row.count == 0) continue;
    if (kernel.rows == K::kMost) {
      launch(stream, blocks, kernel);
      kernel.rows = 0;
      blocks = 0;
    }
    kernel.row[kernel.rows] = row;
    kernel.first_block[kernel.rows] = static_cast<uint32_t>(blocks);
    kernel.aligned[kernel.rows++] = Body::is_aligned(row);
    blocks += (row.count + K::kPerBlock - 1) / K::kPerBlock;
  }
  if (kernel.rows > 0) launch(stream, blocks, kernel);
}

}  // namespace moonflow::cuda
