// A compiled graph: prepared launches in order over planned memory. Made once on the tracing thread (engine/compile.h),
// then run many times; each of its slots has one run at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph.h"
#include "engine/live_bytes.h"
#include "engine/profile.h"
#include "engine/variable.h"

namespace moonflow {

class Slot;

// The thread that launches adds to it while others read.
struct ProfiledTime {
  std::atomic<int64_t> ns{0}, launches{0};

  ProfiledTime() = default;
  ProfiledTime(ProfiledTime&& other) noexcept : ns(other.ns.load()), launches(other.launches.load()) {}
  void add(int64_t more_ns) {
    ns.fetch_add(more_ns, std::memory_order_relaxed);
    launches.fetch_add(1, std::memory_order_relaxed);
  }
};

// One prepared launch with its buffers. The pointers of feeds are filled in at the start of each run.
struct Step {
  std::string label;  // "matmul 'hidden'", or "reorder of 'conv1'"
  std::string site;   // the script's line
  Launch launch;
  std::vector<void*> inputs;
  std::vector<void*> outputs;
  void* scratch = nullptr;
  std::function<void(int64_t place, int64_t value)> explain;  // what a fault found later means; see KernelCall
  std::vector<bool> updates;                                  // by input: whether the launch writes it
  int64_t scratch_bytes = 0;
  int branch = 0;              // where it is launched; 0 is the trunk
  std::vector<int> waits_for;  // steps of other branches that must have ended; see Plan::start_place
  bool meets_others = false;   // as the op's

  // For whoever looks at the plan.
  std::vector<TensorType> input_types, output_types;  // a left-out input has no dims
  std::vector<Layout> input_layouts, output_layouts;
  double flops = 0;    // of one launch; 0 where moving the data is the work
  ProfiledTime spent;  // in all launches while a profile was attached

  int64_t bytes() const;  // read and written by one launch
  bool writes_input(size_t i) const { return i < updates.size() && updates[i]; }
  bool writes_any() const { return std::find(updates.begin(), updates.end(), true) != updates.end(); }
};

struct PlannedFeed {
  std::string name;
  TensorType type;
  void* data = nullptr;  // what is bound now
  // Where the address of the fed tensor belongs.
  struct Place {
    int step;
    int input;
  };
  std::vector<Place> places;
};

struct PlannedTap {
  Token token;
  TensorType type;
  int after_step;      // the value is there once this step has run; -1: before the first
  const void* source;  // row-major device memory; nullptr for a feed passed through
  int feed = -1;
  // The output of that step that is this value, where nobody else wants it: the step then writes it where the tap wants
  // it, and nothing is copied.
  int output = -1;
  void* data = nullptr;  // what is bound now
};

// A variable, and the copy of it that the steps use.
struct PlannedVariable {
  Variable* variable;
  Variable::Copy* copy;
};

// What a kept step makes for all plans that read a variable in some layout; nothing where it makes something else.
struct PlannedForm {
  const Variable* variable = nullptr;
  std::shared_ptr<Variable::Form> form = nullptr;

  bool is_made() const { return form && form->version == variable->version; }
  void note_made() {
    if (form) form->version = variable->version;
  }
};

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  explicit Plan(std::string job, std::shared_ptr<Device> device);
  ~Plan();

  std::string job;
  std::shared_ptr<Device> device;            // shared: a plan that a script still holds may outlive its session
  const bool asynchronous;                   // as its device is: it runs in slots, else by launch()
  const Variables* all_variables = nullptr;  // of its session
  std::vector<PlannedFeed> feeds;
  std::vector<PlannedTap> taps;  // in the order they are delivered
  // Indices into taps, by rising after_step: those whose values no step writes where the tap wants them.
  std::vector<int> copied_taps;
  std::vector<Step> steps;
  // So many steps at the front depend on nothing but variables that this plan only reads, and constants. What they give
  // is kept from run to run, and made again once one of those variables has been written, by whomever.
  int kept_steps = 0;
  std::vector<const Variable*> kept_from;
  std::vector<PlannedForm> forms;          // by kept step
  int merged_ops = 0;                      // of the graph that are computed with an equal one before them
  int first_write = 0;                     // steps from here on change variables; they run all or not at all
  int last_stop = 0;                       // the last step before which an interrupt stops a run
  int branch_count = 1;                    // that the steps form
  std::vector<int> joins;                  // steps of other branches that the end of a run waits for
  std::vector<PlannedVariable> variables;  // that it reads or writes
  std::vector<PlannedVariable> written;    // that its steps change
  // The first of them that the session has forgotten: it then has none of them, and cannot run.
  std::string forgotten;
  void forget_variables(const std::string& first);
  int64_t bytes() const;       // that it holds: the arena, and constants
  int64_t form_bytes() const;  // of variables in other layouts, which other plans may read too
  int64_t arena_bytes = 0;
  int64_t arena_lower_bound = 0;  // most bytes alive at any one step
  int in_flight = 0;              // submitted, end not yet pulled; guarded by the session's thread
  int max_in_flight = 3;
  // The executor has seen to it that an exit waits for runs of it: for the first one, and for later ones.
  bool exit_waits = false, exit_waits_after_run = false;

  // Brings its copies of variables up to date. Nothing that uses them may be under way.
  void refresh_variables() {
    if (!all_variables->have_copies()) return;
    for (const PlannedVariable& use : variables) use.variable->refresh(*use.copy);
  }
  // Where the launches find a feed. Holds until it is bound again.
  void bind(size_t feed, void* data);
  // Where a tapped value goes in runs that bring no tensors for them, until it is bound again; nullptr: it is not
  // wanted.
  void bind_tap(size_t tap, void* data) { taps[tap].data = data; }
  // What a branch waits for that begins with a run: the last kept step, or -1 without one.
  int start_place() const { return kept_steps - 1; }
  // Launches the steps in order and waits for them. Tapped values go to `tapped`, one per tap; without a value where
  // one is not wanted. Without `tapped` they go where they are bound. Asks `stopped` before each step up to the first
  // write, and throws Interrupted when it says so: the writes of a run happen all or not at all. What a step throws is
  // given its label and site. With a profile, tells it of each step and of the whole, as run number `run`.
  template <class Stopped>
  void launch(Stream& stream, const Tensor* tapped, const Stopped& stopped, Profile* profile = nullptr,
              uint64_t run = 0);
  // The next run keeps nothing.
  void forget_kept() { kept_version_ = kNothingKept; }
  // Somebody else launches the kept steps from now on, where and when it likes, and runs leave them out.
  void give_away_kept() {
    kept_version_ = newest_version();
    forms.clear();
  }
  // Launches a step on these inputs and outputs. What it throws is given its label and site.
  void launch_step(int step, Stream& stream, void* const* inputs, void* const* outputs, void* scratch) const;

  std::string dump() const;

  Buffer arena;  // every intermediate value and scratch lives here
  LiveBytes counted;
  std::vector<Buffer> constants;
  std::vector<std::unique_ptr<Slot>> slots;  // of an asynchronous plan; made when first needed

 private:
  friend class Slot;  // launches the same steps where nobody may wait for them

  static constexpr uint64_t kNothingKept = ~uint64_t{0};
  uint64_t newest_version() const;  // of kept_from: the writes of all of them
  void launch_step(int step, Stream& stream, void* const* outputs) const {
    launch_step(step, stream, steps[step].inputs.data(), outputs, steps[step].scratch);
  }
  void launch_step(int step, Stream& stream) const { launch_step(step, stream, steps[step].outputs.data()); }
  // Calls copy(tap, source) for the copied taps whose values are there once this step has run; `next` counts them.
  template <class Copy>
  void copy_taps(const Copy& copy, int step, size_t& next) const;
  // Has the steps write what they make for one tap alone to `tapped`, or to its place in the arena if it is not wanted.
  void bind_taps(const Tensor* tapped);
  void* wanted_at(size_t tap, const Tensor* tapped) const { return tapped ? tapped[tap].data() : taps[tap].data; }
  void note_writes() const;
  void note(Profile& profile, int step, uint64_t run, int64_t begin_ns);

  uint64_t kept_version_ = kNothingKept;
  bool has_run_ = false;  // in one of the slots
};

template <class Copy>
void Plan::copy_taps(const Copy& copy, int step, size_t& next) const {
  for (; next < copied_taps.size(); ++next) {
    const PlannedTap& tap = taps[copied_taps[next]];
    if (tap.after_step > step) return;
    copy(copied_taps[next], tap.feed >= 0 ? feeds[tap.feed].data : tap.source);
  }
}

template <class Stopped>
void Plan::launch(Stream& stream, const Tensor* tapped, const Stopped& stopped, Profile* profile, uint64_t run) {
  const int64_t begin_ns = profile ? Profile::now_ns() : 0;
  bind_taps(tapped);
  const auto copy = [&](int tap, const void* source) {
    if (void* const to = wanted_at(tap, tapped)) device->copy(stream, to, source, taps[tap].type.bytes());
  };
  size_t next_tap = 0;
  const uint64_t newest = newest_version();
  const int first = kept_version_ == newest ? kept_steps : 0;
  if (first < kept_steps) forget_kept();  // until all of them have run
  copy_taps(copy, first - 1, next_tap);
  const int step_count = static_cast<int>(steps.size());
  for (int i = first; i < step_count; ++i) {
    if (i <= last_stop && stopped()) fail(ErrorCode::Interrupted, "interrupted before ", steps[i].label);
    if (i == first_write) note_writes();
    if (i >= kept_steps || !forms[i].is_made()) {
      const int64_t step_begin_ns = profile ? Profile::now_ns() : 0;
      launch_step(i, stream);
      if (profile) note(*profile, i, run, step_begin_ns);
    }
    if (i < kept_steps) forms[i].note_made();
    if (next_tap < copied_taps.size()) copy_taps(copy, i, next_tap);
    if (i + 1 == kept_steps) kept_version_ = newest;
  }
  stream.wait();
  if (profile) note(*profile, -1, run, begin_ns);
}

}  // namespace moonflow
