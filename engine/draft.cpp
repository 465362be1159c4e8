#include "engine/draft.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <type_traits>
#include <unordered_map>

namespace moonflow {

namespace {

// Constants of more bytes are not looked at: what it costs to compare them is not what it costs to hold them.
constexpr int64_t kMostConstantBytes = 4096;

// A number, or a list of them with its length.
template <class T>
void write(std::string& text, const T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  } else {
    write(text, value.size());
    for (const auto& item : value) write(text, item);
  }
}

// What a node gives, written out: nodes with the same text give the same bits. It is the op, its attributes bit by bit,
// since 0 is not -0, the values that it reads, and whether it is there to be computed once more; of a constant its type
// and bytes. Empty for what is like no other node: a feed, a variable, a node that writes, a large constant. Random ops
// are functions of their inputs and attributes too. `node` has the attributes of its op, and all of them, in one order.
std::string meaning(const Node& node) {
  std::string text;
  if (node.kind == Node::Constant && node.constant.bytes() <= kMostConstantBytes) {
    write(text, node.op);  // none, unlike that of an op
    write(text, node.constant.dtype());
    write(text, node.constant.shape().dims());
    text.append(static_cast<const char*>(node.constant.data()), static_cast<size_t>(node.constant.bytes()));
  } else if (node.kind == Node::Op && node.op->writes.empty()) {
    write(text, node.op);
    write(text, std::min(node.part, 0));
    for (const auto& [name, attr] : node.attrs) std::visit([&](const auto& value) { write(text, value); }, attr);
    write(text, node.inputs);
  }
  return text;
}

}  // namespace

Draft::Draft(const Graph& graph) : graph_(graph), taps_(graph.taps()) {
  for (const Node& node : graph.nodes()) nodes_.push_back(&node);
  for (const Value& value : graph.values()) {
    types_.push_back(value.type);
    makers_.push_back(value.node);
  }
  tapped_.resize(types_.size(), false);
  for (const Tap& tap : taps_) tapped_[tap.value] = true;
  live_.resize(nodes_.size(), false);
  for (NodeId id = 0; id < node_count(); ++id) ranks_.push_back(id);
}

void Draft::drop_dead_nodes() {
  for (const Tap& tap : taps_) live_[makers_[tap.value]] = true;
  for (NodeId id = node_count(); id-- > 0;) {
    const Node& node = *nodes_[id];
    if (node.kind == Node::Op && !node.op->writes.empty()) live_[id] = true;
    if (live_[id])
      for (const ValueId input : node.inputs)
        if (input != kNone) live_[makers_[input]] = true;
  }
}

// Value numbering: the order of the nodes is topological, so equal ones read equal values by the time they are met.
// Every reader of a variable reads its old value, so nothing depends on where in the graph it stands.
void Draft::merge_equal_nodes() {
  std::unordered_map<std::string, NodeId> firsts;  // by meaning
  std::vector<ValueId> instead(types_.size());
  std::iota(instead.begin(), instead.end(), 0);
  for (NodeId id = 0; id < node_count(); ++id) {
    if (!live_[id]) continue;
    take_instead(id, instead);
    std::string text = meaning(node(id));
    if (text.empty()) continue;
    const auto [first, is_new] = firsts.emplace(std::move(text), id);
    if (is_new) continue;
    live_[id] = false;
    merged_ops_ += node(id).kind == Node::Op ? 1 : 0;
    for (size_t i = 0; i < node(id).outputs.size(); ++i) instead[node(id).outputs[i]] = node(first->second).outputs[i];
  }
  for (Tap& tap : taps_) {
    tap.value = instead[tap.value];
    tapped_[tap.value] = true;
  }
}

// Lets the node read other values.
void Draft::take_instead(NodeId id, const std::vector<ValueId>& instead) {
  const auto other = [&](ValueId value) { return value != kNone && instead[value] != value; };
  if (std::none_of(node(id).inputs.begin(), node(id).inputs.end(), other)) return;
  Node& own = own_nodes_.emplace_back(node(id));
  for (ValueId& input : own.inputs)
    if (input != kNone) input = instead[input];
  nodes_[id] = &own;
}

void Draft::rewrite(const Device& device) {
  readers_.resize(types_.size());
  live_reads_.resize(types_.size(), 0);
  for (NodeId id = 0; id < node_count(); ++id)
    if (live_[id]) add_reader(id);
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
        const bool applied = rewrite.apply(*this, id);
        remove_unread();
        if (applied) break;
      }
    }
  }
}

NodeId Draft::made_by(ValueId value, std::string_view op) const {
  if (value == kNone) return kNone;
  const Node& maker = *nodes_[makers_[value]];
  return maker.kind == Node::Op && maker.op->name == op ? makers_[value] : kNone;
}

NodeId Draft::sole_reader(ValueId value) const {
  return !tapped_[value] && live_reads_[value] == 1 ? readers(value)[0] : kNone;
}

const std::vector<NodeId>& Draft::readers(ValueId value) const {
  std::vector<NodeId>& readers = readers_[value];
  if (readers.size() != live_reads_[value])
    readers.erase(std::remove_if(readers.begin(), readers.end(), [&](NodeId id) { return !live_[id]; }), readers.end());
  return readers;
}

void Draft::fuse(const std::vector<NodeId>& old, std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs,
                 const std::vector<ValueId>& outputs) {
  assert(std::count(applying_->makes.begin(), applying_->makes.end(), op_name) == 1);
  const OpDef& op = graph_.catalog().at(op_name);
  Node& fused = own_nodes_.emplace_back();
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
    fused.part = later_repeated(fused.part, node(id).part);
    remove(id);
  }
  for (const ValueId input : fused.inputs)
    if (input != kNone) fused.part = later_repeated(fused.part, node(maker(input)).part);
  add_reader(append(fused, rank));
  for (const NodeId gone : old)
    lost_readers_.insert(lost_readers_.end(), node(gone).inputs.begin(), node(gone).inputs.end());
}

// The engine knows no op that copies, but one that gives a value a dtype: here that which it has.
void Draft::copy_input(NodeId id, size_t input) {
  Node& copy = own_nodes_.emplace_back();
  Node& reader = own_nodes_.emplace_back(node(id));
  const ValueId value = reader.inputs[input];
  const TensorType own = type(value);
  copy.op = &graph_.catalog().at(graph_.catalog().cast_op);
  copy.name = reader.name;
  copy.site = reader.site;
  copy.attrs = complete(*copy.op, {{"dtype", own.dtype}});
  copy.inputs = {value};
  copy.outputs = {add_value(own, kNone)};
  append(copy, rank(id));
  reader.inputs[input] = copy.outputs[0];
  nodes_[id] = &reader;
}

// `node` is one of own_nodes_.
NodeId Draft::append(const Node& node, int rank) {
  const NodeId id = node_count();
  nodes_.push_back(&node);
  live_.push_back(true);
  ranks_.push_back(rank);
  for (const ValueId output : node.outputs) makers_[output] = id;
  return id;
}

ValueId Draft::root(ValueId value) const {
  for (;;) {
    const Node& node = *nodes_[makers_[value]];
    if (node.kind != Node::Op || node.op->alias.empty()) return value;
    value = node.inputs[node.op->alias[0].input];
  }
}

std::vector<bool> Draft::variables_only_read() const {
  std::vector<bool> only_read(value_count(), false);
  for (NodeId id = 0; id < node_count(); ++id)
    if (node(id).kind == Node::Variable) only_read[node(id).outputs[0]] = true;
  for (NodeId id = 0; id < node_count(); ++id) {
    const Node& reader = node(id);
    if (!live(id) || reader.kind != Node::Op) continue;
    for (size_t i = 0; i < reader.inputs.size(); ++i)
      if (reader.inputs[i] != kNone && reader.op->updates(i)) only_read[root(reader.inputs[i])] = false;
  }
  return only_read;
}

std::vector<TensorType> Draft::types(const std::vector<ValueId>& values) const {
  std::vector<TensorType> types;
  for (const ValueId value : values) types.push_back(value == kNone ? TensorType{} : type(value));
  return types;
}

ValueId Draft::add_value(const TensorType& type, NodeId maker) {
  types_.push_back(type);
  makers_.push_back(maker);
  tapped_.push_back(false);
  readers_.emplace_back();
  live_reads_.push_back(0);
  return value_count() - 1;
}

void Draft::forget_values(ValueId first) {
  types_.resize(first);
  makers_.resize(first);
  tapped_.resize(first);
  readers_.resize(first);
  live_reads_.resize(first);
}

void Draft::add_reader(NodeId id) {
  for (const ValueId input : nodes_[id]->inputs) {
    if (input == kNone) continue;
    readers_[input].push_back(id);
    ++live_reads_[input];
  }
}

void Draft::remove(NodeId id) {
  live_[id] = false;
  for (const ValueId input : nodes_[id]->inputs)
    if (input != kNone) --live_reads_[input];
}

// What made values that nobody wants any more goes, and so does what that alone has read.
void Draft::remove_unread() {
  while (!lost_readers_.empty()) {
    const ValueId value = lost_readers_.back();
    lost_readers_.pop_back();
    if (value == kNone) continue;
    const NodeId id = makers_[value];
    const Node& maker = *nodes_[id];
    const auto is_wanted = [&](ValueId output) { return tapped_[output] || live_reads_[output] > 0; };
    if (!live_[id] || maker.kind != Node::Op || !maker.op->writes.empty()) continue;
    if (std::any_of(maker.outputs.begin(), maker.outputs.end(), is_wanted)) continue;
    remove(id);
    lost_readers_.insert(lost_readers_.end(), maker.inputs.begin(), maker.inputs.end());
  }
}

std::vector<bool> presence(const std::vector<ValueId>& values) {
  std::vector<bool> present;
  for (const ValueId value : values) present.push_back(value != kNone);
  return present;
}

}  // namespace moonflow
