// The way back through a dense layer and what came before it, in one step.
#pragma once

#include "engine/rewriter.h"
#include "kernels/matmul.h"

namespace moonflow {

// dx = dy weight, through the dropout that kept what is in `mask` and the relu that gave y; both may be left out. Plans
// of the CPU keep the parts, which have kernels that are faster; here are loops that say what is meant. For float and
// double.
template <class T>
void multiply_back(const Product& sizes, const T* dy, const T* weight, const int8_t* mask, T scale, const T* y, T* dx);

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
