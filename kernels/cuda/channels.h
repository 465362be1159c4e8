// A value seen channel by channel, in rows or with its channels last, and two ways over it: two sums for each channel,
// and a pass over the elements in which a thread stays with its channels. Memory is moved in packs of neighbours, which
// are channels of one place where channels are innermost, else places of one channel.
//
// What is done is a struct of plain data with
//
//   using Own = ...;                              what a thread keeps of a channel
//   static constexpr int kChunk = ...;            packs that it takes at a time, whose loads are under way together
//   Own own(int64_t channel) const;
//   bool aligned() const;                         whether all arrays can be moved in packs
//   Read load(const Chunk<N, kChunk, ...>& chunk) const;                        what it reads of a chunk
//   void fold(Sums (&sums)[kLanes], const Own (&own)[kLanes], const Chunk<...>&, const Read&) const;  of a fold,
//   void finish(int64_t channel, Sums sums) const;                                                    with this
//   void map(const Own (&own)[kLanes], const Chunk<...>&, const Read&) const;                         of a pass
//
// A thread has N lanes, one for each channel of its packs, or a single one where a pack lies in one channel.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/units.h"

namespace moonflow::cuda {

struct Channels {
  int64_t channels, inner, places;  // a channel has `places` elements, in runs of `inner`, the first at channel * inner

  // Input `x` of the call, whose attribute "axis" says where the channels are.
  Channels(const KernelCall& call, int x) {
    const Shape& shape = call.inputs[x].shape;
    const int axis = wrap_axis(call.attrs.integer("axis"), shape.rank());
    channels = shape[axis];
    places = shape.count(0, axis) * shape.count(axis + 1, shape.rank());
    inner = is_channels_last(call.input_layouts[x]) ? 1 : shape.count(axis + 1, shape.rank());
    if (channels == 1) inner = places;
  }
};

// Images keep their channels last where the first input that is one has them there; `axis` is that of the channels.
inline void keep_channels_last(LayoutCall& call, int64_t axis) {
  const auto is_image = [](const TensorType& type) { return type.shape.rank() > 2; };
  bool last = false;
  for (size_t i = 0; i < call.inputs.size() && !last; ++i) {
    if (!call.present[i] || !is_image(call.input_types[i])) continue;
    last = is_channels_last(call.inputs[i]) && wrap_axis(axis, call.input_types[i].shape.rank()) == 1;
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool follows = last && call.present[i] && is_image(call.input_types[i]);
    call.inputs[i] = follows ? channels_last(call.input_types[i]) : Layout{};
  }
  for (size_t i = 0; i < call.outputs.size(); ++i)
    call.outputs[i] = last && is_image(call.output_types[i]) ? channels_last(call.output_types[i]) : Layout{};
}

// ---- packs ---------------------------------------------------------------------------------------------------

// Neighbours of a pack: one load of 16 bytes, or of 8, as more channels a thread would leave it too few registers.
template <class T>
constexpr int kPack = sizeof(T) == 8 ? 2 : 4;
// So many packs are 32 bytes, which a thread has under way of each array.
template <class T>
constexpr int kPacksAtOnce = 32 / (kPack<T> * static_cast<int>(sizeof(T)));

// A pack as it was loaded. Its neighbours are told apart when they are used: before, a thread would wait for them, and
// what it loads next would not be under way meanwhile. So a load has no branch, and no zeros where there is no pack.
// They are told apart by shifts: what is read as parts of memory the compiler would keep in parts.
template <class T, int N>
struct Loaded {
  Unit<N * sizeof(T)> bits;
  Loaded() = default;
  MOONFLOW_DEVICE Loaded(const Pack<T, N>& pack) { memcpy(&bits, &pack, sizeof bits); }
  MOONFLOW_DEVICE Pack<T, N> pack() const {
    constexpr int kPerWord = sizeof(uint64_t) / sizeof(T);
    Pack<T, N> pack;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) {
      const auto part = static_cast<Unit<sizeof(T)>>(word(v / kPerWord) >> (v % kPerWord * 8 * sizeof(T)));
      memcpy(&pack.values[v], &part, sizeof part);
    }
    return pack;
  }

 private:
  MOONFLOW_DEVICE uint64_t word(int i) const {
    if constexpr (sizeof bits == sizeof(uint64_t))
      return bits;
    else
      return i == 0 ? bits.first : bits.second;
  }
};

// Where the packs of a chunk lie, and how many neighbours of each there are; 0: no pack.
template <int N, int kCount, bool kInnermost>
struct Spots {
  int64_t places[kCount];
  int counts[kCount];
  MOONFLOW_DEVICE int64_t at(int i) const { return places[i]; }
  MOONFLOW_DEVICE int valid(int i) const { return counts[i]; }
};
// Packs of the same channels, which lie in equal steps.
template <int N, int kCount>
struct Spots<N, kCount, true> {
  int64_t first, step, left;  // rows that there are from the first on
  int rows, count;            // rows between two packs
  MOONFLOW_DEVICE int64_t at(int i) const { return first + i * step; }
  MOONFLOW_DEVICE int valid(int i) const { return i * rows < left ? count : 0; }
};

template <int N, int kCount, bool kInnermost>
struct Chunk : Spots<N, kCount, kInnermost> {
  bool whole;  // each pack that is there has N, and can be moved at once
  bool full;   // all are there, with all their neighbours

  // Where there is no pack, the first one in its place.
  template <class T>
  MOONFLOW_DEVICE void load(const T* from, Loaded<T, N> (&packs)[kCount]) const {
    if (whole) {
      MOONFLOW_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int64_t at = this->at(this->valid(i) > 0 ? i : 0);
        packs[i].bits = *reinterpret_cast<const Unit<N * sizeof(T)>*>(from + at);
      }
    } else {
      MOONFLOW_UNROLL
      for (int i = 0; i < kCount; ++i) packs[i] = read<T, N>(from + this->at(i), this->valid(i), false);
    }
  }
  template <class T>
  MOONFLOW_DEVICE void store(const Pack<T, N> (&packs)[kCount], T* to) const {
    MOONFLOW_UNROLL
    for (int i = 0; i < kCount; ++i)
      write(packs[i], to + this->at(i), this->valid(i), whole && this->valid(i) > 0);
  }
};

// How blocks go over a value. A column is N channels that are neighbours, or one channel; its items are the packs that
// it has. A block has `width` columns, side by side, and a part of their items. All of it depends on the shape alone,
// so two runs give the same bits.
template <int N>
class Tiling {
 public:
  static constexpr int kThreads = 256;

  // At least `least_items` for a thread, and no more blocks than `most_blocks`, as far as columns allow.
  Tiling(const Channels& of, int64_t least_items, int64_t most_blocks)
      : channels(of.channels), innermost(of.inner == 1), inner_(of.inner) {
    const int64_t packs = (inner_ + N - 1) / N;  // of a run
    by_packs_ = LongDivisor(packs);
    columns_ = innermost ? (channels + N - 1) / N : channels;
    items = innermost ? of.places : of.places / std::max<int64_t>(inner_, 1) * packs;
    whole_ = (innermost ? channels : inner_) % N == 0;
    // Neighbouring columns are a warp's, whose loads are then whole lines, as long as few threads are left without one.
    while (innermost && width < columns_ && (width < 8 || (width < 32 && columns_ % (2 * width) == 0))) width *= 2;
    tiles = (columns_ + width - 1) / width;
    const int64_t most = items / (rows() * least_items), room = most_blocks / std::max<int64_t>(tiles, 1);
    parts = std::max<int64_t>(1, std::min(most, room));
  }

  int64_t channels, items, tiles, parts;
  bool innermost;
  int width = 1;  // a power of two

  // The same for packs that lie at addresses of any kind.
  Tiling unaligned() const {
    Tiling tiling = *this;
    tiling.whole_ = false;
    return tiling;
  }

  MOONFLOW_BOTH int rows() const { return kThreads / width; }
  // The column of a thread, and whether there is one.
  MOONFLOW_DEVICE int64_t column(int64_t block, int thread) const { return block % tiles * width + thread % width; }
  MOONFLOW_DEVICE bool has(int64_t column) const { return column < columns_; }
  MOONFLOW_DEVICE int64_t channel(int64_t column, int lane) const { return innermost ? column * N + lane : column; }

  // Calls body(own, chunk, loaded) for all items of a thread's column in the part of its block. kAhead: the first chunk
  // is under way while the thread learns what it keeps of its channels, which takes registers and pays where chunks are
  // few.
  template <bool kInnermost, bool kAhead, class F, class Body>
  MOONFLOW_DEVICE void each_chunk(int64_t block, int thread, const F& f, const Body& body) const {
    constexpr int kLanes = kInnermost ? N : 1;
    const int64_t own_column = column(block, thread), part = block / tiles;
    if (!has(own_column)) return;
    const int64_t last = items * (part + 1) / parts, step = F::kChunk * rows();
    int64_t item = items * part / parts + thread / width;
    typename F::Own own[kLanes];
    const auto learn = [&] {
      MOONFLOW_UNROLL
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t own_channel = kInnermost ? own_column * N + lane : own_column;
        own[lane] = f.own(own_channel < channels ? own_channel : channels - 1);
      }
    };
    if constexpr (kAhead) {
      if (item >= last) return;
      const auto chunk = chunk_at<kInnermost, F::kChunk>(own_column, item, last);
      const auto loaded = f.load(chunk);
      learn();
      body(own, chunk, loaded);
      item += step;
    } else {
      learn();
    }
    for (; item < last; item += step) {
      const auto chunk = chunk_at<kInnermost, F::kChunk>(own_column, item, last);
      body(own, chunk, f.load(chunk));
    }
  }

 private:
  template <bool kInnermost, int kCount>
  MOONFLOW_DEVICE Chunk<N, kCount, kInnermost> chunk_at(int64_t column, int64_t item, int64_t last) const {
    Chunk<N, kCount, kInnermost> chunk;
    chunk.whole = whole_;
    chunk.full = whole_ && item + (kCount - 1) * rows() < last;
    find(chunk, column, item, last);
    return chunk;
  }
  // The packs from `item` on, as many rows apart as a block has.
  template <int kCount>
  MOONFLOW_DEVICE void find(Spots<N, kCount, true>& spots, int64_t column, int64_t item, int64_t last) const {
    const int64_t rest = channels - column * N;
    spots.first = item * channels + column * N;
    spots.step = rows() * channels;
    spots.left = last - item;
    spots.rows = rows();
    spots.count = rest < N ? static_cast<int>(rest) : N;
  }
  template <int kCount>
  MOONFLOW_DEVICE void find(Spots<N, kCount, false>& spots, int64_t column, int64_t item, int64_t last) const {
    MOONFLOW_UNROLL
    for (int i = 0; i < kCount; ++i, item += rows()) {
      int64_t pack;
      const int64_t run = by_packs_.quotient(item, pack), rest = inner_ - pack * N;
      spots.places[i] = (run * channels + column) * inner_ + pack * N;
      spots.counts[i] = item >= last ? 0 : rest < N ? static_cast<int>(rest) : N;
    }
  }

  int64_t inner_, columns_;
  LongDivisor by_packs_;
  bool whole_;
};

// ---- two sums for each channel -------------------------------------------------------------------------------

struct Sums {
  double first, second;
};
MOONFLOW_DEVICE inline Sums operator+(Sums a, Sums b) { return {a.first + b.first, a.second + b.second}; }

// Of all threads of a block that have the same place in `width`, in the first `width` of them. `shared` has room for
// kLanes * kThreads sums; a thread's are apart by as many as there are threads, so that a warp meets all banks.
template <class Block, int kLanes>
MOONFLOW_DEVICE void add_up(const Block& block, Sums (&sums)[kLanes], int width, Sums* shared) {
  const int thread = block.thread(), threads = block.threads();
  MOONFLOW_UNROLL
  for (int lane = 0; lane < kLanes; ++lane) shared[lane * threads + thread] = sums[lane];
  for (int distance = threads / 2; distance >= width; distance /= 2) {
    block.sync();
    if (thread >= distance) continue;
    MOONFLOW_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] = sums[lane] + shared[lane * threads + thread + distance];
      shared[lane * threads + thread] = sums[lane];
    }
  }
}

template <class F, int N, bool kInnermost>
struct FoldChannels {
  static constexpr int kThreads = Tiling<N>::kThreads, kLanes = kInnermost ? N : 1;
  F f;
  Tiling<N> tiling;
  Sums* parts;  // nullptr where the results are final

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    Sums sums[kLanes] = {};
    const F& folding = f;
    tiling.template each_chunk<kInnermost, false>(
        block.index(), block.thread(), f,
        [&](const auto& own, const auto& chunk, const auto& loaded) { folding.fold(sums, own, chunk, loaded); });
    add_up(block, sums, tiling.width, block.template shared<Sums>());
    const int64_t column = tiling.column(block.index(), block.thread());
    if (block.thread() >= tiling.width || !tiling.has(column)) return;
    MOONFLOW_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t channel = tiling.channel(column, lane);
      if (channel >= tiling.channels) continue;
      if (parts != nullptr)
        parts[block.index() / tiling.tiles * tiling.channels + channel] = sums[lane];
      else
        f.finish(channel, sums[lane]);
    }
  }
};

// Eight channels for each block, whose sums of one part are a line of memory.
template <class F>
struct JoinParts {
  static constexpr int kThreads = 256, kWidth = 8;
  F f;
  int64_t channels, count;
  const Sums* parts;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t channel = block.index() * kWidth + block.thread() % kWidth;
    Sums sums[1] = {};
    if (channel < channels) {
      MOONFLOW_UNROLL_BY(8)
      for (int64_t part = block.thread() / kWidth; part < count; part += kThreads / kWidth)
        sums[0] = sums[0] + parts[part * channels + channel];
    }
    add_up(block, sums, kWidth, block.template shared<Sums>());
    if (block.thread() < kWidth && channel < channels) f.finish(channel, sums[0]);
  }
};

// As many blocks as keep a large card busy, each thread of which has work for several chunks. Where four blocks share a
// processor they are two full turns.
template <int N>
Tiling<N> fold_tiling(const Channels& channels) {
  return Tiling<N>(channels, 16, kProcessors * 8);
}

template <int N>
int64_t fold_scratch_bytes(const Tiling<N>& tiling) {
  return tiling.parts > 1 ? tiling.parts * tiling.channels * static_cast<int64_t>(sizeof(Sums)) : 0;
}

// `scratch` has the tiling's fold_scratch_bytes.
template <class F, int N>
void fold_channels(Stream& stream, const Tiling<N>& shape, const F& f, void* scratch) {
  if (shape.channels == 0) return;
  const Tiling<N> tiling = f.aligned() ? shape : shape.unaligned();
  Sums* const parts = tiling.parts > 1 ? static_cast<Sums*>(scratch) : nullptr;
  const int64_t blocks = tiling.tiles * tiling.parts, bytes = Tiling<N>::kThreads * sizeof(Sums);
  if (tiling.innermost)
    launch(stream, blocks, FoldChannels<F, N, true>{f, tiling, parts}, N * bytes);
  else
    launch(stream, blocks, FoldChannels<F, N, false>{f, tiling, parts}, bytes);
  using Join = JoinParts<F>;
  if (parts)
    launch(stream, (tiling.channels + Join::kWidth - 1) / Join::kWidth, Join{f, tiling.channels, tiling.parts, parts},
           Join::kThreads * sizeof(Sums));
}

// ---- a pass over the elements --------------------------------------------------------------------------------

template <class F, int N, bool kInnermost>
struct MapChannels {
  static constexpr int kThreads = Tiling<N>::kThreads;
  F f;
  Tiling<N> tiling;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const F& mapping = f;
    tiling.template each_chunk<kInnermost, true>(
        block.index(), block.thread(), f,
        [&](const auto& own, const auto& chunk, const auto& loaded) { mapping.map(own, chunk, loaded); });
  }
};

template <int N>
Tiling<N> map_tiling(const Channels& channels) {
  return Tiling<N>(channels, 8, int64_t{1} << 30);
}

template <class F, int N>
void map_channels(Stream& stream, const Tiling<N>& shape, const F& f) {
  if (shape.channels * shape.items == 0) return;
  const Tiling<N> tiling = f.aligned() ? shape : shape.unaligned();
  const int64_t blocks = tiling.tiles * tiling.parts;
  if (tiling.innermost)
    launch(stream, blocks, MapChannels<F, N, true>{f, tiling});
  else
    launch(stream, blocks, MapChannels<F, N, false>{f, tiling});
}

}  // namespace moonflow::cuda
