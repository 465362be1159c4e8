// Images between rows and channels last: per image a matrix of channels by places, turned over tile by tile through
// shared memory, so that both sides are touched in rows.
#include "kernels/cuda/layout.h"

#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kRowsAtATime = 8;  // of a tile

// `count` matrices of rows x columns become columns x rows.
template <class T>
struct Transpose {
  static constexpr int kThreads = kTile * kRowsAtATime;
  static constexpr int kPitch = kTile + 1;  // so that the places of a column lie in different banks
  const T* x;
  T* y;
  int64_t rows, columns, tiles_down, tiles_across;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    T* const tile = block.template shared<T>();
    const int64_t across = block.index() % tiles_across, down = block.index() / tiles_across % tiles_down;
    const int64_t matrix = block.index() / (tiles_across * tiles_down) * rows * columns;
    const int lane = block.thread() % kTile, first = block.thread() / kTile;
    for (int i = first; i < kTile; i += kRowsAtATime) {
      const int64_t row = down * kTile + i, column = across * kTile + lane;
      if (row < rows && column < columns) tile[i * kPitch + lane] = x[matrix + row * columns + column];
    }
    block.sync();
    for (int i = first; i < kTile; i += kRowsAtATime) {
      const int64_t row = across * kTile + i, column = down * kTile + lane;
      if (row < columns && column < rows) y[matrix + row * rows + column] = tile[lane * kPitch + i];
    }
  }
};

template <class T>
Launch transpose(int64_t count, int64_t rows, int64_t columns) {
  const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
  return [=](const LaunchCall& call) {
    if (count * rows * columns == 0) return;
    launch(call.stream, count * down * across,
           Transpose<T>{call.input<T>(0), call.output<T>(0), rows, columns, down, across},
           kTile * Transpose<T>::kPitch * sizeof(T));
  };
}

}  // namespace

Launch reorder(const TensorType& type, const Layout& from, const Layout& to) {
  require(type.shape.rank() >= 3 && from != to && (from.row_major() || is_channels_last(from)) &&
              (to.row_major() || is_channels_last(to)),
          ErrorCode::Unsupported, "no such change of layout of ", type, " on the gpu");
  const int64_t count = type.shape[0], channels = type.shape[1], places = type.shape.count(2, type.shape.rank());
  const bool forth = from.row_major();
  const int64_t rows = forth ? channels : places, columns = forth ? places : channels;
  switch (size_of(type.dtype)) {
    case 1:
      return transpose<uint8_t>(count, rows, columns);
    case 2:
      return transpose<uint16_t>(count, rows, columns);
    case 4:
      return transpose<uint32_t>(count, rows, columns);
    default:
      return transpose<uint64_t>(count, rows, columns);
  }
}

}  // namespace moonflow::cuda
