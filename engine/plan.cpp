#include "engine/plan.h"

#include "engine/slot.h"

namespace moonflow {

Plan::Plan(std::string job, std::shared_ptr<Device> device)
    : job(std::move(job)), device(std::move(device)), asynchronous(this->device->asynchronous()) {}

Plan::~Plan() = default;

void Plan::forget_variables(const std::string& first) {
  forgotten = first;
  variables.clear();
  written.clear();
  kept_from.clear();
  forms.clear();
}

int64_t Plan::bytes() const {
  int64_t total = arena_bytes;
  for (const Buffer& constant : constants) total += constant.bytes();
  return total;
}

int64_t Plan::form_bytes() const {
  int64_t total = 0;
  for (const PlannedForm& each : forms) total += each.form ? each.form->memory.bytes() : 0;
  return total;
}

int64_t Step::bytes() const {
  int64_t total = 0;
  for (const TensorType& type : input_types) total += type.shape.rank() > 0 ? type.bytes() : 0;
  for (const TensorType& type : output_types) total += type.bytes();
  return total;
}

void Plan::note(Profile& profile, int step, uint64_t run, int64_t begin_ns) {
  if (step >= 0) steps[step].spent.add(Profile::now_ns() - begin_ns);
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

void Plan::bind_taps(const Tensor* tapped) {
  for (size_t i = 0; i < taps.size(); ++i) {
    const PlannedTap& tap = taps[i];
    if (tap.output < 0) continue;
    void* const to = wanted_at(i, tapped);
    steps[tap.after_step].outputs[tap.output] = to ? to : const_cast<void*>(tap.source);
  }
}

void Plan::launch_step(int index, Stream& stream, void* const* inputs, void* const* outputs, void* scratch) const {
  const Step& step = steps[index];
  blaming(step.label, step.site, [&] { step.launch(LaunchCall{stream, inputs, outputs, scratch, index}); });
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
