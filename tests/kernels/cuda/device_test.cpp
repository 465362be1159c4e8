// What the engine relies on in a CUDA device, be it real or simulated.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/error.h"
#include "given_card.h"

using namespace moonflow;

namespace {

struct Card {
  std::unique_ptr<Device> device = cuda::make_given_card();
  Card() { device->enter(); }
  std::unique_ptr<Stream> stream = device->make_stream();

  Buffer filled(const std::vector<int>& values) {
    Buffer buffer(*device, bytes_of(values));
    device->copy(*stream, buffer.data(), values.data(), bytes_of(values));
    stream->wait();
    return buffer;
  }
  std::vector<int> read(const Buffer& buffer) {
    std::vector<int> values(buffer.bytes() / sizeof(int), -1);
    device->copy(*stream, values.data(), buffer.data(), buffer.bytes());
    stream->wait();
    return values;
  }
  static int64_t bytes_of(const std::vector<int>& values) { return static_cast<int64_t>(values.size() * sizeof(int)); }
};

// Staging memory with an owner.
class Staging {
 public:
  Staging(Device& device, int64_t bytes) : device_(device), memory_(device.allocate_staging(bytes)) {}
  ~Staging() { device_.free_staging(memory_); }
  Staging(const Staging&) = delete;
  int* ints() const { return static_cast<int*>(memory_); }

 private:
  Device& device_;
  void* const memory_;
};

std::vector<int> count_from(int first, size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("a card says what it is, and that its work goes on while the host does other things", "[device]") {
  Card card;
  CHECK(card.device->kind() == DeviceKind::Cuda);
  CHECK(card.device->asynchronous());
  INFO(card.device->describe());
  CHECK(card.device->describe().find("multiprocessors") != std::string::npos);
}

TEST_CASE("memory of a card begins as zeros, lies as kernels want it, and is copied from any memory of the host",
          "[device]") {
  Card card;
  const std::vector<int> values = count_from(1, 100003);
  const Buffer fresh(*card.device, Card::bytes_of(values));
  CHECK(reinterpret_cast<uintptr_t>(fresh.data()) % kAlignment == 0);
  CHECK(card.read(fresh) == std::vector<int>(values.size()));

  const Buffer filled = card.filled(values);
  card.device->copy(*card.stream, fresh.data(), filled.data(), filled.bytes());
  CHECK(card.read(fresh) == values);

  const Staging staging(*card.device, filled.bytes());
  std::memset(staging.ints(), 0, filled.bytes());
  card.device->copy(*card.stream, staging.ints(), filled.data(), filled.bytes());
  card.stream->wait();
  CHECK(std::vector<int>(staging.ints(), staging.ints() + values.size()) == values);
}

TEST_CASE("a copy from memory of the host that is not staging has been read when it returns", "[device]") {
  Card card;
  std::vector<int> values = count_from(0, 1 << 20);
  const std::vector<int> before = values;
  const Buffer buffer(*card.device, Card::bytes_of(values));
  card.device->copy(*card.stream, buffer.data(), values.data(), buffer.bytes());
  std::fill(values.begin(), values.end(), 7);
  CHECK(card.read(buffer) == before);
}

TEST_CASE("a stream waits for the event of another one", "[device]") {
  Card card;
  const auto other = card.device->make_stream();
  const auto event = card.device->make_event();
  const std::vector<int> values = count_from(5, 1 << 20);
  const Buffer from = card.filled(values), by(*card.device, from.bytes()), to(*card.device, from.bytes());
  const Staging out(*card.device, from.bytes());
  for (int i = 0; i < 20; ++i) card.device->copy(*card.stream, by.data(), from.data(), from.bytes());
  card.stream->record(*event);
  other->wait_for(*event);
  card.device->copy(*other, to.data(), by.data(), from.bytes());
  card.device->copy(*other, out.ints(), to.data(), from.bytes());
  other->record(*event);
  event->wait();
  CHECK(std::vector<int>(out.ints(), out.ints() + values.size()) == values);
}

TEST_CASE("what is recorded is done at each start, and not while it is recorded", "[device]") {
  Card card;
  const std::vector<int> first = count_from(1, 1000), second = count_from(100, 1000);
  const Buffer from = card.filled(first), to(*card.device, from.bytes()), last(*card.device, from.bytes());
  const auto copies = [&] {
    card.device->copy(*card.stream, to.data(), from.data(), from.bytes());
    card.device->copy(*card.stream, last.data(), to.data(), from.bytes());
  };
  copies();  // once without, as plans do
  card.stream->wait();
  const std::vector<int> zeros(first.size());
  card.device->copy(*card.stream, last.data(), zeros.data(), last.bytes());

  card.stream->begin_recording();
  copies();
  const auto recording = card.stream->end_recording();
  REQUIRE(recording);
  CHECK(card.read(last) == zeros);
  card.stream->start(*recording);
  CHECK(card.read(last) == first);
  card.device->copy(*card.stream, from.data(), second.data(), from.bytes());
  card.stream->start(*recording);
  card.stream->start(*recording);
  CHECK(card.read(last) == second);
}

TEST_CASE("where a card has no room it says how much is free, and stays usable", "[device]") {
  Card card;
  try {
    Buffer(*card.device, int64_t{1} << 46);
    FAIL("allocated");
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.code == ErrorCode::OutOfMemory);
    CHECK(std::string(error.what()).find("65536.0 GiB") != std::string::npos);
    CHECK(std::string(error.what()).find("are free") != std::string::npos);
  }
  const std::vector<int> values = count_from(3, 10);
  CHECK(card.read(card.filled(values)) == values);
}

TEST_CASE("staging comes in pieces of any size, each its own", "[device]") {
  Card card;
  std::vector<std::unique_ptr<Staging>> pieces;
  for (int i = 0; i < 200; ++i) {
    pieces.push_back(std::make_unique<Staging>(*card.device, 4 * (i % 37 + 1)));
    for (int j = 0; j <= i % 37; ++j) pieces.back()->ints()[j] = i;
  }
  for (int i = 0; i < 200; ++i)
    for (int j = 0; j <= i % 37; ++j) REQUIRE(pieces[i]->ints()[j] == i);
}

TEST_CASE("a small copy takes all bytes and no more, both ways", "[device]") {
  Card card;
  const int64_t most = card.device->small_bytes();
  REQUIRE(most >= 4096);
  std::vector<char> values(most + 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 7 % 251);
  for (const int64_t bytes : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{20}, int64_t{8191}, most - 1, most}) {
    const Buffer there(*card.device, most + 64), back(*card.device, most + 64);
    const Staging in(*card.device, most + 64), out(*card.device, most + 64);
    std::memcpy(in.ints(), values.data(), values.size());
    std::memset(out.ints(), 1, values.size());
    card.stream->copy_small(there.data(), in.ints(), bytes);
    card.stream->copy_small(back.data(), there.data(), bytes);
    RunEnd end;
    end.to = out.ints();
    end.from = back.data();
    end.bytes = bytes;
    card.stream->end_run(end);
    card.stream->wait();
    const char* const seen = reinterpret_cast<const char*>(out.ints());
    INFO(bytes << " bytes");
    CHECK(std::memcmp(seen, values.data(), bytes) == 0);
    CHECK(std::all_of(seen + bytes, seen + bytes + 64, [](char c) { return c == 1; }));
  }
}

TEST_CASE("an event that the end of a run raises tells of all work before it, in each start of a recording",
          "[device]") {
  Card card;
  const size_t count = 2000;
  const Buffer from = card.filled(count_from(0, count)), by(*card.device, from.bytes());
  const Staging in(*card.device, from.bytes()), out(*card.device, from.bytes()), place(*card.device, sizeof(Fault));
  auto* const fault = reinterpret_cast<Fault*>(place.ints());
  const auto event = card.device->make_event();
  const auto run = [&] {
    card.stream->copy_small(from.data(), in.ints(), from.bytes());
    for (int i = 0; i < 10; ++i) card.device->copy(*card.stream, by.data(), from.data(), from.bytes());
    RunEnd end;
    end.fault = fault;
    end.to = out.ints();
    end.from = by.data();
    end.bytes = by.bytes();
    end.event = event.get();
    card.stream->end_run(end);
  };
  std::unique_ptr<Recording> recording;
  for (int round = 0; round < 200; ++round) {
    const std::vector<int> values = count_from(round, count);
    std::memcpy(in.ints(), values.data(), from.bytes());
    event->lower();
    if (round == 0) {
      run();
    } else {
      if (!recording) {
        card.stream->begin_recording();
        run();
        recording = card.stream->end_recording();
      }
      card.stream->start(*recording);
    }
    card.stream->record(*event);
    event->wait();
    REQUIRE(std::equal(values.begin(), values.end(), out.ints()));
    REQUIRE(fault->step == -1);
  }
}

TEST_CASE("without faults there is none to take", "[device]") {
  Card card;
  const Staging place(*card.device, sizeof(Fault));
  auto* const fault = reinterpret_cast<Fault*>(place.ints());
  *fault = {3, 1, 2};  // of an earlier run
  card.stream->take_fault(fault);
  card.stream->wait();
  CHECK(fault->step == -1);
}
