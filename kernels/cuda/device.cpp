#include "kernels/cuda/device.h"

#include <chrono>
#include <cstdlib>
#include <string_view>

#include "engine/lookout.h"
#include "engine/size_text.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/obstacles.h"
#include "kernels/cuda/run.h"

namespace moonflow::cuda {

namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(Runtime& runtime) : runtime_(runtime), handle_(runtime.make_event()) {}
  ~CudaEvent() override {
    if (flag_) runtime_.free_staging(flag_);
    runtime_.destroy(handle_);
  }
  EventHandle handle() const { return handle_; }
  int* flag() const { return flag_; }

  void lower() override {
    if (!flag_) flag_ = static_cast<int*>(runtime_.allocate_staging(sizeof *flag_));
    require(flag_ != nullptr, ErrorCode::OutOfMemory, "no room for a word that the gpu writes when a run has ended");
    runtime_.lower(flag_);
  }

  // A short step is over before a thread could fall asleep and be woken, which takes 20 us more. To look at a flag
  // costs nothing, while asking for an event holds up whoever launches meanwhile.
  void wait() override {
    const std::chrono::microseconds patience(flag_ ? 200 : 50);
    if (!look_out(patience, [&] { return flag_ ? runtime_.raised(flag_) : runtime_.done(handle_); }))
      runtime_.synchronize(handle_);
  }

 private:
  Runtime& runtime_;
  const EventHandle handle_;
  int* flag_ = nullptr;  // of an event that has been lowered
};

class CudaRecording final : public Recording {
 public:
  CudaRecording(Runtime& runtime, GraphHandle graph) : runtime_(runtime), graph_(graph) {}
  ~CudaRecording() override { runtime_.destroy(graph_); }
  GraphHandle graph() const { return graph_; }

 private:
  Runtime& runtime_;
  const GraphHandle graph_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(Runtime& runtime, FaultNote* note, Buffer own_note, bool checks_each_launch)
      : runtime_(runtime),
        note_(note),
        own_note_(std::move(own_note)),
        handle_(runtime.make_stream()),
        checks_each_launch_(checks_each_launch) {}
  ~CudaStream() override { runtime_.destroy(handle_); }

  StreamHandle handle() const { return handle_; }
  FaultNote* note() const { return note_; }

  void wait() override { runtime_.synchronize(handle_); }
  void record(Event& event) override { runtime_.record(handle_, static_cast<CudaEvent&>(event).handle()); }
  void wait_for(Event& event) override { runtime_.wait_for(handle_, static_cast<CudaEvent&>(event).handle()); }

  void begin_recording() override {
    runtime_.begin_capture(handle_);
    recording_ = true;
  }
  std::unique_ptr<Recording> end_recording() override {
    recording_ = false;
    return std::make_unique<CudaRecording>(runtime_, runtime_.end_capture(handle_));
  }
  void start(Recording& recording) override {
    runtime_.launch(handle_, static_cast<CudaRecording&>(recording).graph());
  }

  void touches(const std::vector<Range>& reads, const std::vector<Range>& writes) override {
    runtime_.touches(handle_, reads, writes);
  }
  void copy_small(void* to, const void* from, int64_t bytes) override {
    touches({{from, bytes}}, {{to, bytes}});
    cuda::copy_small(*this, to, from, bytes);
  }
  void end_run(const RunEnd& end) override {
    int* const flag = end.event ? static_cast<CudaEvent&>(*end.event).flag() : nullptr;
    std::vector<Range> writes{{end.to, end.bytes}};
    if (end.fault) writes.push_back({end.fault, sizeof *end.fault});
    if (end.fault) writes.push_back(fault_note());
    if (flag) writes.push_back({flag, sizeof *flag});
    touches({{end.from, end.bytes}}, writes);
    cuda::end_run(*this, note_, end, flag);
  }
  Range fault_note() const override { return {note_, sizeof *note_}; }

  void check_launch() {
    runtime_.check_launch();
    if (checks_each_launch_ && !recording_) runtime_.synchronize(handle_);
  }

 private:
  Runtime& runtime_;
  FaultNote* const note_;  // of the launches of this stream, and of the branches beside it
  const Buffer own_note_;  // none in a branch
  const StreamHandle handle_;
  const bool checks_each_launch_;
  bool recording_ = false;
};

// Unless the variable says "0".
bool wanted(const char* variable) {
  const char* const said = std::getenv(variable);
  return said == nullptr || std::string_view(said) != "0";
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::unique_ptr<Runtime> runtime, Kernels kernels, Obstacles::Questions questions)
      : runtime_(std::move(runtime)),
        kernels_(std::move(kernels)),
        obstacles_(std::move(questions)),
        own_(runtime_->make_stream()) {}
  ~CudaDevice() override { runtime_->destroy(own_); }

  Runtime& runtime() const { return *runtime_; }

  DeviceKind kind() const override { return DeviceKind::Cuda; }
  std::string describe() const override {
    const Properties& card = runtime_->properties();
    return text(card.name, ", ", size_text(card.memory_bytes), ", ", card.multiprocessors,
                " multiprocessors, capability ", card.capability / 10, ".", card.capability % 10, obstacles_.met());
  }
  std::string describe(const Layout& layout) const override {
    return layout.row_major() ? Device::describe(layout) : std::string(name_of(layout));
  }

  const Kernel& kernel(const OpDef& op) const override {
    static const Kernel none;
    return obstacles_.blocks(op.name) ? none : kernels_.of(op);
  }
  // Where multiprocessors have units for it no size of a product leaves them behind those for float32: for float16 from
  // 7.0 on, for bfloat16 from 8.0 on.
  bool computes_in(DType narrow, const OpDef& op, const OpCall&) const override {
    const int least = narrow == DType::Float16 ? 70 : 80;
    return runtime_->properties().capability >= least && kernels_.computes_narrow(op);
  }
  bool rounds_to(DType, const OpDef&, const OpCall&) const override { return false; }
  double least_narrow_flops() const override { return least_narrow_flops_; }

  void enter() override { runtime_->enter(); }

  void* allocate(int64_t bytes) override {
    runtime_->enter();
    void* const memory = runtime_->allocate(bytes);
    if (!memory)
      fail(ErrorCode::OutOfMemory, "no room for ", size_text(bytes), " on the gpu: ", size_text(runtime_->free_bytes()),
           " of ", size_text(runtime_->properties().memory_bytes),
           " are free; take a smaller batch, or place the job with flow.scope.placement(\"cpu\", \"0:0\")");
    try {
      runtime_->fill(own_, memory, 0, bytes);
      runtime_->synchronize(own_);
    } catch (...) {
      runtime_->free(memory);
      throw;
    }
    return memory;
  }
  void free(void* memory) noexcept override { runtime_->free(memory); }
  void* allocate_staging(int64_t bytes) override {
    runtime_->enter();
    void* const memory = runtime_->allocate_staging(bytes);
    require(memory != nullptr, ErrorCode::OutOfMemory, "no room for ", size_text(bytes),
            " of the host's memory that the gpu can copy from; take smaller inputs, or watch less");
    return memory;
  }
  void free_staging(void* memory) noexcept override { runtime_->free_staging(memory); }

  bool asynchronous() const override { return true; }
  bool records() const override { return records_; }
  int64_t small_bytes() const override { return kSmallBytes; }
  std::unique_ptr<Stream> make_stream() override {
    runtime_->enter();
    Buffer note(*this, sizeof(FaultNote));
    auto* const at = static_cast<FaultNote*>(note.data());
    return std::make_unique<CudaStream>(*runtime_, at, std::move(note), !records_);
  }
  int branches() const override { return branches_; }
  std::unique_ptr<Stream> make_branch(Stream& trunk) override {
    runtime_->enter();
    return std::make_unique<CudaStream>(*runtime_, static_cast<CudaStream&>(trunk).note(), Buffer(), !records_);
  }
  std::unique_ptr<Event> make_event() override {
    runtime_->enter();
    return std::make_unique<CudaEvent>(*runtime_);
  }
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) runtime_->copy(native(stream), to, from, bytes);
  }
  Launch reorder(const TensorType& type, const Layout& from, const Layout& to) override {
    return cuda::reorder(type, from, to);
  }

 private:
  const std::unique_ptr<Runtime> runtime_;
  const KernelTable kernels_;
  mutable Obstacles obstacles_;
  const StreamHandle own_;  // for what allocate does
  const bool records_ = wanted("MOONFLOW_CUDA_GRAPH");
  const int branches_ = wanted("MOONFLOW_CUDA_BRANCHES") ? 2 : 1;
  // Small steps wait for launches and memory, not for products, and have kernels for TF32 that do more at once: LeNet's
  // training, 7 GFLOP, took 137 us in TF32 and 267 in bfloat16 on an H200, that of an MLP of 0.2 GFLOP 25 and 59.
  const double least_narrow_flops_ =
      runtime_->properties().capability >= 80 && wanted("MOONFLOW_CUDA_SMALL_IN_TF32") ? 10e9 : 0;
};

CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace

std::unique_ptr<Device> make_device(std::unique_ptr<Runtime> runtime, Kernels kernels) {
  return make_device(std::move(runtime), std::move(kernels), {});
}
std::unique_ptr<Device> make_device(std::unique_ptr<Runtime> runtime, Kernels kernels, Obstacles::Questions questions) {
  return std::make_unique<CudaDevice>(std::move(runtime), std::move(kernels), std::move(questions));
}

Runtime& runtime(Device& device) { return static_cast<CudaDevice&>(device).runtime(); }
StreamHandle native(Stream& stream) { return cuda_stream(stream).handle(); }
void check_launch(Stream& stream) { cuda_stream(stream).check_launch(); }
FaultNote* fault_note(Stream& stream) { return cuda_stream(stream).note(); }

}  // namespace moonflow::cuda
