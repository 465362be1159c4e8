// Matrix products on CUDA: matmul, dense, and the steps of gradient descent whose gradient is a product. Large products
// are the library's (kernels/cuda/product.h). Two kernels of our own take the others: sizes for which the library is no
// faster or has nothing, factors of two dtypes, and results that change a variable, since those must be left alone
// after a fault.
#include <array>
#include <type_traits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/product.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {
namespace {

// ---- factors and results -------------------------------------------------------------------------------------

// A stack of matrices.
template <class T>
struct Factor {
  using Number = T;
  const T* data;
  int64_t batch_step, row_step, column_step;
  MOONFLOW_DEVICE T at(int64_t batch, int64_t row, int64_t column) const {
    return data[batch * batch_step + row * row_step + column * column_step];
  }
};

// The same in bfloat16: stored so, or rounded as it is read.
struct NarrowFactor {
  using Number = float;
  const void* data;
  int64_t batch_step, row_step, column_step;
  bool narrow;
  MOONFLOW_DEVICE float at(int64_t batch, int64_t row, int64_t column) const {
    const int64_t place = batch * batch_step + row * row_step + column * column_step;
    if (narrow) return static_cast<float>(static_cast<const BFloat16*>(data)[place]);
    return static_cast<float>(BFloat16(static_cast<const float*>(data)[place]));
  }
};

// What becomes of a sum: it is stored, with bias and relu.
template <class T>
struct Store {
  void* out;
  const void* bias;  // one per column, or none
  bool narrow, narrow_bias, relu;
  MOONFLOW_DEVICE bool begins() const { return true; }
  MOONFLOW_DEVICE void operator()(int64_t place, int64_t column, T sum) const {
    if (bias) {
      sum += narrow_bias ? static_cast<T>(static_cast<float>(static_cast<const BFloat16*>(bias)[column]))
                         : static_cast<const T*>(bias)[column];
    }
    if (relu && sum < 0) sum = 0;
    if (narrow)
      static_cast<BFloat16*>(out)[place] = BFloat16(static_cast<float>(sum));
    else
      static_cast<T*>(out)[place] = sum;
  }
};

// It is a gradient, and the variable goes down along it.
template <class T>
struct Descend {
  T* variable;
  const float* learning_rate;
  T scale;
  const FaultNote* note;
  MOONFLOW_DEVICE bool begins() const { return note->found == 0; }
  MOONFLOW_DEVICE void operator()(int64_t place, int64_t, T sum) const {
    variable[place] -= static_cast<T>(*learning_rate) * scale * sum;
  }
};

// ---- tiles: each block has one of the result -----------------------------------------------------------------

// A strip of either factor lies in shared memory, kDepth of the inner axis at a time, and each thread sums
// kEach * kEach elements of the tile in registers. Edges are filled up with zeros.
template <class From, int kEach, class End>
struct Tiles {
  using T = typename From::Number;
  static constexpr int kThreads = 256;
  static constexpr int kSide = 16 * kEach, kDepth = 16;
  static constexpr int kRow = kSide + 1;  // one more, so that what a warp writes lies in different banks
  static constexpr int64_t kSharedBytes = 2 * kDepth * kRow * sizeof(T);

  From a, b;
  End end;
  int64_t rows, columns, inner, tile_rows, tile_columns;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (!end.begins()) return;
    T *const left = block.template shared<T>(), *const right = left + kDepth * kRow;
    const int64_t batch = block.index() / (tile_rows * tile_columns), tile = block.index() % (tile_rows * tile_columns);
    const int64_t first_row = tile / tile_columns * kSide, first_column = tile % tile_columns * kSide;
    const int row = block.thread() / 16, column = block.thread() % 16;  // its own elements are 16 apart
    T sums[kEach * kEach] = {};
    for (int64_t first = 0; first < inner; first += kDepth) {
      // Neighbouring threads read neighbours, whichever axis those lie along.
      fill(block, a, batch, first_row, rows, first, a.column_step == 1, false, left);
      fill(block, b, batch, first_column, columns, first, b.row_step == 1, true, right);
      block.sync();
      MOONFLOW_UNROLL
      for (int k = 0; k < kDepth; ++k) {
        T of_row[kEach], of_column[kEach];
        MOONFLOW_UNROLL
        for (int i = 0; i < kEach; ++i) of_row[i] = left[k * kRow + row + 16 * i];
        MOONFLOW_UNROLL
        for (int j = 0; j < kEach; ++j) of_column[j] = right[k * kRow + column + 16 * j];
        MOONFLOW_UNROLL
        for (int at = 0; at < kEach * kEach; ++at) sums[at] += of_row[at / kEach] * of_column[at % kEach];
      }
      block.sync();
    }
    MOONFLOW_UNROLL
    for (int at = 0; at < kEach * kEach; ++at) {
      const int64_t to_row = first_row + row + at / kEach * 16, to_column = first_column + column + at % kEach * 16;
      if (to_row < rows && to_column < columns) end((batch * rows + to_row) * columns + to_column, to_column, sums[at]);
    }
  }

 private:
  // Lays out (depth, side): `side` counts rows of a or columns of b, from `first_side` on.
  template <class Block>
  MOONFLOW_DEVICE void fill(const Block& block, const From& from, int64_t batch, int64_t first_side, int64_t side_count,
                            int64_t first_depth, bool along_depth, bool is_b, T* to) const {
    for (int i = block.thread(); i < kSide * kDepth; i += kThreads) {
      const int depth = along_depth ? i % kDepth : i / kSide, side = along_depth ? i / kDepth : i % kSide;
      const int64_t s = first_side + side, d = first_depth + depth;
      const bool inside = s < side_count && d < inner;
      to[depth * kRow + side] = inside ? (is_b ? from.at(batch, d, s) : from.at(batch, s, d)) : T(0);
    }
  }
};

// ---- dots: each warp has one element of the result -----------------------------------------------------------

template <class From, class End>
struct Dots {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  From a, b;
  End end;
  int64_t count, rows, columns, inner;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t place = block.index() * kWarps + block.thread() / kWarp;
    if (place >= count || !end.begins()) return;
    const int lane = block.thread() % kWarp;
    const int64_t column = place % columns, row = place / columns % rows, batch = place / columns / rows;
    typename From::Number sum = 0;
    for (int64_t k = lane; k < inner; k += kWarp) sum += a.at(batch, row, k) * b.at(batch, k, column);
    sum = over_warp(block, sum, Sum());
    if (lane == 0) end(place, column, sum);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// What the factors are, beside their sizes.
struct Stored {
  bool narrow_a = false, narrow_b = false;
  bool rounds = false;  // those that are float32 are rounded to bfloat16

  bool any() const { return narrow_a || narrow_b || rounds; }
};

// Few results of long sums, as logits are, and as one sample makes of any layer.
bool wants_dots(const Product& s) {
  return s.inner >= 2 * kWarp && (s.batch * s.rows * s.columns <= 4096 || (s.batch == 1 && s.rows <= 4));
}

template <class From, class End>
void multiply_factors(Stream& stream, const Product& s, const From& left, const From& right, const End& end) {
  const int64_t count = s.batch * s.rows * s.columns;
  if (count == 0) return;
  if (wants_dots(s)) {
    using Kernel = Dots<From, End>;
    const int64_t blocks = (count + Kernel::kWarps - 1) / Kernel::kWarps;
    return launch(stream, blocks, Kernel{left, right, end, count, s.rows, s.columns, s.inner});
  }
  const auto in_tiles = [&](auto kernel) {
    using Kernel = decltype(kernel);
    kernel.tile_rows = (s.rows + Kernel::kSide - 1) / Kernel::kSide;
    kernel.tile_columns = (s.columns + Kernel::kSide - 1) / Kernel::kSide;
    launch(stream, s.batch * kernel.tile_rows * kernel.tile_columns, kernel, Kernel::kSharedBytes);
  };
  // Larger tiles read less, smaller ones give each part of the card something to do.
  constexpr int64_t kManyTiles = 132 * 64 * 64;
  if (count >= kManyTiles)
    in_tiles(Tiles<From, 4, End>{left, right, end, s.rows, s.columns, s.inner, 0, 0});
  else
    in_tiles(Tiles<From, 2, End>{left, right, end, s.rows, s.columns, s.inner, 0, 0});
}

template <class T, class End>
void multiply(Stream& stream, const Product& s, const Stored& stored, const void* a, const void* b, const End& end) {
  // Of what is stored as the transpose, rows are columns.
  const auto steps = [](int64_t rows, int64_t columns, bool transposed) {
    return std::array<int64_t, 3>{rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
  };
  const auto of_a = steps(s.rows, s.inner, s.transpose_a), of_b = steps(s.inner, s.columns, s.transpose_b);
  if constexpr (std::is_same_v<T, float>) {
    if (stored.any()) {
      return multiply_factors(stream, s, NarrowFactor{a, of_a[0], of_a[1], of_a[2], stored.narrow_a},
                              NarrowFactor{b, of_b[0], of_b[1], of_b[2], stored.narrow_b}, end);
    }
  }
  multiply_factors(stream, s, Factor<T>{static_cast<const T*>(a), of_a[0], of_a[1], of_a[2]},
                   Factor<T>{static_cast<const T*>(b), of_b[0], of_b[1], of_b[2]}, end);
}

// From here on the library is worth its launch, unless a side is so short that its tiles would be mostly edge.
bool wants_library(const Product& s) {
  constexpr double kLeastFlops = 4e6;
  return flops_of(s) >= kLeastFlops && s.rows > 4 && s.columns > 16 && !wants_dots(s);
}

bool is_narrow(const TensorType& type) { return type.dtype == DType::BFloat16; }

// Rounds float32 to bfloat16.
struct Round {
  const float* from;
  BFloat16* to;
  MOONFLOW_DEVICE void operator()(int64_t i) const { to[i] = BFloat16(from[i]); }
};

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Products by the library of what `call` has at the places 0, 1 and (a bias) 2 of its inputs from `first` on. What is
// to be bfloat16 and is not is rounded into scratch first. The scratch that the launch uses begins at `scratch_begin`.
class LibraryProduct {
 public:
  LibraryProduct(Products& products, const Product& sizes, const KernelCall& call, int first, DType out, bool bias,
                 bool relu, bool narrow, int64_t scratch_begin)
      : first_(first), scratch_begin_(scratch_begin) {
    ProductCall wanted{sizes, narrow ? DType::BFloat16 : call.inputs[first].dtype, out, bias, relu};
    if (call.allow_tf32) wanted.precision = Precision::Tf32;
    int64_t product_scratch = 0;
    launch_ = products.prepare(wanted, product_scratch);
    int64_t end = scratch_begin + round_up(product_scratch);
    for (int i = 0; i < 3; ++i) {
      if (i == 2 && !bias) break;
      const TensorType& type = call.inputs[first + i];
      rounded_[i] = type.dtype == DType::Float32 && (i == 2 ? out == DType::BFloat16 : narrow);
      places_[i] = end;
      counts_[i] = type.count();
      if (rounded_[i]) end += round_up(counts_[i] * static_cast<int64_t>(sizeof(BFloat16)));
    }
    scratch_end_ = end;
  }

  explicit operator bool() const { return static_cast<bool>(launch_); }
  int64_t scratch_end() const { return scratch_end_; }

  void operator()(const LaunchCall& at, void* out) const {
    char* const scratch = static_cast<char*>(at.scratch);
    const void* inputs[3] = {at.inputs[first_], at.inputs[first_ + 1], nullptr};
    if (counts_[2] > 0) inputs[2] = at.inputs[first_ + 2];
    for (int i = 0; i < 3; ++i) {
      if (!rounded_[i]) continue;
      BFloat16* const to = reinterpret_cast<BFloat16*>(scratch + places_[i]);
      for_each(at.stream, counts_[i], Round{static_cast<const float*>(inputs[i]), to});
      inputs[i] = to;
    }
    launch_(at.stream, {inputs[0], inputs[1], inputs[2], out, scratch + scratch_begin_});
  }

 private:
  ProductLaunch launch_;
  int first_;
  bool rounded_[3] = {};
  int64_t places_[3] = {}, counts_[3] = {};
  int64_t scratch_begin_, scratch_end_ = 0;
};

Launch prepare_product(Products& products, const Product& sizes, bool bias, bool relu, KernelCall& call) {
  const bool mixed = !call.attrs.string("mixed").empty();
  const Stored stored{is_narrow(call.inputs[0]), is_narrow(call.inputs[1]), mixed};
  const bool narrow = mixed || stored.narrow_a;
  const DType out = call.outputs[0].dtype;
  if (wants_library(sizes)) {
    const LibraryProduct product(products, sizes, call, 0, out, bias, relu, narrow, 0);
    if (product) {
      call.scratch_bytes = product.scratch_end();
      return [product](const LaunchCall& at) { product(at, at.outputs[0]); };
    }
  }
  const bool narrow_bias = bias && is_narrow(call.inputs[2]), narrow_out = out == DType::BFloat16;
  const auto with = [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      multiply<T>(at.stream, sizes, stored, at.inputs[0], at.inputs[1],
                  Store<T>{at.outputs[0], bias ? at.inputs[2] : nullptr, narrow_out, narrow_bias, relu});
    };
  };
  return call.inputs[0].dtype == DType::Float64 ? with(double{}) : with(float{});
}

CudaKernel product_kernel(std::function<Launch(KernelCall&)> prepare) {
  CudaKernel kernel;
  kernel.prepare = std::move(prepare);
  kernel.bfloat16 = true;
  return kernel;
}

// variable -= learning_rate * gradient_scale * a b. A large product is left to the library, and its result in scratch.
struct DescendAlong {
  const float *gradient, *learning_rate;
  float scale;
  const FaultNote* note;
  float* variable;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    if (note->found == 0) variable[i] -= *learning_rate * scale * gradient[i];
  }
};

Launch prepare_update(Products& products, bool rounds, KernelCall& call) {
  const bool transpose_b = call.attrs.find("transpose_b") != nullptr && call.attrs.flag("transpose_b");
  const Product sizes =
      product(call.inputs[1].shape, call.inputs[2].shape, call.attrs.flag("transpose_a"), transpose_b);
  const double scale = call.attrs.number("gradient_scale");
  const Stored stored{is_narrow(call.inputs[1]), is_narrow(call.inputs[2]), rounds};
  if (call.inputs[0].dtype == DType::Float64) {
    return [=](const LaunchCall& at) {
      multiply<double>(
          at.stream, sizes, stored, at.inputs[1], at.inputs[2],
          Descend<double>{static_cast<double*>(at.inputs[0]), at.input<float>(3), scale, fault_note(at.stream)});
    };
  }
  // Up to here the product costs less than storing the gradient and reading it again.
  constexpr double kMostFlopsPerElement = 256;
  const int64_t count = sizes.rows * sizes.columns;
  if (wants_library(sizes) && flops_of(sizes) > kMostFlopsPerElement * static_cast<double>(count)) {
    const int64_t gradient_bytes = round_up(count * static_cast<int64_t>(sizeof(float)));
    const LibraryProduct product(products, sizes, call, 1, DType::Float32, false, false, rounds, gradient_bytes);
    if (product) {
      call.scratch_bytes = product.scratch_end();
      return [=](const LaunchCall& at) {
        product(at, at.scratch);
        for_each(at.stream, count,
                 DescendAlong{static_cast<const float*>(at.scratch), at.input<float>(3), static_cast<float>(scale),
                              fault_note(at.stream), static_cast<float*>(at.inputs[0])});
      };
    }
  }
  return [=](const LaunchCall& at) {
    multiply<float>(at.stream, sizes, stored, at.inputs[1], at.inputs[2],
                    Descend<float>{static_cast<float*>(at.inputs[0]), at.input<float>(3), static_cast<float>(scale),
                                   fault_note(at.stream)});
  };
}

}  // namespace

void add_matmul(Kernels& kernels) {
  const std::shared_ptr<Products> products = make_products();
  kernels["matmul"] = product_kernel([products](KernelCall& call) {
    return prepare_product(*products, matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape), false,
                           false, call);
  });
  kernels["dense"] = product_kernel([products](KernelCall& call) {
    return prepare_product(*products, dense_product(call.inputs[0].shape, call.inputs[1].shape), call.has(2),
                           call.attrs.string("activation") == "relu", call);
  });
  kernels["matmul_sgd_update"] = {{[products](KernelCall& call) { return prepare_update(*products, false, call); }}};
  kernels["matmul_bfloat16_sgd_update"] =
      product_kernel([products](KernelCall& call) { return prepare_update(*products, true, call); });
}

}  // namespace moonflow::cuda
