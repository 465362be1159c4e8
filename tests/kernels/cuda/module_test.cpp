// How the CUDA module is found, and what is said when it is of no use. The modules are those of odd_module.cpp.
#include <cstdlib>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/cuda.h"

using namespace moonflow;

namespace {

// Names a module as users do, for as long as it lives.
class Named {
 public:
  explicit Named(const std::string& path) : before_(value()) { setenv(kVariable, path.c_str(), 1); }
  ~Named() { before_.empty() ? unsetenv(kVariable) : setenv(kVariable, before_.c_str(), 1); }

 private:
  static constexpr const char* kVariable = "MOONFLOW_CUDA_MODULE";
  static std::string value() {
    const char* const value = std::getenv(kVariable);
    return value ? value : "";
  }
  const std::string before_;
};

std::string module(const std::string& kind) { return MOONFLOW_TEST_MODULES "/module_" + kind + ".so"; }

// What the first says when there is no card to be had, which the second must throw.
std::string reason() {
  const CudaProbe probe = probe_cuda();
  CHECK(probe.cards.empty());
  CHECK(probe.reason.find('\n') == std::string::npos);
  try {
    open_cuda_device(0);
  } catch (const Error& error) {
    CHECK(error.code == ErrorCode::Unsupported);
    CHECK(error.what() == probe.reason);
    return probe.reason;
  }
  FAIL("opened");
  return "";
}

void check_has(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("a CUDA module gives its cards, and its errors are caught here") {
  const Named named(module("good"));
  const CudaProbe probe = probe_cuda();
  CHECK(probe.reason == "");
  REQUIRE(probe.cards.size() == 2);
  CHECK(probe.cards[1].name == "second card");
  CHECK(probe.cards[1].memory_bytes == 1 << 21);
  CHECK(probe.cards[1].capability == 80);
  try {
    open_cuda_device(1);
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.code == ErrorCode::OutOfMemory);
    CHECK(error.what() == std::string("card 1 is full"));
  }
}

TEST_CASE("the index of a card is checked against those there are") {
  const Named named(module("good"));
  for (const int index : {-1, 2}) {
    try {
      open_cuda_device(index);
      FAIL("opened");
    } catch (const Error& error) {
      CHECK(error.code == ErrorCode::OutOfRange);
      check_has(error.what(), "this machine has gpu 0 to 1");
    }
  }
}

TEST_CASE("a CUDA module that is of no use is called by its name, with what is wrong") {
  const auto said = [](const std::string& kind) {
    const Named named(module(kind));
    const std::string text = reason();
    check_has(text, "the CUDA module " + module(kind) + " ");
    return text;
  };
  check_has(said("another_version"), "has version 2 of the table, and this library wants 1; take both from one build");
  check_has(said("another_build"), "is from another build (0.0.9 of last year) than this library (");
  check_has(said("without_door"), "has no symbol moonflow_cuda_module");
  check_has(said("with_undefined_symbol"), "cannot be opened: undefined symbol: ");
  check_has(said("nowhere"), "that MOONFLOW_CUDA_MODULE names is not there");
}

TEST_CASE("many threads may ask for cards at once") {
  const Named named(module("good"));
  std::vector<size_t> counts(8);
  std::vector<std::thread> threads;
  for (size_t& count : counts) threads.emplace_back([&count] { count = probe_cuda().cards.size(); });
  for (std::thread& thread : threads) thread.join();
  for (const size_t count : counts) CHECK(count == 2);
}
