// Box copies on CUDA; see kernels/cuda/box.h.
#include "kernels/cuda/box.h"

#include "kernels/cuda/units.h"

namespace moonflow::cuda {
namespace {

// Each element by a thread of its own, in the order of the target.
template <class T>
struct CopyElements {
  Axes<Box::kMaxAxes> to_axes, from_axes;
  T* to;
  const T* from;
  MOONFLOW_DEVICE void operator()(int64_t i) const { to[to_axes.offset_of(i)] = from[from_axes.offset_of(i)]; }
};

// Squares of the two axes along which either side is contiguous, by way of shared memory, so that both are read and
// written in whole lines. A row of the square is one longer than it has elements, which spreads a column over the
// banks.
template <class T>
struct CopyTiles {
  static constexpr int kTile = 32, kThreads = 256, kRows = kThreads / kTile;
  Axes<Box::kMaxAxes> to_axes, from_axes;  // the others
  Box::Axis row, column;
  LongDivisor row_tiles, column_tiles;
  T* to;
  const T* from;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    T* const tile = block.template shared<T>();
    int64_t row_tile, column_tile;
    const int64_t outer = column_tiles.quotient(row_tiles.quotient(block.index(), row_tile), column_tile);
    const T* const source = from + from_axes.offset_of(outer);
    T* const target = to + to_axes.offset_of(outer);
    const int64_t r0 = row_tile * kTile, c0 = column_tile * kTile;
    const int x = block.thread() % kTile;
    for (int y = block.thread() / kTile; y < kTile; y += kRows) {
      if (r0 + y < row.size && c0 + x < column.size) tile[y * (kTile + 1) + x] = source[(r0 + y) * row.from + (c0 + x)];
    }
    block.sync();
    for (int y = block.thread() / kTile; y < kTile; y += kRows) {
      if (r0 + x < row.size && c0 + y < column.size)
        target[(c0 + y) * column.to + (r0 + x)] = tile[x * (kTile + 1) + y];
    }
  }
};

// Where runs are contiguous on both sides, pairs of elements are elements too.
void widen(Box& box, int64_t& element_bytes) {
  while (element_bytes < 16 && !box.axes.empty()) {
    const Box::Axis inner = box.axes.back();
    bool even =
        inner.to == 1 && inner.from == 1 && inner.size % 2 == 0 && box.to_start % 2 == 0 && box.from_start % 2 == 0;
    for (size_t i = 0; even && i + 1 < box.axes.size(); ++i)
      even = box.axes[i].to % 2 == 0 && box.axes[i].from % 2 == 0;
    if (!even) return;
    for (size_t i = 0; i + 1 < box.axes.size(); ++i) {
      box.axes[i].to /= 2;
      box.axes[i].from /= 2;
    }
    box.axes.back().size /= 2;
    box.to_start /= 2;
    box.from_start /= 2;
    element_bytes *= 2;
  }
}

}  // namespace

BoxCopy::BoxCopy(int64_t element_bytes, const Box& given) : element_bytes_(element_bytes) {
  Box box = given;
  to_start_ = box.to_start;
  from_start_ = box.from_start;
  if (box.empty()) return;
  box = box.joined();
  widen(box, element_bytes_);
  to_start_ = box.to_start;
  from_start_ = box.from_start;
  count_ = 1;
  for (const Box::Axis& axis : box.axes) count_ *= axis.size;

  // Few elements along either axis leave most of a tile empty; then the target is written in its order.
  constexpr int64_t kLeast = 8;
  std::vector<Box::Axis>& axes = box.axes;
  if (!axes.empty() && axes.back().to == 1 && axes.back().from > 1 && axes.back().size >= kLeast) {
    for (size_t i = 0; i + 1 < axes.size() && !tiled_; ++i) {
      if (axes[i].from != 1 || axes[i].size < kLeast) continue;
      tiled_ = true;
      row_ = axes.back();
      column_ = axes[i];
      axes.pop_back();
      axes.erase(axes.begin() + i);
    }
  }
  for (const Box::Axis& axis : axes) {
    to_.append(axis.size, axis.to);
    from_.append(axis.size, axis.from);
  }
}

void BoxCopy::run(Stream& stream, void* to, const void* from) const {
  visit_bytes(element_bytes_, [&](auto zero) {
    using T = decltype(zero);
    T* const target = static_cast<T*>(to) + to_start_;
    const T* const source = static_cast<const T*>(from) + from_start_;
    if (!tiled_) return for_each(stream, count_, CopyElements<T>{to_, from_, target, source});
    using Copy = CopyTiles<T>;
    constexpr int kTile = Copy::kTile;
    const int64_t rows = (row_.size + kTile - 1) / kTile, columns = (column_.size + kTile - 1) / kTile;
    const int64_t outer = count_ / (row_.size * column_.size);
    launch(stream, outer * rows * columns,
           Copy{to_, from_, row_, column_, LongDivisor(rows), LongDivisor(columns), target, source},
           kTile * (kTile + 1) * sizeof(T));
  });
}

CudaKernel copy_kernel(Box (*box)(const KernelCall&)) {
  const auto prepare = [box](KernelCall& call) -> Launch {
    const BoxCopy copy(size_of(call.inputs[0].dtype), box(call));
    return [copy](const LaunchCall& at) { copy.run(at.stream, at.outputs[0], at.inputs[0]); };
  };
  return {{prepare}, true};
}

}  // namespace moonflow::cuda
