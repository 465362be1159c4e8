#include "kernels/simulated/fibers.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "kernels/simulated/memory.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace moonflow::cuda::simulated {

// ---- the switch of a stack -----------------------------------------------------------------------------------

#if defined(__x86_64__)
// Keeps what a function must keep on the own stack, the stack pointer in `from`, and goes on where `to` was left.
// swapcontext would ask the kernel about signals each time.
extern "C" void moonflow_switch_stack(void** from, void* to);
// Where a new stack begins: calls rbp with rbx.
extern "C" void moonflow_begin_stack();
asm(R"(
.text
.hidden moonflow_switch_stack
.globl moonflow_switch_stack
.type moonflow_switch_stack, @function
moonflow_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size moonflow_switch_stack, .-moonflow_switch_stack
.hidden moonflow_begin_stack
.globl moonflow_begin_stack
.type moonflow_begin_stack, @function
moonflow_begin_stack:
  movq %rbx, %rdi
  call *%rbp
  ud2
.size moonflow_begin_stack, .-moonflow_begin_stack
)");
#endif

namespace {
constexpr size_t kStackBytes = kPage + 124 * 1024;  // only what is used takes memory
}  // namespace

// A stack with a page below it that nobody may touch, and where its owner left off. The main one has the stack of the
// thread that runs.
struct Fibers::Fiber {
  char* stack = nullptr;
  int thread = 0;
#if defined(__x86_64__)
  void* left = nullptr;
#else
  ucontext_t left;
#endif
  // For the sanitizers.
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* tsan = nullptr;

  Fiber() = default;
  ~Fiber() {
    if (!stack) return;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan);
#endif
    munmap(stack, kStackBytes);
  }

  // `number`: fibers begin at different places of their stacks, which would else all lie in the same lines of the
  // cache.
  void begin(int number, Fibers* fibers) {
    void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, ErrorCode::OutOfMemory, "no room for the stack of a simulated thread");
    stack = static_cast<char*>(memory);
    mprotect(stack, kPage, PROT_NONE);
    bottom = stack + kPage;
    bytes = kStackBytes - kPage;
#if defined(__SANITIZE_THREAD__)
    tsan = __tsan_create_fiber(0);
#endif
    const size_t used = kStackBytes - number % 61 * 448;
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack + used);
    *--top = reinterpret_cast<void*>(&moonflow_begin_stack);
    *--top = reinterpret_cast<void*>(&Fibers::enter);  // rbp
    *--top = fibers;                                   // rbx
    for (int i = 0; i < 4; ++i) *--top = nullptr;
    left = top;
#else
    getcontext(&left);
    left.uc_stack.ss_sp = stack + kPage;
    left.uc_stack.ss_size = used - kPage;
    left.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(fibers);
    makecontext(&left, reinterpret_cast<void (*)()>(enter_apart), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
#endif
  }

#if !defined(__x86_64__)
  static void enter_apart(unsigned low, unsigned high) {
    enter(reinterpret_cast<Fibers*>(static_cast<uintptr_t>(uint64_t{high} << 32 | low)));
  }
#endif
};

// ---- orders --------------------------------------------------------------------------------------------------

Shuffled::Shuffled(int64_t count, Dice& dice) : count_(count), first_(dice.below(count)), stride_(0) {
  while (std::gcd(stride_, count) != 1) stride_ = 1 + dice.below(count);
}

std::string kernel_name(const std::type_info& kernel) {
  char* const demangled = abi::__cxa_demangle(kernel.name(), nullptr, nullptr, nullptr);
  std::string name = demangled ? demangled : kernel.name();
  std::free(demangled);
  for (const std::string_view part : {"moonflow::", "cuda::", "(anonymous namespace)::"})
    for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
  return name;
}

std::atomic<int64_t> most_shared_bytes{kMostSharedBytes};

void check(const Grid& grid) {
  constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
  require(grid.blocks >= 1 && grid.blocks <= kMostBlocks && grid.threads >= 32 && grid.threads <= kMostThreads &&
              grid.threads % 32 == 0 && grid.shared_bytes >= 0 && grid.shared_bytes <= most_shared_bytes,
          ErrorCode::Internal, "the launch of ", grid.kernel, " was refused: ", grid.blocks, " blocks of ",
          grid.threads, " threads with ", grid.shared_bytes,
          " bytes of shared memory; a block has 32, 64, ... 1024 threads and at most ", most_shared_bytes.load(),
          " bytes");
}

// ---- a block -------------------------------------------------------------------------------------------------

Fibers::Fibers(uint64_t seed) : dice_(seed), main_(std::make_unique<Fiber>()) {
  std::memset(given, 0xff, sizeof given);
}

Fibers::~Fibers() = default;

void Fibers::run(const Grid& grid) {
  constexpr int64_t kGuard = 64;
  constexpr unsigned char kCanary = 0x5a;
  grid_ = &grid;
  count = grid.blocks;
  // A heap block of its own, so that AddressSanitizer knows its end too.
  const int64_t shared_bytes = std::max<int64_t>(grid.shared_bytes, 1);
#if defined(__SANITIZE_ADDRESS__)
  const std::unique_ptr<unsigned char[]> memory(new unsigned char[shared_bytes]);
#else
  const std::unique_ptr<unsigned char[]> memory(new unsigned char[shared_bytes + kGuard]);
  std::memset(memory.get() + grid.shared_bytes, kCanary, kGuard);
#endif
  shared = memory.get();
  const Shuffled blocks(grid.blocks, dice_);
  for (int64_t i = 0; i < grid.blocks; ++i) {
    index = blocks[i];
    std::memset(shared, 0xff, grid.shared_bytes);
    std::memset(exchange, 0xff, sizeof exchange);
    run_block();
#if !defined(__SANITIZE_ADDRESS__)
    require(std::all_of(shared + grid.shared_bytes, shared + grid.shared_bytes + kGuard,
                        [](unsigned char c) { return c == kCanary; }),
            ErrorCode::Internal, "kernel ", grid.kernel, ", block ", index, ": wrote beyond its ", grid.shared_bytes,
            " bytes of shared memory");
#else
    (void)kGuard, (void)kCanary;
#endif
  }
}

void Fibers::run_block() {
  const int threads = grid_->threads, warps = threads / 32;
  std::fill(states_, states_ + threads, State::Ready);
  std::fill(fiber_of_, fiber_of_ + threads, nullptr);
  std::fill(alive_in_, alive_in_ + warps, 32);
  std::fill(waiting_in_, waiting_in_ + warps, 0);
  std::fill(exchanges, exchanges + threads, 0);
  alive_ = threads;
  at_barrier_ = 0;
  meetings = 0;
  first_ = last_ = 0;
  const Shuffled warp(warps, dice_);
  for (int i = 0; i < warps; ++i) {
    const Shuffled lane(32, dice_);
    for (int j = 0; j < 32; ++j) agenda_[last_++] = static_cast<int>(warp[i] * 32 + lane[j]);
  }
  current_ = main_.get();
#if defined(__SANITIZE_THREAD__)
  main_->tsan = __tsan_get_current_fiber();
#endif
  go_on();
  if (!error_) return;
  forget_fibers();  // some are still in the midst of a kernel
  std::exception_ptr error;
  std::swap(error, error_);
  std::rethrow_exception(error);
}

void Fibers::forget_fibers() {
  idle_.clear();
  fibers_.clear();
}

// Takes a thread's turn from its beginning, and when that thread ends without having met anyone, the next one's.
void Fibers::live() {
  for (;;) {
    while (first_ != last_ && !fiber_of_[agenda_[first_ % (2 * kMostThreads)]]) {
      thread = agenda_[first_++ % (2 * kMostThreads)];
      current_->thread = thread;
      fiber_of_[thread] = current_;
      try {
        grid_->body(*this);
      } catch (...) {
        error_ = std::current_exception();
      }
      if (error_) switch_to(*main_);
      end_thread();
    }
    idle_.push_back(current_);
    go_on();
  }
}

void Fibers::enter(Fibers* fibers) {
#if defined(__SANITIZE_ADDRESS__)
  fibers->arrive();
#endif
  fibers->live();
}

void Fibers::end_thread() {
  const int warp = thread / 32;
  states_[thread] = State::Ended;
  --alive_;
  --alive_in_[warp];
  release_warp_if_complete(warp);
  release_block_if_complete();
}

void Fibers::meet_block() {
  states_[thread] = State::AtBarrier;
  ++at_barrier_;
  release_block_if_complete();
  go_on();
}

void Fibers::meet_warp() {
  const int warp = thread / 32;
  states_[thread] = State::AtExchange;
  ++waiting_in_[warp];
  release_warp_if_complete(warp);
  go_on();
}

void Fibers::release_block_if_complete() {
  if (at_barrier_ == 0 || at_barrier_ < alive_) return;
  at_barrier_ = 0;
  ++meetings;
  const int warps = grid_->threads / 32;
  const Shuffled warp(warps, dice_);
  for (int i = 0; i < warps; ++i) {
    const Shuffled lane(32, dice_);
    for (int j = 0; j < 32; ++j) {
      const int next = static_cast<int>(warp[i] * 32 + lane[j]);
      if (states_[next] != State::AtBarrier) continue;
      states_[next] = State::Ready;
      agenda_[last_++ % (2 * kMostThreads)] = next;
    }
  }
}

// The warp goes on at once, or when all others have had their turns.
void Fibers::release_warp_if_complete(int warp) {
  if (waiting_in_[warp] == 0 || waiting_in_[warp] < alive_in_[warp]) return;
  waiting_in_[warp] = 0;
  const bool at_once = dice_() % 2 == 0;
  const Shuffled lane(32, dice_);
  int turn = 0;  // of the places to give values in
  for (int j = 0; j < 32; ++j) {
    const int next = static_cast<int>(warp * 32 + lane[j]);
    if (states_[next] != State::AtExchange) continue;
    states_[next] = State::Ready;
    turn = (exchanges[next] + 1) % 2;
    agenda_[(at_once ? --first_ : last_++) % (2 * kMostThreads)] = next;
  }
  if (alive_in_[warp] == 32) return;
  for (int i = warp * 32; i < warp * 32 + 32; ++i)  // who has ended gives nothing
    if (states_[i] == State::Ended) std::memset(given[turn][i], 0xff, kMostExchangedBytes);
}

void Fibers::go_on() {
  if (first_ == last_) {
    if (alive_ > 0) error_ = std::make_exception_ptr(Error(ErrorCode::Internal, describe_stuck()));
    return switch_to(*main_);
  }
  const int next = agenda_[first_ % (2 * kMostThreads)];
  if (fiber_of_[next]) {
    ++first_;
    switch_to(*fiber_of_[next]);
    return;
  }
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->begin(static_cast<int>(fibers_.size()), this);
    idle_.push_back(fibers_.back().get());
  }
  Fiber* const idle = idle_.back();
  idle_.pop_back();
  switch_to(*idle);
}

std::string Fibers::describe_stuck() const {
  int in_exchanges = 0;
  for (int i = 0; i < grid_->threads; ++i) in_exchanges += states_[i] == State::AtExchange;
  return text("kernel ", grid_->kernel, ", block ", index, ": the threads meet at different points, ", at_barrier_,
              " at a barrier of the block and ", in_exchanges,
              " in an exchange within their warp, which a card does not survive");
}

void Fibers::switch_to(Fiber& to) {
  Fiber& from = *current_;
  if (&from == &to) {  // the last to come is the first to go on
    thread = to.thread;
    return;
  }
  current_ = &to;
  thread = to.thread;
#if defined(__SANITIZE_ADDRESS__)
  leaving_main_ = &from == main_.get();
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
#if defined(__x86_64__)
  moonflow_switch_stack(&from.left, to.left);
#else
  swapcontext(&from.left, &to.left);
#endif
#if defined(__SANITIZE_ADDRESS__)
  arrive();
#endif
}

#if defined(__SANITIZE_ADDRESS__)
// Tells the sanitizer that the switch is done, and learns from it where the stack of the running thread lies.
void Fibers::arrive() {
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(current_->fake_stack, &bottom, &bytes);
  if (!leaving_main_) return;
  main_->bottom = bottom;
  main_->bytes = bytes;
  leaving_main_ = false;
}
#endif

}  // namespace moonflow::cuda::simulated
