// A CUDA runtime made of nothing but the host. Streams are queues; what stands at their heads is done in an order drawn
// from a seed, as late as somebody waits for it, by the thread that waits. So a run of one thread is the same each
// time, and another seed is another schedule. Everything a card would do wrong quietly is an error here that names the
// work:
//
//   * two pieces of work that touch the same bytes in no order (order.h),
//   * work on memory that is not the device's, or not any more, or a write beyond a block of it,
//   * memory of the host that is changed while it is being copied,
//   * what may not be recorded, spoils the recording that it would belong to, or is not joined when that ends,
//   * a kernel that is launched for the first time in a recording, where a card would have to load it.
//
// Such an error is sticky, as CUDA's are: nothing is done from then on, and whoever asks is told. Memory of the device
// is poisoned when it is given and when it is taken back, and out of the host's reach while none of the device's work
// is done. AddressSanitizer is told of all that, so that in its build a kernel may touch nothing but what was told.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/cuda/runtime.h"
#include "kernels/simulated/fibers.h"
#include "kernels/simulated/memory.h"
#include "kernels/simulated/order.h"

namespace moonflow::cuda::simulated {

struct Options {
  uint64_t seed = seed_of_environment();
  int64_t memory_bytes = int64_t{4} << 30;
  // What others have done to the context that they share with this device: once there is a text, the next piece of work
  // fails with it.
  const std::atomic<const char*>* ended_by = nullptr;
  int capability = 90;

  // MOONFLOW_SIMULATED_SEED, else 1.
  static uint64_t seed_of_environment();
};

class SimulatedRuntime final : public Runtime {
 public:
  explicit SimulatedRuntime(const Options& options);
  ~SimulatedRuntime() override;

  // ---- what only tests and the simulation ask for
  void enqueue(StreamHandle stream, Grid grid);
  void enqueue(StreamHandle stream, std::string name, std::function<void()> work);
  // After so many further pieces of work the device fails with this text.
  void fail_after(int64_t pieces, std::string text);
  // What the latest recording holds, in the order it was enqueued.
  std::vector<std::string> latest_recording() const;
  static Properties properties(const Options& options);
  static SimulatedRuntime& of_stream(StreamHandle stream);

  // ---- Runtime
  const Properties& properties() const override { return properties_; }
  int64_t free_bytes() override;
  void enter() override;
  void* allocate(int64_t bytes) override;
  void free(void* memory) noexcept override;
  void* allocate_staging(int64_t bytes) override;
  void free_staging(void* memory) noexcept override;
  StreamHandle make_stream() override;
  void destroy(StreamHandle stream) noexcept override;
  void synchronize(StreamHandle stream) override;
  void copy(StreamHandle stream, void* to, const void* from, int64_t bytes) override;
  void fill(StreamHandle stream, void* memory, int byte, int64_t bytes) override;
  void call(StreamHandle stream, const std::function<void()>& work) override;
  void check_launch() override;
  void touches(StreamHandle stream, const std::vector<Range>& reads, const std::vector<Range>& writes) override;
  EventHandle make_event() override;
  void destroy(EventHandle event) noexcept override;
  void record(StreamHandle stream, EventHandle event) override;
  void wait_for(StreamHandle stream, EventHandle event) override;
  bool done(EventHandle event) override;
  void synchronize(EventHandle event) override;
  void lower(int* flag) override;
  bool raised(const int* flag) override;
  void begin_capture(StreamHandle stream) override;
  GraphHandle end_capture(StreamHandle stream) override;
  void launch(StreamHandle stream, GraphHandle graph) override;
  void destroy(GraphHandle graph) noexcept override;

 private:
  struct Mark;
  struct Piece;
  struct Item;
  struct Queue;
  struct Event;
  struct Capture;
  struct Graph;
  using Lock = std::unique_lock<std::mutex>;

  static Queue& of(StreamHandle stream);
  static Event& of(EventHandle event);

  void check() const;  // throws what has failed
  void give_up(std::string text);
  void refuse_while_capturing(const std::string& what);
  Capture* capture_of_this_thread() const;

  int new_line();
  void add(Queue& queue, Piece piece);
  void learn(const Clock& clock);  // the host knows it now

  void run_until(Lock& lock, const std::function<bool()>& reached);
  void drain(Lock& lock) noexcept;
  bool step(uint64_t mood);  // does one thing of one stream; false: there is nothing that can be done
  bool can_go_on(const Queue& queue) const;
  void go_on(Queue& queue);
  bool go_on(Queue& queue, Item& item);
  void perform(const Piece& piece, const Uses& uses, int line, Clock& clock);

  mutable std::mutex mutex_;
  Properties properties_;
  Dice dice_;
  Fibers fibers_;
  const std::atomic<const char*>* const ended_by_;
  std::string failure_;
  int64_t fails_after_ = -1;
  std::string injected_;
  std::set<std::thread::id> entered_;
  std::set<std::string> loaded_;  // kernels that have been launched

  Memory memory_;
  std::vector<std::unique_ptr<Queue>> queues_;
  int streams_made_ = 0;
  std::vector<int> free_lines_;
  std::vector<int64_t> ticks_;  // by line
  Clock host_;                  // what the host has waited for
  Accesses accesses_;
  std::vector<std::string> latest_recording_;
};

}  // namespace moonflow::cuda::simulated
