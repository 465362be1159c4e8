// The way back through a dense layer and what came before it, in one step.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// A rewrite of matmul, for when the others have been tried: a product that dropout's or relu's gradient is taken of and
// nothing else reads. Where launches are what costs.
bool fuse_way_back(Rewriter& graph, NodeId product);

// What dropout and relu make of a gradient on its way back.
struct WayBack {
  std::vector<NodeId> nodes;  // their gradients, in order
  ValueId dx = kNone;         // what comes out
  ValueId mask = kNone, y = kNone;
  double rate = 0;
};
// Of a gradient for `x`, up to where it is read twice or goes through something else.
WayBack way_back_of(const Rewriter& graph, ValueId gradient, ValueId x);

}  // namespace moonflow
