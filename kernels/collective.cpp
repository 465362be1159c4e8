// What processes that compute together do with each other's values. Each op is a meeting: all processes come to it, in
// the same order and with the same types, which they tell each other first, so that those which went different ways say
// so in place of waiting for each other. Sums are those of the ranks in their order, so that all processes have the
// same bits, whatever carries them.
#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/processes.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- meetings ------------------------------------------------------------------------------------------------

class Meeting {
 public:
  using Part = Processes::Part;

  explicit Meeting(const std::string& what)
      : processes_(processes_to_meet()), to_(size()), from_(size()), tickets_(size()) {
    Ticket& own = tickets_[rank()];
    own.digest = std::hash<std::string>{}(what);
    std::memcpy(own.what, what.data(), std::min(what.size(), sizeof own.what - 1));
  }

  int rank() const { return processes_.rank(); }
  int size() const { return processes_.size(); }

  // `work` may exchange what it likes with the others.
  template <class Work>
  void hold(const Work& work) {
    const std::lock_guard turn(processes_.turn);
    Ticket& own = tickets_[rank()];
    exchange([&](int) { return Part{&own, sizeof own}; }, [&](int r) { return Part{&tickets_[r], sizeof own}; });
    for (int r = 0; r < size(); ++r)
      require(tickets_[r].digest == own.digest, ErrorCode::WrongState, "process ", r, " has come to ", tickets_[r].what,
              ", and process ", rank(), ", this one, to ", own.what,
              "; all of them have to make the same calls of the same jobs, in one order");
    work();
  }

  // to(r) goes to process r, from(r) comes from it.
  template <class To, class From>
  void exchange(const To& to, const From& from) {
    for (int r = 0; r < size(); ++r) to_[r] = to(r), from_[r] = from(r);
    processes_.exchange(to_.data(), from_.data());
  }

 private:
  struct Ticket {
    uint64_t digest = 0;
    char what[120] = {};
  };

  Processes& processes_;
  std::vector<Part> to_, from_;
  std::vector<Ticket> tickets_;
};

// The kernel that holds a meeting in each launch: held(meeting, call) gives what it does there.
template <class Held>
Kernel meeting_kernel(const char* name, const Held& held) {
  return {[name, held](KernelCall& call) -> Launch {
    std::string what = name;
    for (size_t i = 0; i < call.inputs.size(); ++i) what += text(i == 0 ? " of " : ", ", call.inputs[i]);
    for (const auto& [key, value] : call.attrs) what += text(", ", key, " ", str(value));
    const auto meeting = std::make_shared<Meeting>(what);
    return [meeting, work = held(*meeting, call)](const LaunchCall& launch) {
      meeting->hold([&] { work(*meeting, launch); });
    };
  }};
}

// ---- all_reduce ----------------------------------------------------------------------------------------------

enum class Reduction { Sum, Mean, Max, Min };

Reduction reduction_of(const std::string& name) {
  const char* const names[] = {"sum", "mean", "max", "min"};
  for (int i = 0; i < 4; ++i)
    if (name == names[i]) return static_cast<Reduction>(i);
  fail(ErrorCode::InvalidArgument, "reduction is \"", name, "\", it can be \"sum\", \"mean\", \"max\" or \"min\"");
}

template <class T>
void reduce_into(T& so_far, T x, Reduction reduction) {
  if (reduction <= Reduction::Mean) {
    so_far += x;
  } else if (reduction == Reduction::Max ? x > so_far || x != x : x < so_far || x != x) {
    so_far = x;
  }
}

// out = the reduction of count elements of each part; `out` may be one of them.
template <class T>
void reduce_parts(const std::vector<const T*>& parts, int64_t count, Reduction reduction, T* out) {
  using Wide = std::conditional_t<kNarrow<T>, float, T>;
  constexpr int64_t kBlock = 512;
  cpu::parallel_for(count, cpu::kWideGrain, [&](int64_t first, int64_t last) {
    Wide block[kBlock];
    for (int64_t begin = first; begin < last; begin += kBlock) {
      const int64_t n = std::min(kBlock, last - begin);
      for (int64_t i = 0; i < n; ++i) block[i] = static_cast<Wide>(parts[0][begin + i]);
      for (size_t part = 1; part < parts.size(); ++part) {
        const T* const x = parts[part] + begin;
        for (int64_t i = 0; i < n; ++i) reduce_into(block[i], static_cast<Wide>(x[i]), reduction);
      }
      if (reduction == Reduction::Mean)
        for (int64_t i = 0; i < n; ++i) block[i] /= static_cast<Wide>(parts.size());
      for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(block[i]);
    }
  });
}

// The values of one dtype, reduced as one. Process r reduces the r-th share of them, and gives it to all.
class Together {
 public:
  Together(DType dtype, Reduction reduction, const Meeting& meeting)
      : dtype_(dtype), reduction_(reduction), size_(meeting.size()), rank_(meeting.rank()) {}

  void add(int index, int64_t count) {
    members_.push_back({index, count_, count});
    count_ += count;
  }

  DType dtype() const { return dtype_; }
  int64_t scratch_bytes() const { return size_ == 1 ? 0 : packed_bytes() + received_bytes(); }

  void operator()(Meeting& meeting, const LaunchCall& launch) const {
    const auto each = [&](auto&& f) {
      for (const Member& m : members_) f(m.index, m.first * width(), m.count * width());
    };
    if (size_ == 1) {
      each([&](int i, int64_t, int64_t bytes) {
        if (bytes > 0 && launch.outputs[i] != launch.inputs[i]) std::memcpy(launch.outputs[i], launch.inputs[i], bytes);
      });
      return;
    }
    char* const packed = static_cast<char*>(launch.scratch);
    char* const received = packed + packed_bytes();
    each([&](int i, int64_t at, int64_t bytes) {
      if (bytes > 0) std::memcpy(packed + at, launch.inputs[i], bytes);
    });
    const auto share = [&](int r) { return Processes::Part{packed + first(r) * width(), share_bytes(r)}; };
    const auto place = [&](int r) { return Processes::Part{received + r * share_room(), share_bytes(rank_)}; };
    meeting.exchange(share, place);
    visit_stored(dtype_, [&](auto zero) {
      using T = decltype(zero);
      std::vector<const T*> parts(size_);
      for (int r = 0; r < size_; ++r) parts[r] = static_cast<const T*>((r == rank_ ? share(r) : place(r)).data);
      reduce_parts<T>(parts, first(rank_ + 1) - first(rank_), reduction_, static_cast<T*>(share(rank_).data));
    });
    meeting.exchange([&](int) { return share(rank_); }, share);
    each([&](int i, int64_t at, int64_t bytes) {
      if (bytes > 0) std::memcpy(launch.outputs[i], packed + at, bytes);
    });
  }

 private:
  struct Member {
    int index;
    int64_t first, count;
  };

  int64_t width() const { return size_of(dtype_); }
  int64_t first(int r) const { return count_ * r / size_; }
  int64_t share_bytes(int r) const { return (first(r + 1) - first(r)) * width(); }
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  int64_t packed_bytes() const { return aligned(count_ * width()); }
  int64_t share_room() const { return aligned((count_ / size_ + 1) * width()); }
  int64_t received_bytes() const { return size_ * share_room(); }

  DType dtype_;
  Reduction reduction_;
  int size_, rank_;
  std::vector<Member> members_;
  int64_t count_ = 0;
};

OpDef all_reduce() {
  OpDef op;
  op.name = "all_reduce";
  op.doc =
      "Values of all processes that compute together, reduced element by element in the order of their ranks, so that "
      "each process has the same result. Alone, a process has its own.\n"
      "  out[i] = sum over ranks of x[i], or their mean, maximum or minimum\n"
      "shapes: any number of x of any shapes, the same in all processes -> each the same\n"
      "dtypes: all; of bfloat16 and float16 the sums are float32; mean: floating ones alone\n"
      "errors: a process that has come to something else; one that does not come";
  op.inputs = {{"x", InputDef::Many}};
  op.attrs = {{"reduction", std::string("sum"), "\"sum\", \"mean\", \"max\" or \"min\""}};
  op.infer = [](const OpCall& call) {
    const Reduction reduction = reduction_of(call.attrs.string("reduction"));
    std::vector<TensorType> types;
    for (int i = 0; i < call.count(); ++i) {
      require(reduction != Reduction::Mean || is_floating(call.dtype(i)) || is_narrow(call.dtype(i)),
              ErrorCode::DtypeMismatch, "a mean needs floating values, got ", call.type(i));
      types.push_back(call.type(i));
    }
    return types;
  };
  op.narrow.in_kernels = true;
  op.cpu = meeting_kernel("all_reduce", [](const Meeting& meeting, KernelCall& call) {
    const Reduction reduction = reduction_of(call.attrs.string("reduction"));
    std::vector<Together> groups;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const TensorType& type = call.inputs[i];
      auto group = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.dtype() == type.dtype; });
      if (group == groups.end()) group = groups.emplace(group, type.dtype, reduction, meeting);
      group->add(static_cast<int>(i), type.count());
    }
    for (const Together& group : groups) call.scratch_bytes = std::max(call.scratch_bytes, group.scratch_bytes());
    return [groups](Meeting& held, const LaunchCall& launch) {
      for (const Together& group : groups) group(held, launch);
    };
  });
  op.examples = {{{f32({2, 3}), f32({4}), i32({3})}},
                 {{f32({5}), {DType::Float64, {3}}, bf16({2})}, {{"reduction", std::string("mean")}}},
                 {{i32({4})}, {{"reduction", std::string("max")}}}};
  return op;
}

// ---- broadcast, all_gather -----------------------------------------------------------------------------------

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

OpDef broadcast() {
  OpDef op;
  op.name = "broadcast_from";
  op.doc =
      "A value of one of the processes that compute together, in all of them.\n"
      "  out = x of the process with the rank `root`\n"
      "shapes: x of any shape, the same in all processes -> the same\n"
      "dtypes: all\n"
      "errors: a root that there is not; a process that has come to something else; one that does not come";
  op.inputs = {{"x"}};
  op.attrs = {{"root", int64_t{0}, "the rank of the process whose value it is"}};
  op.infer = [](const OpCall& call) {
    const int64_t root = call.attrs.integer("root"), size = processes().size();
    require(root >= 0 && root < size, ErrorCode::OutOfRange, "root is ", root, ", and there ",
            size == 1 ? "is one process, 0" : text("are processes 0 to ", size - 1));
    return std::vector<TensorType>{call.type(0)};
  };
  op.narrow.in_kernels = true;
  op.cpu = meeting_kernel("broadcast_from", [](const Meeting& meeting, KernelCall& call) {
    const int root = static_cast<int>(call.attrs.integer("root"));
    return [root, rank = meeting.rank(), bytes = call.inputs[0].bytes()](Meeting& held, const LaunchCall& launch) {
      const Processes::Part none{nullptr, 0}, own{launch.inputs[0], bytes}, filled{launch.outputs[0], bytes};
      held.exchange([&](int) { return rank == root ? own : none; },
                    [&](int r) { return r == root && r != rank ? filled : none; });
      if (rank == root) copy_bytes(launch.outputs[0], launch.inputs[0], bytes);
    };
  });
  op.examples = {{{f32({2, 3})}}, {{i32({4})}}};
  return op;
}

OpDef all_gather() {
  OpDef op;
  op.name = "all_gather";
  op.doc =
      "The rows of all processes that compute together, in the order of their ranks.\n"
      "  out = the x of all processes, joined along axis 0\n"
      "shapes: x (n, ...), the same in all processes -> (processes * n, ...)\n"
      "dtypes: all\n"
      "errors: x without an axis; a process that has come to something else; one that does not come";
  op.inputs = {{"x"}};
  op.infer = [](const OpCall& call) {
    TensorType type = call.type(0);
    require(type.shape.rank() >= 1, ErrorCode::ShapeMismatch, "x is ", type, ", and rows have an axis");
    Shape shape = type.shape;
    shape[0] *= processes().size();
    return std::vector<TensorType>{{type.dtype, shape}};
  };
  op.narrow.in_kernels = true;
  op.cpu = meeting_kernel("all_gather", [](const Meeting& meeting, KernelCall& call) {
    return [rank = meeting.rank(), bytes = call.inputs[0].bytes()](Meeting& held, const LaunchCall& launch) {
      char* const out = static_cast<char*>(launch.outputs[0]);
      held.exchange(
          [&](int) {
            return Processes::Part{launch.inputs[0], bytes};
          },
          [&](int r) {
            return Processes::Part{out + r * bytes, bytes};
          });
      copy_bytes(out + rank * bytes, launch.inputs[0], bytes);
    };
  });
  op.examples = {{{f32({2, 3})}}, {{i32({4})}}};
  return op;
}

}  // namespace

void add_collective(Catalog& catalog) {
  catalog.add(all_reduce());
  catalog.add(broadcast());
  catalog.add(all_gather());
}

}  // namespace moonflow
