// A place with memory and ordered lanes of work. The engine sees devices only through this; the CPU and CUDA devices
// live in kernels/, the fake one in the tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace moonflow {

struct LaunchCall;
using Launch = std::function<void(const LaunchCall&)>;

enum class DeviceKind { Cpu, Cuda };
const char* name(DeviceKind kind);  // "cpu", "gpu"

// How a device stores a value: row-major, or a private form that only the device can read. Two layouts are the same
// when their descriptions are equal byte for byte.
struct Layout {
  std::vector<unsigned char> description;  // empty: row-major
  int64_t bytes = 0;                       // memory a value needs in a private form; unused for row-major

  bool row_major() const { return description.empty(); }
  friend bool operator==(const Layout& a, const Layout& b) { return a.description == b.description; }
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }
};

// An ordered lane of work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void wait() = 0;  // until everything enqueued so far is done; throws what went wrong
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string describe() const = 0;
  // How people write a layout of this device: "aBcd16b".
  virtual std::string describe(const Layout& layout) const { return layout.row_major() ? "rows" : "private"; }

  // Called on a thread before it prepares or launches for this device: what third parties keep per thread (OpenMP's
  // thread count, CUDA's current device) is set here. Cheap, and may be called again and again.
  virtual void enter() {}

  virtual void* allocate(int64_t bytes) = 0;  // kAlignment-aligned and zeroed; throws OutOfMemory
  virtual void free(void* memory) noexcept = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Between device and host memory, or within the device, in the order of the stream.
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;
  // A launch that rewrites a value from one layout into another (one input, one output).
  virtual Launch reorder(const TensorType& type, const Layout& from, const Layout& to) = 0;
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
