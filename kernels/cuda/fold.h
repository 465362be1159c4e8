// Folds on CUDA: each output is what is left of the elements that belong to it, along any axes of a value. A fold is a
// struct of plain data with
//
//   using Acc = ...;                            at most 16 bytes
//   Acc start() const;
//   Own own(int64_t k) const;                   what output k wants to know again and again
//   Acc fold(Acc acc, const Own& own, int64_t i, int64_t at) const;
//                                               takes in element i of the output, which lies at `at`
//   Acc merge(Acc a, Acc b) const;
//   void finish(int64_t k, Acc acc) const;      writes output k
//
// A block has kThreads / lanes outputs, each of which `lanes` threads share: where outputs are neighbours in memory
// ("wide") the threads of a warp have one each, else they read along one. Where outputs are few and elements many, each
// output is cut into parts that blocks of their own fold into scratch. All of it depends on the shapes alone, so two
// runs give the same bits.
#pragma once

#include <algorithm>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/block.h"
#include "kernels/reduction.h"

namespace moonflow::cuda {

class FoldShape {
 public:
  static constexpr int kThreads = 256;

  explicit FoldShape(const reduce::Groups& groups)
      : outputs(groups.outputs), count(groups.count), columns_(groups.columns), wide_(groups.columns > 1) {
    if (outputs == 0) return;
    for (const auto& axis : groups.kept.axes) kept_.append(axis.size, axis.steps[0]);
    for (const auto& axis : groups.folded.axes) folded_.append(axis.size, axis.steps[0]);
    inner_ = LongDivisor(wide_ ? outputs : count);
    // A thread is worth eight elements. Neighbouring outputs fill warps, whose reads are then whole lines.
    const int64_t worth = std::max<int64_t>(count / 8, 1);
    const int64_t most = wide_ ? std::max<int64_t>(8, kThreads / groups.columns) : kThreads;
    while (2 * lanes <= std::min(worth, most)) lanes *= 2;
    // Where that gives fewer blocks than processors, and no parts either, each thread has less: eight outputs side by
    // side are still read in whole sectors.
    while (wide_ && slots() > 8 && lanes <= worth && outputs / slots() < kProcessors && count < 64 * lanes) lanes *= 2;
    tiles = (outputs + slots() - 1) / slots();
    constexpr int64_t kBlocks = 1024;  // keep a large card busy
    parts = std::clamp<int64_t>(kBlocks / tiles, 1, std::max<int64_t>(count / (32 * lanes), 1));
  }

  int64_t outputs, count;
  int lanes = 1;                 // threads that share an output; a power of two
  int64_t tiles = 0, parts = 1;  // blocks, and parts of `count` that are folded apart

  MOONFLOW_BOTH int slots() const { return kThreads / lanes; }  // outputs of a block
  MOONFLOW_BOTH int slot(int thread) const { return wide_ ? thread % slots() : thread / lanes; }
  MOONFLOW_BOTH int lane(int thread) const { return wide_ ? thread / slots() : thread % lanes; }

  // Where output k begins, and from there its element i.
  MOONFLOW_BOTH int64_t origin(int64_t k) const {
    int64_t column;
    const int64_t kept = columns_.quotient(k, column);
    return kept_.offset_of(kept) + column;
  }
  MOONFLOW_BOTH int64_t offset(int64_t i) const { return folded_.offset_of(i); }

  // Where the e-th of all elements lies, in an order that threads read whole lines in, and its output.
  MOONFLOW_BOTH int64_t element(int64_t e, int64_t& k) const {
    int64_t rest;
    const int64_t quotient = inner_.quotient(e, rest);
    k = wide_ ? rest : quotient;
    return origin(k) + offset(wide_ ? quotient : rest);
  }

  template <class F>
  int64_t scratch_bytes() const {
    return parts > 1 ? parts * outputs * static_cast<int64_t>(sizeof(typename F::Acc)) : 0;
  }

 private:
  static constexpr int kMostAxes = Shape::kMaxRank / 2;  // kept and folded ones alternate
  Axes<kMostAxes> kept_, folded_;
  LongDivisor columns_, inner_;
  bool wide_;
};

template <class F>
struct FoldParts {
  static constexpr int kThreads = FoldShape::kThreads;
  F f;
  FoldShape shape;
  typename F::Acc* parts;  // nullptr where the results are final

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    using Acc = typename F::Acc;
    const int slot = shape.slot(block.thread()), lane = shape.lane(block.thread());
    const int64_t part = block.index() / shape.tiles;
    const int64_t k = block.index() % shape.tiles * shape.slots() + slot;
    Acc acc = f.start();
    if (k < shape.outputs) {
      const int64_t origin = shape.origin(k), last = shape.count * (part + 1) / shape.parts;
      const auto own = f.own(k);
      MOONFLOW_UNROLL_BY(4)
      for (int64_t i = shape.count * part / shape.parts + lane; i < last; i += shape.lanes)
        acc = f.fold(acc, own, i, origin + shape.offset(i));
    }
    Acc* const lanes = block.template shared<Acc>() + slot * shape.lanes;
    lanes[lane] = acc;
    for (int distance = shape.lanes / 2; distance > 0; distance /= 2) {
      block.sync();
      if (lane < distance) lanes[lane] = acc = f.merge(acc, lanes[lane + distance]);
    }
    if (lane > 0 || k >= shape.outputs) return;
    if (parts != nullptr)
      parts[part * shape.outputs + k] = acc;
    else
      f.finish(k, acc);
  }
};

// A warp for each output.
template <class F>
struct FoldTogether {
  static constexpr int kThreads = FoldShape::kThreads;
  F f;
  int64_t outputs, part_count;
  const typename F::Acc* parts;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t k = block.index() * (kThreads / kWarp) + block.thread() / kWarp;
    if (k >= outputs) return;  // the whole warp
    typename F::Acc acc = f.start();
    for (int64_t part = block.thread() % kWarp; part < part_count; part += kWarp)
      acc = f.merge(acc, parts[part * outputs + k]);
    const F& merging = f;
    acc = over_warp(block, acc, [&merging](auto a, auto b) { return merging.merge(a, b); });
    if (block.thread() % kWarp == 0) f.finish(k, acc);
  }
};

// `scratch` has the shape's scratch_bytes.
template <class F>
void fold(Stream& stream, const FoldShape& shape, const F& f, void* scratch) {
  using Acc = typename F::Acc;
  static_assert(sizeof(Acc) <= 16);
  if (shape.outputs == 0) return;
  Acc* const parts = shape.parts > 1 ? static_cast<Acc*>(scratch) : nullptr;
  constexpr int kThreads = FoldShape::kThreads, kWarps = kThreads / kWarp;
  launch(stream, shape.tiles * shape.parts, FoldParts<F>{f, shape, parts}, kThreads * sizeof(Acc));
  if (parts)
    launch(stream, (shape.outputs + kWarps - 1) / kWarps, FoldTogether<F>{f, shape.outputs, shape.parts, parts});
}

}  // namespace moonflow::cuda
