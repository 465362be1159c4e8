// Chains of element-wise ops as one step. A chain walks through its values block by block: each op's loop runs over a
// block before the next op's does, and what is between them stays in the first-level cache. Nothing is compiled for a
// chain; it is a list of the loops that the ops run by themselves, so results are the same to the bit, but for
// bfloat16, which is rounded only at the end.
//
// A chain is a tree of ops of one type: each inner value has one reader and is not tapped. Its leaves have the type of
// the result, or a single element, or are rows: shaped like the last axes, and long enough to be a block.
#include <algorithm>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/chain_program.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/types.h"

namespace moonflow::elementwise {
namespace {

constexpr int kMaxOps = 12, kMaxLeaves = 8;
constexpr int64_t kBlock = 1024;  // elements, where no row says otherwise
constexpr int64_t kShortestRow = 64, kLongestRow = 4096;
// An op joins the one that reads it when that follows so soon. What it reads is kept until the chain runs, so far apart
// they would cost memory.
constexpr NodeId kNear = 8;

// ---- what a chain is made of --------------------------------------------------------------------------------

using Program = std::vector<ChainOp<Link>>;

// How a leaf is walked through, beside a result of type `out`.
enum class Walk { No, Same, Single, Row };

Walk walk_of(const TensorType& leaf, const TensorType& out) {
  if (leaf.dtype != out.dtype) return Walk::No;
  if (leaf == out) return Walk::Same;
  if (leaf.count() == 1 && leaf.shape.rank() <= out.shape.rank()) return Walk::Single;
  const int skipped = out.shape.rank() - leaf.shape.rank();
  const bool is_row = skipped > 0 && std::equal(leaf.shape.begin(), leaf.shape.end(), out.shape.begin() + skipped) &&
                      leaf.count() >= kShortestRow && leaf.count() <= kLongestRow;
  return is_row ? Walk::Row : Walk::No;
}

std::vector<TensorType> infer_chain(const Links& links, const OpCall& call) {
  TensorType out = call.type(0);
  int leaves = 0;
  for (; call.has(leaves); ++leaves) {
    if (call.shape(leaves).rank() > out.shape.rank() || call.type(leaves).count() > out.count())
      out = call.type(leaves);
  }
  require_floating(call, 0, "a leaf");
  int64_t row = 0;
  for (int i = 0; i < leaves; ++i) {
    const Walk walk = walk_of(call.type(i), out);
    require(walk != Walk::No, ErrorCode::ShapeMismatch, "leaf ", i, " is ", call.type(i), ", the result ", out);
    if (walk != Walk::Row) continue;
    require(row == 0 || row == call.type(i).count(), ErrorCode::ShapeMismatch, "rows differ in length");
    row = call.type(i).count();
  }
  ops_of_chain(links, call.attrs, leaves);
  return {out};
}

// ---- CPU ----------------------------------------------------------------------------------------------------

// A link with its operands and result as places in a thread's scratch.
struct Stage {
  Loop loop;
  int count;
  int operands[2];  // leaves from 0 on; below, pieces of scratch: -1 is the first
  int result;       // piece of scratch, or kOut
};
constexpr int kOut = -1;

// The stages, and how many pieces of scratch they need: a result takes the piece of an operand that is not read again.
std::vector<Stage> stages_of(const Program& program, DType dtype, int& pieces) {
  const int count = static_cast<int>(program.size());
  std::vector<int> last_use(count, count), piece(count, kOut);
  for (int k = 0; k < count; ++k) {
    for (const int from : program[k].operands)
      if (from < 0) last_use[-1 - from] = k;
  }
  std::vector<Stage> stages;
  std::vector<int> free;
  pieces = 0;
  for (int k = 0; k < count; ++k) {
    const ChainOp<Link>& op = program[k];
    Stage stage{op.link.make(op.attrs, dtype), op.link.operands, {0, 0}, kOut};
    for (int i = 0; i < stage.count; ++i) {
      const int from = op.operands[i];
      stage.operands[i] = from >= 0 ? from : -1 - piece[-1 - from];
      const bool again = i == 1 && from == op.operands[0];
      if (from < 0 && last_use[-1 - from] == k && !again) free.push_back(piece[-1 - from]);
    }
    if (k + 1 < count) {
      if (free.empty()) free.push_back(pieces++);
      stage.result = piece[k] = free.back();
      free.pop_back();
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

bool gives_zero(const Links& links, const LayoutCall& call) {
  const auto leaves = std::count(call.present.begin(), call.present.end(), true);
  int pieces;
  const std::vector<Stage> stages =
      stages_of(ops_of_chain(links, call.attrs, leaves), call.output_types[0].dtype, pieces);
  const AnyElement zero;
  std::vector<AnyElement> results(pieces + 1);  // the last is the chain's
  for (const Stage& stage : stages) {
    Operand operands[2];
    for (int i = 0; i < stage.count; ++i)
      operands[i] = {stage.operands[i] < 0 ? results[-1 - stage.operands[i]].bytes : zero.bytes, true};
    stage.loop.run(1, operands, results[stage.result == kOut ? pieces : stage.result].bytes);
  }
  return results.back().is_zero();
}

Launch prepare_chain(const Links& links, KernelCall& call) {
  const TensorType out = call.outputs[0];
  std::vector<Walk> walks;
  int64_t block = kBlock;
  for (size_t i = 0; i < call.inputs.size() && call.present[i]; ++i) {
    walks.push_back(walk_of(call.inputs[i], out));
    if (walks.back() == Walk::Row) block = call.inputs[i].count();
  }
  int pieces;
  const std::vector<Stage> stages = stages_of(ops_of_chain(links, call.attrs, walks.size()), out.dtype, pieces);
  const int64_t count = stored_elements(out, call.output_layouts[0]), size = size_of(out.dtype);
  const int64_t blocks = (count + block - 1) / block;
  double threads_worth = 0;
  for (const Stage& stage : stages) threads_worth += static_cast<double>(count) / static_cast<double>(stage.loop.grain);
  const int64_t parts = std::clamp<int64_t>(static_cast<int64_t>(threads_worth), 1,
                                            std::min<int64_t>(cpu::threads(), std::max<int64_t>(blocks, 1)));
  const int64_t piece_bytes = block * size;
  call.scratch_bytes = checked_product(parts * pieces, piece_bytes);

  return [=](const LaunchCall& launch) {
    const auto run_block = [&](char* scratch, int64_t at, int64_t n) {
      for (const Stage& stage : stages) {
        Operand operands[2];
        for (int i = 0; i < stage.count; ++i) {
          const int from = stage.operands[i];
          if (from < 0) {
            operands[i] = {scratch + (-1 - from) * piece_bytes, true};
          } else {
            const bool whole = walks[from] == Walk::Same;
            operands[i] = {launch.input<char>(from) + (whole ? at * size : 0), walks[from] != Walk::Single};
          }
        }
        stage.loop.run(
            n, operands,
            stage.result == kOut ? launch.output<char>(0) + at * size : scratch + stage.result * piece_bytes);
      }
    };
    const auto run_blocks = [&](int64_t part, int64_t first, int64_t last) {
      char* scratch = static_cast<char*>(launch.scratch) + part * pieces * piece_bytes;
      for (int64_t b = first; b < last; ++b) run_block(scratch, b * block, std::min(block, count - b * block));
    };
    if (parts == 1) return run_blocks(0, 0, blocks);  // a division takes longer than some chains
    parallel_for(parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part)
        run_blocks(part, blocks * part / parts, blocks * (part + 1) / parts);
    });
  };
}

// ---- fusion -------------------------------------------------------------------------------------------------

class Chains {
 public:
  Chains(const Links& links, Rewriter& graph) : links_(links), graph_(graph) {}

  // Fuses the chain that ends with a node, if one does; parts that it has no room for become chains of their own.
  bool fuse(NodeId id) {
    if (!is_link(id) || joins_reader(id)) return false;
    bool fused = false;
    ends_ = {id};
    while (!ends_.empty()) {
      const NodeId end = ends_.back();
      ends_.pop_back();
      fused = fuse_at(end) || fused;
    }
    return fused;
  }

 private:
  const TensorType& result(NodeId id) const { return graph_.type(graph_.node(id).outputs[0]); }

  bool is_link(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.kind != Node::Op || links_.find(node.op->name) == links_.end()) return false;
    const TensorType& out = result(id);
    if (!is_floating(out.dtype)) return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId input) { return walk_of(graph_.type(input), out) != Walk::No; });
  }

  // Whether the only reader of a link is one too, of the same type, and near.
  bool joins_reader(NodeId id) const {
    const NodeId reader = graph_.sole_reader(graph_.node(id).outputs[0]);
    return reader != kNone && reader - id <= kNear && is_link(reader) && result(reader) == result(id);
  }

  // The length of the rows among a node's operands, or 0.
  int64_t row_of(NodeId id) const {
    for (const ValueId input : graph_.node(id).inputs)
      if (walk_of(graph_.type(input), result(id)) == Walk::Row) return graph_.type(input).count();
    return 0;
  }

  bool fuse_at(NodeId end) {
    std::vector<NodeId> nodes{end};
    size_t leaves = graph_.node(end).inputs.size();
    int64_t row = row_of(end);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const ValueId input : graph_.node(nodes[i]).inputs) {
        const NodeId maker = graph_.maker(input);
        if (graph_.sole_reader(input) != nodes[i] || !is_link(maker) || !joins_reader(maker)) continue;
        const size_t more = graph_.node(maker).inputs.size() - 1;
        const int64_t own_row = row_of(maker);
        if (nodes.size() == kMaxOps || leaves + more > kMaxLeaves || (own_row > 0 && row > 0 && own_row != row)) {
          ends_.push_back(maker);
          continue;
        }
        nodes.push_back(maker);
        leaves += more;
        row = std::max(row, own_row);
      }
    }
    if (nodes.size() == 1) return false;
    replace(std::move(nodes));
    return true;
  }

  // The end comes first in `nodes`, for which the chain is named, and each before what it alone reads. Numbers of nodes
  // say nothing of that: what another rewrite has made has a greater one than its reader.
  void replace(std::vector<NodeId> nodes) {
    const std::vector<NodeId> order(nodes.rbegin(), nodes.rend());
    std::vector<ValueId> inputs;
    std::map<ValueId, int64_t> places;
    std::string ops;
    Ints operands;
    Floats numbers;
    for (size_t k = 0; k < order.size(); ++k) {
      const Node& node = graph_.node(order[k]);
      ops += (k > 0 ? " " : "") + node.op->name;
      for (const ValueId input : node.inputs) {
        const auto [place, is_new] = places.try_emplace(input, static_cast<int64_t>(inputs.size()));
        if (is_new) inputs.push_back(input);
        operands.push_back(place->second);
      }
      for (const std::string& attr : links_.find(node.op->name)->second.attrs)
        numbers.push_back(node.attrs.number(attr));
      places[node.outputs[0]] = -1 - static_cast<int64_t>(k);
    }
    graph_.fuse(nodes, "element_chain", inputs, {{"ops", ops}, {"operands", operands}, {"numbers", numbers}},
                graph_.node(nodes[0]).outputs);
  }

  const Links& links_;
  Rewriter& graph_;
  std::vector<NodeId> ends_;
};

}  // namespace

void Family::add_link(OpDef& op, MakeLoop make) const {
  Link link{make, static_cast<int>(op.inputs.size()), {}};
  for (const AttrDef& attr : op.attrs) link.attrs.push_back(attr.name);
  links->emplace(op.name, std::move(link));
  op.rewrites.push_back({"element-wise chain",
                         {"element_chain"},
                         [links = links](Rewriter& graph, NodeId id) { return Chains(*links, graph).fuse(id); },
                         true});
}

void add_chain(const Family& family) {
  OpDef op;
  op.name = "element_chain";
  op.doc =
      "Element-wise ops one after the other, block by block. Made by fusion, after gradients.\n"
      "shapes: each leaf as the result, a single element, or shaped like the last axes of the result -> the largest\n"
      "dtypes: float32, float64, bfloat16 or float16, all the same; the last two are computed in float32, and"
      " rounded at the end";
  op.inputs = {{"leaf0"}};
  for (int i = 1; i < kMaxLeaves; ++i) op.inputs.push_back({text("leaf", i), InputDef::Optional});
  op.attrs = {{"ops", std::string(), "names of the ops, in order", true},
              {"operands", Ints{}, "of each op: a leaf, 0 and up, or an earlier op's result, -1 for the first", true},
              {"numbers", Floats{}, "attributes of each op"}};
  op.infer = [links = family.links](const OpCall& call) { return infer_chain(*links, call); };
  op.cpu = {[links = family.links](KernelCall& call) { return prepare_chain(*links, call); },
            [links = family.links](LayoutCall& call) { keep_layout(call, [&] { return gives_zero(*links, call); }); }};
  for (int i = 0; i < kMaxLeaves; ++i) op.inplace.push_back({0, i});
  const TensorType x{DType::Float32, {5, 70}}, row{DType::Float32, {70}}, scalar{DType::Float32, {}};
  op.examples = {{{x, scalar}, {{"ops", std::string("add relu")}, {"operands", Ints{0, 1, -1}}}},
                 {{row, x, x},
                  {{"ops", std::string("multiply leaky_relu add exp tanh_grad subtract")},
                   {"operands", Ints{1, 0, -1, -1, 2, -3, -4, -3, -5, -3}},
                   {"numbers", Floats{0.1}}}},
                 {{TensorType{DType::Float32, {2, 3000}}},
                  {{"ops", std::string("square clip_by_value add")},
                   {"operands", Ints{0, 0, -1, -2}},
                   {"numbers", Floats{0, 0.5}}}}};
  family.catalog.add(std::move(op));
}

}  // namespace moonflow::elementwise
