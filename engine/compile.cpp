// The stages of compiling, in the order they run; most stand below in that order:
//   precision where the graph allows it, ops compute in a narrow dtype (engine/mixed_precision.h)
//   merge     dead nodes go, and so do all but the first of equal ones (engine/draft.h)
//   rewrite   op families fuse their patterns
//   order     a topological order in which whoever writes a variable comes after everyone who reads it
//   place     each op gets a kernel of the device, or an error
//   layout    private layouts are carried along chains; reorders fill the gaps (engine/layout.h)
//   keep      what follows from variables that the plan only reads goes to the front, and is kept between runs; so are
//             constants in other layouts
//   prepare   kernels prepare their launches
//   branch    which steps go side by side, on a device where they can (engine/branches.h)
//   memory    which values share memory, and for which steps each must live (engine/storage.h)
//   bind      the launches get their pointers
#include "engine/compile.h"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <tuple>

#include "engine/branches.h"
#include "engine/default_floats.h"
#include "engine/draft.h"
#include "engine/layout.h"
#include "engine/mixed_precision.h"
#include "engine/size_text.h"
#include "engine/storage.h"

namespace moonflow {

namespace {

// ---- order ---------------------------------------------------------------------------------------------------

bool is_writer(const Draft& draft, NodeId id) {
  return draft.node(id).kind == Node::Op && !draft.node(id).op->writes.empty();
}

// Who reads and who updates each variable, by its root value: under any alias. Updates are in the order of their age,
// and a fused one is as old as what it replaces.
struct UsesOfVariables {
  std::map<ValueId, std::vector<NodeId>> readers, writers;
};

UsesOfVariables uses_of_variables(const Draft& draft) {
  UsesOfVariables uses;
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    if (!draft.live(id)) continue;
    const Node& node = draft.node(id);
    for (const ValueId input : node.inputs) {
      if (input == kNone) continue;
      const ValueId root = draft.root(input);
      if (draft.is_variable(root)) uses.readers[root].push_back(id);
    }
    if (!is_writer(draft, id)) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone || !node.op->updates(i)) continue;
      const ValueId root = draft.root(node.inputs[i]);
      blaming(node.describe(), node.site, [&] {
        require(draft.is_variable(root), ErrorCode::InvalidArgument, "updates a value that is not a variable");
      });
      uses.writers[root].push_back(id);
    }
  }
  for (auto& [variable, writers] : uses.writers)
    std::stable_sort(writers.begin(), writers.end(), [&](NodeId a, NodeId b) { return draft.rank(a) < draft.rank(b); });
  return uses;
}

// What has to come before what.
struct Precedence {
  std::vector<std::vector<NodeId>> followers;  // of each node
  std::vector<int> waits_for;                  // how many nodes each has to wait for

  void add(NodeId before, NodeId after) {
    if (before == after) return;
    followers[before].push_back(after);
    ++waits_for[after];
  }
};

Precedence precedence_in(const Draft& draft) {
  const size_t count = static_cast<size_t>(draft.node_count());
  Precedence precedence{std::vector<std::vector<NodeId>>(count), std::vector<int>(count, 0)};
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    if (!draft.live(id)) continue;
    for (const ValueId input : draft.node(id).inputs)
      if (input != kNone) precedence.add(draft.maker(input), id);
  }
  UsesOfVariables uses = uses_of_variables(draft);
  for (const auto& [variable, writers] : uses.writers) {
    for (size_t i = 0; i < writers.size(); ++i) {
      // Writers of one variable keep their order, in which what they add up is rounded.
      for (const NodeId reader : uses.readers[variable])
        if (std::find(writers.begin(), writers.end(), reader) == writers.end()) precedence.add(reader, writers[i]);
      if (i > 0) precedence.add(writers[i - 1], writers[i]);
    }
  }
  return precedence;
}

// Lets a writer read copies of variables that it reads as they are: old values that are there when somebody has
// written.
template <class Wanted>
void read_copies(Draft& draft, NodeId writer, const Wanted& is_wanted) {
  for (size_t i = 0; i < draft.node(writer).inputs.size(); ++i) {
    const ValueId input = draft.node(writer).inputs[i];
    if (input == kNone || draft.node(writer).op->updates(i) || !is_wanted(draft.root(input))) continue;
    draft.copy_input(writer, i);
  }
}

// Writers of one variable that take it as their value too, behind the first.
void read_before_first_write(Draft& draft) {
  for (const auto& [variable, writers] : uses_of_variables(draft).writers)
    for (size_t i = 1; i < writers.size(); ++i)
      read_copies(draft, writers[i], [variable = variable](ValueId read) { return read == variable; });
}

// Writers that wait for each other in a circle, each to write what the next reads: variables are exchanged.
void read_before_exchange(Draft& draft, const std::vector<int>& waits_for) {
  const UsesOfVariables uses = uses_of_variables(draft);
  const NodeId count = draft.node_count();
  for (NodeId id = 0; id < count; ++id)
    if (draft.live(id) && waits_for[id] > 0 && is_writer(draft, id))
      read_copies(draft, id, [&](ValueId read) { return uses.writers.count(read) > 0; });
}

// Nodes that wait for each other in a circle are what fusions have joined.
void fail_in_circle(const Draft& draft, const Precedence& precedence) {
  const auto& [followers, waits_for] = precedence;
  std::vector<NodeId> before(draft.node_count(), kNone);  // one of those that it waits for
  NodeId in_circle = kNone;
  for (NodeId id = 0; id < draft.node_count(); ++id) {
    if (!draft.live(id) || waits_for[id] == 0) continue;
    in_circle = id;
    for (const NodeId follower : followers[id]) before[follower] = id;
  }
  for (NodeId step = 0; step < draft.node_count(); ++step) in_circle = before[in_circle];
  const Node& node = draft.node(in_circle);
  blaming(node.describe(), node.site, [&] {
    fail(ErrorCode::Internal,
         "waits for itself since ops were fused, a fault of Moonflow's; they are not where a watch "
         "sees what is between them");
  });
}

// Nodes in an order that respects `precedence`; those that wait in circles are missing, and still wait in it
// afterwards. Among what is ready, the oldest node comes first and writers come last, so that everything that can fail
// has run before the first write.
std::vector<NodeId> order(const Draft& draft, Precedence& precedence) {
  auto& [followers, waits_for] = precedence;
  using Ready = std::tuple<bool, int, NodeId>;  // (writer, age, id)
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  const auto note_ready = [&](NodeId id) { ready.emplace(is_writer(draft, id), draft.rank(id), id); };
  for (NodeId id = 0; id < draft.node_count(); ++id)
    if (draft.live(id) && waits_for[id] == 0) note_ready(id);
  std::vector<NodeId> sequence;
  while (!ready.empty()) {
    const NodeId id = std::get<2>(ready.top());
    ready.pop();
    sequence.push_back(id);
    for (const NodeId follower : followers[id])
      if (--waits_for[follower] == 0) note_ready(follower);
  }
  return sequence;
}

// All nodes, in an order that respects data, and in which a writer of a variable comes after all readers of its old
// value.
std::vector<NodeId> order(Draft& draft) {
  const auto is_whole = [&](const std::vector<NodeId>& sequence) {
    NodeId live = 0;
    for (NodeId id = 0; id < draft.node_count(); ++id) live += draft.live(id) ? 1 : 0;
    return static_cast<NodeId>(sequence.size()) == live;
  };
  read_before_first_write(draft);
  Precedence precedence = precedence_in(draft);
  std::vector<NodeId> sequence = order(draft, precedence);
  if (is_whole(sequence)) return sequence;
  read_before_exchange(draft, precedence.waits_for);
  precedence = precedence_in(draft);
  sequence = order(draft, precedence);
  if (!is_whole(sequence)) fail_in_circle(draft, precedence);
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

// ---- keep ----------------------------------------------------------------------------------------------------

// Kept steps go to the front, in their order. A device that runs several plans at a time shares nothing between them.
void keep(const Draft& draft, const Device& device, LaidOut& laid_out) {
  std::stable_partition(laid_out.steps.begin(), laid_out.steps.end(), [](const DraftStep& step) { return step.kept; });
  if (device.asynchronous()) return;
  std::vector<bool> in_every_run(draft.value_count(), false);  // by origin: whether it is read then
  for (const DraftStep& step : laid_out.steps)
    for (const ValueId input : step.inputs)
      if (input != kNone && !step.kept) in_every_run[laid_out.origins[input]] = true;
  for (DraftStep& step : laid_out.steps) {
    const auto is_of_variable = [&] {
      return draft.node(draft.maker(laid_out.origins[step.inputs[0]])).kind == Node::Variable;
    };
    step.is_form = step.kept && step.is_reorder && in_every_run[step.outputs[0]] && is_of_variable();
  }
}

// ---- prepare -------------------------------------------------------------------------------------------------

// What stands for a value that no step makes, by its origin.
struct Sources {
  explicit Sources(size_t values) : address(values, nullptr), variable(values, -1), feed(values, -1) {}

  std::vector<char*> address;  // of constants, and of variables once they are declared
  std::vector<int> variable;   // index into `variables`, -1: none
  std::vector<int> feed;       // -1: none
  std::vector<Variables::Wanted> variables;
};

Buffer constant_memory(const Node& node, Device& device, Stream& stream) {
  Buffer buffer(device, std::max<int64_t>(node.constant.bytes(), 1));
  device.copy(stream, buffer.data(), node.constant.data(), node.constant.bytes());
  stream.wait();
  return buffer;
}

// The dtype that mixed precision has the op compute in.
std::optional<DType> narrow_dtype(const Node& node, const std::vector<TensorType>& inputs) {
  const AttrValue *const mixed = node.attrs.find("mixed"), *const rounds_to = node.attrs.find("rounds_to");
  if (mixed && *mixed == AttrValue(std::string())) return std::nullopt;
  if (!rounds_to) return mixed ? std::optional(inputs[0].dtype) : std::nullopt;
  const DType dtype = std::get<DType>(*rounds_to);
  return is_narrow(dtype) ? std::optional(dtype) : std::nullopt;
}

Step prepare(Device& device, const Draft& draft, const LaidOut& laid_out, const DraftStep& drafted) {
  const Node& node = *drafted.node;
  Step step;
  step.site = node.site;
  step.input_types = draft.types(drafted.inputs);
  step.output_types = draft.types(drafted.outputs);
  for (const ValueId input : drafted.inputs)
    step.input_layouts.push_back(input == kNone ? Layout{} : laid_out.layouts[input]);
  for (const ValueId output : drafted.outputs) step.output_layouts.push_back(laid_out.layouts[output]);
  if (drafted.is_reorder) {
    step.label = "reorder of '" + node.name + "'";
    step.launch = device.reorder(draft.type(drafted.inputs[0]), step.input_layouts[0], step.output_layouts[0]);
    return step;
  }
  step.label = node.describe();
  step.meets_others = node.op->meets_others;
  if (const std::optional<DType> inside = narrow_dtype(node, step.input_types)) step.label += text(" in ", *inside);
  KernelCall call{device,
                  node.attrs,
                  step.input_types,
                  presence(drafted.inputs),
                  step.output_types,
                  step.input_layouts,
                  step.output_layouts};
  call.allow_tf32 = draft.graph().allow_tf32 && !is_precise(node);
  step.launch = blaming(node.describe(), node.site, [&] { return device.kernel(*node.op).prepare(call); });
  step.explain = std::move(call.explain);
  if (node.op->flops) step.flops = node.op->flops(call);
  step.scratch_bytes = call.scratch_bytes;
  for (size_t i = 0; i < drafted.inputs.size(); ++i)
    step.updates.push_back(drafted.inputs[i] != kNone && node.op->updates(i));
  return step;
}

// Finds what no step makes.
Sources find_sources(Plan& plan, const Draft& draft) {
  Device& device = *plan.device;
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
      sources.variable[node.outputs[0]] = static_cast<int>(sources.variables.size());
      sources.variables.push_back({node.name, draft.type(node.outputs[0])});
    } else if (node.kind == Node::Constant) {
      plan.constants.push_back(constant_memory(node, device, *stream));
      sources.address[node.outputs[0]] = static_cast<char*>(plan.constants.back().data());
    }
  }
  return sources;
}

void prepare_steps(Plan& plan, const Draft& draft, const LaidOut& laid_out) {
  for (const DraftStep& drafted : laid_out.steps) {
    plan.steps.push_back(prepare(*plan.device, draft, laid_out, drafted));
    plan.kept_steps += drafted.kept ? 1 : 0;
  }
}

// ---- branch --------------------------------------------------------------------------------------------------

// What the steps take, and what each needs: whoever makes what it reads; where several use the same thing in place,
// the readers of what it overwrites and the writer before it. That holds for variables, and for the note of faults:
// steps that may find one write it, and whoever writes variables looks there first.
std::vector<StepWork> weigh(const Plan& plan, const Draft& draft, const LaidOut& laid_out, const Sources& sources) {
  struct LastUses {
    int writer = -1;
    std::vector<int> readers = {};  // since then
  };
  constexpr int kFaultNote = -1;
  std::map<int, LastUses> uses;                      // by variable
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
    const auto use = [&](int what, bool writes) {
      LastUses& known = uses[what];
      needs(known.writer);
      if (!writes) return known.readers.push_back(at);
      for (const int reader : known.readers) needs(reader);
      known = {at};
    };
    for (size_t i = 0; i < drafted.inputs.size(); ++i) {
      if (drafted.inputs[i] == kNone) continue;
      const ValueId origin = laid_out.origins[drafted.inputs[i]];
      needs(makers[origin]);
      if (sources.variable[origin] >= 0) use(sources.variable[origin], step.writes_input(i));
    }
    if (step.explain) use(kFaultNote, true);
    if (step.writes_any()) use(kFaultNote, false);
    for (const ValueId output : drafted.outputs) makers[output] = at;
    works.push_back(std::move(work));
  }
  return works;
}

// Whether it computes anything once more, to save memory.
bool repeats(const Draft& draft) {
  for (NodeId id = 0; id < draft.node_count(); ++id)
    if (draft.live(id) && draft.node(id).part < 0) return true;
  return false;
}

// Puts the steps into branches where the device has any and a run is shorter for it, and plans the memory. Branches
// that keep much more memory alive are not worth it.
Storage branch(Plan& plan, const Draft& draft, LaidOut& laid_out, const Sources& sources) {
  constexpr double kMostMemory = 1.5;  // of what one branch takes, and a little more that nobody misses
  constexpr double kLittle = 1 << 20;
  const Branches one = in_one_branch(plan.steps.size());
  Storage storage = plan_storage(draft, laid_out, one, plan.steps);
  if (plan.device->branches() == 1) return storage;
  const Branches several = in_branches(weigh(plan, draft, laid_out, sources), plan.device->branches());
  if (several.count == 1) return storage;
  Storage wider = plan_storage(draft, laid_out, several, plan.steps);
  const double most = (repeats(draft) ? 1 : kMostMemory) * static_cast<double>(storage.arena.bytes) + kLittle;
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

// The step at which most of the arena is in use; -1 without any.
int fullest_step(const Plan& plan, const Storage& storage) {
  std::vector<int64_t> used(plan.steps.size(), 0);
  for (const Block& block : storage.blocks)
    for (int at = block.first_step; at <= block.last_step && at < static_cast<int>(used.size()); ++at)
      used[at] += block.bytes;
  return static_cast<int>(std::max_element(used.begin(), used.end()) - used.begin()) - (used.empty() ? 1 : 0);
}

// What is largest of all that is in use at a step: "float32 (64, 512, 512) of conv2d 'conv1' the largest".
std::string largest_at(int step, const Plan& plan, const Draft& draft, const LaidOut& laid_out,
                       const Storage& storage) {
  int64_t bytes = 0;
  std::string words;
  const auto see = [&](int block, int at, const auto& name) {
    if (block < 0 || storage.blocks[block].first_step > step || storage.blocks[block].last_step < step) return;
    if (storage.blocks[block].bytes <= bytes) return;
    bytes = storage.blocks[block].bytes;
    words = text(name, " of ", plan.steps[at].label);
  };
  for (int at = 0; at < static_cast<int>(plan.steps.size()); ++at) {
    for (const ValueId output : laid_out.steps[at].outputs)
      see(storage.block[storage.root[output]], at, draft.type(output));
    see(storage.scratch[at], at, "the scratch memory");
  }
  return text(words, ", ", size_text(bytes));
}

void make_arena(Plan& plan, const Draft& draft, const LaidOut& laid_out, const Storage& storage) {
  plan.arena_lower_bound = storage.arena.lower_bound;
  plan.arena_bytes = storage.arena.bytes;
  try {
    plan.arena = Buffer(*plan.device, std::max<int64_t>(plan.arena_bytes, kAlignment));
  } catch (const Error& problem) {
    const int step = fullest_step(plan, storage);
    if (problem.code != ErrorCode::OutOfMemory || step < 0) throw;
    const bool may_take_less = plan.device->kind() == DeviceKind::Cpu && !plan.feeds.empty();  // a gpu says what to do
    Error error(problem.code,
                text(problem.what(), ". So much is in use at this step; the largest is ",
                     largest_at(step, plan, draft, laid_out, storage), may_take_less ? "; take a smaller batch" : ""));
    error.op = plan.steps[step].label;
    error.where = plan.steps[step].site;
    throw error;
  }
}

// The forms of variables: those that there are, and new ones.
void find_forms(Plan& plan, const Draft& draft, const LaidOut& laid_out, Sources& sources, Variables& variables) {
  plan.forms.resize(plan.kept_steps);
  for (int at = 0; at < plan.kept_steps; ++at) {
    const DraftStep& step = laid_out.steps[at];
    if (!step.is_form) continue;
    const ValueId value = step.outputs[0];
    const TensorType& type = draft.type(value);
    const Layout& layout = laid_out.layouts[value];
    const Variable* const variable =
        variables.find(sources.variables[sources.variable[laid_out.origins[step.inputs[0]]]].name);
    const Variable::Copy* const copy = variable ? variable->on(*plan.device) : nullptr;
    std::shared_ptr<Variable::Form>& form = plan.forms[at].form;
    if (copy) form = copy->find_form(type, layout);
    if (!form)
      form = blaming(plan.steps[at].label, plan.steps[at].site, [&] {
        Buffer memory(*plan.device, std::max<int64_t>(layout.bytes_of(type), 1));
        return std::make_shared<Variable::Form>(Variable::Form{type, layout, std::move(memory)});
      });
    sources.address[value] = static_cast<char*>(form->memory.data());
  }
}

// Last of what may fail: others see the variables of a plan that can run.
void declare(Plan& plan, const LaidOut& laid_out, Sources& sources, Variables& variables) {
  plan.all_variables = &variables;
  for (Variable* const variable : variables.declare(sources.variables, *plan.device))
    plan.variables.push_back({variable, variable->on(*plan.device)});
  for (size_t value = 0; value < sources.variable.size(); ++value)
    if (const int variable = sources.variable[value]; variable >= 0)
      sources.address[value] = static_cast<char*>(plan.variables[variable].copy->memory.data());
  for (size_t at = 0; at < plan.steps.size(); ++at) {
    const DraftStep& drafted = laid_out.steps[at];
    for (size_t i = 0; i < drafted.inputs.size(); ++i) {
      const int index = drafted.inputs[i] == kNone ? -1 : sources.variable[laid_out.origins[drafted.inputs[i]]];
      if (index < 0) continue;
      if (drafted.kept) plan.kept_from.push_back(plan.variables[index].variable);
      if (drafted.is_form) {
        plan.forms[at].variable = plan.variables[index].variable;
        plan.variables[index].copy->add_form(plan.forms[at].form);
      }
      if (plan.steps[at].writes_input(i)) plan.written.push_back(plan.variables[index]);
    }
  }
}

// Where values lie, for whoever binds pointers to them.
struct Addresses {
  const Plan& plan;
  const Sources& sources;
  const Storage& storage;

  char* block(int block) const {
    return block < 0 ? nullptr : static_cast<char*>(plan.arena.data()) + storage.blocks[block].offset;
  }
  char* operator()(ValueId value) const {
    const ValueId root = storage.root[value];
    return storage.in_arena(root) ? block(storage.block[root]) : sources.address[root];
  }
  int feed(ValueId value) const { return sources.feed[storage.root[value]]; }
};

void bind_steps(Plan& plan, const LaidOut& laid_out, const Addresses& addresses) {
  for (int at = 0; at < static_cast<int>(plan.steps.size()); ++at) {
    Step& step = plan.steps[at];
    step.scratch = addresses.block(addresses.storage.scratch[at]);
    for (const ValueId input : laid_out.steps[at].inputs) {
      const int feed = input == kNone ? -1 : addresses.feed(input);
      if (feed >= 0) plan.feeds[feed].places.push_back({at, static_cast<int>(step.inputs.size())});
      step.inputs.push_back(input == kNone ? nullptr : addresses(input));
    }
    for (const ValueId output : laid_out.steps[at].outputs) step.outputs.push_back(addresses(output));
  }
  const auto writes = [](const Step& step) { return step.writes_any(); };
  plan.first_write = static_cast<int>(std::find_if(plan.steps.begin(), plan.steps.end(), writes) - plan.steps.begin());
  // Other processes go on from where they have met this one, and so does this one: all stop before the same step.
  const auto meets = [](const Step& step) { return step.meets_others; };
  const auto meeting = std::find_if(plan.steps.begin(), plan.steps.end(), meets);
  plan.last_stop = std::min(plan.first_write, static_cast<int>(meeting - plan.steps.begin()));
}

void bind_taps(Plan& plan, const Draft& draft, const LaidOut& laid_out, const Addresses& addresses) {
  // By origin: the step that makes it, how many want it, and its place among the outputs of that step where one tap
  // alone does.
  std::vector<int> makers(draft.value_count(), -1), wanted(draft.value_count(), 0), output_of(draft.value_count(), -1);
  for (const DraftStep& step : laid_out.steps)
    for (const ValueId input : step.inputs)
      if (input != kNone) ++wanted[laid_out.origins[input]];
  for (const Tap& tap : draft.taps()) ++wanted[laid_out.origins[laid_out.tap_source(tap.value)]];
  for (int at = 0; at < static_cast<int>(plan.steps.size()); ++at) {
    const std::vector<ValueId>& outputs = laid_out.steps[at].outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      makers[outputs[i]] = at;
      if (at >= plan.kept_steps && wanted[outputs[i]] == 1) output_of[outputs[i]] = static_cast<int>(i);
    }
  }
  for (const Tap& tap : draft.taps()) {
    const ValueId value = laid_out.tap_source(tap.value);
    const ValueId origin = laid_out.origins[value];
    plan.taps.push_back(
        {tap.token, draft.type(tap.value), makers[origin], addresses(value), addresses.feed(value), output_of[origin]});
  }
  for (size_t i = 0; i < plan.taps.size(); ++i)
    if (plan.taps[i].output < 0) plan.copied_taps.push_back(static_cast<int>(i));
  std::stable_sort(plan.copied_taps.begin(), plan.copied_taps.end(),
                   [&](int a, int b) { return plan.taps[a].after_step < plan.taps[b].after_step; });
}

}  // namespace

std::shared_ptr<Plan> compile(const Graph& traced, const std::string& job, const std::shared_ptr<Device>& device,
                              Variables& variables) {
  const DefaultFloats floats;
  auto plan = std::make_shared<Plan>(job, device);
  try {
    std::optional<Graph> mixed;
    if (traced.mixed_precision) mixed = with_mixed_precision(traced, *traced.mixed_precision, *device);
    Draft draft(mixed ? *mixed : traced);
    draft.drop_dead_nodes();
    draft.merge_equal_nodes();
    plan->merged_ops = draft.merged_ops();
    draft.rewrite(*device);
    const std::vector<NodeId> sequence = order(draft);
    place(draft, sequence, *device);
    LaidOut laid_out = lay_out(draft, sequence, *device);
    keep(draft, *device, laid_out);
    Sources sources = find_sources(*plan, draft);
    prepare_steps(*plan, draft, laid_out);
    const Storage storage = branch(*plan, draft, laid_out, sources);
    make_arena(*plan, draft, laid_out, storage);
    find_forms(*plan, draft, laid_out, sources, variables);
    declare(*plan, laid_out, sources, variables);
    const Addresses addresses{*plan, sources, storage};
    bind_steps(*plan, laid_out, addresses);
    bind_taps(*plan, draft, laid_out, addresses);
  } catch (const std::exception&) {
    Error error = current_error();
    if (error.job.empty()) error.job = job;
    throw error;
  }
  return plan;
}

}  // namespace moonflow
