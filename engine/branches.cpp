#include "engine/branches.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace moonflow {

namespace {

// Of a card of these years, roughly: what counts is how they compare.
constexpr double kLaunchUs = 3;    // from one kernel's end to the next one's, however small that is
constexpr double kCrossingUs = 1;  // what it takes longer across branches
constexpr double kBytesPerUs = 3e6;
constexpr double kFlopsPerUs = 5e7;
// A plan stays in one branch unless it gains a twentieth: what it is thought to take is not known better.
constexpr double kWorthwhile = 0.95;

constexpr int kNothing = -2;  // no place, and not the begin of a run either, which may be -1

// Earliest task first (Hwang, Chow, Anger, Lee, SIAM J. Comput. 18, 1989): of all steps that could begin, and all
// branches where they could, the pair that begins first comes next; of equals the step with the longest way to the
// end; of equal ones the trunk. So the trunk goes the long way, and what it does not need soon goes beside it.
class Schedule {
 public:
  Schedule(const std::vector<StepWork>& steps, int branches)
      : steps_(steps), way_(steps.size(), 0), end_(steps.size(), 0), branch_(steps.size(), 0) {
    std::vector<std::vector<int>> followers(steps.size());
    std::vector<size_t> missing(steps.size());
    for (size_t i = steps.size(); i-- > 0;) {
      way_[i] += cost(i);
      for (const int before : steps[i].after) {
        way_[before] = std::max(way_[before], way_[i]);
        followers[before].push_back(static_cast<int>(i));
      }
      missing[i] = steps[i].after.size();
    }
    free_.assign(branches, kCrossingUs);
    free_[0] = 0;
    for (const StepWork::Phase phase : {StepWork::Kept, StepWork::EveryRun, StepWork::Write}) {
      std::vector<Ready> ready;
      const auto offer = [&](int step) {
        if (missing[step] == 0 && steps[step].phase == phase) ready.push_back(when_ready(step));
      };
      for (size_t i = 0; i < steps.size(); ++i) offer(static_cast<int>(i));
      while (!ready.empty()) {
        const int step = take_next(ready, phase == StepWork::Kept ? 1 : branches);
        order_.push_back(step);
        for (const int follower : followers[step])
          if (--missing[follower] == 0) offer(follower);
      }
    }
  }

  const std::vector<int>& order() const { return order_; }
  int branch(int step) const { return branch_[step]; }

  // Work that goes on side by side shares the card, so only the waits between launches become fewer.
  bool pays() const {
    double work = 0, launches = 0, end = free_[0];
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].phase == StepWork::Kept) continue;
      work += steps_[i].work_us;
      launches += kLaunchUs;
    }
    for (size_t branch = 1; branch < free_.size(); ++branch)
      if (used(static_cast<int>(branch))) end = std::max(end, free_[branch] + kCrossingUs);
    return std::max(work, end) < kWorthwhile * (work + launches);
  }

 private:
  struct Ready {
    int step;
    std::vector<double> from;  // by branch
  };

  double cost(size_t step) const {
    return steps_[step].phase == StepWork::Kept ? 0 : kLaunchUs + steps_[step].work_us;
  }
  bool used(int branch) const { return std::find(branch_.begin(), branch_.end(), branch) != branch_.end(); }

  Ready when_ready(int step) const {
    Ready ready{step, std::vector<double>(free_.size(), 0)};
    for (const int before : steps_[step].after)
      for (size_t branch = 0; branch < free_.size(); ++branch) {
        const bool crosses = branch_[before] != static_cast<int>(branch) && steps_[before].phase != StepWork::Kept;
        ready.from[branch] = std::max(ready.from[branch], end_[before] + (crosses ? kCrossingUs : 0));
      }
    return ready;
  }

  int take_next(std::vector<Ready>& ready, int branches) {
    size_t best = 0;
    int best_branch = 0;
    double earliest = 0;
    for (size_t i = 0; i < ready.size(); ++i)
      for (int branch = 0; branch < branches; ++branch) {
        const double begin = std::max(free_[branch], ready[i].from[branch]);
        const int step = ready[i].step, other = ready[best].step;
        const bool first = i == 0 && branch == 0;
        const bool longer = way_[step] > way_[other] || (way_[step] == way_[other] && step < other);
        if (!first && (begin > earliest || (begin == earliest && (step == other || !longer)))) continue;
        best = i;
        best_branch = branch;
        earliest = begin;
      }
    const int step = ready[best].step;
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(best));
    branch_[step] = best_branch;
    free_[best_branch] = end_[step] = earliest + cost(step);
    return step;
  }

  const std::vector<StepWork>& steps_;
  std::vector<double> way_;   // by step: to the end of the run, through whatever needs it
  std::vector<double> end_;   // by step: when it ends
  std::vector<int> branch_;   // by step
  std::vector<double> free_;  // by branch: from when on
  std::vector<int> order_;
};

// Says who waits for whom. What a step knows to have ended is a place per branch: up to there all of it.
void connect(Branches& branches, const std::vector<StepWork>& steps) {
  const int count = static_cast<int>(branches.order.size());
  std::vector<int> place(count);
  for (int at = 0; at < count; ++at) place[branches.order[at]] = at;
  const auto kept = [](const StepWork& step) { return step.phase == StepWork::Kept; };
  const int start = static_cast<int>(std::count_if(steps.begin(), steps.end(), kept)) - 1;

  using Known = std::vector<int>;  // by branch
  std::vector<Known> known(count), newest(branches.count, Known(branches.count, kNothing));
  // The latest first, since it may have waited for the others itself.
  const auto wait = [&](Known& now, std::vector<int> needs) {
    std::sort(needs.begin(), needs.end(), std::greater<>());
    std::vector<int> waits;
    for (const int need : needs) {
      if (now[need < 0 ? 0 : branches.branch[need]] >= need) continue;
      waits.push_back(need);
      if (need < 0) now[0] = need;
      for (int branch = 0; need >= 0 && branch < branches.count; ++branch)
        now[branch] = std::max(now[branch], known[need][branch]);
    }
    return waits;
  };

  std::vector<std::vector<int>> places(branches.count);
  for (int at = 0; at < count; ++at) {
    const int own = branches.branch[at];
    Known now = newest[own];
    std::vector<int> needs;
    if (own != 0) needs.push_back(start);
    for (const int before : steps[branches.order[at]].after)
      if (branches.branch[place[before]] != own) needs.push_back(place[before]);
    branches.waits_for.push_back(wait(now, std::move(needs)));
    now[own] = at;
    known[at] = newest[own] = now;

    branches.beside.push_back(at);
    for (int other = 0; other < branches.count; ++other)
      for (auto before = places[other].rbegin(); before != places[other].rend() && *before > now[other]; ++before)
        branches.beside[*before] = at;
    places[own].push_back(at);
  }
  std::vector<int> ends;
  for (int branch = 1; branch < branches.count; ++branch)
    if (!places[branch].empty()) ends.push_back(places[branch].back());
  branches.joins = wait(newest[0], std::move(ends));
}

}  // namespace

double work_us(double bytes, double flops) { return bytes / kBytesPerUs + flops / kFlopsPerUs; }

Branches in_one_branch(size_t step_count) {
  Branches one;
  one.order.resize(step_count);
  std::iota(one.order.begin(), one.order.end(), 0);
  one.branch.assign(step_count, 0);
  one.waits_for.resize(step_count);
  one.beside = one.order;
  return one;
}

Branches in_branches(const std::vector<StepWork>& steps, int most) {
  const Schedule schedule(steps, most);
  if (!schedule.pays()) return in_one_branch(steps.size());
  Branches branches;
  branches.order = schedule.order();
  for (const int step : branches.order) {
    branches.branch.push_back(schedule.branch(step));
    branches.count = std::max(branches.count, branches.branch.back() + 1);
  }
  connect(branches, steps);
  return branches;
}

}  // namespace moonflow
