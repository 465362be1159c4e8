#include "engine/session.h"

#include <algorithm>

#include "engine/compile.h"
#include "engine/process_end.h"

namespace moonflow {

Session::Session(std::shared_ptr<const Catalog> catalog, std::shared_ptr<Device> device,
                 std::shared_ptr<HostMemory> memory, InterruptFlag interrupted, OpenGpu open_gpu)
    : catalog_(std::move(catalog)),
      device_(std::move(device)),
      open_gpu_(std::move(open_gpu)),
      memory_(memory ? std::move(memory) : std::make_shared<HostMemory>()),
      evaluator_(device_),
      executor_(completions_, std::move(interrupted)) {}

Session::~Session() { close(); }

namespace {

// A weak pointer keeps the memory of what it points at.
template <class T>
void drop_expired(std::vector<std::weak_ptr<T>>& list) {
  const auto gone = [](const std::weak_ptr<T>& held) { return held.expired(); };
  list.erase(std::remove_if(list.begin(), list.end(), gone), list.end());
}

}  // namespace

const std::shared_ptr<Device>& Session::gpu(int index) {
  require(static_cast<bool>(open_gpu_), ErrorCode::Unsupported, "this session has no gpu");
  std::shared_ptr<Device>& gpu = gpus_[index];
  if (!gpu) gpu = open_gpu_(index);
  return gpu;
}

std::shared_ptr<Plan> Session::compile(const Graph& graph, const std::string& job, std::shared_ptr<Device> device) {
  const Stay stay;
  stay.require_in_time();
  if (!device) device = device_;
  device->enter();
  std::shared_ptr<Plan> plan = moonflow::compile(graph, job, device, variables_);
  plan->counted = LiveBytes(memory_, plan->bytes());
  drop_expired(plans_);
  plans_.push_back(plan);
  return plan;
}

void Session::forget_variables(const std::vector<std::string>& names) {
  executor_.wait_idle();
  for (const std::weak_ptr<Plan>& held : plans_) {
    const std::shared_ptr<Plan> plan = held.lock();
    if (!plan) continue;
    const auto is_used = [&](const std::string& name) {
      return std::any_of(plan->variables.begin(), plan->variables.end(),
                         [&](const PlannedVariable& use) { return use.variable->name == name; });
    };
    const auto first = std::find_if(names.begin(), names.end(), is_used);
    if (first != names.end()) plan->forget_variables(*first);
  }
  variables_.forget(names);
}

std::shared_ptr<PreparedCall> Session::prepare(const Graph& graph, const std::string& job,
                                               std::shared_ptr<Device> device, Token first, Token last,
                                               std::vector<Counter> counters) {
  require(!closed_, ErrorCode::WrongState, "the session of ", job, " is closed");
  const Stay stay;
  stay.require_in_time();
  auto call = std::make_shared<PreparedCall>(graph, job, std::move(device), first, last, std::move(counters), memory_);
  executor_.wait_idle();
  call->begin([this](const Variable& state) { return read(state.name); });
  publish(call);
  call->attach(profile());
  drop_expired(prepared_);
  prepared_.push_back(call);
  return call;
}

bool Session::hand_weights(const std::shared_ptr<PreparedCall>& call) {
  std::vector<const Variable*> sources;
  for (const Variable* weight : call->weights()) {
    const Variable* const source = variables_.find(weight->name);
    if (!source || source->type != weight->type) return false;  // another one may have its name by now
    sources.push_back(source);
  }
  executor_.in_turn([call, sources = std::move(sources)] {
    size_t next = 0;
    call->publish([&](const Variable& weight) {
      const Tensor value = Tensor::allocate(weight.type);
      sources[next++]->read(value.data());
      return value;
    });
  });
  return true;
}

void Session::publish(const std::shared_ptr<PreparedCall>& call) {
  require(hand_weights(call), ErrorCode::WrongState,
          "a variable that the prepared call takes weights from has been forgotten; prepare it again");
}

int Session::publish() {
  drop_expired(prepared_);
  int count = 0;
  for (const std::weak_ptr<PreparedCall>& held : prepared_) {
    const std::shared_ptr<PreparedCall> call = held.lock();
    if (call && hand_weights(call)) ++count;  // unless closed by another thread meanwhile
  }
  return count;
}

std::shared_ptr<Profile> Session::attach(std::shared_ptr<Profile> profile) {
  for (const std::weak_ptr<PreparedCall>& held : prepared_)
    if (const std::shared_ptr<PreparedCall> call = held.lock()) call->attach(profile);
  return executor_.attach(std::move(profile));
}

RunId Session::submit(const std::shared_ptr<Plan>& plan, Executor::Submission submission) {
  if (!submission.memory) submission.memory = memory_;
  return executor_.submit(plan, std::move(submission));
}

void Session::pop() {
  const bool end = completions_.front()->end;
  completions_.pop();
  if (end) executor_.pulled_end();
}

std::optional<Completion> Session::pull() {
  Completion* const next = front();
  if (next == nullptr) return std::nullopt;
  std::optional<Completion> completion = std::move(*next);
  pop();
  return completion;
}

Tensor Session::read(const std::string& name) {
  const Variable& variable = variables_.at(name);
  executor_.wait_idle();
  Tensor value = Tensor::allocate(variable.type, memory_);
  variable.read(value.data());
  return value;
}

void Session::write(const std::string& name, const Tensor& value) {
  Variable& variable = variables_.at(name);
  require(value.type() == variable.type, ErrorCode::ShapeMismatch, "variable '", name, "' is ", variable.type,
          ", the value is ", value.type());
  executor_.wait_idle();
  variable.write(value.data());
}

void Session::evaluate(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                       std::vector<Tensor>& outputs) {
  evaluator_.evaluate(op, inputs, attrs, memory_, outputs);
}

std::vector<Tensor> Session::evaluate(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs) {
  std::vector<Tensor> outputs;
  evaluate(catalog_->at(op), inputs, attrs, outputs);
  return outputs;
}

void Session::close() {
  closed_ = true;
  executor_.close();
}

}  // namespace moonflow
