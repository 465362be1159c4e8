#include "engine/variable.h"

#include <algorithm>
#include <unordered_set>

#include "engine/op.h"
#include "engine/process_end.h"

namespace moonflow {

namespace {

// Where a variable cannot be had, it is the variable that somebody misses and not the copy.
template <class Work>
void moving(const Variable& variable, const Device& home, Work&& work) {
  try {
    work();
  } catch (const std::exception&) {
    const Error cause = current_error();
    fail(cause.code, "variable '", variable.name, "', last written on the ", name(home.kind()),
         ", cannot be moved: ", cause.what());
  }
}

// By the device and the stream of a copy, and waits for it. Where the process ends, a device that computes beside the
// host may be in the middle of a run that nobody waits for any more, or be gone.
void copy_by(const Variable::Copy& copy, void* to, const void* from, int64_t bytes) {
  const Stay stay;
  if (copy.device.asynchronous()) stay.require_in_time();
  copy.device.enter();
  copy.device.copy(copy.stream, to, from, bytes);
  copy.stream.wait();
}

}  // namespace

std::shared_ptr<Variable::Form> Variable::Copy::find_form(const TensorType& as, const Layout& layout) const {
  for (const std::weak_ptr<Form>& each : forms)
    if (std::shared_ptr<Form> form = each.lock(); form && form->type == as && form->layout == layout) return form;
  return nullptr;
}

void Variable::Copy::add_form(const std::shared_ptr<Form>& form) {
  const auto is_gone = [](const std::weak_ptr<Form>& each) { return each.expired(); };
  forms.erase(std::remove_if(forms.begin(), forms.end(), is_gone), forms.end());
  if (find_form(form->type, form->layout) != form) forms.push_back(form);
}

Variable::Copy* Variable::on(const Device& device) const {
  for (const std::unique_ptr<Copy>& copy : copies)
    if (&copy->device == &device) return copy.get();
  return nullptr;
}

void Variable::refresh(Copy& copy) const {
  if (copy.version == version) return;
  const int64_t bytes = type.bytes();
  moving(*this, home->device, [&] {
    if (!home->device.asynchronous()) {
      copy_by(copy, copy.memory.data(), home->memory.data(), bytes);
    } else if (!copy.device.asynchronous()) {
      copy_by(*home, copy.memory.data(), home->memory.data(), bytes);
    } else {
      const Tensor between = Tensor::allocate(type);
      copy_by(*home, between.data(), home->memory.data(), bytes);
      copy_by(copy, copy.memory.data(), between.data(), bytes);
    }
  });
  copy.version = version;
}

void Variable::read(void* to) const {
  moving(*this, home->device, [&] { copy_by(*home, to, home->memory.data(), type.bytes()); });
}

// Where the host has a copy it goes there, and no further until somebody wants it.
void Variable::write(const void* from) {
  Copy* to = home;
  for (const std::unique_ptr<Copy>& copy : copies)
    if (!copy->device.asynchronous()) to = copy.get();
  copy_by(*to, to->memory.data(), from, type.bytes());
  note_write(*to);
}

std::vector<Variable*> Variables::declare(const std::vector<Wanted>& wanted, Device& device) {
  for (const Wanted& each : wanted) expect(each.name, each.type);
  std::unique_ptr<Stream>& stream = streams_[&device];
  if (!stream) stream = device.make_stream();
  // Whatever may fail comes first: new variables are made apart, and the others have room for a copy.
  decltype(variables_) made;
  std::vector<std::pair<Variable*, std::unique_ptr<Variable::Copy>>> copies;
  std::vector<Variable*> declared;
  std::unordered_set<Variable*> seen;
  for (const Wanted& each : wanted) {
    Variable* variable = find(each.name);
    if (!variable) {
      std::unique_ptr<Variable>& place = made[each.name];
      if (!place) {
        place = std::make_unique<Variable>();
        place->name = each.name;
        place->type = each.type;
      }
      variable = place.get();
    }
    const bool has_copy = variable->on(device) != nullptr;
    const bool repeated = !seen.insert(variable).second;
    declared.push_back(variable);
    if (has_copy || repeated) continue;
    variable->copies.reserve(variable->copies.size() + 1);
    const std::string label = text("variable '", each.name, "', ", each.type);
    copies.emplace_back(
        variable, blaming(label, {}, [&] {
          return std::make_unique<Variable::Copy>(Variable::Copy{device, *stream, Buffer(device, each.type.bytes())});
        }));
  }
  for (auto& [variable, copy] : copies) {
    // Its home, which a run may be changing, is not asked.
    if (variable->copies.empty())
      variable->home = copy.get();
    else
      have_copies_ = true;
    variable->copies.push_back(std::move(copy));
  }
  if (!made.empty()) ++changes_;
  variables_.merge(made);
  return declared;
}

void Variables::forget(const std::vector<std::string>& names) {
  for (const std::string& name : names) variables_.erase(name);
  ++changes_;
}

void Variables::expect(const std::string& name, const TensorType& type) {
  const Variable* const known = find(name);
  require(!known || known->type == type, ErrorCode::ShapeMismatch, "variable '", name, "' is ",
          known ? known->type : type, " in this session, asked for as ", type);
}

Variable* Variables::find(const std::string& name) {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : found->second.get();
}

Variable& Variables::at(const std::string& name) {
  if (Variable* known = find(name)) return *known;
  fail(ErrorCode::NotFound, "there is no variable '", name, "'", did_you_mean(name, names()));
}

int64_t Variables::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, variable] : variables_) {
    for (const auto& copy : variable->copies) {
      bytes += copy->memory.bytes();
      for (const std::weak_ptr<Variable::Form>& each : copy->forms)
        if (const std::shared_ptr<Variable::Form> form = each.lock()) bytes += form->memory.bytes();
    }
  }
  return bytes;
}

std::vector<std::string> Variables::names() const {
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables_) names.push_back(name);
  return names;
}

std::vector<std::string> Variables::without_value() const {
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables_)
    if (!variable->initialised()) names.push_back(name);
  return names;
}

}  // namespace moonflow
