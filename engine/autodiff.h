// What depends on what in a graph, and reverse-mode differentiation, which appends gradient nodes to the graph itself.
#pragma once

#include <vector>

#include "engine/graph.h"

namespace moonflow {

// By value of the graph: whether it is one of `sources`, or computed from one in any way.
std::vector<bool> computed_from(const Graph& graph, const std::vector<ValueId>& sources);

// The gradient of sum_i <losses[i], seeds[i]> with respect to each of `values`; kNone where no path leads.
// A seed has the type of its loss (ones of that type give the gradient of the plain sum). Called again it goes through
// what an earlier call has appended as through any other nodes, so gradients of gradients need nothing more. Parts of
// the graph that are not kept are appended once more; see Graph::part.
// Gradients reach a value once per consumer; they are summed in the order the consumers were added, latest first,
// so two builds of the same script give bit-equal sums on the CPU.
std::vector<ValueId> gradients(Graph& graph, const std::vector<ValueId>& losses, const std::vector<ValueId>& seeds,
                               const std::vector<ValueId>& values);

// The first node on a way from `value` to one of `losses` that lets no gradient by: an op without one, or one that
// gives no fraction, unless only gradients go by what it gives. kNone where there is none, so that a gradient which
// does not exist either is 0 by the ops' own rules.
NodeId stops_gradient(const Graph& graph, const std::vector<ValueId>& losses, ValueId value);

}  // namespace moonflow
