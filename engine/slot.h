// What one run on an asynchronous device has to itself, so that neighbouring runs overlap: memory of the device for its
// feeds and tapped values, staging memory of the host for both, and its recording of the plan's steps. A run goes
// through three lanes, which wait for each other by events, and nobody waits for it on the way:
//
//   in      feeds from staging to the device
//   steps     after that: the steps; tapped values into the slot, and the end of the run: the first fault to staging
//   out         after that: tapped values to staging
//
// Small ones keep to the lane of steps, and belong to what is recorded: feeds become its begin, and tapped values go
// out with its end. A run that has nothing else is one start, whatever it feeds and shows.
//
// Where a plan has branches, the lane of steps is several streams for a while: the trunk, where runs begin and end, and
// others, whose steps wait for the trunk's and it for theirs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/plan.h"

namespace moonflow {

// Where the runs on a device take place, whatever their plan, so that what one writes is there for the next. A device
// that is not asynchronous has only the lane of steps.
struct Lanes {
  explicit Lanes(Device& device);

  std::unique_ptr<Stream> in, steps, out;
  std::vector<std::unique_ptr<Stream>> branches;  // beside `steps`, which is the trunk

  Stream& branch(int branch) { return branch == 0 ? *steps : *branches[branch - 1]; }
  std::vector<Stream*> all() const;
};

// What a run asks of its start.
struct Start {
  std::function<bool()> stopped;  // as Plan::launch asks it
  Profile* profile;               // with one it waits for each step, to tell what it took
  uint64_t run;
  bool alone = false;  // no other run is under way in these lanes
};

class Slot {
 public:
  // Throws OutOfMemory.
  explicit Slot(Plan& plan);
  ~Slot();

  // Enqueues a run: takes the feeds, which may change afterwards, and brings the values that `tapped` has room for.
  // When it throws, nothing of the run is under way.
  void start(Lanes& lanes, const Tensor* feeds, const Tensor* tapped, const Start& start);
  // Waits for the run and fills `tapped`. Throws what it failed with.
  void finish(const Tensor* tapped);

  bool busy = false;  // from before its start until after its finish; kept by whoever calls them

 private:
  struct FreeStaging {
    Device* device;
    void operator()(char* memory) const noexcept { device->free_staging(memory); }
  };
  using Staging = std::unique_ptr<char, FreeStaging>;

  void feed(Lanes& lanes, const Tensor* feeds, bool alone);
  void remake_kept(Lanes& lanes, const Start& start);
  void launch_every_run(Lanes& lanes, const Start& start);
  // Without a start they are only recorded.
  void launch(Lanes& lanes, int first, int end, const Start* start);
  bool deliver(Lanes& lanes, const Tensor* tapped);
  void fail_of(const Fault& fault) const;  // throws what the step that met it says
  Fault* staged_fault() const { return reinterpret_cast<Fault*>(staged_taps_.get()); }

  Plan& plan_;
  Device& device_;
  // Places in the slot's memory, the same on the device and in staging. Of the tapped values the small ones come first.
  // The fault stands before them; the device has it elsewhere.
  std::vector<int64_t> feed_offsets_, tap_offsets_;
  int64_t feed_bytes_ = 0;
  int64_t tap_bytes_ = 0;
  int64_t small_tap_bytes_ = 0;  // with the fault
  bool feeds_are_small_ = false;
  bool may_fault_ = false;
  Buffer feeds_, taps_;
  Staging staged_feeds_, staged_taps_;
  std::unique_ptr<Event> fed_, ended_, delivered_;
  std::map<int, std::unique_ptr<Event>> passed_;  // by step: those that other branches wait for
  bool delivers_ = false;                         // the run that is under way: by the lane `out`
  std::unique_ptr<Recording> recording_;
};

}  // namespace moonflow
