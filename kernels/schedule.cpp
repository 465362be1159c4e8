// Learning-rate schedules: step -> rate, as ops, so that a rate is a value of the run and is watched like any other.
// Steps count from 0. Rates are computed in float64 and given as float32. No gradients.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/schedules.h"

namespace moonflow {
namespace {

// A schedule is made from attributes once, and gives the rate at a step.
using Schedule = std::function<double(int64_t)>;

template <class F>
Schedule make(const Attrs& attrs) {
  return F(attrs);
}

std::vector<TensorType> infer_step(const OpCall& call) {
  require(call.type(0) == TensorType{DType::Int64, {}}, ErrorCode::ShapeMismatch, "step is ", call.type(0),
          ", it must be ", TensorType{DType::Int64, {}});
  return {{DType::Float32, {}}};
}

// The same check for what has no meaning: attributes are refused where the op is built.
Infer infer_after(void (*check)(const Attrs&)) {
  return [check](const OpCall& call) {
    check(call.attrs);
    return infer_step(call);
  };
}

void check_steps(const Attrs& attrs) {
  require(attrs.integer("steps") > 0, ErrorCode::InvalidArgument, "steps must be positive, got ",
          attrs.integer("steps"));
}

AttrDef base_rate() { return {"base_lr", 0.1, "rate at the beginning", true}; }
AttrDef steps_of() { return {"steps", int64_t{1}, "number of steps", true}; }

OpDef schedule(const char* name, const char* says, const std::string& formula, std::vector<AttrDef> attrs,
               void (*check)(const Attrs&), Schedule (*make)(const Attrs&), std::vector<Attrs> examples) {
  OpDef op;
  op.name = text("schedule_", name);
  op.doc = text(says, "\n", formula, "\nshapes: step () -> rate ()\ndtypes: step int64, counted from 0 -> float32");
  op.inputs = {{"step"}};
  op.attrs = std::move(attrs);
  op.infer = infer_after(check);
  op.cpu = {[make](KernelCall& call) -> Launch {
    return [rate = make(call.attrs)](const LaunchCall& launch) {
      const int64_t step = *static_cast<const int64_t*>(launch.inputs[0]);
      *static_cast<float*>(launch.outputs[0]) = static_cast<float>(rate(step));
    };
  }};
  for (Attrs& example : examples) op.examples.push_back({{{DType::Int64, {}}}, std::move(example), -1, 1, 12});
  return op;
}

// ---- piecewise -----------------------------------------------------------------------------------------------

void check_pieces(const Ints& boundaries, size_t pieces, const char* name) {
  require(pieces == boundaries.size() + 1, ErrorCode::InvalidArgument, boundaries.size(), " boundaries part ",
          boundaries.size() + 1, " pieces, but there are ", pieces, " ", name);
  require(std::is_sorted(boundaries.begin(), boundaries.end()), ErrorCode::InvalidArgument, "boundaries must rise");
}

void check_constant(const Attrs& attrs) {
  check_pieces(attrs.ints("boundaries"), attrs.floats("values").size(), "values");
}

template <schedules::Pieces (*pieces_of)(const Attrs&)>
Schedule piecewise(const Attrs& attrs) {
  return [pieces = pieces_of(attrs)](int64_t step) {
    const Ints& boundaries = pieces.boundaries;
    return pieces.values[std::lower_bound(boundaries.begin(), boundaries.end(), step) - boundaries.begin()];
  };
}

void check_scaling(const Attrs& attrs) {
  require(attrs.floats("scale").size() == attrs.ints("boundaries").size(), ErrorCode::InvalidArgument, "there are ",
          attrs.ints("boundaries").size(), " boundaries but ", attrs.floats("scale").size(), " scales");
  check_pieces(attrs.ints("boundaries"), attrs.floats("scale").size() + 1, "scales");
}

void add_decays(Catalog& catalog) {
  const AttrDef decay_rate{"decay_rate", 0.5, "strength of the decay", true};
  const AttrDef staircase{"staircase", false, "decay in jumps, every `steps` steps"};
  const std::vector<AttrDef> attrs = {base_rate(), steps_of(), decay_rate, staircase};
  const Attrs smooth{{"base_lr", 0.1}, {"steps", int64_t{5}}, {"decay_rate", 0.5}};
  Attrs jumps = smooth;
  jumps.set("staircase", true);
  const std::string with = ", with t = step, floor(t / steps) with staircase";
  catalog.add(schedule("exponential", "Exponential decay.", "  rate = base_lr * decay_rate ^ (t / steps)" + with, attrs,
                       check_steps, make<schedules::Exponential>, {smooth, jumps}));
  catalog.add(schedule("inverse_time", "Decay with the inverse of time.",
                       "  rate = base_lr / (1 + decay_rate * t / steps)" + with, attrs, check_steps,
                       make<schedules::InverseTime>, {smooth, jumps}));
  catalog.add(schedule("natural_exp", "Exponential decay, given by its exponent.",
                       "  rate = base_lr * exp(-decay_rate * t / steps)" + with, attrs, check_steps,
                       make<schedules::NaturalExp>, {smooth, jumps}));
}

// ---- warm-up -------------------------------------------------------------------------------------------------

OpDef warmup(const char* name, const char* says, const char* formula, const char* start_name, bool rises) {
  OpDef op;
  op.name = text("schedule_warmup_", name);
  op.doc = text(says, "\n", formula, "\n  out = learning_rate after that",
                "\nshapes: step (), learning_rate () -> out ()"
                "\ndtypes: step int64, counted from 0; learning_rate float32 -> float32");
  op.inputs = {{"step"}, {"learning_rate"}};
  op.attrs = {steps_of(), {start_name, 0.1, "share of base_lr at the beginning", true}, base_rate()};
  op.infer = [](const OpCall& call) {
    check_steps(call.attrs);
    require(call.type(1) == TensorType{DType::Float32, {}}, ErrorCode::ShapeMismatch, "learning_rate is ", call.type(1),
            ", it must be ", TensorType{DType::Float32, {}});
    return infer_step(call);
  };
  op.cpu = {[rises](KernelCall& call) -> Launch {
    return [warmup = schedules::Warmup(call.attrs, rises)](const LaunchCall& launch) {
      *launch.output<float>(0) = warmup(*launch.input<int64_t>(0), *launch.input<float>(1));
    };
  }};
  op.examples = {{{{DType::Int64, {}}, {DType::Float32, {}}},
                  {{"steps", int64_t{4}}, {start_name, 0.1}, {"base_lr", 0.5}},
                  0,
                  1,
                  8}};
  return op;
}

}  // namespace

void add_schedule(Catalog& catalog) {
  catalog.add(schedule("piecewise_constant", "One rate between each two boundaries.",
                       "  rate = values[i] of the first boundary with step <= boundaries[i], else the last value",
                       {{"boundaries", Ints{}, "last step of each piece but the last, rising"},
                        {"values", Floats{}, "one rate more than boundaries", true}},
                       check_constant, piecewise<schedules::constant_pieces>,
                       {{{"boundaries", Ints{2, 5}}, {"values", Floats{0.1, 0.05, 0.01}}}, {{"values", Floats{0.1}}}}));
  catalog.add(schedule("piecewise_scaling", "The base rate, scaled anew after each boundary.",
                       "  rate = base_lr * ([1] + scale)[i] of the first boundary with step <= boundaries[i]",
                       {base_rate(),
                        {"boundaries", Ints{}, "last step of each piece but the last, rising", true},
                        {"scale", Floats{}, "one factor of base_lr per boundary", true}},
                       check_scaling, piecewise<schedules::scaled_pieces>,
                       {{{"base_lr", 1.0}, {"boundaries", Ints{2, 5}}, {"scale", Floats{0.1, 0.01}}}}));
  catalog.add(schedule("cosine", "Half a cosine wave from base_lr down to alpha * base_lr.",
                       "  rate = base_lr * ((1 - alpha) * (1 + cos(pi * min(step, steps) / steps)) / 2 + alpha)",
                       {base_rate(), steps_of(), {"alpha", 0.0, "share of base_lr at the end"}}, check_steps,
                       make<schedules::Cosine>, {{{"base_lr", 0.1}, {"steps", int64_t{8}}, {"alpha", 0.1}}}));
  catalog.add(schedule("linear_cosine", "A cosine wave under a falling line.",
                       "  rate = base_lr * ((alpha + 1 - p) * (1 + cos(2 pi * num_periods * p)) / 2 + beta), "
                       "p = min(step, steps) / steps",
                       {base_rate(),
                        steps_of(),
                        {"num_periods", 0.5, "cosine periods"},
                        {"alpha", 0.0, "added to the line"},
                        {"beta", 0.001, "added to the product"}},
                       check_steps, make<schedules::LinearCosine>, {{{"base_lr", 0.1}, {"steps", int64_t{8}}}}));
  add_decays(catalog);
  catalog.add(schedule("polynomial", "Polynomial decay to end_learning_rate.",
                       "  rate = (base_lr - end_learning_rate) * (1 - min(t, n) / n) ^ power + end_learning_rate\n"
                       "  with t = step and n = steps, or steps * max(1, ceil(t / steps)) with cycle",
                       {base_rate(),
                        steps_of(),
                        {"end_learning_rate", 0.0001, "rate at the end"},
                        {"power", 1.0, "1 is a straight line"},
                        {"cycle", false, "start again each time the end is reached, over one length more"}},
                       check_steps, make<schedules::Polynomial>,
                       {{{"base_lr", 0.1}, {"steps", int64_t{5}}, {"power", 2.0}},
                        {{"base_lr", 0.1}, {"steps", int64_t{5}}, {"cycle", true}}}));
  catalog.add(warmup("constant", "A lower, constant rate for the first steps.",
                     "  out = base_lr * multiplier while step < steps", "multiplier", false));
  catalog.add(warmup("linear", "A rate that rises in a line for the first steps.",
                     "  out = base_lr * (start_multiplier + (1 - start_multiplier) * step / steps) while step < steps",
                     "start_multiplier", true));
}

}  // namespace moonflow
