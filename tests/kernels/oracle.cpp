#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "engine/autodiff.h"

namespace moonflow::oracle {
namespace {

// The same numbers on every machine, which std::uniform_real_distribution does not promise.
double uniform(std::mt19937& random, double low, double high) { return low + (high - low) * (random() / 4294967296.0); }

Tensor draw(const TensorType& type, const Example& example, std::mt19937& random) {
  Tensor tensor = Tensor::allocate(type);
  visit_stored(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < type.count(); ++i) {
      // Floats in float64 are rounded to float32, so that both precisions see the same value.
      tensor.data<T>()[i] = is_floating(type.dtype)
                                ? static_cast<T>(static_cast<float>(uniform(random, example.low, example.high)))
                                : static_cast<T>(random() % static_cast<uint64_t>(example.int_below));
    }
  });
  return tensor;
}

Tensor convert(const Tensor& from, DType dtype) {
  Tensor to = Tensor::allocate({dtype, from.shape()});
  for (int64_t i = 0; i < from.count(); ++i)
    visit_stored(dtype,
                 [&](auto zero) { to.data<decltype(zero)>()[i] = static_cast<decltype(zero)>(element(from, i)); });
  return to;
}

bool accepted(const Trial& trial) {
  try {
    trial.infer();
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool is_written(const OpDef& op, int input) { return op.updates(input); }

// Memory with 64 guard bytes on either side.
class Guarded {
 public:
  Guarded(Device& device, Stream& stream, int64_t bytes, Before before, const void* content = nullptr)
      : stream_(&stream), bytes_(bytes), buffer_(device, bytes + 2 * kGuard) {
    std::vector<char> all(bytes + 2 * kGuard, kCanary);
    std::memset(all.data() + kGuard, static_cast<int>(before), bytes);
    if (content) std::memcpy(all.data() + kGuard, content, bytes);
    device.copy(stream, buffer_.data(), all.data(), buffer_.bytes());
    stream.wait();
  }
  char* data() const { return static_cast<char*>(buffer_.data()) + kGuard; }
  // What is inside now; `intact` says whether the guards are as they were.
  std::vector<char> read(bool& intact) const {
    std::vector<char> all(buffer_.bytes());
    buffer_.device().copy(*stream_, all.data(), buffer_.data(), buffer_.bytes());
    stream_->wait();
    intact = std::all_of(all.begin(), all.begin() + kGuard, [](char c) { return c == kCanary; }) &&
             std::all_of(all.end() - kGuard, all.end(), [](char c) { return c == kCanary; });
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr int64_t kGuard = kAlignment;
  static constexpr char kCanary = 0x5a;
  Stream* stream_;
  int64_t bytes_;
  Buffer buffer_;
};

// A value between guard bytes, as a kernel wants it to lie.
class Placed {
 public:
  Placed(Device& device, Stream& stream, const TensorType& type, const Layout& layout, const Tensor& value = {},
         Before before = Before::Nan)
      : device_(&device), stream_(&stream), type_(type), layout_(layout) {
    if (layout.row_major() || !value) {
      guarded_ =
          std::make_unique<Guarded>(device, stream, layout.bytes_of(type), before, value ? value.data() : nullptr);
      return;
    }
    guarded_ = std::make_unique<Guarded>(device, stream, layout.bytes, before);
    const Buffer rows(device, std::max<int64_t>(type.bytes(), 1));
    device.copy(stream, rows.data(), value.data(), type.bytes());
    turn({}, layout, rows.data(), guarded_->data());
    stream.wait();
  }
  char* data() const { return guarded_->data(); }

  // Whether it lies there as it does in `other`, byte by byte: not every layout can be turned back.
  bool equals(const Placed& other) const {
    bool intact;
    return guarded_->read(intact) == other.guarded_->read(intact);
  }
  // Whether the guards are as they were.
  bool intact() const {
    bool intact;
    guarded_->read(intact);
    return intact;
  }

  // What it is now, in rows; see Guarded.
  Tensor read(bool& intact) const {
    const std::vector<char> bytes = guarded_->read(intact);
    Tensor result = Tensor::allocate(type_);
    if (layout_.row_major()) {
      std::copy(bytes.begin(), bytes.end(), result.data<char>());
      return result;
    }
    const Buffer rows(*device_, std::max<int64_t>(type_.bytes(), 1));
    turn(layout_, {}, guarded_->data(), rows.data());
    device_->copy(*stream_, result.data(), rows.data(), type_.bytes());
    stream_->wait();
    return result;
  }

 private:
  void turn(const Layout& from, const Layout& to, void* input, void* output) const {
    device_->reorder(type_, from, to)(LaunchCall{*stream_, &input, &output, nullptr});
  }

  Device* device_;
  Stream* stream_;
  TensorType type_;
  Layout layout_;
  std::unique_ptr<Guarded> guarded_;
};

// A trial as a graph in a session of its own.
struct Job {
  Job(const Trial& trial, const std::shared_ptr<Device>& device)
      : trial(trial), session(all_ops(), device), graph(session.catalog()) {
    for (size_t i = 0; i < trial.inputs.size(); ++i) {
      const Tensor& value = trial.inputs[i];
      const std::string name = text("input", i);
      if (!value)
        inputs.push_back(kNone);
      else if (is_written(*trial.op, static_cast<int>(i)))
        inputs.push_back(graph.variable(name, value.type()));
      else
        inputs.push_back(graph.feed(name, value.type()));
    }
    outputs = graph.append(trial.op->name, inputs, trial.attrs, "tried", "oracle");
  }

  // Runs with `values` for the inputs; variables are set anew, because the run before has changed them.
  std::vector<Tensor> operator()(const std::shared_ptr<Plan>& plan, const std::vector<Tensor>& values) {
    std::vector<Tensor> feeds;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i]) continue;
      if (!is_written(*trial.op, static_cast<int>(i)))
        feeds.push_back(values[i]);
      else if (session.variables().find(text("input", i)))
        session.write(text("input", i), values[i]);
    }
    return testing::run(session, plan, std::move(feeds));
  }

  const Trial& trial;
  Session session;
  Graph graph;
  std::vector<ValueId> inputs, outputs;
};

}  // namespace

std::vector<const TensorType*> Trial::types() const {
  std::vector<const TensorType*> types;
  for (const Tensor& input : inputs) types.push_back(input ? &input.type() : nullptr);
  return types;
}

std::vector<TensorType> Trial::infer() const { return op->infer(OpCall{types(), attrs}); }

std::string Trial::describe() const {
  std::string list;
  for (const Tensor& input : inputs) list += (list.empty() ? "" : ", ") + (input ? input.type().str() : "none");
  for (const auto& [name, value] : attrs) list += text(list.empty() ? "" : ", ", name, " = ", str(value));
  return op->name + "(" + list + ")";
}

Trial draw(const OpDef& op, const Example& example, unsigned seed) {
  std::mt19937 random(seed);
  Trial trial{&op, complete(op, example.attrs), {}};
  for (const TensorType& type : example.inputs) trial.inputs.push_back(draw(type, example, random));
  while (trial.inputs.size() < op.inputs.size()) trial.inputs.emplace_back();  // optional ones left out
  return trial;
}

std::vector<Trial> with_floats(const Trial& trial, DType dtype) {
  for (const bool scalars_too : {true, false}) {
    Trial other = trial;
    bool any = false;
    for (Tensor& input : other.inputs) {
      if (!input || !is_floating(input.dtype()) || (!scalars_too && input.shape().rank() == 0)) continue;
      input = convert(input, dtype);
      any = true;
    }
    if (any && accepted(other)) return {other};
  }
  return {};
}

Trial exact_when_narrow(const Trial& trial) {
  const AttrValue *const mixed = trial.attrs.find("mixed"), *const rounds_to = trial.attrs.find("rounds_to");
  const DType narrow = rounds_to ? std::get<DType>(*rounds_to) : DType::BFloat16;
  const bool computes =
      (mixed && *mixed != AttrValue(std::string())) || trial.op->name.find("bfloat16") != std::string::npos;
  Trial exact = trial;
  for (Tensor& input : exact.inputs)
    if (computes && input && input.dtype() == DType::Float32) input = convert(convert(input, narrow), DType::Float32);
  return exact;
}

std::vector<Trial> swapped(const Trial& trial) {
  for (const Tensor& input : trial.inputs)
    if (input && input.dtype() == DType::Float32 && input.shape().rank() > 0) return with_floats(trial, DType::Float64);
  return with_floats(trial, DType::Float32);
}

double two_roundings(DType narrow) { return narrow == DType::Float16 ? 2.0 / 2048 : 2.0 / 256; }

double tolerance(const Trial& trial, DType dtype) {
  const bool gradient_of_filter = trial.op->name.find("filter_grad") != std::string::npos ||
                                  trial.op->name.find("filter_bias_grad") != std::string::npos;
  if (gradient_of_filter && is_narrow(trial.inputs[0].dtype())) dtype = trial.inputs[0].dtype();
  return is_narrow(dtype) ? two_roundings(dtype) : dtype == DType::Float64 ? 1e-9 : 1e-5;
}

Layouts layouts_of(const Trial& trial, Device& device, const std::function<Layout(const TensorType&)>& offered,
                   bool allow_tf32, bool lasting) {
  const std::vector<TensorType> outputs = trial.infer();
  std::vector<TensorType> inputs;
  std::vector<bool> present;
  Layouts result{{}, std::vector<Layout>(outputs.size()), allow_tf32};
  for (const Tensor& input : trial.inputs) {
    inputs.push_back(input ? input.type() : TensorType{});
    present.push_back(static_cast<bool>(input));
    result.inputs.push_back(input ? offered(input.type()) : Layout{});
  }
  LayoutCall call{device,  trial.attrs,   inputs,         present,
                  outputs, result.inputs, result.outputs, std::vector<bool>(inputs.size(), lasting)};
  call.allow_tf32 = allow_tf32;
  const Kernel& kernel = device.kernel(*trial.op);
  if (!kernel.layouts) return {{}, {}, allow_tf32};
  kernel.layouts(call);
  return {call.inputs, call.outputs, allow_tf32};
}

Launched launch(const Trial& trial, Device& device, const Sharing* share, const Layouts& layouts, Before before) {
  Launched result;
  KernelCall call{device, trial.attrs, {}, {}, trial.infer(), layouts.inputs, layouts.outputs};
  for (const Tensor& input : trial.inputs) {
    call.inputs.push_back(input ? input.type() : TensorType{});
    call.present.push_back(static_cast<bool>(input));
  }
  call.input_layouts.resize(call.inputs.size());
  call.output_layouts.resize(call.outputs.size());
  const Kernel& kernel = device.kernel(*trial.op);
  result.has_kernel = static_cast<bool>(kernel);
  if (!result.has_kernel) return result;
  device.enter();
  call.allow_tf32 = layouts.allow_tf32;
  const Launch launch = kernel.prepare(call);

  const auto stream = device.make_stream();
  std::vector<Placed> inputs, outputs;
  std::vector<void*> input_data, output_data;
  for (size_t i = 0; i < trial.inputs.size(); ++i) {
    const Tensor& input = trial.inputs[i];
    const TensorType type = input ? input.type() : TensorType{DType::UInt8, {0}};
    const Placed& placed = inputs.emplace_back(device, *stream, type, call.input_layouts[i], input);
    input_data.push_back(input ? placed.data() : nullptr);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Placed& placed =
        outputs.emplace_back(device, *stream, call.outputs[i], call.output_layouts[i], Tensor(), before);
    const bool shares = share && share->output == static_cast<int>(i);
    output_data.push_back(shares ? input_data[share->input] : placed.data());
  }
  const Guarded scratch(device, *stream, call.scratch_bytes, before);
  launch(LaunchCall{*stream, input_data.data(), output_data.data(), scratch.data()});
  stream->wait();

  bool intact = true;
  scratch.read(intact);
  if (!intact) result.damage += text("bytes beside the scratch of ", call.scratch_bytes, "; ");
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool shares = share && share->output == static_cast<int>(i);
    Tensor own = outputs[i].read(intact);
    if (!intact) result.damage += text("bytes beside output ", i, "; ");
    result.outputs.push_back(shares ? inputs[share->input].read(intact) : std::move(own));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].intact()) result.damage += text("bytes beside input ", i, "; ");
    const Tensor& given = trial.inputs[i];
    result.inputs.push_back(given);
    if (!given) continue;
    const bool may_change =
        is_written(*trial.op, static_cast<int>(i)) || (share && share->input == static_cast<int>(i));
    if (may_change)
      result.inputs[i] = inputs[i].read(intact);
    else if (!inputs[i].equals(Placed(device, *stream, given.type(), call.input_layouts[i], given)))
      result.damage += text("input ", i, "; ");
  }
  return result;
}

std::vector<Tensor> run_plan(const Trial& trial, const std::shared_ptr<Device>& device) {
  Job job(trial, device);
  for (size_t i = 0; i < job.outputs.size(); ++i) job.graph.tap(job.outputs[i], i + 1);
  return job(job.session.compile(job.graph, "oracle"), trial.inputs);
}

std::vector<Comparison> compare_gradients(const Trial& trial, int output, const std::shared_ptr<Device>& device) {
  Job job(trial, device);
  const TensorType type = job.graph.type(job.outputs[output]);
  std::mt19937 random(7);
  const Tensor weights = draw(type, Example{}, random);
  const ValueId seed = job.graph.constant(weights, "weights");
  std::vector<ValueId> floating;
  std::vector<int> positions;
  for (size_t i = 0; i < job.inputs.size(); ++i) {
    if (!trial.inputs[i] || trial.inputs[i].dtype() != DType::Float64) continue;
    floating.push_back(job.inputs[i]);
    positions.push_back(static_cast<int>(i));
  }
  if (floating.empty()) return {};
  const std::vector<ValueId> grads = gradients(job.graph, {job.outputs[output]}, {seed}, floating);
  std::vector<int> differentiated;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNone) continue;
    job.graph.tap(grads[i], i + 1);
    differentiated.push_back(positions[i]);
  }
  if (differentiated.empty()) return {};
  const std::vector<Tensor> engine = job(job.session.compile(job.graph, "gradients"), trial.inputs);

  Job forward(trial, device);
  forward.graph.tap(forward.outputs[output], 1);
  const std::shared_ptr<Plan> plan = forward.session.compile(forward.graph, "forward");
  const auto loss = [&](const std::vector<Tensor>& inputs) {
    const Tensor value = forward(plan, inputs)[0];
    double sum = 0;
    for (int64_t i = 0; i < value.count(); ++i) sum += element(value, i) * element(weights, i);
    return sum;
  };

  std::vector<Comparison> comparisons;
  for (size_t k = 0; k < differentiated.size(); ++k) {
    const int input = differentiated[k];
    const int64_t count = trial.inputs[input].count();
    for (int64_t n = 0; n < std::min<int64_t>(count, 64); ++n) {
      const int64_t i = count <= 64 ? n : static_cast<int64_t>(random() % count);
      std::vector<Tensor> moved = trial.inputs;
      moved[input] = moved[input].copy();
      double& x = moved[input].data<double>()[i];
      const double center = x, step = 1e-5 * std::max(1.0, std::abs(center));
      x = center + step;
      const double above = loss(moved);
      x = center - step;
      const double below = loss(moved);
      comparisons.push_back({input, i, element(engine[k], i), (above - below) / (2 * step)});
    }
  }
  return comparisons;
}

double element(const Tensor& tensor, int64_t i) {
  return visit_stored(tensor.dtype(), [&](auto zero) { return static_cast<double>(tensor.data<decltype(zero)>()[i]); });
}

double distance(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double x = element(a, i), y = element(b, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(x - y) / std::max(1.0, std::abs(y)));
  }
  return largest;
}

}  // namespace moonflow::oracle
