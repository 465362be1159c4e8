// Whether pieces of work are ordered. Time is a vector clock: for each line of work (a stream, a branch of a graph) how
// many of its pieces are known to be done. Two accesses to the same bytes, at least one of which writes, must be
// ordered by the order within a line, by events, by the edges of graphs, or by the host that waited for one before it
// enqueued the other. Whether they happened one after the other in this run does not matter, so one run finds what a
// thousand would not show.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device.h"

namespace moonflow::cuda::simulated {

class Clock {
 public:
  int64_t operator[](int line) const { return line < static_cast<int>(ticks_.size()) ? ticks_[line] : 0; }
  void set(int line, int64_t tick) {
    if (line >= static_cast<int>(ticks_.size())) ticks_.resize(line + 1, 0);
    ticks_[line] = tick;
  }
  void join(const Clock& other) {
    for (int line = 0; line < static_cast<int>(other.ticks_.size()); ++line)
      if (other.ticks_[line] > (*this)[line]) set(line, other.ticks_[line]);
  }

 private:
  std::vector<int64_t> ticks_;
};

// A piece of work, as those that come after it know it.
struct Moment {
  int line = -1;  // -1: none
  int64_t tick = 0;
  std::shared_ptr<const std::string> name;

  bool known_to(const Clock& clock) const { return line < 0 || clock[line] >= tick; }
};

class Accesses {
 public:
  // Notes what a piece of work touches. `before` is what it knows to be done. Gives what is wrong, if anything.
  std::optional<std::string> note(const Moment& moment, const Clock& before, const std::vector<Range>& reads,
                                  const std::vector<Range>& writes);
  // Whether the clock knows everybody who touched these bytes.
  bool all_known(const Clock& clock, const Range& range) const;
  // The bytes are given back.
  void forget(const Range& range);

 private:
  struct Span {
    uintptr_t end;
    Moment written;
    std::vector<Moment> read;  // since then; at most one of a line
  };
  using Spans = std::map<uintptr_t, Span>;  // by their first byte; they do not overlap

  // Makes spans begin and end where the range does, and fills its gaps.
  std::pair<Spans::iterator, Spans::iterator> cut(const Range& range);
  void cut(uintptr_t at);

  Spans spans_;
};

}  // namespace moonflow::cuda::simulated
