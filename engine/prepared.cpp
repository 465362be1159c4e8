#include "engine/prepared.h"

#include <algorithm>

#include "engine/compile.h"
#include "engine/default_floats.h"
#include "engine/overlap.h"
#include "engine/process_end.h"

namespace moonflow {

namespace {

void require_counter(const PlannedFeed& feed) {
  const TensorType scalar{DType::Int64, {}};
  require(feed.type == scalar, ErrorCode::ShapeMismatch, "a prepared call counts in ", scalar, ", and the feed '",
          feed.name, "' is ", feed.type);
}

}  // namespace

PreparedCall::PreparedCall(const Graph& graph, const std::string& job, std::shared_ptr<Device> device, Token first,
                           Token last, std::vector<Counter> counters, const std::shared_ptr<HostMemory>& memory)
    : device_(std::move(device)), counters_(std::move(counters)) {
  device_->enter();
  plan_ = compile(graph, job, device_, variables_);
  stream_ = device_->make_stream();
  publishing_stream_ = device_->make_stream();

  require(counters_.size() <= plan_->feeds.size(), ErrorCode::InvalidArgument, "there are ", plan_->feeds.size(),
          " feeds, and ", counters_.size(), " counters");
  const size_t input_count = plan_->feeds.size() - counters_.size();
  for (size_t i = 0; i < plan_->feeds.size(); ++i) {
    if (i >= input_count) require_counter(plan_->feeds[i]);
    std::vector<Tensor>& feeds = i < input_count ? inputs_ : counted_feeds_;
    feeds.push_back(Tensor::zeros(plan_->feeds[i].type, memory));  // touches its pages
    plan_->bind(i, feeds.back().data());
  }
  for (size_t i = 0; i < plan_->taps.size(); ++i)
    if (plan_->taps[i].token >= first && plan_->taps[i].token <= last) output_taps_.push_back(i);
  std::sort(output_taps_.begin(), output_taps_.end(),
            [&](size_t a, size_t b) { return plan_->taps[a].token < plan_->taps[b].token; });
  for (const size_t tap : output_taps_) {
    outputs_.push_back(Tensor::zeros(plan_->taps[tap].type, memory));
    plan_->bind_tap(tap, outputs_.back().data());
  }

  for (const std::string& name : variables_.names()) {
    const Variable* const variable = variables_.find(name);
    const auto is_it = [&](const PlannedVariable& use) { return use.variable == variable; };
    const bool is_state = std::any_of(plan_->written.begin(), plan_->written.end(), is_it);
    (is_state ? states_ : weights_).push_back(variable);
    if (is_state) first_states_.emplace_back(*device_, std::max<int64_t>(variable->type.bytes(), 1));
  }
  find_values();
  note_places();
  make_sets();
  plan_->give_away_kept();

  int64_t bytes = plan_->arena_bytes + kept_scratch_.bytes();
  for (const Variable* weight : weights_) bytes += weight->type.bytes();
  for (const Variable* state : states_) bytes += 2 * state->type.bytes();
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes();
  counted_ = LiveBytes(memory, bytes);
}

int PreparedCall::find(const void* planned) const {
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i].planned == planned) return static_cast<int>(i);
  return -1;
}

// Kept values may have had one place in the plan after each other, as large as the largest.
void PreparedCall::find_values() {
  for (const Variable* weight : weights_) values_.push_back({weight->home->memory.data(), weight->type.bytes()});
  for (int at = 0; at < plan_->kept_steps; ++at) {
    const Step& step = plan_->steps[at];
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      const int64_t bytes = step.output_layouts[i].bytes_of(step.output_types[i]);
      const int known = find(step.outputs[i]);
      if (known < 0)
        values_.push_back({step.outputs[i], bytes});
      else if (known >= static_cast<int>(weights_.size()))
        values_[known].bytes = std::max(values_[known].bytes, bytes);
    }
  }
}

// Nothing of them is in the arena, where a run may be while the next set is made. What only kept steps read, as a
// weight in rows that runs read in another layout, is there for one publisher at a time, so all sets have one of it.
void PreparedCall::make_sets() {
  std::vector<bool> of_each(values_.size(), false);
  for (const Place& place : places_) of_each[place.value] = true;
  int64_t scratch = 0;
  for (int at = 0; at < plan_->kept_steps; ++at) scratch = std::max(scratch, plan_->steps[at].scratch_bytes);
  kept_scratch_ = Buffer(*device_, std::max<int64_t>(scratch, 1));
  sets_.resize(TripleBuffer::kPlaces);
  kept_.resize(TripleBuffer::kPlaces);
  for (int set = 0; set < TripleBuffer::kPlaces; ++set) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (set == 0 && i < weights_.size()) {
        sets_[set].push_back(values_[i].planned);
      } else if (set > 0 && !of_each[i]) {
        sets_[set].push_back(sets_[0][i]);
      } else {
        buffers_.emplace_back(*device_, std::max<int64_t>(values_[i].bytes, 1));
        sets_[set].push_back(buffers_.back().data());
      }
    }
    const auto moved = [&](std::vector<void*> planned) {
      for (void*& place : planned)
        if (const int value = place ? find(place) : -1; value >= 0) place = sets_[set][value];
      return planned;
    };
    for (int at = 0; at < plan_->kept_steps; ++at)
      kept_[set].push_back({moved(plan_->steps[at].inputs), moved(plan_->steps[at].outputs)});
  }
}

// Everything in a run that points at a value of the sets. What only kept steps read may have given its place in the
// arena to what a run makes.
void PreparedCall::note_places() {
  std::vector<bool> given_away(values_.size(), false);
  const size_t first = static_cast<size_t>(plan_->kept_steps);
  for (size_t at = first; at < plan_->steps.size(); ++at) {
    const std::vector<void*>& inputs = plan_->steps[at].inputs;
    for (void* const output : plan_->steps[at].outputs) {
      const bool alias = std::find(inputs.begin(), inputs.end(), output) != inputs.end();
      if (const int value = find(output); value >= 0 && !alias) given_away[value] = true;
    }
  }
  const auto note = [&](const void** pointer) {
    const int value = *pointer ? find(*pointer) : -1;
    if (value >= 0 && !given_away[value]) places_.push_back({pointer, value});
  };
  for (size_t at = first; at < plan_->steps.size(); ++at)
    for (void*& input : plan_->steps[at].inputs) note(const_cast<const void**>(&input));
  for (PlannedTap& tap : plan_->taps) note(&tap.source);
}

template <class Work>
void PreparedCall::naming_job(const Work& work) {
  try {
    work();
  } catch (Error& error) {
    error.job = plan_->job;
    throw;
  }
}

// ---- memory of somebody else -------------------------------------------------------------------------------------

// A run may write an output before it has read all of an input.
void PreparedCall::require_free(const void* data, const TensorType& type, const char* what, size_t index,
                                bool is_output) const {
  require(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(type.dtype)) == 0,
          ErrorCode::InvalidArgument, what, " ", index, " is bound to memory that is not aligned for ", type.dtype);
  const auto overlaps = [&](const void* other, const TensorType& other_type) {
    return overlap({data, type.bytes()}, {other, other_type.bytes()});
  };
  for (size_t i = 0; i < inputs_.size() && is_output; ++i)
    require(!overlaps(plan_->feeds[i].data, inputs_[i].type()), ErrorCode::InvalidArgument, what, " ", index,
            " is bound to memory that input ", i,
            " is read from; a run may write the one before it has read the other");
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (!is_output || i != index)
      require(!overlaps(plan_->taps[output_taps_[i]].data, outputs_[i].type()), ErrorCode::InvalidArgument, what, " ",
              index, " is bound to memory that output ", i, " is written to");
}

void PreparedCall::bind_input(size_t index, void* data) {
  if (data) require_free(data, inputs_[index].type(), "input", index, false);
  plan_->bind(index, data ? data : inputs_[index].data());
}

void PreparedCall::bind_output(size_t index, void* data) {
  if (data) require_free(data, outputs_[index].type(), "output", index, true);
  plan_->bind_tap(output_taps_[index], data ? data : outputs_[index].data());
}

// ---- running -----------------------------------------------------------------------------------------------------

void PreparedCall::begin(const std::function<Tensor(const Variable&)>& value) {
  for (size_t i = 0; i < states_.size(); ++i) {
    const Tensor tensor = value(*states_[i]);
    device_->copy(*stream_, first_states_[i].data(), tensor.data(), tensor.bytes());
    stream_->wait();
  }
  reset();
}

void PreparedCall::reset() {
  const Stay stay;
  stay.require_in_time();
  device_->enter();
  for (size_t i = 0; i < states_.size(); ++i)
    device_->copy(*stream_, states_[i]->home->memory.data(), first_states_[i].data(), states_[i]->type.bytes());
  stream_->wait();
}

void PreparedCall::publish(const std::function<Tensor(const Variable&)>& value) {
  const Stay stay;
  stay.require_in_time();
  const std::lock_guard<std::mutex> lock(publishing_);
  const int set = turns_.writing();
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Tensor tensor = value(*weights_[i]);
    require(tensor.type() == weights_[i]->type, ErrorCode::ShapeMismatch, "variable '", weights_[i]->name, "' is ",
            weights_[i]->type, " in the prepared call of ", plan_->job, ", its new value is ", tensor.type());
    device_->copy(*publishing_stream_, sets_[set][i], tensor.data(), tensor.bytes());
  }
  const DefaultFloats floats;
  if (!kept_[set].empty()) device_->enter();
  naming_job([&] {
    for (size_t at = 0; at < kept_[set].size(); ++at)
      plan_->launch_step(static_cast<int>(at), *publishing_stream_, kept_[set][at].inputs.data(),
                         kept_[set][at].outputs.data(), kept_scratch_.data());
    publishing_stream_->wait();
  });
  turns_.leave();
}

void PreparedCall::take_newest() {
  if (!turns_.take()) return;
  for (const Place& place : places_) *place.pointer = sets_[turns_.reading()][place.value];
  generation_.fetch_add(1, std::memory_order_relaxed);
}

void PreparedCall::attach(std::shared_ptr<Profile> profile) {
  const std::lock_guard<std::mutex> lock(attaching_);
  profile_ = std::move(profile);
  is_profiled_.store(profile_ != nullptr, std::memory_order_release);
}

std::shared_ptr<Profile> PreparedCall::attached() {
  if (!is_profiled_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard<std::mutex> lock(attaching_);
  return profile_;
}

void PreparedCall::count() {
  for (size_t i = 0; i < counters_.size(); ++i) {
    *counted_feeds_[i].data<int64_t>() = counters_[i].next;
    counters_[i].next += counters_[i].step;
  }
}

void PreparedCall::run() {
  const Stay stay;
  stay.require_in_time();
  const DefaultFloats floats;
  interrupted_.store(false, std::memory_order_relaxed);  // it was meant for a run that has ended
  device_->enter();
  take_newest();
  count();
  const std::shared_ptr<Profile> profile = attached();
  const auto stopped = [&] { return interrupted_.load(std::memory_order_relaxed); };
  naming_job([&] { plan_->launch(*stream_, nullptr, stopped, profile.get()); });
  if (!exit_waits_) exit_waits_ = exit_waits_from_here();
}

}  // namespace moonflow
