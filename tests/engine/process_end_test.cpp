// What an exit is asked to wait for. That it waits is tested by hosts that exit: tests/bindings/exit_host.c.
#include <malloc.h>

#include <catch2/catch.hpp>

#include "engine/process_end.h"

using namespace moonflow;

// A server makes a plan for each size of batch that comes, for months.
TEST_CASE("an exit is asked to wait as often as plans are made, and takes no room for it") {
  const auto ask = [](int times) {
    for (int i = 0; i < times; ++i) REQUIRE(exit_waits_from_here());
    return mallinfo2().uordblks;
  };
  const size_t before = ask(100);
  CHECK(ask(10000) - before < 10000);  // an entry is 32 bytes
}
