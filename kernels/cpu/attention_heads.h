// What the passes of attention over the heads of all samples share on the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/small_product_tiles.h"
#include "kernels/cpu/softmax_row.h"

namespace moonflow::attention {

// Which keys a query may look at, and which of its weights dropout keeps.
struct Selection {
  MaskSteps mask_steps{};
  bool masked = false, causal = false, dropped = false;
  double kept_scale = 1;

  explicit Selection(const KernelCall& call)
      : masked(call.has(kMask)), causal(call.attrs.flag("causal")), dropped(call.has(kKept)) {
    if (dropped) kept_scale = 1 / (1 - call.attrs.number("rate"));
    if (masked) mask_steps = steps_of_mask(call.inputs[kMask].shape);
  }

  // Keys that some query before `last_query` may look at, and those that query `i` may.
  int64_t keys_before(int64_t last_query, int64_t keys) const { return causal ? std::min(keys, last_query) : keys; }
  int64_t keys_of(int64_t i, int64_t keys) const { return causal ? std::min(keys, i + 1) : keys; }
  // Keys up to the last one that the mask lets one of a head's queries look at, one at least.
  int64_t keys_in_sight(const int8_t* mask, int64_t batch, int64_t head, const Sizes& sizes) const {
    if (!masked) return sizes.keys;
    int64_t seen = std::min<int64_t>(sizes.keys, 1);
    for (int64_t i = mask_steps[2] == 0 ? 1 : sizes.queries; i-- > 0;) {
      const int8_t* const row = mask_of(mask, batch, head, i);
      int64_t last = sizes.keys;
      while (last > seen && row[(last - 1) * mask_steps[3]] == 0) --last;
      seen = std::max(seen, last);
    }
    return seen;
  }

  // Scores that must not count become minus infinity.
  template <class T>
  void mask_row(const int8_t* mask, int64_t batch, int64_t head, int64_t query, int64_t n, T* scores) const {
    if (!masked) return;
    const int8_t* const row = mask_of(mask, batch, head, query);
    const int64_t step = mask_steps[3];
    for (int64_t j = 0; j < n; ++j) scores[j] = row[j * step] != 0 ? scores[j] : -std::numeric_limits<T>::infinity();
  }

 private:
  const int8_t* mask_of(const int8_t* mask, int64_t batch, int64_t head, int64_t query) const {
    return mask + batch * mask_steps[0] + head * mask_steps[1] + query * mask_steps[2];
  }
};

template <class T>
void drop_row(const int8_t* kept, int64_t n, T scale, T* row) {
  for (int64_t j = 0; j < n; ++j) {
    const T scaled = row[j] * scale;  // taken always, so that the loop has no branch
    row[j] = kept[j] != 0 ? scaled : T(0);
  }
}

// Whether products of heads may be made in tile registers.
inline bool tiles_fit(const Sizes& sizes) {
  return cpu::small_tiles_fit(sizes.queries, sizes.keys, std::min(sizes.width, sizes.value_width));
}

// Queries whose scores are held at a time: as many as keep them in cache beside the head's rows, and fewer where later
// keys do not count, since a block looks at all the keys that its last query may look at. In tiles they are taken 32 at
// a time, by a second cache that is larger than others' are.
inline int64_t block_of(const Sizes& sizes, bool causal, bool in_tiles) {
  const int64_t keys = std::max<int64_t>(1, cpu::padded_row(sizes.keys));
  if (in_tiles) return std::clamp<int64_t>((1 << 16) / keys / 32 * 32, 32, causal ? 64 : 128);
  return std::clamp<int64_t>((1 << 14) / keys, 12, causal ? 36 : 132);
}

// As many as there are threads, when the work is worth waking them.
int64_t parts_of(const Sizes& sizes) {
  constexpr double kSmallFlops = 1e6;
  const int64_t heads = std::max<int64_t>(1, sizes.batch * sizes.heads);
  return sizes.flops() < kSmallFlops ? 1 : std::min<int64_t>(cpu::threads(), heads);
}

// What forward and backward share: sizes, the pieces of a thread's scratch, and the way over the heads.
template <class T>
class Heads {
 public:
  Heads(const KernelCall& call, const Shape& query, const Shape& value)
      : sizes(query, value),
        select(call),
        scale(static_cast<T>(call.attrs.number("scale"))),
        in_tiles(std::is_same_v<T, float> && call.attrs.dtype("rounds_to") == DType::BFloat16 && tiles_fit(sizes)),
        block(block_of(sizes, select.causal, in_tiles)),
        parts_(parts_of(sizes)) {}

  // A head with the rows of its inputs and outputs.
  struct Head {
    const Heads& heads;
    const LaunchCall& call;
    T* scratch;
    int64_t batch, head;

    // Of the same sample.
    Head neighbour(int64_t i) const { return {heads, call, scratch, batch, head + i}; }
    // The one that this thread looks at next; the last has none, and gives another thread's, or itself.
    Head next() const {
      const bool same = head + 1 < heads.sizes.heads;
      const int64_t sample = same ? batch : std::min(batch + 1, heads.sizes.batch - 1);
      return {heads, call, scratch, sample, same ? head + 1 : 0};
    }
    // The rows of an input that are the queries', or the keys'.
    cpu::Rows<const T> of_queries(int i, int64_t width) const { return input(i, heads.sizes.queries, width); }
    cpu::Rows<const T> of_keys(int i, int64_t width) const { return input(i, heads.sizes.keys, width); }

    cpu::Rows<const T> input(int i, int64_t count, int64_t width) const { return rows(call.input<T>(i), count, width); }
    cpu::Rows<T> output(int i, int64_t count, int64_t width) const { return rows(call.output<T>(i), count, width); }
    // Of query `i` among all queries of all heads.
    int64_t query_index(int64_t i) const { return (batch * heads.sizes.heads + head) * heads.sizes.queries + i; }

   private:
    template <class U>
    cpu::Rows<U> rows(U* base, int64_t count, int64_t width) const {
      const int64_t all = heads.sizes.heads;
      return {base + (batch * count * all + head) * width, count, width, all * width};
    }
  };

  // Calls run(Head) for every head, shared between threads.
  template <class Run>
  void for_each(const LaunchCall& call, const Run& run) const {
    for_neighbours(call, [&](const Head& first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) run(first.neighbour(i));
    });
  }
  // Calls run(Head, count) for as many heads of a sample from there on as a thread has.
  template <class Run>
  void for_neighbours(const LaunchCall& call, const Run& run) const {
    const int64_t heads = sizes.batch * sizes.heads;
    cpu::parallel_for(parts_, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        T* scratch = static_cast<T*>(call.scratch) + part * scratch_count_;
        const int64_t end = heads * (part + 1) / parts_;
        for (int64_t i = heads * part / parts_, count = 0; i < end; i += count) {
          const int64_t head = i % sizes.heads;
          count = std::min(end - i, sizes.heads - head);
          run(Head{*this, call, scratch, i / sizes.heads, head}, count);
        }
      }
    });
  }

  // Makes weights of a query's scores.
  void weigh(const Head& head, int64_t query, int64_t keys, T* row) const {
    const int64_t n = std::min(keys, select.keys_of(query, sizes.keys));
    select.mask_row(head.call.template input<int8_t>(kMask), head.batch, head.head, query, n, row);
    const T top = cpu::largest(row, n);
    const T shift = top > -std::numeric_limits<T>::infinity() ? top : T(0);
    const double sum = cpu::exponentials(row, n, shift, row);
    head.call.template output<T>(1)[head.query_index(query)] = static_cast<T>(shift + std::log(sum));
    const T scale = sum == 0 ? T(0) : static_cast<T>(select.kept_scale / sum);  // 0: nothing may be looked at
    if (select.dropped) {
      drop_row(head.call.template input<int8_t>(kKept) + head.query_index(query) * sizes.keys, n, scale, row);
    } else {
      for (int64_t j = 0; j < n; ++j) row[j] *= scale;
    }
    std::fill(row + n, row + keys, T(0));
  }

  // A piece of scratch for `rows` rows; gives its place in a thread's scratch.
  int64_t reserve(int64_t rows, int64_t width) {
    const int64_t place = scratch_count_;
    scratch_count_ = checked_sum(place, checked_product(std::max<int64_t>(rows, 1), cpu::row_step(width)));
    return place;
  }
  int64_t scratch_bytes() const {
    return checked_product(parts_, checked_product(scratch_count_, static_cast<int64_t>(sizeof(T))));
  }

  // ---- products, which round their factors where they are made in tiles ------------------------------------------

  // The second factor of some: its rows, as copy_rows and copy_transposed lay them, and what tiles read of them.
  struct Factor {
    const T* rows;
    int64_t step;
    cpu::PackedRight packed;
  };
  // Places for what is packed of such a factor, and of any first factor: rows of a block, or of all keys across a
  // block.
  int64_t reserve_factor(int64_t inner, int64_t columns) {
    return in_tiles ? reserve(1, cpu::packed_right_floats(inner, columns)) : 0;
  }
  int64_t reserve_first() {
    const int64_t of_block = cpu::packed_left_floats(block, std::max({sizes.keys, sizes.width, sizes.value_width}));
    return in_tiles ? reserve(1, std::max(of_block, cpu::packed_left_floats(sizes.keys, block))) : 0;
  }
  Factor factor(const T* rows, int64_t inner, int64_t columns, T* packed) const {
    Factor made{rows, cpu::row_step(columns), {}};
    if constexpr (std::is_same_v<T, float>)
      if (in_tiles) made.packed = cpu::pack_right(inner, columns, rows, made.step, packed);
    return made;
  }
  // The product has no b yet.
  void multiply(cpu::SmallProduct<T> product, const Factor& b, T* packed_first) const {
    product.b = b.rows;
    product.b_row = b.step;
    if constexpr (std::is_same_v<T, float>)
      if (in_tiles) return cpu::multiply(product, b.packed, packed_first);
    cpu::multiply(product);
  }

  const Sizes sizes;
  const Selection select;
  const T scale;
  const bool in_tiles;
  const int64_t block;

 private:
  int64_t parts_;
  int64_t scratch_count_ = 0;
};

}  // namespace moonflow::attention
