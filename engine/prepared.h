// A plan for a thread with deadlines: buffers and weights of its own, everything allocated and touched beforehand. A
// run takes no lock and no memory; new weights are published beside it, with all that follows from weights alone, and
// the next run takes them over without waiting or more work than any other. One thread may run it while another
// publishes. Variables that the graph writes are its own from the beginning: what one run leaves there the next one
// finds.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "engine/triple_buffer.h"

namespace moonflow {

// An int64 scalar that a prepared call feeds itself: the seed of what it draws, or the number of a run.
struct Counter {
  int64_t next;  // in the run to come
  int64_t step;  // what each run adds
};

class PreparedCall {
 public:
  // Compiles the graph once more, for `device`, whose launches must neither allocate nor lock. The taps with tokens
  // from `first` to `last` are outputs, in this order; other taps are left out. Of the feeds the last are `counters`,
  // the others inputs.
  PreparedCall(const Graph& graph, const std::string& job, std::shared_ptr<Device> device, Token first, Token last,
               std::vector<Counter> counters, const std::shared_ptr<HostMemory>& memory);

  // Its own buffers.
  const std::vector<Tensor>& inputs() const { return inputs_; }
  const std::vector<Tensor>& outputs() const { return outputs_; }
  // From now on runs read an input, or write an output, in memory of somebody else, who keeps it; nullptr: in the own
  // buffer again. In place of a run, and as fit for its thread. Throws where a run could not compute there: memory that
  // is not aligned for the dtype, and what a run reads or writes already.
  void bind_input(size_t index, void* data);
  void bind_output(size_t index, void* data);

  // Names and types of the weights, in the order in which they are published.
  const std::vector<const Variable*>& weights() const { return weights_; }
  // Those that the graph writes, and what they are at first, and after a reset. Before the first run.
  const std::vector<const Variable*>& states() const { return states_; }
  void begin(const std::function<Tensor(const Variable&)>& value);
  // In place of a run.
  void reset();
  // Any thread. `value` gives each weight; all of them are there before the next run sees one. Throws what a step
  // throws that follows from them; then the weights before stay.
  void publish(const std::function<Tensor(const Variable&)>& value);

  // From the inputs to the outputs with the newest weights. Allocates only when it fails.
  void run();
  // Stops the run under way before its next step, as long as it has written no state: it throws Interrupted. Any
  // thread, and a signal handler.
  void interrupt() noexcept { interrupted_.store(true, std::memory_order_release); }
  // Tells a profile of every step of the runs to come, which then allocate and lock; nullptr: nobody. Any thread.
  void attach(std::shared_ptr<Profile> profile);
  // Between runs.
  const Plan& plan() const { return *plan_; }
  // Times that a run has taken new weights.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  // What stands for one value in each set: a weight, or what a step makes of weights alone.
  struct SetValue {
    void* planned;  // its address in the plan
    int64_t bytes;
  };
  struct Place {  // where a step, or a tap, holds the address of such a value
    const void** pointer;
    int value;
  };
  struct KeptStep {
    std::vector<void*> inputs, outputs;
  };

  void require_free(const void* data, const TensorType& type, const char* what, size_t index, bool is_output) const;
  int find(const void* planned) const;  // index of the value there, or -1
  void find_values();
  void note_places();
  void make_sets();
  void take_newest();
  std::shared_ptr<Profile> attached();
  void count();
  template <class Work>
  void naming_job(const Work& work);

  std::shared_ptr<Device> device_;
  Variables variables_;  // the plan's own: set 0
  std::shared_ptr<Plan> plan_;
  std::unique_ptr<Stream> stream_;
  bool exit_waits_ = false;  // for what a run has made below us
  std::vector<Tensor> inputs_, outputs_;
  std::vector<Counter> counters_;
  std::vector<Tensor> counted_feeds_;  // what they are in this run
  std::vector<size_t> output_taps_;    // of the plan, by output
  std::atomic<bool> interrupted_{false};
  std::vector<const Variable*> weights_, states_;
  std::vector<Buffer> first_states_;
  std::vector<SetValue> values_;  // the weights first
  std::vector<Place> places_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<void*>> sets_;     // [set][value]
  std::vector<std::vector<KeptStep>> kept_;  // [set][step]
  Buffer kept_scratch_;
  LiveBytes counted_;
  TripleBuffer turns_;     // of the sets; whose writing is guarded by publishing_
  std::mutex publishing_;  // between publishers; a run never takes it
  std::unique_ptr<Stream> publishing_stream_;
  std::atomic<uint64_t> generation_{0};
  std::mutex attaching_;
  std::shared_ptr<Profile> profile_;  // guarded by attaching_, which a run takes only where there is one
  std::atomic<bool> is_profiled_{false};
};

}  // namespace moonflow
