#include "toy.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>

#include "engine/rewriter.h"

namespace moonflow::toy {

namespace {

std::mutex gate_mutex;
std::condition_variable gate_changed;
bool gate_is_open = true;

class FakeStream final : public Stream {
 public:
  void wait() override {}
};

std::vector<TensorType> same_type(const OpCall& call) {
  for (int i = 1; i < call.count(); ++i)
    require(call.type(i) == call.type(0), ErrorCode::ShapeMismatch, "x is ", call.shape(0), ", y is ", call.shape(i));
  return {call.type(0)};
}

// An element-wise kernel of one or two inputs.
template <class F>
Kernel each(F f) {
  Kernel kernel;
  kernel.prepare = [f](KernelCall& call) -> Launch {
    const int64_t n = call.outputs[0].count();
    return [f, n](const LaunchCall& launch) {
      const float* x = static_cast<const float*>(launch.inputs[0]);
      float* out = static_cast<float*>(launch.outputs[0]);
      if constexpr (std::is_invocable_v<F, float, float>) {
        const float* y = static_cast<const float*>(launch.inputs[1]);
        for (int64_t i = 0; i < n; ++i) out[i] = f(x[i], y[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
      }
    };
  };
  return kernel;
}

// Finds no memory for what it keeps.
Kernel greedy_kernel() {
  Kernel kernel;
  kernel.prepare = [](KernelCall&) -> Launch { throw std::bad_alloc(); };
  return kernel;
}

bool rewrite_square_add(Rewriter& rewriter, NodeId id) {
  const Node& add = rewriter.node(id);
  const NodeId square = rewriter.made_by(add.inputs[0], "square");
  if (square == kNone || rewriter.sole_reader(add.inputs[0]) != id) return false;
  rewriter.fuse({square, id}, "square_add", {rewriter.node(square).inputs[0], add.inputs[1]}, {}, add.outputs);
  return true;
}

OpDef op(std::string name, std::vector<InputDef> inputs, Kernel cpu, Grad grad = {}) {
  OpDef def;
  def.name = std::move(name);
  def.inputs = std::move(inputs);
  def.infer = same_type;
  def.cpu = std::move(cpu);
  def.grad = std::move(grad);
  return def;
}

OpDef halves() {
  OpDef def;
  def.name = "halves";
  def.inputs = {{"x"}};
  def.outputs = {"a", "b"};
  def.attrs = {{"scale", 0.5, "factor of each output"}};
  def.infer = [](const OpCall& call) { return std::vector<TensorType>(2, call.type(0)); };
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    const int64_t n = call.outputs[0].count();
    const float scale = static_cast<float>(call.attrs.number("scale"));
    return [n, scale](const LaunchCall& launch) {
      for (int output = 0; output < 2; ++output)
        for (int64_t i = 0; i < n; ++i)
          static_cast<float*>(launch.outputs[output])[i] = scale * static_cast<const float*>(launch.inputs[0])[i];
    };
  };
  return def;
}

OpDef plus() {
  OpDef def = op("plus", {{"x"}, {"y", InputDef::Optional}}, {});
  def.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    return [n = call.outputs[0].count(), has_y = call.has(1)](const LaunchCall& launch) {
      for (int64_t i = 0; i < n; ++i)
        launch.output<float>(0)[i] = launch.input<float>(0)[i] + (has_y ? launch.input<float>(1)[i] : 0);
    };
  };
  return def;
}

OpDef draw() {
  OpDef def = op("draw", {{"x"}}, {});
  def.attrs = {{"key", std::string(), "of the number", true}};
  def.random = true;
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    const float drawn = static_cast<float>(call.attrs.string("key").size());
    return [n = call.outputs[0].count(), drawn](const LaunchCall& launch) {
      for (int64_t i = 0; i < n; ++i) launch.output<float>(0)[i] = launch.input<float>(0)[i] * drawn;
    };
  };
  return def;
}

OpDef assign_sub() {
  OpDef def;
  def.name = "assign_sub";
  def.inputs = {{"variable", InputDef::Many}, {"value"}};
  def.outputs = {};
  def.writes = {0};
  def.infer = [](const OpCall& call) {
    for (int i = 0; i < call.count(); i += 2)
      require(call.type(i) == call.type(i + 1), ErrorCode::ShapeMismatch, "the types of a pair differ");
    return std::vector<TensorType>{};
  };
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    return [types = call.inputs](const LaunchCall& launch) {
      for (size_t pair = 0; pair < types.size(); pair += 2)
        for (int64_t i = 0; i < types[pair].count(); ++i)
          static_cast<float*>(launch.inputs[pair])[i] -= static_cast<const float*>(launch.inputs[pair + 1])[i];
    };
  };
  return def;
}

OpDef reversing() {
  OpDef def = op("reversing", {{"x"}}, {});
  def.attrs = {{"by", 1.0, "what is added"}};
  def.cpu.prepare = [](KernelCall& call) {
    return each([by = static_cast<float>(call.attrs.number("by"))](float x) { return x + by; }).prepare(call);
  };
  def.cpu.layouts = [](LayoutCall& call) {
    call.inputs[0] = reversed(call.input_types[0]);
    call.outputs[0] = reversed(call.output_types[0]);
  };
  return def;
}

OpDef against() {
  OpDef def = op("against", {{"x"}, {"y"}}, {});
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    return [n = call.outputs[0].count()](const LaunchCall& launch) {
      for (int64_t i = 0; i < n; ++i)
        launch.output<float>(0)[i] = launch.input<float>(0)[i] * launch.input<float>(1)[n - 1 - i];
    };
  };
  def.cpu.layouts = [](LayoutCall& call) {
    call.inputs[0] = call.outputs[0] = Layout{};
    call.inputs[1] = reversed(call.input_types[1]);
  };
  return def;
}

OpDef turning() {
  OpDef def = op("turning", {{"x"}}, each([](float x) { return x * x; }));
  def.cpu.layouts = [](LayoutCall& call) {
    call.inputs[0] = call.lasting[0] ? reversed(call.input_types[0]) : Layout{};
    call.outputs[0] = call.inputs[0];
  };
  return def;
}

// Gives what is taken, in either order.
OpDef yielding() {
  OpDef def = op("yielding", {{"x"}}, {});
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    return [n = call.outputs[0].count(), turns = !call.output_layouts[0].row_major()](const LaunchCall& launch) {
      const float* const x = launch.input<float>(0);
      for (int64_t i = 0; i < n; ++i) launch.output<float>(0)[turns ? n - 1 - i : i] = x[i];
    };
  };
  def.cpu.layouts = [](LayoutCall& call) {
    call.inputs[0] = Layout{};
    call.outputs[0] = call.taken[0].value_or(Layout{});
  };
  def.cpu.heeds_readers = true;
  return def;
}

OpDef by_way() {
  OpDef def = op("by_way", {{"x"}}, {});
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    const int64_t n = call.outputs[0].count();
    call.scratch_bytes = n * static_cast<int64_t>(sizeof(float));
    return [n](const LaunchCall& launch) {
      float* const scratch = static_cast<float*>(launch.scratch);
      std::copy_n(launch.input<float>(0), n, scratch);
      std::copy_n(scratch, n, launch.output<float>(0));
    };
  };
  return def;
}

OpDef picky() {
  OpDef def = op("picky", {{"x"}}, {});
  def.cpu.prepare = [](KernelCall& call) -> Launch {
    return [n = call.outputs[0].count()](const LaunchCall& launch) {
      for (int64_t i = 0; i < n; ++i) {
        const float x = launch.input<float>(0)[i];
        if (x < 0) complain(i, static_cast<int64_t>(x));
        launch.output<float>(0)[i] = x;
      }
    };
  };
  return def;
}

OpDef cast() {
  OpDef def = op("cast", {{"x"}}, each([](float x) { return x; }));
  def.attrs = {{"dtype", DType::Float32, "of out", true}};
  def.infer = [](const OpCall& call) { return std::vector<TensorType>{{call.attrs.dtype("dtype"), call.shape(0)}}; };
  return def;
}

OpDef product() {
  OpDef def = op("product", {{"x"}, {"y"}}, {});
  def.attrs = {{"mixed", std::string(), "dtype of out"},
               {"rounds_to", DType::BFloat16, "what x and y are rounded to"},
               {"precise", false, "keep the digits of float32"}};
  def.infer = [](const OpCall& call) {
    const std::string& mixed = call.attrs.string("mixed");
    return std::vector<TensorType>{{mixed.empty() ? call.dtype(0) : *dtype_named(mixed), call.shape(0)}};
  };
  def.narrow.role = NarrowUse::Computes;
  def.narrow.takes_either = {1};
  def.narrow.pays = [](const OpCall& call, DType) { return call.shape(0).count() >= 8; };
  def.flops = [](const KernelCall& call) { return static_cast<double>(call.inputs[0].count()); };
  return def;
}

OpDef follow() {
  OpDef def = op("follow", {{"x"}, {"bias", InputDef::Optional}}, {});
  def.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  def.narrow.role = NarrowUse::Follows;
  def.narrow.keeps_float32 = {1};
  def.narrow.pays = [](const OpCall& call, DType) { return call.shape(0).count() <= 100; };
  return def;
}

// Two that follow: one without a bias, one that is told the dtype of its result.
OpDef join() {
  OpDef def = op("join", {{"x"}, {"y"}}, {});
  def.infer = [](const OpCall& call) {
    require(call.dtype(0) == call.dtype(1), ErrorCode::DtypeMismatch, "the inputs differ");
    return std::vector<TensorType>{call.type(0)};
  };
  def.narrow.role = NarrowUse::Follows;
  return def;
}
OpDef total() {
  OpDef def = product();
  def.name = "total";
  def.inputs = {{"x"}};
  def.narrow = {NarrowUse::Follows};
  return def;
}

// One whose kernel rounds for itself what is large enough.
OpDef rounding() {
  OpDef def = op("rounding", {{"x"}}, {});
  def.attrs = {{"rounds_to", DType::Float32, "what x is rounded to"}};
  def.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  def.narrow.rounds = [](const OpCall& call, DType narrow) {
    return narrow == DType::BFloat16 && call.shape(0).count() >= 8;
  };
  return def;
}

std::shared_ptr<const Catalog> make() {
  auto catalog = std::make_shared<Catalog>();
  OpDef add = op("add", {{"x"}, {"y"}}, each([](float x, float y) { return x + y; }), [](GradCall& g) {
    return std::vector<ValueId>{g.grads[0], g.grads[0]};
  });
  add.rewrites = {{"square_add", {"square_add"}, rewrite_square_add}};
  catalog->add(add);
  catalog->sum_op = "add";
  catalog->add(op("mul", {{"x"}, {"y"}}, each([](float x, float y) { return x * y; }), [](GradCall& g) {
    return std::vector<ValueId>{g.op("mul", {g.grads[0], g.inputs[1]}), g.op("mul", {g.grads[0], g.inputs[0]})};
  }));
  OpDef square = op("square", {{"x"}}, each([](float x) { return x * x; }), [](GradCall& g) {
    const ValueId x_dy = g.op("mul", {g.grads[0], g.inputs[0]});
    return std::vector<ValueId>{g.op("add", {x_dy, x_dy})};
  });
  square.inplace = {{0, 0}};
  catalog->add(square);
  OpDef same = op("same", {{"x"}}, {}, [](GradCall& g) { return g.grads; });
  same.alias = {{0, 0}};
  catalog->add(same);
  catalog->add(op("square_add", {{"x"}, {"y"}}, each([](float x, float y) { return x * x + y; })));
  catalog->add(op("ones", {{"x"}}, each([](float) { return 1.f; })));
  catalog->add(op("refuses_gradient", {{"x"}}, each([](float x) { return x; }),
                  [](GradCall&) -> std::vector<ValueId> { fail(ErrorCode::Unsupported, "there is none"); }));
  catalog->add(op("bad", {{"x"}}, each([](float) -> float { fail(ErrorCode::OutOfRange, "row 3 is bad"); })));
  catalog->add(op("greedy", {{"x"}}, each([](float) -> float { throw std::bad_alloc(); })));
  catalog->add(op("greedy_kernel", {{"x"}}, greedy_kernel()));
  catalog->add(op("slow", {{"x"}}, each([](float x) {
                    std::unique_lock<std::mutex> lock(gate_mutex);
                    gate_changed.wait(lock, [] { return gate_is_open; });
                    return x;
                  })));
  catalog->add(picky());
  catalog->add(by_way());
  catalog->add(op("gpu_only", {{"x"}}, {}));
  catalog->add(cast());
  catalog->cast_op = "cast";
  catalog->add(product());
  catalog->add(follow());
  catalog->add(join());
  catalog->add(total());
  catalog->add(rounding());
  catalog->add(halves());
  catalog->add(plus());
  catalog->add(draw());
  catalog->add(assign_sub());
  catalog->add(reversing());
  catalog->add(against());
  catalog->add(turning());
  catalog->add(yielding());
  return catalog;
}

}  // namespace

void* FakeDevice::allocate(int64_t bytes) {
  require(refuse_above < 0 || bytes <= refuse_above, ErrorCode::OutOfMemory, "no memory for ", bytes, " bytes");
  const size_t size = static_cast<size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* memory = std::aligned_alloc(kAlignment, size);
  std::memset(memory, 0, size);
  ++live_buffers;
  return memory;
}

void FakeDevice::free(void* memory) noexcept {
  --live_buffers;
  std::free(memory);
}

void FakeDevice::rest() noexcept { ++(std::this_thread::get_id() == own_ ? rests_here : rests_elsewhere); }

std::unique_ptr<Stream> FakeDevice::make_stream() { return std::make_unique<FakeStream>(); }

void FakeDevice::copy(Stream&, void* to, const void* from, int64_t bytes) {
  ++copies;
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

Launch FakeDevice::reorder(const TensorType& type, const Layout& from, const Layout& to) {
  const int64_t n = type.count();
  const bool turns = from != to;
  return [this, n, turns](const LaunchCall& launch) {
    ++reorders;
    const float* x = static_cast<const float*>(launch.inputs[0]);
    float* out = static_cast<float*>(launch.outputs[0]);
    if (turns)
      std::reverse_copy(x, x + n, out);
    else
      std::copy(x, x + n, out);
  };
}

Layout reversed(const TensorType& type) { return {{'r'}, type.bytes()}; }

std::shared_ptr<const Catalog> catalog() { return make(); }

void complain(int64_t place, int64_t value) { fail(ErrorCode::OutOfRange, "element ", place, " is ", value); }

void Gate::close() {
  const std::lock_guard<std::mutex> lock(gate_mutex);
  gate_is_open = false;
}

void Gate::open() {
  {
    const std::lock_guard<std::mutex> lock(gate_mutex);
    gate_is_open = true;
  }
  gate_changed.notify_all();
}

std::vector<Tensor> call(Session& session, const std::shared_ptr<Plan>& plan, std::vector<Tensor> feeds,
                         bool may_run_inline) {
  Executor::Submission submission;
  submission.feeds = std::move(feeds);
  submission.may_run_inline = may_run_inline;
  const RunId run = session.submit(plan, std::move(submission));
  std::vector<Tensor> tensors;
  for (;;) {
    session.completions().wait(-1);
    std::optional<Completion> completion = session.pull();
    if (completion->run != run) continue;
    if (!completion->end) {
      tensors.push_back(completion->tensor);
      continue;
    }
    if (completion->error) throw *completion->error;
    return tensors;
  }
}

Executor::Submission feed(std::vector<float> values, bool may_run_inline) {
  Executor::Submission submission;
  submission.feeds = {floats(std::move(values))};
  submission.may_run_inline = may_run_inline;
  return submission;
}

Completion next(Session& session) {
  if (!session.completions().wait(10000)) throw std::runtime_error("nothing has ended within 10 seconds");
  return *session.pull();
}

TensorType vec(int64_t n) { return {DType::Float32, {n}}; }

Tensor floats(std::vector<float> values) {
  Tensor tensor = Tensor::allocate(vec(static_cast<int64_t>(values.size())));
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

std::vector<float> values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.count()};
}

}  // namespace moonflow::toy
