#include "engine/slot.h"

#include <algorithm>
#include <cstring>

namespace moonflow {

namespace {

constexpr int64_t kFaultBytes = aligned(sizeof(Fault));

bool may_fault(const Step& step) { return static_cast<bool>(step.explain); }

// Tells a device that checks the order of its work what the launch that follows touches.
void tell_ranges(Stream& stream, const Step& step, void* const* outputs) {
  std::vector<Range> reads, writes;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    if (step.inputs[i] == nullptr) continue;
    const Range range{step.inputs[i], step.input_layouts[i].bytes_of(step.input_types[i])};
    reads.push_back(range);
    if (step.writes_input(i)) writes.push_back(range);
  }
  for (size_t i = 0; i < step.outputs.size(); ++i)
    writes.push_back({outputs[i], step.output_layouts[i].bytes_of(step.output_types[i])});
  if (step.scratch_bytes > 0) writes.push_back({step.scratch, step.scratch_bytes});
  if (may_fault(step)) writes.push_back(stream.fault_note());
  if (step.writes_any()) reads.push_back(stream.fault_note());
  stream.touches(reads, writes);
}

// When something has failed already, and the first error says how.
template <class Work>
void settle(const Work& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace

Lanes::Lanes(Device& device) : steps(device.make_stream()) {
  if (!device.asynchronous()) return;
  in = device.make_stream();
  out = device.make_stream();
  for (int branch = 1; branch < device.branches(); ++branch) branches.push_back(device.make_branch(*steps));
}

std::vector<Stream*> Lanes::all() const {
  std::vector<Stream*> streams{in.get(), steps.get(), out.get()};
  for (const std::unique_ptr<Stream>& branch : branches) streams.push_back(branch.get());
  return streams;
}

Slot::Slot(Plan& plan)
    : plan_(plan), device_(*plan.device), may_fault_(std::any_of(plan.steps.begin(), plan.steps.end(), may_fault)) {
  const auto place = [](int64_t& bytes, int64_t wanted) {
    const int64_t offset = bytes;
    bytes = checked_sum(bytes, checked_aligned(wanted));
    return offset;
  };
  for (const PlannedFeed& feed : plan.feeds) feed_offsets_.push_back(place(feed_bytes_, feed.type.bytes()));
  device_.enter();
  const int64_t small_bytes = device_.small_bytes();
  feeds_are_small_ = feed_bytes_ <= small_bytes;
  // As many as the end of a run can take go with it.
  tap_bytes_ = kFaultBytes;
  const auto fits = [&](int64_t bytes) { return tap_bytes_ + checked_aligned(bytes) <= kFaultBytes + small_bytes; };
  tap_offsets_.resize(plan.taps.size(), -1);
  for (size_t i = 0; i < plan.taps.size(); ++i)
    if (fits(plan.taps[i].type.bytes())) tap_offsets_[i] = place(tap_bytes_, plan.taps[i].type.bytes());
  small_tap_bytes_ = tap_bytes_;
  for (size_t i = 0; i < plan.taps.size(); ++i)
    if (tap_offsets_[i] < 0) tap_offsets_[i] = place(tap_bytes_, plan.taps[i].type.bytes());

  const auto staging = [&](int64_t bytes) {
    return Staging(static_cast<char*>(device_.allocate_staging(bytes)), FreeStaging{&device_});
  };
  if (feed_bytes_ > 0) {
    feeds_ = Buffer(device_, feed_bytes_);
    staged_feeds_ = staging(feed_bytes_);
  }
  taps_ = Buffer(device_, tap_bytes_);
  staged_taps_ = staging(tap_bytes_);
  fed_ = device_.make_event();
  ended_ = device_.make_event();
  delivered_ = device_.make_event();
  const auto make_events = [&](const std::vector<int>& awaited) {
    for (const int step : awaited)
      if (passed_.count(step) == 0) passed_[step] = device_.make_event();
  };
  for (const Step& step : plan.steps) make_events(step.waits_for);
  make_events(plan.joins);
}

Slot::~Slot() = default;

void Slot::start(Lanes& lanes, const Tensor* feeds, const Tensor* tapped, const Start& start) {
  const int64_t begin_ns = start.profile ? Profile::now_ns() : 0;
  device_.enter();
  try {
    plan_.refresh_variables();
    feed(lanes, feeds, start.alone);
    remake_kept(lanes, start);
    ended_->lower();
    launch_every_run(lanes, start);
    lanes.steps->record(*ended_);
    delivers_ = deliver(lanes, tapped);
  } catch (const std::exception&) {
    const Error error = current_error();
    const auto wait_for_all = [&] {
      for (Stream* const stream : lanes.all()) settle([&] { stream->wait(); });
    };
    wait_for_all();
    if (may_fault_) settle([&] { lanes.steps->take_fault(staged_fault()); });
    wait_for_all();
    throw error;
  }
  if (start.profile) plan_.note(*start.profile, -1, start.run, begin_ns);
}

// The feeds of a run lie side by side, so one copy takes them all. Whoever finished the run before has waited for its
// end, so nothing reads them any more.
void Slot::feed(Lanes& lanes, const Tensor* feeds, bool alone) {
  char* const memory = static_cast<char*>(feeds_.data());
  for (size_t i = 0; i < feed_offsets_.size(); ++i) {
    // Feeds of no bytes have no place, which std::memcpy would not have.
    std::copy_n(static_cast<const char*>(feeds[i].data()), feeds[i].bytes(), staged_feeds_.get() + feed_offsets_[i]);
    plan_.bind(i, memory + feed_offsets_[i]);
  }
  if (feeds_are_small_) return;
  // Beside other runs the copy goes on while they compute. Without them it would only be waited for.
  device_.copy(alone ? *lanes.steps : *lanes.in, memory, staged_feeds_.get(), feed_bytes_);
  if (alone) return;
  lanes.in->record(*fed_);
  lanes.steps->wait_for(*fed_);
}

void Slot::remake_kept(Lanes& lanes, const Start& start) {
  Stream& steps = *lanes.steps;
  const uint64_t newest = plan_.newest_version();
  if (plan_.kept_steps == 0 || plan_.kept_version_ == newest) return;
  plan_.forget_kept();
  launch(lanes, 0, plan_.kept_steps, &start);
  const auto end_of_kept = plan_.steps.begin() + plan_.kept_steps;
  if (std::any_of(plan_.steps.begin(), end_of_kept, may_fault)) {
    // What they give serves more runs than this one, so it is known to be right before anything uses it.
    steps.take_fault(staged_fault());
    steps.wait();
    if (staged_fault()->step >= 0) fail_of(*staged_fault());
  }
  plan_.kept_version_ = newest;
}

// All steps but the kept ones. A plan's first run launches them one by one, which also loads and makes what libraries
// below us leave for then; later ones start them as a whole, where the device wants that.
void Slot::launch_every_run(Lanes& lanes, const Start& start) {
  Stream& steps = *lanes.steps;
  const int first = plan_.kept_steps, end = static_cast<int>(plan_.steps.size());
  const auto launch_all = [&](const Start* wanted) {
    if (feeds_are_small_ && feed_bytes_ > 0) steps.copy_small(feeds_.data(), staged_feeds_.get(), feed_bytes_);
    launch(lanes, first, end, wanted);
    RunEnd at_end;
    if (may_fault_) at_end.fault = staged_fault();
    at_end.to = staged_taps_.get() + kFaultBytes;
    at_end.from = static_cast<const char*>(taps_.data()) + kFaultBytes;
    at_end.bytes = small_tap_bytes_ - kFaultBytes;
    at_end.event = ended_.get();
    steps.end_run(at_end);
  };
  if (!device_.records() || !plan_.has_run_ || start.profile || first == end) {
    launch_all(&start);
    plan_.has_run_ = true;
    return;
  }
  if (!recording_) {
    steps.begin_recording();
    try {
      launch_all(nullptr);
    } catch (const std::exception&) {
      const Error error = current_error();
      settle([&] { steps.end_recording(); });  // what spoilt it is what has just been said
      throw error;
    }
    recording_ = steps.end_recording();
  }
  if (start.stopped()) fail(ErrorCode::Interrupted, "interrupted before ", plan_.steps[first].label);
  plan_.note_writes();
  steps.start(*recording_);
}

void Slot::launch(Lanes& lanes, int first, int end, const Start* start) {
  const auto place = [&](int tap) { return static_cast<char*>(taps_.data()) + tap_offsets_[tap]; };
  const auto copy_taps = [&](Stream& stream, int step, size_t& next) {
    plan_.copy_taps(
        [&](int tap, const void* source) {
          const int64_t bytes = plan_.taps[tap].type.bytes();
          if (bytes <= device_.small_bytes()) return stream.copy_small(place(tap), source, bytes);
          device_.copy(stream, place(tap), source, bytes);
        },
        step, next);
  };
  const auto pass = [&](Stream& stream, int step) {
    if (const auto event = passed_.find(step); event != passed_.end()) stream.record(*event->second);
  };
  const auto wait = [&](Stream& stream, const std::vector<int>& passed) {
    for (const int step : passed) stream.wait_for(*passed_.at(step));
  };
  size_t next_tap = 0;
  if (first == plan_.kept_steps) {
    copy_taps(*lanes.steps, first - 1, next_tap);
    pass(*lanes.steps, plan_.start_place());
  }
  for (int i = first; i < end; ++i) {
    if (start && i <= plan_.last_stop && start->stopped())
      fail(ErrorCode::Interrupted, "interrupted before ", plan_.steps[i].label);
    if (start && i == plan_.first_write) plan_.note_writes();
    Profile* const profile = start ? start->profile : nullptr;
    const int64_t begin_ns = profile ? Profile::now_ns() : 0;
    Stream& stream = lanes.branch(plan_.steps[i].branch);
    std::vector<void*> outputs = plan_.steps[i].outputs;
    for (size_t tap = 0; tap < plan_.taps.size(); ++tap)
      if (plan_.taps[tap].after_step == i && plan_.taps[tap].output >= 0)
        outputs[plan_.taps[tap].output] = place(static_cast<int>(tap));
    wait(stream, plan_.steps[i].waits_for);
    tell_ranges(stream, plan_.steps[i], outputs.data());
    plan_.launch_step(i, stream, outputs.data());
    if (profile) {
      stream.wait();
      plan_.note(*profile, i, start->run, begin_ns);
    }
    if (i < plan_.kept_steps) continue;
    copy_taps(stream, i, next_tap);
    pass(stream, i);
  }
  if (first == plan_.kept_steps) wait(*lanes.steps, plan_.joins);
}

// What the end of the run has left, if it is wanted. Values that lie side by side are copied as one.
bool Slot::deliver(Lanes& lanes, const Tensor* tapped) {
  const auto is_left = [&](size_t tap) { return tapped[tap] && tap_offsets_[tap] >= small_tap_bytes_; };
  size_t first = 0;
  while (first < tap_offsets_.size() && !is_left(first)) ++first;
  if (first == tap_offsets_.size()) return false;
  Stream& out = *lanes.out;
  out.wait_for(*ended_);
  const char* const memory = static_cast<const char*>(taps_.data());
  const auto copy = [&](int64_t begin, int64_t end) {
    if (end > begin) device_.copy(out, staged_taps_.get() + begin, memory + begin, end - begin);
  };
  int64_t begin = 0, end = 0;
  for (size_t i = first; i < tap_offsets_.size(); ++i) {
    if (!is_left(i)) continue;
    if (tap_offsets_[i] != end) {
      copy(begin, end);
      begin = tap_offsets_[i];
    }
    end = tap_offsets_[i] + checked_aligned(plan_.taps[i].type.bytes());
  }
  copy(begin, end);
  out.record(*delivered_);
  return true;
}

void Slot::finish(const Tensor* tapped) {
  device_.enter();
  (delivers_ ? delivered_ : ended_)->wait();
  if (may_fault_ && staged_fault()->step >= 0) fail_of(*staged_fault());
  for (size_t i = 0; i < tap_offsets_.size(); ++i)
    if (tapped[i])
      std::memcpy(tapped[i].data(), staged_taps_.get() + tap_offsets_[i], static_cast<size_t>(tapped[i].bytes()));
}

void Slot::fail_of(const Fault& fault) const {
  const Step& step = plan_.steps.at(static_cast<size_t>(fault.step));
  blaming(step.label, step.site, [&] {
    if (step.explain) step.explain(fault.place, fault.value);
    fail(ErrorCode::Internal, "the device found a bad value, ", fault.value, ", at ", fault.place);
  });
}

}  // namespace moonflow
