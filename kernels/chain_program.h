// What the attributes of element_chain say, read in one way for every device: the CPU runs the loops of the ops, a card
// compiles their functors, the simulated card runs their kernels.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/op.h"

namespace moonflow::elementwise {

// An op of a chain. An operand is a leaf, 0 and up, or the result of an earlier op: -1 for the first, and so on down.
template <class Link>
struct ChainOp {
  const std::string& name;
  const Link& link;
  std::vector<int> operands;
  Attrs attrs;
};

// The ops of a chain over so many leaves, in order. `links` are the ops that may stand in it, by name; of each a Link
// says how many `operands` it has, and its `attrs`, which are all numbers.
template <class Links>
std::vector<ChainOp<typename Links::mapped_type>> ops_of_chain(const Links& links, const Attrs& attrs, size_t leaves) {
  const std::string& names = attrs.string("ops");
  const Ints& operands = attrs.ints("operands");
  const Floats& numbers = attrs.floats("numbers");
  std::vector<ChainOp<typename Links::mapped_type>> ops;
  size_t operand = 0, number = 0;
  for (size_t begin = 0, end = 0; begin < names.size(); begin = end + 1) {
    end = std::min(names.find(' ', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const auto found = links.find(name);
    require(found != links.end(), ErrorCode::InvalidArgument, "'", name, "' cannot stand in a chain");
    const auto& link = found->second;
    ChainOp<typename Links::mapped_type> op{found->first, link, {}, {}};
    for (int i = 0; i < link.operands; ++i, ++operand) {
      require(operand < operands.size(), ErrorCode::InvalidArgument, "'", name, "' has too few operands");
      const int64_t place = operands[operand];
      require(place < static_cast<int64_t>(leaves) && -place <= static_cast<int64_t>(ops.size()),
              ErrorCode::InvalidArgument, "there is no operand ", place, " for '", name, "'");
      op.operands.push_back(static_cast<int>(place));
    }
    for (const std::string& attr : link.attrs) {
      require(number < numbers.size(), ErrorCode::InvalidArgument, "'", name, "' has too few numbers");
      op.attrs.set(attr, numbers[number++]);
    }
    ops.push_back(std::move(op));
  }
  require(!ops.empty(), ErrorCode::InvalidArgument, "a chain has at least one op");
  return ops;
}

}  // namespace moonflow::elementwise
