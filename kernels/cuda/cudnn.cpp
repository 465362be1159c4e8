#include "kernels/cuda/cudnn.h"

#include <algorithm>

namespace moonflow::cuda {

void Cudnn::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof detail);
  fail(ErrorCode::Internal, "cuDNN could not ", what, ": ", cudnnGetErrorString(status), " (", detail, ")");
}

// From 9.8 on these are to give way to the description of a device. What is documented of that are plans that are kept
// as text, and loaded with a handle where they run; a plan that runs as it was made has so far been made with a handle.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
constexpr cudnnBackendAttributeName_t kHandleOfGraph = CUDNN_ATTR_OPERATIONGRAPH_HANDLE;
constexpr cudnnBackendAttributeName_t kHandleOfPlan = CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
#pragma GCC diagnostic pop

// ---- descriptors ---------------------------------------------------------------------------------------------

Descriptor::Descriptor(const Dnn& dnn, cudnnBackendDescriptorType_t type) : state_(std::make_shared<State>()) {
  state_->dnn = dnn;
  dnn->check(dnn->cudnnBackendCreateDescriptor(type, &state_->descriptor), "make a descriptor");
}

Descriptor::State::~State() {
  if (descriptor) dnn->cudnnBackendDestroyDescriptor(descriptor);
}

void Descriptor::check(cudnnStatus_t status) const { state_->dnn->check(status, "describe an operation"); }

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                     const void* values) {
  check(state_->dnn->cudnnBackendSetAttribute(raw(), name, type, count, values));
}

void Descriptor::set(cudnnBackendAttributeName_t name, const std::vector<Descriptor>& values) {
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const Descriptor& value : values) {
    handles.push_back(value.raw());
    state_->parts.push_back(value);
  }
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(handles.size()), handles.data());
}

void Descriptor::set(cudnnBackendAttributeName_t name, const std::string& text) {
  set(name, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()) + 1, text.c_str());
}

bool Descriptor::try_finalize() { return state_->dnn->cudnnBackendFinalize(raw()) == CUDNN_STATUS_SUCCESS; }

void Descriptor::finalize(const char* what) const {
  state_->dnn->check(state_->dnn->cudnnBackendFinalize(raw()), what);
}

std::vector<Descriptor> Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const {
  int64_t count = 0;
  check(state_->dnn->cudnnBackendGetAttribute(raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  return get(name, type, count);
}

std::vector<Descriptor> Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                        int64_t most) const {
  std::vector<Descriptor> result;
  std::vector<cudnnBackendDescriptor_t> handles;
  int64_t count = 0;
  for (int64_t i = 0; i < most; ++i) handles.push_back(result.emplace_back(state_->dnn, type).raw());
  if (most > 0) {
    check(state_->dnn->cudnnBackendGetAttribute(raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count,
                                                handles.data()));
  }
  result.resize(std::min(most, count));
  return result;
}

Target described_target(const Dnn& dnn, const std::string& json) {
  Descriptor device(dnn, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json);
  device.finalize("describe the device");
  return {dnn, nullptr, device};
}

// ---- convolutions --------------------------------------------------------------------------------------------

namespace {

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return CUDNN_DATA_DOUBLE;
    case DType::BFloat16:
      return CUDNN_DATA_BFLOAT16;
    case DType::Float16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// The operations of a graph, put together.
class Operations {
 public:
  Operations(const Dnn& dnn, const ImageFormat& format, DType dtype)
      : dnn_(dnn),
        format_(format),
        type_(type_of(dtype)),
        sum_type_(type_of(dtype == DType::Float64 ? dtype : DType::Float32)) {}

  // An image or a filter. One that only lies between operations has the type of the sums.
  Descriptor tensor(const ImageSize& size, int64_t name, bool between = false) const {
    const int64_t plane = size.height * size.width;
    Descriptor tensor(dnn_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, between ? sum_type_ : type_);
    tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector<int64_t>{size.batch, size.channels, size.height, size.width});
    tensor.set(CUDNN_ATTR_TENSOR_STRIDES,
               format_.channels_last
                   ? std::vector<int64_t>{plane * size.channels, 1, size.width * size.channels, size.channels}
                   : std::vector<int64_t>{plane * size.channels, plane, size.width, 1});
    tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, name);
    tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
    if (between) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    tensor.finalize("describe a tensor");
    return tensor;
  }

  Descriptor windows(const Conv& conv) const {
    std::vector<int64_t> before, after, strides, dilations;
    for (const Window& window : conv.windows) {
      before.push_back(window.before);
      after.push_back(window.after);
      strides.push_back(window.stride);
      dilations.push_back(window.dilation);
    }
    Descriptor windows(dnn_, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    windows.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
    windows.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, sum_type_);
    windows.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
    windows.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before);
    windows.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after);
    windows.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides);
    windows.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations);
    windows.finalize("describe a convolution");
    return windows;
  }

  struct Names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t windows, image, filter, out, alpha, beta;
  };
  void convolve(const Names& names, const Descriptor& windows, const Descriptor& image, const Descriptor& filter,
                const Descriptor& out) {
    Descriptor operation(dnn_, names.operation);
    operation.set(names.windows, windows);
    operation.set(names.image, image);
    operation.set(names.filter, filter);
    operation.set(names.out, out);
    if (sum_type_ == CUDNN_DATA_DOUBLE) {
      operation.set(names.alpha, 1.0);
      operation.set(names.beta, 0.0);
    } else {
      operation.set(names.alpha, 1.0f);
      operation.set(names.beta, 0.0f);
    }
    operation.finalize("describe a convolution");
    operations_.push_back(operation);
  }

  void add(const Descriptor& x, const Descriptor& other, const Descriptor& y) {
    Descriptor what(dnn_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
    what.set(CUDNN_ATTR_POINTWISE_MATH_PREC, sum_type_);
    what.finalize("describe an element-wise operation");
    Descriptor operation(dnn_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operation.finalize("describe an element-wise operation");
    operations_.push_back(operation);
  }

  Descriptor finish(cudnnHandle_t handle) const {
    Descriptor graph(dnn_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle) graph.set(kHandleOfGraph, handle);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
    graph.finalize("put operations together");
    return graph;
  }

 private:
  const Dnn dnn_;
  const ImageFormat format_;
  const cudnnDataType_t type_, sum_type_;
  std::vector<Descriptor> operations_;
};

}  // namespace

Descriptor convolution_graph(const Target& target, const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  constexpr Operations::Names kForward{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  constexpr Operations::Names kInputGrad{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  constexpr Operations::Names kFilterGrad{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  Operations operations(target.dnn, conv.format, call.dtype);
  const Descriptor windows = operations.windows(conv), image = operations.tensor(conv.image, kImage);
  const Descriptor filter = operations.tensor(conv.filter_size(), kFilter);
  const Descriptor out = operations.tensor(conv.out, kOut);
  if (!is_forward(call.kind)) {
    operations.convolve(is_input_grad(call.kind) ? kInputGrad : kFilterGrad, windows, image, filter, out);
    return operations.finish(target.handle);
  }
  const Descriptor sums = call.bias ? operations.tensor(conv.out, kSums, true) : out;
  operations.convolve(kForward, windows, image, filter, sums);
  if (call.bias) operations.add(sums, operations.tensor({1, conv.filters(), 1, 1}, kBias), out);
  return operations.finish(target.handle);
}

// ---- plans ---------------------------------------------------------------------------------------------------

namespace {

// What the library offers and does wrong. Of filter gradients its engines 1 and 18 take the padding before an image for
// that after it: they read gradients in rows as long as that would make them, and from beyond their end. (Seen with
// 9.19 on an H100, for padding of 2 and 1; forwards and for input gradients their like are not offered where they
// differ.)
bool is_wrong(const ConvolutionCall& call, int64_t engine) {
  return is_filter_grad(call.kind) && !is_padded_evenly(call.conv) && (engine == 1 || engine == 18);
}

// Of filter gradients one engine is Winograd's algorithm with large tiles and does not say so: for LeNet's second
// convolution, 5x5, it is 6e-3 of the largest sum away from plain sums, on an H100 with 9.19, where every other engine
// for float32 is within 6e-6. It does not round its factors: neither float32 nor TF32 allows that much.
bool loses_digits(const ConvolutionCall& call, int64_t engine) {
  constexpr int64_t kLargeTiles = 17;
  return is_filter_grad(call.kind) && call.dtype == DType::Float32 && engine == kLargeTiles;
}

}  // namespace

// Each heuristic's first plan beside the other's, on an H100 with 9.19: B's is at least as good for every forward
// convolution and input gradient of LeNet and ResNet-50, up to a third faster. Of filter gradients on tensor cores A's
// is 5 to 17 % faster. The last names engines that are sure to be able.
std::vector<cudnnBackendHeurMode_t> heuristics_for(const ConvolutionCall& call, bool tensor_cores) {
  if (is_filter_grad(call.kind) && tensor_cores)
    return {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};
  return {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
}

void find_plans(const Target& target, const ConvolutionCall& call, const Wishes& wishes,
                const std::function<bool(const ChosenPlan&)>& take) {
  const Dnn& dnn = target.dnn;
  const Descriptor graph = convolution_graph(target, call);
  const auto refuses = [&](cudnnBackendNumericalNote_t note) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:  // sums are float32, also of what is narrow
        return true;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return !wishes.tensor_cores;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:  // these lose more digits than float32's contract has room for
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        return true;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_FFT:
        return wishes.exact || is_narrow(call.dtype);  // what they transform is rounded once more
      default:
        return false;
    }
  };
  const auto modes = wishes.modes.empty() ? heuristics_for(call, wishes.tensor_cores) : wishes.modes;
  for (const cudnnBackendHeurMode_t mode : modes) {
    Descriptor heuristics(dnn, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
    if (!target.handle) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.described);
    if (!heuristics.try_finalize()) continue;
    for (const Descriptor& config : heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)) {
      const std::vector<Descriptor> engine = config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
      if (engine.empty()) continue;
      const int64_t number = engine[0].get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1).at(0);
      if (is_wrong(call, number) || loses_digits(call, number)) continue;
      const auto notes =
          engine[0].get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
      if (std::any_of(notes.begin(), notes.end(), refuses)) continue;
      Descriptor plan(dnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (target.handle)
        plan.set(kHandleOfPlan, target.handle);
      else
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.described);
      if (!plan.try_finalize()) continue;
      const int64_t workspace = plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 1).at(0);
      if (take({plan, config, workspace, notes, number})) return;
    }
  }
}

std::optional<ChosenPlan> choose_plan(const Target& target, const ConvolutionCall& call, const Wishes& wishes) {
  std::optional<ChosenPlan> least;
  find_plans(target, call, wishes, [&](const ChosenPlan& plan) {
    const bool fits = plan.workspace_bytes <= wishes.most_workspace;
    if (fits || !least || plan.workspace_bytes < least->workspace_bytes) least = plan;
    return fits;
  });
  return least;
}

std::string describe(const ChosenPlan& plan) {
  std::string words = text("eng", plan.engine);
  // Which the library does not count.
  for (const Descriptor& knob : plan.config.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                                CUDNN_KNOB_TYPE_COUNTS)) {
    words += text("_k", knob.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 1).at(0), "=",
                  knob.get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 1).at(0));
  }
  return words;
}

void run_plan(const Dnn& dnn, cudnnHandle_t handle, const ChosenPlan& plan, bool bias, const ConvolutionBuffers& at,
              cudaStream_t stream) {
  std::vector<int64_t> names{kImage, kFilter, kOut};
  std::vector<void*> data{at.image, at.filter, at.out};
  if (bias) {
    names.push_back(kBias);
    data.push_back(at.bias);
  }
  Descriptor buffers(dnn, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  buffers.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names);
  buffers.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, data);
  buffers.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, plan.workspace_bytes > 0 ? aligned_workspace(at.scratch) : nullptr);
  buffers.finalize("take its buffers");
  dnn->check(dnn->cudnnSetStream(handle, stream), "take a stream");
  dnn->check(dnn->cudnnBackendExecute(handle, plan.plan.raw(), buffers.raw()), "convolve");
}

}  // namespace moonflow::cuda
