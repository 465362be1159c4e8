// A plan for a thread with deadlines: buffers and weights of its own, everything allocated and touched beforehand. A
// run takes no lock and no memory; new weights are published beside it, and the next run takes them over without
// waiting. One thread may run it while another publishes.
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

class PreparedCall {
 public:
  // Compiles the graph once more, for `device`, whose launches must neither allocate nor lock. The taps with tokens
  // from `first` to `last` are outputs, in this order; other taps are left out. A graph that writes variables is
  // refused.
  PreparedCall(const Graph& graph, const std::string& job, std::shared_ptr<Device> device, Token first, Token last,
               const std::shared_ptr<HostMemory>& memory);

  const std::vector<Tensor>& inputs() const { return inputs_; }
  const std::vector<Tensor>& outputs() const { return outputs_; }

  // Names and types of the weights, in the order in which they are published.
  const std::vector<const Variable*>& weights() const { return weights_; }
  // Any thread. `value` gives each weight; all of them are there before the next run sees one.
  void publish(const std::function<Tensor(const Variable&)>& value);

  // From the inputs to the outputs with the newest weights. Allocates only when a step fails.
  void run();
  // Times that a run has taken new weights.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  struct Place {  // where a step, or a tap, holds the address of a weight
    const void** pointer;
    int weight;
  };

  void take_newest();

  std::shared_ptr<Device> device_;
  Variables variables_;  // the plan's own: set 0
  std::shared_ptr<Plan> plan_;
  std::unique_ptr<Stream> stream_;
  std::vector<Tensor> inputs_, outputs_;
  std::vector<Tensor> tapped_;  // by tap of the plan: an output, or no value
  std::vector<const Variable*> weights_;
  std::vector<Place> places_;
  std::vector<Buffer> spares_;            // sets 1 and 2, set by set
  std::vector<std::vector<void*>> sets_;  // [set][weight]
  TripleBuffer turns_;                    // of the sets; whose writing is guarded by publishing_
  std::mutex publishing_;                 // between publishers; a run never takes it
  std::unique_ptr<Stream> publishing_stream_;
  std::atomic<uint64_t> generation_{0};
};

}  // namespace moonflow
