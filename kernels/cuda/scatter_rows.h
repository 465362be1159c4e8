// Reading rows that indices name, and putting rows there, on CUDA. A bad index is noted where it is read, nothing is
// read or written for it, and the run ends with the error.
#pragma once

#include <algorithm>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/units.h"
#include "kernels/into.h"
#include "kernels/picked_rows.h"

namespace moonflow::cuda {

// The rows of a block that its picks name.
struct NamedRows {
  PickedRows places;
  Indices indices;
  LongDivisor within;

  NamedRows(const LaunchCall& at, const PickedRows& places, int input, DType dtype)
      : places(places), indices(at, input, dtype, 0), within(places.within) {}

  // -1 where an index is bad; one of those who read it `reports` it.
  template <class Block>
  MOONFLOW_DEVICE int64_t row(const Block& block, int64_t of_block, int64_t pick, bool reports) const {
    const int64_t first = (places.shared ? pick : of_block * places.picks + pick) * places.length;
    int64_t row = 0;
    if (places.within > 1) within.quotient(pick, row);
    for (int axis = 0; axis < places.length; ++axis) {
      const int64_t index = indices.at(first + axis);
      if (index < 0 || index >= places.bounds[axis]) {
        if (reports) note_fault(block, indices.note, indices.step, first + axis, index);
        return -1;
      }
      row += index * places.steps[axis];
    }
    return row;
  }
};

// For what has no elements: bad indices are errors all the same.
struct CheckRows {
  NamedRows named;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t i) const {
    named.row(block, 0, i, true);
  }
};

// ---- reading ---------------------------------------------------------------------------------------------------

// Rows as `row_units` values of T each.
template <class T>
struct TakeRows {
  NamedRows named;
  const T* value;
  T* out;
  int64_t row_units;
  LongDivisor units, picks;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t e) const {
    int64_t unit, pick;
    const int64_t of_block = picks.quotient(units.quotient(e, unit), pick);
    const int64_t row = named.row(block, of_block, pick, true);
    if (row >= 0) out[e] = value[(of_block * named.places.rows + row) * row_units + unit];
  }
};

inline void explain_indices(KernelCall& call, const PickedRows& places, int indices) {
  call.explain = [places, shape = call.inputs[indices].shape](int64_t flat, int64_t index) {
    fail_index(places, shape, flat, index);
  };
}

// The one output is the rows that the input `indices` names in the first input, pick by pick. Any dtype.
inline Launch take_rows(KernelCall& call, const PickedRows& places, int indices) {
  explain_indices(call, places, indices);
  const DType dtype = call.inputs[indices].dtype;
  const int64_t row_bytes = places.inner * size_of(call.inputs[0].dtype);
  int64_t unit = 16;
  while (row_bytes % unit != 0) unit /= 2;
  return visit_bytes(unit, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const int64_t row_units = row_bytes / unit, count = places.blocks * places.picks * row_units;
    return [=](const LaunchCall& at) {
      const NamedRows named(at, places, indices, dtype);
      if (count == 0) return for_each(at.stream, places.tuples(), CheckRows{named});
      for_each(at.stream, count,
               TakeRows<T>{named, at.input<T>(0), at.output<T>(0), row_units, LongDivisor(row_units),
                           LongDivisor(places.picks)});
    };
  });
}

// ---- writing ---------------------------------------------------------------------------------------------------

// The picks of some rows in some columns, taken in in the order of the picks, so that no two runs differ. A block goes
// through all picks for as many rows as it has room for, finds its own, and takes them in, a thread for each column:
// that reads the indices rows * columns / kRoom times, which for a vocabulary is little beside what is added.
template <class T, Into into>
struct ScatterRows {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int kRoom = 4096;  // results of a block
  NamedRows named;
  const T* updates;
  const T* initial;                             // nullptr: unpicked
  T* results;                                   // or the parts of them
  int64_t columns, rows, groups, tiles, parts;  // rows and columns of a block

  struct Found {
    int64_t pick;
    int row;
  };
  static constexpr int64_t kShared = kRoom * sizeof(T) + kThreads * (sizeof(Found) + sizeof(T)) + kWarps * sizeof(int);

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    T* const own = block.template shared<T>();  // [row][column]
    Found* const found = reinterpret_cast<Found*>(own + kRoom);
    T* const values = reinterpret_cast<T*>(found + kThreads);  // of those found, where there is one column
    int* const found_by_warps = reinterpret_cast<int*>(values + kThreads);

    const PickedRows& p = named.places;
    const int thread = block.thread(), lane = thread % kWarp, warp = thread / kWarp;
    const int64_t group = block.index() % groups, tile = block.index() / groups % tiles;
    const int64_t part = block.index() / (groups * tiles) % parts, outer = block.index() / (groups * tiles * parts);
    const int64_t first_row = group * rows, first_column = tile * columns;
    const int64_t own_rows = rows < p.rows - first_row ? rows : p.rows - first_row;
    const T* const from = updates + outer * p.picks * p.inner + first_column;
    const auto each = [&](const T* data, int64_t block_of_data, auto work) {
      const int width = static_cast<int>(columns), count = static_cast<int>(own_rows) * width;
      const int64_t first = (block_of_data * p.rows + first_row) * p.inner + first_column;
      for (int i = thread; i < count; i += kThreads) {
        const int row = i / width, column = i - row * width;
        if (first_column + column < p.inner) work(own[i], data, first + row * p.inner + column);
      }
    };

    each(part == 0 ? initial : nullptr, outer,
         [](T& result, const T* data, int64_t at) { result = data ? data[at] : unpicked<into, T>(); });
    const int64_t last = p.picks * (part + 1) / parts;
    for (int64_t first = p.picks * part / parts; first < last; first += kThreads) {
      const int64_t pick = first + thread;
      int64_t row = -1;
      if (pick < last) {
        // One block has the say about a bad index.
        const bool reports = group == 0 && tile == 0 && (outer == 0 || !p.shared);
        row = named.row(block, outer, pick, reports);
        row = row < 0 ? -1 : row - first_row;
      }
      const bool is_own = row >= 0 && row < own_rows;
      const unsigned owners = block.ballot(is_own);
      if (lane == 0) found_by_warps[warp] = count_bits(owners);
      block.sync();
      int before = 0, total = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += found_by_warps[w];
        total += found_by_warps[w];
      }
      if (is_own) {
        const int place = before + count_bits(owners & ((1u << lane) - 1));
        found[place] = {pick, static_cast<int>(row)};
        if (p.inner == 1) values[place] = from[pick];
      }
      block.sync();
      if (thread < columns && first_column + thread < p.inner) {
        if (p.inner == 1)
          take_in(own, found, total, [&](int i) { return values[i]; });
        else
          take_in(own + thread, found, total, [&](int i) { return from[found[i].pick * p.inner + thread]; });
      }
      block.sync();  // before the next ones are found
    }
    each(nullptr, part * p.blocks + outer, [to = results](T& result, const T*, int64_t at) { to[at] = result; });
  }

 private:
  static MOONFLOW_DEVICE int count_bits(unsigned bits) {
    int count = 0;
    for (; bits; bits &= bits - 1) ++count;
    return count;
  }
  // Some are read before they are taken in, so that one does not wait for the other.
  template <class Value>
  MOONFLOW_DEVICE void take_in(T* own, const Found* found, int count, const Value& value) const {
    constexpr int kAhead = 4;
    for (int i = 0; i < count; i += kAhead) {
      T next[kAhead];
      for (int k = 0; k < kAhead; ++k) next[k] = i + k < count ? value(i + k) : T(0);
      for (int k = 0; k < kAhead; ++k) {
        if (i + k >= count) break;
        T& result = own[found[i + k].row * columns];
        result = taken_in<into>(result, next[k]);
      }
    }
  }
};

// Those of integers, which a double does not hold.
template <class T>
struct SumParts {
  const T* of_parts;
  T* out;
  int64_t count, parts;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    T sum = of_parts[i];
    for (int64_t part = 1; part < parts; ++part) sum = functor::Add()(sum, of_parts[part * count + i]);
    out[i] = sum;
  }
};

// The one output is the value of the input `initial`, or what is unpicked where there is none (-1), into which each row
// of `updates` goes in the order of the picks.
template <Into into>
Launch scatter_rows(KernelCall& call, const PickedRows& p, int initial, int indices, int updates) {
  const DType index_dtype = call.inputs[indices].dtype;
  const int64_t count = call.outputs[0].count();
  explain_indices(call, p, indices);
  return visit(call.inputs[updates].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Scatter = ScatterRows<T, into>;
    if (count == 0) {
      return [=](const LaunchCall& at) {
        for_each(at.stream, p.tuples(), CheckRows{NamedRows(at, p, indices, index_dtype)});
      };
    }
    const int64_t columns = std::min<int64_t>(p.inner, Scatter::kThreads), rows = Scatter::kRoom / columns;
    const int64_t groups = (p.rows + rows - 1) / rows, tiles = (p.inner + columns - 1) / columns;
    // Where few blocks have all the sums, several share the picks.
    constexpr int64_t kBlocks = 512, kLeastPicks = 2048;
    const int64_t most = into == Into::Sum ? std::max<int64_t>(p.picks / kLeastPicks, 1) : 1;
    const int64_t parts = std::clamp<int64_t>(kBlocks / (p.blocks * groups * tiles), 1, most);
    if (parts > 1) call.scratch_bytes = checked_product(checked_product(parts, count), sizeof(T));
    return [=](const LaunchCall& at) {
      T *const out = at.output<T>(0), *const results = parts > 1 ? static_cast<T*>(at.scratch) : out;
      launch(at.stream, p.blocks * parts * tiles * groups,
             Scatter{NamedRows(at, p, indices, index_dtype), at.input<T>(updates),
                     initial < 0 ? nullptr : at.input<T>(initial), results, columns, rows, groups, tiles, parts},
             Scatter::kShared);
      if (parts == 1) return;
      if constexpr (std::is_floating_point_v<T>) {
        add_parts(at.stream, AddParts<T, T>{results, out, parts, count});
      } else {
        for_each(at.stream, count, SumParts<T>{results, out, count, parts});
      }
    };
  });
}

}  // namespace moonflow::cuda
