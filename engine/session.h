// Everything one user of the engine has: catalog, devices, variables, executor, completion queue. There are no globals,
// so several sessions live side by side. Owned and called by one thread; interrupt() may come from any.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/evaluator.h"
#include "engine/executor.h"
#include "engine/prepared.h"

namespace moonflow {

class Session {
 public:
  // Opens the gpu of an index. Throws Unsupported with the reason where there is none, OutOfRange for a wrong index.
  using OpenGpu = std::function<std::shared_ptr<Device>(int index)>;

  // `memory` gives that of the values that leave the session; without one the session has its own.
  Session(std::shared_ptr<const Catalog> catalog, std::shared_ptr<Device> device,
          std::shared_ptr<HostMemory> memory = nullptr, InterruptFlag interrupted = nullptr,
          OpenGpu open_gpu = nullptr);
  ~Session();

  const Catalog& catalog() const { return *catalog_; }
  Device& device() { return *device_; }           // where it evaluates, and compiles for unless told otherwise: the CPU
  const std::shared_ptr<Device>& gpu(int index);  // opened when first asked for
  Variables& variables() { return variables_; }
  CompletionQueue& completions() { return completions_; }
  Executor& executor() { return executor_; }
  const std::shared_ptr<HostMemory>& memory() const { return memory_; }

  // For a device of this session; without one, for its own.
  std::shared_ptr<Plan> compile(const Graph& graph, const std::string& job, std::shared_ptr<Device> device = nullptr);
  // A call of the graph for a loop with deadlines, on a device made for it, with the weights as they are after the runs
  // submitted so far; see PreparedCall.
  std::shared_ptr<PreparedCall> prepare(const Graph& graph, const std::string& job, std::shared_ptr<Device> device,
                                        Token first, Token last, std::vector<Counter> counters = {});
  // Ends variables, after the runs submitted so far, and with them every plan that uses one of them. A prepared call
  // keeps its weights, and is handed no others.
  void forget_variables(const std::vector<std::string>& names);
  // Hands the weights, as they are after the runs submitted so far, to a prepared call, or to all that somebody holds;
  // gives the number of these. Waits for none of the runs: see Executor::in_turn.
  void publish(const std::shared_ptr<PreparedCall>& call);
  int publish();
  // Tells a profile of every step from now on, also of prepared calls; nullptr: nobody. The one before is given back.
  std::shared_ptr<Profile> attach(std::shared_ptr<Profile> profile);
  const std::shared_ptr<Profile>& profile() const { return executor_.profile(); }
  // Gives the run's number, or 0 when too much is in flight.
  RunId submit(const std::shared_ptr<Plan>& plan, Executor::Submission submission);
  // The next completion and its removal, or both in one; see CompletionQueue.
  Completion* front() { return completions_.front(); }
  void pop();
  std::optional<Completion> pull();

  // The value of a variable, after the runs submitted so far.
  Tensor read(const std::string& variable);
  // Sets a variable after the runs submitted so far; shape and dtype must be its own.
  void write(const std::string& variable, const Tensor& value);
  // One op on host tensors at once, on the calling thread; see Evaluator.
  void evaluate(const OpDef& op, const std::vector<Tensor>& inputs, const Attrs& attrs, std::vector<Tensor>& outputs);
  std::vector<Tensor> evaluate(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {});

  // Refuses, cancels what is queued, waits for what runs. Idempotent; the destructor calls it.
  void close();
  bool closed() const { return closed_; }

 private:
  // False where one of the variables that are the call's weights has been forgotten.
  bool hand_weights(const std::shared_ptr<PreparedCall>& call);

  std::shared_ptr<const Catalog> catalog_;  // shared: sessions of one process may use one catalog
  std::shared_ptr<Device> device_;          // shared with the plans, as are the others
  std::map<int, std::shared_ptr<Device>> gpus_;
  const OpenGpu open_gpu_;
  std::shared_ptr<HostMemory> memory_;
  Variables variables_;
  CompletionQueue completions_;
  std::vector<std::weak_ptr<Plan>> plans_;
  std::vector<std::weak_ptr<PreparedCall>> prepared_;
  Evaluator evaluator_;
  Executor executor_;  // last: its threads end before anything above goes
  bool closed_ = false;
};

}  // namespace moonflow
