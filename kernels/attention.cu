// Attention on CUDA. A block has one head of one sample and a tile of its queries, and goes over the keys tile by tile:
// scores stay in shared memory, and what has been summed so far is scaled down whenever a larger score turns up. The
// gradient goes over the keys once for dquery, and over the queries once, with a tile of keys, for dkey and dvalue, so
// that each sum has one owner; both make the weights again from log_sum.
#include <limits>

#include "kernels/attention.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementary.h"

namespace moonflow::cuda {
namespace {

using namespace attention;

constexpr int kSharedBytes = 48 << 10;  // what every card gives a block

// ---- what all passes know ------------------------------------------------------------------------------------

// A head's rows of a value that lies as (batch, length, heads, width).
template <class T>
struct Rows {
  T* data;
  int64_t count, width, step;
};

template <class T>
struct Problem {
  int64_t heads, queries, keys, width, value_width;
  T scale, kept_scale;
  bool causal;
  MaskSteps mask_steps;
  const int8_t *mask, *kept;  // or none

  template <class U>
  MOONFLOW_DEVICE Rows<U> rows(U* all, int64_t head, int64_t count, int64_t row_width) const {
    return {all + (head / heads * count * heads + head % heads) * row_width, count, row_width, heads * row_width};
  }
  // Whether query i of this head of the batch's looks at key j.
  MOONFLOW_DEVICE bool looks(int64_t head, int64_t i, int64_t j) const {
    if (i >= queries || j >= keys || (causal && j > i)) return false;
    return !mask ||
           mask[head / heads * mask_steps[0] + head % heads * mask_steps[1] + i * mask_steps[2] + j * mask_steps[3]] !=
               0;
  }
  MOONFLOW_DEVICE bool keeps(int64_t head, int64_t i, int64_t j) const {
    return !kept || kept[(head * queries + i) * keys + j] != 0;
  }
};

// ---- tiles in shared memory ----------------------------------------------------------------------------------

constexpr int kThreads = 256;

// kTile rows, one more element apart than they are wide where that is even: what a warp reads down a column then lies
// in different banks.
template <class T>
struct Strip {
  T* data;
  int width, pitch;
  MOONFLOW_DEVICE T* row(int i) const { return data + i * pitch; }
};

MOONFLOW_BOTH constexpr int pitch_of(int64_t width) { return static_cast<int>(width | 1); }

// Hands out a block's shared memory.
template <class T, int kTile>
struct Shelf {
  T* next;
  MOONFLOW_DEVICE Strip<T> strip(int64_t width) {
    const Strip<T> strip{next, static_cast<int>(width), pitch_of(width)};
    next += kTile * strip.pitch;
    return strip;
  }
};

template <class T, int kTile>
int64_t strip_bytes(int64_t width) {
  return kTile * pitch_of(width) * static_cast<int64_t>(sizeof(T));
}

// Copies kTile rows; zeros beyond the last.
template <int kTile, class Block, class T>
MOONFLOW_DEVICE void load(const Block& block, const Rows<const T>& from, int64_t first, const Strip<T>& to) {
  for (int at = block.thread(); at < kTile * to.width; at += kThreads) {
    const int i = at / to.width, c = at % to.width;
    to.row(i)[c] = first + i < from.count ? from.data[(first + i) * from.step + c] : T(0);
  }
}

template <int kTile, class Block, class T>
MOONFLOW_DEVICE void clear(const Block& block, const Strip<T>& strip) {
  for (int at = block.thread(); at < kTile * strip.width; at += kThreads)
    strip.row(at / strip.width)[at % strip.width] = 0;
}

template <int kTile, class Block, class T>
MOONFLOW_DEVICE void store(const Block& block, const Strip<T>& from, int64_t first, const Rows<T>& to) {
  for (int at = block.thread(); at < kTile * from.width; at += kThreads) {
    const int i = at / from.width, c = at % from.width;
    if (first + i < to.count) to.data[(first + i) * to.step + c] = from.row(i)[c];
  }
}

// The products of the rows of two strips, each with each: a thread has those whose numbers differ from its own by
// multiples of 16, and in smaller tiles some threads have none.
template <class T, int kTile>
struct RowProducts {
  static constexpr int kSide = kTile < 16 ? kTile : 16, kEach = kTile / kSide;
  T sums[kEach * kEach] = {};

  template <class Block>
  MOONFLOW_DEVICE RowProducts(const Block& block, const Strip<T>& a, const Strip<T>& b) {
    const int row = block.thread() / 16, column = block.thread() % 16;
    if (row >= kSide || column >= kSide) return;
    for (int c = 0; c < a.width; ++c) {
      T x[kEach], y[kEach];
      MOONFLOW_UNROLL
      for (int i = 0; i < kEach; ++i) x[i] = a.row(row + kSide * i)[c];
      MOONFLOW_UNROLL
      for (int j = 0; j < kEach; ++j) y[j] = b.row(column + kSide * j)[c];
      MOONFLOW_UNROLL
      for (int at = 0; at < kEach * kEach; ++at) sums[at] += x[at / kEach] * y[at % kEach];
    }
  }
  // Calls f(i, j, place among the thread's sums) for the pairs it has.
  template <class Block, class F>
  MOONFLOW_DEVICE static void for_each(const Block& block, const F& f) {
    const int row = block.thread() / 16, column = block.thread() % 16;
    if (row >= kSide || column >= kSide) return;
    MOONFLOW_UNROLL
    for (int at = 0; at < kEach * kEach; ++at) f(row + kSide * (at / kEach), column + kSide * (at % kEach), at);
  }
};

// sums += p x, or p^T x: p is kTile by kTile, its rows kTile + 1 apart.
template <int kTile, bool kTranspose, class Block, class T>
MOONFLOW_DEVICE void add_product(const Block& block, const T* p, const Strip<T>& x, const Strip<T>& sums) {
  constexpr int kRow = kTranspose ? 1 : kTile + 1, kStep = kTranspose ? kTile + 1 : 1;
  for (int at = block.thread(); at < kTile * sums.width; at += kThreads) {
    const int i = at / sums.width, c = at % sums.width;
    T sum = sums.row(i)[c];
    for (int k = 0; k < kTile; ++k) sum += p[i * kRow + k * kStep] * x.row(k)[c];
    sums.row(i)[c] = sum;
  }
}

// What exponentials are taken beside: where that is minus infinity, they come out as 0 and not as NaN.
template <class T>
MOONFLOW_DEVICE T finite_or_zero(T top) {
  return top > -std::numeric_limits<T>::infinity() ? top : T(0);
}

// ---- forward -------------------------------------------------------------------------------------------------

template <class T, int kTile>
struct Forward {
  static constexpr int kThreads = cuda::kThreads;
  Problem<T> p;
  const T *query, *key, *value;
  T *out, *log_sum;

  static int64_t shared_bytes(int64_t width, int64_t value_width) {
    return 2 * strip_bytes<T, kTile>(width) + 2 * strip_bytes<T, kTile>(value_width) +
           kTile * (kTile + 1 + 3) * static_cast<int64_t>(sizeof(T));
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t tiles = (p.queries + kTile - 1) / kTile;
    const int64_t head = block.index() / tiles, first = block.index() % tiles * kTile;
    Shelf<T, kTile> shelf{block.template shared<T>()};
    const Strip<T> q = shelf.strip(p.width), k = shelf.strip(p.width), v = shelf.strip(p.value_width),
                   sums = shelf.strip(p.value_width);
    T *const weights = shelf.next, *const tops = weights + kTile * (kTile + 1), *const totals = tops + kTile,
             *const fades = totals + kTile;
    load<kTile>(block, p.rows(query, head, p.queries, p.width), first, q);
    clear<kTile>(block, sums);
    for (int i = block.thread(); i < kTile; i += kThreads) {
      tops[i] = -std::numeric_limits<T>::infinity();
      totals[i] = 0;
    }
    const int64_t last = p.causal && first + kTile < p.keys ? first + kTile : p.keys;
    for (int64_t begin = 0; begin < last; begin += kTile) {
      load<kTile>(block, p.rows(key, head, p.keys, p.width), begin, k);
      load<kTile>(block, p.rows(value, head, p.keys, p.value_width), begin, v);
      block.sync();
      const RowProducts<T, kTile> scores(block, q, k);
      scores.for_each(block, [&](int i, int j, int at) {
        weights[i * (kTile + 1) + j] =
            p.looks(head, first + i, begin + j) ? p.scale * scores.sums[at] : -std::numeric_limits<T>::infinity();
      });
      block.sync();
      weigh(block, head, first, begin, weights, tops, totals, fades);
      block.sync();
      for (int at = block.thread(); at < kTile * sums.width; at += kThreads)
        sums.row(at / sums.width)[at % sums.width] *= fades[at / sums.width];
      add_product<kTile, false>(block, weights, v, sums);  // in the threads that have just scaled them
      block.sync();
    }
    block.sync();  // there may be no keys at all
    for (int at = block.thread(); at < kTile * sums.width; at += kThreads) {
      const T total = totals[at / sums.width];  // 0: nothing may be looked at
      T& sum = sums.row(at / sums.width)[at % sums.width];
      sum = total > 0 || total != total ? sum * (p.kept_scale / total) : T(0);
    }
    store<kTile>(block, sums, first, p.rows(out, head, p.queries, p.value_width));
    for (int i = block.thread(); i < kTile && first + i < p.queries; i += kThreads)
      log_sum[head * p.queries + first + i] = tops[i] + elementary::log(totals[i]);
  }

 private:
  // Makes weights of scores, as they are beside the largest score so far; a warp for each query.
  template <class Block>
  MOONFLOW_DEVICE void weigh(const Block& block, int64_t head, int64_t first, int64_t begin, T* weights, T* tops,
                             T* totals, T* fades) const {
    const int lane = block.thread() % kWarp;
    for (int i = block.thread() / kWarp; i < kTile; i += kThreads / kWarp) {
      T* const row = weights + i * (kTile + 1);
      const T score = lane < kTile ? row[lane] : -std::numeric_limits<T>::infinity(), before = tops[i];
      const T top = over_warp(block, Largest()(score, before), Largest()), shift = finite_or_zero(top);
      const T weight = elementary::exp(score - shift);
      const T total = over_warp(block, lane < kTile ? weight : T(0), Sum());
      const bool counts = lane < kTile && p.looks(head, first + i, begin + lane);
      if (lane < kTile) row[lane] = counts && p.keeps(head, first + i, begin + lane) ? weight : T(0);
      if (lane > 0) continue;
      fades[i] = elementary::exp(before - shift);
      totals[i] = totals[i] * fades[i] + total;
      tops[i] = top;
    }
  }
};

// ---- backward ------------------------------------------------------------------------------------------------

// dout . out - dlog_sum of each query: a warp for each.
template <class T>
struct Means {
  static constexpr int kThreads = cuda::kThreads;
  Problem<T> p;
  const T *dout, *out, *dlog_sum;  // the last may be absent
  T* means;
  int64_t count;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t index = block.index() * (kThreads / kWarp) + block.thread() / kWarp;
    if (index >= count) return;
    const int64_t head = index / p.queries, i = index % p.queries;
    const Rows<const T> a = p.rows(dout, head, p.queries, p.value_width),
                        b = p.rows(out, head, p.queries, p.value_width);
    double sum = 0;
    for (int64_t c = block.thread() % kWarp; c < p.value_width; c += kWarp)
      sum += double{a.data[i * a.step + c]} * b.data[i * b.step + c];
    sum = over_warp(block, sum, Sum());
    if (dlog_sum) sum -= dlog_sum[index];
    if (block.thread() % kWarp == 0) means[index] = static_cast<T>(sum);
  }
};

template <class T>
struct GradInputs {
  Problem<T> p;
  const T *query, *key, *value, *dout, *log_sum, *means;

  // The weight of query i for key j after dropout, and the gradient of their score.
  struct Pair {
    T weight, dscore;
  };
  MOONFLOW_DEVICE Pair pair(int64_t head, int64_t i, int64_t j, T score, T dweight) const {
    if (!p.looks(head, i, j)) return {0, 0};
    const int64_t index = head * p.queries + i;
    const T weight = elementary::exp(p.scale * score - finite_or_zero(log_sum[index]));
    const T kept = p.keeps(head, i, j) ? p.kept_scale : T(0);
    return {weight * kept, weight * (dweight * kept - means[index]) * p.scale};
  }
};

template <class T, int kTile>
struct QueryGrad {
  static constexpr int kThreads = cuda::kThreads;
  GradInputs<T> in;
  T* dquery;

  static int64_t shared_bytes(int64_t width, int64_t value_width) {
    return 3 * strip_bytes<T, kTile>(width) + 2 * strip_bytes<T, kTile>(value_width) +
           kTile * (kTile + 1) * static_cast<int64_t>(sizeof(T));
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const Problem<T>& p = in.p;
    const int64_t tiles = (p.queries + kTile - 1) / kTile;
    const int64_t head = block.index() / tiles, first = block.index() % tiles * kTile;
    Shelf<T, kTile> shelf{block.template shared<T>()};
    const Strip<T> q = shelf.strip(p.width), k = shelf.strip(p.width), dq = shelf.strip(p.width),
                   v = shelf.strip(p.value_width), dy = shelf.strip(p.value_width);
    T* const dscores = shelf.next;
    load<kTile>(block, p.rows(in.query, head, p.queries, p.width), first, q);
    load<kTile>(block, p.rows(in.dout, head, p.queries, p.value_width), first, dy);
    clear<kTile>(block, dq);
    const int64_t last = p.causal && first + kTile < p.keys ? first + kTile : p.keys;
    for (int64_t begin = 0; begin < last; begin += kTile) {
      load<kTile>(block, p.rows(in.key, head, p.keys, p.width), begin, k);
      load<kTile>(block, p.rows(in.value, head, p.keys, p.value_width), begin, v);
      block.sync();
      const RowProducts<T, kTile> scores(block, q, k), dweights(block, dy, v);
      scores.for_each(block, [&](int i, int j, int at) {
        dscores[i * (kTile + 1) + j] = in.pair(head, first + i, begin + j, scores.sums[at], dweights.sums[at]).dscore;
      });
      block.sync();
      add_product<kTile, false>(block, dscores, k, dq);
      block.sync();
    }
    store<kTile>(block, dq, first, p.rows(dquery, head, p.queries, p.width));
  }
};

template <class T, int kTile>
struct KeyGrad {
  static constexpr int kThreads = cuda::kThreads;
  GradInputs<T> in;
  T *dkey, *dvalue;

  static int64_t shared_bytes(int64_t width, int64_t value_width) {
    return 3 * strip_bytes<T, kTile>(width) + 3 * strip_bytes<T, kTile>(value_width) +
           2 * kTile * (kTile + 1) * static_cast<int64_t>(sizeof(T));
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const Problem<T>& p = in.p;
    const int64_t tiles = (p.keys + kTile - 1) / kTile;
    const int64_t head = block.index() / tiles, first = block.index() % tiles * kTile;
    Shelf<T, kTile> shelf{block.template shared<T>()};
    const Strip<T> q = shelf.strip(p.width), k = shelf.strip(p.width), dk = shelf.strip(p.width),
                   v = shelf.strip(p.value_width), dy = shelf.strip(p.value_width), dv = shelf.strip(p.value_width);
    T *const dscores = shelf.next, *const weights = dscores + kTile * (kTile + 1);
    load<kTile>(block, p.rows(in.key, head, p.keys, p.width), first, k);
    load<kTile>(block, p.rows(in.value, head, p.keys, p.value_width), first, v);
    clear<kTile>(block, dk);
    clear<kTile>(block, dv);
    for (int64_t begin = p.causal ? first : 0; begin < p.queries; begin += kTile) {  // earlier queries do not look here
      load<kTile>(block, p.rows(in.query, head, p.queries, p.width), begin, q);
      load<kTile>(block, p.rows(in.dout, head, p.queries, p.value_width), begin, dy);
      block.sync();
      const RowProducts<T, kTile> scores(block, q, k), dweights(block, dy, v);
      scores.for_each(block, [&](int i, int j, int at) {
        const auto pair = in.pair(head, begin + i, first + j, scores.sums[at], dweights.sums[at]);
        dscores[i * (kTile + 1) + j] = pair.dscore;
        weights[i * (kTile + 1) + j] = pair.weight;
      });
      block.sync();
      add_product<kTile, true>(block, dscores, q, dk);
      add_product<kTile, true>(block, weights, dy, dv);
      block.sync();
    }
    store<kTile>(block, dk, first, p.rows(dkey, head, p.keys, p.width));
    store<kTile>(block, dv, first, p.rows(dvalue, head, p.keys, p.value_width));
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class T>
Problem<T> problem_of(const KernelCall& call, const Sizes& sizes) {
  const double rate = call.has(kKept) ? call.attrs.number("rate") : 0;
  return {sizes.heads,
          sizes.queries,
          sizes.keys,
          sizes.width,
          sizes.value_width,
          static_cast<T>(call.attrs.number("scale")),
          static_cast<T>(1 / (1 - rate)),
          call.attrs.flag("causal"),
          call.has(kMask) ? steps_of_mask(call.inputs[kMask].shape) : MaskSteps{},
          nullptr,
          nullptr};
}

template <class T>
Problem<T> at_launch(Problem<T> p, const LaunchCall& at) {
  p.mask = at.input<int8_t>(kMask);
  p.kept = at.input<int8_t>(kKept);
  return p;
}

// Calls start(the number of rows in a tile, as a type) with the largest tiles that shared memory has room for. A launch
// of Pass<T, n> then takes tiles of n.
template <template <class, int> class Pass, class T, class Start>
Launch with_tiles(const Sizes& sizes, const Start& start) {
  const auto fits = [&](auto tile) {
    return Pass<T, decltype(tile)::value>::shared_bytes(sizes.width, sizes.value_width) <= kSharedBytes;
  };
  constexpr std::integral_constant<int, 32> large;
  constexpr std::integral_constant<int, 16> medium;
  constexpr std::integral_constant<int, 4> small;
  if (fits(large)) return start(large);
  if (fits(medium)) return start(medium);
  require(fits(small), ErrorCode::Unsupported, "heads of width ", sizes.width, " and ", sizes.value_width, " in ",
          DTypeOf<T>::value, " are too wide for the gpu; place their job with flow.scope.placement(\"cpu\", ",
          "\"0:0\")");
  return start(small);
}

// One block for each tile of each head, of `length` queries or keys.
template <class Pass>
void launch_tiles(Stream& stream, const Sizes& sizes, int64_t length, int tile, const Pass& pass) {
  const int64_t blocks = sizes.batch * sizes.heads * ((length + tile - 1) / tile);
  if (blocks > 0) launch(stream, blocks, pass, Pass::shared_bytes(sizes.width, sizes.value_width));
}

Launch prepare_forward(KernelCall& call) {
  const Sizes sizes(call.inputs[kQuery].shape, call.inputs[kValue].shape);
  return visit_floating(call.inputs[kQuery].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return with_tiles<Forward, T>(sizes, [&](auto tile) -> Launch {
      constexpr int kTile = decltype(tile)::value;
      return [sizes, p = problem_of<T>(call, sizes)](const LaunchCall& at) {
        launch_tiles(at.stream, sizes, sizes.queries, kTile,
                     Forward<T, kTile>{at_launch(p, at), at.input<T>(kQuery), at.input<T>(kKey), at.input<T>(kValue),
                                       at.output<T>(0), at.output<T>(1)});
      };
    });
  });
}

Launch prepare_backward(KernelCall& call) {
  const Sizes sizes(call.inputs[kQuery].shape, call.inputs[kValue].shape);
  const int64_t count = sizes.batch * sizes.heads * sizes.queries;  // of queries
  return visit_floating(call.inputs[kQuery].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    call.scratch_bytes = count * static_cast<int64_t>(sizeof(T));
    const Problem<T> prepared = problem_of<T>(call, sizes);
    const auto inputs = [prepared](const LaunchCall& at) {
      return GradInputs<T>{at_launch(prepared, at),    at.input<T>(kQuery), at.input<T>(kKey),
                           at.input<T>(kValue),        at.input<T>(kDOut),  at.input<T>(kLogSum),
                           static_cast<T*>(at.scratch)};
    };
    const Launch of_queries = with_tiles<QueryGrad, T>(sizes, [&](auto tile) -> Launch {
      constexpr int kTile = decltype(tile)::value;
      return [=](const LaunchCall& at) {
        launch_tiles(at.stream, sizes, sizes.queries, kTile, QueryGrad<T, kTile>{inputs(at), at.output<T>(0)});
      };
    });
    const Launch of_keys = with_tiles<KeyGrad, T>(sizes, [&](auto tile) -> Launch {
      constexpr int kTile = decltype(tile)::value;
      return [=](const LaunchCall& at) {
        launch_tiles(at.stream, sizes, sizes.keys, kTile,
                     KeyGrad<T, kTile>{inputs(at), at.output<T>(1), at.output<T>(2)});
      };
    });
    return [=](const LaunchCall& at) {
      constexpr int kEach = Means<T>::kThreads / kWarp;
      if (count > 0) {
        launch(at.stream, (count + kEach - 1) / kEach,
               Means<T>{prepared, at.input<T>(kDOut), at.input<T>(kOut), at.input<T>(kDLogSum),
                        static_cast<T*>(at.scratch), count});
      }
      of_queries(at);
      of_keys(at);
    };
  });
}

}  // namespace

void add_attention(Kernels& kernels) {
  kernels["dot_product_attention"] = {{prepare_forward}};
  kernels["dot_product_attention_grad"] = {{prepare_backward}};
}

}  // namespace moonflow::cuda
