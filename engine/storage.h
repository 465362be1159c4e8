// The stage of compiling that plans memory: which values share some, for which steps each must live, and where it lies.
#pragma once

#include <vector>

#include "engine/arena.h"
#include "engine/branches.h"
#include "engine/layout.h"
#include "engine/plan.h"

namespace moonflow {

// Where each value lives: in the memory of its root, which is a feed, a variable or a form of one, a constant, or a
// block of the arena. So does the scratch of a step.
struct Storage {
  std::vector<ValueId> root;  // by value
  std::vector<int> block;     // by root; -1 outside of the arena
  std::vector<int> scratch;   // the block of each step, by place; -1: none
  std::vector<Block> blocks;
  Arena arena;

  bool in_arena(ValueId root) const { return block[root] >= 0; }
};

// Steps of several branches go side by side, so a value and the scratch of a step live until all that may go on beside
// their last user has ended, and nothing is overwritten in place that somebody may still read. `prepared` says what
// scratch the steps want.
Storage plan_storage(const Draft& draft, const LaidOut& laid_out, const Branches& branches,
                     const std::vector<Step>& prepared);

}  // namespace moonflow
