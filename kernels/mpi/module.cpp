// The processes that an MPI launcher has started. Whoever waits for the others does so by asking again and again, so
// that it can stop: one of them may have failed before it came here, and would be waited for without an end.
#include "kernels/mpi/module.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
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
    if (!is_open) ::on_exit(leave, this);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  void exchange(const std::vector<Part>& sent, const std::vector<Part>& received) override {
    require(!is_broken_, ErrorCode::WrongState, "the processes have lost each other before; start all of them again");
    is_broken_ = true;  // unless this comes to its end
    requests_.clear();
    for (const Part& part : received) {
      in_pieces(part, [&](char* data, int bytes) {
        check(MPI_Irecv(data, bytes, MPI_BYTE, part.process, kTag, world_, &requests_.emplace_back()), "MPI_Irecv");
      });
    }
    for (const Part& part : sent) {
      in_pieces(part, [&](char* data, int bytes) {
        check(MPI_Isend(data, bytes, MPI_BYTE, part.process, kTag, world_, &requests_.emplace_back()), "MPI_Isend");
      });
    }
    wait();
    is_broken_ = false;
  }

  void give_up() override { is_broken_ = true; }

 private:
  using Clock = std::chrono::steady_clock;

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
      const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
      require(waited < patience_, ErrorCode::Interrupted, "waited ", patience_,
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
};

Processes& join(double patience_seconds) {
  static World world(patience_seconds);
  return world;
}

constexpr Module kModule = {{kModuleVersion, kBuild}, join};

}  // namespace
}  // namespace moonflow::mpi

const moonflow::mpi::Module* moonflow_mpi_module() { return &moonflow::mpi::kModule; }
