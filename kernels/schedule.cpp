// Learning-rate schedules: step -> rate, as ops, so that a rate is a value of the run and is watched like any other.
// Steps count from 0. Rates are computed in float64 and given as float32. No gradients.
#include <algorithm>
#include <cmath>

#include "kernels/catalog.h"
#include "kernels/cpu.h"

namespace moonflow {
namespace {

constexpr double kPi = 3.14159265358979324;

// A schedule is made from attributes once, and gives the rate at a step.
using Schedule = std::function<double(int64_t)>;

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

Schedule piecewise_constant(const Attrs& attrs) {
  return [boundaries = attrs.ints("boundaries"), values = attrs.floats("values")](int64_t step) {
    return values[std::lower_bound(boundaries.begin(), boundaries.end(), step) - boundaries.begin()];
  };
}

void check_scaling(const Attrs& attrs) {
  require(attrs.floats("scale").size() == attrs.ints("boundaries").size(), ErrorCode::InvalidArgument,
          "there are ", attrs.ints("boundaries").size(), " boundaries but ", attrs.floats("scale").size(), " scales");
  check_pieces(attrs.ints("boundaries"), attrs.floats("scale").size() + 1, "scales");
}

Schedule piecewise_scaling(const Attrs& attrs) {
  Floats scale = attrs.floats("scale");
  scale.insert(scale.begin(), 1.0);
  return [boundaries = attrs.ints("boundaries"), scale, rate = attrs.number("base_lr")](int64_t step) {
    return rate * scale[std::lower_bound(boundaries.begin(), boundaries.end(), step) - boundaries.begin()];
  };
}

// ---- smooth --------------------------------------------------------------------------------------------------

Schedule cosine(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), steps = attrs.integer("steps"), alpha = attrs.number("alpha")](int64_t step) {
    const double part = static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
    return base * ((1 - alpha) * 0.5 * (1 + std::cos(kPi * part)) + alpha);
  };
}

Schedule linear_cosine(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), steps = attrs.integer("steps"), periods = attrs.number("num_periods"),
          alpha = attrs.number("alpha"), beta = attrs.number("beta")](int64_t step) {
    const double part = static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
    return base * ((alpha + 1 - part) * 0.5 * (1 + std::cos(2 * kPi * periods * part)) + beta);
  };
}

// How often the decay has been applied: in whole steps with staircase, else continuously.
std::function<double(int64_t)> decays(const Attrs& attrs) {
  return [steps = static_cast<double>(attrs.integer("steps")), staircase = attrs.flag("staircase")](int64_t step) {
    const double count = static_cast<double>(step) / steps;
    return staircase ? std::floor(count) : count;
  };
}

Schedule exponential(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), rate = attrs.number("decay_rate"), count = decays(attrs)](int64_t step) {
    return base * std::pow(rate, count(step));
  };
}

Schedule inverse_time(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), rate = attrs.number("decay_rate"), count = decays(attrs)](int64_t step) {
    return base / (1 + rate * count(step));
  };
}

Schedule natural_exp(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), rate = attrs.number("decay_rate"), count = decays(attrs)](int64_t step) {
    return base * std::exp(-rate * count(step));
  };
}

// With cycle, each time the end is reached the decay starts again over one length more.
Schedule polynomial(const Attrs& attrs) {
  return [base = attrs.number("base_lr"), steps = static_cast<double>(attrs.integer("steps")),
          end = attrs.number("end_learning_rate"), power = attrs.number("power"),
          cycle = attrs.flag("cycle")](int64_t step) {
    const double t = static_cast<double>(step);
    const double length = cycle ? steps * std::max(1.0, std::ceil(t / steps)) : steps;
    return (base - end) * std::pow(1 - std::min(t, length) / length, power) + end;
  };
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
                       check_steps, exponential, {smooth, jumps}));
  catalog.add(schedule("inverse_time", "Decay with the inverse of time.",
                       "  rate = base_lr / (1 + decay_rate * t / steps)" + with, attrs, check_steps, inverse_time,
                       {smooth, jumps}));
  catalog.add(schedule("natural_exp", "Exponential decay, given by its exponent.",
                       "  rate = base_lr * exp(-decay_rate * t / steps)" + with, attrs, check_steps, natural_exp,
                       {smooth, jumps}));
}

// ---- warm-up -------------------------------------------------------------------------------------------------

// While step < steps a warm-up overrides the rate of the schedule; after that the schedule goes on with the step itself.
OpDef warmup(const char* name, const char* says, const char* formula, const char* start_name,
             double (*factor)(double start, double part)) {
  OpDef op;
  op.name = text("schedule_warmup_", name);
  op.doc = text(says, "\n", formula, "\n  out = learning_rate after that",
                "\nshapes: step (), learning_rate () -> out ()"
                "\ndtypes: step int64, counted from 0; learning_rate float32 -> float32");
  op.inputs = {{"step"}, {"learning_rate"}};
  op.attrs = {steps_of(), {start_name, 0.1, "share of base_lr at the beginning", true}, base_rate()};
  op.infer = [](const OpCall& call) {
    check_steps(call.attrs);
    require(call.type(1) == TensorType{DType::Float32, {}}, ErrorCode::ShapeMismatch, "learning_rate is ",
            call.type(1), ", it must be ", TensorType{DType::Float32, {}});
    return infer_step(call);
  };
  op.cpu = {[start_name, factor](KernelCall& call) -> Launch {
    return [steps = call.attrs.integer("steps"), start = call.attrs.number(start_name), factor,
            base = call.attrs.number("base_lr")](const LaunchCall& launch) {
      const int64_t step = *static_cast<const int64_t*>(launch.inputs[0]);
      const double part = static_cast<double>(step) / static_cast<double>(steps);
      *static_cast<float*>(launch.outputs[0]) = step < steps ? static_cast<float>(base * factor(start, part))
                                                             : *static_cast<const float*>(launch.inputs[1]);
    };
  }};
  op.examples = {{{{DType::Int64, {}}, {DType::Float32, {}}},
                  {{"steps", int64_t{4}}, {start_name, 0.1}, {"base_lr", 0.5}}, 0, 1, 8}};
  return op;
}

}  // namespace

void add_schedule(Catalog& catalog) {
  catalog.add(schedule("piecewise_constant", "One rate between each two boundaries.",
                       "  rate = values[i] of the first boundary with step <= boundaries[i], else the last value",
                       {{"boundaries", Ints{}, "last step of each piece but the last, rising"},
                        {"values", Floats{}, "one rate more than boundaries", true}},
                       check_constant, piecewise_constant,
                       {{{"boundaries", Ints{2, 5}}, {"values", Floats{0.1, 0.05, 0.01}}}, {{"values", Floats{0.1}}}}));
  catalog.add(schedule("piecewise_scaling", "The base rate, scaled anew after each boundary.",
                       "  rate = base_lr * ([1] + scale)[i] of the first boundary with step <= boundaries[i]",
                       {base_rate(),
                        {"boundaries", Ints{}, "last step of each piece but the last, rising", true},
                        {"scale", Floats{}, "one factor of base_lr per boundary", true}},
                       check_scaling, piecewise_scaling,
                       {{{"base_lr", 1.0}, {"boundaries", Ints{2, 5}}, {"scale", Floats{0.1, 0.01}}}}));
  catalog.add(schedule("cosine", "Half a cosine wave from base_lr down to alpha * base_lr.",
                       "  rate = base_lr * ((1 - alpha) * (1 + cos(pi * min(step, steps) / steps)) / 2 + alpha)",
                       {base_rate(), steps_of(), {"alpha", 0.0, "share of base_lr at the end"}}, check_steps, cosine,
                       {{{"base_lr", 0.1}, {"steps", int64_t{8}}, {"alpha", 0.1}}}));
  catalog.add(schedule("linear_cosine", "A cosine wave under a falling line.",
                       "  rate = base_lr * ((alpha + 1 - p) * (1 + cos(2 pi * num_periods * p)) / 2 + beta), "
                       "p = min(step, steps) / steps",
                       {base_rate(),
                        steps_of(),
                        {"num_periods", 0.5, "cosine periods"},
                        {"alpha", 0.0, "added to the line"},
                        {"beta", 0.001, "added to the product"}},
                       check_steps, linear_cosine, {{{"base_lr", 0.1}, {"steps", int64_t{8}}}}));
  add_decays(catalog);
  catalog.add(schedule("polynomial", "Polynomial decay to end_learning_rate.",
                       "  rate = (base_lr - end_learning_rate) * (1 - min(t, n) / n) ^ power + end_learning_rate\n"
                       "  with t = step and n = steps, or steps * max(1, ceil(t / steps)) with cycle",
                       {base_rate(),
                        steps_of(),
                        {"end_learning_rate", 0.0001, "rate at the end"},
                        {"power", 1.0, "1 is a straight line"},
                        {"cycle", false, "start again each time the end is reached, over one length more"}},
                       check_steps, polynomial,
                       {{{"base_lr", 0.1}, {"steps", int64_t{5}}, {"power", 2.0}},
                        {{"base_lr", 0.1}, {"steps", int64_t{5}}, {"cycle", true}}}));
  catalog.add(warmup("constant", "A lower, constant rate for the first steps.",
                     "  out = base_lr * multiplier while step < steps", "multiplier",
                     [](double start, double) { return start; }));
  catalog.add(warmup("linear", "A rate that rises in a line for the first steps.",
                     "  out = base_lr * (start_multiplier + (1 - start_multiplier) * step / steps) while step < steps",
                     "start_multiplier", [](double start, double part) { return start + (1 - start) * part; }));
}

}  // namespace moonflow
