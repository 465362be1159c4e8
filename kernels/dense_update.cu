// dense_sgd_update on CUDA: one launch for all variables of a step. Blocks share the groups of the op among them: a
// tile of a layer's weight, whose gradient they sum, or a run of a variable with a stored gradient. All leave the
// variables alone where the run has found a fault before; the library cannot, so where a layer's gradient is left to
// it, it is stored in scratch, and taken from there. (A factor of 0 from the card's memory would not do: 0 times NaN is
// NaN.)
#include <algorithm>
#include <optional>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/gradient_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/library_product.h"
#include "kernels/update_rules.h"

namespace moonflow::cuda {
namespace {

enum Input { kVariable, kBias, kGradient, kX, kRate, kInputs };
enum class Kind : int { Layer, Stored, Count };

// What one part of the launch does. A layer without a variable has only a bias.
template <class T>
struct Part {
  void *variable, *bias;
  const void *gradient, *x;
  const float* learning_rate;
  int64_t units, in, rows;  // of a layer; else the elements are `units`
  Kind kind;
};

template <class Sums>
struct Descend {
  using Tile = GradientTile<Sums>;
  using T = typename Sums::Number;
  static constexpr int kThreads = Tile::kThreads, kSide = Tile::kSide, kN = 16 / sizeof(T);
  static constexpr int64_t kPerBlock = int64_t{kThreads} * kN * 4;
  static constexpr int kMost = (kArgumentBytes - 64) / static_cast<int>(sizeof(Part<T>) + sizeof(uint32_t));

  update::Descent rule;
  const FaultNote* note;
  int count = 0;
  uint32_t first_blocks[kMost];  // of the parts, close together: every block looks for its own
  Part<T> parts[kMost];

  Descend(const update::Descent& rule, const FaultNote* note) : rule(rule), note(note) {}

  static int64_t blocks_of(const Part<T>& part) {
    if (part.kind == Kind::Count) return 1;
    if (part.kind == Kind::Stored) return (part.units + kPerBlock - 1) / kPerBlock;
    return (part.units + kSide - 1) / kSide * columns_of(part);
  }

  // The note is asked for at once, and looked at before something is written: waiting for it takes as long as waiting
  // for the first numbers.
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const bool may_write = note->found == 0;
    int of = 0;
    while (of + 1 < count && first_blocks[of + 1] <= block.index()) ++of;
    const Part<T>& part = parts[of];
    const uint32_t at = static_cast<uint32_t>(block.index()) - first_blocks[of];
    if (part.kind == Kind::Count) {
      if (block.thread() == 0 && may_write)
        *static_cast<int64_t*>(part.variable) += *static_cast<const int64_t*>(part.gradient);
      return;
    }
    const void* const numbers[] = {nullptr, nullptr, part.learning_rate, nullptr};
    const auto step = rule.template step<T, T>(numbers);
    if (part.kind == Kind::Stored)
      descend_along(block, part, at * kPerBlock, may_write, step);
    else
      descend_layer(block, part, at, may_write, step);
  }

 private:
  MOONFLOW_BOTH static uint32_t columns_of(const Part<T>& part) {
    return part.variable == nullptr ? 1 : static_cast<uint32_t>((part.in + kSide - 1) / kSide);
  }

  template <class Block, class Step>
  MOONFLOW_DEVICE void descend_along(const Block& block, const Part<T>& part, int64_t first, bool may_write,
                                     const Step& step) const {
    T* const variable = static_cast<T*>(part.variable);
    const T* const gradient = static_cast<const T*>(part.gradient);
    const int64_t last = first + kPerBlock < part.units ? first + kPerBlock : part.units;
    for (int64_t i = first + block.thread() * kN; i < last; i += kThreads * kN) {
      const bool whole = last - i >= kN && is_aligned<T, kN>(variable) && is_aligned<T, kN>(gradient);
      const auto g = read<T, kN>(gradient + i, last - i, whole);
      auto w = read<T, kN>(variable + i, last - i, whole);
      for (int n = 0; n < kN; ++n) step(w.values[n], g.values[n]);
      if (may_write) write(w, variable + i, last - i, whole);
    }
  }

  // The gradient is (rows, units) and x (rows, in). The blocks of the first columns have the bias too: all of their
  // threads sum it, each a few rows of every strip, in double from strip to strip.
  template <class Block, class Step>
  MOONFLOW_DEVICE void descend_layer(const Block& block, const Part<T>& part, uint32_t tile, bool may_write,
                                     const Step& step) const {
    constexpr int kPairs = Sums::kPairs, kSharers = kThreads / kSide, kOwn = Tile::kDepth / kSharers;
    const int64_t first_unit = int64_t{tile / columns_of(part)} * kSide;
    const int64_t first_in = int64_t{tile % columns_of(part)} * kSide;
    T *const weight = static_cast<T*>(part.variable), *const bias =
                                                          first_in == 0 ? static_cast<T*>(part.bias) : nullptr;
    const Tile own{static_cast<const T*>(part.gradient),
                   weight == nullptr ? nullptr : static_cast<const T*>(part.x),
                   part.rows,
                   part.units,
                   part.in,
                   first_unit,
                   first_in};
    own.begin(block);

    // The weight comes while the sums are made.
    const int thread = block.thread();
    const bool even = part.in % 2 == 0 && is_aligned<T, 2>(weight);
    const auto place = [&](int pair, int64_t& left) {
      const int64_t unit = first_unit + Sums::row(thread, pair), k = first_in + Sums::column(thread, pair);
      left = weight != nullptr && unit < part.units ? part.in - k : 0;
      return unit * part.in + k;
    };
    Pack<T, 2> pairs[kPairs];
    int64_t left;
    MOONFLOW_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      const int64_t at = place(pair, left);
      if (left > 0) pairs[pair] = read<T, 2>(weight + at, left, even);
    }

    Sums sums;
    double of_bias = 0;
    const int unit = thread % kSide, sharer = thread / kSide;
    own.add_to(sums, block, [=, &of_bias](const T* strip) {
      if (bias == nullptr) return;
      T sum = 0;
      MOONFLOW_UNROLL
      for (int k = 0; k < kOwn; ++k) sum += strip[(sharer * kOwn + k) * Strips::kRow + unit];
      of_bias += sum;
    });
    MOONFLOW_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      const int64_t at = place(pair, left);
      if (left <= 0 || !may_write) continue;
      for (int i = 0; i < 2; ++i) step(pairs[pair].values[i], sums.of(pair, i));
      write(pairs[pair], weight + at, left, even);
    }

    if (bias == nullptr) return;
    double* const shares = block.template shared<double>();
    block.sync();  // the strips have been read
    shares[thread] = of_bias;
    block.sync();
    if (sharer > 0 || first_unit + unit >= part.units || !may_write) return;
    for (int i = 1; i < kSharers; ++i) of_bias += shares[i * kSide + unit];
    step(bias[first_unit + unit], static_cast<T>(of_bias));
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// A group of the op as prepare sees it.
struct Group {
  int first;  // of its inputs
  Kind kind;
  bool has_bias;
  int64_t count;                               // elements of the variable
  Product sizes;                               // of a layer's gradient
  int64_t stored_at = -1;                      // where in scratch that is stored, or -1
  std::optional<LibraryProduct> product = {};  // what stores it
};

template <class Sums>
void launch_groups(const LaunchCall& at, const update::Descent& rule, const std::vector<Group>& groups) {
  using Kernel = Descend<Sums>;
  using T = typename Sums::Number;
  Kernel kernel(rule, fault_note(at.stream));
  int64_t blocks = 0;
  const auto finish = [&] {
    if (blocks > 0) launch(at.stream, blocks, kernel, Kernel::Tile::kSharedBytes);
    kernel.count = 0;
    blocks = 0;
  };
  const auto add = [&](const Part<T>& part) {
    const int64_t more = Kernel::blocks_of(part);
    if (more == 0) return;
    if (kernel.count == Kernel::kMost) finish();
    kernel.first_blocks[kernel.count] = static_cast<uint32_t>(blocks);
    kernel.parts[kernel.count++] = part;
    blocks += more;
  };
  for (const Group& group : groups) {
    void* const* const in = at.inputs + group.first;
    const float* const rate = static_cast<const float*>(in[kRate]);
    if (group.kind != Kind::Layer) {
      add({in[kVariable], nullptr, in[kGradient], nullptr, rate, group.count, 0, 0, group.kind});
      continue;
    }
    void* const bias = group.has_bias ? in[kBias] : nullptr;
    const bool stored = group.stored_at >= 0;
    if (stored)
      add({in[kVariable], nullptr, static_cast<char*>(at.scratch) + group.stored_at, nullptr, rate, group.count, 0, 0,
           Kind::Stored});
    if (!stored || bias != nullptr)
      add({stored ? nullptr : in[kVariable], bias, in[kGradient], in[kX], rate, group.sizes.rows, group.sizes.columns,
           group.sizes.inner, Kind::Layer});
  }
  finish();
}

Launch prepare(Products& products, KernelCall& call) {
  std::vector<Group> groups;
  DType dtype = DType::Float32;
  int64_t gradients_end = 0;
  for (size_t i = 0; i < call.inputs.size(); i += kInputs) {
    const TensorType& variable = call.inputs[i];
    Group group{static_cast<int>(i), Kind::Stored, call.present[i + kBias], variable.count(), {}};
    if (variable.dtype == DType::Int64) {
      group.kind = Kind::Count;
    } else {
      dtype = variable.dtype;
    }
    if (call.present[i + kX]) {
      group.kind = Kind::Layer;
      group.sizes = product(call.inputs[i + kGradient].shape, call.inputs[i + kX].shape, true, false);
      if (dtype == DType::Float32 && stores_gradient(group.sizes)) {
        group.stored_at = gradients_end;
        gradients_end += aligned(variable.bytes());
      }
    }
    groups.push_back(std::move(group));
  }
  call.scratch_bytes = gradients_end;
  for (Group& group : groups) {
    if (group.stored_at < 0) continue;
    // They run one after the other, so they share what they need for themselves.
    group.product.emplace(products, group.sizes, call, group.first + kGradient, DType::Float32, DType::Float32, false,
                          false, gradients_end);
    if (*group.product)
      call.scratch_bytes = std::max(call.scratch_bytes, group.product->scratch_end());
    else
      group.stored_at = -1;
  }
  // What takes long begins first: the blocks of layers.
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.kind < b.kind; });
  const update::Descent rule(call.attrs);
  const auto with = [&](auto sums) -> Launch {
    using Sums = decltype(sums);
    return [=](const LaunchCall& at) {
      for (const Group& group : groups)
        if (group.stored_at >= 0) (*group.product)(at, static_cast<char*>(at.scratch) + group.stored_at);
      launch_groups<Sums>(at, rule, groups);
    };
  };
  if (dtype == DType::Float64) return with(OwnSums<double>());
  return call.allow_tf32 && has_tensor_cores(call.device) ? with(TensorSums()) : with(OwnSums<float>());
}

}  // namespace

void add_dense_update(Kernels& kernels) {
  const std::shared_ptr<Products> products = make_products();
  kernels["dense_sgd_update"] = {{[products](KernelCall& call) { return prepare(*products, call); }}};
}

}  // namespace moonflow::cuda
