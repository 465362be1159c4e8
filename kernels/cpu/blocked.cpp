#include "kernels/cpu/blocked.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/error.h"

namespace moonflow::cpu {

Blocked Blocked::dense(const std::vector<int64_t>& dims, const std::vector<int>& order, int block_axis, int64_t block) {
  Blocked form;
  form.rank = static_cast<int64_t>(dims.size());
  std::copy(dims.begin(), dims.end(), form.dims.begin());
  form.padded_dims = form.dims;
  if (block > 1) {
    form.padded_dims[block_axis] = (dims[block_axis] + block - 1) / block * block;
    form.block_count = 1;
    form.blocks[0] = block;
    form.block_axes[0] = block_axis;
  }
  int64_t stride = block;
  for (size_t i = order.size(); i-- > 0;) {
    const int axis = order[i];
    form.strides[axis] = stride;
    stride *= form.padded_dims[axis] / form.block_of(axis);
  }
  return form;
}

Blocked Blocked::row_major(const std::vector<int64_t>& dims) {
  std::vector<int> order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  return dense(dims, order);
}

int64_t Blocked::block_of(int axis) const {
  int64_t block = 1;
  for (int64_t i = 0; i < block_count; ++i)
    if (block_axes[i] == axis) block *= blocks[i];
  return block;
}

bool Blocked::is_padded() const { return dims != padded_dims; }

bool Blocked::lies_as(const Blocked& other) const {
  if (rank != other.rank || dims != other.dims || padded_dims != other.padded_dims ||
      block_count != other.block_count || blocks != other.blocks || block_axes != other.block_axes) {
    return false;
  }
  for (int axis = 0; axis < rank; ++axis)
    if (padded_dims[axis] > block_of(axis) && strides[axis] != other.strides[axis]) return false;
  return true;
}

std::string Blocked::name() const {
  std::vector<int> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  std::stable_sort(axes.begin(), axes.end(), [&](int a, int b) { return strides[a] > strides[b]; });
  std::string result;
  for (const int axis : axes) result += static_cast<char>((block_of(axis) > 1 ? 'A' : 'a') + axis);
  for (int64_t i = 0; i < block_count; ++i)
    result += std::to_string(blocks[i]) + static_cast<char>('a' + block_axes[i]);
  return result;
}

namespace {

std::vector<int64_t> dims_of(const TensorType& type) {
  std::vector<int64_t> dims(std::max(type.shape.rank(), 1), 1);  // a scalar has one axis there
  std::copy(type.shape.begin(), type.shape.end(), dims.begin());
  return dims;
}

// From the first element to the last, with what pads them.
int64_t elements(const Blocked& form) {
  int64_t last = 0;
  for (int axis = 0; axis < form.rank; ++axis) {
    if (form.padded_dims[axis] == 0) return 0;
    last += (form.padded_dims[axis] / form.block_of(axis) - 1) * form.strides[axis];
  }
  return last + std::accumulate(form.blocks.begin(), form.blocks.begin() + form.block_count, int64_t{1},
                                std::multiplies<int64_t>());
}

}  // namespace

Layout layout_of(const Blocked& form, const TensorType& type) {
  if (form.lies_as(Blocked::row_major(dims_of(type)))) return {};
  const auto* bytes = reinterpret_cast<const unsigned char*>(&form);
  return {std::vector<unsigned char>(bytes, bytes + sizeof form), elements(form) * size_of(type.dtype)};
}

bool is_blocked(const Layout& layout) { return layout.description.size() == sizeof(Blocked); }

Blocked blocked(const TensorType& type, const Layout& layout) {
  if (layout.row_major()) return Blocked::row_major(dims_of(type));
  require(is_blocked(layout), ErrorCode::WrongState, "this layout is not of the cpu");
  Blocked form;
  std::memcpy(&form, layout.description.data(), sizeof form);
  return form;
}

namespace {

// Part of an axis on both sides: steps of whole blocks with the elements within, or what the last block has of them.
struct Piece {
  int64_t start_to = 0, start_from = 0;
  std::vector<Box::Axis> axes;
};

struct Side {
  int64_t block = 1, outer, inner;  // the steps between blocks, and within one

  Side(const Blocked& form, int axis) : outer(form.strides[axis]), inner(outer) {
    int64_t step = 1;
    for (int64_t i = form.block_count; i-- > 0; step *= form.blocks[i]) {
      if (form.block_axes[i] != axis) continue;
      block = form.blocks[i];
      inner = step;
    }
  }
  // Of blocks of so many elements, where there are none or these.
  int64_t outer_of(int64_t elements) const { return block == 1 ? outer * elements : outer; }
};

bool has_one_block_per_axis(const Blocked& form) {
  for (int64_t i = 0; i < form.block_count; ++i)
    for (int64_t j = 0; j < i; ++j)
      if (form.block_axes[i] == form.block_axes[j]) return false;
  return true;
}

}  // namespace

std::optional<std::vector<Box>> reorder_boxes(const Blocked& from, const Blocked& to) {
  if (from.rank != to.rank || from.dims != to.dims || !has_one_block_per_axis(from) || !has_one_block_per_axis(to)) {
    return std::nullopt;
  }
  std::vector<Box> boxes(1);
  for (int axis = 0; axis < to.rank; ++axis) {
    const Side source(from, axis), target(to, axis);
    const int64_t block = std::max(source.block, target.block), whole = to.dims[axis] / block;
    if (std::min(source.block, target.block) != 1 && source.block != target.block) return std::nullopt;
    const int64_t outer_to = target.outer_of(block), outer_from = source.outer_of(block);
    const int64_t rest = to.dims[axis] % block;
    std::vector<Piece> pieces;
    if (whole > 0) pieces.push_back({0, 0, {{whole, outer_to, outer_from}, {block, target.inner, source.inner}}});
    if (rest > 0) pieces.push_back({whole * outer_to, whole * outer_from, {{rest, target.inner, source.inner}}});
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Piece& piece : pieces) {
        Box next = box;
        next.axes.insert(next.axes.end(), piece.axes.begin(), piece.axes.end());
        next.to_start += piece.start_to;
        next.from_start += piece.start_from;
        longer.push_back(std::move(next));
      }
    }
    boxes = std::move(longer);
  }
  for (Box& box : boxes) {
    if (box.axes.size() > Box::kMaxAxes) return std::nullopt;
    std::stable_sort(box.axes.begin(), box.axes.end(),
                     [](const Box::Axis& a, const Box::Axis& b) { return a.to > b.to; });
  }
  return boxes;
}

}  // namespace moonflow::cpu
