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
      work, factors.ends, sums, work.window_sum(image, group, place), kPlaces, kBlocks, block, filters - first,
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
  end_sums<R>(work, factors.ends, stored, 0, kPlaces, 1, block, work.filter.filters - first,
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
  work.sizes.is_depthwise() ? multiply_each<M, R>(work, factors, share) : multiply<M, R>(work, factors, share);
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

// Rows of the results, or places where all are in one, that all filters meet together, as their images stay in the
// second cache.
int64_t units_together(const ByteConv& work, int64_t unit) {
  constexpr int64_t kNear = 1 << 18;
  const int64_t bytes =
      work.is_flat ? unit * work.image.place_bytes() : work.sizes.conv.windows[0].stride * work.image.row_bytes();
  return std::max<int64_t>(1, kNear / std::max<int64_t>(1, bytes));
}

// Each thread has rows of the images, or blocks of filters where those are more to read.
void multiply_all(const ByteConv& work, const ByteFactors& factors) {
  constexpr int64_t kPlaces = 32;  // two tiles of them
  const int64_t places = work.places(), unit = work.is_flat ? kPlaces : work.width(),
                of_image = divide_up(places, unit);
  const int64_t blocks = work.filter.blocks(), units = work.sizes.conv.out.batch * of_image;
  const int64_t together = units_together(work, unit);
  const auto share_units = [&](int64_t first, int64_t last, int64_t first_block, int64_t last_block) {
    for (int64_t next = first, taken; next < last; next += taken) {
      const int64_t image = next / of_image, at = next % of_image;
      taken = std::min({together, last - next, of_image - at});
      multiply_share(work, factors, {image, at * unit, std::min(places, (at + taken) * unit), first_block, last_block});
    }
  };
  const int64_t of_images =
      work.sizes.conv.out.batch * (work.is_flat ? places * work.image.place_bytes() : work.image.image_bytes());
  const bool by_blocks = blocks * work.filter.block_bytes() > of_images;
  const int64_t count = by_blocks ? divide_up(blocks, 2) : units;
  const int64_t parts = conv_parts(work.sizes.conv, 4), grain = std::max<int64_t>(1, count / parts);
  parallel_for(count, parts == 1 ? count + 1 : grain, [&](int64_t first, int64_t last) {
    by_blocks ? share_units(0, units, 2 * first, std::min(blocks, 2 * last)) : share_units(first, last, 0, blocks);
  });
}

// ---- the launch ----------------------------------------------------------------------------------------------------

// Windows of one place see nothing of rows, nor of images where those lie one behind the other in the result too.
bool lie_flat(const Conv& conv) {
  for (const Window& window : conv.windows) {
    if (window.size != 1 || window.stride != 1 || window.before != 0 || window.out != window.in) return false;
  }
  return true;
}

Conv laid_flat(Conv conv, bool with_batch) {
  ImageSize& out = conv.out;
  out.width *= out.height * (with_batch ? out.batch : 1);
  out.height = 1;
  if (with_batch) out.batch = 1;
  conv.image = {out.batch, conv.image.channels, out.height, out.width};
  conv.windows[0].in = conv.windows[0].out = 1;
  conv.windows[1].in = conv.windows[1].out = out.width;
  return conv;
}

ByteConv work_of(const QuantizedConv& sizes, const KernelCall& call) {
  const Conv& conv = sizes.conv;
  const PackedFilter filter = packed_filter(sizes);
  const TensorType given{call.inputs[0].dtype, conv.image.shape(conv.format)};
  const SeenImage image(sizes, filter, *channel_form(given, call.input_layouts[0], conv.format.channel_axis()));
  const bool last = conv.format.channels_last || !call.output_layouts[0].row_major();
  ByteConv work{sizes, lie_flat(conv), filter, image, {}, 0, 0, 0, 0, false};
  if (work.is_flat) work.sizes.conv = laid_flat(conv, last);
  const Window &down = conv.windows[0], &across = conv.windows[1];
  const bool in_rows = !sizes.is_depthwise() && across.dilation == 1 && image.groups == 1;
  for (int64_t i = 0; i < down.size; ++i)
    for (int64_t j = 0; j < (in_rows ? 1 : across.size); ++j)
      work.runs.push_back(i * down.dilation * image.row_bytes() + j * across.dilation * image.place_bytes());
  work.run_bytes = (in_rows ? across.size : 1) * image.channels * image.element;
  work.out_place = work.out_size() * (last ? conv.filters() : 1);
  work.out_channel = work.out_size() * (last ? 1 : work.places());
  work.out_image = work.out_size() * conv.filters() * work.places();
  work.in_tiles = byte_tiles_fit(work);
  return work;
}

// The zero point of the bytes of x as uint8.
int32_t zero_of(const QuantizedConv& sizes, const LaunchCall& call) {
  if (!call.inputs[QuantizedInputs::kZero]) return static_cast<int32_t>(sizes.unsigned_zero());
  return *call.input<uint8_t>(QuantizedInputs::kZero) ^ sizes.flip();
}

template <class T>
void sum_windows(const ByteConv& work, const char* images, int32_t* sums) {
  const int64_t places = work.places(), groups = work.filter.groups, of_run = work.run_bytes / work.image.element;
  const int64_t of_window = static_cast<int64_t>(work.runs.size()) * of_run;
  parallel_for(work.sizes.conv.out.batch * groups * places, kGrain / of_window + 1, [&](int64_t first, int64_t last) {
    widest([&] {
      for (int64_t i = first; i < last; ++i) {
        const int64_t image = i / places / groups, group = i / places % groups;
        const char* const window = images + image * work.image.image_bytes() +
                                   group * work.image.channels * work.image.element + work.window(i % places);
        int32_t sum = 0;
        for (const int64_t run : work.runs) {
          const T* const from = reinterpret_cast<const T*>(window + run);
          for (int64_t k = 0; k < of_run; ++k) sum += from[k];
        }
        sums[i] = sum;
      }
    });
  });
}

// What is made of small inputs in each launch, in scratch; sums are left to sum_windows.
struct EndsPlaces {
  int64_t of_filters, of_windows;  // bytes

  EndsPlaces(const ByteConv& work, bool has_filter_zeros)
      : of_filters(work.filter.sums_bytes()),
        of_windows(has_filter_zeros ? aligned(work.window_sum(work.sizes.conv.out.batch, 0, 0) *
                                              static_cast<int64_t>(sizeof(int32_t)))
                                    : 0) {}
  int64_t bytes() const { return (of_windows > 0 ? 4 : 3) * of_filters + of_windows; }
};

// In what whole blocks have room for.
ByteEnds ends_of(const ByteConv& work, const EndsPlaces& places, bool is_scale_of_each, const LaunchCall& call,
                 int32_t zero, const void* filter, char* scratch) {
  const PackedFilter& form = work.filter;
  const int32_t* const sums = static_cast<const int32_t*>(filter);
  const auto part = [&](int i) { return scratch + i * places.of_filters; };
  int32_t* const zeros = reinterpret_cast<int32_t*>(part(0));
  int32_t* const filter_zeros = reinterpret_cast<int32_t*>(part(3));
  float *const scales = reinterpret_cast<float*>(part(1)), *const biases = reinterpret_cast<float*>(part(2));
  const float* const scale = call.input<float>(QuantizedInputs::kScale);
  const float* const bias = call.input<float>(QuantizedInputs::kBias);
  const int8_t* const given_zeros = call.input<int8_t>(QuantizedInputs::kFilterZero);
  // Words have their zero point taken away already.
  const auto taken = static_cast<uint32_t>(form.terms == 4 ? zero : 0);
  const auto of_window = static_cast<uint32_t>(work.runs.size()) * static_cast<uint32_t>(work.run_bytes);
  std::memset(scratch, 0, (given_zeros ? 4 : 3) * places.of_filters);
  const int64_t count = form.group_filters(), step = form.group_blocks() * form.lanes;
  for (int64_t first = 0, at = 0; first < form.filters; first += count, at += step) {
    if (given_zeros) std::copy_n(given_zeros + first, count, filter_zeros + at);
    if (scale && is_scale_of_each) std::copy_n(scale + first, count, scales + at);
    if (scale && !is_scale_of_each) std::fill_n(scales + at, count, *scale);
    if (bias) std::copy_n(bias + first, count, biases + at);
    widest([&] {
      // A sum without the zero points may need a bit more than 32, in which it comes out all the same.
      for (int64_t i = at; i < at + count; ++i) {
        const uint32_t of_zeros = given_zeros ? static_cast<uint32_t>(filter_zeros[i]) * of_window : 0;
        zeros[i] = static_cast<int32_t>(taken * (static_cast<uint32_t>(sums[i]) - of_zeros));
      }
    });
  }
  return {zeros, scales, biases, given_zeros ? filter_zeros : nullptr, reinterpret_cast<int32_t*>(part(4))};
}

}  // namespace

void quantized_dense_layouts(const QuantizedConv& sizes, LayoutCall& call) {
  std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  const PackedFilter filter = packed_filter(sizes);
  call.inputs[QuantizedInputs::kFilter] = marked_layout(filter, filter.bytes());
}

void quantized_conv_layouts(const QuantizedConv& sizes, LayoutCall& call) {
  const Conv& conv = sizes.conv;
  const std::optional<ChannelForm> form = channel_form(call.input_types[0], call.inputs[0], conv.format.channel_axis());
  const Layout image = form ? call.inputs[0] : Layout{};
  quantized_dense_layouts(sizes, call);
  call.inputs[0] = image;
  const bool in_rows = !call.taken.empty() && call.taken[0] && call.taken[0]->row_major();
  call.outputs[0] = in_rows ? Layout{} : channels_last(call.output_types[0], conv.format);
}

Launch quantized_conv(const QuantizedConv& sizes, KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const ByteConv work = work_of(sizes, call);
  const bool packs = call.input_layouts[1].row_major();
  const Launch pack = packs ? quantized_filter(marked_layout(work.filter, work.filter.bytes())) : Launch{};
  const bool has_filter_zeros = call.has(QuantizedInputs::kFilterZero);
  const bool is_scale_of_each = call.has(QuantizedInputs::kScale) && call.inputs[QuantizedInputs::kScale].count() > 1;
  const EndsPlaces ends_places(work, has_filter_zeros);
  const int64_t ends_bytes = ends_places.bytes(), filter_bytes = packs ? aligned(work.filter.bytes()) : 0;
  const int64_t image_bytes = work.image.is_given ? 0 : sizes.conv.image.batch * work.image.image_bytes();
  call.scratch_bytes = ends_bytes + filter_bytes + image_bytes;
  return [=](const LaunchCall& at) {
    char* const scratch = static_cast<char*>(at.scratch);
    void* filter = at.inputs[1];
    if (pack) {
      filter = scratch + ends_bytes;
      pack({at.stream, &at.inputs[1], &filter, nullptr});
    }
    const int32_t zero = zero_of(sizes, at);
    char* const images = work.image.is_given ? static_cast<char*>(at.inputs[0]) : scratch + ends_bytes + filter_bytes;
    see_images(sizes, work.image, zero, at.input<uint8_t>(0), images);
    const ByteEnds ends = ends_of(work, ends_places, is_scale_of_each, at, zero, filter, scratch);
    if (has_filter_zeros) {
      int32_t* const sums = reinterpret_cast<int32_t*>(scratch + 4 * ends_places.of_filters);
      work.image.element == 1 ? sum_windows<uint8_t>(work, images, sums) : sum_windows<int16_t>(work, images, sums);
    }
    multiply_all(work, {images, static_cast<const char*>(filter) + work.filter.sums_bytes(), ends, at.output<char>(0)});
  };
}

}  // namespace moonflow::cpu
