// The compiler: graph in, plan out. Its stages stand in the order they run:
//   precision where the graph allows it, ops compute in bfloat16 (engine/mixed_precision.h)
//   rewrite   dead nodes go, and op families fuse their patterns
//   order     a topological order in which whoever writes a variable comes after everyone who reads it
//   place     each op gets a kernel of the device, or an error
//   layout    private layouts are carried along chains; reorders fill the gaps
//   keep      what follows from variables that the plan only reads goes to the front, and is kept between runs
//   prepare   kernels prepare their launches
//   branch    which steps go side by side, on a device where they can
//   memory    which values share memory, and for which steps each must live; places in one arena
//   bind      the launches get their pointers
#include "engine/plan.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "engine/arena.h"
#include "engine/branches.h"
#include "engine/mixed_precision.h"
#include "engine/rewriter.h"
#include "engine/slot.h"

namespace moonflow {

namespace {

// ---- the draft that the stages work on -----------------------------------------------------------------------

struct DraftStep {
  const Node* node;  // the op; for a reorder the node whose value is reordered
  bool is_reorder = false;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  bool kept = false;
};

class Draft final : public Rewriter {
 public:
  explicit Draft(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes()) nodes_.push_back(&node);
    for (const Value& value : graph.values()) {
      types_.push_back(value.type);
      makers_.push_back(value.node);
    }
    tapped_.resize(types_.size(), false);
    for (const Tap& tap : graph.taps()) tapped_[tap.value] = true;
    live_.resize(nodes_.size(), false);
    for (NodeId id = 0; id < node_count(); ++id) ranks_.push_back(id);
  }

  // Keeps what a tap or a write depends on.
  void drop_dead_nodes() {
    for (const Tap& tap : graph_.taps()) live_[makers_[tap.value]] = true;
    for (NodeId id = node_count(); id-- > 0;) {
      const Node& node = *nodes_[id];
      if (node.kind == Node::Op && !node.op->writes.empty()) live_[id] = true;
      if (live_[id])
        for (const ValueId input : node.inputs)
          if (input != kNone) live_[makers_[input]] = true;
    }
    readers_.resize(types_.size());
    for (NodeId id = 0; id < node_count(); ++id)
      if (live_[id]) add_reader(id);
  }

  void rewrite(const Device& device) {
    launches_cost_ = device.asynchronous();
    const auto has_kernel = [&](const std::string& op) {
      return static_cast<bool>(device.kernel(graph_.catalog().at(op)));
    };
    for (const bool last : {false, true}) {
      for (NodeId id = 0; id < node_count(); ++id) {  // fused nodes are appended, and looked at in turn
        if (!live_[id] || nodes_[id]->kind != Node::Op) continue;
        for (const Rewrite& rewrite : nodes_[id]->op->rewrites) {
          if (rewrite.last != last || !live_[id]) continue;
          if (!std::all_of(rewrite.makes.begin(), rewrite.makes.end(), has_kernel)) continue;
          applying_ = &rewrite;
          if (rewrite.apply(*this, id)) break;
        }
      }
    }
  }

  // ---- Rewriter
  const Node& node(NodeId id) const override { return *nodes_[id]; }
  const TensorType& type(ValueId value) const override { return types_[value]; }

  NodeId maker(ValueId value) const override { return makers_[value]; }

  NodeId made_by(ValueId value, std::string_view op) const override {
    if (value == kNone) return kNone;
    const Node& maker = *nodes_[makers_[value]];
    return maker.kind == Node::Op && maker.op->name == op ? makers_[value] : kNone;
  }

  NodeId sole_reader(ValueId value) const override {
    return !tapped_[value] && readers_[value].size() == 1 ? readers_[value][0] : kNone;
  }

  bool tapped(ValueId value) const override { return tapped_[value]; }
  bool is_variable(ValueId value) const override { return nodes_[makers_[root(value)]]->kind == Node::Variable; }
  bool launches_cost() const override { return launches_cost_; }
  NodeId node_count() const override { return static_cast<NodeId>(nodes_.size()); }
  bool live(NodeId id) const override { return live_[id]; }
  const std::vector<NodeId>& readers(ValueId value) const override { return readers_[value]; }
  ValueId add_value(const TensorType& type) override { return add_value(type, kNone); }

  void fuse(const std::vector<NodeId>& old, std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs,
            const std::vector<ValueId>& outputs) override {
    assert(std::count(applying_->makes.begin(), applying_->makes.end(), op_name) == 1);
    const OpDef& op = graph_.catalog().at(op_name);
    Node& fused = fused_.emplace_back();
    fused.op = &op;
    fused.name = nodes_[old.front()]->name;
    fused.site = nodes_[old.front()]->site;
    fused.attrs = complete(op, std::move(attrs));
    fused.inputs = std::move(inputs);
    fused.inputs.resize(std::max(fused.inputs.size(), op.inputs.size()), kNone);
    fused.outputs = outputs;
    int rank = 0;
    for (const NodeId id : old) {
      rank = std::max(rank, ranks_[id]);
      remove(id);
    }
    const NodeId id = node_count();
    nodes_.push_back(&fused);
    live_.push_back(true);
    ranks_.push_back(rank);
    for (const ValueId output : outputs) makers_[output] = id;
    add_reader(id);
  }

  // The value whose memory this one uses, through alias ops.
  ValueId root(ValueId value) const {
    for (;;) {
      const Node& node = *nodes_[makers_[value]];
      if (node.kind != Node::Op || node.op->alias.empty()) return value;
      value = node.inputs[node.op->alias[0].input];
    }
  }

  int rank(NodeId id) const { return ranks_[id]; }
  ValueId value_count() const { return static_cast<ValueId>(types_.size()); }
  const Graph& graph() const { return graph_; }

  // A value beyond the graph's own: the same value in another layout.
  ValueId add_value(const TensorType& type, NodeId maker) {
    types_.push_back(type);
    makers_.push_back(maker);
    tapped_.push_back(false);
    readers_.emplace_back();
    return value_count() - 1;
  }

 private:
  void add_reader(NodeId id) {
    for (const ValueId input : nodes_[id]->inputs)
      if (input != kNone) readers_[input].push_back(id);
  }
  void remove(NodeId id) {
    live_[id] = false;
    for (const ValueId input : nodes_[id]->inputs) {
      if (input == kNone) continue;
      std::vector<NodeId>& readers = readers_[input];
      readers.erase(std::remove(readers.begin(), readers.end(), id), readers.end());
    }
  }

  const Graph& graph_;
  const Rewrite* applying_ = nullptr;
  bool launches_cost_ = false;
  std::vector<const Node*> nodes_;
  std::deque<Node> fused_;
  std::vector<bool> live_;                    // by node
  std::vector<int> ranks_;                    // by node: age; a fused node is as old as the youngest it replaces
  std::vector<TensorType> types_;             // by value
  std::vector<NodeId> makers_;                // by value
  std::vector<bool> tapped_;                  // by value
  std::vector<std::vector<NodeId>> readers_;  // by value; a node that reads a value twice stands twice
};

// ---- order ---------------------------------------------------------------------------------------------------

// Nodes in an order that respects data, and in which a writer of a variable comes after all readers of its old value.
// Among what is ready, the oldest node comes first and writers come last, so that everything that can fail has run
// before the first write.
std::vector<NodeId> order(const Draft& draft) {
  std::map<ValueId, std::vector<NodeId>> readers_of_variable;  // by root value, aliases included
  std::map<ValueId, std::vector<NodeId>> writers_of_variable;
  const auto is_writer = [&](NodeId id) {
    return draft.node(id).kind == Node::Op && !draft.node(id).op->writes.empty();
  };
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    if (!draft.live(id)) continue;
    const Node& node = draft.node(id);
    for (const ValueId input : node.inputs) {
      if (input == kNone) continue;
      const ValueId root = draft.root(input);
      if (draft.is_variable(root)) readers_of_variable[root].push_back(id);
    }
    if (!is_writer(id)) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone || !node.op->updates(i)) continue;
      const ValueId root = draft.root(node.inputs[i]);
      blaming(node.describe(), node.site, [&] {
        require(draft.is_variable(root), ErrorCode::InvalidArgument, "updates a value that is not a variable");
      });
      writers_of_variable[root].push_back(id);
    }
  }
  // A fused writer is as old as what it replaces.
  for (auto& [variable, writers] : writers_of_variable)
    std::stable_sort(writers.begin(), writers.end(), [&](NodeId a, NodeId b) { return draft.rank(a) < draft.rank(b); });

  std::vector<int> waits_for(draft.node_count(), 0);
  std::vector<std::vector<NodeId>> followers(draft.node_count());
  const auto add_edge = [&](NodeId before, NodeId after) {
    if (before == after) return;
    followers[before].push_back(after);
    ++waits_for[after];
  };
  int live_count = 0;
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    if (!draft.live(id)) continue;
    ++live_count;
    for (const ValueId input : draft.node(id).inputs)
      if (input != kNone) add_edge(draft.maker(input), id);
  }
  for (const auto& [variable, writers] : writers_of_variable) {
    for (size_t i = 0; i < writers.size(); ++i) {
      // Writers of one variable keep their order; those after the first read what the one before wrote.
      for (const NodeId reader : readers_of_variable[variable])
        if (std::find(writers.begin(), writers.end(), reader) == writers.end()) add_edge(reader, writers[i]);
      if (i > 0) add_edge(writers[i - 1], writers[i]);
    }
  }

  using Ready = std::tuple<bool, int, NodeId>;  // (writer, age, id)
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (NodeId id = 0; id < draft.node_count(); ++id)
    if (draft.live(id) && waits_for[id] == 0) ready.emplace(is_writer(id), draft.rank(id), id);
  std::vector<NodeId> sequence;
  while (!ready.empty()) {
    const NodeId id = std::get<2>(ready.top());
    ready.pop();
    sequence.push_back(id);
    for (const NodeId follower : followers[id])
      if (--waits_for[follower] == 0) ready.emplace(is_writer(follower), draft.rank(follower), follower);
  }
  require(static_cast<int>(sequence.size()) == live_count, ErrorCode::InvalidArgument,
          "two updates each read what the other writes, so there is no order that gives both the old value");
  return sequence;
}

// ---- place ---------------------------------------------------------------------------------------------------

void place(const Draft& draft, const std::vector<NodeId>& sequence, const Device& device) {
  for (const NodeId id : sequence) {
    const Node& node = draft.node(id);
    if (node.kind != Node::Op || !node.op->alias.empty() || device.kernel(*node.op)) continue;
    const bool elsewhere = static_cast<bool>(node.op->cpu);
    blaming(node.describe(), node.site, [&] {
      fail(ErrorCode::Unsupported, "has no ", name(device.kind()), " kernel in this build",
           elsewhere ? "; place its job with flow.scope.placement(\"cpu\", \"0:0\")" : "");
    });
  }
}

// ---- layout --------------------------------------------------------------------------------------------------

std::vector<TensorType> types_of(const Draft& draft, const std::vector<ValueId>& values) {
  std::vector<TensorType> types;
  for (const ValueId value : values) types.push_back(value == kNone ? TensorType{} : draft.type(value));
  return types;
}

std::vector<bool> presence(const std::vector<ValueId>& values) {
  std::vector<bool> present;
  for (const ValueId value : values) present.push_back(value != kNone);
  return present;
}

// By value: the variables that no node writes.
std::vector<bool> variables_only_read(const Draft& draft) {
  std::vector<bool> only_read(draft.value_count(), false);
  for (NodeId id = 0; id < draft.node_count(); ++id)
    if (draft.node(id).kind == Node::Variable) only_read[draft.node(id).outputs[0]] = true;
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    const Node& node = draft.node(id);
    if (!draft.live(id) || node.kind != Node::Op) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] != kNone && node.op->updates(i)) only_read[draft.root(node.inputs[i])] = false;
  }
  return only_read;
}

// Chooses the layout of every value, and turns the sequence of nodes into steps with reorders where layouts disagree.
class LayoutStage {
 public:
  LayoutStage(Draft& draft, Device& device)
      : layouts(draft.value_count()), draft_(draft), device_(device), lasting_(variables_only_read(draft)) {
    for (ValueId value = 0; value < draft.value_count(); ++value) origins.push_back(value);
  }

  void run(const std::vector<NodeId>& sequence) {
    for (const NodeId id : sequence) {
      const Node& node = draft_.node(id);
      if (node.kind == Node::Op) add(node);
    }
  }

  // The row-major twin of a tapped value; itself where it is row-major.
  ValueId tap_source(ValueId value) const {
    const auto found = tap_sources_.find(value);
    return found == tap_sources_.end() ? value : found->second;
  }

  std::vector<Layout> layouts;   // by value
  std::vector<ValueId> origins;  // by value: the one that it is under another type, through alias ops; else itself
  std::vector<DraftStep> steps;

 private:
  void add(const Node& node) {
    if (!node.op->alias.empty()) {  // there is nothing to do
      const ValueId origin = origins[in_layout(node.inputs[node.op->alias[0].input], Layout{})];
      for (const ValueId output : node.outputs) origins[output] = origin;
      return;
    }
    DraftStep step{&node, false, node.inputs, node.outputs, false};
    const Kernel& kernel = device_.kernel(*node.op);
    const std::vector<TensorType> input_types = types_of(draft_, node.inputs),
                                  output_types = types_of(draft_, node.outputs);
    const std::vector<bool> present = presence(node.inputs);
    LayoutCall call{device_,
                    node.attrs,
                    input_types,
                    present,
                    output_types,
                    std::vector<Layout>(node.inputs.size()),
                    std::vector<Layout>(node.outputs.size())};
    call.allow_tf32 = draft_.graph().allow_tf32;
    if (kernel.layouts) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (present[i]) call.inputs[i] = layouts[node.inputs[i]];
        call.lasting.push_back(present[i] && lasting_[node.inputs[i]]);
      }
      blaming(node.describe(), node.site, [&] { kernel.layouts(call); });
    }
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (present[i]) step.inputs[i] = in_layout(step.inputs[i], call.inputs[i]);
    for (size_t i = 0; i < step.outputs.size(); ++i) layouts[step.outputs[i]] = call.outputs[i];
    steps.push_back(std::move(step));
    for (const ValueId output : node.outputs)
      if (draft_.tapped(output)) tap_sources_[output] = in_layout(output, Layout{});
  }

  ValueId in_layout(ValueId value, const Layout& wanted) {
    if (layouts[value] == wanted) return value;
    for (const ValueId copy : copies_[value])
      if (layouts[copy] == wanted) return copy;
    const ValueId copy = draft_.add_value(draft_.type(value), draft_.maker(value));
    layouts.push_back(wanted);
    origins.push_back(copy);
    copies_[value].push_back(copy);
    steps.push_back(DraftStep{&draft_.node(draft_.maker(value)), true, {value}, {copy}, false});
    return copy;
  }

  Draft& draft_;
  Device& device_;
  const std::vector<bool> lasting_;                 // by value of the graph
  std::map<ValueId, std::vector<ValueId>> copies_;  // of a value, in other layouts
  std::map<ValueId, ValueId> tap_sources_;
};

// ---- keep ----------------------------------------------------------------------------------------------------

// A step that reads variables which no step writes, and beside them at most constants, gives the same until somebody
// else writes one of them. Such steps go to the front, in their order. Steps of constants alone stay where they are:
// the graph that gives variables their first values has many, needs each once, and would hold all of their values at a
// time.
void keep(const Draft& draft, LayoutStage& laid_out) {
  std::vector<bool> kept = variables_only_read(draft);
  for (DraftStep& step : laid_out.steps) {
    bool reads_kept = false, reads_other = !step.is_reorder && !step.node->op->writes.empty();
    for (const ValueId input : step.inputs) {
      if (input == kNone) continue;
      const ValueId origin = laid_out.origins[input];
      const bool constant = draft.node(draft.maker(origin)).kind == Node::Constant;
      reads_kept = reads_kept || kept[origin];
      reads_other = reads_other || (!kept[origin] && !constant);
    }
    step.kept = reads_kept && !reads_other;
    for (const ValueId output : step.outputs) kept[output] = step.kept;
  }
  std::stable_partition(laid_out.steps.begin(), laid_out.steps.end(), [](const DraftStep& step) { return step.kept; });
}

// ---- prepare -------------------------------------------------------------------------------------------------

// What stands for a value that no step makes, by its origin.
struct Sources {
  explicit Sources(size_t values) : address(values, nullptr), variable(values, nullptr), feed(values, -1) {}

  std::vector<char*> address;       // of variables and constants
  std::vector<Variable*> variable;  // nullptr: none
  std::vector<int> feed;            // -1: none
};

Buffer constant_memory(const Node& node, Device& device, Stream& stream) {
  Buffer buffer(device, std::max<int64_t>(node.constant.bytes(), 1));
  device.copy(stream, buffer.data(), node.constant.data(), node.constant.bytes());
  stream.wait();
  return buffer;
}

Step prepare(Plan& plan, const Draft& draft, const LayoutStage& laid_out, const DraftStep& drafted) {
  Device& device = *plan.device;
  const Node& node = *drafted.node;
  Step step;
  step.site = node.site;
  step.input_types = types_of(draft, drafted.inputs);
  step.output_types = types_of(draft, drafted.outputs);
  for (const ValueId input : drafted.inputs)
    step.input_layouts.push_back(input == kNone ? Layout{} : laid_out.layouts[input]);
  for (const ValueId output : drafted.outputs) step.output_layouts.push_back(laid_out.layouts[output]);
  if (drafted.is_reorder) {
    step.label = "reorder of '" + node.name + "'";
    step.launch = device.reorder(draft.type(drafted.inputs[0]), step.input_layouts[0], step.output_layouts[0]);
    return step;
  }
  step.label = node.describe();
  const AttrValue* const mixed = node.attrs.find("mixed");
  if (mixed && *mixed != AttrValue(std::string())) step.label += " in bfloat16";
  KernelCall call{device,
                  node.attrs,
                  step.input_types,
                  presence(drafted.inputs),
                  step.output_types,
                  step.input_layouts,
                  step.output_layouts};
  call.allow_tf32 = draft.graph().allow_tf32;
  blaming(node.describe(), node.site, [&] { step.launch = device.kernel(*node.op).prepare(call); });
  step.explain = std::move(call.explain);
  if (node.op->flops) step.flops = node.op->flops(call);
  step.scratch_bytes = call.scratch_bytes;
  for (size_t i = 0; i < drafted.inputs.size(); ++i)
    step.updates.push_back(drafted.inputs[i] != kNone && node.op->updates(i));
  return step;
}

// Finds what no step makes, and prepares every launch.
Sources prepare(Plan& plan, const Draft& draft, const LayoutStage& laid_out, Variables& variables) {
  Device& device = *plan.device;
  plan.all_variables = &variables;
  Sources sources(draft.value_count());
  const std::unique_ptr<Stream> stream = device.make_stream();
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    const Node& node = draft.node(id);
    if (node.kind == Node::Feed) {  // also a feed that nobody reads has its place in a call
      sources.feed[node.outputs[0]] = static_cast<int>(plan.feeds.size());
      plan.feeds.push_back({node.name, draft.type(node.outputs[0]), nullptr, {}});
    }
    if (!draft.live(id)) continue;
    if (node.kind == Node::Variable) {
      Variable& variable = variables.declare(node.name, draft.type(node.outputs[0]), device);
      sources.variable[node.outputs[0]] = &variable;
      plan.variables.push_back({&variable, variable.on(device)});
      sources.address[node.outputs[0]] = static_cast<char*>(plan.variables.back().copy->memory.data());
    } else if (node.kind == Node::Constant) {
      plan.constants.push_back(constant_memory(node, device, *stream));
      sources.address[node.outputs[0]] = static_cast<char*>(plan.constants.back().data());
    }
  }

  for (const DraftStep& drafted : laid_out.steps) {
    plan.steps.push_back(prepare(plan, draft, laid_out, drafted));
    plan.kept_steps += drafted.kept ? 1 : 0;
    for (size_t i = 0; i < drafted.inputs.size(); ++i) {
      if (drafted.inputs[i] == kNone) continue;
      Variable* const variable = sources.variable[laid_out.origins[drafted.inputs[i]]];
      if (drafted.kept && variable) plan.kept_from.push_back(variable);
      if (plan.steps.back().writes_input(i)) plan.written.push_back({variable, variable->on(device)});
    }
  }
  return sources;
}

// ---- branch --------------------------------------------------------------------------------------------------

// What the steps take, and what each needs: whoever makes what it reads; where several use the same thing in place,
// the readers of what it overwrites and the writer before it. That holds for variables, and for the note of faults:
// steps that may find one write it, and whoever writes variables looks there first.
std::vector<StepWork> weigh(const Plan& plan, const Draft& draft, const LayoutStage& laid_out,
                            const Sources& sources) {
  struct Uses {
    int writer = -1;
    std::vector<int> readers = {};  // since then
  };
  const Variable* const fault_note = nullptr;
  std::map<const Variable*, Uses> uses;
  std::vector<int> makers(draft.value_count(), -1);  // by origin
  std::vector<StepWork> works;
  for (int at = 0; at < static_cast<int>(plan.steps.size()); ++at) {
    const Step& step = plan.steps[at];
    const DraftStep& drafted = laid_out.steps[at];
    StepWork work;
    work.work_us = work_us(static_cast<double>(step.bytes()), step.flops);
    work.phase = drafted.kept ? StepWork::Kept : step.writes_any() ? StepWork::Write : StepWork::EveryRun;
    const auto needs = [&](int before) {
      if (before < 0 || before == at) return;
      work.after.push_back(before);
      work.phase = std::max(work.phase, works[before].phase);
    };
    const auto use = [&](const Variable* what, bool writes) {
      Uses& known = uses[what];
      needs(known.writer);
      if (!writes) return known.readers.push_back(at);
      for (const int reader : known.readers) needs(reader);
      known = {at};
    };
    for (size_t i = 0; i < drafted.inputs.size(); ++i) {
      if (drafted.inputs[i] == kNone) continue;
      const ValueId origin = laid_out.origins[drafted.inputs[i]];
      needs(makers[origin]);
      if (const Variable* const variable = sources.variable[origin]) use(variable, step.writes_input(i));
    }
    if (step.explain) use(fault_note, true);
    if (step.writes_any()) use(fault_note, false);
    for (const ValueId output : drafted.outputs) makers[output] = at;
    works.push_back(std::move(work));
  }
  return works;
}

// ---- memory --------------------------------------------------------------------------------------------------

int64_t round_up(int64_t bytes) { return checked_sum(bytes, kAlignment - 1) / kAlignment * kAlignment; }

// Where each value lives: in the memory of its root, which is a feed, a variable, a constant, or a block of the arena.
// So does the scratch of a step.
struct Storage {
  std::vector<ValueId> root;  // by value
  std::vector<int> block;     // by root; -1 outside of the arena
  std::vector<int> scratch;   // the block of each step, by place; -1: none
  std::vector<Block> blocks;
  Arena arena;

  bool in_arena(ValueId root) const { return block[root] >= 0; }
};

// Steps of several branches go side by side, so a value and the scratch of a step live until all that may go on beside
// their last user has ended, and nothing is overwritten in place that somebody may still read.
class MemoryStage {
 public:
  MemoryStage(const Draft& draft, const LayoutStage& laid_out, const Branches& branches)
      : draft_(draft),
        laid_out_(laid_out),
        branches_(branches),
        uses_(draft.value_count(), 0),
        tap_source_(draft.value_count(), false),
        last_(draft.value_count(), -1) {
    for (const DraftStep& step : laid_out.steps)
      for (const ValueId input : step.inputs)
        if (input != kNone) ++uses_[laid_out.origins[input]];
    for (const Tap& tap : draft.graph().taps()) tap_source_[laid_out.origins[laid_out.tap_source(tap.value)]] = true;
  }

  Storage run(const std::vector<Step>& prepared) {
    const int step_count = static_cast<int>(branches_.order.size());
    storage_.root = laid_out_.origins;
    storage_.block.assign(draft_.value_count(), -1);
    std::vector<int> root_uses(draft_.value_count(), 0);
    bool keeping = step_count > 0 && step_at(0).kept;
    for (int at = 0; at < step_count; ++at) {
      const DraftStep& step = step_at(at);
      if (keeping && !step.kept) {  // what is alive now stays so for all runs: it has one reader more
        for (int& uses : root_uses) uses += uses > 0 ? 1 : 0;
        keeping = false;
      }
      for (size_t output = 0; output < step.outputs.size(); ++output) {
        const ValueId value = step.outputs[output];
        const ValueId shared = share(step, static_cast<int>(output), root_uses, at);
        if (shared != kNone) {
          storage_.root[value] = shared;
          root_uses[shared] += uses_[value];
        } else {
          storage_.block[value] = static_cast<int>(storage_.blocks.size());
          storage_.blocks.push_back({bytes(value), at, step_count});
          root_uses[value] = uses_[value];
        }
        use(storage_.root[value], at);
        // A tap copies a kept value in every run, not only where it is made.
        if (step.kept && tap_source_[value]) ++root_uses[storage_.root[value]];
      }
      // What nobody reads from here on is free for what comes when they have ended.
      for (const ValueId input : step.inputs) {
        if (input == kNone || !storage_.in_arena(root_of(input))) continue;
        use(root_of(input), at);
        if (--root_uses[root_of(input)] == 0) release(root_of(input));
      }
      for (const ValueId output : step.outputs) {
        const ValueId root = storage_.root[output];
        if (storage_.in_arena(root) && root_uses[root] == 0 && uses_[output] == 0 && root == output) release(root);
      }
    }
    for (ValueId value = 0; value < draft_.value_count(); ++value) storage_.root[value] = root_of(value);
    for (int at = 0; at < step_count; ++at) {
      const int64_t bytes = prepared[branches_.order[at]].scratch_bytes;
      storage_.scratch.push_back(bytes > 0 ? static_cast<int>(storage_.blocks.size()) : -1);
      if (bytes > 0) storage_.blocks.push_back({round_up(bytes), at, branches_.beside[at]});
    }
    storage_.arena = arrange(storage_.blocks);
    return std::move(storage_);
  }

 private:
  const Draft& draft_;
  const LayoutStage& laid_out_;
  const Branches& branches_;
  std::vector<int> uses_;         // by origin: how many steps read it
  std::vector<bool> tap_source_;  // by origin: a tap copies it
  std::vector<int> last_;         // by root: the last place that may go on beside one of its users so far
  Storage storage_;

  const DraftStep& step_at(int place) const { return laid_out_.steps[branches_.order[place]]; }
  ValueId root_of(ValueId value) const { return storage_.root[laid_out_.origins[value]]; }

  int64_t bytes(ValueId value) const {
    const Layout& layout = laid_out_.layouts[value];
    return round_up(std::max<int64_t>(layout.row_major() ? draft_.type(value).bytes() : layout.bytes, 1));
  }

  void use(ValueId root, int place) { last_[root] = std::max(last_[root], branches_.beside[place]); }
  void release(ValueId root) { storage_.blocks[storage_.block[root]].last_step = last_[root]; }

  // The root whose memory an output takes over, or kNone when it needs its own.
  ValueId share(const DraftStep& step, int output, const std::vector<int>& root_uses, int place) const {
    if (step.is_reorder) return kNone;
    for (const Sharing& inplace : step.node->op->inplace) {
      const ValueId input = step.inputs[inplace.input], value = step.outputs[output];
      if (inplace.output != output || input == kNone) continue;
      const ValueId root = root_of(input);
      const bool last_use = storage_.in_arena(root) && root_uses[root] == 1 && last_[root] < place;
      if (last_use && draft_.type(input) == draft_.type(value) &&
          laid_out_.layouts[input] == laid_out_.layouts[value] &&
          draft_.type(root).bytes() == draft_.type(value).bytes())
        return root;
    }
    return kNone;
  }
};

// Puts the steps into branches where the device has any and a run is shorter for it, and plans the memory. Branches
// that keep much more memory alive are not worth it.
Storage branch(Plan& plan, const Draft& draft, LayoutStage& laid_out, const Sources& sources) {
  constexpr double kMostMemory = 1.5;  // of what one branch takes, and a little more that nobody misses
  constexpr double kLittle = 1 << 20;
  const Branches one = in_one_branch(plan.steps.size());
  Storage storage = MemoryStage(draft, laid_out, one).run(plan.steps);
  if (plan.device->branches() == 1) return storage;
  const Branches several = in_branches(weigh(plan, draft, laid_out, sources), plan.device->branches());
  if (several.count == 1) return storage;
  Storage wider = MemoryStage(draft, laid_out, several).run(plan.steps);
  const double most = kMostMemory * static_cast<double>(storage.arena.bytes) + kLittle;
  if (static_cast<double>(wider.arena.bytes) > most) return storage;

  std::vector<Step> steps;
  std::vector<DraftStep> drafts;
  for (const int step : several.order) {
    const size_t place = steps.size();
    steps.push_back(std::move(plan.steps[step]));
    steps.back().branch = several.branch[place];
    steps.back().waits_for = several.waits_for[place];
    drafts.push_back(std::move(laid_out.steps[step]));
  }
  plan.steps = std::move(steps);
  laid_out.steps = std::move(drafts);
  plan.branch_count = several.count;
  plan.joins = several.joins;
  return wider;
}

// ---- bind ----------------------------------------------------------------------------------------------------

// Makes the arena, and binds the pointers of steps, feeds and taps.
void bind_steps(Plan& plan, const Draft& draft, const LayoutStage& laid_out, const Sources& sources,
                const Storage& storage) {
  plan.arena_lower_bound = storage.arena.lower_bound;
  plan.arena_bytes = storage.arena.bytes;
  plan.arena = Buffer(*plan.device, std::max<int64_t>(plan.arena_bytes, kAlignment));
  const auto block_memory = [&](int block) {
    return block < 0 ? nullptr : static_cast<char*>(plan.arena.data()) + storage.blocks[block].offset;
  };
  const auto address = [&](ValueId value) -> char* {
    const ValueId root = storage.root[value];
    return storage.in_arena(root) ? block_memory(storage.block[root]) : sources.address[root];
  };

  std::vector<int> makers(draft.value_count(), -1);  // by origin
  for (int at = 0; at < static_cast<int>(plan.steps.size()); ++at) {
    Step& step = plan.steps[at];
    step.scratch = block_memory(storage.scratch[at]);
    for (const ValueId input : laid_out.steps[at].inputs) {
      const int feed = input == kNone ? -1 : sources.feed[storage.root[input]];
      if (feed >= 0) plan.feeds[feed].places.push_back({at, static_cast<int>(step.inputs.size())});
      step.inputs.push_back(input == kNone ? nullptr : address(input));
    }
    for (const ValueId output : laid_out.steps[at].outputs) {
      step.outputs.push_back(address(output));
      makers[output] = at;
    }
  }
  const auto writes = [](const Step& step) { return step.writes_any(); };
  plan.first_write = static_cast<int>(std::find_if(plan.steps.begin(), plan.steps.end(), writes) - plan.steps.begin());

  // What a step makes for one tap alone, by origin.
  std::vector<int> wanted(draft.value_count(), 0), output_of(draft.value_count(), -1);
  for (const DraftStep& step : laid_out.steps)
    for (const ValueId input : step.inputs)
      if (input != kNone) ++wanted[laid_out.origins[input]];
  for (const Tap& tap : draft.graph().taps()) ++wanted[laid_out.origins[laid_out.tap_source(tap.value)]];
  for (size_t at = plan.kept_steps; at < plan.steps.size(); ++at) {
    const std::vector<ValueId>& outputs = laid_out.steps[at].outputs;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (wanted[outputs[i]] == 1) output_of[outputs[i]] = static_cast<int>(i);
  }

  for (const Tap& tap : draft.graph().taps()) {
    const ValueId value = laid_out.tap_source(tap.value);
    const ValueId origin = laid_out.origins[value];
    plan.taps.push_back({tap.token, draft.type(tap.value), makers[origin], address(value),
                         sources.feed[storage.root[value]], output_of[origin]});
  }
}

}  // namespace

std::shared_ptr<Plan> compile(const Graph& traced, const std::string& job, const std::shared_ptr<Device>& device,
                              Variables& variables) {
  auto plan = std::make_shared<Plan>(job, device);
  try {
    const std::optional<Graph> mixed =
        traced.mixed_precision ? std::optional(with_mixed_precision(traced, *device)) : std::nullopt;
    Draft draft(mixed ? *mixed : traced);
    draft.drop_dead_nodes();
    draft.rewrite(*device);
    const std::vector<NodeId> sequence = order(draft);
    place(draft, sequence, *device);
    LayoutStage laid_out(draft, *device);
    laid_out.run(sequence);
    keep(draft, laid_out);
    const Sources sources = prepare(*plan, draft, laid_out, variables);
    bind_steps(*plan, draft, laid_out, sources, branch(*plan, draft, laid_out, sources));
  } catch (Error& error) {
    if (error.job.empty()) error.job = job;
    throw;
  }
  for (size_t i = 0; i < plan->taps.size(); ++i) plan->taps_by_step.push_back(static_cast<int>(i));
  std::stable_sort(plan->taps_by_step.begin(), plan->taps_by_step.end(),
                   [&](int a, int b) { return plan->taps[a].after_step < plan->taps[b].after_step; });
  return plan;
}

Plan::Plan(std::string job, std::shared_ptr<Device> device)
    : job(std::move(job)), device(std::move(device)), asynchronous(this->device->asynchronous()) {}

Plan::~Plan() = default;

int64_t Step::bytes() const {
  int64_t total = 0;
  for (const TensorType& type : input_types) total += type.shape.rank() > 0 ? type.bytes() : 0;
  for (const TensorType& type : output_types) total += type.bytes();
  return total;
}

void Plan::note(Profile& profile, int step, uint64_t run, int64_t begin_ns) {
  if (step >= 0) {
    steps[step].profiled_ns += Profile::now_ns() - begin_ns;
    ++steps[step].profiled_launches;
  }
  ProfileEvent event;
  event.plan = shared_from_this();
  event.step = step;
  event.run = run;
  event.begin_ns = begin_ns;
  profile.add(std::move(event));
}

uint64_t Plan::newest_version() const {
  uint64_t version = 0;
  for (const Variable* variable : kept_from) version += variable->version.load(std::memory_order_relaxed);
  return version;
}

void Plan::bind(size_t feed, void* data) {
  feeds[feed].data = data;
  for (const PlannedFeed::Place& place : feeds[feed].places) steps[place.step].inputs[place.input] = data;
}

void Plan::launch_step(int index, Stream& stream, void* const* outputs) const {
  const Step& step = steps[index];
  try {
    step.launch(LaunchCall{stream, step.inputs.data(), outputs, step.scratch, index});
  } catch (const std::exception&) {
    Error error = current_error();
    error.op = step.label;
    error.where = step.site;
    throw error;
  }
}

void Plan::note_writes() const {
  for (const PlannedVariable& use : written) use.variable->note_write(*use.copy);
}

std::string Plan::dump() const {
  std::string lines =
      text(job, ": ", steps.size(), " steps, arena ", arena_bytes, " bytes (at least ", arena_lower_bound, ")\n");
  const auto numbers = [](const std::vector<int>& places) {
    std::string line;
    for (const int place : places) line += text(line.empty() ? "" : ", ", place);
    return line;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (i == 0 && kept_steps > 0) lines += "-- kept until a variable changes\n";
    if (static_cast<int>(i) == kept_steps && i > 0) lines += "-- every run\n";
    lines += text(static_cast<int>(i) == first_write ? "-- writes\n" : "", i, ": ", step.label);
    if (step.branch > 0) lines += text(" | branch ", step.branch);
    if (!step.waits_for.empty()) lines += " | waits for " + numbers(step.waits_for);
    if (!step.site.empty()) lines += "  # " + step.site;
    lines += "\n";
  }
  if (!joins.empty()) lines += "the end waits for " + numbers(joins) + "\n";
  for (const PlannedTap& tap : taps)
    lines += text("tap ", tap.token, ": ", tap.type, " after step ", tap.after_step, "\n");
  return lines;
}

}  // namespace moonflow
