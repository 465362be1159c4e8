#include "kernels/cuda/cudart.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "kernels/cuda/context.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/slabs.h"

namespace moonflow::cuda {

namespace {

// ---- what CUDA says ------------------------------------------------------------------------------------------

std::string words_of(cudaError_t status) {
  return text("CUDA error ", static_cast<int>(status), " (", cudaGetErrorName(status),
              "): ", cudaGetErrorString(status));
}

// After these the context is lost, and every call gives them again.
bool is_end_of_context(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
#if CUDART_VERSION >= 13000
    case cudaErrorTensorMemoryLeak:
#endif
      return true;
    default:
      return false;
  }
}

// For calls that give back, where nobody can do anything about a failure.
void let_go(cudaError_t status) noexcept {
  if (status != cudaSuccess) cudaGetLastError();
}

// ---- which cards there are -----------------------------------------------------------------------------------

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

// Whatever the runtime says, it is no card for us. What people can do about it differs.
std::string reason_of(cudaError_t status) {
  int driver = 0;  // stays so without one
  cudaDriverGetVersion(&driver);
  const auto because = [&](const auto&... parts) {
    return text(parts..., status == cudaSuccess ? "" : " (" + words_of(status) + ")");
  };
  if (is_end_of_context(status)) return words_of(status) + kContextIsLost;
  switch (status) {
    case cudaErrorStubLibrary:
      return because(
          "the CUDA toolkit's stub stands in the place of the driver's libcuda.so.1; take its folder out of ",
          "LD_LIBRARY_PATH");
    case cudaErrorInsufficientDriver:
      if (driver == 0) return because("no NVIDIA driver is installed");
      return because("the NVIDIA driver is for CUDA ", version_text(driver), ", and our module for ",
                     version_text(CUDART_VERSION), "; install a newer driver");
    case cudaSuccess:
    case cudaErrorNoDevice:
      return because("the NVIDIA driver finds no card; nvidia-smi lists them, CUDA_VISIBLE_DEVICES may hide them");
    default:
      return because("the NVIDIA driver does not start; nvidia-smi may know more");
  }
}

// ---- the runtime ---------------------------------------------------------------------------------------------

Properties properties_of(int index) {
  cudaDeviceProp card;
  check(cudaGetDeviceProperties(&card, index));
  return {card.name, card.major * 10 + card.minor, card.multiProcessorCount, static_cast<int64_t>(card.totalGlobalMem),
          static_cast<int64_t>(card.sharedMemPerBlockOptin)};
}

class Cudart final : public Runtime {
 public:
  explicit Cudart(int index)
      : index_(index),
        properties_(properties_of(index)),
        staging_([this](int64_t bytes) { return allocate_pinned(bytes); },
                 [](void* memory) { let_go(cudaFreeHost(memory)); }) {
    enter();
  }
  ~Cudart() override {
    for (const Alarm& alarm : alarms_) destroy(alarm);
  }

  const Properties& properties() const override { return properties_; }
  int64_t free_bytes() override {
    size_t free = 0, all = 0;
    check(cudaMemGetInfo(&free, &all));
    return static_cast<int64_t>(free);
  }
  void enter() override { check(cudaSetDevice(index_)); }

  // ---- memory

  void* allocate(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, std::max<int64_t>(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(status);
    try {
      const std::unique_lock lock(mutex_);
      own_.emplace(static_cast<const char*>(memory), bytes);
    } catch (...) {
      let_go(cudaFree(memory));
      throw;
    }
    return memory;
  }
  void free(void* memory) noexcept override {
    {
      const std::unique_lock lock(mutex_);
      own_.erase(static_cast<const char*>(memory));
    }
    let_go(cudaFree(memory));
  }
  void* allocate_staging(int64_t bytes) override { return staging_.take(bytes); }
  void free_staging(void* memory) noexcept override { staging_.give(memory); }

  // ---- streams

  StreamHandle make_stream() override {
    StreamHandle stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void destroy(StreamHandle stream) noexcept override { let_go(cudaStreamDestroy(stream)); }
  // By an alarm, which sleeps: cudaStreamSynchronize would keep a core busy for as long as it takes.
  void synchronize(StreamHandle stream) override {
    const cudaError_t now = cudaStreamQuery(stream);
    if (now != cudaErrorNotReady) return check(now);
    cudaGetLastError();
    const TakenAlarm alarm(*this);
    alarm.sleep_behind(stream);
  }
  void copy(StreamHandle stream, void* to, const void* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
    // CUDA leaves open whether it has read or written foreign memory of the host by now.
    if (!is_own(to) || !is_own(from)) synchronize(stream);
  }
  void call(StreamHandle stream, const std::function<void()>& work) override {
    check(cudaLaunchHostFunc(
        stream, [](void* given) { (*static_cast<const std::function<void()>*>(given))(); },
        const_cast<std::function<void()>*>(&work)));
  }
  void fill(StreamHandle stream, void* memory, int byte, int64_t bytes) override {
    check(cudaMemsetAsync(memory, byte, static_cast<size_t>(bytes), stream));
  }
  void check_launch() override { check(cudaGetLastError()); }

  // ---- events

  // Nothing is interrupted when it comes to pass. An event that one can sleep for interrupts a core each time, whether
  // somebody sleeps or not, which takes that core some ten microseconds of a virtual machine's time.
  EventHandle make_event() override { return make_event(cudaEventDisableTiming); }
  void destroy(EventHandle event) noexcept override { let_go(cudaEventDestroy(event)); }
  void record(StreamHandle stream, EventHandle event) override { check(cudaEventRecord(event, stream)); }
  void wait_for(StreamHandle stream, EventHandle event) override { check(cudaStreamWaitEvent(stream, event, 0)); }
  bool done(EventHandle event) override {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(status);
    return true;
  }
  void synchronize(EventHandle event) override {
    const TakenAlarm alarm(*this);
    wait_for(alarm.stream(), event);
    alarm.sleep_behind(alarm.stream());
  }

  // ---- flags

  void lower(int* flag) override { __atomic_store_n(flag, 0, __ATOMIC_RELEASE); }
  bool raised(const int* flag) override { return __atomic_load_n(flag, __ATOMIC_ACQUIRE) == 1; }

  // ---- graphs

  // In the mode of this thread alone, so that other threads may allocate and wait meanwhile.
  void begin_capture(StreamHandle stream) override {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  GraphHandle end_capture(StreamHandle stream) override {
    struct Captured {
      cudaGraph_t graph = nullptr;
      ~Captured() {
        if (graph) let_go(cudaGraphDestroy(graph));
      }
    } captured;
    check(cudaStreamEndCapture(stream, &captured.graph));
    // It goes to the card at once, or the first launch would take the time.
    cudaGraphInstantiateParams parameters{};
    parameters.flags = cudaGraphInstantiateFlagUpload;
    parameters.uploadStream = stream;
    GraphHandle made = nullptr;
    check(cudaGraphInstantiateWithParams(&made, captured.graph, &parameters));
    return made;
  }
  void launch(StreamHandle stream, GraphHandle graph) override { check(cudaGraphLaunch(graph, stream)); }
  void destroy(GraphHandle graph) noexcept override { let_go(cudaGraphExecDestroy(graph)); }

 private:
  static EventHandle make_event(unsigned flags) {
    EventHandle event = nullptr;
    check(cudaEventCreateWithFlags(&event, flags));
    return event;
  }

  // An event to sleep for, and a stream of its own on which it can be put behind another event.
  struct Alarm {
    StreamHandle stream;
    EventHandle event;
  };
  class TakenAlarm {
   public:
    explicit TakenAlarm(Cudart& runtime) : runtime_(runtime) {
      {
        const std::unique_lock lock(runtime.mutex_);
        if (!runtime.alarms_.empty()) {
          alarm_ = runtime.alarms_.back();
          runtime.alarms_.pop_back();
          return;
        }
      }
      alarm_.event = make_event(cudaEventDisableTiming | cudaEventBlockingSync);
      try {
        alarm_.stream = runtime.make_stream();
      } catch (...) {
        runtime.destroy(alarm_.event);
        throw;
      }
    }
    ~TakenAlarm() {
      try {
        const std::unique_lock lock(runtime_.mutex_);
        runtime_.alarms_.push_back(alarm_);
      } catch (...) {
        runtime_.destroy(alarm_);
      }
    }
    TakenAlarm(const TakenAlarm&) = delete;
    TakenAlarm& operator=(const TakenAlarm&) = delete;

    StreamHandle stream() const { return alarm_.stream; }
    void sleep_behind(StreamHandle stream) const {
      runtime_.record(stream, alarm_.event);
      check(cudaEventSynchronize(alarm_.event));
    }

   private:
    Cudart& runtime_;
    Alarm alarm_{};
  };
  void destroy(const Alarm& alarm) noexcept {
    destroy(alarm.event);
    destroy(alarm.stream);
  }

  void* allocate_pinned(int64_t bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(status);
    return memory;
  }

  // Memory of the card or staging, which copies may go on reading and writing.
  bool is_own(const void* memory) const {
    if (staging_.has(memory)) return true;
    const auto* const at = static_cast<const char*>(memory);
    const std::shared_lock lock(mutex_);
    const auto next = own_.upper_bound(at);
    return next != own_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }

  const int index_;
  const Properties properties_;
  Slabs staging_;
  mutable std::shared_mutex mutex_;
  std::map<const char*, int64_t> own_;  // the card's memory: where it begins, and how much it is
  std::vector<Alarm> alarms_;           // that nobody has taken
};

}  // namespace

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else the next launch of this thread would be blamed for it
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Internal, words_of(status),
       is_end_of_context(status) ? kContextIsLost : "");
}

CudaProbe probe_cards() {
  CudaProbe probe;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int i = 0; i < count && status == cudaSuccess; ++i) {
    cudaDeviceProp card;
    status = cudaGetDeviceProperties(&card, i);
    if (status == cudaSuccess)
      probe.cards.push_back({card.name, static_cast<int64_t>(card.totalGlobalMem), card.major * 10 + card.minor});
  }
  if (status != cudaSuccess) probe.cards.clear();
  if (probe.cards.empty()) probe.reason = reason_of(status);
  cudaGetLastError();  // it would come up again at this thread's next call
  return probe;
}

int current_card() {
  int card = 0;
  check(cudaGetDevice(&card));
  return card;
}

// Another thread may launch the kernel with more at the same time, so what is allowed only grows.
void allow_shared(const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static auto* const allowed = new std::map<std::pair<const void*, int>, int64_t>;
  const std::lock_guard<std::mutex> lock(mutex);
  const int card = current_card();
  int64_t& most = (*allowed)[{kernel, card}];
  if (most >= bytes) return;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status == cudaErrorInvalidValue) {
    cudaGetLastError();  // it would be found behind the next launch
    int has = 0;
    check(cudaDeviceGetAttribute(&has, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
    fail(ErrorCode::Unsupported, "its kernel wants ", bytes, " bytes of shared memory for a block, and this card has ",
         has, " for one; the cpu computes it");
  }
  check(status);  // perhaps that of a launch before
  most = bytes;
}

unsigned checked_blocks(int64_t blocks) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  require(blocks <= kMost, ErrorCode::Unsupported, "its kernel wants ", blocks, " blocks, and a card starts at most ",
          kMost, " at once; the cpu computes it");
  return static_cast<unsigned>(blocks);
}

std::unique_ptr<Runtime> make_cudart(int index) {
  auto runtime = std::make_unique<Cudart>(index);
  const Properties& card = runtime->properties();
  require(card.capability >= 75, ErrorCode::Unsupported, "gpu ", index, " (", card.name, ") has compute capability ",
          card.capability / 10, ".", card.capability % 10, ", and our kernels need 7.5 or a newer one");
  return runtime;
}

}  // namespace moonflow::cuda
