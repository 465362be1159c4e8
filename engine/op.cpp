#include "engine/op.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/graph.h"

namespace moonflow {

namespace {

constexpr const char* kAttrTypes[] = {"bool", "int", "float", "string", "dtype", "list of ints", "list of floats"};
static_assert(std::variant_size_v<AttrValue> == std::size(kAttrTypes));

template <class T>
std::string list(const std::vector<T>& values) {
  std::string line = "{";
  for (size_t i = 0; i < values.size(); ++i) line += (i ? ", " : "") + text(values[i]);
  return line + "}";
}

std::string in_small_letters(std::string_view word) {
  std::string letters(word);
  for (char& c : letters)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return letters;
}

// How many letters are put in, left out, changed or swapped between two words.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last.back();
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

bool alike(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* number = std::get_if<double>(&a)) return same_bits(*number, std::get<double>(b));
  if (const auto* numbers = std::get_if<Floats>(&a)) {
    const auto& others = std::get<Floats>(b);
    return std::equal(numbers->begin(), numbers->end(), others.begin(), others.end(), same_bits);
  }
  return a == b;
}

}  // namespace

std::string str(const AttrValue& value) {
  struct {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(const std::string& words) const { return "'" + words + "'"; }
    std::string operator()(const Ints& values) const { return list(values); }
    std::string operator()(const Floats& values) const { return list(values); }
    std::string operator()(int64_t number) const { return text(number); }
    std::string operator()(double number) const { return text(number); }
    std::string operator()(DType dtype) const { return name(dtype); }
  } write;
  return std::visit(write, value);
}

Attrs::Attrs(std::initializer_list<std::pair<const std::string, AttrValue>> values) : values_(values) {}

void Attrs::set(std::string name, AttrValue value) { values_[std::move(name)] = std::move(value); }

bool operator==(const Attrs& a, const Attrs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.first == other.first && alike(one.second, other.second);
  });
}

const AttrValue* Attrs::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

const AttrValue& Attrs::at(std::string_view name) const {
  const AttrValue* value = find(name);
  require(value != nullptr, ErrorCode::NotFound, "no attribute '", name, "'");
  return *value;
}

const AttrDef* OpDef::attr(std::string_view name) const {
  for (const AttrDef& def : attrs)
    if (def.name == name) return &def;
  return nullptr;
}

bool OpDef::updates(size_t place) const {
  return !writes.empty() &&
         std::find(writes.begin(), writes.end(), static_cast<int>(place % inputs.size())) != writes.end();
}

void fit_inputs(const OpDef& op, std::vector<ValueId>& inputs) {
  const size_t group = op.inputs.size();
  if (group > 0 && op.inputs[0].kind == InputDef::Many) {
    require(!inputs.empty(), ErrorCode::InvalidArgument, "needs at least one value in '", op.inputs[0].name, "'");
    // A single group may leave out what comes last.
    for (size_t i = inputs.size(); i < group && op.inputs[i].kind == InputDef::Optional; ++i)
      inputs.resize(i + 1, kNone);
    require(inputs.size() % group == 0, ErrorCode::InvalidArgument, "takes groups of ", group, " values, got ",
            inputs.size(), " values");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const InputDef& def = op.inputs[i % group];
      require(inputs[i] != kNone || def.kind == InputDef::Optional, ErrorCode::InvalidArgument, "'", def.name,
              "' holds a value that is left out");
    }
    return;
  }
  require(inputs.size() <= op.inputs.size(), ErrorCode::InvalidArgument, "takes ", op.inputs.size(), " values, got ",
          inputs.size());
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const bool given = i < inputs.size() && inputs[i] != kNone;
    require(given || op.inputs[i].kind == InputDef::Optional, ErrorCode::InvalidArgument, "misses its input '",
            op.inputs[i].name, "'");
  }
  inputs.resize(op.inputs.size(), kNone);
}

std::vector<TensorType> infer(const OpDef& op, const OpCall& call) {
  std::vector<TensorType> types = op.infer(call);
  for (const TensorType& type : types) check_size(type);
  return types;
}

Attrs complete(const OpDef& op, Attrs given) {
  for (const auto& [name, value] : given) {
    const AttrDef* def = op.attr(name);
    if (!def) {
      std::vector<std::string> names;
      for (const AttrDef& known : op.attrs) names.push_back(known.name);
      fail(ErrorCode::InvalidArgument, op.name, " has no option '", name, "'", did_you_mean(name, names));
    }
    if (value.index() != def->fallback.index()) {
      fail(ErrorCode::InvalidArgument, "option '", name, "' of ", op.name, " is ", str(value), ", a ",
           kAttrTypes[value.index()], "; it wants a ", kAttrTypes[def->fallback.index()]);
    }
  }
  for (const AttrDef& def : op.attrs) {
    if (given.find(def.name)) continue;
    require(!def.required, ErrorCode::InvalidArgument, op.name, " needs the option '", def.name, "'");
    given.set(def.name, def.fallback);
  }
  return given;
}

ValueId GradCall::op(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  return ops(op, std::move(inputs), std::move(attrs)).at(0);
}

std::vector<ValueId> GradCall::ops(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  return graph.append(op, std::move(inputs), std::move(attrs), name + "_" + std::string(op), site);
}

TensorType GradCall::type(ValueId value) const { return graph.type(value); }

void Catalog::add(OpDef op) {
  const std::string name = op.name;
  // Writers come last in a plan, so nobody may wait for a value of theirs.
  require(op.writes.empty() || op.outputs.empty(), ErrorCode::InvalidArgument, "op '", name,
          "' writes a variable and has outputs; make the write an op of its own");
  const bool is_new = ops_.emplace(name, std::move(op)).second;
  require(is_new, ErrorCode::InvalidArgument, "op '", name, "' is in the catalog twice");
}

void Catalog::revise(const std::function<void(OpDef&)>& change) {
  for (auto& [name, op] : ops_) change(op);
}

const OpDef* Catalog::find(std::string_view name) const {
  const auto found = ops_.find(name);
  return found == ops_.end() ? nullptr : &found->second;
}

const OpDef& Catalog::at(std::string_view name) const {
  if (const OpDef* op = find(name)) return *op;
  std::vector<std::string> names;
  for (const auto& [known, op] : ops_) names.push_back(known);
  fail(ErrorCode::NotFound, "there is no op '", name, "'", did_you_mean(name, names));
}

const std::string* nearest(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 100;  // looking at more would take long
  if (name.size() > kLongest) return nullptr;
  const std::string wanted = in_small_letters(name);
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(wanted, in_small_letters(candidate));
    const size_t shorter = std::min(name.size(), candidate.size());
    if (shorter >= 3 && name.substr(0, shorter) == std::string_view(candidate).substr(0, shorter))
      distance = std::min<size_t>(distance, 2);
    const bool is_near =
        distance <= std::max<size_t>(2, candidate.size() / 3) && 2 * distance < std::max(name.size(), candidate.size());
    if (!is_near || (best != nullptr && distance >= best_distance)) continue;
    best = &candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string* const near = nearest(name, candidates);
  return near == nullptr ? "" : "; did you mean '" + *near + "'?";
}

}  // namespace moonflow
