// A robot that learns to balance a pole while it runs. The control thread keeps its millisecond with a prepared call;
// this thread owns the Moonflow session, trains with policy.lua, publishes weights, and loads policy.lua again when it
// changes. At the end the learned policy must balance the pole for 30 simulated seconds.
// usage: robot [--seconds N, default 20] [--policy FILE]; exit code 0 if all that is asserted at the end holds.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include <lua.hpp>

#include "control.h"

namespace {

namespace fs = std::filesystem;

// What the script says with report(round, seconds_up, standing, tried).
struct Progress {
  bool learned = false;
};

int report(lua_State* L) {
  auto& progress = *static_cast<Progress*>(lua_touserdata(L, lua_upvalueindex(1)));
  const int round = static_cast<int>(luaL_checkinteger(L, 1));
  const double seconds_up = luaL_checknumber(L, 2);
  const int standing = static_cast<int>(luaL_checkinteger(L, 3)), tried = static_cast<int>(luaL_checkinteger(L, 4));
  progress.learned = progress.learned || standing == tried;
  if (round % 100 == 0 || round < 100) {
    std::printf("round %d: %.1f s up while trying; in 30 s %d of %d stay up\n", round, seconds_up, standing, tried);
    std::fflush(stdout);
  }
  return 0;
}

// The training side: the session, its script, and the policies made from it.
class Trainer {
 public:
  explicit Trainer(fs::path script) : session_(options()), script_(std::move(script)) {
    auto* L = static_cast<lua_State*>(session_.lua_state());
    lua_pushlightuserdata(L, &progress_);
    lua_pushcclosure(L, report, 1);
    lua_setglobal(L, "report");
    loaded_ = fs::last_write_time(script_);
    session_.load_file(script_.string());
  }

  std::unique_ptr<Policy> policy() {
    auto policy = std::make_unique<Policy>(session_.job("policy"));
    policy->warm_up();  // here, so that the control thread finds it warm
    return policy;
  }
  bool learned() const { return progress_.learned; }

  // One round of training. A script that fails waits for its repair; the robot goes on with what it has.
  void improve() {
    if (failed_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return;
    }
    try {
      session_.load_text("improve()", "robot");
    } catch (const moonflow::Error& error) {
      say(error);
    }
  }

  // Loads the script again if it has changed. Gives the new policy, or null.
  std::unique_ptr<Policy> reload() {
    std::error_code gone;  // for a moment, while an editor replaces it
    const fs::file_time_type time = fs::last_write_time(script_, gone);
    if (gone || time == loaded_) return nullptr;
    loaded_ = time;
    try {
      const std::vector<float> before = session_.read("hidden1-weight");
      session_.load_file(script_.string());
      failed_ = false;
      const bool kept = session_.read("hidden1-weight") == before;
      std::printf("loaded %s again, weights %s\n", script_.filename().c_str(), kept ? "kept" : "LOST");
      std::fflush(stdout);
      return policy();
    } catch (const moonflow::Error& error) {
      say(error);
      return nullptr;
    }
  }

 private:
  static moonflow::Options options() {
    moonflow::Options options;
    options.threads = 1;  // the other cores are the robot's
    options.log = [](const char* line) { std::fprintf(stderr, "%s\n", line); };
    return options;
  }

  void say(const moonflow::Error& error) {
    std::fprintf(stderr, "%s\n%s\nwaiting for a change of %s\n", error.what(), error.traceback().c_str(),
                 script_.c_str());
    failed_ = true;
  }

  Progress progress_;
  moonflow::Session session_;
  fs::path script_;
  fs::file_time_type loaded_;
  bool failed_ = false;
};

// Does the policy keep the pole up for 30 simulated seconds from each of ten starts?
bool verify(Policy& policy) {
  policy.warm_up();
  constexpr int kStarts = 10, kTicks = 30 * 1000;
  int up = 0;
  for (int i = 0; i < kStarts; ++i) {
    CartPole pole = {0.1f * i - 0.45f, 0.0f, 0.1f - 0.02f * i, 0.0f};
    float furthest = 0, steepest = 0;
    for (int tick = 0; tick < kTicks && !pole.has_fallen(); ++tick) {
      if (policy.run(pole) != MF_OK) return false;
      pole.advance(policy.force());
      furthest = std::fmax(furthest, std::fabs(pole.position));
      steepest = std::fmax(steepest, std::fabs(pole.angle));
    }
    up += !pole.has_fallen();
    std::printf("  from %+.2f m, %+.2f rad: %s; at most %.2f m and %.3f rad from the middle\n", 0.1 * i - 0.45,
                0.1 - 0.02 * i, pole.has_fallen() ? "FELL" : "up for 30 s", furthest, steepest);
  }
  std::printf("%d of %d starts: the pole stays up for 30 simulated seconds\n", up, kStarts);
  return up == kStarts;
}

void print(const Report& report) {
  using Count = unsigned long long;
  std::printf("control thread: %s\n", report.scheduling.c_str());
  std::printf("ticks %llu, falls while learning %llu, policies taken over %llu, failed calls %llu\n",
              Count{report.ticks}, Count{report.falls}, Count{report.policies}, Count{report.failures});
  std::printf("deadlines missed %llu, of them by the policy %llu; waits inside its call %llu\n", Count{report.misses},
              Count{report.misses_by_policy}, Count{report.waits_in_policy});
  std::printf("page faults: minor %llu, major %llu; calls of the heap: ", Count{report.minor_faults},
              Count{report.major_faults});
  std::printf(report.allocations < 0 ? "not counted in this build\n" : "%lld\n",
              static_cast<long long>(report.allocations));
  const Histogram* columns[] = {&report.lateness, &report.call, &report.call_cpu};
  std::printf("%-24s %12s %12s %12s\n", "microseconds", "woken late", "call", "call, CPU");
  for (const double share : {0.5, 0.99, 0.999, 0.9999}) {
    std::printf("p%-23.6g", 100 * share);
    for (const Histogram* column : columns) std::printf(" %12.1f", column->percentile(share) * 1e-3);
    std::printf("\n");
  }
  std::printf("%-24s", "longest");
  for (const Histogram* column : columns) std::printf(" %12.1f", static_cast<double>(column->longest()) * 1e-3);
  std::printf("\n");
  for (int octave = 0; octave < Histogram::kOctaves; ++octave) {
    uint64_t any = 0;
    for (const Histogram* column : columns) any += column->in_octave(octave);
    if (any == 0) continue;
    std::printf("%10.1f to %10.1f", std::exp2(octave) * 1e-3, std::exp2(octave + 1) * 1e-3);
    for (const Histogram* column : columns) std::printf(" %12llu", Count{column->in_octave(octave)});
    std::printf("\n");
  }
}

int run(double seconds, const fs::path& script) {
  Trainer trainer(script);
  Control control(trainer.policy());
  const double patience = 10 * seconds + 300;
  while (control.seconds() < seconds || !trainer.learned()) {
    if (control.seconds() > patience) break;
    trainer.improve();
    if (std::unique_ptr<Policy> policy = trainer.reload()) control.offer(std::move(policy));
    control.free_replaced();
  }
  const Report& report = control.stop();
  print(report);
  std::printf("weights taken over by the last policy: %llu times\n",
              static_cast<unsigned long long>(control.policy().generation()));
  const bool up = verify(control.policy());
  // A sanitizer has memory and locks of its own, which the thread reaches for when it likes.
  const bool sanitized = report.allocations < 0;
  const bool alone =
      report.minor_faults == 0 && report.major_faults == 0 && report.allocations == 0 && report.waits_in_policy == 0;
  const bool steady = (alone || sanitized) && report.failures == 0;
  if (!steady) std::printf("the control thread was not left alone: see above\n");
  return up && steady ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 20;
  fs::path script = ROBOT_POLICY;
  for (int i = 1; i < argc; i += 2) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--seconds") == 0) {
      seconds = std::atof(argv[i + 1]);
    } else if (has_value && std::strcmp(argv[i], "--policy") == 0) {
      script = argv[i + 1];
    } else {
      std::fprintf(stderr, "usage: %s [--seconds N] [--policy FILE]\n", argv[0]);
      return 2;
    }
  }
  try {
    return run(seconds, script);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "robot: %s\n", error.what());
    return 1;
  }
}
