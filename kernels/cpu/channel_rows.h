// A value seen channel by channel, whatever its form: in blocks of up to 16 channels, and in rows of up to 16 numbers
// that lie side by side. Where channels are innermost, a row is one place in the channels of a block; where each
// channel is a plane of its own (a block of one channel), a row is 16 neighbours in the plane. So one loop over rows
// serves all forms, and fills the widest registers in each.
//
// The places of a block are cut into chunks that depend on the sizes alone, so what is summed chunk by chunk, and then
// over the chunks in order, is the same for any number of threads.
#pragma once

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/image.h"

namespace moonflow::cpu {

class ChannelRows {
 public:
  static constexpr int64_t kLanes = 16;

  explicit ChannelRows(const ChannelForm& form)
      : channels(form.channels),
        places(form.outer * form.positions),
        planar_(form.lanes == 1),
        cut_(form.lanes > kLanes),
        lanes_(form.lanes),
        positions_(form.positions),
        outer_step_(form.blocks * form.positions * form.lanes),
        block_step_(cut_ ? kLanes : form.positions * form.lanes) {
    blocks = cut_ ? (lanes_ + kLanes - 1) / kLanes : form.blocks;
    chunk_places_ = kChunkRows * (planar_ ? kLanes : 1);
    chunks = (places + chunk_places_ - 1) / chunk_places_;
    // As many blocks together as stay in a third-level cache from one pass over them to the next.
    const int64_t block_elements = std::max<int64_t>(1, places * std::min(lanes_, kLanes));
    group_ = std::max<int64_t>((int64_t{1} << 20) / block_elements, 1);
    grain_ = std::max<int64_t>(1, kGrain / std::min(block_elements, kChunkRows * kLanes));
  }

  int64_t channels;  // those of the value; the last block may have more, which hold zeros
  int64_t places;    // of a channel
  int64_t blocks;
  int64_t chunks;  // of a block

  bool planar() const { return planar_; }
  // Channels in a block, and the first of them.
  int64_t width(int64_t block) const { return cut_ ? std::min(kLanes, lanes_ - block * kLanes) : lanes_; }
  int64_t first_channel(int64_t block) const { return block * (cut_ ? kLanes : lanes_); }
  int64_t first_place(int64_t chunk) const { return chunk * chunk_places_; }
  int64_t last_place(int64_t chunk) const { return std::min(places, (chunk + 1) * chunk_places_); }

  // Calls body(lane, element) for the places [first, last) of a block.
  template <class Body>
  void each(int64_t block, int64_t first, int64_t last, const Body& body) const {
    const auto rows = [&](int64_t at, int64_t count, int64_t step, int64_t width) {
      if (width == kLanes) {
        for (int64_t row = 0; row < count; ++row, at += step) {
#pragma omp simd
          for (int64_t lane = 0; lane < kLanes; ++lane) body(lane, at + lane);
        }
      } else {
        for (int64_t row = 0; row < count; ++row, at += step) {
          for (int64_t lane = 0; lane < width; ++lane) body(lane, at + lane);
        }
      }
    };
    for (int64_t place = first; place < last;) {
      const int64_t position = place % positions_, count = std::min(positions_ - position, last - place);
      const int64_t at = place / positions_ * outer_step_ + block * block_step_ + position * lanes_;
      if (planar_) {
        rows(at, count / kLanes, kLanes, kLanes);
        rows(at + count / kLanes * kLanes, 1, kLanes, count % kLanes);
      } else {
        rows(at, count, lanes_, width(block));
      }
      place += count;
    }
  }

  // Calls work(block, chunk) for all chunks of the blocks [first, last), shared between the threads.
  template <class Work>
  void share_out(int64_t first_block, int64_t last_block, const Work& work) const {
    parallel_for((last_block - first_block) * chunks, grain_, [&](int64_t first, int64_t last) {
      widest([&] {
        for (int64_t i = first; i < last; ++i) work(first_block + i / chunks, i % chunks);
      });
    });
  }

  // Two passes over a few blocks at a time, so that the second finds in a cache what the first has read: sum(block,
  // chunk) for all chunks, then combine(block) on the calling thread, then map(block, chunk) for all chunks.
  template <class Sum, class Combine, class Map>
  void in_two_passes(const Sum& sum, const Combine& combine, const Map& map) const {
    for (int64_t first = 0; first < blocks; first += group_) {
      const int64_t last = std::min(blocks, first + group_);
      share_out(first, last, sum);
      for (int64_t block = first; block < last; ++block) combine(block);
      share_out(first, last, map);
    }
  }

 private:
  static constexpr int64_t kChunkRows = 1024;

  bool planar_, cut_;
  int64_t lanes_, positions_, outer_step_, block_step_, chunk_places_, group_, grain_;
};

}  // namespace moonflow::cpu
