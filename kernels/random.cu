// Random ops on CUDA: the same numbers as on the CPU, since each is a function of (seed, key, step, element) alone.
#include "kernels/bad_chance.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/random_draws.h"

namespace moonflow::cuda {
namespace {

using philox::Sequence;

// The seed and the step lie in the card's memory.
struct Source {
  const int64_t *seed, *step;
  uint64_t key_hash;
  MOONFLOW_DEVICE Sequence sequence() const { return {*seed, key_hash, *step}; }
};

// Four elements have one block of four numbers: element i is kept where its number is not below the threshold.
template <int N>
MOONFLOW_DEVICE Pack<int8_t, N> kept(const Sequence& sequence, uint32_t threshold, int64_t first) {
  static_assert(N % 4 == 0);
  Pack<int8_t, N> flags;
  for (int i = 0; i < N; i += 4) {
    const philox::Block block = sequence.block(static_cast<uint64_t>(first + i) / 4);
    for (int w = 0; w < 4; ++w) flags.values[i + w] = block.word[w] >= threshold;
  }
  return flags;
}

template <class T>
constexpr int kMasked = sizeof(T) == 2 ? 8 : 4;

template <class T>
struct Dropout {
  static constexpr int kN = kMasked<T>;
  Source source;
  uint32_t threshold;
  Computed<T> scale;
  const T* x;
  T* out;
  int8_t* mask;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    const auto values = own.of(x);
    const auto flags = kept<kN>(source.sequence(), threshold, own.first);
    Pack<T, kN> results;
    for (int i = 0; i < kN; ++i)
      results.values[i] = T(flags.values[i] ? Computed<T>(values.values[i]) * scale : Computed<T>(0));
    own.put(results, out);
    own.put(flags, mask);
  }
};

template <class T>
struct DropoutGrad {
  static constexpr int kN = kMasked<T>;
  Computed<T> scale;
  const T* dy;
  const int8_t* mask;
  T* dx;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    const auto values = own.of(dy);
    const auto flags = own.of(mask);
    Pack<T, kN> results;
    for (int i = 0; i < kN; ++i)
      results.values[i] = T(flags.values[i] ? Computed<T>(values.values[i]) * scale : Computed<T>(0));
    own.put(results, dx);
  }
};

struct Mask {
  static constexpr int kN = 16;
  Source source;
  uint32_t threshold;
  int8_t* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    own.put(kept<kN>(source.sequence(), threshold, own.first), out);
  }
};

// What draws::Uniform and the like give, two elements of a block.
template <class Draw, class T>
struct FillPairs {
  static constexpr int kN = sizeof(T) == 8 ? 2 : 4;
  Draw draw;
  Source source;
  T* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    const Sequence sequence = source.sequence();
    Pack<T, kN> results;
    for (int i = 0; i < kN; i += 2) {
      Computed<T> even, odd;
      draw.both(sequence.block(static_cast<uint64_t>(own.first + i) / 2), even, odd);
      results.values[i] = T(even);
      results.values[i + 1] = T(odd);
    }
    own.put(results, out);
  }
};

template <class Draw, class T>
struct FillEach {
  Draw draw;
  Source source;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t i) const { out[i] = T(draw(source.sequence(), static_cast<uint64_t>(i))); }
};

template <class T>
struct Bernoulli {
  static constexpr int kN = sizeof(T) == 8 ? 2 : 4;
  Source source;
  const T* chances;
  T* out;
  FaultNote* note;
  int step;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, const Neighbours<kN>& own) const {
    const Sequence sequence = source.sequence();
    const auto values = own.of(chances);
    Pack<T, kN> results;
    for (int i = 0; i < kN; ++i) {
      const philox::Block numbers = sequence.block(static_cast<uint64_t>(own.first + i) / 2);
      const auto chance = Computed<T>(values.values[i]);
      if (i < own.rest && chance != chance) note_fault(block, note, step, own.first + i, 0);
      const bool hit = philox::uniform53(philox::bits_of(numbers, i % 2)) < chance;
      results.values[i] = T(static_cast<Computed<T>>(hit));
    }
    own.put(results, out);
  }
};

template <class T, class Out>
struct DrawnClass {
  Indices drawn;  // of `bound` classes
  const T* logits;
  Out* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t row) const {
    const int64_t chosen = drawn.checked(block, row);
    if (chosen >= 0 && !is_drawable(logits[row * drawn.bound + chosen]))
      note_fault(block, drawn.note, drawn.step, row, chosen);
    out[row] = static_cast<Out>(chosen);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// The seed is an input, and the step the one after it.
class SourceOf {
 public:
  SourceOf(const KernelCall& call, int seed_input)
      : key_hash_(philox::hash_of(call.attrs.string("key"))), seed_input_(seed_input) {}
  Source operator()(const LaunchCall& at) const {
    return {at.input<int64_t>(seed_input_), at.input<int64_t>(seed_input_ + 1), key_hash_};
  }

 private:
  uint64_t key_hash_;
  int seed_input_;
};

Launch prepare_dropout(KernelCall& call) {
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const double rate = call.attrs.number("rate");
    return [source = SourceOf(call, 1), count = call.inputs[0].count(), threshold = draws::threshold_of(rate),
            scale = static_cast<Computed<T>>(1 / (1 - rate))](const LaunchCall& at) {
      const Dropout<T> drop{source(at), threshold, scale, at.input<T>(0), at.output<T>(0), at.output<int8_t>(1)};
      for_each_pack(at.stream, count, drop, drop.x, drop.out, drop.mask);
    };
  });
}

Launch prepare_dropout_grad(KernelCall& call) {
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [count = call.inputs[0].count(),
            scale = static_cast<Computed<T>>(1 / (1 - call.attrs.number("rate")))](const LaunchCall& at) {
      const DropoutGrad<T> drop{scale, at.input<T>(0), at.input<int8_t>(1), at.output<T>(0)};
      for_each_pack(at.stream, count, drop, drop.dy, drop.mask, drop.dx);
    };
  });
}

Launch prepare_mask(KernelCall& call) {
  return [source = SourceOf(call, static_cast<int>(call.inputs.size()) - 2), count = call.outputs[0].count(),
          threshold = draws::threshold_of(call.attrs.number("rate"))](const LaunchCall& at) {
    int8_t* const out = at.output<int8_t>(0);
    for_each_pack(at.stream, count, Mask{source(at), threshold, out}, out);
  };
}

Launch prepare_bernoulli(KernelCall& call) {
  call.explain = [shape = call.inputs[0].shape](int64_t place, int64_t) { fail_chance(shape, place); };
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [source = SourceOf(call, 1), count = call.inputs[0].count()](const LaunchCall& at) {
      const Bernoulli<T> draw{source(at), at.input<T>(0), at.output<T>(0), fault_note(at.stream), at.step};
      for_each_pack(at.stream, count, draw, draw.chances, draw.out);
    };
  });
}

Launch prepare_drawn_class(KernelCall& call) {
  const TensorType drawn = call.inputs[0];
  const int64_t classes = call.inputs[1].shape.dims().back();
  call.explain = [classes](int64_t row, int64_t chosen) { fail_drawn(row, chosen, classes); };
  return visit_floating(call.inputs[1].dtype, [&](auto of_logit) {
    return visit(call.outputs[0].dtype, [&](auto of_out) -> Launch {
      using T = decltype(of_logit);
      using Out = decltype(of_out);
      return [=](const LaunchCall& at) {
        for_each(at.stream, drawn.count(),
                 DrawnClass<T, Out>{Indices(at, 0, drawn.dtype, classes), at.input<T>(1), at.output<Out>(0)});
      };
    });
  });
}

template <class T, class Draw>
Launch launch_pairs(const KernelCall& call, const Draw& draw) {
  return [draw, source = SourceOf(call, 0), count = call.outputs[0].count()](const LaunchCall& at) {
    T* const out = at.output<T>(0);
    for_each_pack(at.stream, count, FillPairs<Draw, T>{draw, source(at), out}, out);
  };
}

Launch prepare_uniform(KernelCall& call) {
  return visit_fractions(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch_pairs<T>(call, draws::Uniform<Computed<T>>(call.attrs.number("low"), call.attrs.number("high"),
                                                             call.attrs.dtype("dtype")));
  });
}

Launch prepare_normal(KernelCall& call) {
  return visit_fractions(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch_pairs<T>(call, draws::Normal<Computed<T>>{call.attrs.number("mean"), call.attrs.number("stddev")});
  });
}

Launch prepare_truncated(KernelCall& call) {
  return visit_fractions(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Draw = draws::TruncatedNormal<Computed<T>>;
    return [draw = Draw{{call.attrs.number("mean"), call.attrs.number("stddev")}}, source = SourceOf(call, 0),
            count = call.outputs[0].count()](const LaunchCall& at) {
      for_each(at.stream, count, FillEach<Draw, T>{draw, source(at), at.output<T>(0)});
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

}  // namespace

void add_random(Kernels& kernels) {
  kernels["dropout"] = {{prepare_dropout}, true};
  kernels["dropout_grad"] = {{prepare_dropout_grad}, true};
  kernels["random_mask_like"] = {{prepare_mask}, true};
  kernels["random_mask"] = {{prepare_mask}, true};
  kernels["random_bernoulli"] = {{prepare_bernoulli}, true};
  kernels["drawn_class"] = {{prepare_drawn_class}};
  kernels["random_uniform"] = {{prepare_uniform}, true};
  kernels["random_normal"] = {{prepare_normal}, true};
  kernels["truncated_normal"] = {{prepare_truncated}, true};
  kernels["random_int"] = {{prepare_int}};
}

}  // namespace moonflow::cuda
