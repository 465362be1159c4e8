// Where blocks of memory lie in one stretch, when it is known which of them live at the same time.
#pragma once

#include <cstdint>
#include <vector>

namespace moonflow {

struct Block {
  int64_t bytes;
  // The steps at which it lives, both included. Blocks that have none in common may lie in the same place.
  int first_step;
  int last_step;
  int64_t offset = 0;
};

struct Arena {
  int64_t bytes = 0;
  int64_t lower_bound = 0;  // most bytes alive at any one step
};

// Sets the offsets, all multiples of what the sizes are multiples of. Time grows with n log n in the number of blocks.
Arena arrange(std::vector<Block>& blocks);

}  // namespace moonflow
