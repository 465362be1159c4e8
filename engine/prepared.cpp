#include "engine/prepared.h"

#include <algorithm>

#include "engine/compile.h"

namespace moonflow {

PreparedCall::PreparedCall(const Graph& graph, const std::string& job, std::shared_ptr<Device> device, Token first,
                           Token last, const std::shared_ptr<HostMemory>& memory)
    : device_(std::move(device)) {
  device_->enter();
  plan_ = compile(graph, job, device_, variables_);
  require(plan_->written.empty(), ErrorCode::Unsupported, "a prepared call only reads variables, and ", job,
          " writes some; prepare a predict job");
  stream_ = device_->make_stream();
  publishing_stream_ = device_->make_stream();

  const auto zeroed = [&](const TensorType& type) {
    Tensor tensor = Tensor::allocate(type, memory);
    std::fill_n(tensor.data<char>(), tensor.bytes(), 0);  // touches its pages
    return tensor;
  };
  for (size_t i = 0; i < plan_->feeds.size(); ++i) {
    inputs_.push_back(zeroed(plan_->feeds[i].type));
    plan_->bind(i, inputs_.back().data());
  }
  tapped_.resize(plan_->taps.size());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < plan_->taps.size(); ++i)
    if (plan_->taps[i].token >= first && plan_->taps[i].token <= last) wanted.push_back(i);
  std::sort(wanted.begin(), wanted.end(),
            [&](size_t a, size_t b) { return plan_->taps[a].token < plan_->taps[b].token; });
  for (const size_t tap : wanted) outputs_.push_back(tapped_[tap] = zeroed(plan_->taps[tap].type));

  for (const std::string& name : variables_.names()) weights_.push_back(variables_.find(name));
  sets_.resize(TripleBuffer::kPlaces);
  for (const Variable* weight : weights_) sets_[0].push_back(weight->home->memory.data());
  for (int set = 1; set < TripleBuffer::kPlaces; ++set) {
    for (const Variable* weight : weights_) {
      spares_.emplace_back(*device_, weight->type.bytes());
      sets_[set].push_back(spares_.back().data());
    }
  }

  // Everything that points at a weight of set 0.
  const auto note = [&](const void** pointer) {
    const auto found = std::find(sets_[0].begin(), sets_[0].end(), *pointer);
    if (found != sets_[0].end()) places_.push_back({pointer, static_cast<int>(found - sets_[0].begin())});
  };
  for (Step& step : plan_->steps)
    for (void*& input : step.inputs) note(const_cast<const void**>(&input));
  for (PlannedTap& tap : plan_->taps) note(&tap.source);
}

void PreparedCall::publish(const std::function<Tensor(const Variable&)>& value) {
  const std::lock_guard<std::mutex> lock(publishing_);
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Tensor tensor = value(*weights_[i]);
    require(tensor.type() == weights_[i]->type, ErrorCode::ShapeMismatch, "variable '", weights_[i]->name, "' is ",
            weights_[i]->type, " in the prepared call of ", plan_->job, ", its new value is ", tensor.type());
    device_->copy(*publishing_stream_, sets_[turns_.writing()][i], tensor.data(), tensor.bytes());
  }
  publishing_stream_->wait();
  turns_.leave();
}

void PreparedCall::take_newest() {
  if (!turns_.take()) return;
  for (const Place& place : places_) *place.pointer = sets_[turns_.reading()][place.weight];
  plan_->forget_kept();
  generation_.fetch_add(1, std::memory_order_relaxed);
}

void PreparedCall::run() {
  device_->enter();
  take_newest();
  try {
    plan_->launch(*stream_, tapped_.data(), [] { return false; });
  } catch (Error& error) {
    error.job = plan_->job;
    throw;
  }
}

}  // namespace moonflow
