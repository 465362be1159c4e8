// The card of this machine, for tests that need a real one. Without one the program says why and ends with 77, which
// CTest calls skipped; where MOONFLOW_REQUIRE_GPU=1 that is a failure, so that a check on a card cannot pass unseen.
#define CATCH_CONFIG_RUNNER
#include <cstdlib>
#include <iostream>
#include <string_view>

#include <catch2/catch.hpp>

#include "given_card.h"
#include "kernels/cuda.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_given_card() { return open_cuda_device(0); }

SmallBlocks::SmallBlocks() = default;
SmallBlocks::~SmallBlocks() = default;

}  // namespace moonflow::cuda

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const moonflow::CudaProbe probe = moonflow::probe_cuda();
  if (probe.cards.empty()) {
    std::cout << "no GPU: " << probe.reason << '\n';
    const char* const required = std::getenv("MOONFLOW_REQUIRE_GPU");
    return required && std::string_view(required) == "1" ? EXIT_FAILURE : kSkipped;
  }
  std::cout << "gpu 0: " << probe.cards[0].name << '\n';
  return Catch::Session().run(argc, argv);
}
