#include "kernels/cpu/blocked.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <numeric>

#include <dnnl_debug.h>

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

// ---- layouts -----------------------------------------------------------------------------------------------------

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

// ---- oneDNN ------------------------------------------------------------------------------------------------------

dnnl::memory::data_type dnnl_type(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return dnnl::memory::data_type::f32;
    case DType::Int8:
      return dnnl::memory::data_type::s8;
    case DType::UInt8:
      return dnnl::memory::data_type::u8;
    case DType::Int32:
      return dnnl::memory::data_type::s32;
    default:
      throw dnnl::error(dnnl_unimplemented, "a dtype that oneDNN has not");
  }
}

#if DNNL_VERSION_MAJOR >= 3

Blocked blocked(const dnnl::memory::desc& desc) {
  const auto is_zero = [](int64_t value) { return value == 0; };
  const std::vector<int64_t> offsets = desc.get_padded_offsets();
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked || desc.get_submemory_offset() != 0 ||
      !std::all_of(offsets.begin(), offsets.end(), is_zero)) {
    throw dnnl::error(dnnl_unimplemented, "a format without strides and blocks");
  }
  Blocked form;
  const auto copy = [](const std::vector<int64_t>& from, Blocked::Each& to) {
    std::copy(from.begin(), from.end(), to.begin());
  };
  form.rank = desc.get_ndims();
  copy(desc.get_dims(), form.dims);
  copy(desc.get_padded_dims(), form.padded_dims);
  copy(desc.get_strides(), form.strides);
  form.block_count = desc.get_inner_nblks();
  if (form.block_count > 0) {
    copy(desc.get_inner_blks(), form.blocks);
    copy(desc.get_inner_idxs(), form.block_axes);
  }
  return form;
}

#else

Blocked blocked(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  const auto is_zero = [](int64_t value) { return value == 0; };
  if (data.format_kind != dnnl_blocked || data.offset0 != 0 || data.extra.flags != 0 ||
      !std::all_of(data.padded_offsets, data.padded_offsets + data.ndims, is_zero)) {
    throw dnnl::error(dnnl_unimplemented, "a format without strides and blocks");
  }
  Blocked form;
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  form.rank = data.ndims;
  std::copy_n(data.dims, form.rank, form.dims.begin());
  std::copy_n(data.padded_dims, form.rank, form.padded_dims.begin());
  std::copy_n(blocking.strides, form.rank, form.strides.begin());
  form.block_count = blocking.inner_nblks;
  std::copy_n(blocking.inner_blks, form.block_count, form.blocks.begin());
  std::copy_n(blocking.inner_idxs, form.block_count, form.block_axes.begin());
  return form;
}

#endif

namespace {

// One of the library's names for formats, such as "aBcd16b".
struct Tag {
  dnnl::memory::format_tag tag;
  int64_t rank = 0;
  std::vector<std::pair<int64_t, int>> blocks;  // sizes and axes
};

// Those with blocks.
const std::vector<Tag>& tags() {
  static const std::vector<Tag> known = [] {
    std::vector<Tag> result;
    for (int i = dnnl_format_tag_any + 1; i < dnnl_format_tag_last; ++i) {
      const std::string name = dnnl_fmt_tag2str(static_cast<dnnl_format_tag_t>(i));
      Tag tag{static_cast<dnnl::memory::format_tag>(i), 0, {}};
      size_t at = 0;
      for (; at < name.size() && std::isalpha(static_cast<unsigned char>(name[at])); ++at) ++tag.rank;
      while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at]))) {
        int64_t size = 0;
        for (; at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])); ++at)
          size = 10 * size + (name[at] - '0');
        if (at < name.size()) tag.blocks.emplace_back(size, name[at++] - 'a');
      }
      if (at == name.size() && !tag.blocks.empty()) result.push_back(std::move(tag));
    }
    return result;
  }();
  return known;
}

}  // namespace

// A form with blocks can be told by one of the library's names alone, which may have the axes in another order.
dnnl::memory::desc descriptor(const Blocked& form, dnnl::memory::data_type dtype) {
  const auto first = [&](const Blocked::Each& each) {
    return dnnl::memory::dims(each.begin(), each.begin() + form.rank);
  };
  if (form.block_count == 0) return {first(form.dims), dtype, first(form.strides)};
  std::vector<int> order(static_cast<size_t>(form.rank));  // of the name's axes among ours
  std::iota(order.begin(), order.end(), 0);
  do {
    const auto has_our_blocks = [&](const Tag& tag) {
      if (tag.rank != form.rank || static_cast<int64_t>(tag.blocks.size()) != form.block_count) return false;
      for (size_t i = 0; i < tag.blocks.size(); ++i) {
        const auto [size, axis] = tag.blocks[i];
        if (size != form.blocks[i] || order[axis] != form.block_axes[i]) return false;
      }
      return true;
    };
    dnnl::memory::dims dims;
    for (const int axis : order) dims.push_back(form.dims[axis]);
    for (const Tag& tag : tags()) {
      if (!has_our_blocks(tag)) continue;
      const dnnl::memory::desc desc = dnnl::memory::desc(dims, dtype, tag.tag).permute_axes(order);
      if (blocked(desc).lies_as(form)) return desc;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  throw dnnl::error(dnnl_unimplemented, "a format that oneDNN has no name for");
}

}  // namespace moonflow::cpu
