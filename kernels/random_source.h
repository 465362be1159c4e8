// What the random ops of the CPU have in common: where an op's numbers come from. See kernels/philox.h.
#pragma once

#include <string>

#include "kernels/catalog.h"
#include "kernels/philox.h"

namespace moonflow {

// The (seed, step) inputs of the run and the key of the op, which is hashed once.
struct RandomSource {
  uint64_t key_hash;
  int seed_input;  // the step is the input after it

  RandomSource(const KernelCall& call, int seed_input)
      : key_hash(philox::hash_of(call.attrs.string("key"))), seed_input(seed_input) {}
  philox::Sequence at(const LaunchCall& launch) const {
    return {*launch.input<int64_t>(seed_input), key_hash, *launch.input<int64_t>(seed_input + 1)};
  }
};

inline void require_source(const OpCall& call, int seed) {
  const TensorType scalar{DType::Int64, {}};
  require(call.type(seed) == scalar, ErrorCode::ShapeMismatch, "seed must be ", scalar, ", got ", call.type(seed));
  require(call.type(seed + 1) == scalar, ErrorCode::ShapeMismatch, "step must be ", scalar, ", got ",
          call.type(seed + 1));
}

inline AttrDef key_attr() {
  return {"key", std::string(), "names this use of the seed, so that two ops draw different numbers", true};
}

// The family's op in orthogonal.cpp.
void add_orthogonal(Catalog& catalog);

}  // namespace moonflow
