// A place with memory and ordered lanes of work. The engine sees devices only through this; the CPU and CUDA devices
// live in kernels/, the fake one in the tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace moonflow {

struct Kernel;
struct LaunchCall;
struct OpCall;
struct OpDef;
using Launch = std::function<void(const LaunchCall&)>;

enum class DeviceKind { Cpu, Cuda };
const char* name(DeviceKind kind);  // "cpu", "gpu"

// How a device stores a value: row-major, or a private form that only the device can read. Two layouts are the same
// when their descriptions are equal byte for byte.
struct Layout {
  std::vector<unsigned char> description;  // empty: row-major
  int64_t bytes = 0;                       // memory a value needs in a private form; see bytes_of

  bool row_major() const { return description.empty(); }
  int64_t bytes_of(const TensorType& type) const { return row_major() ? type.bytes() : bytes; }
  friend bool operator==(const Layout& a, const Layout& b) { return a.description == b.description; }
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }
};

// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void wait() = 0;  // until the stream has come here; throws what went wrong on the device
  // From now on it is waited for until the end of a run raises it; see RunEnd.
  virtual void lower() {}
};

// Work of a stream that was recorded once, and is started as a whole again and again.
class Recording {
 public:
  virtual ~Recording() = default;
};

// Memory that a piece of work reads or writes.
struct Range {
  const void* data;
  int64_t bytes;
};

// What work found wrong with its values after its launch had returned; see KernelCall::explain.
struct Fault {
  int step;
  int64_t place;
  int64_t value;
};

// What follows the work of a run, as one piece of work: the host learns of it sooner than of several.
struct RunEnd {
  Fault* fault = nullptr;  // staging that gets the first fault of the work so far, which is forgotten; see take_fault
  // A small copy, to staging.
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
  // Is raised last. It is to be lowered before each such work starts, and recorded behind it: for streams that wait for
  // it, and for the host where work fails or takes long.
  Event* event = nullptr;
};

// An ordered lane of work. Of a device that is not asynchronous() only wait() is called.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void wait() = 0;  // until everything enqueued so far is done; throws what went wrong

  virtual void record(Event&) {}
  virtual void wait_for(Event&) {}  // what is enqueued from now on begins after the event
  // What is enqueued in between is recorded and not done.
  virtual void begin_recording() {}
  virtual std::unique_ptr<Recording> end_recording() { return nullptr; }
  virtual void start(Recording&) {}
  // What the launches from now on touch, for a device that checks the order of its work.
  virtual void touches(const std::vector<Range>& reads, const std::vector<Range>& writes) { (void)reads, (void)writes; }
  // A copy among memory of the device and staging that no other hardware is asked for: sooner done where it is small,
  // which is up to Device::small_bytes().
  virtual void copy_small(void* to, const void* from, int64_t bytes) { (void)to, (void)from, (void)bytes; }
  virtual void end_run(const RunEnd& end) { (void)end; }
  // Enqueues a copy of the first fault of the work so far to staging, its `step` -1 without one, and forgets it.
  void take_fault(Fault* to) {
    RunEnd end;
    end.fault = to;
    end_run(end);
  }
  // Where launches note faults, and look for one before they write variables: for whoever tells what they touch.
  virtual Range fault_note() const { return {nullptr, 0}; }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string describe() const = 0;
  // How people write a layout of this device: "aBcd16b".
  virtual std::string describe(const Layout& layout) const { return layout.row_major() ? "rows" : "private"; }

  // The layout of the same memory under another shape of as many elements; row-major where it has no form for that.
  virtual Layout reshaped(const TensorType& type, const Layout& layout, const TensorType& to) const {
    return (void)type, (void)layout, (void)to, Layout{};
  }

  // How this device computes an op; an empty kernel where it cannot.
  virtual const Kernel& kernel(const OpDef& op) const;
  // Whether an op that can compute in a narrow dtype, or follow in it, is faster so here, with these inputs.
  virtual bool computes_in(DType narrow, const OpDef& op, const OpCall& call) const;
  // Whether an op that stays in float32 rounds what it multiplies here.
  virtual bool rounds_to(DType narrow, const OpDef& op, const OpCall& call) const;
  // What the ops of a plan must compute all together before any of them is faster in a narrow dtype.
  virtual double least_narrow_flops() const { return 0; }

  // Called on a thread before it prepares or launches for this device: what third parties keep per thread (OpenMP's
  // thread count, CUDA's current device) is set here. Cheap, and may be called again and again.
  virtual void enter() {}
  // Called on such a thread when it has no work for a while, or another one is about to launch: gives back what would
  // slow that one down. Cheap where there is nothing, and may be called again and again.
  virtual void rest() noexcept {}

  virtual void* allocate(int64_t bytes) = 0;  // kAlignment-aligned and zeroed; throws OutOfMemory
  virtual void free(void* memory) noexcept = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Between device and host memory, or within the device, in the order of the stream.
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;
  // Whether launches return before their work is done. Such a device has events, and memory of the host that it copies
  // to and from while other work goes on. Any other computes in the host's own memory.
  virtual bool asynchronous() const { return false; }
  // Whether a plan's steps should be recorded and started as a whole.
  virtual bool records() const { return false; }
  virtual int64_t small_bytes() const { return 0; }  // that Stream::copy_small and the end of a run copy at most
  virtual std::unique_ptr<Event> make_event() { return nullptr; }
  virtual void* allocate_staging(int64_t bytes) { return allocate(bytes); }
  virtual void free_staging(void* memory) noexcept { free(memory); }
  // A launch that rewrites a value from one layout into another. Throws Unsupported where rows must stand between them.
  virtual Launch reorder(const TensorType& type, const Layout& from, const Layout& to) = 0;
  // How many branches the steps of a plan may form, which go side by side (engine/branches.h), and a stream for one
  // beside `trunk`, which must outlive it: both note faults in one place.
  virtual int branches() const { return 1; }
  virtual std::unique_ptr<Stream> make_branch(Stream& trunk) { return (void)trunk, make_stream(); }
};

// Device memory with an owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, int64_t bytes) : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_) device_->free(data_);
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device& device() const { return *device_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace moonflow
