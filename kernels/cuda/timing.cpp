#include "kernels/cuda/timing.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <random>
#include <string_view>

#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

constexpr int kLaunches = 10;       // in a row
constexpr int kRounds = 5;          // of which the median counts
constexpr double kInARow = 200e-6;  // seconds that are enough to be timed
constexpr double kBudget = 50e-3;   // seconds for all, kernels that are loaded not counted
constexpr double kTie = 1.1;  // what one survey of a card makes of the same launches differs from the next by more
constexpr double kHopeless = 4;  // times the least, by itself

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& work) {
  stream.begin_recording();
  try {
    work();
  } catch (...) {
    try {
      stream.end_recording();
    } catch (const Error&) {  // the first one says more
    }
    throw;
  }
  return stream.end_recording();
}

// Else the next kernel of this thread would be blamed.
void forget_refusal(Device& device) {
  try {
    runtime(device).check_launch();
  } catch (const Error&) {
  }
}

// One of those that are timed.
struct Trial {
  size_t place;
  double once;  // seconds, of the only launch in a row
  std::function<void()> round;
  int launches;                      // of a round
  std::vector<double> seconds = {};  // of a launch, by round

  double median() {
    if (seconds.empty()) return once;
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
  }
};

}  // namespace

bool may_time() {
  const char* const said = std::getenv("MOONFLOW_CUDA_TIMING");
  return said == nullptr || std::string_view(said) != "0";
}

std::string card_of(Device& device) {
  const Properties& card = runtime(device).properties();
  return text(card.name, ", ", card.multiprocessors, " multiprocessors");
}

Buffer drawn_values(Device& device, DType dtype, int64_t count) {
  constexpr int64_t kDrawn = 65521;  // a prime, so that the rows of a matrix are not alike
  const int64_t element = size_of(dtype), bytes = count * element, drawn = std::min(count, kDrawn) * element;
  std::vector<char> values(drawn);
  const auto draw = [&](auto zero) {
    using T = decltype(zero);
    std::minstd_rand random(1);
    T* const to = reinterpret_cast<T*>(values.data());
    for (int64_t i = 0; i < drawn / element; ++i)
      to[i] = T(2 * static_cast<float>(random() - random.min()) / static_cast<float>(random.max()) - 1);
  };
  if (is_narrow(dtype))
    visit_narrow(dtype, draw);
  else
    visit_floating(dtype, draw);
  Buffer buffer(device, bytes);
  const std::unique_ptr<Stream> stream = device.make_stream();
  char* const data = static_cast<char*>(buffer.data());
  device.copy(*stream, data, values.data(), drawn);
  for (int64_t done = drawn; done < bytes; done *= 2)
    device.copy(*stream, data + done, data, std::min(done, bytes - done));
  stream->wait();
  return buffer;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<size_t> fastest(Device& device, const std::vector<TimedLaunch>& launches,
                              const std::function<double()>& seconds) {
  const std::unique_ptr<Stream> stream = device.make_stream();
  const auto seconds_of = [&](const std::function<void()>& work) {
    const double begun = seconds();
    work();
    stream->wait();
    return seconds() - begun;
  };
  std::vector<Trial> trials;
  std::vector<std::unique_ptr<Recording>> recordings;
  double least = std::numeric_limits<double>::infinity(), spent = 0;
  for (size_t place = 0; place < launches.size() && spent < kBudget; ++place) {
    const auto launch = [&stream, &by = launches[place]] { by(*stream); };
    try {
      launch();  // which loads the kernels
      stream->wait();
      const double once = seconds_of(launch);
      spent += once;
      least = std::min(least, once);
      if (once > kHopeless * least) continue;
      const int count = static_cast<int>(std::clamp(kInARow / once, 1.0, double{kLaunches}));
      std::function<void()> round = [launch, count] {
        for (int i = 0; i < count; ++i) launch();
      };
      if (device.records() && count > 1) {
        recordings.push_back(record(*stream, round));
        round = [&stream, recording = recordings.back().get()] { stream->start(*recording); };
        round();  // which brings it to the card
        stream->wait();
      }
      trials.push_back({place, once, round, count});
    } catch (const Error&) {  // one that cannot run after all: the others are tried
      forget_refusal(device);
    }
  }
  // In turns, so that a clock that changes meets all of them.
  for (int round = 0; round < kRounds && spent < kBudget; ++round) {
    for (Trial& trial : trials) {
      const double of_round = seconds_of(trial.round);
      spent += of_round;
      trial.seconds.push_back(of_round / trial.launches);
    }
  }
  least = std::numeric_limits<double>::infinity();
  for (Trial& trial : trials) least = std::min(least, trial.median());
  for (Trial& trial : trials)
    if (trial.median() <= kTie * least) return trial.place;
  return std::nullopt;
}

}  // namespace moonflow::cuda
