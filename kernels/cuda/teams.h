// One lane of a value for each team of threads, which is a thread, a warp or a block, whatever fits the lanes. The work
// on a lane is a struct of plain data with
//
//   template <class Team>
//   MOONFLOW_DEVICE void operator()(const Team& team, int64_t lane, int64_t start, int64_t n, int64_t stride) const;
//
// which each thread of the team runs; element i of the lane lies at start + i * stride. It sees the elements through
//
//   const auto x = team.values(from + start, n, stride);  they do not change from here on, other than by x's write
//   x.map(f, others...)         the values f(x[i], others[i]...)
//   x.sum(f, others...)         the sum of those over the whole lane, in double; f may be left out
//   x.over(start, combine)      `combine` over the whole lane, the same in each thread
//   x.write(to)                 may be where any of the values were read
//   x.has(i), x.own(i)          whether the thread has element i, and the element where it has
//
// Rows that are short enough lie in the registers of their team, so that memory is read once and what is computed of it
// stays; of others the elements are read, and what is computed of them is computed, each time they are asked for.
#pragma once

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/elements.h"
#include "kernels/lanes.h"

namespace moonflow::cuda {

// ---- a lane in memory ----------------------------------------------------------------------------------------

// `at`: element i.
template <class Team, class At>
struct LaneInMemory {
  const Team& team;
  At at;
  int64_t n, stride;

  template <class F, class... Others>
  MOONFLOW_DEVICE auto map(F f, const Others&... others) const {
    const auto mapped = [=, before = at](int64_t i) { return f(before(i), others.at(i)...); };
    return LaneInMemory<Team, decltype(mapped)>{team, mapped, n, stride};
  }
  template <class T, class Combine>
  MOONFLOW_DEVICE T over(T start, Combine combine) const {
    for (int64_t i = team.thread(); i < n; i += team.size()) start = combine(start, T(at(i)));
    return team.over(start, combine);
  }
  MOONFLOW_DEVICE double sum() const { return over(0.0, Sum()); }
  template <class F, class... Others>
  MOONFLOW_DEVICE double sum(F f, const Others&... others) const {
    return map(f, others...).sum();
  }
  template <class T>
  MOONFLOW_DEVICE void write(T* to) const {
    for (int64_t i = team.thread(); i < n; i += team.size()) to[i * stride] = at(i);
  }
  MOONFLOW_DEVICE bool has(int64_t i) const { return i % team.size() == team.thread(); }
  MOONFLOW_DEVICE auto own(int64_t i) const { return at(i); }
};

// ---- a lane in registers -------------------------------------------------------------------------------------

constexpr int kHeldTogether = 4;

// Where the elements of a pack lie that a thread of a team holds: side by side, to be moved at once, or as far apart as
// the team has threads, whose elements are then neighbours. Side by side either all of them are there or none.
template <int kTeam, bool kSideBySide>
struct Held {
  static constexpr int kStep = kSideBySide ? 1 : kTeam;
  int pack, own, n;  // own: the thread's first element in the first pack

  static MOONFLOW_DEVICE int own_of(int thread) { return thread * (kSideBySide ? kHeldTogether : 1); }
  MOONFLOW_DEVICE int start() const { return pack * kHeldTogether * kTeam; }
  MOONFLOW_DEVICE int at(int v) const { return start() + own + v * kStep; }
  MOONFLOW_DEVICE bool has(int v) const { return kSideBySide || at(v) < n; }
  // Each address is the thread's own and a constant, once the packs are unrolled.
  template <class T>
  MOONFLOW_DEVICE Pack<T, kHeldTogether> read(const T* from) const {
    from += own;
    if (moves_at_once(from)) return *reinterpret_cast<const Pack<T, kHeldTogether>*>(from + start());
    Pack<T, kHeldTogether> pack{};
    MOONFLOW_UNROLL
    for (int v = 0; v < kHeldTogether; ++v)
      if (has(v)) pack.values[v] = from[start() + v * kStep];
    return pack;
  }
  template <class T>
  MOONFLOW_DEVICE void write(const Pack<T, kHeldTogether>& pack, T* to) const {
    to += own;
    if (moves_at_once(to)) return write_at_once(pack, to + start());
    MOONFLOW_UNROLL
    for (int v = 0; v < kHeldTogether; ++v)
      if (has(v)) to[start() + v * kStep] = pack.values[v];
  }

 private:
  template <class T>
  MOONFLOW_DEVICE bool moves_at_once(const T* data) const {
    return kSideBySide && is_aligned<T, kHeldTogether>(data);
  }
};

// What is combined with it element by element has pack(Held): another such lane, or what is known of each place.
template <class Team, class T>
struct LaneInRegisters {
  static constexpr int kN = kHeldTogether;
  using Held = typename Team::Held;
  const Team& team;
  int n;
  Pack<T, kN> packs[Team::kHeld];

  MOONFLOW_DEVICE const Pack<T, kN>& pack(const Held& held) const { return packs[held.pack]; }

  // Calls f(held) for the packs of which the thread may have something.
  template <class F>
  MOONFLOW_DEVICE void each(F f) const {
    MOONFLOW_UNROLL
    for (int pack = 0; pack < Team::kHeld; ++pack) {
      const Held held{pack, Held::own_of(team.thread()), n};
      if ((Team::kSideBySide ? held.at(0) : held.start()) < n) f(held);
    }
  }
  template <class F, class... Others>
  MOONFLOW_DEVICE auto map(F f, const Others&... others) const {
    using Result = decltype(f(T(), others.pack(Held()).values[0]...));
    LaneInRegisters<Team, Result> mapped{team, n, {}};
    each([&](const Held& held) {
      mapped.packs[held.pack] = combined<Result>(f, packs[held.pack], others.pack(held)...);
    });
    return mapped;
  }
  template <class Acc, class Combine>
  MOONFLOW_DEVICE Acc over(Acc start, Combine combine) const {
    each([&](const Held& held) {
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v)
        if (held.has(v)) start = combine(start, Acc(packs[held.pack].values[v]));
    });
    return team.over(start, combine);
  }
  // A card turns few floats a moment to doubles, so those of a pack are added first.
  MOONFLOW_DEVICE double sum() const {
    double sum = 0;
    each([&](const Held& held) {
      auto terms = packs[held.pack];
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v)
        if (!held.has(v)) terms.values[v] = 0;
      sum += (terms.values[0] + terms.values[1]) + (terms.values[2] + terms.values[3]);
    });
    return team.over(sum, Sum());
  }
  template <class F, class... Others>
  MOONFLOW_DEVICE double sum(F f, const Others&... others) const {
    return map(f, others...).sum();
  }
  MOONFLOW_DEVICE void write(T* to) const {
    each([&](const Held& held) { held.write(packs[held.pack], to); });
  }
  MOONFLOW_DEVICE bool has(int64_t i) const { return (Team::kSideBySide ? i / kN : i) % Team::size() == team.thread(); }
  MOONFLOW_DEVICE T own(int64_t i) const {
    T value = T();
    each([&](const Held& held) {
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v)
        if (held.at(v) == i) value = packs[held.pack].values[v];
    });
    return value;
  }

 private:
  template <class Result, class F, class... Packs>
  MOONFLOW_DEVICE static Pack<Result, kN> combined(const F& f, const Packs&... of) {
    Pack<Result, kN> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < kN; ++v) result.values[v] = f(of.values[v]...);
    return result;
  }
};

// ---- what is known of each place -----------------------------------------------------------------------------

// Whether a place is the chosen one.
struct Chosen {
  int64_t place;
  MOONFLOW_DEVICE bool at(int64_t i) const { return i == place; }
  template <class Held>
  MOONFLOW_DEVICE Pack<bool, kHeldTogether> pack(const Held& held) const {
    Pack<bool, kHeldTogether> is;
    MOONFLOW_UNROLL
    for (int v = 0; v < kHeldTogether; ++v) is.values[v] = held.at(v) == place;
    return is;
  }
};

// ---- teams ---------------------------------------------------------------------------------------------------

// kPacks: of a lane that each thread holds; 0: lanes stay in memory.
template <class Block, int kTeam, int kPacks = 0, bool kTogether = false>
class Team {
 public:
  static constexpr int kHeld = kPacks;
  static constexpr bool kSideBySide = kTogether;
  using Held = cuda::Held<kTeam, kTogether>;
  explicit MOONFLOW_DEVICE Team(const Block& block) : block(block) {}

  static MOONFLOW_BOTH constexpr int size() { return kTeam; }
  MOONFLOW_DEVICE int thread() const { return block.thread() % kTeam; }
  // `combine` over the values of all threads, the same in each.
  template <class T, class Combine>
  MOONFLOW_DEVICE T over(T value, Combine combine) const {
    if constexpr (kTeam == 1) return value;
    if constexpr (kTeam == kWarp) return over_warp(block, value, combine);
    if constexpr (kTeam > kWarp) return over_block(block, value, combine);
  }

  template <class T>
  MOONFLOW_DEVICE auto values(const T* from, int64_t n, int64_t stride) const {
    if constexpr (kHeld > 0) {
      LaneInRegisters<Team, T> lane{*this, static_cast<int>(n), {}};
      lane.each([&](const Held& held) { lane.packs[held.pack] = held.read(from); });
      return lane;
    } else {
      const auto at = [=](int64_t i) { return from[i * stride]; };
      return LaneInMemory<Team, decltype(at)>{*this, at, n, stride};
    }
  }

  const Block& block;
};

template <class F, int kTeam, int kHeld, bool kSideBySide>
struct ForEachLane {
  // Small blocks leave fewer registers without a thread where each has many.
  static constexpr int kThreads = kHeld > 0 && kTeam == kWarp ? 128 : 256;
  F f;
  int64_t count, n;
  LongDivisor stride;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t lane = block.index() * (kThreads / kTeam) + block.thread() / kTeam;
    if (lane >= count) return;
    int64_t inner;
    const int64_t outer = stride.quotient(lane, inner);
    f(Team<Block, kTeam, kHeld, kSideBySide>(block), lane, outer * stride.value * n + inner, n, stride.value);
  }
};

template <int kTeam, int kHeld = 0, bool kSideBySide = false, class F>
void for_each_lane(Stream& stream, const Lanes& lanes, const F& f) {
  using Kernel = ForEachLane<F, kTeam, kHeld, kSideBySide>;
  constexpr int64_t kTeams = Kernel::kThreads / kTeam;
  if (lanes.count > 0)
    launch(stream, (lanes.count + kTeams - 1) / kTeams, Kernel{f, lanes.count, lanes.n, LongDivisor(lanes.stride)});
}

template <int kTeam, int kHeld, class F>
void for_each_held_lane(Stream& stream, const Lanes& lanes, const F& f) {
  if (lanes.n % kHeldTogether == 0)
    for_each_lane<kTeam, kHeld, true>(stream, lanes, f);
  else
    for_each_lane<kTeam, kHeld>(stream, lanes, f);
}

template <class F>
void for_each_lane(Stream& stream, const Lanes& lanes, const F& f) {
  constexpr int kBlock = 256;
  // A lane for each thread where two of three hold: neighbouring threads have neighbouring lanes and read whole lines,
  // a lane is no work for a warp, there are lanes enough.
  const int reasons = (lanes.stride > 1) + (lanes.n <= 16) + (lanes.count >= 4096);
  if (reasons >= 2) return for_each_lane<1>(stream, lanes, f);
  if constexpr (F::kHolds) {
    constexpr int kHeld = 8;  // packs: half of the registers of a thread, where four blocks are to have room
    constexpr int64_t kOfThread = kHeld * kHeldTogether;
    if (lanes.stride == 1 && lanes.n <= kWarp * kOfThread) return for_each_held_lane<kWarp, kHeld>(stream, lanes, f);
    if (lanes.stride == 1 && lanes.n <= kBlock * kOfThread) return for_each_held_lane<kBlock, kHeld>(stream, lanes, f);
  }
  if (lanes.n <= 2048) return for_each_lane<kWarp>(stream, lanes, f);
  for_each_lane<kBlock>(stream, lanes, f);
}

}  // namespace moonflow::cuda
