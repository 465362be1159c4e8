// The simulated device as a judge of schedules: what it finds wrong, that it finds nothing wrong with what is right,
// and that a recording does what its launches would have done.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <catch2/catch.hpp>

#include "card.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/fault.h"

using namespace moonflow;
using namespace moonflow::cuda;
using Catch::Contains;

namespace {

constexpr int kCount = 300;

struct Scale {
  const float* x;
  float factor;
  float* y;
  MOONFLOW_DEVICE void operator()(int64_t i) const { y[i] = x[i] * factor; }
};

// Tells what it touches, as a plan does.
void scale(Stream& stream, const float* x, float factor, float* y) {
  stream.touches({{x, kCount * sizeof(float)}}, {{y, kCount * sizeof(float)}});
  for_each(stream, kCount, Scale{x, factor, y});
}

struct Note {
  static constexpr int kThreads = 64;
  FaultNote* note;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.thread() >= 40) note_fault(block, note, 3, 7, block.thread());
  }
};

std::vector<float> numbers(float first = 0) {
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<float> times(float factor, std::vector<float> values) {
  for (float& value : values) value *= factor;
  return values;
}

class Staging {
 public:
  Staging(Card& card, const std::vector<float>& values) : device_(*card.device) {
    data_ = static_cast<float*>(device_.allocate_staging(kBytes));
    std::memcpy(data_, values.data(), kBytes);
  }
  ~Staging() { device_.free_staging(data_); }
  float* data() const { return data_; }
  std::vector<float> read() const { return {data_, data_ + kCount}; }
  static constexpr int64_t kBytes = kCount * sizeof(float);

 private:
  Device& device_;
  float* data_;
};

// What a step over three streams does: staging in, two launches, staging out.
struct Lanes {
  explicit Lanes(Card& card)
      : card(card),
        in(card.device->make_stream()),
        out(card.device->make_stream()),
        fed(card.device->make_event()),
        computed(card.device->make_event()),
        delivered(card.device->make_event()),
        x(card, numbers()),
        y(card, numbers()),
        z(card, numbers()),
        staged_in(card, numbers(1)),
        staged_out(card, numbers()) {}

  void step(bool waits_for_feed = true, bool waits_for_values = true) {
    Device& device = *card.device;
    device.copy(*in, x.data(), staged_in.data(), Staging::kBytes);
    in->record(*fed);
    if (waits_for_feed) card.stream->wait_for(*fed);
    scale(*card.stream, x.data(), 2, y.data());
    scale(*card.stream, y.data(), 3, z.data());
    card.stream->record(*computed);
    if (waits_for_values) out->wait_for(*computed);
    device.copy(*out, staged_out.data(), z.data(), Staging::kBytes);
    out->record(*delivered);
  }

  Card& card;
  std::unique_ptr<Stream> in, out;
  std::unique_ptr<Event> fed, computed, delivered;
  Memory<float> x, y, z;
  Staging staged_in, staged_out;
};

}  // namespace

TEST_CASE("streams that wait for each other's events give the same in every schedule") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Card card(seed);
    Lanes lanes(card);
    lanes.step();
    lanes.delivered->wait();
    CHECK(lanes.staged_out.read() == times(6, numbers(1)));
  }
}

TEST_CASE("a missing wait for an event is found in every schedule, and both sides are named") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    {
      Card card(seed);
      Lanes lanes(card);
      lanes.step(false);
      CHECK_THROWS_WITH((lanes.delivered->wait(), lanes.in->wait()),
                        Contains("Scale") && Contains("a copy of 1200 bytes to the device") && Contains("not ordered"));
    }
    Card card(seed);
    Lanes lanes(card);
    lanes.step(true, false);
    CHECK_THROWS_WITH((lanes.delivered->wait(), card.stream->wait()),
                      Contains("Scale") && Contains("a copy of 1200 bytes to the host") && Contains("not ordered"));
  }
}

TEST_CASE("a slot that is used again too soon is found") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Card card(seed);
    Lanes lanes(card);
    lanes.step();
    lanes.step();  // its feed may come while the first step still reads the one before
    CHECK_THROWS_WITH(lanes.delivered->wait(), Contains("not ordered"));
  }
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Card card(seed);
    Lanes lanes(card);
    for (int i = 0; i < 3; ++i) {
      lanes.step();
      lanes.delivered->wait();
    }
    CHECK(lanes.staged_out.read() == times(6, numbers(1)));
  }
}

TEST_CASE("staging memory that the host changes before it was copied is found") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Card card(seed);
    Lanes lanes(card);
    lanes.step();
    lanes.staged_in.data()[5] = -1;
    CHECK_THROWS_WITH(lanes.delivered->wait(), Contains("the host changed 1200 bytes of staging memory"));
  }
  Card card;
  Lanes lanes(card);
  lanes.step();
  card.stream->wait();  // it has waited for the copy itself, so the host knows
  lanes.staged_in.data()[5] = -1;
  card.device->copy(*lanes.in, lanes.x.data(), lanes.staged_in.data(), Staging::kBytes);
  lanes.in->wait();
  CHECK(lanes.x.read()[5] == -1);
}

TEST_CASE("the host finds nothing in staging memory before it has waited") {
  Card card;
  Lanes lanes(card);
  lanes.step();
#if defined(__SANITIZE_ADDRESS__)
  volatile float seen = 0;
  CHECK(ends_process([&] { seen = lanes.staged_out.data()[0]; }));
#else
  CHECK(std::isnan(lanes.staged_out.data()[0]));
#endif
  lanes.delivered->wait();
  CHECK(lanes.staged_out.data()[0] == 6);
}

TEST_CASE("the memory of the device is out of the host's reach") {
  Card card;
  Memory<float> x(card, numbers());
  volatile float seen = 0;
  CHECK(ends_process([&] { seen = x.data()[0]; }));
  CHECK(!ends_process([&] { seen = x.read()[0]; }));
}

TEST_CASE("a recording does what its launches would have done, as often as it is started") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Card card(seed);
    Memory<float> x(card, numbers(1)), y(card, numbers()), z(card, numbers());
    scale(*card.stream, x.data(), 1, x.data());  // once without, as plans do
    card.stream->begin_recording();
    scale(*card.stream, x.data(), 2, y.data());
    scale(*card.stream, y.data(), 3, z.data());
    scale(*card.stream, z.data(), 1, x.data());
    const std::unique_ptr<Recording> recording = card.stream->end_recording();
    CHECK(x.read() == numbers(1));  // nothing is done yet
    card.stream->start(*recording);
    card.stream->start(*recording);
    card.stream->wait();
    CHECK(x.read() == times(36, numbers(1)));
  }
}

TEST_CASE("branches of a recording run side by side, and must be joined") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Card card(seed);
    Memory<float> x(card, numbers(1)), y(card, numbers()), z(card, numbers());
    const std::unique_ptr<Stream> side = card.device->make_stream();
    const auto forked = card.device->make_event(), joined = card.device->make_event();
    scale(*card.stream, x.data(), 1, x.data());
    const auto record = [&](float* to, bool joins) {
      card.stream->begin_recording();
      card.stream->record(*forked);
      side->wait_for(*forked);
      scale(*card.stream, x.data(), 2, y.data());
      scale(*side, x.data(), 3, to);
      side->record(*joined);
      if (joins) card.stream->wait_for(*joined);
      return card.stream->end_recording();
    };
    const std::unique_ptr<Recording> good = record(z.data(), true);
    for (int i = 0; i < 3; ++i) card.stream->start(*good);
    CHECK(y.read() == times(2, numbers(1)));
    CHECK(z.read() == times(3, numbers(1)));
    CHECK_THROWS_WITH(record(z.data(), false), Contains("nothing waits for") && Contains("Scale"));

    const std::unique_ptr<Recording> bad = record(y.data(), true);
    card.stream->start(*bad);
    CHECK_THROWS_WITH(card.stream->wait(), Contains("not ordered"));
  }
}

TEST_CASE("what may not be recorded is refused") {
  Card card;
  Memory<float> x(card, numbers());
  std::vector<float> pageable(kCount);
  const auto refuses = [&](const char* why, auto&& what) {
    card.stream->begin_recording();
    CHECK_THROWS_WITH(what(), Contains(why) && Contains("while this thread records"));
    CHECK_THROWS_WITH(card.stream->end_recording(), Contains("no graph") && Contains(why));
  };
  refuses("not staging", [&] { card.device->copy(*card.stream, x.data(), pageable.data(), x.bytes()); });
  refuses("an allocation", [&] { card.device->allocate(4); });
  refuses("a wait of the host", [&] { card.stream->wait(); });
  refuses("the first launch of ForEach<", [&] { scale(*card.stream, x.data(), 2, x.data()); });
  scale(*card.stream, x.data(), 2, x.data());
  card.stream->begin_recording();
  scale(*card.stream, x.data(), 2, x.data());
  CHECK(card.stream->end_recording());
}

TEST_CASE("memory that is given back in a recording fails the device") {
  Card card;
  void* const memory = card.device->allocate(4);
  card.stream->begin_recording();
  card.device->free(memory);
  CHECK_THROWS_WITH(card.stream->end_recording(), Contains("given back while this thread records"));
}

TEST_CASE("work on memory that has been given back is found") {
  Card card;
  std::unique_ptr<Recording> recording;
  {
    Memory<float> x(card, numbers()), y(card, numbers());
    scale(*card.stream, x.data(), 2, y.data());
    card.stream->begin_recording();
    scale(*card.stream, x.data(), 2, y.data());
    recording = card.stream->end_recording();
  }
  card.stream->start(*recording);
  CHECK_THROWS_WITH(card.stream->wait(), Contains("Scale") && Contains("no memory of the device any more"));
}

TEST_CASE("the first fault stays, and is forgotten once it is taken") {
  Card card;
  const auto to = static_cast<Fault*>(card.device->allocate_staging(sizeof(Fault)));
  card.stream->take_fault(to);
  card.stream->wait();
  CHECK(to->step == -1);
  launch(*card.stream, 5, Note{fault_note(*card.stream)});
  card.stream->take_fault(to);
  card.stream->wait();
  CHECK(to->step == 3);
  CHECK(to->place == 7);
  CHECK((to->value >= 40 && to->value < 64));
  card.stream->take_fault(to);
  card.stream->wait();
  CHECK(to->step == -1);
  card.device->free_staging(to);
}

TEST_CASE("the end of a run takes the fault and small values out, and what it copies must be done") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Card card(seed);
    const std::unique_ptr<Stream> other = card.device->make_stream();
    const auto event = card.device->make_event();
    Memory<float> x(card, numbers(1)), y(card, numbers());
    Staging in(card, numbers(4)), out(card, numbers());
    const auto fault = static_cast<Fault*>(card.device->allocate_staging(sizeof(Fault)));
    RunEnd end;
    end.fault = fault;
    end.to = out.data();
    end.from = y.data();
    end.bytes = y.bytes();
    end.event = event.get();
    event->lower();
    card.stream->copy_small(x.data(), in.data(), x.bytes());
    scale(*card.stream, x.data(), 2, y.data());
    launch(*card.stream, 5, Note{fault_note(*card.stream)});
    card.stream->end_run(end);
    card.stream->record(*event);
    event->wait();
    CHECK(out.read() == times(2, numbers(4)));
    CHECK(fault->step == 3);
    in.data()[0] = 5;  // the host knows that it has been read
    event->lower();
    card.stream->copy_small(x.data(), in.data(), x.bytes());
    scale(*other, x.data(), 3, y.data());
    card.stream->end_run(end);
    card.stream->record(*event);
    CHECK_THROWS_WITH((event->wait(), other->wait()), Contains("not ordered"));
    card.device->free_staging(fault);
  }
}

TEST_CASE("a run that fails before its end raises nothing, and its event tells why") {
  Card card;
  const auto event = card.device->make_event();
  Memory<float> x(card, numbers()), y(card, numbers());
  RunEnd end;
  end.event = event.get();
  event->lower();
  card.runtime().fail_after(1, "an illegal memory access was encountered");
  scale(*card.stream, x.data(), 2, y.data());
  card.stream->end_run(end);
  card.stream->record(*event);
  CHECK_THROWS_WITH(event->wait(), Contains("illegal memory access"));
  CHECK_THROWS_WITH(event->lower(), Contains("illegal memory access"));
}

TEST_CASE("an error of the device is told to whoever waits, for good, and the process lives") {
  Card card;
  Lanes lanes(card);
  card.runtime().fail_after(1, "an illegal memory access was encountered");
  lanes.step();
  CHECK_THROWS_WITH(lanes.delivered->wait(), Contains("illegal memory access"));
  CHECK_THROWS_WITH(lanes.delivered->wait(), Contains("illegal memory access"));
  CHECK_THROWS_WITH(lanes.step(), Contains("illegal memory access"));
  CHECK_THROWS_WITH(card.device->allocate(4), Contains("illegal memory access"));
}

TEST_CASE("a full device says how much is free and what to do") {
  Card card(1, 10 << 20);
  const Buffer most(*card.device, 8 << 20);
  CHECK_THROWS_WITH(card.device->allocate(4 << 20), Contains("no room for 4.0 MiB on the gpu") &&
                                                        Contains("of 10.0 MiB are free") &&
                                                        Contains("take a smaller batch"));
  const Buffer rest(*card.device, 1 << 20);
}

TEST_CASE("memory is zeroed when a device gives it, whatever it held before") {
  Card card;
  { const Memory<float> before(card, numbers(1)); }
  const Buffer after(*card.device, kCount * sizeof(float));
  std::vector<float> values(kCount, 1);
  card.device->copy(*card.stream, values.data(), after.data(), after.bytes());
  card.stream->wait();
  CHECK(values == std::vector<float>(kCount, 0));
}

TEST_CASE("without graphs each launch is waited for, so that the one that fails is blamed") {
  setenv("MOONFLOW_CUDA_GRAPH", "0", 1);
  Card card;
  unsetenv("MOONFLOW_CUDA_GRAPH");
  CHECK(!card.device->records());
  Memory<float> x(card, numbers()), y(card, numbers());
  card.runtime().fail_after(1, "an illegal memory access was encountered");
  scale(*card.stream, x.data(), 1, y.data());
  CHECK_THROWS_WITH(scale(*card.stream, x.data(), 1, y.data()), Contains("illegal memory access"));
}

TEST_CASE("the same seed is the same schedule") {
  const auto sum = [](uint64_t seed) {
    Card card(seed);
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<int> order;
    for (int i = 0; i < 6; ++i) {
      streams.push_back(card.device->make_stream());
      simulated::enqueue(*streams[i], "work", [&order, i] { order.push_back(i); });
    }
    for (const auto& stream : streams) stream->wait();
    return order;
  };
  CHECK(sum(5) == sum(5));
  CHECK((sum(5) != sum(6) || sum(6) != sum(7)));
}

TEST_CASE("images go to channels last and back") {
  Card card;
  const TensorType type{DType::Float32, {3, 5, 7, 11}};
  std::vector<float> rows(type.count()), expected(type.count());
  std::iota(rows.begin(), rows.end(), 0.0f);
  for (int n = 0; n < 3; ++n)
    for (int c = 0; c < 5; ++c)
      for (int place = 0; place < 77; ++place) expected[(n * 77 + place) * 5 + c] = rows[(n * 5 + c) * 77 + place];
  const Layout last = channels_last(type);
  CHECK(card.device->describe(last) == "NHWC");
  Memory<float> x(card, rows), y(card, std::vector<float>(rows.size())), z(card, std::vector<float>(rows.size()));
  const auto run = [&](const Launch& reorder, const Memory<float>& from, const Memory<float>& to) {
    void* const inputs[] = {from.data()};
    void* const outputs[] = {to.data()};
    reorder({*card.stream, inputs, outputs, nullptr});
  };
  run(card.device->reorder(type, {}, last), x, y);
  run(card.device->reorder(type, last, {}), y, z);
  CHECK(y.read() == expected);
  CHECK(z.read() == rows);
  CHECK_THROWS_AS(card.device->reorder({DType::Float32, {3, 5}}, {}, last), Error);
}
