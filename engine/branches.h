// Which steps of a plan go side by side. A card has room beside a small step, so the steps may form branches: ordered
// lanes of work, where a step that needs what another branch does waits for it by an event. Knows neither ops nor
// memory: engine/compile.cpp says what a step takes and needs.
#pragma once

#include <cstddef>
#include <vector>

namespace moonflow {

// A step as it is weighed.
struct StepWork {
  // Those of a phase stand behind all of the one before. What is kept is not there in every run, and is the trunk's.
  enum Phase { Kept, EveryRun, Write };

  double work_us = 0;      // beside what every launch takes, with the card to itself
  std::vector<int> after;  // steps before it that must have ended; none of them in a later phase
  Phase phase = EveryRun;
};

// What work on so many bytes and with so many operations takes, as a rule.
double work_us(double bytes, double flops);

// The vectors go by place in the plan.
struct Branches {
  std::vector<int> order;   // the step that stands there
  std::vector<int> branch;  // 0 is the trunk, where a run begins and ends
  // Places of other branches whose steps must have ended first; a branch also waits for the last kept step, or for -1,
  // before it begins. What follows from other waits and from the order within branches is left out.
  std::vector<std::vector<int>> waits_for;
  // The last place whose step may go on beside this one: all behind it begin when this one has ended. Its own place
  // where there is none.
  std::vector<int> beside;
  std::vector<int> joins;  // what the trunk waits for at the end
  int count = 1;
};

// All in the trunk, in the order given.
Branches in_one_branch(size_t step_count);
// In up to `most` branches where a run is shorter for it, else in one.
Branches in_branches(const std::vector<StepWork>& steps, int most);

}  // namespace moonflow
