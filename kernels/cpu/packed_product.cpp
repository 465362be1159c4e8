// The result is made in tiles that stay in registers while a block of terms is summed. Of that block, a few hundred
// rows of a are packed for the second cache, in the order in which tiles read them, and panels of b's lanes; the panel
// in use is in the nearest cache or streams from the second. What few tiles read is read where it is, if it is a
// matrix. A part of the result is one thread's, which packs for itself: with a handful of threads that is little beside
// the product.
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

constexpr int64_t kBlockTerms = 384, kBlockRows = 256;
// Lanes of b that are packed together, in several panels: rows far apart lie in a page each.
constexpr int64_t kMostLanes = 128;
// Lanes of b whose panels are kept for several blocks of rows.
constexpr int64_t kKeptLanes = 1024;
// A panel of a that no more panels of b than this meet is not worth its copy.
constexpr int64_t kFewReads = 2;
// Nor is one of b that no more rows meet. Its terms are fewer then: rows in as many pages as the processor knows at
// once.
constexpr int64_t kFewRows = 28, kFewTerms = 64;

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

// Rows of the result in tiles of about the same height.
struct Tiles {
  Range rows;
  int64_t count;

  template <class R>
  static Tiles of(const Range& rows) {
    return {rows, divide_up(rows.size(), kTileRows<R>)};
  }
  Range operator[](int64_t tile) const { return Range(rows.size(), count, tile).moved(rows.first); }
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

// Lanes of the panels of a, for so many rows.
int64_t left_lanes(int64_t rows) {
  constexpr int64_t kLowest = 6, kFewLanes = 8, kManyLanes = 16;  // of tiles, in narrow registers and in wide ones
  return divide_up(std::min(rows, kBlockRows), kLowest) * kFewLanes + kManyLanes;
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

// A tile of rows of a by a panel of b.
template <class R, class T, class To>
inline void multiply_tile(int64_t rows, int64_t lanes, int64_t terms, const Panel<T>& a, const Panel<T>& b, T* to,
                          int64_t to_row, const To& ending) {
  const auto multiply = [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const auto with = [&](auto a_row, auto a_step, auto b_step) {
      product_of_rows<R, kTileRows<R>, kVectors>(rows, terms, a.data, a_row, a_step, b.data, b_step, Step<R::kWidth>(),
                                                 to, to_row, ending);
    };
    const Step<kVectors * R::kWidth> packed;
    if (b.term_step != packed)
      with(a.lane_step, a.term_step, FarStep{b.term_step});
    else if (a.term_step == 1)
      with(a.lane_step, Step<1>(), packed);
    else
      with(Step<1>(), Step<kLeftLanes<R>>(), packed);
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
      : work_(work),
        rows_(rows),
        columns_(columns),
        blocks_(divide_up(rows.size(), kBlockRows)),
        left_(scratch),
        right_(scratch + left_lanes(rows.size()) * std::min(work.sizes.inner, kBlockTerms)),
        is_straight_(is_straight(work.b)) {
    constexpr int64_t kApart = 512;  // rows that are a multiple of so many numbers apart share few sets of a cache
    const bool lies_well = work.a.lanes.inner_step % kApart != 0 || divide_up(columns.size(), kLanes) <= kFewReads;
    reads_left_ = work.a.is_matrix() && work.a.terms.inner_step == 1 && lies_well;
    reads_right_ = is_straight_ && work.sizes.rows <= kFewRows;  // of all, so that sums do not depend on threads
  }

  void multiply() {
    const int64_t inner = work_.sizes.inner, blocks = divide_up(inner, reads_right_ ? kFewTerms : kBlockTerms);
    const int64_t lanes = blocks_ > 1 ? kKeptLanes : columns_.size();
    for (int64_t j = columns_.first; j < columns_.last; j += lanes) {
      Range columns = columns_;
      columns.first = j;
      columns.last = std::min(j + lanes, columns_.last);
      for (int64_t i = 0; i < blocks; ++i) {
        Range terms(divide_up(inner, R::kWidth), blocks, i);  // in whole squares, but for the last
        terms.first *= R::kWidth;
        terms.last = std::min(terms.last * R::kWidth, inner);
        const Ending ending = work_.descends ? Ending::Descend : i == 0 ? Ending::Replace : Ending::Add;
        multiply({terms, ending, i == blocks - 1}, columns);
      }
    }
  }

 private:
  static constexpr int64_t kLanes = 2 * R::kWidth;

  Panel<T> left(const Tiles& tiles, int64_t tile, const Range& terms) const {
    if (reads_left_) return in_place(work_.a, tiles[tile], terms);
    return {left_ + tile * kLeftLanes<R> * terms.size(), 1, kLeftLanes<R>};
  }

  void multiply(const Block& block, const Range& columns) {
    for (int64_t i = 0; i < blocks_; ++i) {
      const auto tiles = Tiles::of<R>(Range(rows_.size(), blocks_, i).moved(rows_.first));
      if (!reads_left_) pack_left(tiles, block.terms);
      multiply(block, tiles, columns, i == 0);
    }
  }

  // Where there are several blocks of rows, the panels of b that the first one packs are kept for the others.
  void multiply(const Block& block, const Tiles& tiles, const Range& columns, bool packs) {
    const Range& terms = block.terms;
    for (int64_t j = columns.first, panels; j < columns.last; j += panels * kLanes) {
      panels = is_straight_ ? std::clamp<int64_t>((columns.last - j) / kLanes, 1, kMostLanes / kLanes) : 1;
      Range lanes = columns;
      lanes.first = j;
      lanes.last = std::min(j + panels * kLanes, columns.last);
      const int64_t width = lanes.size() > R::kWidth ? kLanes : R::kWidth;  // of a panel
      const bool is_whole = lanes.size() == panels * width;
      if (reads_right_ && is_whole) {
        for (int64_t p = 0; p < panels; ++p)
          multiply(block, tiles, Range(lanes.size(), panels, p).moved(j), width,
                   in_place(work_.b, lanes, terms).moved(p * kLanes));
        continue;
      }
      T* const right = blocks_ > 1 ? right_ + (j - columns.first) * terms.size() : right_;
      if (packs) pack_right(lanes, panels, width, terms, right);
      for (int64_t p = 0; p < panels; ++p)
        multiply(block, tiles, Range(lanes.size(), panels, p).moved(j), width,
                 {right + p * kLanes * terms.size(), 1, width});
    }
  }

  void pack_left(const Tiles& tiles, const Range& terms) const {
    for (int64_t i = 0; i < tiles.count; ++i)
      pack<R>(work_.a, tiles[i], terms, left_ + i * kLeftLanes<R> * terms.size(), kLeftLanes<R>);
  }

  void pack_right(const Range& lanes, int64_t panels, int64_t width, const Range& terms, T* to) const {
    if (lanes.size() < panels * width) std::fill_n(to, width * terms.size(), T(0));
    if (panels > 1)
      pack_together<R>(in_place(work_.b, lanes, terms), panels, terms.size(), to);
    else
      pack<R>(work_.b, lanes, terms, to, width);
  }

  // By one panel, of so many lanes, which has some of these columns.
  void multiply(const Block& block, const Tiles& tiles, const Range& columns, int64_t width, const Panel<T>& right) {
    const PackedResult<T>& result = work_.result;
    const int64_t within = columns.first % result.run, terms = block.terms.size();
    const bool is_direct = columns.size() == width && result.run - within >= width && !work_.descends;
    const bool adds = block.ending == Ending::Add;
    alignas(kAlignment) T tile[kTileRows<R> * kLanes];
    for (int64_t i = 0; i < tiles.count; ++i) {
      const Range rows = tiles[i];
      const Panel<T> a = left(tiles, i, block.terms);
      if (is_direct) {
        T* const to = result.data + rows.first * result.row + columns.first / result.run * result.apart + within;
        fetch_rows(to, result.row, rows.size(), width);
        multiply_tile<R>(rows.size(), width, terms, a, right, to, result.row, ReplaceOrAdd{adds});
      } else {
        multiply_tile<R>(rows.size(), width, terms, a, right, tile, kLanes, ReplaceOrAdd{false});
        store(tile, kLanes, rows.size(), columns.size(), result, rows.first, columns.first, block.ending, work_.factor);
      }
      if (block.is_last) finish(result, rows, columns);
    }
  }

  const Work<T>& work_;
  const Range rows_, columns_;
  const int64_t blocks_;           // of rows
  T *const left_, *const right_;   // for panels of a and of b
  const bool is_straight_;         // b
  bool reads_left_, reads_right_;  // where they are
};

// Elements for each thread.
int64_t scratch_of_part(const PackedSizes& sizes) {
  const int64_t right =
      sizes.rows > kBlockRows ? std::min(round_up(sizes.columns, kMostLanes), kKeptLanes) : kMostLanes;
  return (left_lanes(sizes.rows) + right) * std::min(sizes.inner, kBlockTerms);
}

// Groups, and where those are no even work for the threads, as many parts of each along its longer side.
template <class T>
void run(const Work<T>& work, T* scratch) {
  const PackedSizes& sizes = work.sizes;
  if (sizes.groups * sizes.rows * sizes.columns == 0) return;
  const double flops = 2.0 * static_cast<double>(sizes.groups * sizes.rows * sizes.columns) * sizes.inner;
  const int64_t parts = threads_for(flops, kPartFlops);
  const bool is_even = sizes.groups % parts == 0 || sizes.groups >= 4 * parts;
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      using R = Holding<T, decltype(wide)>;
      // Columns begin with a panel, so that no more than the last one is narrow.
      const int64_t lanes = 2 * R::kWidth, panels = divide_up(sizes.columns, lanes);
      const bool by_rows = sizes.rows > sizes.columns || panels < parts;
      const int64_t row_parts = is_even || !by_rows ? 1 : std::min(parts, sizes.rows);
      const int64_t column_parts = is_even || by_rows ? 1 : parts;
      const int64_t tasks = sizes.groups * row_parts * column_parts;
      for (int64_t part = first; part < last; ++part) {
        const Range mine(tasks, parts, part);
        for (int64_t task = mine.first; task < mine.last; ++task) {
          const int64_t group = task / (row_parts * column_parts);
          Range columns(panels, column_parts, task % column_parts);
          columns.first *= lanes;
          columns.last = std::min(columns.last * lanes, sizes.columns);
          Work<T> here = work;
          here.a.data += group * work.a.group;
          here.b.data += group * work.b.group;
          here.result.data += group * work.result.group;
          Part<R, T>(here, Range(sizes.rows, row_parts, task / column_parts % row_parts), columns,
                     scratch + part * scratch_of_part(sizes))
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
