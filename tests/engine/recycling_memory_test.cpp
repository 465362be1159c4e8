// Which blocks are given out again, and that every thread may give one back.
#include <catch2/catch.hpp>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "engine/recycling_memory.h"

using namespace moonflow;

namespace {

// AddressSanitizer has each block made anew.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kRecycles = false;
#else
constexpr bool kRecycles = true;
#endif

Tensor five(const std::shared_ptr<HostMemory>& memory) { return Tensor::allocate({DType::Float32, {5}}, memory); }

}  // namespace

TEST_CASE("memory that recycles gives out again what its thread has dropped") {
  const auto memory = std::make_shared<RecyclingMemory>();
  std::set<void*> seen;
  {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 100; ++i) seen.insert(tensors.emplace_back(five(memory)).data());
    CHECK(seen.size() == 100);
    CHECK(memory->spare_bytes() == 0);
  }
  CHECK(memory->live_bytes == 0);
  CHECK((memory->spare_bytes() > 0) == kRecycles);
  std::vector<Tensor> tensors;
  int again = 0;
  for (int i = 0; i < 100; ++i) {
    again += static_cast<int>(seen.count(tensors.emplace_back(five(memory)).data()));
    CHECK(reinterpret_cast<uintptr_t>(tensors.back().data()) % kAlignment == 0);
  }
  if (kRecycles) CHECK(again == 100);
  CHECK(memory->spare_bytes() == 0);
}

TEST_CASE("memory that recycles keeps no block while a tensor or a view has it") {
  const auto memory = std::make_shared<RecyclingMemory>();
  Tensor view;
  {
    Tensor tensor = Tensor::allocate({DType::Float32, {4}}, memory);
    std::memset(tensor.data(), 0, 16);
    tensor.data<float>()[3] = 7;
    view = tensor.rows(3, 1);
  }
  CHECK(memory->spare_bytes() == 0);
  for (int i = 0; i < 10; ++i) {
    const Tensor other = Tensor::allocate({DType::Float32, {4}}, memory);
    std::memset(other.data(), 255, 16);
  }
  CHECK(view.data<float>()[0] == 7);
}

TEST_CASE("memory that recycles has blocks of each size up to the largest") {
  const auto memory = std::make_shared<RecyclingMemory>();
  constexpr size_t kSmall = RecyclingMemory::kSmall, kLargest = RecyclingMemory::kLargest;
  std::vector<size_t> sizes;
  for (size_t bytes = 1; bytes <= 3 * kSmall; bytes += 61) sizes.push_back(bytes);
  for (size_t octave = kSmall; octave <= kLargest; octave *= 2)
    for (const size_t bytes : {octave - 1, octave, octave + 1, octave / 4 * 5, octave / 4 * 5 + 1, octave / 4 * 7})
      sizes.push_back(bytes);
  for (const size_t bytes : sizes) {
    INFO(bytes << " bytes");
    char* const a = static_cast<char*>(memory->allocate(bytes));
    char* const b = static_cast<char*>(memory->allocate(bytes));
    std::memset(a, 1, bytes);
    std::memset(b, 2, bytes);
    CHECK((a[0] == 1 && a[bytes - 1] == 1));
    memory->release(a);
    memory->release(b);
    char* const again = static_cast<char*>(memory->allocate(bytes));
    if (kRecycles && bytes <= kLargest) CHECK((again == a || again == b));
    memory->release(again);
  }
  memory->release(nullptr);
}

TEST_CASE("memory that recycles keeps a bounded number of spare blocks") {
  const auto memory = std::make_shared<RecyclingMemory>();
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < 2 * RecyclingMemory::kMostSmall / 128; ++i) tensors.push_back(five(memory));
  tensors.clear();
  CHECK(memory->spare_bytes() <= RecyclingMemory::kMostSmall);
  for (const int64_t size : {5, 1, 3}) {
    for (int i = 0; i < 40; ++i) tensors.push_back(Tensor::allocate({DType::Int8, {size << 20}}, memory));
    tensors.clear();
    CHECK(memory->spare_bytes() <= RecyclingMemory::kMostSmall + RecyclingMemory::kMostLarge);
  }
  CHECK(memory->live_bytes == 0);
}

TEST_CASE("of large blocks those are kept that were dropped last") {
  const auto memory = std::make_shared<RecyclingMemory>();
  constexpr int64_t kMost = RecyclingMemory::kMostLarge, kHalf = kMost / 2 - kAlignment * 2;  // of a list of its own
  for (int i = 0; i < 3; ++i) Tensor::allocate({DType::Int8, {kMost / 8}}, memory);
  const void* const first = Tensor::allocate({DType::Int8, {kHalf}}, memory).data();
  Tensor other = Tensor::allocate({DType::Int8, {kHalf}}, memory);
  if (kRecycles) CHECK(other.data() == first);
  {
    const Tensor another = Tensor::allocate({DType::Int8, {kHalf}}, memory);
    other = {};
  }
  if (kRecycles) CHECK(memory->spare_bytes() == static_cast<size_t>(kMost));
}

TEST_CASE("what one thread has dropped of large blocks serves another") {
  const auto memory = std::make_shared<RecyclingMemory>();
  const TensorType type{DType::Float32, {1 << 18}};
  const void* const first = Tensor::allocate(type, memory).data();
  std::thread other([&] {
    const Tensor tensor = Tensor::allocate(type, memory);
    if (kRecycles) CHECK(tensor.data() == first);
  });
  other.join();
}

TEST_CASE("memory that recycles does so for its next owner, and for nobody in between") {
  const auto memory = std::make_shared<RecyclingMemory>();
  const void* first = five(memory).data();
  const size_t spare = memory->spare_bytes();
  memory->set_owner({});
  Tensor kept = five(memory);
  CHECK(memory->spare_bytes() == spare);
  kept = {};
  CHECK(memory->spare_bytes() == spare);
  std::thread next([&] {
    memory->set_owner(std::this_thread::get_id());
    const Tensor tensor = five(memory);
    if (kRecycles) CHECK(tensor.data() == first);
    CHECK(memory->spare_bytes() == 0);
    memory->set_owner({});
  });
  next.join();
}

TEST_CASE("memory that recycles serves several threads at once") {
  const auto memory = std::make_shared<RecyclingMemory>();
  std::vector<Tensor> made(1000);
  for (Tensor& tensor : made) tensor = five(memory);
  std::thread other([&made, memory] {
    for (Tensor& tensor : made) {
      tensor = five(memory);  // drops a block of the owner's
      tensor.data<float>()[0] = 3;
    }
  });
  for (int i = 0; i < 1000; ++i) five(memory).data<float>()[0] = 4;
  other.join();
  for (const Tensor& tensor : made) CHECK(tensor.data<float>()[0] == 3);
  made.clear();  // the other thread's blocks
  CHECK(memory->live_bytes == 0);
}

TEST_CASE("blocks outlive whoever made memory that recycles") {
  Tensor tensor;
  {
    const auto memory = std::make_shared<RecyclingMemory>();
    five(memory);
    tensor = five(memory);
  }
  tensor.data<float>()[4] = 1;
  CHECK(tensor.data<float>()[4] == 1);
}
