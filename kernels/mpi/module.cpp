// The processes that an MPI launcher has started. Whoever waits for the others does so by asking again and again, so
// that it can stop: one of them may have failed before it came here, and would be waited for without an end.
#include "kernels/mpi/module.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "kernels/build.h"

namespace moonflow::mpi {
namespace {

constexpr int64_t kMostAtOnce = int64_t{1} << 30;  // a count is an int
constexpr int kTag = 0x6d66;
constexpr int kEagerAsks = 100;  // before a wait gives its core away for longer
constexpr int kWordTag = 0x6d67;

// What one that was stopped tells the others, each once: that it was, and that it has saved what it had to.
enum class Word : char { None, Stopped, Ready };
constexpr Word kWords[] = {Word::None, Word::Stopped, Word::Ready};  // where MPI reads them from

// A word may overtake what was sent before it, where processes have several wires.
constexpr std::chrono::milliseconds kOvertaking{50};
constexpr double kSilenceSeconds = 10;  // in which one that still works comes to what needs the others

void check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, message, &length);
  fail(ErrorCode::Internal, what, ": ", std::string(message, length));
}

class World : public Processes {
 public:
  explicit World(double patience_seconds) : patience_(patience_seconds) {
    int is_open = 0, level = 0;
    check(MPI_Initialized(&is_open), "MPI_Initialized");
    if (!is_open) check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    require(level >= MPI_THREAD_SERIALIZED, ErrorCode::Unsupported,
            "this MPI may be called from one thread alone, and runs of jobs have another; take one with "
            "MPI_THREAD_SERIALIZED");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(world_, &size_), "MPI_Comm_size");
    MPI_Comm machine = MPI_COMM_NULL;
    check(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
    check(MPI_Comm_rank(machine, &local_rank_), "MPI_Comm_rank");
    check(MPI_Comm_free(&machine), "MPI_Comm_free");
    words_.resize(size_);
    if (!is_open) ::on_exit(leave, this);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  void exchange(const std::vector<Part>& sent, const std::vector<Part>& received) override {
    require(!is_stopped_, ErrorCode::Interrupted, "the processes are being stopped, and exchange nothing any more");
    require(!is_broken_, ErrorCode::WrongState, "the processes have lost each other before; start all of them again");
    is_broken_ = true;  // unless this comes to its end
    requests_.clear();
    partners_.clear();
    for (const Part& part : received) {
      in_pieces(part, [&](char* data, int bytes) {
        partners_.push_back(part.process);
        check(MPI_Irecv(data, bytes, MPI_BYTE, part.process, kTag, world_, &requests_.emplace_back()), "MPI_Irecv");
      });
    }
    for (const Part& part : sent) {
      in_pieces(part, [&](char* data, int bytes) {
        partners_.push_back(part.process);
        check(MPI_Isend(data, bytes, MPI_BYTE, part.process, kTag, world_, &requests_.emplace_back()), "MPI_Isend");
      });
    }
    wait();
    is_broken_ = false;
  }

  void give_up() override { is_broken_ = true; }

  void stop() override {
    is_stopped_ = true;
    if (const std::unique_lock lock(turn, std::try_to_lock); lock) tell_stop();  // else who exchanges does
  }

  void part() override {
    const auto begin = Clock::now();
    std::unique_lock lock(turn, std::defer_lock);
    while (!lock.try_lock()) {
      if (seconds_since(begin) > kSilenceSeconds) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    hear();
    if (!is_stopped_ && count(Word::None) == size_) return;
    is_stopped_ = is_broken_ = true;
    tell_stop();
    tell(Word::Ready);
    words_[rank_] = Word::Ready;
    while (count(Word::Ready) < size_) {
      if (seconds_since(begin) > (count(Word::None) > 0 ? std::min(kSilenceSeconds, patience_) : patience_)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      hear();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void tell(Word word) {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      MPI_Request request;  // nobody waits for so few bytes
      check(MPI_Isend(&kWords[static_cast<int>(word)], 1, MPI_BYTE, r, kWordTag, world_, &request), "MPI_Isend");
      check(MPI_Request_free(&request), "MPI_Request_free");
    }
  }

  void tell_stop() {
    if (words_[rank_] != Word::None) return;
    words_[rank_] = Word::Stopped;
    tell(Word::Stopped);
  }

  void hear() {
    for (;;) {
      int there = 0;
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kWordTag, world_, &there, &status), "MPI_Iprobe");
      if (!there) return;
      const int r = status.MPI_SOURCE;
      check(MPI_Recv(&words_[r], 1, MPI_BYTE, r, kWordTag, world_, MPI_STATUS_IGNORE), "MPI_Recv");
      heard_ = Clock::now();
    }
  }

  int count(Word word) const { return static_cast<int>(std::count(words_.begin(), words_.end(), word)); }

  // Throws where what is to come or go needs one that has stopped. What that one has sent before, as its part of the
  // step that it still made, counts: so all stop before the same step.
  void heed_stops() {
    if (is_stopped_) tell_stop();
    hear();
    if (Clock::now() - heard_ < kOvertaking) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const int r = partners_[i];
      int done = 0;
      if (words_[r] == Word::None) continue;
      check(MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done) continue;
      drop_requests();
      if (const auto call = on_stopped.load()) call();
      fail(ErrorCode::Interrupted, "process ", r, " has been stopped, so all are");
    }
  }

  // The script goes on, so nothing that comes late may be written where it was expected.
  void drop_requests() {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      check(MPI_Cancel(&request), "MPI_Cancel");
      check(MPI_Request_free(&request), "MPI_Request_free");
    }
  }

  template <class Piece>
  static void in_pieces(const Part& part, const Piece& piece) {
    char* const data = static_cast<char*>(part.data);
    for (int64_t first = 0; first < part.bytes; first += kMostAtOnce)
      piece(data + first, static_cast<int>(std::min(kMostAtOnce, part.bytes - first)));
  }

  void wait() {
    const auto begin = Clock::now();
    for (int64_t asked = 0;; ++asked) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
      if (done) return;
      if (asked < kEagerAsks) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      heed_stops();
      const double patience = is_stopped_ ? std::min(kSilenceSeconds, patience_) : patience_;
      require(seconds_since(begin) < patience, ErrorCode::Interrupted, "waited ", patience,
              " s for the other processes, of which one has not come here: it has failed, or calls other jobs, or in "
              "another order");
    }
  }

  // MPI ends what one process leaves without taking leave, which waits for the others: so one that has failed must not.
  static void leave(int status, void* self) {
    if (status == 0 && !static_cast<World*>(self)->is_broken_) MPI_Finalize();
  }

  const double patience_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  bool is_broken_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<int> partners_;  // of each request
  std::atomic<bool> is_stopped_{false};
  std::vector<Word> words_;  // the last of each process
  Clock::time_point heard_;
};

Processes& join(double patience_seconds) {
  static World world(patience_seconds);
  return world;
}

constexpr Module kModule = {{kModuleVersion, kBuild}, join};

}  // namespace
}  // namespace moonflow::mpi

const moonflow::mpi::Module* moonflow_mpi_module() { return &moonflow::mpi::kModule; }
