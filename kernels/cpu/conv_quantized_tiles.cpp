// The sums of a convolution of bytes in the tile registers of AMX: 16 neighbours of a row by 16 filters and 64 channels
// in one instruction. Both factors lie as they do for narrower registers: four bytes are a column of a tile.
#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/conv_quantized_parts.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_SIMD_VERSIONS
namespace {

using namespace amx;  // its tiles, by name

constexpr int64_t kLanes = kRows, kTileBytes = kRows * kRowBytes;

// A row of the result in pieces of one height, of which the last two may overlap.
struct Pieces {
  int64_t count, height, last;

  explicit Pieces(int64_t width)
      : count(divide_up(width, kRows)), height(divide_up(width, count)), last(width - height) {}
  int64_t begin(int64_t i) const { return std::min(i * height, last); }
};

// One piece or two by one block or two. Sums become (pieces, places, blocks, lanes).
template <bool kBelow, bool kBeside>
void sum_pieces(const ByteConv& work, const char* upper, const char* lower, int64_t height, const char* filter,
                int32_t* sums) {
  const int64_t step = work.sizes.conv.windows[1].stride * work.image.place_bytes();
  const int64_t beside = work.filter.block_bytes();
  zero_four_sums();
  for (const int64_t run : work.runs) {
    for (int64_t k = 0; k < work.run_bytes; k += kRowBytes, filter += kTileBytes) {
      load<kLeft>(upper + run + k, step);
      load<kRight>(filter, kRowBytes);
      multiply_bytes<kSum, kLeft, kRight>();
      if constexpr (kBeside) {
        load<kRightNext>(filter + beside, kRowBytes);
        multiply_bytes<kSumRight, kLeft, kRightNext>();
      }
      if constexpr (kBelow) {
        load<kLeftBelow>(lower + run + k, step);
        multiply_bytes<kSumBelow, kLeftBelow, kRight>();
        if constexpr (kBeside) multiply_bytes<kSumBelowRight, kLeftBelow, kRightNext>();
      }
    }
  }
  constexpr int64_t kPitch = (kBeside ? 2 : 1) * kLanes;
  store<kSum>(sums, kPitch * 4);
  if constexpr (kBeside) store<kSumRight>(sums + kLanes, kPitch * 4);
  if constexpr (kBelow) {
    store<kSumBelow>(sums + height * kPitch, kPitch * 4);
    if constexpr (kBeside) store<kSumBelowRight>(sums + height * kPitch + kLanes, kPitch * 4);
  }
}

}  // namespace

bool byte_tiles_fit(const ByteConv& work) {
  constexpr int64_t kLeastHeight = 4;
  return has_tiles() && __builtin_cpu_supports("amx-int8") && work.filter.terms == 4 && !work.sizes.is_depthwise() &&
         work.run_bytes % kRowBytes == 0 && work.width() >= kLeastHeight;
}

void multiply_tiles(const ByteConv& work, const ByteFactors& factors, const ByteShare& share) {
  const int64_t row = work.is_flat ? share.last_place - share.first_place : work.width();
  const Pieces pieces(row);
  configure(four_sums(pieces.height, pieces.height));
  const int64_t of_group = work.filter.group_blocks(), filters = work.filter.group_filters();
  const int64_t all = (share.last_place - share.first_place) / row * pieces.count;
  alignas(kAlignment) int32_t sums[2 * kRows * 2 * kLanes];
  for (int64_t block = share.first_block, taken; block < share.last_block; block += taken) {
    taken = block + 1 < share.last_block && (block + 1) % of_group != 0 ? 2 : 1;
    const int64_t group = block / of_group, begin = block % of_group * kLanes;
    const char* const images = factors.images + share.image * work.image.image_bytes() + group * work.image.channels;
    const char* const filter = factors.filter + block * work.filter.block_bytes();
    char* const out = factors.out + share.image * work.out_image + (group * filters + begin) * work.out_channel;
    const auto place = [&](int64_t piece) {
      return share.first_place + piece / pieces.count * row + pieces.begin(piece % pieces.count);
    };
    for (int64_t piece = 0; piece < all; piece += 2) {
      const int64_t count = std::min<int64_t>(2, all - piece);
      const char* const upper = images + work.window(place(piece));
      const char* const lower = count == 2 ? images + work.window(place(piece + 1)) : nullptr;
      const auto sum = [&](auto sum_them) { sum_them(work, upper, lower, pieces.height, filter, sums); };
      if (count == 2) taken == 2 ? sum(sum_pieces<true, true>) : sum(sum_pieces<true, false>);
      if (count == 1) taken == 2 ? sum(sum_pieces<false, true>) : sum(sum_pieces<false, false>);
      stand_alone(Register<16>(), [&] {
        for (int64_t i = 0; i < count; ++i)
          end_sums<Register<16>>(work, factors.ends, sums + i * pieces.height * taken * kLanes,
                                 work.window_sum(share.image, group, place(piece + i)), pieces.height, taken, block,
                                 filters - begin, out + place(piece + i) * work.out_place);
      });
    }
  }
  release();
}

#else

bool byte_tiles_fit(const ByteConv&) { return false; }
void multiply_tiles(const ByteConv&, const ByteFactors&, const ByteShare&) {}

#endif

}  // namespace moonflow::cpu
