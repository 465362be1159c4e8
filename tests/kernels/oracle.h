// What the oracle test knows about running an op: drawn inputs, a launch between guard bytes, a plan, differences.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/session.h"
#include "kernels/catalog.h"
#include "values.h"

namespace moonflow::oracle {

// An example with its values: what an op is tried on. An input without value is left out.
struct Trial {
  const OpDef* op;
  Attrs attrs;
  std::vector<Tensor> inputs;

  std::vector<const TensorType*> types() const;
  std::vector<TensorType> infer() const;
  std::string describe() const;  // "add(float32 (2, 3), float32 (3))"
};

// The example as it stands, with values drawn from `seed`.
Trial draw(const OpDef& op, const Example& example, unsigned seed);
// The same values with floats of this dtype, to which they are rounded. Scalars keep their dtype where the op insists
// on it (learning rates are float32). None where there are no floats, or the op does not take the dtype.
std::vector<Trial> with_floats(const Trial& trial, DType dtype);
// Of an op that computes in bfloat16 or float16, the same with values that this dtype has: rounding them changes
// nothing, so whoever computes in float32 instead, as a processor without either does, gives the same. Any other trial
// as it is.
Trial exact_when_narrow(const Trial& trial);
// The same with float64 for float32, and float32 for any other.
std::vector<Trial> swapped(const Trial& trial);

// Every example of every op, and each with its floats in every other precision.
template <class Check>
void for_each_trial(const Catalog& catalog, const Check& check) {
  for (const auto& [name, op] : catalog.ops()) {
    unsigned seed = 0;
    for (const Example& example : op.examples) {
      const Trial trial = draw(op, example, ++seed);
      check(trial);
      for (const Trial& other : swapped(trial)) check(other);
      for (const DType narrow : {DType::BFloat16, DType::Float16})
        for (const Trial& other : with_floats(trial, narrow)) check(other);
    }
  }
}

struct Launched {
  std::vector<Tensor> outputs;
  std::vector<Tensor> inputs;  // afterwards
  std::string damage;          // what was written that must not be; empty when all is well
  bool has_kernel = true;
};

// How the values of a launch lie, by input and output; rows where nothing is said.
struct Layouts {
  std::vector<Layout> inputs, outputs;
  bool allow_tf32 = false;
};
// What the device's kernel wants when each input is offered to it in the layout that `offered` gives for its type.
// `lasting`: all inputs are the same in every run.
Layouts layouts_of(const Trial& trial, Device& device, const std::function<Layout(const TensorType&)>& offered,
                   bool allow_tf32 = false, bool lasting = false);

// What outputs and scratch are full of before a launch, byte by byte. Of Nan every float is one, of Ordinary a small
// number.
enum class Before : unsigned char { Nan = 0xff, Ordinary = 0x3c };

// One launch without a plan. Each buffer lies between guard bytes. `share` puts an output into the memory of an input.
// The trial's values are in rows, and so is what is given: the device turns them there and back.
Launched launch(const Trial& trial, Device& device, const Sharing* share = nullptr, const Layouts& layouts = {},
                Before before = Before::Nan);

// What two roundings to a narrow dtype may change, one on either side, which may be the other way.
double two_roundings(DType narrow);
// How far a card may be from the CPU in results of this dtype, by `distance`. What is narrow is rounded on either side,
// and a bias with it. A card's library rounds gradients of filters too, whatever they become.
double tolerance(const Trial& trial, DType dtype);

// Outputs of a plan whose inputs are feeds, and variables where the op writes.
std::vector<Tensor> run_plan(const Trial& trial, const std::shared_ptr<Device>& device);

// Gradients by the engine and by central differences, for <output, weights> of one output of a float64 trial.
struct Comparison {
  int input;
  int64_t element;
  double engine, difference;
};
std::vector<Comparison> compare_gradients(const Trial& trial, int output, const std::shared_ptr<Device>& device);

double element(const Tensor& tensor, int64_t i);
using testing::same;
// The largest |a - b| / max(1, |b|); infinite where only one is finite. Two NaN are equal, two equal infinities too.
double distance(const Tensor& a, const Tensor& b);

}  // namespace moonflow::oracle
