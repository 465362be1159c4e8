// Element-wise kernels on CUDA: a functor of kernels/elementwise.h over one or two values, or a choice between two. A
// thread takes as many neighbours as fit one load of 16 bytes; where addresses or sizes do not allow that, the same
// thread takes them one by one. What is narrow is computed in float32.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/broadcast.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/divisor.h"
#include "kernels/elementwise_rows.h"

namespace moonflow::cuda {

// What elements of T are computed in.
template <class T>
using Computed = std::conditional_t<kNarrow<T>, float, T>;

// What a functor's result is stored as, where its inputs are stored as T.
template <class Result, class T>
using StoredLike = std::conditional_t<kNarrow<T> && std::is_same_v<Result, float>, T, elementwise::Stored<Result>>;

// Calls f(T{}) for the dtypes with fractions, the narrow ones among them.
template <class F>
decltype(auto) visit_fractions(DType dtype, const F& f) {
  return is_narrow(dtype) ? visit_narrow(dtype, f) : visit_floating(dtype, f);
}

// Rounds float32.
template <class Half>
struct Round {
  const float* from;
  Half* to;
  MOONFLOW_DEVICE void operator()(int64_t i) const { to[i] = Half(from[i]); }
};

// ---- neighbours ----------------------------------------------------------------------------------------------

// N neighbours that are moved at once.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T values[N];
};

// Whether they can be, where the first lies there.
template <class T, int N>
MOONFLOW_BOTH bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(Pack<T, N>) == 0;
}

// The first `count` of N neighbours, zeros for the rest. `whole`: all N, and `from` is aligned.
template <class T, int N>
MOONFLOW_DEVICE Pack<T, N> read(const T* from, int64_t count, bool whole) {
  if (whole) return *reinterpret_cast<const Pack<T, N>*>(from);
  Pack<T, N> pack{};
  for (int i = 0; i < N; ++i)
    if (i < count) pack.values[i] = from[i];
  return pack;
}

// Of N neighbours that are stored at once a compiler may make N stores after all, where it sees the same stores beside
// them: so a card is told by a function of its own, which stores into its memory, not into that of a block.
template <class T, int N>
MOONFLOW_DEVICE void write_at_once(const Pack<T, N>& pack, T* to) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof pack == sizeof(uint4))
    return __stwb(reinterpret_cast<uint4*>(to), __builtin_bit_cast(uint4, pack));
  if constexpr (sizeof pack == sizeof(uint2))
    return __stwb(reinterpret_cast<uint2*>(to), __builtin_bit_cast(uint2, pack));
#endif
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

template <class T, int N>
MOONFLOW_DEVICE void write(const Pack<T, N>& pack, T* to, int64_t count, bool whole) {
  if (whole) return write_at_once(pack, to);
  for (int i = 0; i < N; ++i)
    if (i < count) to[i] = pack.values[i];
}

// How many neighbours a thread takes. Of what calls the math library just a few, for the sake of the code size.
template <class F, class T>
constexpr int kNeighbours = std::is_base_of_v<functor::Vectorised, F>
                                ? std::min(16 / static_cast<int>(sizeof(T)), 8)
                                : std::max(8 / static_cast<int>(sizeof(Computed<T>)), 1);

// ---- packs of elements ---------------------------------------------------------------------------------------

// The N neighbours that a thread takes: those from `first` on, of which `rest` are there, if that is less.
template <int N>
struct Neighbours {
  int64_t first, rest;
  bool whole;  // all N are there, and can be moved at once

  template <class T>
  MOONFLOW_DEVICE Pack<T, N> of(const T* values) const {
    return read<T, N>(values + first, rest, whole);
  }
  template <class T>
  MOONFLOW_DEVICE void put(const Pack<T, N>& pack, T* to) const {
    write(pack, to + first, rest, whole);
  }
};

// Calls f(neighbours), or f(block, neighbours), for the elements in [0, count), F::kN at a time, each pack in a thread
// of its own.
template <class F>
struct ForEachPack {
  static constexpr int kThreads = 256, kN = F::kN;
  F f;
  int64_t count;
  bool aligned;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t first = (block.index() * kThreads + block.thread()) * kN, rest = count - first;
    if (rest <= 0) return;
    const Neighbours<kN> own{first, rest, aligned && rest >= kN};
    if constexpr (std::is_invocable_v<const F&, const Block&, const Neighbours<kN>&>)
      f(block, own);
    else
      f(own);
  }
};

// ---- one value, or two of one shape --------------------------------------------------------------------------

template <class F, class T>
using ResultOfOne = StoredLike<std::invoke_result_t<F, Computed<T>>, T>;

template <class F, class T, class Out>
struct MapOne {
  static constexpr int kN = kNeighbours<F, T>;
  F f;
  const T* x;
  Out* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    const auto values = own.of(x);
    Pack<Out, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = Out(f(Computed<T>(values.values[i])));
    own.put(results, out);
  }
};

template <class F, class T>
struct MapTwo {
  static constexpr int kN = kNeighbours<F, T>;
  using Out = StoredLike<std::invoke_result_t<F, Computed<T>, Computed<T>>, T>;
  F f;
  const T *x, *y;
  Out* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    const auto xs = own.of(x), ys = own.of(y);
    Pack<Out, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = Out(f(Computed<T>(xs.values[i]), Computed<T>(ys.values[i])));
    own.put(results, out);
  }
};

// Starts a kernel whose threads take kN elements each.
template <class K>
void launch_elements(Stream& stream, int64_t count, const K& kernel) {
  constexpr int64_t kPerBlock = int64_t{K::kThreads} * K::kN;
  if (count > 0) launch(stream, (count + kPerBlock - 1) / kPerBlock, kernel);
}

// `f` is a struct of plain data with kN and MOONFLOW_DEVICE void operator()(const Neighbours<kN>&) const, and `values`
// are what it reads and writes that way.
template <class F, class... Values>
void for_each_pack(Stream& stream, int64_t count, const F& f, const Values*... values) {
  launch_elements(stream, count, ForEachPack<F>{f, count, (is_aligned<Values, F::kN>(values) && ...)});
}

// ---- values that broadcast -----------------------------------------------------------------------------------

// Where the elements of a result lie in the values it is made of: as Broadcast, of a fixed size and in 32 bits.
template <int kValues>
struct Places {
  struct Axis {
    Divisor size;
    uint32_t steps[kValues];
  };
  int axes;
  Axis axis[Shape::kMaxRank];  // innermost first, whose steps are 0 or 1

  MOONFLOW_BOTH void of(uint32_t index, uint32_t* offsets) const {
    for (int v = 0; v < kValues; ++v) offsets[v] = 0;
    for (int a = 0; a < axes; ++a) {
      // What is left is below the size of the outermost axis.
      const uint32_t outer = a + 1 < axes ? axis[a].size.quotient(index) : 0;
      const uint32_t own = index - outer * axis[a].size.value;
      for (int v = 0; v < kValues; ++v) offsets[v] += own * axis[a].steps[v];
      index = outer;
    }
  }
};

// A result in pieces that 32 bits can count, each with its places.
template <int kValues>
struct Piece {
  int64_t first, count;
  int64_t offsets[kValues];  // of the values
  Places<kValues> places;
};

template <int kValues>
void cut(std::vector<typename Broadcast<kValues>::Axis> axes, Piece<kValues> start,
         std::vector<Piece<kValues>>& pieces) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t inner = 1;  // elements of one step along the outermost axis
  for (size_t a = 1; a < axes.size(); ++a) inner *= axes[a].size;
  const auto outermost = axes[0];
  const auto moved_by = [&](int64_t steps) {
    Piece<kValues> piece = start;
    piece.first += steps * inner;
    for (int v = 0; v < kValues; ++v) piece.offsets[v] += steps * outermost.steps[v];
    return piece;
  };
  if (inner >= kMost) {
    axes.erase(axes.begin());
    for (int64_t i = 0; i < outermost.size; ++i) cut<kValues>(axes, moved_by(i), pieces);
    return;
  }
  // A piece begins at an even place, so that what was aligned stays so.
  const int64_t most = std::max<int64_t>((kMost - 1) / std::max<int64_t>(inner, 1) / 16 * 16, 1);
  for (int64_t i = 0; i < outermost.size; i += most) {
    Piece<kValues> piece = moved_by(i);
    const int64_t size = std::min(most, outermost.size - i);
    piece.count = size * inner;
    if (piece.count == 0) return;
    piece.places.axes = static_cast<int>(axes.size());
    for (size_t a = 0; a < axes.size(); ++a) {
      auto& axis = piece.places.axis[axes.size() - 1 - a];
      axis.size = Divisor(static_cast<uint32_t>(a == 0 ? size : axes[a].size));
      for (int v = 0; v < kValues; ++v) axis.steps[v] = static_cast<uint32_t>(axes[a].steps[v]);
    }
    pieces.push_back(piece);
  }
}

template <int kValues>
std::vector<Piece<kValues>> pieces_of(const std::array<Shape, kValues>& shapes, const Shape& out) {
  std::vector<Piece<kValues>> pieces;
  if (out.count() > 0) cut<kValues>(Broadcast<kValues>(shapes, out).axes, {}, pieces);
  return pieces;
}

// N neighbours of a value along the innermost axis: side by side, or a single one for all.
template <class T, int N>
MOONFLOW_DEVICE Pack<T, N> read_row(const T* from, uint32_t step, uint32_t rest, bool aligned) {
  if (step != 0) return read<T, N>(from, rest, aligned && rest >= N);
  Pack<T, N> pack;
  const T single = *from;
  for (int i = 0; i < N; ++i) pack.values[i] = single;
  return pack;
}

// Whether N neighbours of a result, counted from a multiple of N, never part: each value has them in one row.
template <int N, int kValues>
bool in_rows(const Places<kValues>& places) {
  return places.axes == 1 || places.axis[0].size.value % N == 0;
}
// Whether a value that starts at `data` can then be read in packs.
template <class T, int N, int kValues>
bool in_packs(const T* data, int value, const Places<kValues>& places) {
  for (int a = 1; a < places.axes; ++a)
    if (places.axis[a].steps[value] % N != 0) return false;
  return is_aligned<T, N>(data);
}

template <class F, class X, class Y = X>
struct Broadcast {
  static constexpr int kThreads = 256, kN = kNeighbours<F, X>;
  using Out = StoredLike<std::invoke_result_t<F, Computed<X>, Computed<Y>>, X>;
  F f;
  Places<2> places;
  uint32_t count;
  bool in_row, x_aligned, y_aligned, out_aligned;
  const X* x;
  const Y* y;
  Out* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const uint32_t first = static_cast<uint32_t>(block.index() * kThreads + block.thread()) * kN;
    if (first >= count) return;
    const uint32_t rest = count - first;
    uint32_t offsets[2];
    Pack<X, kN> xs;
    Pack<Y, kN> ys;
    if (in_row) {
      places.of(first, offsets);
      xs = read_row<X, kN>(x + offsets[0], places.axis[0].steps[0], rest, x_aligned);
      ys = read_row<Y, kN>(y + offsets[1], places.axis[0].steps[1], rest, y_aligned);
    } else {
      for (uint32_t i = 0; i < kN; ++i) {
        places.of(i < rest ? first + i : first, offsets);
        xs.values[i] = x[offsets[0]];
        ys.values[i] = y[offsets[1]];
      }
    }
    Pack<Out, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = Out(f(Computed<X>(xs.values[i]), Computed<Y>(ys.values[i])));
    write(results, out + first, rest, out_aligned && rest >= kN);
  }
};

template <class F, class X, class Y>
void launch_broadcast(Stream& stream, const F& f, const std::vector<Piece<2>>& pieces, const void* x, const void* y,
                      void* out) {
  using K = Broadcast<F, X, Y>;
  constexpr int kN = K::kN;
  for (const Piece<2>& piece : pieces) {
    const X* const x_data = static_cast<const X*>(x) + piece.offsets[0];
    const Y* const y_data = static_cast<const Y*>(y) + piece.offsets[1];
    auto* const out_data = static_cast<typename K::Out*>(out) + piece.first;
    launch_elements(stream, piece.count,
                    K{f, piece.places, static_cast<uint32_t>(piece.count), in_rows<kN>(piece.places),
                      in_packs<X, kN>(x_data, 0, piece.places), in_packs<Y, kN>(y_data, 1, piece.places),
                      is_aligned<typename K::Out, kN>(out_data), x_data, y_data, out_data});
  }
}

// ---- launches without their types ----------------------------------------------------------------------------
// There are hundreds of functors: what differs between them is one function each, and the rest is made once.

// A functor and how to start it over one or two values of one shape, or over two that broadcast.
class Element {
 public:
  using Start = void (*)(Stream&, const Element&, int64_t count, const void* x, const void* y, void* out);
  using StartPieces = void (*)(Stream&, const Element&, const std::vector<Piece<2>>&, const void* x, const void* y,
                               void* out);

  template <class F>
  Element(const F& f, Start start, StartPieces start_pieces = nullptr) : start(start), start_pieces(start_pieces) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof functor_);
    std::memcpy(functor_, &f, sizeof f);
  }
  template <class F>
  const F& functor() const {
    return *reinterpret_cast<const F*>(functor_);
  }

  const Start start;
  const StartPieces start_pieces;

 private:
  alignas(8) unsigned char functor_[16] = {};
};

template <class F, class T, class Out = ResultOfOne<F, T>>
void start_one(Stream& stream, const Element& element, int64_t count, const void* x, const void*, void* out) {
  const MapOne<F, T, Out> map{element.functor<F>(), static_cast<const T*>(x), static_cast<Out*>(out)};
  for_each_pack(stream, count, map, map.x, map.out);
}

template <class F, class T>
void start_two(Stream& stream, const Element& element, int64_t count, const void* x, const void* y, void* out) {
  using Map = MapTwo<F, T>;
  const Map map{element.functor<F>(), static_cast<const T*>(x), static_cast<const T*>(y),
                static_cast<typename Map::Out*>(out)};
  for_each_pack(stream, count, map, map.x, map.y, map.out);
}

template <class F, class X, class Y = X>
void start_broadcast(Stream& stream, const Element& element, const std::vector<Piece<2>>& pieces, const void* x,
                     const void* y, void* out) {
  launch_broadcast<F, X, Y>(stream, element.functor<F>(), pieces, x, y, out);
}

using MakeElement = Element (*)(const Attrs& attrs, DType dtype);

// Calls f(T{}) for the dtypes of a row, the narrow ones among them.
template <elementwise::Dtypes dtypes, class F>
Element visit_row(DType dtype, const F& f) {
  if constexpr (dtypes == elementwise::Dtypes::All)
    return visit_stored(dtype, f);
  else
    return visit_fractions(dtype, f);
}

}  // namespace moonflow::cuda
