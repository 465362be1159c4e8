// The threads of a block on the simulated device: what they see of each other, and what is wrong with a kernel.
#include "kernels/cuda/block.h"
#include "kernels/cuda/product.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "card.h"

using namespace moonflow;
using namespace moonflow::cuda;
using Catch::Contains;

namespace {

// Turns a block's values round through shared memory.
template <bool kWaits>
struct TurnRound {
  static constexpr int kThreads = 128;
  int* values;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    int* const shared = block.template shared<int>();
    shared[block.thread()] = values[block.thread()];
    if (kWaits) block.sync();
    values[block.thread()] = shared[kThreads - 1 - block.thread()];
  }
};

template <bool kWaits>
bool turns_round(uint64_t seed) {
  Card card(seed);
  std::vector<int> values(128), expected(128);
  std::iota(values.begin(), values.end(), 1);
  std::reverse_copy(values.begin(), values.end(), expected.begin());
  Memory<int> memory(card, values);
  launch(*card.stream, 1, TurnRound<kWaits>{memory.data()}, 128 * sizeof(int));
  return memory.read() == expected;
}

// Each warp sums its lanes, the warps add theirs up, and the odd blocks lose half of their threads at once.
struct Sums {
  static constexpr int kThreads = 256;
  float* sums;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.index() % 2 == 1 && block.thread() >= 128) return;
    float value = static_cast<float>(block.thread());
    for (int distance = 16; distance > 0; distance /= 2) value += block.shuffle_xor(value, distance);
    float* const of_warps = block.template exchange<float>();
    if (block.thread() % 32 == 0) of_warps[block.thread() / 32] = value;
    block.sync();
    if (block.thread() > 0) return;
    float sum = 0;
    for (int warp = 0; warp < (block.index() % 2 == 1 ? 4 : 8); ++warp) sum += of_warps[warp];
    sums[block.index()] = sum;
  }
};

struct Divergent {
  static constexpr int kThreads = 64;
  float* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() < 32)
      block.sync();
    else
      *out = block.shuffle_xor(1.0f, block.thread() == 40 ? 1 : 2);
    if (block.thread() == 50) block.sync();
    *out = block.shuffle_xor(2.0f, 1);
  }
};

struct FromEnded {
  static constexpr int kThreads = 32;
  float* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() % 2 == 1) return;
    out[block.thread()] = block.shuffle_xor(1.0f, 1);
  }
};

struct Vote {
  static constexpr int kThreads = 64;
  int* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() >= 48) return;
    out[block.thread()] = static_cast<int>(block.ballot(block.thread() % 3 == 0));
  }
};

// Each thread copies one pack of four into shared memory, three of them and a zero, and gives on what lies there.
template <bool kWaits>
struct CopyPacks {
  static constexpr int kThreads = 64;
  const int* from;
  int* to;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    int* const shared = block.template shared<int>() + 4 * block.thread();
    const int first = 4 * block.thread();
    block.template begin_copy<16>(shared, from + first, 12);
    block.end_copies();
    block.template begin_copy<4>(shared + 3, from + first + 3, 4);  // over the zero, later
    block.end_copies();
    block.template wait_for_copies<kWaits ? 1 : 2>();
    for (int i = 0; i < 4; ++i) to[first + i] = shared[i];
  }
};

template <bool kWaits>
std::vector<int> copied() {
  Card card;
  std::vector<int> values(256);
  std::iota(values.begin(), values.end(), 1);
  Memory<int> from(card, values), to(card, std::vector<int>(256, 7));
  launch(*card.stream, 1, CopyPacks<kWaits>{from.data(), to.data()}, 256 * sizeof(int));
  return to.read();
}

// Writes so many elements from the first on.
template <bool kShared>
struct Write {
  static constexpr int kThreads = 32;
  int* to;
  int count;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    int* const memory = kShared ? block.template shared<int>() : to;
    if (block.thread() == 0)
      for (int i = 0; i < count; ++i) memory[i] = 7;
  }
};

template <int kCount>
struct Nothing {
  static constexpr int kThreads = kCount;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block&) const {}
};

// Writes values and says so to the host.
template <bool kWaits>
struct Publish {
  static constexpr int kThreads = 32;
  int *values, *flag;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    values[block.thread()] = block.thread();
    if (kWaits) block.sync();
    if (block.thread() == 0) block.publish(flag, 1);
  }
};

struct CountBlocks {
  static constexpr int kThreads = 32;
  int* seen;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() == 0) ++seen[block.index()];
  }
};

}  // namespace

TEST_CASE("a barrier is needed, and a kernel that lacks it is found by the order of its threads") {
  int right = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK(turns_round<true>(seed));
    right += turns_round<false>(seed);
  }
  CHECK(right == 0);
}

TEST_CASE("barriers and exchanges wait for those threads that have not ended") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Card card(seed);
    Memory<float> sums(card, std::vector<float>(4, -1));
    launch(*card.stream, 4, Sums{sums.data()});
    CHECK(sums.read() == std::vector<float>{32640, 8128, 32640, 8128});
  }
}

TEST_CASE("what a thread that has ended would have given is poisoned") {
  Card card;
  Memory<float> out(card, std::vector<float>(32, 0));
  launch(*card.stream, 1, FromEnded{out.data()});
  CHECK(std::isnan(out.read()[0]));
}

TEST_CASE("the threads of a warp vote, and those that have ended do not") {
  Card card;
  Memory<int> out(card, std::vector<int>(64, 0));
  launch(*card.stream, 1, Vote{out.data()});
  CHECK(out.read()[5] == 0x49249249);
  CHECK(out.read()[40] == 0x2492);  // threads 33, 36, 39, 42, 45
}

TEST_CASE("what a thread begins to copy is there when it has waited for it, and every other one before") {
  std::vector<int> expected(256);
  for (int i = 0; i < 256; ++i) expected[i] = i % 4 == 3 ? 0 : i + 1;
  CHECK(copied<true>() == expected);
  for (int i = 0; i < 256; ++i) expected[i] = i % 4 == 3 ? i + 1 : -1;  // poison
  CHECK(copied<false>() == expected);
}

TEST_CASE("threads that wait for each other at different points are an error that names the kernel") {
  Card card;
  Memory<float> out(card, {0});
  launch(*card.stream, 1, Divergent{out.data()});
  CHECK_THROWS_WITH(card.stream->wait(), Contains("Divergent") && Contains("different points"));
  CHECK_THROWS_WITH(card.stream->wait(), Contains("Divergent"));  // for good
}

TEST_CASE("a block says that it has written once its threads have met, and not before") {
  Card card;
  Memory<int> values(card, std::vector<int>(32)), flag(card, {0});
  launch(*card.stream, 1, Publish<true>{values.data(), flag.data()});
  CHECK(flag.read()[0] == 1);
  launch(*card.stream, 1, Publish<false>{values.data(), flag.data()});
  CHECK_THROWS_WITH(flag.read(), Contains("before its block has met"));
}

TEST_CASE("every block runs once") {
  for (const int blocks : {1, 2, 7, 1000}) {
    Card card;
    Memory<int> seen(card, std::vector<int>(blocks, 0));
    launch(*card.stream, blocks, CountBlocks{seen.data()});
    CHECK(seen.read() == std::vector<int>(blocks, 1));
  }
}

// AddressSanitizer names the line and ends the process.
#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("in a sanitized build a kernel touches what was told of a block of memory and no more") {
  Card card;
  Memory<int> memory(card, std::vector<int>(64, 0));
  const auto write = [&](int count, const std::vector<Range>& told) {
    return ends_process([&] {
      card.stream->touches({}, told);
      launch(*card.stream, 1, Write<false>{memory.data(), count});
      card.stream->wait();
    });
  };
  const Range half{memory.data(), 32 * sizeof(int)}, other{memory.data() + 32, 32 * sizeof(int)};
  CHECK(!write(32, {half}));
  CHECK(!write(64, {half, other}));
  CHECK(!write(64, {}));
  CHECK(write(33, {half}));
  CHECK(write(65, {}));
}

TEST_CASE("in a sanitized build a kernel keeps to its shared memory") {
  const auto write = [](int count) {
    return ends_process([&] {
      Card card;
      launch(*card.stream, 1, Write<true>{nullptr, count}, 8 * sizeof(int));
      card.stream->wait();
    });
  };
  CHECK(!write(8));
  CHECK(write(9));
}
#else
TEST_CASE("a write beyond a block's shared memory is an error that names the kernel") {
  Card card;
  launch(*card.stream, 1, Write<true>{nullptr, 8}, 8 * sizeof(int));
  card.stream->wait();
  launch(*card.stream, 1, Write<true>{nullptr, 9}, 8 * sizeof(int));
  CHECK_THROWS_WITH(card.stream->wait(), Contains("Write<true>") && Contains("shared memory"));
}

TEST_CASE("a write beyond a block of the device's memory is an error that names the kernel") {
  Card card;
  Memory<int> memory(card, std::vector<int>(8, 0));
  launch(*card.stream, 1, Write<false>{memory.data(), 8});
  CHECK(memory.read()[7] == 7);
  launch(*card.stream, 1, Write<false>{memory.data(), 9});
  CHECK_THROWS_WITH(card.stream->wait(), Contains("Write<false>") && Contains("beside a block of 32 bytes"));
}
#endif

TEST_CASE("a product by the library is refused where its values are not aligned as its algorithm was told") {
  Card card;
  const Memory<float> values(card, std::vector<float>(3 * 64, 1));
  int64_t scratch_bytes = 0;
  ProductCall call;
  call.sizes.rows = call.sizes.columns = call.sizes.inner = 4;
  const ProductLaunch multiply = make_products()->prepare(call, scratch_bytes);
  float *const a = values.data(), *const b = a + 64, *const out = a + 128;
  multiply(*card.stream, {a, b, nullptr, out, nullptr});
  CHECK(values.read()[128] == 4);
  CHECK_THROWS_WITH(multiply(*card.stream, {a + 4, b, nullptr, out, nullptr}), Contains("not aligned to 64 bytes"));
  CHECK_THROWS_WITH(multiply(*card.stream, {a, b, nullptr, out + 4, nullptr}), Contains("not aligned to 64 bytes"));
}

TEST_CASE("a launch that a card would refuse is refused") {
  Card card;
  CHECK_THROWS_WITH(launch(*card.stream, 1, Nothing<48>()), Contains("refused"));
  CHECK_THROWS_WITH(launch(*card.stream, 1, Nothing<2048>()), Contains("refused"));
  CHECK_THROWS_WITH(launch(*card.stream, 0, Nothing<32>()), Contains("refused"));
  CHECK_THROWS_WITH(launch(*card.stream, (int64_t{1} << 32) + 1, Nothing<32>()), Contains("refused"));
  CHECK_THROWS_WITH(launch(*card.stream, 1, Nothing<32>(), 228 * 1024), Contains("refused"));
  launch(*card.stream, 1, Nothing<1024>(), 227 * 1024);
  card.stream->wait();
}
