// Launching oneDNN primitives; see primitive.h.
#include "kernels/cpu/primitive.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace moonflow::cpu {
namespace {

// Where an argument of a primitive gets its address from.
struct Place {
  enum Kind { Input, Output, Scratch };
  Kind kind;
  int argument;  // of the primitive, as Bound numbers them
  int64_t at;    // index of the input or output, or offset in the scratch

  void* address(const LaunchCall& call) const {
    if (kind == Scratch) return static_cast<char*>(call.scratch) + at;
    return kind == Input ? call.inputs[at] : call.outputs[at];
  }
};

struct PlacedPrimitive {
  Bound bound;
  std::vector<Place> places = {};

  void place(Place::Kind kind, int arg, const dnnl::memory::desc& desc, int64_t at) {
    places.push_back({kind, bound.add(arg, desc), at});
  }
  void bind(const LaunchCall& call) {
    for (const Place& place : places) bound.set(place.argument, place.address(call));
  }
  void launch(const LaunchCall& call) {
    bind(call);
    bound.execute(call.stream);
  }
  // Whether it has met a NaN, if it has an activation.
  bool launch_noting_nan(const LaunchCall& call) {
    bind(call);
    return bound.execute_noting_invalid(call.stream);
  }
};

// Whether a maximum that drops a quiet NaN raises the flag of an invalid operation. On ARM it does so without a word.
#if defined(__x86_64__)
constexpr bool kNotesNan = true;
#else
constexpr bool kNotesNan = false;
#endif

void activate(Activation activation, float* values, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) values[i] = activated(activation, values[i]);
  });
}

}  // namespace

dnnl::primitive_attr attributes(Activation activation) {
  dnnl::primitive_attr attr = user_scratchpad();
  if (activation == Activation::None) return attr;
  dnnl::post_ops after;
  const auto append = [&](dnnl::algorithm algorithm, float alpha, float beta) {
#if DNNL_VERSION_MAJOR >= 3
    after.append_eltwise(algorithm, alpha, beta);
#else
    after.append_eltwise(1.0f, algorithm, alpha, beta);
#endif
  };
  if (activation == Activation::Relu) append(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  if (activation == Activation::Relu6) append(dnnl::algorithm::eltwise_clip, 0.0f, 6.0f);
  attr.set_post_ops(after);
  return attr;
}

struct PrimitiveLaunch::State {
  std::vector<PlacedPrimitive> before;
  PlacedPrimitive main;
  std::vector<PlacedPrimitive> after;
};

PrimitiveLaunch::PrimitiveLaunch(KernelCall& call, const dnnl::primitive& primitive,
                                 const dnnl::memory::desc& scratchpad)
    : call_(call), state_(new State{{}, {Bound(primitive, call.device)}, {}}) {
  state_->main.place(Place::Scratch, DNNL_ARG_SCRATCHPAD, scratchpad, reserve(scratchpad));
}

void PrimitiveLaunch::read(int arg, int index, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted) {
  add(arg, index, false, stored, wanted);
}

void PrimitiveLaunch::write(int arg, int index, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted) {
  if (index == 0) output_bytes_ = static_cast<int64_t>(stored.get_size());
  add(arg, index, true, stored, wanted);
}

void PrimitiveLaunch::add(int arg, int index, bool is_output, const dnnl::memory::desc& stored,
                          const dnnl::memory::desc& wanted) {
  const Place::Kind kind = is_output ? Place::Output : Place::Input;
  if (blocked(stored).lies_as(blocked(wanted))) return state_->main.place(kind, arg, wanted, index);

  const dnnl::engine& engine = dnnl_engine(call_.device);
  const auto& from = is_output ? wanted : stored;
  const auto& to = is_output ? stored : wanted;
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, user_scratchpad());
  PlacedPrimitive reorder{Bound(generated<dnnl::reorder>(desc, call_.device), call_.device)};
  const int64_t staged = reserve(wanted);
  reorder.place(kind, is_output ? DNNL_ARG_TO : DNNL_ARG_FROM, stored, index);
  reorder.place(Place::Scratch, is_output ? DNNL_ARG_FROM : DNNL_ARG_TO, wanted, staged);
  reorder.place(Place::Scratch, DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), reserve(desc.scratchpad_desc()));
  (is_output ? state_->after : state_->before).push_back(std::move(reorder));
  state_->main.place(Place::Scratch, arg, wanted, staged);
}

int64_t PrimitiveLaunch::reserve(const dnnl::memory::desc& desc) {
  const int64_t bytes = aligned(static_cast<int64_t>(desc.get_size()));
  const int64_t offset = scratch_bytes_;
  scratch_bytes_ = checked_sum(offset, bytes);
  return offset;
}

Launch PrimitiveLaunch::finish(Activation activation, Launch without) {
  call_.scratch_bytes = std::max(scratch_bytes_, call_.scratch_bytes);
  const int64_t count = output_bytes_ / static_cast<int64_t>(sizeof(float));
  Launch by_hand = [activation, without = std::move(without), count](const LaunchCall& call) {
    without(call);
    activate(activation, call.output<float>(0), count);
  };
  if (!kNotesNan) return by_hand;
  return [state = state_, by_hand = std::move(by_hand)](const LaunchCall& call) {
    for (PlacedPrimitive& reorder : state->before) reorder.launch(call);
    if (state->main.launch_noting_nan(call)) return by_hand(call);
    for (PlacedPrimitive& reorder : state->after) reorder.launch(call);
  };
}

Launch PrimitiveLaunch::finish() {
  call_.scratch_bytes = scratch_bytes_;
  return [state = state_](const LaunchCall& call) {
    for (PlacedPrimitive& reorder : state->before) reorder.launch(call);
    state->main.launch(call);
    for (PlacedPrimitive& reorder : state->after) reorder.launch(call);
  };
}

}  // namespace moonflow::cpu
