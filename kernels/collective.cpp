// What processes that compute together do with each other's values. Each op is a meeting, to which all of them come in
// one order, with the same types. Sums are those of the ranks in their order, so that all processes have the same bits,
// whatever carries them.
#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/processes.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// Of meetings with the same types it says which one it is: values of two jobs must not be added up.
constexpr char kTopic[] = "topic";
AttrDef topic() { return {kTopic, std::string(), "what it is about, the same in all processes"}; }

// The kernel that holds a meeting in each launch: held(meeting, call) gives what it does there.
template <class Held>
Kernel meeting_kernel(const char* name, const Held& held) {
  return {[name, held](KernelCall& call) -> Launch {
    std::string what = name;
    for (size_t i = 0; i < call.inputs.size(); ++i) what += text(i == 0 ? " of " : ", ", call.inputs[i]);
    for (const auto& [key, value] : call.attrs)
      if (key != kTopic) what += text(", ", key, " ", str(value));
    if (const std::string& topic = call.attrs.string(kTopic); !topic.empty()) what += text(", of '", topic, "'");
    const auto meeting = std::make_shared<Meeting>(what);
    return [meeting, work = held(*meeting, call)](const LaunchCall& launch) {
      meeting->hold([&] { work(*meeting, launch); });
    };
  }};
}

// What reaches a value of this process from all of them: they descend by the sum of what each minimises.
ValueId sum_of_all(GradCall& g, ValueId grad) { return g.op("all_reduce", {grad}); }

// ---- all_reduce ----------------------------------------------------------------------------------------------

enum class Reduction { Sum, Mean, Max, Min };

Reduction reduction_of(const std::string& name) {
  const char* const names[] = {"sum", "mean", "max", "min"};
  for (int i = 0; i < 4; ++i)
    if (name == names[i]) return static_cast<Reduction>(i);
  fail(ErrorCode::InvalidArgument, "reduction is \"", name, "\", it can be \"sum\", \"mean\", \"max\" or \"min\"");
}

// Calls f with what makes one value of two: of a mean the sum. A NaN stays.
template <class F>
void visit_combination(Reduction reduction, const F& f) {
  if (reduction == Reduction::Max) return f([](auto x, auto y) { return y > x || y != y ? y : x; });
  if (reduction == Reduction::Min) return f([](auto x, auto y) { return y < x || y != y ? y : x; });
  return f([](auto x, auto y) { return static_cast<decltype(x)>(x + y); });
}

constexpr int64_t kBlock = 512;  // elements that stay in the first cache

// out = the reduction of `count` elements of each part; `out` may be one of them.
template <class T, class Combine>
void reduce_parts(const std::vector<const T*>& parts, int64_t count, bool is_mean, const Combine& combine, T* out) {
  using Wide = std::conditional_t<kNarrow<T>, float, T>;
  cpu::parallel_for(count, cpu::kWideGrain, [&](int64_t first, int64_t last) {
    cpu::widest([first, last, is_mean, combine, out, &parts] {
      Wide block[kBlock];
      for (int64_t begin = first; begin < last; begin += kBlock) {
        const int64_t n = std::min(kBlock, last - begin);
        const T* x = parts[0] + begin;
        for (int64_t i = 0; i < n; ++i) block[i] = static_cast<Wide>(x[i]);
        for (size_t part = 1; part < parts.size(); ++part) {
          x = parts[part] + begin;
          for (int64_t i = 0; i < n; ++i) block[i] = combine(block[i], static_cast<Wide>(x[i]));
        }
        if (is_mean)
          for (int64_t i = 0; i < n; ++i) block[i] /= static_cast<Wide>(parts.size());
        for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(block[i]);
      }
    });
  });
}

// The values of one dtype, reduced as one. Process r reduces the r-th share of their elements, and gives it to all.
// Nothing is put together for that: a share is pieces of some of the values.
class Together {
 public:
  Together(DType dtype, Reduction reduction, const Meeting& meeting)
      : dtype_(dtype), reduction_(reduction), size_(meeting.size()), rank_(meeting.rank()) {}

  void add(int index, int64_t count) {
    members_.push_back({index, count_, count});
    count_ += count;
  }

  DType dtype() const { return dtype_; }
  int64_t scratch_bytes() const { return size_ * room(); }

  void operator()(Meeting& meeting, const LaunchCall& launch) const {
    char* const scratch = static_cast<char*>(launch.scratch);  // the own share of each process
    for (int r = 0; r < size_; ++r) {
      each_piece(r, [&](const Piece& piece) { meeting.send(r, in(launch, piece), piece.count * width()); });
      each_piece(rank_, [&](const Piece& piece) { meeting.receive(r, in(scratch, r, piece), piece.count * width()); });
    }
    meeting.exchange();
    visit_stored(dtype_, [&](auto zero) {
      using T = decltype(zero);
      std::vector<const T*> parts(size_);
      each_piece(rank_, [&](const Piece& piece) {
        for (int r = 0; r < size_; ++r)
          parts[r] = reinterpret_cast<const T*>(r == rank_ ? in(launch, piece) : in(scratch, r, piece));
        visit_combination(reduction_, [&](auto combine) {
          reduce_parts<T>(parts, piece.count, reduction_ == Reduction::Mean, combine,
                          reinterpret_cast<T*>(out(launch, piece)));
        });
      });
    });
    for (int r = 0; r < size_; ++r) {
      each_piece(rank_, [&](const Piece& piece) { meeting.send(r, out(launch, piece), piece.count * width()); });
      each_piece(r, [&](const Piece& piece) { meeting.receive(r, out(launch, piece), piece.count * width()); });
    }
    meeting.exchange();
  }

 private:
  struct Member {
    int index;
    int64_t first, count;  // of all elements
  };
  struct Piece {
    int index;
    int64_t at, in_share, count;  // where it begins in its value, and in the share
  };

  int64_t width() const { return size_of(dtype_); }
  int64_t first(int r) const { return count_ / size_ * r + std::min<int64_t>(r, count_ % size_); }
  int64_t room() const {  // of one share
    return size_ == 1 ? 0 : aligned((count_ / size_ + 1) * width());
  }
  const char* in(const LaunchCall& launch, const Piece& piece) const {
    return static_cast<const char*>(launch.inputs[piece.index]) + piece.at * width();
  }
  char* in(char* scratch, int r, const Piece& piece) const { return scratch + r * room() + piece.in_share * width(); }
  char* out(const LaunchCall& launch, const Piece& piece) const {
    return static_cast<char*>(launch.outputs[piece.index]) + piece.at * width();
  }

  template <class Work>
  void each_piece(int share, const Work& work) const {
    const int64_t begin = first(share), end = first(share + 1);
    for (const Member& member : members_) {
      const int64_t from = std::max(begin, member.first), to = std::min(end, member.first + member.count);
      if (from < to) work(Piece{member.index, from - member.first, from - begin, to - from});
    }
  }

  DType dtype_;
  Reduction reduction_;
  int size_, rank_;
  std::vector<Member> members_;
  int64_t count_ = 0;
};

// Of each value its own reduction, so of those with a gradient all in one meeting.
std::vector<ValueId> all_reduce_grad(GradCall& g) {
  const std::string& reduction = g.attrs.string("reduction");
  require(reduction == "sum" || reduction == "mean", ErrorCode::Unsupported, "a ", reduction,
          " over processes has no gradient; flow.stop_gradient keeps it from the loss");
  std::vector<ValueId> arrived, grads;
  for (const ValueId grad : g.grads)
    if (grad != kNone) arrived.push_back(grad);
  const std::vector<ValueId> reduced = g.ops("all_reduce", arrived, {{"reduction", reduction}});
  size_t next = 0;
  for (const ValueId grad : g.grads) grads.push_back(grad == kNone ? kNone : reduced[next++]);
  return grads;
}

OpDef all_reduce() {
  OpDef op;
  op.name = "all_reduce";
  op.doc =
      "Values of all processes that compute together, reduced element by element in the order of their ranks, so that "
      "each process has the same result. Alone, a process has its own.\n"
      "  out[i] = sum over ranks of x[i], or their mean, maximum or minimum\n"
      "shapes: any number of x of any shapes, the same in all processes -> each the same\n"
      "dtypes: all; of bfloat16 and float16 the sums are float32; mean: floating ones alone\n"
      "gradients: of a sum, and of a mean, the same of the gradients; a maximum or minimum has none\n"
      "errors: a process that has come to something else; one that does not come";
  op.inputs = {{"x", InputDef::Many}};
  op.attrs = {{"reduction", std::string("sum"), "\"sum\", \"mean\", \"max\" or \"min\""}, topic()};
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
  op.grad = all_reduce_grad;
  op.narrow.in_kernels = true;
  op.on_host = true;
  op.meets_others = true;
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
      "gradient: the sum of those of all processes, at the root; 0 elsewhere\n"
      "errors: a root that there is not; a process that has come to something else; one that does not come";
  op.inputs = {{"x"}};
  op.attrs = {{"root", int64_t{0}, "the rank of the process whose value it is"}, topic()};
  op.infer = [](const OpCall& call) {
    const int64_t root = call.attrs.integer("root"), size = processes().size();
    require(root >= 0 && root < size, ErrorCode::OutOfRange, "root is ", root, ", and there ",
            size == 1 ? "is one process, 0" : text("are processes 0 to ", size - 1));
    return std::vector<TensorType>{call.type(0)};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    // The same ops in all processes, so that all of them come to the sum.
    const ValueId sum = sum_of_all(g, g.grads[0]);
    const int8_t is_root = g.attrs.integer("root") == processes().rank();
    const ValueId condition = g.graph.constant(Tensor::of<int8_t>({}, {is_root}), g.name + "-is_root");
    return {g.op("where", {condition, sum, g.op("zeros_like", {sum})})};
  };
  op.narrow.in_kernels = true;
  op.on_host = true;
  op.meets_others = true;
  op.cpu = meeting_kernel("broadcast_from", [](const Meeting&, KernelCall& call) {
    const int root = static_cast<int>(call.attrs.integer("root"));
    return [root, bytes = call.inputs[0].bytes()](Meeting& held, const LaunchCall& launch) {
      for (int r = 0; held.rank() == root && r < held.size(); ++r) held.send(r, launch.inputs[0], bytes);
      held.receive(root, launch.outputs[0], bytes);
      held.exchange();
      if (held.rank() == root) copy_bytes(launch.outputs[0], launch.inputs[0], bytes);
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
      "gradient: the sum of those of all processes, of the own rows\n"
      "errors: x without an axis; a process that has come to something else; one that does not come";
  op.inputs = {{"x"}};
  op.attrs = {topic()};
  op.infer = [](const OpCall& call) {
    TensorType type = call.type(0);
    require(type.shape.rank() >= 1, ErrorCode::ShapeMismatch, "x is ", type, ", and rows have an axis");
    Shape shape = type.shape;
    shape[0] *= processes().size();
    return std::vector<TensorType>{{type.dtype, shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Shape& shape = g.type(g.inputs[0]).shape;
    Ints begin(static_cast<size_t>(shape.rank()), 0);
    begin[0] = processes().rank() * shape[0];
    return {g.op("slice", {sum_of_all(g, g.grads[0])}, {{"begin", begin}, {"size", shape.dims()}})};
  };
  op.narrow.in_kernels = true;
  op.on_host = true;
  op.meets_others = true;
  op.cpu = meeting_kernel("all_gather", [](const Meeting&, KernelCall& call) {
    return [bytes = call.inputs[0].bytes()](Meeting& held, const LaunchCall& launch) {
      char* const out = static_cast<char*>(launch.outputs[0]);
      for (int r = 0; r < held.size(); ++r) {
        held.send(r, launch.inputs[0], bytes);
        held.receive(r, out + r * bytes, bytes);
      }
      held.exchange();
      copy_bytes(out + held.rank() * bytes, launch.inputs[0], bytes);
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
