#include "engine/arena.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/tensor.h"

namespace moonflow {

namespace {

using Order = std::vector<size_t>;  // indices of blocks

// One growing stretch of memory, of which pieces are taken and given back in the order of time. A free piece is joined
// with its free neighbours; a new block takes the smallest that holds it. O(log n) per block.
class Stretch {
 public:
  int64_t take(int64_t bytes) {
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *best;
    remove(offset, size);
    if (size > bytes) insert(offset + bytes, size - bytes);
    return offset;
  }

  void give_back(int64_t offset, int64_t bytes) {
    const auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.end() && after->first == offset + bytes) {
      bytes += after->second;
      remove(after->first, after->second);
    }
    const auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        remove(before->first, before->second);
      }
    }
    insert(offset, bytes);
  }

  int64_t size() const { return end_; }

 private:
  // At the end of the stretch, using a free piece that reaches it.
  int64_t grow(int64_t bytes) {
    int64_t offset = end_;
    if (!by_offset_.empty()) {
      const auto [last, size] = *by_offset_.rbegin();
      if (last + size == end_) {
        offset = last;
        remove(last, size);
      }
    }
    end_ = checked_sum(offset, bytes);
    return offset;
  }
  void insert(int64_t offset, int64_t bytes) {
    by_offset_[offset] = bytes;
    by_size_.insert({bytes, offset});
  }
  void remove(int64_t offset, int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<int64_t, int64_t> by_offset_;
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t end_ = 0;
};

// The blocks in the order in which they come to life, and in that in which they end.
struct Times {
  Order births, ends;

  Times(const std::vector<Block>& blocks, Order order) : births(std::move(order)), ends(births) {
    std::stable_sort(births.begin(), births.end(),
                     [&](size_t a, size_t b) { return blocks[a].first_step < blocks[b].first_step; });
    std::stable_sort(ends.begin(), ends.end(),
                     [&](size_t a, size_t b) { return blocks[a].last_step < blocks[b].last_step; });
  }

  // Calls born(block) and ended(block) as time goes; what ends at a step makes room for the next step.
  template <class Born, class Ended>
  void walk(const std::vector<Block>& blocks, const Born& born, const Ended& ended) const {
    size_t next_end = 0;
    for (const size_t block : births) {
      for (; blocks[ends[next_end]].last_step < blocks[block].first_step; ++next_end) ended(ends[next_end]);
      born(block);
    }
  }
};

int64_t most_alive(const std::vector<Block>& blocks, const Times& times) {
  int64_t alive = 0, most = 0;
  times.walk(
      blocks,
      [&](size_t block) {
        alive = checked_sum(alive, blocks[block].bytes);
        most = std::max(most, alive);
      },
      [&](size_t block) { alive -= blocks[block].bytes; });
  return most;
}

// Block after block as they come to life. Gives the end.
int64_t arrange_by_time(std::vector<Block>& blocks, const Times& times) {
  Stretch stretch;
  times.walk(
      blocks, [&](size_t block) { blocks[block].offset = stretch.take(blocks[block].bytes); },
      [&](size_t block) { stretch.give_back(blocks[block].offset, blocks[block].bytes); });
  return stretch.size();
}

// The largest first, each in the smallest gap between those that live at the same time. Takes the square of their
// number, and comes nearer to the bound: what is small fits anywhere. Gives the end.
int64_t arrange_by_size(std::vector<Block>& blocks, const Order& largest_first) {
  Order placed;  // by offset
  int64_t arena_end = 0;
  for (const size_t index : largest_first) {
    Block& block = blocks[index];
    int64_t end = 0, best_gap = -1;
    for (const size_t other_index : placed) {
      const Block& other = blocks[other_index];
      if (other.last_step < block.first_step || block.last_step < other.first_step) continue;
      const int64_t gap = other.offset - end;
      if (gap >= block.bytes && (best_gap < 0 || gap < best_gap)) {
        best_gap = gap;
        block.offset = end;
      }
      end = std::max(end, other.offset + other.bytes);
    }
    if (best_gap < 0) block.offset = end;
    arena_end = std::max(arena_end, checked_sum(block.offset, block.bytes));
    const auto behind = std::upper_bound(placed.begin(), placed.end(), block.offset,
                                         [&](int64_t offset, size_t i) { return offset < blocks[i].offset; });
    placed.insert(behind, index);
  }
  return arena_end;
}

}  // namespace

Arena arrange(std::vector<Block>& blocks) {
  constexpr size_t kMostBySize = 1000;  // so the square stays a few milliseconds
  Order largest_first(blocks.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  const Times times(blocks, largest_first);
  Arena arena;
  arena.lower_bound = most_alive(blocks, times);
  arena.bytes = arrange_by_time(blocks, times);
  if (arena.bytes == arena.lower_bound) return arena;

  // The other way: the largest by size, and what is left behind them by time. The better one counts.
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  const size_t few = std::min(kMostBySize, blocks.size());
  const Order rest(largest_first.begin() + static_cast<std::ptrdiff_t>(few), largest_first.end());
  largest_first.resize(few);
  std::vector<Block> other = blocks;
  const int64_t behind = arrange_by_size(other, largest_first);
  const int64_t rest_bytes = arrange_by_time(other, Times(blocks, rest));
  for (const size_t block : rest) other[block].offset += behind;
  if (checked_sum(behind, rest_bytes) >= arena.bytes) return arena;
  arena.bytes = behind + rest_bytes;
  blocks.swap(other);
  return arena;
}

}  // namespace moonflow
