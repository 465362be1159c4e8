#include "card.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

namespace moonflow::toy {

class CardStream;

// What streams have recorded together.
struct Recorded {
  struct Piece {
    std::function<void()> run;
    std::vector<int> after;  // pieces before it
  };
  std::vector<Piece> pieces;
  std::vector<CardStream*> streams;  // the trunk comes first
};

class CardEvent final : public Event {
 public:
  explicit CardEvent(FakeCard& card) : card_(card) {}

  void wait() override {
    std::unique_lock<std::mutex> lock(card_.mutex_);
    const int64_t wanted = *recorded;
    const auto is_reached = [&] { return lowered_ ? *raised : *reached >= wanted; };
    card_.changed_.wait(lock, [&] { return is_reached() || !card_.failure_.empty(); });
    require(is_reached(), ErrorCode::Internal, card_.failure_);
  }
  void lower() override {
    const std::lock_guard<std::mutex> lock(card_.mutex_);
    lowered_ = true;
    *raised = false;
  }

  // Shared with the work that stands for it in streams.
  const std::shared_ptr<int64_t> recorded = std::make_shared<int64_t>(0), reached = std::make_shared<int64_t>(0);
  const std::shared_ptr<bool> raised = std::make_shared<bool>(false);
  // Where it was recorded last, if that became part of a recording.
  std::shared_ptr<Recorded> recording;
  std::vector<int> pieces;

 private:
  FakeCard& card_;
  bool lowered_ = false;
};

class CardRecording final : public Recording {
 public:
  explicit CardRecording(std::shared_ptr<Recorded> recorded) : recorded(std::move(recorded)) {}
  const std::shared_ptr<Recorded> recorded;
};

class CardStream final : public Stream {
 public:
  explicit CardStream(FakeCard& card, CardStream* trunk = nullptr)
      : card_(card),
        luck_(card.next_stream_++),
        fault_(trunk ? trunk->fault_ : &own_fault_),
        thread_([this] { work(); }) {}

  ~CardStream() override {
    {
      const std::lock_guard<std::mutex> lock(card_.mutex_);
      ends_ = true;
    }
    card_.changed_.notify_all();
    thread_.join();
  }

  void wait() override {
    std::unique_lock<std::mutex> lock(card_.mutex_);
    if (recording_) card_.violations_.push_back("the host waits for a stream that records");
    card_.changed_.wait(lock, [&] { return (queue_.empty() && !busy_) || !card_.failure_.empty(); });
    require(card_.failure_.empty(), ErrorCode::Internal, card_.failure_);
  }

  void record(Event& event) override {
    auto& of = static_cast<CardEvent&>(event);
    of.recording = recording_;
    of.pieces = last_;
    if (recording_) return;
    int64_t number = 0;
    {
      const std::lock_guard<std::mutex> lock(card_.mutex_);
      number = ++*of.recorded;
    }
    enqueue([this, reached = of.reached, number] {
      const std::lock_guard<std::mutex> lock(card_.mutex_);
      *reached = number;
    });
  }

  void wait_for(Event& event) override {
    auto& of = static_cast<CardEvent&>(event);
    const std::lock_guard<std::mutex> lock(card_.mutex_);
    require(card_.failure_.empty(), ErrorCode::Internal, card_.failure_);
    if (recording_ && recording_ != of.recording)
      card_.violations_.push_back("a recording waits for what is outside of it");
    if (of.recording) {
      if (!recording_) of.recording->streams.push_back(this);
      recording_ = of.recording;
      last_.insert(last_.end(), of.pieces.begin(), of.pieces.end());
      return;
    }
    const int64_t number = *of.recorded;
    queue_.push_back({[] {}, [reached = of.reached, number] { return *reached >= number; }});
    card_.changed_.notify_all();
  }

  void begin_recording() override {
    recording_ = std::make_shared<Recorded>();
    recording_->streams = {this};
  }

  // Of what was spoilt there is no recording, and the device says only that.
  std::unique_ptr<Recording> end_recording() override {
    ++card_.recordings;
    const std::shared_ptr<Recorded> recorded = recording_;
    std::vector<bool> joined(recorded->pieces.size(), false);
    for (const int piece : last_) joined[piece] = true;
    for (size_t piece = joined.size(); piece-- > 0;)
      for (const int before : recorded->pieces[piece].after) joined[before] = joined[before] || joined[piece];
    for (CardStream* const stream : recorded->streams) {
      stream->recording_ = nullptr;
      stream->last_.clear();
    }
    require(!card_.refuses_launches, ErrorCode::Internal, "the recording was spoilt before");
    require(std::find(joined.begin(), joined.end(), false) == joined.end(), ErrorCode::Internal,
            "the recording ends before one of its branches");
    return std::make_unique<CardRecording>(recorded);
  }

  void start(Recording& recording) override {
    ++card_.replays;
    enqueue([this, recorded = static_cast<CardRecording&>(recording).recorded] {
      const std::vector<Recorded::Piece>& pieces = recorded->pieces;
      std::vector<bool> done(pieces.size(), false);
      for (size_t left = pieces.size(); left > 0; --left) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < pieces.size(); ++i)
          if (!done[i] && std::all_of(pieces[i].after.begin(), pieces[i].after.end(), [&](int at) { return done[at]; }))
            ready.push_back(i);
        const size_t next = ready[luck_() % ready.size()];
        pieces[next].run();
        done[next] = true;
      }
    });
  }

  void touches(const std::vector<Range>& reads, const std::vector<Range>& writes) override {
    reads_ = reads;
    writes_ = writes;
  }

  void copy_small(void* to, const void* from, int64_t bytes) override {
    enqueue([this, to, from, bytes] { copy_now(to, from, bytes); });
  }

  void end_run(const RunEnd& end) override {
    const auto flag = end.event ? static_cast<CardEvent&>(*end.event).raised : nullptr;
    enqueue([this, end, flag] {
      if (end.fault) {
        *end.fault = *fault_;
        fault_->step = -1;
      }
      copy_now(end.to, end.from, end.bytes);
      if (!flag) return;
      const std::lock_guard<std::mutex> lock(card_.mutex_);
      *flag = true;
      card_.changed_.notify_all();
    });
  }

  void enqueue(std::function<void()> piece) {
    if (recording_) {
      recording_->pieces.push_back({std::move(piece), std::move(last_)});
      last_ = {static_cast<int>(recording_->pieces.size()) - 1};
      return;
    }
    const std::lock_guard<std::mutex> lock(card_.mutex_);
    require(card_.failure_.empty(), ErrorCode::Internal, card_.failure_);
    queue_.push_back({std::move(piece), [] { return true; }});
    card_.changed_.notify_all();
  }

  // On the stream's thread.
  void note(const Fault& fault) {
    if (fault_->step < 0) *fault_ = fault;
  }
  bool has_fault() const { return fault_->step >= 0; }

  std::vector<Range> reads_, writes_;  // of the next launch

 private:
  struct Piece {
    std::function<void()> run;
    std::function<bool()> may_begin;  // asked with the card's mutex held
  };

  // On the stream's thread. What is not small is not for it.
  void copy_now(void* to, const void* from, int64_t bytes) {
    if (bytes == 0) return;
    if (bytes > card_.wants_small_bytes) card_.violate("a small copy is not small");
    card_.copy_now(to, from, bytes, "a small copy");
  }

  void work() {
    std::unique_lock<std::mutex> lock(card_.mutex_);
    for (;;) {
      card_.changed_.wait(lock, [&] {
        if (!card_.failure_.empty()) queue_.clear();
        return queue_.empty() ? ends_ : queue_.front().may_begin();
      });
      if (queue_.empty()) return;
      Piece piece = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      for (unsigned turns = luck_() % 4; turns > 0; --turns) std::this_thread::yield();
      piece.run();
      lock.lock();
      busy_ = false;
      card_.changed_.notify_all();
    }
  }

  FakeCard& card_;
  std::minstd_rand luck_;
  Fault own_fault_{-1, 0, 0};
  Fault* const fault_;  // the trunk's in a branch
  std::shared_ptr<Recorded> recording_;
  std::vector<int> last_;  // pieces of it that the next one comes after
  std::deque<Piece> queue_;
  bool busy_ = false;
  bool ends_ = false;
  std::thread thread_;
};

namespace {

CardStream& on(Stream& stream) { return static_cast<CardStream&>(stream); }

}  // namespace

FakeCard::FakeCard() {
  const auto reserve = [](int access) {
    void* const memory = mmap(nullptr, kBytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(memory);
  };
  seen_ = reserve(PROT_NONE);
  real_ = reserve(PROT_READ | PROT_WRITE);
}

FakeCard::~FakeCard() {
  munmap(seen_, kBytes);
  munmap(real_, kBytes);
}

char* FakeCard::real(const void* memory) const {
  const char* const at = static_cast<const char*>(memory);
  return owns(memory) ? real_ + (at - seen_) : const_cast<char*>(at);
}

void* FakeCard::allocate(int64_t bytes) {
  require(refuse_above < 0 || bytes <= refuse_above, ErrorCode::OutOfMemory, "no memory for ", bytes, " bytes");
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t offset = next_;  // never used before, so zeroed
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  require(next_ <= kBytes, ErrorCode::OutOfMemory, "no memory for ", bytes, " bytes");
  blocks_[offset] = bytes;
  ++live_buffers;
  return seen_ + offset;
}

void FakeCard::free(void* memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.erase(static_cast<char*>(memory) - seen_);
  --live_buffers;
}

void* FakeCard::allocate_staging(int64_t bytes) {
  void* const memory = std::malloc(static_cast<size_t>(bytes));
  std::memset(memory, 0xff, static_cast<size_t>(bytes));
  ++live_staging;
  return memory;
}

// As CUDA does, not before the copies that are going on are over: whoever waits is told of a failure at once.
void FakeCard::free_staging(void* memory) noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return copying_ == 0; });
  --live_staging;
  std::free(memory);
}

std::unique_ptr<Stream> FakeCard::make_stream() { return std::make_unique<CardStream>(*this); }

std::unique_ptr<Stream> FakeCard::make_branch(Stream& trunk) {
  return std::make_unique<CardStream>(*this, &on(trunk));
}

std::unique_ptr<Event> FakeCard::make_event() { return std::make_unique<CardEvent>(*this); }

void FakeCard::copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  on(stream).enqueue([this, to, from, bytes] {
    ++copies;
    copy_now(to, from, bytes, "a copy");
  });
}

void FakeCard::copy_now(void* to, const void* from, int64_t bytes, const std::string& who) {
  for (const void* const memory : {static_cast<const void*>(to), from})
    if (owns(memory)) check_lives({memory, bytes}, who);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) return;
    ++copying_;
  }
  std::memcpy(real(to), real(from), static_cast<size_t>(bytes));
  const std::lock_guard<std::mutex> lock(mutex_);
  --copying_;
  changed_.notify_all();
}

// The copies that are going on come to their end: the host would write what they read.
void FakeCard::fail(const std::string& text) {
  std::unique_lock<std::mutex> lock(mutex_);
  failure_ = text;
  changed_.notify_all();
  changed_.wait(lock, [&] { return copying_ == 0; });
}

std::vector<std::string> FakeCard::violations() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

void FakeCard::violate(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  violations_.push_back(what);
}

void FakeCard::check_lives(const Range& range, const std::string& who) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t offset = static_cast<const char*>(range.data) - seen_;
  auto after = blocks_.upper_bound(offset);
  const bool lives = owns(range.data) && after != blocks_.begin() &&
                     offset + range.bytes <= std::prev(after)->first + std::prev(after)->second;
  if (!lives) violations_.push_back(who + " uses memory that is not allocated on the card");
}

// A kernel of the host, done later on the card's memory.
Launch FakeCard::later(const std::string& who, Launch launch, std::vector<int64_t> input_bytes,
                       std::vector<int64_t> output_bytes, int64_t scratch_bytes, bool writes) {
  return [=](const LaunchCall& call) {
    const bool refused = refuses_launches || (refuses_launch_after >= 0 && refuses_launch_after-- == 0);
    require(!refused, ErrorCode::Internal, "the launch was refused");
    CardStream& stream = on(call.stream);
    const std::vector<void*> inputs(call.inputs, call.inputs + input_bytes.size());
    const std::vector<void*> outputs(call.outputs, call.outputs + output_bytes.size());
    const auto told = [](const std::vector<Range>& ranges, void* memory, int64_t bytes) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [&](const Range& range) { return range.data == memory && range.bytes >= bytes; });
    };
    bool all_told = true;
    for (size_t i = 0; i < inputs.size(); ++i) all_told = all_told && told(stream.reads_, inputs[i], input_bytes[i]);
    for (size_t i = 0; i < outputs.size(); ++i)
      all_told = all_told && told(stream.writes_, outputs[i], output_bytes[i]);
    if (writes) all_told = all_told && told(stream.writes_, inputs[0], input_bytes[0]);
    if (scratch_bytes > 0) all_told = all_told && told(stream.writes_, call.scratch, scratch_bytes);
    if (!all_told) {
      const std::lock_guard<std::mutex> lock(mutex_);
      violations_.push_back(who + " touches what its stream was not told of");
    }
    stream.enqueue([=, &stream, scratch = call.scratch, step = call.step] {
      ++launches;
      std::vector<void*> real_inputs, real_outputs;
      for (size_t i = 0; i < inputs.size(); ++i) check_lives({inputs[i], input_bytes[i]}, who);
      for (size_t i = 0; i < outputs.size(); ++i) check_lives({outputs[i], output_bytes[i]}, who);
      for (void* const input : inputs) real_inputs.push_back(real(input));
      for (void* const output : outputs) real_outputs.push_back(real(output));
      if (writes && stream.has_fault()) return;
      launch(LaunchCall{stream, real_inputs.data(), real_outputs.data(), real(scratch), step});
    });
  };
}

const Kernel& FakeCard::kernel(const OpDef& op) const {
  static const Kernel none;
  if (lacks.count(op.name) != 0 || (!op.cpu && op.name != "gpu_only")) return none;
  const std::lock_guard<std::mutex> lock(kernels_mutex_);
  const auto known = kernels_.find(op.name);
  if (known != kernels_.end()) return known->second;
  Kernel kernel = op.cpu;
  kernel.prepare = [this, name = op.name, prepare = op.cpu.prepare, writes = !op.writes.empty()](KernelCall& call) {
    std::vector<int64_t> input_bytes, output_bytes;
    for (const TensorType& type : call.inputs) input_bytes.push_back(type.bytes());
    for (const TensorType& type : call.outputs) output_bytes.push_back(type.bytes());
    Launch launch;
    if (name == "gpu_only") {
      launch = [n = call.outputs[0].count()](const LaunchCall& call) {
        std::copy_n(call.input<float>(0), n, call.output<float>(0));
      };
    } else if (name == "picky") {
      call.explain = complain;
      launch = [n = call.outputs[0].count()](const LaunchCall& call) {
        for (int64_t i = 0; i < n; ++i) {
          const float x = call.input<float>(0)[i];
          if (x < 0) on(call.stream).note({call.step, i, static_cast<int64_t>(x)});
          call.output<float>(0)[i] = x;
        }
      };
    } else {
      launch = prepare(call);
    }
    if (name == "bad" || name == "greedy") {  // with a value that they complain of
      return Launch([launch](const LaunchCall& call) {
        float one = 1;
        void* memory = &one;
        launch(LaunchCall{call.stream, &memory, &memory, nullptr, call.step});
      });
    }
    return const_cast<FakeCard*>(this)->later(name, std::move(launch), std::move(input_bytes), std::move(output_bytes),
                                              call.scratch_bytes, writes);
  };
  return kernels_.emplace(op.name, std::move(kernel)).first->second;
}

Launch FakeCard::reorder(const TensorType& type, const Layout& from, const Layout& to) {
  const int64_t n = type.count();
  const bool turns = from != to;
  return later(
      "reorder",
      [n, turns](const LaunchCall& call) {
        const float* const x = call.input<float>(0);
        if (turns)
          std::reverse_copy(x, x + n, call.output<float>(0));
        else
          std::copy_n(x, n, call.output<float>(0));
      },
      {type.bytes()}, {type.bytes()}, 0, false);
}

}  // namespace moonflow::toy
