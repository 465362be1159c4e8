// Random ops: dropout and its mask, coin flips, and the fills that initialise variables. Every number is a function of
// (seed, key, step, element index) alone, see kernels/philox.h, so a run repeats bit for bit with any thread count.
#include <cmath>
#include <limits>

#include "kernels/bad_chance.h"
#include "kernels/bad_index.h"
#include "kernels/boxes.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/philox_lanes.h"
#include "kernels/cpu/simd.h"
#include "kernels/random_draws.h"
#include "kernels/random_source.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using philox::Block;
using philox::Sequence;

// ---- dropout and masks ------------------------------------------------------------------------------------------

constexpr int64_t kBatch = 256;  // elements whose blocks are made side by side

// `grain`: elements that are worth a thread.
template <class Body>
void for_each_batch(int64_t count, int64_t grain, const Body& body) {
  cpu::parallel_for((count + kBatch - 1) / kBatch, grain / kBatch, [&](int64_t first, int64_t last) {
    for (int64_t batch = first; batch < last; ++batch) {
      body(batch * kBatch, std::min(kBatch, count - batch * kBatch));
    }
  });
}

// Element i of a mask has the 32-bit number i of the blocks, four of which each has. It is kept when its number is not
// below rate * 2^32, so the mask does not depend on the dtype. The flags of a block are the four bytes of a lane.
void keep_flags(const Sequence& sequence, uint32_t threshold, int64_t first_element, int8_t* flags) {
  cpu::widest_register([=](auto wide) {
    using Lanes = philox::Lanes<decltype(wide)::kWidth>;
    for (int i = 0; i < kBatch / 4; i += decltype(wide)::kWidth) {
      const Lanes lanes(sequence, static_cast<uint64_t>(first_element / 4 + i));
      typename Lanes::Words bytes = {};
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w) {
        const typename Lanes::Words kept = lanes.word[w] >= threshold;  // all bits where it holds
        bytes |= kept & 1u << 8 * w;
      }
      *reinterpret_cast<typename Lanes::Stored*>(flags + 4 * i) = bytes;
    }
  });
}

template <class T>
void scale_kept(const T* x, const int8_t* mask, T scale, int64_t count, T* out) {
  cpu::widest([=] {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T kept = x[i] * scale;  // taken always, so that the loop has no branch
      out[i] = mask[i] ? kept : T(0);
    }
  });
}

Launch prepare_dropout(KernelCall& call) {
  const RandomSource source(call, 1);
  const double rate = draws::checked_rate(call.attrs);
  const int64_t count = call.inputs[0].count();
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const Sequence sequence = source.at(launch);
      const T* x = launch.input<T>(0);
      T* out = launch.output<T>(0);
      int8_t* mask = launch.output<int8_t>(1);
      for_each_batch(count, cpu::kGrain / 4, [&](int64_t first, int64_t size) {
        int8_t flags[kBatch];
        keep_flags(sequence, draws::threshold_of(rate), first, flags);
        std::copy_n(flags, size, mask + first);
        scale_kept(x + first, flags, static_cast<T>(1 / (1 - rate)), size, out + first);
      });
    };
  });
}

Launch prepare_dropout_grad(KernelCall& call) {
  const double rate = draws::checked_rate(call.attrs);
  const int64_t count = call.inputs[0].count();
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      cpu::parallel_for(count, cpu::kGrain, [&](int64_t first, int64_t last) {
        scale_kept(launch.input<T>(0) + first, launch.input<int8_t>(1) + first, static_cast<T>(1 / (1 - rate)),
                   last - first, launch.output<T>(0) + first);
      });
    };
  });
}

Launch prepare_mask(KernelCall& call) {
  const RandomSource source(call, static_cast<int>(call.inputs.size()) - 2);
  const uint32_t threshold = draws::threshold_of(draws::checked_rate(call.attrs));
  const int64_t count = call.outputs[0].count();
  return [=](const LaunchCall& launch) {
    const Sequence sequence = source.at(launch);
    for_each_batch(count, cpu::kGrain / 4, [&](int64_t first, int64_t size) {
      int8_t flags[kBatch];
      keep_flags(sequence, threshold, first, flags);
      std::copy_n(flags, size, launch.output<int8_t>(0) + first);
    });
  };
}

AttrDef rate_attr() { return {"rate", 0.5, "the part that is dropped, in [0, 1)"}; }

void add_dropout(Catalog& catalog) {
  OpDef op;
  op.name = "dropout";
  op.doc =
      "Sets a random part of x to zero and scales the rest, so that the expected value stays.\n"
      "  mask = u >= rate;  out = mask ? x / (1 - rate) : 0, with u uniform in [0, 1)\n"
      "shapes: x (any), seed and step () -> out and mask as x\n"
      "dtypes: x float32 or float64 -> out the same, mask int8; seed and step int64\n"
      "defaults: rate = 0.5\n"
      "errors: rate outside [0, 1)\n"
      "source: Srivastava et al., Dropout, JMLR 2014";
  op.inputs = {{"x"}, {"seed"}, {"step"}};
  op.outputs = {"out", "mask"};
  op.attrs = {rate_attr(), key_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require_source(call, 1);
    draws::checked_rate(call.attrs);
    return {call.type(0), {DType::Int8, call.shape(0)}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Attrs attrs{{"rate", g.attrs.number("rate")}};
    return {g.op("dropout_grad", {g.grads[0], g.outputs[1]}, attrs), kNone, kNone};
  };
  op.cpu = {prepare_dropout};
  op.inplace = {{0, 0}};
  op.random = true;
  const TensorType scalar{DType::Int64, {}};
  op.examples = {{{f32({3, 5}), scalar, scalar}, {{"rate", 0.25}, {"key", std::string("a")}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "dropout_grad";
  grad.doc =
      "Gradient of dropout.\n"
      "  dx = mask ? dy / (1 - rate) : 0\n"
      "shapes: dy and mask alike -> dx alike\n"
      "dtypes: dy float32 or float64 -> the same; mask int8";
  grad.inputs = {{"dy"}, {"mask"}};
  grad.outputs = {"dx"};
  grad.attrs = {rate_attr()};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "dy");
    require(call.type(1) == TensorType{DType::Int8, call.shape(0)}, ErrorCode::ShapeMismatch, "dy is ", call.type(0),
            ", mask is ", call.type(1));
    draws::checked_rate(call.attrs);
    return {call.type(0)};
  };
  grad.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("dropout_grad", {g.grads[0], g.inputs[1]}, g.attrs), kNone};
  };
  grad.cpu = {prepare_dropout_grad};
  grad.inplace = {{0, 0}};
  grad.examples = {{{f32({3, 5}), {DType::Int8, {3, 5}}}, {{"rate", 0.25}}, -1, 1, 2}};
  catalog.add(grad);

  OpDef mask;
  mask.name = "random_mask_like";
  mask.doc =
      "The mask that dropout of the same rate and key applies: 0 for a random part of the elements, else 1.\n"
      "shapes: x (any; only its shape counts), seed and step () -> out as x\n"
      "dtypes: x any -> int8; seed and step int64\n"
      "defaults: rate = 0.5\n"
      "errors: rate outside [0, 1)";
  mask.inputs = op.inputs;
  mask.attrs = op.attrs;
  mask.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_source(call, 1);
    draws::checked_rate(call.attrs);
    return {{DType::Int8, call.shape(0)}};
  };
  mask.cpu = {prepare_mask};
  mask.random = true;
  mask.examples = op.examples;
  catalog.add(mask);

  OpDef fresh = mask;
  fresh.name = "random_mask";
  fresh.doc =
      "The mask that dropout of the same rate and key applies to a value of a shape: 0 for a random part, else 1.\n"
      "shapes: seed and step () -> out `shape`\n"
      "dtypes: int8; seed and step int64\n"
      "defaults: rate = 0.5\n"
      "errors: rate outside [0, 1)";
  fresh.inputs = {{"seed"}, {"step"}};
  fresh.attrs.push_back({"shape", Ints{}, "of the mask", true});
  fresh.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_source(call, 0);
    draws::checked_rate(call.attrs);
    return {{DType::Int8, checked_shape(call.attrs)}};
  };
  fresh.examples = {{{scalar, scalar}, {{"rate", 0.25}, {"key", std::string("a")}, {"shape", Ints{3, 5}}}}};
  catalog.add(fresh);
}

// ---- coin flips -------------------------------------------------------------------------------------------------

void add_bernoulli(Catalog& catalog) {
  OpDef op;
  op.name = "random_bernoulli";
  op.lua = "random.bernoulli";
  op.doc =
      "Coin flips whose chances are the elements of x, thrown anew in each run. No gradient.\n"
      "  out = u < x ? 1 : 0, with u uniform in [0, 1)\n"
      "shapes: x of any shape -> out of the same shape\n"
      "dtypes: float32, float64 -> the same\n"
      "errors: a chance that is NaN names its position";
  op.inputs = {{"x"}, {"seed"}, {"step"}};
  op.attrs = {key_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    require_source(call, 1);
    return {call.type(0)};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const RandomSource source(call, 1);
    const Shape shape = call.inputs[0].shape;
    const int64_t count = shape.count();
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& launch) {
        const Sequence sequence = source.at(launch);
        const T* x = launch.input<T>(0);
        T* out = launch.output<T>(0);
        const T* const bad = std::find_if(x, x + count, [](T chance) { return std::isnan(chance); });
        if (bad != x + count) fail_chance(shape, bad - x);
        cpu::parallel_for(count, cpu::kGrain / 16, [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            const Block block = sequence.block(static_cast<uint64_t>(i / 2));
            out[i] = philox::uniform53(philox::bits_of(block, i % 2)) < x[i];
          }
        });
      };
    });
  }};
  op.inplace = {{0, 0}};
  op.random = true;
  const TensorType scalar{DType::Int64, {}};
  op.examples = {{{f32({3, 5}), scalar, scalar}, {{"key", std::string("a")}}, 0, 1}};
  catalog.add(op);
}

// ---- classes ------------------------------------------------------------------------------------------------------

void add_drawn_class(Catalog& catalog) {
  OpDef op;
  op.name = "drawn_class";
  op.doc =
      "The classes that a race of logits has given, as another dtype, where there was one to draw. Made by\n"
      "flow.random.categorical. No gradient.\n"
      "shapes: classes (...), logits (..., n) -> out (...)\n"
      "dtypes: classes of an integer dtype; logits float32, float64 -> int32 or int64\n"
      "errors: a class outside [0, n), and one whose logit is NaN or -inf, name their row";
  op.inputs = {{"classes"}, {"logits"}};
  op.attrs = {{"dtype", DType::Int32, "of the result"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 0, "classes");
    require_floating(call, 1, "logits");
    const Shape& logits = call.shape(1);
    require(logits.rank() > 0 && call.shape(0) == Shape(logits.begin(), logits.end() - 1), ErrorCode::ShapeMismatch,
            "classes are ", call.shape(0), ", logits are ", logits, "; wanted (...) and (..., n)");
    const DType dtype = call.attrs.dtype("dtype");
    require(dtype == DType::Int32 || dtype == DType::Int64, ErrorCode::DtypeMismatch,
            "dtype must be int32 or int64, got ", dtype);
    return {{dtype, call.shape(0)}};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const int64_t rows = call.inputs[0].count(), classes = call.inputs[1].shape.dims().back();
    return visit(call.inputs[0].dtype, [&](auto of_class) {
      return visit_floating(call.inputs[1].dtype, [&](auto of_logit) {
        return visit(call.outputs[0].dtype, [&](auto of_out) -> Launch {
          return [=](const LaunchCall& launch) {
            const auto* const drawn = launch.input<decltype(of_class)>(0);
            const auto* const logits = launch.input<decltype(of_logit)>(1);
            auto* const out = launch.output<decltype(of_out)>(0);
            for (int64_t row = 0; row < rows; ++row) {
              const auto chosen = static_cast<int64_t>(drawn[row]);
              const bool is_class = chosen >= 0 && chosen < classes;
              if (!is_class || !is_drawable(logits[row * classes + chosen])) fail_drawn(row, chosen, classes);
            }
            for (int64_t row = 0; row < rows; ++row) out[row] = static_cast<decltype(of_out)>(drawn[row]);
          };
        });
      });
    });
  }};
  op.examples = {{{i32({3}), f32({3, 5})}},
                 {{{DType::Int64, {2, 3}}, f32({2, 3, 4})}, {{"dtype", DType::Int64}}},
                 {{{DType::Int64, {}}, f32({4})}}};
  catalog.add(op);
}

// ---- fills ------------------------------------------------------------------------------------------------------

// Blocks side by side, word for word, as loops over them read them.
struct Blocks {
  static constexpr int64_t kMost = kBatch;
  alignas(64) uint32_t word[4][kMost];

  // The first `count` from `first` on.
  void make(const Sequence& sequence, uint64_t first, int64_t count) {
    uint32_t* const to = word[0];
    cpu::widest_register([=](auto wide) {
      using Lanes = philox::Lanes<decltype(wide)::kWidth>;
      for (int64_t i = 0; i < count; i += decltype(wide)::kWidth) {
        const Lanes lanes(sequence, first + static_cast<uint64_t>(i));
#pragma GCC unroll 4
        for (int w = 0; w < 4; ++w) *reinterpret_cast<typename Lanes::Stored*>(to + w * kMost + i) = lanes.word[w];
      }
    });
  }
  Block operator[](int64_t i) const { return {{word[0][i], word[1][i], word[2][i], word[3][i]}}; }
};

// Elements come in pairs, one of a block each.
template <class T, class Draw>
Launch launch_pairs(const KernelCall& call, const Draw& draw) {
  return [draw, source = RandomSource(call, 0), count = call.outputs[0].count()](const LaunchCall& launch) {
    const Sequence sequence = source.at(launch);
    T* out = launch.output<T>(0);
    for_each_batch(count, cpu::kGrain / 16, [&](int64_t first, int64_t size) {
      Blocks blocks;
      T evens[kBatch / 2], odds[kBatch / 2];
      const int64_t pairs = (size + 1) / 2;
      blocks.make(sequence, static_cast<uint64_t>(first / 2), pairs);
      cpu::widest([&, draw] {
#pragma GCC ivdep
        for (int64_t i = 0; i < pairs; ++i) draw.both(blocks[i], evens[i], odds[i]);
      });
      T* const to = out + first;
      for (int64_t i = 0; i < size / 2; ++i) {
        to[2 * i] = evens[i];
        to[2 * i + 1] = odds[i];
      }
      if (size % 2 != 0) to[size - 1] = evens[size / 2];
    });
  };
}

Launch prepare_uniform(KernelCall& call) {
  return visit_floating(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch_pairs<T>(
        call, draws::Uniform<T>(call.attrs.number("low"), call.attrs.number("high"), call.attrs.dtype("dtype")));
  });
}

Launch prepare_normal(KernelCall& call) {
  return visit_floating(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch_pairs<T>(call, draws::Normal<T>{call.attrs.number("mean"), call.attrs.number("stddev")});
  });
}

// An element takes as many blocks as it needs. Nearly always that is one, which is made for a batch at a time.
Launch prepare_truncated(KernelCall& call) {
  return visit_floating(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const draws::Normal<T> normal{call.attrs.number("mean"), call.attrs.number("stddev")};
    return [normal, source = RandomSource(call, 0), count = call.outputs[0].count()](const LaunchCall& launch) {
      const Sequence sequence = source.at(launch);
      T* out = launch.output<T>(0);
      for_each_batch(count, cpu::kGrain / 16, [&](int64_t first, int64_t size) {
        Blocks blocks;
        double drawn[kBatch];
        blocks.make(sequence, static_cast<uint64_t>(first), size);
        cpu::widest([&] {
#pragma GCC ivdep
          for (int64_t i = 0; i < size; ++i) {
            const philox::NormalPair pair = philox::normal_pair(blocks[i]);
            drawn[i] = std::fabs(pair.first) < 2 ? pair.first : pair.second;
          }
        });
        for (int64_t i = 0; i < size; ++i) {
          const bool is_refused = std::fabs(drawn[i]) >= 2;
          if (is_refused) drawn[i] = philox::truncated_normal(sequence, static_cast<uint64_t>(first + i), 1);
          out[first + i] = normal.of(drawn[i]);
        }
      });
    };
  });
}

Launch prepare_int(KernelCall& call) {
  const int64_t low = call.attrs.integer("low");
  const uint64_t width = static_cast<uint64_t>(call.attrs.integer("high")) - static_cast<uint64_t>(low);
  return visit(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch_pairs<T>(call, draws::Integer<T>{low, width});
  });
}

// What the floating fills have in common; `check` looks at the parameters.
template <class Check>
OpDef floating_fill(const std::string& name, std::vector<AttrDef> parameters, Check check) {
  OpDef op;
  op.name = name;
  op.inputs = {{"seed"}, {"step"}};
  op.attrs = std::move(parameters);  // before the shape, as in NumPy
  op.attrs.push_back({"shape", Ints{}, "of the result", true});
  op.attrs.push_back({"dtype", DType::Float32, "of the result"});
  op.attrs.push_back(key_attr());
  op.infer = [check](const OpCall& call) -> std::vector<TensorType> {
    require_source(call, 0);
    const DType dtype = call.attrs.dtype("dtype");
    require(is_floating(dtype), ErrorCode::DtypeMismatch, "dtype must be a floating one such as float32, got ", dtype);
    check(call.attrs);
    return {{dtype, checked_shape(call.attrs)}};
  };
  op.random = true;
  const TensorType scalar{DType::Int64, {}};
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    op.examples.push_back({{scalar, scalar}, {{"shape", Ints{3, 5}}, {"dtype", dtype}, {"key", std::string("a")}}});
  }
  return op;
}

void check_normal(const Attrs& attrs) {
  const double stddev = attrs.number("stddev");
  require(stddev >= 0 && std::isfinite(stddev) && std::isfinite(attrs.number("mean")), ErrorCode::InvalidArgument,
          "mean must be finite and stddev at least 0, got ", attrs.number("mean"), " and ", stddev);
}

void add_fills(Catalog& catalog) {
  OpDef uniform =
      floating_fill("random_uniform", {{"low", 0.0, "smallest value"}, {"high", 1.0, "values stay below it"}},
                    [](const Attrs& attrs) {
                      const double low = attrs.number("low"), high = attrs.number("high");
                      require(low <= high && std::isfinite(low) && std::isfinite(high), ErrorCode::InvalidArgument,
                              "low must not be above high, got ", low, " and ", high);
                    });
  uniform.lua = "random.uniform";
  uniform.doc =
      "Uniform numbers in [low, high), drawn anew in each run; all `low` where both are equal.\n"
      "shapes: -> shape\n"
      "dtypes: float32 (steps of (high - low) / 2^24) or float64 (2^53)\n"
      "defaults: low = 0, high = 1\n"
      "errors: low above high";
  uniform.cpu = {prepare_uniform};
  catalog.add(uniform);

  const std::vector<AttrDef> normal_parameters = {{"mean", 0.0, "centre"}, {"stddev", 1.0, "standard deviation"}};
  OpDef normal = floating_fill("random_normal", normal_parameters, check_normal);
  normal.lua = "random.normal";
  normal.doc =
      "Normal numbers, drawn anew in each run.\n"
      "shapes: -> shape\n"
      "dtypes: float32, float64\n"
      "defaults: mean = 0, stddev = 1\n"
      "errors: stddev below 0\n"
      "source: Box and Muller, Ann. Math. Stat. 1958";
  normal.cpu = {prepare_normal};
  catalog.add(normal);

  OpDef truncated = floating_fill("truncated_normal", normal_parameters, check_normal);
  truncated.doc =
      "Normal numbers, of which those at or beyond two standard deviations are drawn again.\n"
      "  |out - mean| < 2 * stddev; the standard deviation of what is left is 0.8796 * stddev\n"
      "shapes: seed and step () -> out `shape`\n"
      "dtypes: seed and step int64 -> float32 or float64\n"
      "defaults: mean = 0, stddev = 1\n"
      "errors: stddev below 0";
  truncated.cpu = {prepare_truncated};
  catalog.add(truncated);

  OpDef integers;
  integers.name = "random_int";
  integers.lua = "random.randint";
  integers.doc =
      "Uniform whole numbers in [low, high), drawn anew in each run.\n"
      "shapes: -> shape\n"
      "dtypes: any that holds low and high - 1\n"
      "defaults: dtype = int32\n"
      "errors: low not below high; values the dtype does not have";
  integers.inputs = {{"seed"}, {"step"}};
  integers.attrs = {{"low", int64_t{0}, "smallest value", true},
                    {"high", int64_t{1}, "values stay below it", true},
                    {"shape", Ints{}, "of the result", true},
                    {"dtype", DType::Int32, "of the result"},
                    key_attr()};
  integers.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_source(call, 0);
    const int64_t low = call.attrs.integer("low"), high = call.attrs.integer("high");
    require(low < high, ErrorCode::InvalidArgument, "low must be below high, got ", low, " and ", high);
    const DType dtype = call.attrs.dtype("dtype");
    visit(dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_integral_v<T>) {
        require(low >= int64_t{std::numeric_limits<T>::min()} && high - 1 <= int64_t{std::numeric_limits<T>::max()},
                ErrorCode::InvalidArgument, "[", low, ", ", high, ") is not within ", dtype);
      }
    });
    return {{dtype, checked_shape(call.attrs)}};
  };
  integers.cpu = {prepare_int};
  integers.random = true;
  const TensorType scalar{DType::Int64, {}};
  integers.examples = {
      {{scalar, scalar},
       {{"shape", Ints{3, 5}}, {"key", std::string("a")}, {"low", int64_t{-2}}, {"high", int64_t{7}}}}};
  catalog.add(integers);
}

}  // namespace

void add_random(Catalog& catalog) {
  add_dropout(catalog);
  add_bernoulli(catalog);
  add_drawn_class(catalog);
  add_fills(catalog);
  add_orthogonal(catalog);
}

}  // namespace moonflow
