// The stage of compiling that chooses the layout of every value, and turns the sequence of nodes into steps, with
// reorders where layouts disagree.
#pragma once

#include <map>
#include <vector>

#include "engine/draft.h"

namespace moonflow {

struct DraftStep {
  const Node* node;  // the op; for a reorder the node whose value is reordered
  bool is_reorder = false;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  // It gives the same until somebody else writes a variable: it reads some which no step writes, or what follows from
  // them, and beside these at most constants. A constant in another layout is the same for ever.
  bool kept = false;
  // A kept reorder of a variable that steps of every run read. What it gives lies beside the variable, for all plans.
  bool is_form = false;
};

struct LaidOut {
  std::vector<Layout> layouts;  // by value
  // By value: the one that it is under another type, through alias ops; else itself.
  std::vector<ValueId> origins;
  std::map<ValueId, ValueId> tap_sources;  // what taps of ops' values read: their twins in rows, or themselves
  std::vector<DraftStep> steps;

  // The row-major twin of a tapped value; itself where it is row-major.
  ValueId tap_source(ValueId value) const;
};

// Values in further layouts are added to the draft.
LaidOut lay_out(Draft& draft, const std::vector<NodeId>& sequence, Device& device);

}  // namespace moonflow
