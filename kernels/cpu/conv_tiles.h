// What convolutions in the tile registers of AMX share.
#pragma once

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/bfloat16_pairs.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_pool.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/rounding.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

constexpr int64_t kBlock = Blocks::kLanes;
constexpr int64_t kDepth = 2 * kBlock;                 // bfloat16 in a row of a tile
constexpr int64_t kTile = kBlock * kDepth;             // in a whole one
constexpr int64_t kPlace = sizeof(uint16_t) * kDepth;  // bytes of a row

constexpr double kSaving = 10;  // of the time that float32 takes

// How an axis of an image is packed. Windows with a stride read places that are so far apart, so the image is packed
// in `phases`, each of which has every stride-th place with its border: there neighbouring windows read neighbours, and
// a tap is a distance again.
struct PackedAxis {
  int64_t phases, stride, before;  // before: padding

  struct Range {
    int64_t first, last;
  };
  // The place of the image that is place p of a phase.
  int64_t place(int64_t phase, int64_t p) const { return p * stride + phase - before; }
  // Which of the first `count` places of a phase lie in an image of `size`.
  Range inside(int64_t phase, int64_t size, int64_t count) const {
    const int64_t border = std::max<int64_t>(0, before - phase), end = std::max<int64_t>(0, size + before - phase);
    const int64_t first = std::min(divide_up(border, stride), count);
    return {first, std::clamp(divide_up(end, stride), first, count)};
  }
};

// Where a tap finds what it meets, from the place of its window on.
struct TapPlace {
  int64_t tap, phase, distance;
};

inline PackedAxis packed_axis(const Window& window) {
  return {std::min(window.stride, (window.size - 1) * window.dilation + 1), window.stride, window.before};
}
inline TapPlace tap_place(const Window& window, int64_t tap) {
  return {tap, tap * window.dilation % window.stride, tap * window.dilation / window.stride};
}

// Row y of a block of channels as it was before pooling. `size` has the height and width from then, and the steps of
// what is there.
inline void unpool_row(const float* gradients, const uint8_t* places, const Blocks& size, int64_t y, float* row) {
  stand_alone(Register<kBlock>(), [&] {
    using R = Register<kBlock>;
    for (int64_t x = 0; x < size.width; x += 2) {
      typename R::Integers place;
      R::widen(places + x / 2 * size.column, place);
      const typename R::Vector gradient = R::at(gradients + x / 2 * size.column);
      for (int right = 0; right < 2; ++right) {
        typename R::Vector passed;
        pass_to_place<R>(gradient, place, static_cast<int>(y % 2 * 2 + right), passed);
        R::at(row + (x + right) * kBlock) = passed;
      }
    }
  });
}

}  // namespace moonflow::cpu

#endif
