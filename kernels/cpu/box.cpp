#include "kernels/cpu/box.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {

bool BoxCopy::in_registers() const {
  constexpr int64_t kMost = 256;
  int64_t least = 0;
  widest_register([&](auto wide) { least = decltype(wide)::kWidth; });
  const bool repeats = row_.from == 0 && element_bytes_ == sizeof(float);
  const bool copies = row_.from == 1 && element_bytes_ >= static_cast<int64_t>(sizeof(float));
  const int64_t floats = row_.size * element_bytes_ / static_cast<int64_t>(sizeof(float));
  return row_.to == 1 && (repeats || copies) && floats >= least && floats <= kMost;
}

// What is left of a box with as few axes as possible decides: rows, when the innermost axis of the target is also
// contiguous in the source (or nothing is); tiles, when another axis is, so that both sides are touched a cache line at
// a time; and across the rows, when they are too short to be worth a loop each.
BoxCopy::BoxCopy(int64_t element_bytes, const Box& box)
    : element_bytes_(element_bytes), to_start_(box.to_start), from_start_(box.from_start) {
  constexpr int64_t kShort = 16;
  if (box.empty()) {
    outer_count_ = 0;
    return;
  }
  std::vector<Axis> kept = box.joined().axes;
  if (!kept.empty()) {
    row_ = kept.back();
    kept.pop_back();
  }
  if (row_.to == 1 && row_.from != 1 && row_.from != 0) {
    constexpr int64_t kFew = 4;  // colours of a picture, of which each is picked out faster
    for (size_t i = kept.size(); i-- > 0;) {
      if (kept[i].from != 1 || (kept[i].size == row_.from && kept[i].size <= kFew)) continue;
      column_ = kept[i];
      kept.erase(kept.begin() + i);
      way_ = Tiles;
      break;
    }
  }
  if (way_ == Rows && row_.size < kShort && !in_registers()) {
    const auto longer = [&](const Axis& axis) { return axis.size > row_.size; };
    const auto innermost = std::find_if(kept.rbegin(), kept.rend(), longer);
    if (innermost != kept.rend()) {
      column_ = *innermost;
      kept.erase(std::next(innermost).base());
      way_ = Across;
    }
  }
  for (const Axis& axis : kept) {
    outer_[outer_rank_++] = axis;
    outer_count_ *= axis.size;
  }
}

// Where the outer axes stand, as offsets into both arrays.
struct BoxCopy::Walk {
  const BoxCopy& box;
  std::array<int64_t, kMaxAxes> at{};
  int64_t to, from;

  Walk(const BoxCopy& box, int64_t index) : box(box), to(box.to_start_), from(box.from_start_) {
    for (int i = box.outer_rank_; i-- > 0;) {
      at[i] = index % box.outer_[i].size;
      index /= box.outer_[i].size;
      to += at[i] * box.outer_[i].to;
      from += at[i] * box.outer_[i].from;
    }
  }

  void next() {
    for (int i = box.outer_rank_; i-- > 0;) {
      const Axis& axis = box.outer_[i];
      to += axis.to;
      from += axis.from;
      if (++at[i] < axis.size) return;
      at[i] = 0;
      to -= axis.size * axis.to;
      from -= axis.size * axis.from;
    }
  }
};

namespace {

// By a step that the compiler knows, which it then does in registers.
template <int64_t kStep, class T>
void pick(T* to, const T* from, int64_t size) {
  widest([=] {
    // A byte written may be any, also one of what the lambda holds.
    T* const target = to;
    const T* const source = from;
    const int64_t count = size;
    for (int64_t i = 0; i < count; ++i) target[i] = source[i * kStep];
  });
}

template <class T>
void copy_row(T* to, const T* from, int64_t size, int64_t to_step, int64_t from_step) {
  if (to_step == 1 && from_step == 1) {
    if (size >= 16) {
      std::memcpy(to, from, size * sizeof(T));
    } else {
      for (int64_t i = 0; i < size; ++i) to[i] = from[i];
    }
  } else if (to_step == 1 && from_step == 0) {
    std::fill_n(to, size, *from);
  } else if (to_step == 1 && from_step == -1) {
    pick<-1>(to, from, size);
  } else if (to_step == 1 && from_step == 2) {
    pick<2>(to, from, size);
  } else if (to_step == 1 && from_step == 3) {
    pick<3>(to, from, size);
  } else if (to_step == 1 && from_step == 4) {
    pick<4>(to, from, size);
  } else {
    for (int64_t i = 0; i < size; ++i) to[i * to_step] = from[i * from_step];
  }
}

// A row too short to be worth a call: whole registers, the last of which goes over what the one before it has copied.
template <class R>
void copy_short_row(float* to, const float* from, int64_t size) {
  for (int64_t i = 0; i < size - R::kWidth; i += R::kWidth) R::at(to + i) = R::at(from + i);
  R::at(to + size - R::kWidth) = R::at(from + size - R::kWidth);
}

// The same of one element, whose bits may be any, also those of a signalling NaN.
template <class R>
void fill_short_row(float* to, const float* from, int64_t size) {
  int bits;
  std::memcpy(&bits, from, sizeof bits);
  const typename R::Integers repeated = bits - typename R::Integers{};
  const auto fill = [&](int64_t i) { *reinterpret_cast<typename R::StoredIntegers*>(to + i) = repeated; };
  for (int64_t i = 0; i < size - R::kWidth; i += R::kWidth) fill(i);
  fill(size - R::kWidth);
}

// Each column of the tile, contiguous in the source, becomes a row of the target's. Whole squares go through registers.
template <class T>
void copy_tile(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t rows, int64_t columns) {
  int64_t square_rows = 0, square_columns = 0;
  if constexpr (sizeof(T) == sizeof(float)) {
    widest_register([&](auto wide) {
      using R = decltype(wide);
      constexpr int64_t kWidth = R::kWidth;
      square_rows = rows / kWidth * kWidth;
      square_columns = columns / kWidth * kWidth;
      for (int64_t r = 0; r < square_rows; r += kWidth) {
        for (int64_t c = 0; c < square_columns; c += kWidth) {
          copy_square<R>(reinterpret_cast<const float*>(from + c * from_step + r), from_step,
                         reinterpret_cast<float*>(to + r * to_step + c), to_step, [](const auto&) {});
        }
      }
    });
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < square_rows ? square_columns : 0; c < columns; ++c)
      to[r * to_step + c] = from[c * from_step + r];
}

}  // namespace

template <class T>
void BoxCopy::copy_rows(T* to, const T* from) const {
  if (outer_count_ == 1) {
    parallel_for(row_.size, kGrain, [&](int64_t first, int64_t last) {
      copy_row(to + to_start_ + first * row_.to, from + from_start_ + first * row_.from, last - first, row_.to,
               row_.from);
    });
    return;
  }
  if constexpr (sizeof(T) >= sizeof(float)) {
    if (in_registers()) {
      const int64_t floats = row_.size * static_cast<int64_t>(sizeof(T) / sizeof(float));
      parallel_for(outer_count_, kGrain / row_.size + 1, [&](int64_t first, int64_t last) {
        widest_register([&](auto wide) {
          using R = decltype(wide);
          const auto each = [&](const auto& write) {
            Walk walk(*this, first);
            for (int64_t i = first; i < last; ++i, walk.next())
              write(reinterpret_cast<float*>(to + walk.to), reinterpret_cast<const float*>(from + walk.from), floats);
          };
          if (row_.from == 0)
            each(fill_short_row<R>);
          else
            each(copy_short_row<R>);
        });
      });
      return;
    }
  }
  parallel_for(outer_count_, kGrain / row_.size + 1, [&](int64_t first, int64_t last) {
    Walk walk(*this, first);
    for (int64_t i = first; i < last; ++i, walk.next()) {
      copy_row(to + walk.to, from + walk.from, row_.size, row_.to, row_.from);
    }
  });
}

template <class Work>
void BoxCopy::for_each_strip(int64_t most, const Work& work) const {
  const int64_t strips = (column_.size + most - 1) / most;
  parallel_for(outer_count_ * strips, kGrain / (most * row_.size) + 1, [&](int64_t first, int64_t last) {
    Walk walk(*this, first / strips);
    int64_t strip = first % strips;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = strip * most;
      work(walk.to + begin * column_.to, walk.from + begin * column_.from, std::min(most, column_.size - begin));
      if (++strip == strips) {
        strip = 0;
        walk.next();
      }
    }
  });
}

// Squares of kTile elements a side: reading one takes kTile runs of contiguous elements, writing it kTile others, and
// both sets fit the first-level cache.
template <class T>
void BoxCopy::copy_tiles(T* to, const T* from) const {
  constexpr int64_t kTile = 32;
  for_each_strip(kTile, [&](int64_t to_start, int64_t from_start, int64_t size) {
    for (int64_t left = 0; left < row_.size; left += kTile) {
      copy_tile(to + to_start + left, column_.to, from + from_start + left * row_.from, row_.from, size,
                std::min(kTile, row_.size - left));
    }
  });
}

// Some rows at a time, which stay in the first-level cache: the first elements of them all, and so on.
template <class T>
void BoxCopy::copy_across(T* to, const T* from) const {
  constexpr int64_t kRows = 256;
  for_each_strip(kRows, [&](int64_t to_start, int64_t from_start, int64_t size) {
    for (int64_t i = 0; i < row_.size; ++i)
      copy_row(to + to_start + i * row_.to, from + from_start + i * row_.from, size, column_.to, column_.from);
  });
}

template <class T>
void BoxCopy::run_as(T* to, const T* from) const {
  way_ == Tiles ? copy_tiles(to, from) : way_ == Across ? copy_across(to, from) : copy_rows(to, from);
}

void BoxCopy::run(void* to, const void* from) const {
  if (outer_count_ == 0) return;
  switch (element_bytes_) {
    case 1:
      return run_as(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from));
    case 2:
      return run_as(static_cast<uint16_t*>(to), static_cast<const uint16_t*>(from));
    case 4:
      return run_as(static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from));
    default:
      return run_as(static_cast<uint64_t*>(to), static_cast<const uint64_t*>(from));
  }
}

Kernel copy_kernel(Box (*box)(const KernelCall&)) {
  return {[box](KernelCall& call) -> Launch {
    const BoxCopy copy(size_of(call.inputs[0].dtype), box(call));
    return [copy](const LaunchCall& launch) { copy.run(launch.outputs[0], launch.inputs[0]); };
  }};
}

}  // namespace moonflow::cpu
