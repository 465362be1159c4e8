// The graph interface of cuDNN 9, as far as we use it: operations are described, the library names engines that can run
// them, best first, and the first that fits our wishes becomes a plan. The device may be a card, or the description of
// one: then plans can be made and looked at where there is no card, but not run.
//
// Read only by the files that call cuDNN. Descriptors may be used by one thread at a time.
#pragma once

#include <cudnn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/convolution.h"
#include "kernels/cuda/library.h"

namespace moonflow::cuda {

struct Cudnn {
  Library library{"libcudnn.so.9"};
  MOONFLOW_SYMBOL(cudnnBackendCreateDescriptor);
  MOONFLOW_SYMBOL(cudnnBackendDestroyDescriptor);
  MOONFLOW_SYMBOL(cudnnBackendExecute);
  MOONFLOW_SYMBOL(cudnnBackendFinalize);
  MOONFLOW_SYMBOL(cudnnBackendGetAttribute);
  MOONFLOW_SYMBOL(cudnnBackendSetAttribute);
  MOONFLOW_SYMBOL(cudnnCreate);
  MOONFLOW_SYMBOL(cudnnGetErrorString);
  MOONFLOW_SYMBOL(cudnnGetLastErrorString);
  MOONFLOW_SYMBOL(cudnnGetVersion);
  MOONFLOW_SYMBOL(cudnnSetStream);

  void check(cudnnStatus_t status, const char* what) const;
};

// The library's name for a type of C++.
template <class T>
struct AttributeType;
template <cudnnBackendAttributeType_t kType>
struct NamedType {
  static constexpr cudnnBackendAttributeType_t value = kType;
};
template <>
struct AttributeType<bool> : NamedType<CUDNN_TYPE_BOOLEAN> {};
template <>
struct AttributeType<char> : NamedType<CUDNN_TYPE_CHAR> {};
template <>
struct AttributeType<int64_t> : NamedType<CUDNN_TYPE_INT64> {};
template <>
struct AttributeType<float> : NamedType<CUDNN_TYPE_FLOAT> {};
template <>
struct AttributeType<double> : NamedType<CUDNN_TYPE_DOUBLE> {};
template <>
struct AttributeType<void*> : NamedType<CUDNN_TYPE_VOID_PTR> {};
template <>
struct AttributeType<cudnnHandle_t> : NamedType<CUDNN_TYPE_HANDLE> {};
template <>
struct AttributeType<cudnnDataType_t> : NamedType<CUDNN_TYPE_DATA_TYPE> {};
template <>
struct AttributeType<cudnnConvolutionMode_t> : NamedType<CUDNN_TYPE_CONVOLUTION_MODE> {};
template <>
struct AttributeType<cudnnPointwiseMode_t> : NamedType<CUDNN_TYPE_POINTWISE_MODE> {};
template <>
struct AttributeType<cudnnBackendHeurMode_t> : NamedType<CUDNN_TYPE_HEUR_MODE> {};
template <>
struct AttributeType<cudnnBackendKnobType_t> : NamedType<CUDNN_TYPE_KNOB_TYPE> {};
template <>
struct AttributeType<cudnnBackendNumericalNote_t> : NamedType<CUDNN_TYPE_NUMERICAL_NOTE> {};
template <>
struct AttributeType<cudnnBackendBehaviorNote_t> : NamedType<CUDNN_TYPE_BEHAVIOR_NOTE> {};

using Dnn = std::shared_ptr<const Cudnn>;

// A thing of the library's: attributes are set, then it is finalized. It keeps alive what it refers to.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Dnn& dnn, cudnnBackendDescriptorType_t type);

  template <class T>
  void set(cudnnBackendAttributeName_t name, const T& value) {
    set(name, AttributeType<T>::value, 1, &value);
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    set(name, AttributeType<T>::value, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) { set(name, std::vector<Descriptor>{value}); }
  void set(cudnnBackendAttributeName_t name, const std::vector<Descriptor>& values);
  void set(cudnnBackendAttributeName_t name, const std::string& text);
  // False when the library does not accept what was set.
  bool try_finalize();
  void finalize(const char* what) const;

  // At most so many values.
  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name, int64_t most) const {
    std::vector<T> values(most);
    int64_t count = 0;
    check(state_->dnn->cudnnBackendGetAttribute(raw(), name, AttributeType<T>::value, most, &count, values.data()));
    values.resize(std::min(most, count));
    return values;
  }
  std::vector<Descriptor> get(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const;  // all
  std::vector<Descriptor> get(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, int64_t most) const;

  explicit operator bool() const { return state_ != nullptr; }
  cudnnBackendDescriptor_t raw() const { return state_->descriptor; }

 private:
  struct State {
    Dnn dnn;
    cudnnBackendDescriptor_t descriptor = nullptr;
    std::vector<Descriptor> parts;
    ~State();
  };
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void check(cudnnStatus_t status) const;

  std::shared_ptr<State> state_;
};

// The device that plans are made for: that of a handle, or one that is only described, whose plans cannot be run.
struct Target {
  Dnn dnn;
  cudnnHandle_t handle = nullptr;
  Descriptor described = {};  // where there is no handle
};
Target described_target(const Dnn& dnn, const std::string& json);

// ---- convolutions ----

// Names of the tensors of a graph: of the image or its gradient, and so on.
enum ConvTensor : int64_t { kImage = 1, kFilter, kOut, kBias, kSums };

// Sums are float64 for float64, else float32.
Descriptor convolution_graph(const Target& target, const ConvolutionCall& call);

// ---- plans ----

struct Wishes {
  bool tensor_cores = false;  // which round factors of float32
  bool exact = false;         // see ConvolutionCall
  int64_t most_workspace = int64_t{256} << 20;
  // Who names engines, in the order in which they are asked; none: those of heuristics_for.
  std::vector<cudnnBackendHeurMode_t> modes = {};
};
// All of the library's heuristics, the one that names the fastest first for such a call before the others.
std::vector<cudnnBackendHeurMode_t> heuristics_for(const ConvolutionCall& call, bool tensor_cores);

struct ChosenPlan {
  Descriptor plan, config;
  int64_t workspace_bytes;
  std::vector<cudnnBackendNumericalNote_t> notes;
  int64_t engine;  // its number among those for this operation
};

// Makes the plans that give the same bits in every run and fit the wishes but for their workspace, best first as the
// library has them, until `take` says that it has enough. One that several modes name comes several times.
void find_plans(const Target& target, const ConvolutionCall& call, const Wishes& wishes,
                const std::function<bool(const ChosenPlan&)>& take);
// The first of those that fits the workspace too. Where all need more, the one that needs least; nothing where no
// engine fits.
std::optional<ChosenPlan> choose_plan(const Target& target, const ConvolutionCall& call, const Wishes& wishes);

// The engine and its knobs in cuDNN's own numbers, as its log has them: "eng34_k2=5_k13=1".
std::string describe(const ChosenPlan& plan);

// Enqueues it. One thread at a time may use a handle.
void run_plan(const Dnn& dnn, cudnnHandle_t handle, const ChosenPlan& plan, bool bias, const ConvolutionBuffers& at,
              cudaStream_t stream);

}  // namespace moonflow::cuda
