#include "kernels/cpu/onednn.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cfenv>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include <dnnl_debug.h>

#include "engine/error.h"

namespace moonflow::cpu {

static_assert(Blocked::kMaxAxes == DNNL_MAX_NDIMS);

// ---- descriptors -------------------------------------------------------------------------------------------------

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
  static const auto& known = *new std::vector<Tag>([] {
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
  }());
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

// ---- primitives --------------------------------------------------------------------------------------------------

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

int Bound::add(int argument, const dnnl::memory::desc& desc) {
  memories_.emplace_back(desc, engine_, nullptr);
  arguments_.push_back({argument, memories_.back().get()});
  return static_cast<int>(memories_.size()) - 1;
}

template <class Run>
void Bound::with_threads(const Run& run) const {
  dnnl_status_t status = dnnl_success;
  const auto limited = [&] {
    const ThreadLimit limit(threads_);
    status = run();
  };
  // In a loop of the host's, whose threads get no team of their own, another thread does.
  if (threads_ > 1 && omp_in_parallel())
    std::thread(limited).join();
  else
    limited();
  require(status == dnnl_success, ErrorCode::Unsupported, "oneDNN could not run its primitive, status ", status);
}

void Bound::execute(Stream& stream) const {
  with_threads([&] {
    return dnnl_primitive_execute(primitive_.get(), dnnl_stream(stream).get(), static_cast<int>(arguments_.size()),
                                  arguments_.data());
  });
}

bool Bound::execute_noting_invalid(Stream& stream) const {
  std::atomic<bool> invalid = false;
  const auto lower = [&] {
    if (std::fetestexcept(FE_INVALID) != 0) invalid = true;
    std::feclearexcept(FE_INVALID);
  };
  with_threads([&] {
    // This thread may have come from anywhere. To gather the others takes microseconds, so their flags are not lowered
    // beforehand: only loops like ours have run there, and what raised them met a NaN or made one.
    std::feclearexcept(FE_INVALID);
    const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), dnnl_stream(stream).get(),
                                                        static_cast<int>(arguments_.size()), arguments_.data());
    // A team of this size has the threads that the primitive's had.
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    lower();
    return status;
  });
  return invalid;
}

}  // namespace moonflow::cpu
