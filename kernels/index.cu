// Gather and one_hot on CUDA. An index outside its axis is noted where it is read, nothing is read or written for it,
// and the run ends with the error.
#include <algorithm>

#include "kernels/bad_index.h"
#include "kernels/cuda/axes.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/units.h"
#include "kernels/picking.h"

namespace moonflow::cuda {
namespace {

// For what has no elements: bad indices are errors all the same.
struct Check {
  Indices indices;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t i) const {
    indices.checked(block, i);
  }
};

// Rows as `units` values of T each.
template <class T>
struct Gather {
  Indices indices;
  const T* params;
  T* out;
  int64_t rows, row_units;
  LongDivisor units, picked;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t e) const {
    int64_t unit, pick;
    const int64_t outer = picked.quotient(units.quotient(e, unit), pick);
    const int64_t index = indices.checked(block, pick);
    if (index >= 0) out[e] = params[(outer * rows + index) * row_units + unit];
  }
};

// The picks of some rows in some columns, added up in the order of the picks, so no two runs differ. A block goes
// through all indices for as many rows as it has room to sum, finds its own, and adds them, a thread for each column:
// that reads the indices rows * columns / kRoom times, which for a vocabulary is little beside what is added.
template <class T>
struct AddPicks {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int64_t kRoom = 4096;  // sums of a block
  Indices indices;
  const T* dy;
  T* sums;  // dparams, or the parts of it
  Picking p;
  int64_t columns, rows, groups, tiles, parts;  // rows and columns of a block

  struct Found {
    int64_t pick;
    int row;
  };
  static constexpr int64_t kShared = kRoom * sizeof(T) + kThreads * sizeof(Found) + kWarps * sizeof(int);

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    T* const own = block.template shared<T>();  // [row][column]
    Found* const found = reinterpret_cast<Found*>(own + kRoom);
    int* const found_by_warps = reinterpret_cast<int*>(found + kThreads);

    const int thread = block.thread(), lane = thread % kWarp, warp = thread / kWarp;
    const int64_t group = block.index() % groups, tile = block.index() / groups % tiles;
    const int64_t part = block.index() / (groups * tiles) % parts, outer = block.index() / (groups * tiles * parts);
    const int64_t first_row = group * rows, column = tile * columns + thread;
    const bool has_column = thread < columns && column < p.inner;
    const T* const from = dy + outer * p.picked * p.inner + column;
    if (has_column)
      for (int64_t row = 0; row < rows; ++row) own[row * columns + thread] = 0;

    const int64_t last = p.picked * (part + 1) / parts;
    for (int64_t first = p.picked * part / parts; first < last; first += kThreads) {
      const int64_t pick = first + thread;
      int64_t row = -1;
      if (pick < last) {
        // One block has the say about a bad index.
        const bool reports = group == 0 && tile == 0 && outer == 0;
        row = (reports ? indices.checked(block, pick) : indices.at(pick)) - first_row;
      }
      const bool is_own = row >= 0 && row < rows && first_row + row < p.rows;
      const unsigned owners = block.ballot(is_own);
      if (lane == 0) found_by_warps[warp] = count_bits(owners);
      block.sync();
      int before = 0, total = 0;
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += found_by_warps[w];
        total += found_by_warps[w];
      }
      if (is_own) found[before + count_bits(owners & ((1u << lane) - 1))] = {pick, static_cast<int>(row)};
      block.sync();
      if (has_column) add(from, own + thread, found, total);
      block.sync();  // before the next ones are found
    }

    if (!has_column) return;
    T* const to = sums + ((part * p.outer + outer) * p.rows + first_row) * p.inner + column;
    for (int64_t row = 0; row < rows && first_row + row < p.rows; ++row)
      to[row * p.inner] = own[row * columns + thread];
  }

 private:
  static MOONFLOW_DEVICE int count_bits(unsigned bits) {
    int count = 0;
    for (; bits; bits &= bits - 1) ++count;
    return count;
  }
  // Some are read before they are added, so that one does not wait for the other.
  MOONFLOW_DEVICE void add(const T* from, T* own, const Found* found, int count) const {
    constexpr int kAhead = 4;
    for (int i = 0; i < count; i += kAhead) {
      T values[kAhead];
      for (int k = 0; k < kAhead; ++k) values[k] = i + k < count ? from[found[i + k].pick * p.inner] : T(0);
      for (int k = 0; k < kAhead; ++k)
        if (i + k < count) own[found[i + k].row * columns] += values[k];
    }
  }
};

template <class T>
struct OneHot {
  Indices indices;
  T* out;
  LongDivisor inner, depth;
  int64_t inner_size;
  T on, off;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t e) const {
    int64_t place, k;
    const int64_t outer = depth.quotient(inner.quotient(e, place), k), i = outer * inner_size + place;
    const int64_t index = k == 0 ? indices.checked(block, i) : indices.at(i);
    out[e] = index == k ? on : off;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// Sets what a bad index of the input means.
void explain(KernelCall& call, int input, int64_t bound) {
  call.explain = [shape = call.inputs[input].shape, bound](int64_t place, int64_t index) {
    fail_index(shape, place, index, bound);
  };
}

template <class T>
Launch launch_gather(const Picking& p, DType index_dtype, int64_t row_units) {
  return [=](const LaunchCall& at) {
    const Indices indices(at, 1, index_dtype, p.rows);
    const int64_t count = p.outer * p.picked * row_units;
    if (count == 0) return for_each(at.stream, p.picked, Check{indices});
    for_each(at.stream, count,
             Gather<T>{indices, at.input<T>(0), at.output<T>(0), p.rows, row_units, LongDivisor(row_units),
                       LongDivisor(p.picked)});
  };
}

Launch prepare_gather(KernelCall& call) {
  const Picking p(call.inputs[0].shape, call.inputs[1].shape, call.attrs.integer("axis"));
  const DType indices = call.inputs[1].dtype;
  explain(call, 1, p.rows);
  const int64_t row_bytes = p.inner * size_of(call.inputs[0].dtype);
  int64_t unit = 16;
  while (row_bytes % unit != 0) unit /= 2;
  return visit_bytes(unit, [&](auto zero) { return launch_gather<decltype(zero)>(p, indices, row_bytes / unit); });
}

Launch prepare_gather_grad(KernelCall& call) {
  const Picking p(call.outputs[0].shape, call.inputs[1].shape, call.attrs.integer("axis"));
  const DType index_dtype = call.inputs[1].dtype;
  const int64_t count = call.outputs[0].count();
  explain(call, 1, p.rows);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Add = AddPicks<T>;
    if (count == 0) {
      return [=](const LaunchCall& at) { for_each(at.stream, p.picked, Check{Indices(at, 1, index_dtype, p.rows)}); };
    }
    const int64_t columns = std::min<int64_t>(p.inner, Add::kThreads), rows = Add::kRoom / columns;
    const int64_t groups = (p.rows + rows - 1) / rows, tiles = (p.inner + columns - 1) / columns;
    // Where few blocks have all the sums, several share the picks.
    constexpr int64_t kBlocks = 512, kLeastPicks = 2048;
    const int64_t parts =
        std::clamp<int64_t>(kBlocks / (p.outer * groups * tiles), 1, std::max<int64_t>(p.picked / kLeastPicks, 1));
    if (parts > 1) call.scratch_bytes = checked_product(checked_product(parts, count), sizeof(T));
    return [=](const LaunchCall& at) {
      T *const dparams = at.output<T>(0), *const sums = parts > 1 ? static_cast<T*>(at.scratch) : dparams;
      const Indices indices(at, 1, index_dtype, p.rows);
      launch(at.stream, p.outer * parts * tiles * groups,
             Add{indices, at.input<T>(0), sums, p, columns, rows, groups, tiles, parts}, Add::kShared);
      if (parts > 1) for_each(at.stream, count, AddParts<T, T>{sums, dparams, parts, count});
    };
  });
}

Launch prepare_one_hot(KernelCall& call) {
  const Shape& out = call.outputs[0].shape;
  const int axis = wrap_axis(call.attrs.integer("axis"), out.rank());
  const int64_t depth = out[axis], inner = out.count(axis + 1, out.rank());
  const int64_t picked = call.inputs[0].count(), count = out.count();
  const DType index_dtype = call.inputs[0].dtype;
  const double on = call.attrs.number("on_value"), off = call.attrs.number("off_value");
  explain(call, 0, depth);
  return visit(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const Indices indices(at, 0, index_dtype, depth);
      if (count == 0) return for_each(at.stream, picked, Check{indices});
      for_each(at.stream, count,
               OneHot<T>{indices, at.output<T>(0), LongDivisor(inner), LongDivisor(depth), inner, static_cast<T>(on),
                         static_cast<T>(off)});
    };
  });
}

}  // namespace

void add_index(Kernels& kernels) {
  kernels["gather"] = {{prepare_gather}, true};
  kernels["gather_grad"] = {{prepare_gather_grad}};
  kernels["one_hot"] = {{prepare_one_hot}};
}

}  // namespace moonflow::cuda
