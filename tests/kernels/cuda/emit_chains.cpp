// Writes the sources of the chains that chain_text.cpp computes with: emit_chains FILE DTYPE.
#include <cstdio>
#include <fstream>

#include "chain_trial.h"
#include "kernels/cuda/chain_source.h"

using namespace moonflow;

int main(int count, char** arguments) {
  if (count != 3) return 1;
  const std::optional<DType> named = dtype_named(arguments[2]);
  if (!named) return 1;
  const DType dtype = *named;
  std::ofstream(arguments[1]) << cuda::chain_source(chain_trial_attrs(), chain_trial_leaves(dtype), {dtype, {5, 70}});
  return 0;
}
