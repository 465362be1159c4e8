// How values lie in memory when not in rows: as oneDNN's descriptors have it, with a stride for each axis and blocks of
// axes inside.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/tensor.h"
#include "kernels/boxes.h"

namespace moonflow::cpu {

struct Blocked {
  static constexpr int kMaxAxes = 12;  // as many as oneDNN knows
  using Each = std::array<int64_t, kMaxAxes>;

  int64_t rank = 0;
  Each dims{}, padded_dims{};
  Each strides{};  // in elements; of an axis with blocks, from one of its outermost blocks to the next
  int64_t block_count = 0;
  Each blocks{}, block_axes{};  // outermost first: the elements of each, and its axis

  // Without gaps: the axes in this order, the outermost first. Where `block` is more than one, so many of `block_axis`
  // lie together innermost, and the last of these blocks is filled up.
  static Blocked dense(const std::vector<int64_t>& dims, const std::vector<int>& order, int block_axis = 0,
                       int64_t block = 1);
  static Blocked row_major(const std::vector<int64_t>& dims);

  // That of the axis: one, where it has none.
  int64_t block_of(int axis) const;
  bool is_padded() const;
  // Whether each element lies where the other has it. Of an axis of one step the stride is never used.
  bool lies_as(const Blocked& other) const;
  // Axes from the outermost inwards as letters, those with blocks in capitals, then the blocks: "aBcd16b".
  std::string name() const;
};

// A layout of the CPU; see Layout. Row-major where the form, over the type's own dims, is just that.
Layout layout_of(const Blocked& form, const TensorType& type);
bool is_blocked(const Layout& layout);
Blocked blocked(const TensorType& type, const Layout& layout);

// The reorder as copies between strided arrays, where it is that: no axis has several blocks, and those of one divide
// the other's. What pads the target is not written.
std::optional<std::vector<Box>> reorder_boxes(const Blocked& from, const Blocked& to);

}  // namespace moonflow::cpu
