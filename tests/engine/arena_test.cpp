#include "engine/arena.h"

#include <algorithm>
#include <random>

#include <catch2/catch.hpp>

using namespace moonflow;

namespace {

bool overlap(const Block& a, const Block& b) {
  return a.first_step <= b.last_step && b.first_step <= a.last_step && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

// Blocks of a network that is run forward and back: half of them live from the way there to the way back.
std::vector<Block> forward_and_back(int steps, std::mt19937& random) {
  std::uniform_int_distribution<int64_t> size(1, 100);
  std::vector<Block> blocks;
  for (int step = 0; step < steps; ++step) {
    blocks.push_back({64 * size(random), step, 2 * steps - step});
    blocks.push_back({64 * size(random), step, step + 1});
    blocks.push_back({64 * size(random), 2 * steps - step, 2 * steps - step + 1});
  }
  return blocks;
}

}  // namespace

TEST_CASE("blocks that live at the same time never overlap, and the arena ends behind the last") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::uniform_int_distribution<int> count(0, 60), step(0, 20), length(0, 8);
    std::uniform_int_distribution<int64_t> size(1, 30);
    std::vector<Block> blocks;
    for (int i = count(random); i > 0; --i) {
      const int first = step(random);
      blocks.push_back({64 * size(random), first, first + length(random)});
    }
    const Arena arena = arrange(blocks);
    int64_t end = 0, most = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      CHECK(blocks[i].offset >= 0);
      CHECK(blocks[i].offset % 64 == 0);
      end = std::max(end, blocks[i].offset + blocks[i].bytes);
      for (size_t j = 0; j < i; ++j) CHECK_FALSE(overlap(blocks[i], blocks[j]));
    }
    for (int at = 0; at <= 30; ++at) {
      int64_t alive = 0;
      for (const Block& block : blocks) alive += block.first_step <= at && at <= block.last_step ? block.bytes : 0;
      most = std::max(most, alive);
    }
    CHECK(arena.bytes == end);
    CHECK(arena.lower_bound == most);
  }
}

TEST_CASE("the arena of a deep network stays near its lower bound") {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<Block> blocks = forward_and_back(150, random);
    const Arena arena = arrange(blocks);
    CHECK(arena.bytes <= arena.lower_bound * 1.05);
  }
}

TEST_CASE("many thousands of blocks are arranged, the largest with the most care") {
  std::mt19937 random(1);
  std::vector<Block> blocks = forward_and_back(20000, random);
  const Arena arena = arrange(blocks);
  CHECK(arena.bytes <= arena.lower_bound * 1.25);
  int64_t end = 0;
  for (const Block& block : blocks) end = std::max(end, block.offset + block.bytes);
  CHECK(end == arena.bytes);
}

TEST_CASE("no blocks take no memory, and one takes its own") {
  std::vector<Block> none, one = {{64, 3, 3}};
  CHECK(arrange(none).bytes == 0);
  CHECK(arrange(one).bytes == 64);
  CHECK(arrange(one).lower_bound == 64);
}
