// What convolutions in the tile registers of AMX share.
#pragma once

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
