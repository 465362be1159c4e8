// A convolution of bytes by direct sums. A tile of some places by one or two registers of filters stays in registers
// while taps and channels run: for each four bytes of a place, which all lanes get, there is one instruction for each
// of the registers. An image has around it what its windows see beyond its edges, so a tap is the same way from any
// place. Sums are whole numbers, so they do not depend on the order, nor on the instructions there are.
#include "kernels/cpu/conv_quantized.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_quantized_parts.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/marked_layout.h"
#include "kernels/cpu/words.h"

namespace moonflow::cpu {
namespace {

// ---- four bytes at a time ------------------------------------------------------------------------------------------

// What can be said of a register of them in either form: words, in any register.
template <class R>
struct InWords {
  using Vector = typename Words<R>::Vector;
  using Stored = typename Words<R>::Stored;
  using Sums = typename R::Integers;

  static void add_products(const Vector& x, const Vector& filter, Sums& sums) {
    Words<R>::add_products(x, filter, sums);
  }
  // Words, each with the sign behind it.
  static void spread(const char* from, Vector& to) {
    const int16_t* const words = reinterpret_cast<const int16_t*>(from);
    Sums wide;
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth > 4) {
      asm("vpmovsxwd %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const Half*>(words)));
      to = Vector(wide);
      return;
    }
#endif
    for (int lane = 0; lane < R::kWidth; ++lane) wide[lane] = words[lane];
    std::memcpy(&to, &wide, sizeof to);
  }

 private:
  typedef int16_t Half __attribute__((vector_size(2 * R::kWidth), may_alias, aligned(2)));
};

#ifdef MOONFLOW_SIMD_VERSIONS
// Bytes, x without signs and filters with them, where has_byte_products().
struct InBytes {
  using R = Register<16>;
  using Vector = R::Integers;
  using Stored = R::StoredIntegers;
  using Sums = R::Integers;

  static void add_products(const Vector& x, const Vector& filter, Sums& sums) {
    Sums next = sums;  // what an instruction here changes itself, GCC leaves in memory
    asm("vpdpbusd %2, %1, %0" : "+v"(next) : "v"(x), "v"(filter));
    sums = next;
  }
  // Bytes, each with zeros behind it.
  static void spread(const char* from, Vector& to) { R::widen(reinterpret_cast<const uint8_t*>(from), to); }
};
#endif

// The same four bytes in all lanes.
template <class R, class Vector>
inline void repeat(const char* from, Vector& to) {
  typedef int32_t Four __attribute__((may_alias, aligned(1)));
#ifdef MOONFLOW_SIMD_VERSIONS
  if constexpr (R::kWidth > 4) {
    asm("vpbroadcastd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Four*>(from)));
    return;
  }
#endif
  const typename R::Integers all = typename R::Integers{} + *reinterpret_cast<const Four*>(from);
  std::memcpy(&to, &all, sizeof to);
}

// ---- of all channels of a group ------------------------------------------------------------------------------------

// As many places as registers hold sums beside two of filters, and as have a pointer each.
template <class R>
constexpr int kMostPlaces = R::kCount == 32 ? 8 : 6;

template <class M, class R, int kPlaces, int kBlocks>
inline void sum_places(const ByteConv& work, const char* const* windows, const char* filter, int32_t* stored) {
  const int64_t block_bytes = work.filter.block_bytes();
  typename R::Integers sums[kPlaces][kBlocks] = {};
  for (const int64_t run : work.runs) {
    const char* at[kPlaces];
#pragma GCC unroll 16
    for (int p = 0; p < kPlaces; ++p) at[p] = windows[p] + run;
    for (int64_t k = 0; k < work.run_bytes; k += kGroupBytes, filter += sizeof(typename R::Vector)) {
      typename M::Vector factors[kBlocks];
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) {
        typename M::Vector factor = *reinterpret_cast<const typename M::Stored*>(filter + b * block_bytes);
        MOONFLOW_IN_REGISTER(factor);
        factors[b] = factor;
      }
#pragma GCC unroll 16
      for (int p = 0; p < kPlaces; ++p) {
        typename M::Vector x;
        repeat<R>(at[p] + k, x);
#pragma GCC unroll 2
        for (int b = 0; b < kBlocks; ++b) M::add_products(x, factors[b], sums[p][b]);
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b)
      *reinterpret_cast<typename R::StoredIntegers*>(stored + (p * kBlocks + b) * R::kWidth) = sums[p][b];
  }
}

// So many neighbouring places by so many blocks of a group.
template <class M, class R, int kPlaces, int kBlocks>
void multiply_tile(const ByteConv& work, const ByteFactors& factors, int64_t image, int64_t place, int64_t block) {
  const int64_t group = block / work.filter.group_blocks(), in_group = block % work.filter.group_blocks();
  const char* const from =
      factors.images + image * work.image.image_bytes() + group * work.image.channels * work.image.element;
  const char* windows[kPlaces];
  work.windows(from, place, windows);
  alignas(kAlignment) int32_t sums[kPlaces * kBlocks * R::kWidth];
  sum_places<M, R, kPlaces, kBlocks>(work, windows, factors.filter + block * work.filter.block_bytes(), sums);
  const int64_t filters = work.filter.group_filters(), first = in_group * R::kWidth;
  end_sums<R>(
      work, factors.ends, sums, kPlaces, kBlocks, block, filters - first,
      factors.out + image * work.out_image + place * work.out_place + (group * filters + first) * work.out_channel);
}

template <class M, class R, int kBlocks>
void multiply_blocks(const ByteConv& work, const ByteFactors& factors, const ByteShare& share, int64_t block) {
  const int64_t count = share.last_place - share.first_place, tiles = divide_up(count, kMostPlaces<R>);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = count * tile / tiles, places = count * (tile + 1) / tiles - first;
    with_count<kMostPlaces<R>>(places, [&](auto number) {
      stand_alone(R(), [&] {
        multiply_tile<M, R, decltype(number)::value, kBlocks>(work, factors, share.image, share.first_place + first,
                                                              block);
      });
    });
  }
}

template <class M, class R>
void multiply(const ByteConv& work, const ByteFactors& factors, const ByteShare& share) {
  const int64_t of_group = work.filter.group_blocks();
  for (int64_t block = share.first_block, taken; block < share.last_block; block += taken) {
    taken = block + 1 < share.last_block && (block + 1) % of_group != 0 ? 2 : 1;
    taken == 2 ? multiply_blocks<M, R, 2>(work, factors, share, block)
               : multiply_blocks<M, R, 1>(work, factors, share, block);
  }
}

// ---- of each channel -----------------------------------------------------------------------------------------------

template <class M, class R, int kPlaces>
void multiply_each_tile(const ByteConv& work, const ByteFactors& factors, int64_t image, int64_t place, int64_t block) {
  const char* const from = factors.images + image * work.image.image_bytes() + block * R::kWidth * work.image.element;
  const char* windows[kPlaces];
  typename R::Integers sums[kPlaces];
  work.windows(from, place, windows);
#pragma GCC unroll 16
  for (int p = 0; p < kPlaces; ++p) sums[p] = typename R::Integers{};
  const char* filter = factors.filter + block * work.filter.block_bytes();
  for (const int64_t tap : work.runs) {
    const typename M::Vector taps = *reinterpret_cast<const typename M::Stored*>(filter);
    filter += sizeof taps;
#pragma GCC unroll 16
    for (int p = 0; p < kPlaces; ++p) {
      typename M::Vector x;
      M::spread(windows[p] + tap, x);
      M::add_products(x, taps, sums[p]);
    }
  }
  alignas(kAlignment) int32_t stored[kPlaces * R::kWidth];
#pragma GCC unroll 16
  for (int p = 0; p < kPlaces; ++p) *reinterpret_cast<typename R::StoredIntegers*>(stored + p * R::kWidth) = sums[p];
  const int64_t first = block * R::kWidth;
  end_sums<R>(work, factors.ends, stored, kPlaces, 1, block, work.filter.filters - first,
              factors.out + image * work.out_image + place * work.out_place + first * work.out_channel);
}

template <class M, class R>
void multiply_each(const ByteConv& work, const ByteFactors& factors, const ByteShare& share) {
  for (int64_t block = share.first_block; block < share.last_block; ++block) {
    for (int64_t place = share.first_place, taken; place < share.last_place; place += taken) {
      taken = std::min<int64_t>(kMostPlaces<R>, share.last_place - place);
      with_count<kMostPlaces<R>>(taken, [&](auto number) {
        stand_alone(
            R(), [&] { multiply_each_tile<M, R, decltype(number)::value>(work, factors, share.image, place, block); });
      });
    }
  }
}

// ---- shares --------------------------------------------------------------------------------------------------------

template <class M, class R>
void multiply_share(const ByteConv& work, const ByteFactors& factors, const ByteShare& share) {
  work.depthwise ? multiply_each<M, R>(work, factors, share) : multiply<M, R>(work, factors, share);
}

void multiply_share(const ByteConv& work, const ByteFactors& factors, const ByteShare& share) {
  if (work.in_tiles) return multiply_tiles(work, factors, share);
  widest_register([&](auto wide) {
    using R = decltype(wide);
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (R::kWidth == 16) {
      if (work.filter.terms == 4) return multiply_share<InBytes, R>(work, factors, share);
    }
#endif
    multiply_share<InWords<R>, R>(work, factors, share);
  });
}

// Rows of the results that all filters meet together, as their images stay in the second cache.
int64_t rows_together(const ByteConv& work) {
  constexpr int64_t kNear = 1 << 18;
  const int64_t down = work.sizes.conv.windows[0].stride * work.image.row_bytes();
  return std::max<int64_t>(1, kNear / std::max<int64_t>(1, down));
}

// Each thread has rows of the images, or blocks of filters where those are more to read.
void multiply_all(const ByteConv& work, const ByteFactors& factors) {
  const ImageSize& out = work.sizes.conv.out;
  const int64_t blocks = work.filter.blocks(), rows = out.batch * out.height, together = rows_together(work);
  const auto share_rows = [&](int64_t first, int64_t last, int64_t first_block, int64_t last_block) {
    for (int64_t row = first, taken; row < last; row += taken) {
      const int64_t image = row / out.height, y = row % out.height;
      taken = std::min({together, last - row, out.height - y});
      multiply_share(work, factors, {image, y * out.width, (y + taken) * out.width, first_block, last_block});
    }
  };
  const bool by_blocks = blocks * work.filter.block_bytes() > out.batch * work.image.image_bytes();
  const int64_t count = by_blocks ? divide_up(blocks, 2) : rows;
  const int64_t parts = conv_parts(work.sizes.conv, 4), grain = std::max<int64_t>(1, count / parts);
  parallel_for(count, parts == 1 ? count + 1 : grain, [&](int64_t first, int64_t last) {
    by_blocks ? share_rows(0, rows, 2 * first, std::min(blocks, 2 * last)) : share_rows(first, last, 0, blocks);
  });
}

// ---- the launch ----------------------------------------------------------------------------------------------------

ByteConv work_of(const QuantizedConv& sizes, const KernelCall& call) {
  const Conv& conv = sizes.conv;
  const PackedFilter filter = packed_filter(conv);
  const SeenImage image(sizes, filter,
                        *channel_form(call.inputs[0], call.input_layouts[0], conv.format.channel_axis()));
  ByteConv work{sizes, filter, image, is_depthwise(conv), {}, 0, call.has(3), 0, 0, 0, false};
  const Window &down = conv.windows[0], &across = conv.windows[1];
  const bool in_rows = !work.depthwise && across.dilation == 1 && image.groups == 1;
  for (int64_t i = 0; i < down.size; ++i)
    for (int64_t j = 0; j < (in_rows ? 1 : across.size); ++j)
      work.runs.push_back(i * down.dilation * image.row_bytes() + j * across.dilation * image.place_bytes());
  work.run_bytes = (in_rows ? across.size : 1) * image.channels * image.element;
  const bool last = conv.format.channels_last || !call.output_layouts[0].row_major();
  work.out_place = work.out_size() * (last ? conv.filters() : 1);
  work.out_channel = work.out_size() * (last ? 1 : work.places());
  work.out_image = work.out_size() * conv.filters() * work.places();
  work.in_tiles = byte_tiles_fit(work);
  return work;
}

// In what whole blocks have room for.
ByteEnds ends_of(const ByteConv& work, const LaunchCall& call, const void* filter, char* scratch) {
  const PackedFilter& form = work.filter;
  const int32_t* const sums = static_cast<const int32_t*>(filter);
  int32_t* const zeros = reinterpret_cast<int32_t*>(scratch);
  float* const scales = reinterpret_cast<float*>(scratch + form.sums_bytes());
  float* const biases = reinterpret_cast<float*>(scratch + 2 * form.sums_bytes());
  // Words have their zero point taken away already.
  const int32_t zero = form.terms == 4 ? static_cast<int32_t>(work.sizes.unsigned_zero()) : 0;
  std::memset(scratch, 0, 3 * form.sums_bytes());
  for (int64_t f = 0; f < form.filters; ++f) {
    const int64_t at = form.padded(f);
    // A sum without the zero point may need a bit more than 32, in which it comes out all the same.
    zeros[at] = static_cast<int32_t>(static_cast<uint32_t>(zero) * static_cast<uint32_t>(sums[at]));
    scales[at] = call.input<float>(2)[f];
    biases[at] = work.has_bias ? call.input<float>(3)[f] : 0;
  }
  return {zeros, scales, biases};
}

}  // namespace

void quantized_conv_layouts(const QuantizedConv& sizes, LayoutCall& call) {
  const Conv& conv = sizes.conv;
  const std::optional<ChannelForm> form = channel_form(call.input_types[0], call.inputs[0], conv.format.channel_axis());
  const Layout image = form ? call.inputs[0] : Layout{};
  std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  call.inputs[0] = image;
  const PackedFilter filter = packed_filter(conv);
  call.inputs[1] = marked_layout(filter, filter.bytes());
  const bool in_rows = !call.taken.empty() && call.taken[0] && call.taken[0]->row_major();
  call.outputs[0] = in_rows ? Layout{} : channels_last(call.output_types[0], conv.format);
}

Launch quantized_conv(const QuantizedConv& sizes, KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const ByteConv work = work_of(sizes, call);
  const bool packs = call.input_layouts[1].row_major();
  const Launch pack = packs ? quantized_filter(marked_layout(work.filter, work.filter.bytes())) : Launch{};
  const int64_t ends_bytes = 3 * work.filter.sums_bytes(), filter_bytes = packs ? aligned(work.filter.bytes()) : 0;
  const int64_t image_bytes = work.image.is_given ? 0 : sizes.conv.image.batch * work.image.image_bytes();
  call.scratch_bytes = ends_bytes + filter_bytes + image_bytes;
  return [=](const LaunchCall& at) {
    char* const scratch = static_cast<char*>(at.scratch);
    void* filter = at.inputs[1];
    if (pack) {
      filter = scratch + ends_bytes;
      pack({at.stream, &at.inputs[1], &filter, nullptr});
    }
    char* const images = work.image.is_given ? static_cast<char*>(at.inputs[0]) : scratch + ends_bytes + filter_bytes;
    see_images(work.sizes, work.image, at.input<uint8_t>(0), images);
    const ByteEnds ends = ends_of(work, at, filter, scratch);
    multiply_all(work, {images, static_cast<const char*>(filter) + work.filter.sums_bytes(), ends, at.output<char>(0)});
  };
}

}  // namespace moonflow::cpu
