// What the C interface costs a host: a prepared call beside the arithmetic that it does, an empty poll, the delivery of
// one callback. Prints a table of medians with the spread of the rounds. Not a test: run it alone on a quiet machine.
// usage: host_bench [rounds, default 15]
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "moonflow.hpp"

namespace {

constexpr int kInputs = 64, kHidden = 64, kOutputs = 4;
constexpr int kDeliveries = 3000;  // in a round
constexpr int kTogether = 3;       // as many as may be in flight

constexpr const char* kJobs = R"(
local flow = require "moonflow"
local tp = flow.typing
flow.global_function {
  name = "mlp", inputs = { x = tp.Numpy.Placeholder({ 1, 64 }) }, returns = tp.Numpy,
} (function(x)
  local hidden = flow.layers.dense(x, 64, { activation = flow.nn.relu, name = "hidden" })
  return flow.layers.dense(hidden, 4, { name = "output" })
end)
flow.global_function {
  name = "relu", inputs = { x = tp.Numpy.Placeholder({ 5 }) }, returns = tp.Numpy,
} (function(x) return flow.nn.relu(x) end)
)";

// The same network as plain loops, compiled for what the machine has: weights stored (in, units), so that a register
// holds neighbouring units.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "arch=haswell", "default"), optimize("O3")))
#endif
void layer(const float* x, int in, const float* weight, const float* bias, int units, bool relu, float* y) {
  float sums[64];
  for (int j = 0; j < units; ++j) sums[j] = bias[j];
  for (int k = 0; k < in; ++k)
    for (int j = 0; j < units; ++j) sums[j] += x[k] * weight[k * units + j];
  for (int j = 0; j < units; ++j) y[j] = relu && sums[j] < 0 ? 0 : sums[j];
}

std::vector<float> transposed(const std::vector<float>& weight, int units, int in) {
  std::vector<float> result(weight.size());
  for (int j = 0; j < units; ++j)
    for (int k = 0; k < in; ++k) result[k * units + j] = weight[j * in + k];
  return result;
}

// Nanoseconds per call, of enough calls to be measured.
template <typename Work>
double nanoseconds(int calls, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Most often the worker is through by then; sleeping would leave the caches to others.
void spin() {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(100)) {
  }
}

void count_call(void* user, const mf_status*, const mf_array*, int32_t) { ++*static_cast<int*>(user); }

struct Row {
  std::string what;
  std::vector<double> rounds;

  void print() {
    std::sort(rounds.begin(), rounds.end());
    std::printf("%-62s %9.1f  (%.1f to %.1f)\n", what.c_str(), rounds[rounds.size() / 2], rounds.front(),
                rounds.back());
  }
};

void run(int rounds) {
  moonflow::Options options;
  options.threads = 1;
  moonflow::Session session(std::move(options));
  session.load_text(kJobs, "host.lua");
  moonflow::Job mlp = session.job("mlp"), relu = session.job("relu");
  moonflow::Prepared prepared = mlp.prepare();
  const moonflow::Span<float> x = prepared.input<float>(0);
  const moonflow::Span<const float> y = prepared.output<float>(0);
  for (int i = 0; i < kInputs; ++i) x[i] = std::sin(static_cast<float>(i));
  prepared.warm_up();

  const std::vector<float> w1 = transposed(session.read("hidden-weight"), kHidden, kInputs);
  const std::vector<float> w2 = transposed(session.read("output-weight"), kOutputs, kHidden);
  const std::vector<float> b1 = session.read("hidden-bias"), b2 = session.read("output-bias");
  float hidden[kHidden], plain[kOutputs];
  const auto arithmetic = [&] {
    layer(x.data(), kInputs, w1.data(), b1.data(), kHidden, true, hidden);
    layer(hidden, kHidden, w2.data(), b2.data(), kOutputs, false, plain);
    asm volatile("" : : "r"(plain) : "memory");  // the result is wanted each time
  };
  arithmetic();
  prepared.run();
  for (int i = 0; i < kOutputs; ++i) {
    if (std::fabs(plain[i] - y[i]) > 1e-5f) throw std::runtime_error("the two forms of the network differ");
  }

  const std::vector<float> input(x.begin(), x.end()), five(5, 1.0f);
  std::vector<float> output(kOutputs);
  Row rows[] = {{"prepared call, MLP 64-64-4, batch 1", {}},
                {"  its own arithmetic in plain loops", {}},
                {"  difference", {}},
                {"mf_job_call of the same", {}},
                {"empty mf_session_poll", {}},
                {"mf_job_call_async, relu on 5 floats", {}},
                {"mf_session_poll that delivers its result to a C function", {}},
                {"  the same after a wait for the descriptor", {}},
                {"  each of three results in one poll", {}}};
  mf_session* const handle = session.handle();
  int delivered = 0;
  // A host that polls in its own time, such as a game, has no descriptor.
  moonflow::Options other_options;
  other_options.threads = 1;
  moonflow::Session game(std::move(other_options));
  game.load_text(kJobs, "host.lua");
  mf_job* game_job = nullptr;
  moonflow::check(mf_job_find(game.handle(), "relu", &game_job));
  pollfd readable = {session.descriptor(), POLLIN, 0};
  const mf_array five_in = mf_floats(five.data(), five.size());
  mf_job* job = nullptr;
  moonflow::check(mf_job_find(handle, "relu", &job));
  for (int round = 0; round < rounds; ++round) {
    const double call = nanoseconds(100000, [&] { prepared.run(); });
    const double bare = nanoseconds(100000, arithmetic);
    rows[0].rounds.push_back(call);
    rows[1].rounds.push_back(bare);
    rows[2].rounds.push_back(call - bare);
    rows[3].rounds.push_back(nanoseconds(20000, [&] { mlp.call({input}, {output}); }));
    rows[4].rounds.push_back(nanoseconds(1000000, [&] { mf_session_poll(handle, 0, nullptr); }));

    std::vector<double> launching, delivering;
    for (int i = 0; i < kDeliveries; ++i) {
      moonflow::check(mf_job_call_async(game_job, &five_in, 1, count_call, &delivered));
      spin();
      int32_t one = 0;
      const double poll_ns = nanoseconds(1, [&] { moonflow::check(mf_session_poll(game.handle(), 0, &one)); });
      if (one == 1) delivering.push_back(poll_ns);
      moonflow::check(mf_session_sync(game.handle()));
    }
    if (delivering.empty()) throw std::runtime_error("the worker is too slow to be measured; is the machine busy?");
    rows[6].rounds.push_back(median(delivering));
    delivering.clear();

    // One at a time, and delivered when the run is long over: this is the interface, and no wait for the worker.
    for (int i = 0; i < kDeliveries; ++i) {
      launching.push_back(
          nanoseconds(1, [&] { moonflow::check(mf_job_call_async(job, &five_in, 1, count_call, &delivered)); }));
      for (const int before = delivered; delivered == before;) {
        poll(&readable, 1, -1);
        delivering.push_back(nanoseconds(1, [&] { moonflow::check(mf_session_poll(handle, 0, nullptr)); }));
      }
    }
    rows[5].rounds.push_back(median(launching));
    rows[7].rounds.push_back(median(delivering));

    // Several in one poll: what one more costs.
    delivering.clear();
    for (int i = 0; i < kDeliveries / kTogether; ++i) {
      for (int k = 0; k < kTogether; ++k) moonflow::check(mf_job_call_async(job, &five_in, 1, count_call, &delivered));
      spin();
      int32_t together = 0;
      const double poll_ns = nanoseconds(1, [&] { moonflow::check(mf_session_poll(handle, -1, &together)); });
      if (together == kTogether) delivering.push_back(poll_ns / kTogether);
      moonflow::check(mf_session_sync(handle));
    }
    if (delivering.empty()) throw std::runtime_error("the worker is too slow to be measured; is the machine busy?");
    rows[8].rounds.push_back(median(delivering));
  }
  mf_job_close(game_job);
  if (delivered != rounds * 3 * kDeliveries) throw std::runtime_error("a delivery is missing");
  mf_job_close(job);
  std::printf("nanoseconds, median of %d rounds (least to greatest)\n", rounds);
  for (Row& row : rows) row.print();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 15);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
