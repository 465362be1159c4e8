#include "kernels/cuda/hosted.h"

#include <exception>
#include <map>
#include <memory>
#include <mutex>

#include "engine/default_floats.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fault.h"

namespace moonflow::cuda {
namespace {

// Brings the number of a failure of the host's work, which is not 0, to where kernels look for faults.
struct NoteFailure {
  static constexpr int kThreads = kWarp;
  FaultNote* note;
  const int64_t* failure;
  int step;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t number = block.thread() == 0 ? *failure : 0;
    if (number != 0) note_fault(block, note, step, 0, number);
  }
};

// The host's work is not done in a stream: it is what a stream waits for.
class NoStream final : public Stream {
 public:
  void wait() override {}
};

// One step of a plan: the host's work in it, and memory of the host for all that belongs to that. The step's runs
// follow each other, so one of each is enough.
class HostedStep {
 public:
  HostedStep(const Kernel& kernel, const KernelCall& call) : device_(call.device) {
    KernelCall host{device_,      call.attrs,         call.inputs,        call.present,
                    call.outputs, call.input_layouts, call.output_layouts};
    compute_ = kernel.prepare(host);
    for (size_t i = 0; i < call.inputs.size(); ++i)
      inputs_.push_back(place(call.has(static_cast<int>(i)) ? call.inputs[i].bytes() : 0));
    for (const TensorType& output : call.outputs) outputs_.push_back(place(output.bytes()));
    scratch_ = place(host.scratch_bytes);
    const int64_t failure = place(sizeof *failure_).offset;
    memory_ = static_cast<char*>(device_.allocate_staging(bytes_));
    failure_ = reinterpret_cast<int64_t*>(memory_ + failure);
    for (const Part& part : inputs_) input_addresses_.push_back(part.bytes > 0 ? memory_ + part.offset : nullptr);
    for (const Part& part : outputs_) output_addresses_.push_back(memory_ + part.offset);
    for (const Part& part : inputs_) reads_.push_back(range(part));
    writes_ = {range(scratch_), failure_note()};
    for (const Part& part : outputs_) writes_.push_back(range(part));
  }
  ~HostedStep() { device_.free_staging(memory_); }
  HostedStep(const HostedStep&) = delete;

  void launch(const LaunchCall& call) {
    Stream& stream = call.stream;
    for (size_t i = 0; i < inputs_.size(); ++i)
      device_.copy(stream, memory_ + inputs_[i].offset, call.inputs[i], inputs_[i].bytes);
    stream.touches(reads_, writes_);
    runtime(device_).call(native(stream), work_);
    for (size_t i = 0; i < outputs_.size(); ++i)
      device_.copy(stream, call.outputs[i], memory_ + outputs_[i].offset, outputs_[i].bytes);
    stream.touches({failure_note()}, {stream.fault_note()});
    cuda::launch(stream, 1, NoteFailure{fault_note(stream), failure_, call.step});
  }

  // Throws what failed under this number.
  void explain(int64_t number) {
    require(number != kUntold, ErrorCode::OutOfMemory, "failed, and there was no memory left to note why");
    std::exception_ptr what;
    {
      const std::lock_guard lock(mutex_);
      const auto found = failures_.find(number);
      if (found == failures_.end()) return;
      what = found->second;
      failures_.erase(found);
    }
    std::rethrow_exception(what);
  }

 private:
  struct Part {
    int64_t offset, bytes;
  };

  Part place(int64_t bytes) {
    const Part part{bytes_, bytes};
    bytes_ += checked_aligned(bytes);
    return part;
  }
  Range range(const Part& part) const { return {memory_ + part.offset, part.bytes}; }
  Range failure_note() const { return {failure_, sizeof *failure_}; }

  // On a thread of the driver's, which has its floating point from whoever started it.
  void compute() noexcept {
    const DefaultFloats defaults;
    *failure_ = 0;
    try {
      NoStream none;
      compute_({none, input_addresses_.data(), output_addresses_.data(), memory_ + scratch_.offset});
    } catch (...) {
      *failure_ = kUntold;
      note(std::current_exception());
    }
  }

  void note(const std::exception_ptr& what) noexcept try {
    const std::lock_guard lock(mutex_);
    failures_[failed_ + 1] = what;
    *failure_ = ++failed_;
  } catch (const std::bad_alloc&) {
  }

  static constexpr int64_t kUntold = -1;

  Device& device_;
  Launch compute_;
  std::vector<Part> inputs_, outputs_;
  Part scratch_{};
  int64_t bytes_ = 0;
  char* memory_ = nullptr;  // all of it
  int64_t* failure_ = nullptr;
  std::vector<void*> input_addresses_, output_addresses_;
  std::vector<Range> reads_, writes_;  // of the host's work
  const std::function<void()> work_ = [this] { compute(); };
  std::mutex mutex_;  // of what the thread that computes tells the one that explains
  int64_t failed_ = 0;
  std::map<int64_t, std::exception_ptr> failures_;
};

}  // namespace

Kernel hosted(const OpDef& op) {
  return {[kernel = op.cpu](KernelCall& call) -> Launch {
    const auto step = std::make_shared<HostedStep>(kernel, call);
    // Also where nothing is ever wrong with the values: so the host's work of a plan keeps its order.
    call.explain = [step](int64_t, int64_t number) { step->explain(number); };
    return [step](const LaunchCall& launch) { step->launch(launch); };
  }};
}

}  // namespace moonflow::cuda
