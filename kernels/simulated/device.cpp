#include "kernels/simulated/device.h"

#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

class SimulatedStream final : public Stream {
 public:
  void wait() override {}
  FaultNote note{};
};

class SimulatedDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::Cuda; }
  std::string describe() const override { return "simulated CUDA device"; }
  const Kernel& kernel(const OpDef& op) const override {
    static const Kernel none;
    const auto found = kernels_.find(op.name);
    return found == kernels_.end() ? none : found->second;
  }
  void* allocate(int64_t bytes) override {
    void* const memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    require(memory != nullptr, ErrorCode::OutOfMemory, "no ", bytes, " bytes");
    return std::memset(memory, 0, bytes);
  }
  void free(void* memory) noexcept override { std::free(memory); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<SimulatedStream>(); }
  void copy(Stream&, void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, bytes); }
  Launch reorder(const TensorType&, const Layout&, const Layout&) override {
    fail(ErrorCode::Unsupported, "has no private layouts");
  }

 private:
  const Kernels kernels_ = make_kernels();
};

// ---- fibers --------------------------------------------------------------------------------------------------

class Fibers final : public simulated::Threads {
 public:
  Fibers(int threads, int64_t shared_bytes, const std::function<void(simulated::Threads&)>& body)
      : body_(body), contexts_(threads), stacks_(threads), done_(threads), shared_(shared_bytes / 16 + 1) {
    for (std::vector<char>& stack : stacks_) stack.resize(kStackBytes);
  }

  void run(int64_t block, int64_t blocks) {
    index = block;
    count = blocks;
    shared = reinterpret_cast<unsigned char*>(shared_.data());
    std::memset(shared, 0xff, shared_.size() * sizeof shared_[0]);
    std::memset(exchange, 0xff, sizeof exchange);
    const int threads = static_cast<int>(contexts_.size());
    for (int i = 0; i < threads; ++i) {
      done_[i] = false;
      getcontext(&contexts_[i]);
      contexts_[i].uc_stack.ss_sp = stacks_[i].data();
      contexts_[i].uc_stack.ss_size = stacks_[i].size();
      contexts_[i].uc_link = &main_;
      const auto self = reinterpret_cast<uintptr_t>(this);
      makecontext(&contexts_[i], reinterpret_cast<void (*)()>(enter), 2, static_cast<unsigned>(self),
                  static_cast<unsigned>(self >> 32));
    }
    for (bool any = true; any;) {
      any = false;
      for (int i = 0; i < threads; ++i) {
        if (done_[i]) continue;
        any = true;
        thread = i;
        swapcontext(&main_, &contexts_[i]);
      }
    }
  }

  void meet() override { swapcontext(&contexts_[thread], &main_); }

 private:
  static constexpr size_t kStackBytes = 32768;
  static void enter(unsigned low, unsigned high) {
    Fibers& self = *reinterpret_cast<Fibers*>(uintptr_t{high} << 32 | low);
    const int thread = self.thread;
    self.body_(self);
    self.done_[thread] = true;
  }
  struct Sixteen {
    char bytes[16];
  };

  const std::function<void(simulated::Threads&)>& body_;
  std::vector<ucontext_t> contexts_;
  std::vector<std::vector<char>> stacks_;
  std::vector<char> done_;
  std::vector<Sixteen> shared_;
  ucontext_t main_;
};

}  // namespace

FaultNote* fault_note(Stream& stream) { return &static_cast<SimulatedStream&>(stream).note; }

void simulated::enqueue(Stream&, int64_t blocks, int threads, int64_t shared_bytes,
                        std::function<void(Threads&)> body) {
  Fibers fibers(threads, shared_bytes, body);
  for (int64_t block = 0; block < blocks; ++block) fibers.run(block, blocks);
}

std::unique_ptr<Device> make_simulated_device() { return std::make_unique<SimulatedDevice>(); }

}  // namespace moonflow::cuda
