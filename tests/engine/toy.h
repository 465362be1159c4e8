// A device that remembers what happened on it, and a handful of ops with obvious meaning: what the engine is tested
// with.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/session.h"

namespace moonflow::toy {

// Host memory. Counts what is allocated and alive, and can hold back runs.
class FakeDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string describe() const override { return "fake"; }
  void* allocate(int64_t bytes) override;
  void free(void* memory) noexcept override;
  std::unique_ptr<Stream> make_stream() override;
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  Launch reorder(const TensorType& type, const Layout& from, const Layout& to) override;
  void rest() noexcept override;
  double least_narrow_flops() const override { return least_flops; }

  double least_flops = 0;
  int live_buffers = 0;
  std::atomic<int> rests_here{0}, rests_elsewhere{0};  // on the thread that made the device, and on others
  int reorders = 0;                                    // launches of reorder steps
  std::atomic<int> copies{0};                          // which the threads of a prepared call make side by side
  int64_t refuse_above = -1;                           // allocations larger than this fail; negative: none do

 private:
  const std::thread::id own_ = std::this_thread::get_id();
};

// A layout in which a value stands back to front.
Layout reversed(const TensorType& type);

// float32 ops:
//   add, mul (x, y)         equal shapes
//   square (x)              in place where possible
//   same (x)                alias
//   halves (x; scale)       two outputs, each x * scale
//   plus (x, y)             x + y, or x where y is left out
//   draw (x; key)           x * a number that the key gives
//   assign_sub (variable, value)   writes; takes several such pairs in one list
//   reversing (x; by)       x + by, makes and wants the reversed layout
//   against (x, y)          x * y, which wants y reversed
//   turning (x)             the square of x, which it wants reversed where it lasts from run to run
//   by_way (x)              like same, but goes through scratch
//   bad (x)                 fails in its launch: "row 3 is bad"
//   greedy (x)              finds no memory in its launch
//   slow (x)                like same, but waits until `gate` is open
//   picky (x)               like same, but fails where an element is negative: "element 1 is -3"
//   square_add (x, y)       x * x + y, made by a rewrite of add(square(x), y)
//   gpu_only (x)            without a kernel here
//   ones (x)                ones of x's type
//   cast (x)                to the dtype of its attribute, with a kernel that copies float32
// and without kernels, for mixed precision:
//   product (x, y)          computes narrow, where x has 8 elements or more; y may stay float32
//   follow (x, bias)        goes along with x; its bias stays float32
std::shared_ptr<const Catalog> catalog();

// What `picky` throws.
[[noreturn]] void complain(int64_t place, int64_t value);

// Holds `slow` back until opened. One gate for all tests: they run one after another.
struct Gate {
  static void close();
  static void open();
};

// Submits, waits and gives the tensors in the order delivered. Throws the run's error.
std::vector<Tensor> call(Session& session, const std::shared_ptr<Plan>& plan, std::vector<Tensor> feeds,
                         bool may_run_inline = true);

// What submits these values as the only feed.
Executor::Submission feed(std::vector<float> values, bool may_run_inline = false);
// The next completion, waiting for it. Throws where none comes for long.
Completion next(Session& session);

// A session on a fake device that stays reachable.
template <class D>
struct SessionOn {
  std::shared_ptr<D> device = std::make_shared<D>();
  Session session{catalog(), device};

  std::vector<Tensor> call(const std::shared_ptr<Plan>& plan, std::vector<Tensor> feeds, bool may_run_inline = true) {
    return toy::call(session, plan, std::move(feeds), may_run_inline);
  }
};
using ToySession = SessionOn<FakeDevice>;

TensorType vec(int64_t n);
Tensor floats(std::vector<float> values);
std::vector<float> values(const Tensor& tensor);

}  // namespace moonflow::toy
