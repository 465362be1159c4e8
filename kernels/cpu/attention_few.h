// Attention of a few queries, as of a text that grows word by word, whose heads may share keys. It takes as long as
// memory needs to give keys and values, each once, so they are read where they lie: a row of all heads that a thread
// has, then the next. To lay them out anew would take longer than all else.
#pragma once

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/dots.h"

namespace moonflow::attention {

template <class T>
class Few {
 public:
  static constexpr int64_t kMost = 4;  // queries

  explicit Few(KernelCall& call)
      : heads_(call, call.inputs[kQuery].shape, call.inputs[kValue].shape),
        query_(heads_.reserve(sizes().queries * sizes().heads, sizes().width)),
        weights_(heads_.reserve(sizes().queries * sizes().heads, sizes().keys)) {
    call.scratch_bytes = heads_.scratch_bytes();
  }

  void operator()(const LaunchCall& call) const {
    // Heads with masks of their own see keys of their own.
    const bool see_the_same = heads_.select.mask_steps[1] == 0;
    heads_.for_neighbours(call, [&](const Head& first, int64_t count) {
      const int64_t together = see_the_same ? count : 1;
      for (int64_t h = 0; h < count; h += together) run(first.neighbour(h), together);
    });
  }

 private:
  using Head = typename Heads<T>::Head;
  static constexpr int kTile = 8;  // keys

  const Sizes& sizes() const { return heads_.sizes; }
  T* weights_of(const Head& first, int64_t h, int64_t i) const {
    return first.scratch + weights_ + (h * sizes().queries + i) * cpu::row_step(sizes().keys);
  }

  void run(const Head& first, int64_t count) const {
    // Behind the place in a text that grows word by word there is room for more, which is passed over.
    const auto* const mask = first.call.template input<int8_t>(kMask);
    const int64_t seen = heads_.select.keys_in_sight(mask, first.batch, first.head, sizes());
    const int64_t keys = heads_.select.keys_before(sizes().queries, seen);
    cpu::widest_register([&](auto wide) {
      using R = cpu::Holding<T, decltype(wide)>;
      score<R>(first, count, keys);
      for (int64_t h = 0; h < count; ++h)
        for (int64_t i = 0; i < sizes().queries; ++i)
          heads_.weigh(first.neighbour(h), i, keys, weights_of(first, h, i));
      combine<R>(first, count, keys);
    });
  }

  // Calls use(kKeys, j) for tiles of keys, and then one by one.
  template <class Use>
  static void in_tiles(int64_t keys, const Use& use) {
    int64_t j = 0;
    for (; j + kTile <= keys; j += kTile) use(std::integral_constant<int, kTile>(), j);
    for (; j < keys; ++j) use(std::integral_constant<int, 1>(), j);
  }
  // Calls use(kRows, i) for pairs of queries, and one that is left.
  template <class Use>
  void in_pairs(const Use& use) const {
    int64_t i = 0;
    for (; i + 2 <= sizes().queries; i += 2) use(std::integral_constant<int, 2>(), i);
    if (i < sizes().queries) use(std::integral_constant<int, 1>(), i);
  }

  // Of a query, as of a key or value, the parts for neighbouring heads lie side by side.
  template <class R>
  void score(const Head& first, int64_t count, int64_t keys) const {
    const int64_t width = sizes().width, row = count * width;
    const cpu::Rows<const T> key = first.of_keys(kKey, width), given = first.of_queries(kQuery, width);
    T* const query = first.scratch + query_;
    for (int64_t i = 0; i < sizes().queries; ++i)
      for (int64_t c = 0; c < row; ++c) query[i * row + c] = heads_.scale * given.row(i)[c];
    in_tiles(keys, [&](auto tile, int64_t j) {
      for (int64_t h = 0; h < count; ++h) {
        in_pairs([&](auto rows, int64_t i) {
          constexpr int kPart = std::min<int>(tile, 8 / rows);
          for (int part = 0; part < tile; part += kPart) {
            T scores[rows * kPart];
            cpu::dots<R, rows, kPart, 1>(width, query + i * row + h * width, row, key.row(j + part) + h * width,
                                         key.step, scores);
            for (int r = 0; r < rows; ++r)
              std::copy_n(scores + r * kPart, kPart, weights_of(first, h, i + r) + j + part);
          }
        });
      }
    });
  }

  template <class R>
  void combine(const Head& first, int64_t count, int64_t keys) const {
    const int64_t width = sizes().value_width;
    const cpu::Rows<const T> value = first.of_keys(kValue, width);
    const cpu::Rows<T> out = first.output(0, sizes().queries, width);
    for (int64_t i = 0; i < sizes().queries; ++i) std::fill_n(out.row(i), count * width, T(0));
    in_tiles(keys, [&](auto tile, int64_t j) {
      for (int64_t h = 0; h < count; ++h) {
        in_pairs([&](auto rows, int64_t i) {
          add_values<R, rows, tile>({value.row(j) + h * width, tile, width, value.step}, weights_of(first, h, i) + j,
                                    {out.row(i) + h * width, rows, width, out.step});
        });
      }
    });
  }

  // Adds kKeys values times their weights to the results of kRows queries.
  template <class R, int kRows, int kKeys>
  void add_values(const cpu::Rows<const T>& value, const T* weights, const cpu::Rows<T>& out) const {
    const int64_t step = cpu::row_step(sizes().keys);
    int64_t c = 0;
    for (; c + R::kWidth <= value.width; c += R::kWidth) {
      typename R::Vector sums[kRows];
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) sums[r] = R::at(out.row(r) + c);
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j) {
        const typename R::Vector numbers = R::at(value.row(j) + c);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sums[r] += weights[r * step + j] * numbers;
      }
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) R::at(out.row(r) + c) = sums[r];
    }
    for (; c < value.width; ++c)
      for (int r = 0; r < kRows; ++r)
        for (int j = 0; j < kKeys; ++j) out.row(r)[c] += weights[r * step + j] * value.row(j)[c];
  }

  Heads<T> heads_;
  const int64_t query_, weights_;  // places in the scratch
};

}  // namespace moonflow::attention
