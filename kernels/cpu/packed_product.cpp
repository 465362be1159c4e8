// The result is made in tiles that stay in registers while a block of terms is summed. Of that block, a few hundred
// rows of a are packed for the second cache, in the order in which tiles read them, and under them each panel of b's
// lanes for the nearest. What few tiles read is read where it is, if it is a matrix. A part of the result is one
// thread's, which packs for itself: with a handful of threads that is little beside the product.
#include "kernels/cpu/packed_product.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rounding.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kBlockTerms = 192, kBlockRows = 224;
constexpr int64_t kMostLanes = 32;  // of a panel of b
// A panel that no more tiles than this read is not worth its copy.
constexpr int64_t kFewReads = 2;

// The piece of that index where `count` is cut evenly.
struct Range {
  int64_t first, last;
  Range(int64_t count, int64_t parts, int64_t index)
      : first(count * index / parts), last(count * (index + 1) / parts) {}
  int64_t size() const { return last - first; }
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
};

template <class T>
Panel<T> in_place(const Factor<T>& factor, const Range& lanes, const Range& terms) {
  const int64_t lane_step = factor.lanes.inner_step, term_step = factor.terms.inner_step;
  return {factor.data + lanes.first * lane_step + terms.first * term_step, lane_step, term_step};
}

template <class T>
inline void pack_matrix(const Panel<T>& from, int64_t lanes, int64_t terms, T* to, int64_t step) {
  if (from.lane_step == 1)
    for (int64_t k = 0; k < terms; ++k) copy(from.data + k * from.term_step, 1, lanes, to + k * step, 1);
  else
    for (int64_t i = 0; i < lanes; ++i) copy(from.data + i * from.lane_step, from.term_step, terms, to + i, step);
}

// Element (lane, term) of the two ranges goes to to[term * step + lane].
template <class T>
inline void pack(const Factor<T>& factor, const Range& lanes, const Range& terms, T* to, int64_t step) {
  if (factor.is_matrix()) return pack_matrix(in_place(factor, lanes, terms), lanes.size(), terms.size(), to, step);
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

// A part of one group's result, given by its rows and columns.
template <class R, class T>
inline void multiply_part(const Work<T>& work, const Range& rows, const Range& columns, T* scratch) {
  constexpr int64_t kLanes = 2 * R::kWidth, kTile = kTileRows<R>;
  alignas(kAlignment) T tile[kTile * kLanes];
  T *const panels = scratch, *const b_panel = scratch + rows.size() * std::min(work.sizes.inner, kBlockTerms);
  const int64_t tiles = divide_up(rows.size(), kTile), blocks = divide_up(work.sizes.inner, kBlockTerms);
  const bool a_in_place = work.a.is_matrix() && divide_up(columns.size(), kLanes) <= kFewReads;
  const auto tile_rows = [&](int64_t index) {
    Range range(rows.size(), tiles, index);
    range.first += rows.first;
    range.last += rows.first;
    return range;
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const Range terms(work.sizes.inner, blocks, block);
    const Ending ending = work.descends ? Ending::Descend : block == 0 ? Ending::Replace : Ending::Add;
    const auto a_panel = [&](const Range& range) -> T* { return panels + (range.first - rows.first) * terms.size(); };
    for (int64_t i = 0; i < tiles && !a_in_place; ++i) {
      const Range range = tile_rows(i);
      pack(work.a, range, terms, a_panel(range), range.size());
    }
    for (int64_t j = columns.first; j < columns.last; j += kLanes) {
      Range lanes = columns;
      lanes.first = j;
      lanes.last = std::min(j + kLanes, columns.last);
      const bool wide = lanes.size() > R::kWidth;
      const int64_t panel_lanes = wide ? kLanes : R::kWidth;
      Panel<T> b{b_panel, 1, panel_lanes};
      if (work.b.is_matrix() && work.b.lanes.inner_step == 1 && tiles <= kFewReads && lanes.size() == panel_lanes) {
        b = in_place(work.b, lanes, terms);
      } else {
        if (lanes.size() < panel_lanes) std::fill_n(b_panel, panel_lanes * terms.size(), T(0));
        pack(work.b, lanes, terms, b_panel, panel_lanes);
      }
      for (int64_t i = 0; i < tiles; ++i) {
        const Range range = tile_rows(i);
        const Panel<T> a = a_in_place ? in_place(work.a, range, terms) : Panel<T>{a_panel(range), 1, range.size()};
        if (wide)
          product_of_rows<R, kTile, 2>(range.size(), terms.size(), a.data, a.lane_step, a.term_step, b.data,
                                       b.term_step, R::kWidth, tile, kLanes, Replace());
        else
          product_of_rows<R, kTile, 1>(range.size(), terms.size(), a.data, a.lane_step, a.term_step, b.data,
                                       b.term_step, R::kWidth, tile, kLanes, Replace());
        store(tile, kLanes, range.size(), lanes.size(), work.result, range.first, j, ending, work.factor);
      }
    }
  }
}

// Elements for each thread.
int64_t scratch_of_part(const PackedSizes& sizes) {
  return (std::min(sizes.rows, kBlockRows) + kMostLanes) * std::min(sizes.inner, kBlockTerms);
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
          multiply_part<R>(here, Range(sizes.rows, row_blocks, block), columns,
                           scratch + part * scratch_of_part(sizes));
        }
      }
    });
  });
}

template <class T>
void clear_result(const PackedSizes& sizes, const PackedResult<T>& result) {
  for (int64_t group = 0; group < sizes.groups; ++group)
    for (int64_t i = 0; i < sizes.rows; ++i)
      for (int64_t j = 0; j < sizes.columns; ++j)
        result.data[group * result.group + i * result.row + j / result.run * result.apart + j % result.run] = 0;
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
