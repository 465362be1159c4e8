// Attention of a single query, as of a text that grows word by word. It takes as long as memory needs to give keys and
// values, each once, so they are read where they lie: a row of all heads that a thread has, then the next.
#pragma once

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/dots.h"

namespace moonflow::attention {

template <class T>
class Single {
 public:
  explicit Single(KernelCall& call)
      : heads_(call, call.inputs[kQuery].shape, call.inputs[kValue].shape),
        query_(heads_.reserve(sizes().heads, sizes().width)),
        weights_(heads_.reserve(sizes().heads, sizes().keys)) {
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
  T* weights_of(const Head& first, int64_t h) const {
    return first.scratch + weights_ + h * cpu::row_step(sizes().keys);
  }

  void run(const Head& first, int64_t count) const {
    // Behind the place in a text that grows word by word there is room for more, which is passed over.
    const auto* const mask = first.call.template input<int8_t>(kMask);
    const int64_t seen = heads_.select.keys_in_sight(mask, first.batch, first.head, sizes());
    const int64_t keys = heads_.select.keys_before(1, seen);
    cpu::widest_register([&](auto wide) {
      using R = cpu::Holding<T, decltype(wide)>;
      score<R>(first, count, keys);
      for (int64_t h = 0; h < count; ++h) heads_.weigh(first.neighbour(h), 0, keys, weights_of(first, h));
      combine<R>(first, count, keys);
    });
  }

  // Queries and results of neighbouring heads lie side by side, as their parts of a key or value do.
  template <class R>
  void score(const Head& first, int64_t count, int64_t keys) const {
    const int64_t width = sizes().width;
    const cpu::Rows<const T> key = first.of_keys(kKey, width);
    T* const query = first.scratch + query_;
    const T* const given = first.of_queries(kQuery, width).data;
    for (int64_t c = 0; c < count * width; ++c) query[c] = heads_.scale * given[c];
    int64_t j = 0;
    for (; j + kTile <= keys; j += kTile) {
      for (int64_t h = 0; h < count; ++h)
        cpu::dots<R, 1, kTile, 1>(width, query + h * width, 0, key.row(j) + h * width, key.step,
                                  weights_of(first, h) + j);
    }
    for (; j < keys; ++j) {
      for (int64_t h = 0; h < count; ++h)
        cpu::dots<R, 1, 1, 1>(width, query + h * width, 0, key.row(j) + h * width, key.step, weights_of(first, h) + j);
    }
  }

  template <class R>
  void combine(const Head& first, int64_t count, int64_t keys) const {
    const int64_t width = sizes().value_width;
    const cpu::Rows<const T> value = first.of_keys(kValue, width);
    T* const out = first.output(0, 1, width).data;
    std::fill_n(out, count * width, T(0));
    int64_t j = 0;
    for (; j + kTile <= keys; j += kTile) {
      for (int64_t h = 0; h < count; ++h)
        add_values<R, kTile>(value, j, h * width, weights_of(first, h) + j, out + h * width);
    }
    for (; j < keys; ++j) {
      for (int64_t h = 0; h < count; ++h)
        add_values<R, 1>(value, j, h * width, weights_of(first, h) + j, out + h * width);
    }
  }

  // Adds kCount values from `j` on, whose parts for a head begin `at`, times their weights.
  template <class R, int kCount>
  static void add_values(const cpu::Rows<const T>& value, int64_t j, int64_t at, const T* weights, T* out) {
    int64_t c = 0;
    for (; c + R::kWidth <= value.width; c += R::kWidth) {
      typename R::Vector sum = R::at(out + c);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum += weights[i] * R::at(value.row(j + i) + at + c);
      R::at(out + c) = sum;
    }
    for (; c < value.width; ++c)
      for (int i = 0; i < kCount; ++i) out[c] += weights[i] * value.row(j + i)[at + c];
  }

  Heads<T> heads_;
  const int64_t query_, weights_;  // places in the scratch
};

}  // namespace moonflow::attention
