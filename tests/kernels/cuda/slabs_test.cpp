// Slabs, over a source that remembers what it has given.
#include "kernels/cuda/slabs.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

using moonflow::cuda::Slabs;

namespace {

constexpr int64_t kMiB = 1 << 20;

struct Source {
  std::map<void*, int64_t> given;
  int64_t limit = 1 << 30;
  int calls = 0;

  Slabs slabs() {
    return Slabs(
        [this](int64_t bytes) -> void* {
          ++calls;
          if (bytes > limit) return nullptr;
          void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
          given[memory] = bytes;
          return memory;
        },
        [this](void* memory) {
          CHECK(given.erase(memory) == 1);
          std::free(memory);
        });
  }
};

}  // namespace

TEST_CASE("small pieces share a slab, and one slab is kept when all are back") {
  Source source;
  {
    Slabs slabs = source.slabs();
    void *const a = slabs.take(100), *const b = slabs.take(0), *const c = slabs.take(kMiB);
    CHECK(source.calls == 1);
    CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
    CHECK(static_cast<char*>(b) - static_cast<char*>(a) == 256);
    CHECK(slabs.has(static_cast<char*>(c) + kMiB - 1));
    CHECK_FALSE(slabs.has(&source));
    CHECK(slabs.has(static_cast<char*>(a) + 4 * kMiB - 1));
    CHECK_FALSE(slabs.has(static_cast<char*>(a) + 4 * kMiB));
    slabs.give(b);
    CHECK(slabs.take(256) == b);
    slabs.give(a), slabs.give(c), slabs.give(b);
    CHECK(source.given.size() == 1);
    CHECK(slabs.take(4 * kMiB) == a);  // the pieces have become one again
    CHECK(source.calls == 1);
  }
  CHECK(source.given.empty());
}

TEST_CASE("what is large has a slab of its own, which goes back at once") {
  Source source;
  Slabs slabs = source.slabs();
  void* const small = slabs.take(8);
  void* const large = slabs.take(5 * kMiB);
  CHECK(source.given[large] == 5 * kMiB);
  slabs.give(large);
  CHECK(source.given.size() == 1);
  slabs.give(small);
  CHECK(source.given.size() == 1);
}

TEST_CASE("where there is no memory nothing is given, and what is there stays usable") {
  Source source;
  source.limit = 4 * kMiB;
  Slabs slabs = source.slabs();
  CHECK(slabs.take(5 * kMiB) == nullptr);
  void* const piece = slabs.take(kMiB);
  CHECK(piece != nullptr);
  slabs.give(nullptr);
  slabs.give(piece);
}

TEST_CASE("pieces never overlap, and all of them come back together, in any order") {
  Source source;
  {
    Slabs slabs = source.slabs();
    std::mt19937 random(5);
    std::vector<std::pair<unsigned char*, int64_t>> held;
    for (int i = 0; i < 5000; ++i) {
      if (random() % 2 == 0 || held.empty()) {
        const auto bytes = static_cast<int64_t>(random() % (random() % 50 == 0 ? 6 * kMiB : 3000));
        auto* const piece = static_cast<unsigned char*>(slabs.take(bytes));
        if (bytes > 0) piece[0] = piece[bytes - 1] = static_cast<unsigned char>(bytes);
        held.push_back({piece, bytes});
      } else {
        std::swap(held[random() % held.size()], held.back());
        const auto [piece, bytes] = held.back();
        if (bytes > 0) CHECK((piece[0] == bytes % 256 && piece[bytes - 1] == bytes % 256));
        slabs.give(piece);
        held.pop_back();
      }
    }
    for (const auto& [piece, bytes] : held) slabs.give(piece);
    CHECK(source.given.size() == 1);
  }
  CHECK(source.given.empty());
}
