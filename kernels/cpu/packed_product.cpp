// The result is made in tiles that stay in registers while a block of terms is summed. Of that block, a few hundred
// rows of a are packed for the second cache, in the order in which tiles read them, and under them each panel of b's
// lanes for the nearest. What few tiles read is read where it is, if it is a matrix. A part of the result is one
// thread's, which packs for itself: with a handful of threads that is little beside the product.
#include "kernels/cpu/packed_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kBlockTerms = 192, kBlockRows = 256;
// Lanes of b that are packed together, in several panels: rows far apart lie in a page each.
constexpr int64_t kMostLanes = 128;
// Lanes of a panel of a, in whole registers: the rows of a tile.
template <class R>
constexpr int64_t kLeftLanes = (kTileRows<R> + R::kWidth - 1) / R::kWidth* R::kWidth;
// A panel that no more tiles than this read is not worth its copy.
constexpr int64_t kFewReads = 2;

// The piece of that index where `count` is cut evenly.
struct Range {
  int64_t first, last;
  Range(int64_t count, int64_t parts, int64_t index)
      : first(count * index / parts), last(count * (index + 1) / parts) {}
  int64_t size() const { return last - first; }
  Range moved(int64_t by) const {
    Range range = *this;
    range.first += by;
    range.last += by;
    return range;
  }
};

// ---- packing -----------------------------------------------------------------------------------------------------

struct Spot {
  int64_t offset, y, x;
};

// A place along a walk.
class Cursor {
 public:
  Cursor(const Walk& walk, int64_t index) : walk_(walk) {
    inner_ = index % walk.inners;
    index /= walk.inners;
    x_ = index % walk.xs;
    index /= walk.xs;
    y_ = index % walk.ys;
    outer_ = index / walk.ys;
  }
  Spot spot() const {
    return {outer_ * walk_.outer_step + inner_ * walk_.inner_step, walk_.y + y_ * walk_.y_step,
            walk_.x + x_ * walk_.x_step};
  }
  // How many go on along the fastest count that there is.
  int64_t run() const { return walk_.inners > 1 ? walk_.inners - inner_ : walk_.xs - x_; }
  // By no more than the run.
  void advance(int64_t by) {
    if (walk_.inners > 1) {
      inner_ += by;
      if (inner_ < walk_.inners) return;
      inner_ = 0;
      by = 1;
    }
    x_ += by;
    if (x_ < walk_.xs) return;
    x_ = 0;
    if (++y_ < walk_.ys) return;
    y_ = 0;
    ++outer_;
  }

 private:
  const Walk& walk_;
  int64_t inner_, x_, y_, outer_;
};

template <class T>
inline void copy(const T* from, int64_t from_step, int64_t count, T* to, int64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
  }
}

template <class T>
inline void clear(int64_t count, T* to, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i) to[i * to_step] = 0;
}

// Where a sum of coordinates lies in the image, or -1.
inline int64_t position(int64_t sum, int64_t apart, int64_t size) {
  if (apart > 1) {
    if (sum % apart != 0) return -1;
    sum /= apart;
  }
  return sum >= 0 && sum < size ? sum : -1;
}

// A run along one side beside one index of the other.
template <class T>
inline void copy_run(const Factor<T>& factor, const Walk& along, const Spot& start, const Spot& beside, int64_t count,
                     T* to, int64_t to_step) {
  const int64_t y = position(start.y + beside.y, factor.y_apart, factor.height);
  if (y < 0) return clear(count, to, to_step);
  const T* row = factor.data + start.offset + beside.offset + y * factor.row;
  const int64_t x = start.x + beside.x;
  if (along.inners > 1) {
    const int64_t there = position(x, factor.x_apart, factor.width);
    if (there < 0) return clear(count, to, to_step);
    return copy(row + there * factor.column, along.inner_step, count, to, to_step);
  }
  const int64_t step = along.x_step, last = x + (count - 1) * step;
  if (factor.x_apart == 1 && std::min(x, last) >= 0 && std::max(x, last) < factor.width)
    return copy(row + x * factor.column, step * factor.column, count, to, to_step);
  if (factor.x_apart == 1 && step == 1) {
    const int64_t first = std::clamp<int64_t>(-x, 0, count), end = std::clamp<int64_t>(factor.width - x, first, count);
    clear(first, to, to_step);
    copy(row + (x + first) * factor.column, factor.column, end - first, to + first * to_step, to_step);
    return clear(count - end, to + end * to_step, to_step);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t there = position(x + i * step, factor.x_apart, factor.width);
    to[i * to_step] = there < 0 ? T(0) : row[there * factor.column];
  }
}

// Lanes of a factor for a block of terms, packed or in place.
template <class T>
struct Panel {
  const T* data;
  int64_t lane_step, term_step;

  Panel moved(int64_t lanes) const { return {data + lanes * lane_step, lane_step, term_step}; }
};

template <class T>
Panel<T> in_place(const Factor<T>& factor, const Range& lanes, const Range& terms) {
  const int64_t lane_step = factor.lanes.inner_step, term_step = factor.terms.inner_step;
  return {factor.data + lanes.first * lane_step + terms.first * term_step, lane_step, term_step};
}

// Neighbours in registers, or halves of them, of which the last two may overlap.
template <int kNumbers, class T>
inline void copy_together(const T* from, int64_t count, T* to) {
  for (int64_t i = 0; i + kNumbers <= count; i += kNumbers) std::memcpy(to + i, from + i, kNumbers * sizeof(T));
  std::memcpy(to + count - kNumbers, from + count - kNumbers, kNumbers * sizeof(T));
}

template <class R, class T>
inline void pack_matrix(const Panel<T>& from, int64_t lanes, int64_t terms, T* to, int64_t step) {
  if (from.lane_step == 1) {
    for (int64_t k = 0; k < terms; ++k) {
      const T* const row = from.data + k * from.term_step;
      if (lanes >= R::kWidth)
        copy_together<R::kWidth>(row, lanes, to + k * step);
      else if (lanes >= R::kWidth / 2)
        copy_together<R::kWidth / 2>(row, lanes, to + k * step);
      else
        copy(row, 1, lanes, to + k * step, 1);
    }
    return;
  }
  const int64_t whole = from.term_step == 1 ? terms / R::kWidth * R::kWidth : 0;
  for (int64_t i = 0; i < lanes; i += R::kWidth) {
    const T* const rows = from.data + i * from.lane_step;
    for (int64_t k = 0; k < whole; k += R::kWidth)
      copy_square<R>(lanes - i, rows + k, from.lane_step, to + i + k * step, step);
  }
  for (int64_t i = 0; i < lanes; ++i)
    copy(from.data + i * from.lane_step + whole * from.term_step, from.term_step, terms - whole, to + i + whole * step,
         step);
}

// Whether the lanes of a term are neighbours.
template <class T>
bool is_straight(const Factor<T>& factor) {
  return factor.is_matrix() && factor.lanes.inner_step == 1;
}

// So many whole panels of lanes that are neighbours, one behind the other.
template <class R, class T>
inline void pack_together(const Panel<T>& from, int64_t panels, int64_t terms, T* to) {
  constexpr int64_t kLanes = 2 * R::kWidth;
  for (int64_t k = 0; k < terms; ++k)
    for (int64_t p = 0; p < panels; ++p)
      copy_together<R::kWidth>(from.data + k * from.term_step + p * kLanes, kLanes, to + (p * terms + k) * kLanes);
}

// Element (lane, term) of the two ranges goes to to[term * step + lane]; a step is as many lanes as whole registers
// have, or more, and what becomes of those beyond is nobody's matter.
template <class R, class T>
inline void pack(const Factor<T>& factor, const Range& lanes, const Range& terms, T* to, int64_t step) {
  if (factor.is_matrix()) return pack_matrix<R>(in_place(factor, lanes, terms), lanes.size(), terms.size(), to, step);
  const bool lanes_run = factor.runs_along_lanes;
  const Walk &along = lanes_run ? factor.lanes : factor.terms, &across = lanes_run ? factor.terms : factor.lanes;
  const Range &range = lanes_run ? lanes : terms, &others = lanes_run ? terms : lanes;
  const int64_t along_step = lanes_run ? 1 : step, across_step = lanes_run ? step : 1;
  Cursor at(along, range.first);
  for (int64_t done = 0; done < range.size();) {
    const int64_t count = std::min(at.run(), range.size() - done);
    const Spot start = at.spot();
    Cursor beside(across, others.first);
    for (int64_t i = 0; i < others.size(); ++i, beside.advance(1))
      copy_run(factor, along, start, beside.spot(), count, to + done * along_step + i * across_step, along_step);
    at.advance(count);
    done += count;
  }
}

// ---- the product -------------------------------------------------------------------------------------------------

template <class T>
struct Work {
  PackedSizes sizes;
  Factor<T> a, b;
  PackedResult<T> result;
  bool descends;
  T factor;
};

enum class Ending { Replace, Add, Descend };

// What is left to do with rows and columns of a result that is a matrix.
template <class T>
inline void finish(const PackedResult<T>& result, const Range& rows, const Range& columns) {
  if (!result.bias && !result.relu) return;
  const T* const bias = result.bias ? result.bias + columns.first : nullptr;
  for (int64_t i = rows.first; i < rows.last; ++i) {
    T* const row = result.data + i * result.row + columns.first;
    finish_row(row, columns.size(), bias, result.relu, row);
  }
}

// A tile goes to rows `row` on and columns `column` on of the result.
template <class T>
inline void store(const T* tile, int64_t tile_row, int64_t rows, int64_t columns, const PackedResult<T>& result,
                  int64_t row, int64_t column, Ending ending, T factor) {
  for (int64_t done = 0; done < columns;) {
    const int64_t within = (column + done) % result.run, count = std::min(result.run - within, columns - done);
    T* to = result.data + row * result.row + (column + done) / result.run * result.apart + within;
    const T* from = tile + done;
    for (int64_t i = 0; i < rows; ++i, to += result.row, from += tile_row) {
      if (ending == Ending::Replace)
        for (int64_t j = 0; j < count; ++j) to[j] = from[j];
      else if (ending == Ending::Add)
        for (int64_t j = 0; j < count; ++j) to[j] += from[j];
      else
        for (int64_t j = 0; j < count; ++j) to[j] -= factor * from[j];
    }
    done += count;
  }
}

// Fetches what is written next together; storing to one row after the other would wait for each.
template <class T>
inline void fetch_rows(const T* to, int64_t row, int64_t rows, int64_t count) {
  for (int64_t i = 0; i < rows; ++i, to += row) {
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + count - 1, 1);
  }
}

// A tile of rows of a by a panel of b.
template <class R, class T, class To>
inline void multiply_tile(int64_t rows, int64_t lanes, int64_t terms, const Panel<T>& a, const Panel<T>& b, T* to,
                          int64_t to_row, const To& ending) {
  const auto multiply = [&](auto vectors) {
    product_of_rows<R, kTileRows<R>, decltype(vectors)::value>(rows, terms, a.data, a.lane_step, a.term_step, b.data,
                                                               b.term_step, R::kWidth, to, to_row, ending);
  };
  if (lanes > R::kWidth)
    multiply(std::integral_constant<int, 2>());
  else
    multiply(std::integral_constant<int, 1>());
}

// A block of terms, and what becomes of the result by it.
struct Block {
  Range terms;
  Ending ending;
  bool is_last;
};

// A part of one group's result, given by its rows and columns.
template <class R, class T>
class Part {
 public:
  Part(const Work<T>& work, const Range& rows, const Range& columns, T* scratch)
      : work_(work), rows_(rows), columns_(columns), tiles_(divide_up(rows.size(), kTileRows<R>)), left_(scratch) {
    right_ = scratch + tiles_ * kLeftLanes<R> * std::min(work.sizes.inner, kBlockTerms);
    constexpr int64_t kApart = 512;  // rows that are a multiple of so many numbers apart share few sets of a cache
    const bool lies_well = work.a.terms.inner_step == 1 && work.a.lanes.inner_step % kApart != 0;
    reads_left_ = work.a.is_matrix() && (lies_well || divide_up(columns.size(), kLanes) <= kFewReads);
  }

  void multiply() {
    const int64_t inner = work_.sizes.inner, blocks = divide_up(inner, kBlockTerms);
    for (int64_t i = 0; i < blocks; ++i) {
      Range terms(divide_up(inner, R::kWidth), blocks, i);  // in whole squares, but for the last
      terms.first *= R::kWidth;
      terms.last = std::min(terms.last * R::kWidth, inner);
      multiply({terms, work_.descends ? Ending::Descend : i == 0 ? Ending::Replace : Ending::Add, i == blocks - 1});
    }
  }

 private:
  static constexpr int64_t kLanes = 2 * R::kWidth;

  Range tile_rows(int64_t tile) const {
    const Range range(rows_.size(), tiles_, tile);
    return range.moved(rows_.first);
  }

  Panel<T> left(int64_t tile, const Range& terms) const {
    if (reads_left_) return in_place(work_.a, tile_rows(tile), terms);
    return {left_ + tile * kLeftLanes<R> * terms.size(), 1, kLeftLanes<R>};
  }

  void multiply(const Block& block) {
    const Range& terms = block.terms;
    for (int64_t i = 0; i < tiles_ && !reads_left_; ++i)
      pack<R>(work_.a, tile_rows(i), terms, left_ + i * kLeftLanes<R> * terms.size(), kLeftLanes<R>);
    const bool straight = is_straight(work_.b);
    for (int64_t j = columns_.first, panels; j < columns_.last; j += panels * kLanes) {
      panels = straight ? std::clamp<int64_t>((columns_.last - j) / kLanes, 1, kMostLanes / kLanes) : 1;
      Range lanes = columns_;
      lanes.first = j;
      lanes.last = std::min(j + panels * kLanes, columns_.last);
      const int64_t width = lanes.size() > R::kWidth ? kLanes : R::kWidth;  // of a panel
      const bool is_whole = lanes.size() == panels * width;
      if (straight && is_whole && tiles_ <= kFewReads) {
        for (int64_t p = 0; p < panels; ++p)
          multiply(block, Range(lanes.size(), panels, p).moved(j), width,
                   in_place(work_.b, lanes, terms).moved(p * kLanes));
        continue;
      }
      if (!is_whole) std::fill_n(right_, width * terms.size(), T(0));
      if (panels > 1)
        pack_together<R>(in_place(work_.b, lanes, terms), panels, terms.size(), right_);
      else
        pack<R>(work_.b, lanes, terms, right_, width);
      for (int64_t p = 0; p < panels; ++p)
        multiply(block, Range(lanes.size(), panels, p).moved(j), width, {right_ + p * kLanes * terms.size(), 1, width});
    }
  }

  // By one panel, of so many lanes, which has some of these columns.
  void multiply(const Block& block, const Range& columns, int64_t width, const Panel<T>& right) {
    const PackedResult<T>& result = work_.result;
    const int64_t within = columns.first % result.run, terms = block.terms.size();
    const bool is_direct = columns.size() == width && result.run - within >= width && !work_.descends;
    alignas(kAlignment) T tile[kTileRows<R> * kLanes];
    for (int64_t i = 0; i < tiles_; ++i) {
      const Range rows = tile_rows(i);
      const Panel<T> a = left(i, block.terms);
      if (is_direct) {
        T* const to = result.data + rows.first * result.row + columns.first / result.run * result.apart + within;
        fetch_rows(to, result.row, rows.size(), width);
        if (block.ending == Ending::Add)
          multiply_tile<R>(rows.size(), width, terms, a, right, to, result.row, AddWhole());
        else
          multiply_tile<R>(rows.size(), width, terms, a, right, to, result.row, Replace());
      } else {
        multiply_tile<R>(rows.size(), width, terms, a, right, tile, kLanes, Replace());
        store(tile, kLanes, rows.size(), columns.size(), result, rows.first, columns.first, block.ending, work_.factor);
      }
      if (block.is_last) finish(result, rows, columns);
    }
  }

  const Work<T>& work_;
  const Range rows_, columns_;
  const int64_t tiles_;
  T *left_, *right_;  // for panels of a and of b
  bool reads_left_;   // where it is
};

// Elements for each thread.
int64_t scratch_of_part(const PackedSizes& sizes) {
  constexpr int64_t kFewRows = 6, kFewLanes = 8, kManyLanes = 16;  // of tiles, in narrow registers and in wide ones
  const int64_t left = divide_up(std::min(sizes.rows, kBlockRows), kFewRows) * kFewLanes + kManyLanes;
  return (left + kMostLanes) * std::min(sizes.inner, kBlockTerms);
}

// Groups, blocks of rows, and where those are no even work for the threads, columns cut in as many parts.
template <class T>
void run(const Work<T>& work, T* scratch) {
  const PackedSizes& sizes = work.sizes;
  if (sizes.groups * sizes.rows * sizes.columns == 0) return;
  const double flops = 2.0 * static_cast<double>(sizes.groups * sizes.rows * sizes.columns) * sizes.inner;
  const int64_t parts = threads_for(flops, kPartFlops);
  int64_t row_blocks = divide_up(sizes.rows, kBlockRows), column_blocks = 1;
  if (sizes.groups * row_blocks % parts != 0 && sizes.groups * row_blocks < 4 * parts) {
    column_blocks = std::min(parts, divide_up(sizes.columns, kMostLanes));
    if (column_blocks == 1) row_blocks = std::max(row_blocks, std::min(parts, sizes.rows));
  }
  const int64_t tasks = sizes.groups * row_blocks * column_blocks;
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      using R = Holding<T, decltype(wide)>;
      for (int64_t part = first; part < last; ++part) {
        const Range mine(tasks, parts, part);
        for (int64_t task = mine.first; task < mine.last; ++task) {
          const int64_t group = task / (row_blocks * column_blocks), block = task / column_blocks % row_blocks;
          // Columns begin with a panel, so that no more than the last one is narrow.
          const int64_t lanes = 2 * R::kWidth, panels = divide_up(sizes.columns, lanes);
          Range columns(panels, column_blocks, task % column_blocks);
          columns.first *= lanes;
          columns.last = std::min(columns.last * lanes, sizes.columns);
          Work<T> here = work;
          here.a.data += group * work.a.group;
          here.b.data += group * work.b.group;
          here.result.data += group * work.result.group;
          Part<R, T>(here, Range(sizes.rows, row_blocks, block), columns, scratch + part * scratch_of_part(sizes))
              .multiply();
        }
      }
    });
  });
}

template <class T>
void clear_result(const PackedSizes& sizes, const PackedResult<T>& result) {
  for (int64_t group = 0; group < sizes.groups; ++group) {
    PackedResult<T> here = result;
    here.data += group * result.group;
    for (int64_t i = 0; i < sizes.rows; ++i)
      for (int64_t j = 0; j < sizes.columns; ++j)
        here.data[i * result.row + j / result.run * result.apart + j % result.run] = 0;
    finish(here, Range(sizes.rows, 1, 0), Range(sizes.columns, 1, 0));
  }
}

}  // namespace

template <class T>
Factor<T> matrix_factor(const T* data, int64_t lane_step, int64_t term_step, int64_t group) {
  Factor<T> factor;
  factor.data = data;
  factor.lanes.inners = factor.terms.inners = Walk::kEndless;
  factor.lanes.inner_step = lane_step;
  factor.terms.inner_step = term_step;
  factor.runs_along_lanes = lane_step == 1;
  factor.group = group;
  return factor;
}

template <class T>
int64_t packed_scratch_bytes(const PackedSizes& sizes) {
  return threads() * scratch_of_part(sizes) * static_cast<int64_t>(sizeof(T));
}

template <class T>
void multiply_packed(const PackedSizes& sizes, const Factor<T>& a, const Factor<T>& b, const PackedResult<T>& result,
                     void* scratch) {
  if (sizes.inner == 0) return clear_result(sizes, result);
  run<T>({sizes, a, b, result, false, 0}, static_cast<T*>(scratch));
}

template <class T>
void descend_packed(const PackedSizes& sizes, const Factor<T>& a, const Factor<T>& b, T factor,
                    const PackedResult<T>& result, void* scratch) {
  run<T>({sizes, a, b, result, true, factor}, static_cast<T*>(scratch));
}

PackedSizes packed_sizes(const Product& product) {
  return {product.batch, product.rows, product.columns, product.inner};
}

template <class T>
Factor<T> left_factor(const Product& product, const T* a) {
  const bool turned = product.transpose_a;
  return matrix_factor(a, turned ? 1 : product.inner, turned ? product.rows : 1, product.rows * product.inner);
}

template <class T>
Factor<T> right_factor(const Product& product, const T* b) {
  const bool turned = product.transpose_b;
  return matrix_factor(b, turned ? product.inner : 1, turned ? 1 : product.columns, product.columns * product.inner);
}

template <class T>
PackedResult<T> packed_result(const Product& product, T* out) {
  return {out, product.columns, product.columns, 0, product.rows * product.columns};
}

#define MOONFLOW_PACKED(T)                                                                                        \
  template Factor<T> matrix_factor(const T*, int64_t, int64_t, int64_t);                                          \
  template int64_t packed_scratch_bytes<T>(const PackedSizes&);                                                   \
  template void multiply_packed(const PackedSizes&, const Factor<T>&, const Factor<T>&, const PackedResult<T>&,   \
                                void*);                                                                           \
  template void descend_packed(const PackedSizes&, const Factor<T>&, const Factor<T>&, T, const PackedResult<T>&, \
                               void*);                                                                            \
  template Factor<T> left_factor(const Product&, const T*);                                                       \
  template Factor<T> right_factor(const Product&, const T*);                                                      \
  template PackedResult<T> packed_result(const Product&, T*);
MOONFLOW_PACKED(float)
MOONFLOW_PACKED(double)
#undef MOONFLOW_PACKED

}  // namespace moonflow::cpu
