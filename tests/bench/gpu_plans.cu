// What NVIDIA's libraries have for our convolutions and products on this machine's card: the plans of cuDNN that we
// allow, with every engine that any of its heuristics names and the first of those of each, and the first algorithms of
// cuBLASLt; each with its time and how far its result is from plain sums. One JSON object per line and plan:
//   case, plan     in the library's own numbers (kernels/cuda/cudnn.h and cublas.h)
//   named_by       the heuristics that name it, with its place in their order; "chosen": it is the convolution that we
//                  take, while the clock chooses among products
//   us             median microseconds of one of several launches in a recorded graph
//   difference     the largest from plain sums, over the largest of those
//   nan, outside   elements of the result that are NaN, as all are before the launch; bytes written beside the result
//                  and the workspace, whose surroundings, as those of the factors, are NaN too
// Takes less than a minute, without a card it says why and ends with 77. Given cuDNN's description of a device (as
// tests/kernels/cuda/h100.json) it names the plans for that one instead, and runs nothing.
//   gpu_plans [DEVICE.json]
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/direct_convolution.h"

using namespace moonflow;
using namespace moonflow::cuda;

namespace {

constexpr int kSkipped = 77;
constexpr int kSeconds = 55;       // for all
constexpr int kChildSeconds = 15;  // for a plan, at most
constexpr int kAlgorithms = 8;     // of cuBLASLt for a product
constexpr int kPlaces = 6;         // of each of cuDNN's heuristics; below, an engine's first plan only
constexpr int64_t kMostWorkspace = int64_t{4} << 30;
constexpr int64_t kCompared = int64_t{4} << 20;  // elements of a result, but all of a filter's gradient

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(ErrorCode::Internal, what, ": ", cudaGetErrorName(status));
}
#define CHECK(call) check(call, #call)

// At once, since several processes print.
void print_line(const std::string& line) {
  const std::string whole = line + '\n';
  if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) _exit(EXIT_FAILURE);
}

std::string number(double value) {
  char words[32];
  std::snprintf(words, sizeof words, "%.4g", value);
  return words;
}

std::string quoted(const std::string& words) {
  std::string result;
  for (const char c : words) result += c == '"' || c == '\\' || c < ' ' ? '\'' : c;
  return '"' + result + '"';
}

// ---- cases -----------------------------------------------------------------------------------------------------

// A convolution, or a product as a forward convolution of rows with columns: their images have one place.
struct Case {
  std::string name;
  ConvolutionCall call;
  bool is_product = false;
  Product product = {};
};

struct Mode {
  const char* name;
  DType dtype;
  Precision precision;
  bool channels_last;
};
constexpr Mode kStrict{"float32", DType::Float32, Precision::Float32, false},
    kWide{"float64", DType::Float64, Precision::Float32, false}, kTf32{"tf32", DType::Float32, Precision::Tf32, true},
    kNarrow{"bfloat16", DType::BFloat16, Precision::Float32, true};

enum Kinds { kThree, kWithBias };

void add_convolutions(std::vector<Case>& cases, const char* name, Conv conv, const Mode& mode, Kinds kinds = kThree) {
  struct Pass {
    const char* name;
    ConvKind kind;
    bool bias;
  };
  const Pass passes[] = {{"forward", ConvKind::Forward, false},
                         {"input_grad", ConvKind::InputGrad, false},
                         {"filter_grad", ConvKind::FilterGrad, false},
                         {"forward_bias", ConvKind::Forward, true}};
  conv.format.channels_last = mode.channels_last;
  for (const Pass& pass : passes) {
    if (pass.bias && kinds != kWithBias) continue;
    cases.push_back(
        {text(name, ' ', pass.name, ' ', mode.name), {conv, pass.kind, mode.dtype, pass.bias, false, mode.precision}});
  }
}

// Of square images.
Conv square(int64_t batch, int64_t channels, int64_t in, int64_t filters, int64_t size, int64_t stride = 1) {
  const int64_t pad = size / 2, out = (in + 2 * pad - size) / stride + 1;
  Conv conv;
  conv.image = {batch, channels, in, in};
  conv.out = {batch, filters, out, out};
  conv.windows = {Window{in, size, stride, 1, pad, pad, out}, Window{in, size, stride, 1, pad, pad, out}};
  return conv;
}

void add_product(std::vector<Case>& cases, const char* name, const Product& product, const Mode& mode, bool bias) {
  Case added{text(name, bias ? " bias " : " ", mode.name), {}, true, product};
  added.call.conv.image = {product.rows, product.inner, 1, 1};
  added.call.conv.out = {product.rows, product.columns, 1, 1};
  added.call.kind = ConvKind::Forward;
  added.call.dtype = mode.dtype;
  added.call.precision = mode.precision;
  added.call.bias = bias;
  cases.push_back(std::move(added));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const Conv lenet = square(100, 32, 14, 64, 5);
  for (const Mode& mode : {kTf32, kStrict, kNarrow}) add_convolutions(cases, "lenet_conv2", lenet, mode, kWithBias);
  // Windows that algorithms with tiles are made for, some of which lose digits.
  add_convolutions(cases, "3x3_64to64_at_56", square(32, 64, 56, 64, 3), kStrict);
  add_convolutions(cases, "7x7_64to64_at_28", square(32, 64, 28, 64, 7), kStrict);
  // Over one axis, with windows that stick out on one side more than on the other.
  Conv line;
  line.format = {1, false};
  line.image = {1, 2, 1, 5};
  line.out = {1, 2, 1, 5};
  line.windows[1] = {5, 4, 1, 1, 2, 1, 5};
  for (const Mode& mode : {kStrict, kWide}) add_convolutions(cases, "conv1d_2_before_1_after", line, mode);
  line.out.width = line.windows[1].out = 6;
  line.windows[1].after = 2;
  for (const Mode& mode : {kStrict, kWide}) add_convolutions(cases, "conv1d_2_before_2_after", line, mode);

  for (const Mode& mode : {kTf32, kStrict, kNarrow}) {
    add_product(cases, "100x512x784", {1, 100, 512, 784, false, true}, mode, false);
    add_product(cases, "100x512x784", {1, 100, 512, 784, false, true}, mode, true);
    add_product(cases, "512x784x100_of_transposed", {1, 512, 784, 100, true, false}, mode, false);
    add_product(cases, "100x512x3136", {1, 100, 512, 3136, false, true}, mode, true);
    add_product(cases, "100x3136x512", {1, 100, 3136, 512, false, false}, mode, false);
    add_product(cases, "512x3136x100_of_transposed", {1, 512, 3136, 100, true, false}, mode, false);
  }
  add_product(cases, "8192_cubed", {1, 8192, 8192, 8192, false, false}, kNarrow, false);

  constexpr int64_t kBatch = 256;
  add_convolutions(cases, "resnet_7x7_8to64_at_224_by_2", square(kBatch, 8, 224, 64, 7, 2), kNarrow);
  add_convolutions(cases, "resnet_7x7_4to64_at_224_by_2", square(kBatch, 4, 224, 64, 7, 2), kNarrow);
  add_convolutions(cases, "resnet_3x3_64to64_at_56", square(kBatch, 64, 56, 64, 3), kNarrow);
  add_convolutions(cases, "resnet_3x3_256to256_at_14", square(kBatch, 256, 14, 256, 3), kNarrow);
  add_convolutions(cases, "resnet_3x3_128to128_at_56_by_2", square(kBatch, 128, 56, 128, 3, 2), kNarrow);
  add_convolutions(cases, "resnet_1x1_256to64_at_56", square(kBatch, 256, 56, 64, 1), kNarrow);
  add_convolutions(cases, "resnet_1x1_256to512_at_56_by_2", square(kBatch, 256, 56, 512, 1, 2), kNarrow);
  return cases;
}

// ---- on the card -----------------------------------------------------------------------------------------------

template <class F>
__global__ void __launch_bounds__(256) for_all(F f, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count; i += gridDim.x * int64_t{256}) f(i);
}
template <class F>
void start(cudaStream_t stream, int64_t count, const F& f) {
  const int64_t blocks = std::min<int64_t>((count + 255) / 256, 132 * 16);
  if (count > 0) for_all<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(f, count);
  CHECK(cudaGetLastError());
}

// Values in [-1, 1), as a card is faster on zeros.
template <class T>
struct Draw {
  T* to;
  uint32_t seed;
  __device__ void operator()(int64_t i) const {
    uint32_t bits = (static_cast<uint32_t>(i) ^ seed) * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    bits = (bits ^ bits >> 13) * 3266489917u;
    to[i] = T(static_cast<Computed<T>>(static_cast<float>(bits >> 8) * (2.0f / (1 << 24)) - 1));
  }
};

struct Findings {
  unsigned largest, difference;  // of floats that are not negative, which lie in memory in the order of their size
  unsigned long long nan, outside;
};

template <class T>
struct Compare {
  const T *got, *expected;
  int64_t compared;
  Findings* to;
  __device__ void operator()(int64_t i) const {
    const double value = double{got[i]};
    if (value != value) {
      atomicAdd(&to->nan, 1ull);
    } else if (i < compared) {
      const double wanted = double{expected[i]};
      raise(&to->largest, fabs(wanted));
      raise(&to->difference, fabs(value - wanted));
    }
  }

 private:
  __device__ static void raise(unsigned* largest, double value) {
    const unsigned bits = __float_as_uint(static_cast<float>(value));
    if (bits > *largest) atomicMax(largest, bits);
  }
};

constexpr int kPoison = 0xff;  // all bytes of a NaN of any dtype
struct CountOutside {
  const unsigned char* guard;
  Findings* to;
  __device__ void operator()(int64_t i) const {
    if (guard[i] != kPoison) atomicAdd(&to->outside, 1ull);
  }
};

// Memory with NaN on both sides, and inside too.
class Guarded {
 public:
  Guarded(cudaStream_t stream, int64_t bytes) : stream_(stream), bytes_(bytes) {
    CHECK(cudaMalloc(&memory_, bytes + 2 * kGuard));
    poison();
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { cudaFree(memory_); }

  void* data() const { return memory_ + kGuard; }
  void poison() { CHECK(cudaMemsetAsync(memory_, kPoison, bytes_ + 2 * kGuard, stream_)); }
  void count_outside(Findings* to) const {
    start(stream_, kGuard, CountOutside{memory_, to});
    start(stream_, kGuard, CountOutside{memory_ + kGuard + bytes_, to});
  }

 private:
  static constexpr int64_t kGuard = 64 << 10;
  const cudaStream_t stream_;
  const int64_t bytes_;
  unsigned char* memory_ = nullptr;
};

// Where the elements of a product's factor lie, seen as an image of one place.
ImagePlaces places_of(int64_t count, int64_t channels, bool transposed) {
  return {channels, 1, 1, transposed ? 1 : channels, transposed ? count : 1, channels, channels};
}

// The values of a case, and what plain sums make of them.
class Bench {
 public:
  explicit Bench(const Case& asked) : call_(asked.call), filter_size_(call_.conv.filter_size()) {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&findings_, sizeof(Findings)));
    const int64_t element = size_of(call_.dtype), images = call_.conv.image.count(), filters = filter_size_.count(),
                  outs = call_.conv.out.count();
    image_ = std::make_unique<Guarded>(stream_, images * element);
    filter_ = std::make_unique<Guarded>(stream_, filters * element);
    out_ = std::make_unique<Guarded>(stream_, outs * element);
    bias_ = std::make_unique<Guarded>(stream_, call_.conv.filters() * element);
    count_ = is_input_grad(call_.kind) ? images : is_filter_grad(call_.kind) ? filters : outs;
    result_ = is_input_grad(call_.kind) ? image_.get() : is_filter_grad(call_.kind) ? filter_.get() : out_.get();
    compared_ = is_filter_grad(call_.kind) ? count_ : std::min(count_, kCompared);
    expected_ = std::make_unique<Guarded>(stream_, compared_ * element);
    visit_fractions(call_.dtype, [&](auto zero) {
      using T = decltype(zero);
      draw<T>(*image_, images, 1);
      draw<T>(*filter_, filters, 2);
      draw<T>(*out_, outs, 3);
      draw<T>(*bias_, call_.conv.filters(), 4);
      const auto at = [&](Guarded* values) {
        return static_cast<T*>(values == result_ ? expected_->data() : values->data());
      };
      const Conv& conv = call_.conv;
      const Product& sizes = asked.product;
      DirectConvolution<T> direct{conv,
                                  call_.kind,
                                  places(conv.image, conv.format),
                                  places(filter_size_, conv.format),
                                  places(conv.out, conv.format),
                                  at(image_.get()),
                                  at(filter_.get()),
                                  at(out_.get()),
                                  call_.bias ? at(bias_.get()) : nullptr};
      if (asked.is_product) {
        direct.of_image = places_of(sizes.rows, sizes.inner, sizes.transpose_a);
        direct.of_filter = places_of(sizes.columns, sizes.inner, !sizes.transpose_b);
        direct.of_out = places_of(sizes.rows, sizes.columns, false);
      }
      start(stream_, compared_, direct);
    });
    CHECK(cudaStreamSynchronize(stream_));
  }

  // What is to be said of a plan that wants so much workspace: it runs, and is timed.
  using Launch = std::function<void(const ConvolutionBuffers&, cudaStream_t)>;
  std::string try_plan(int64_t workspace_bytes, const Launch& launch) {
    Guarded workspace(stream_, workspace_bytes);
    const ConvolutionBuffers at{image_->data(), filter_->data(), out_->data(), bias_->data(), workspace.data()};
    result_->poison();
    CHECK(cudaMemsetAsync(findings_, 0, sizeof(Findings), stream_));
    const auto begun = std::chrono::steady_clock::now();
    launch(at, stream_);
    CHECK(cudaStreamSynchronize(stream_));
    visit_fractions(call_.dtype, [&](auto zero) {
      using T = decltype(zero);
      start(stream_, count_,
            Compare<T>{static_cast<const T*>(result_->data()), static_cast<const T*>(expected_->data()), compared_,
                       findings_});
    });
    result_->count_outside(findings_);
    workspace.count_outside(findings_);
    Findings found;
    CHECK(cudaMemcpyAsync(&found, findings_, sizeof found, cudaMemcpyDefault, stream_));
    CHECK(cudaStreamSynchronize(stream_));
    const auto as_float = [](unsigned bits) {
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    };
    const double difference = as_float(found.difference) / std::max(as_float(found.largest), 1e-30f);
    std::string words = text(",\"difference\":", std::isfinite(difference) ? number(difference) : "1e99",
                             ",\"nan\":", found.nan, ",\"outside\":", found.outside);
    const double first = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (first > 0.5) return words + ",\"us\":" + number(first * 1e6);
    return words + ",\"us\":" + number(microseconds([&] { launch(at, stream_); }));
  }

 private:
  template <class T>
  void draw(const Guarded& values, int64_t count, uint32_t seed) {
    start(stream_, count, Draw<T>{static_cast<T*>(values.data()), seed << 28});
  }

  // The second launch says how many there are to be in a graph: 2 ms of them, or one.
  template <class Work>
  double microseconds(const Work& work) {
    const auto timed = [&](const auto& what) {
      const auto begun = std::chrono::steady_clock::now();
      what();
      CHECK(cudaStreamSynchronize(stream_));
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    };
    const double once = timed(work);
    const int launches = static_cast<int>(std::min(50.0, std::max(1.0, 2000 / once)));
    cudaGraph_t graph;
    cudaGraphExec_t made;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) work();
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    const auto replay = [&] { CHECK(cudaGraphLaunch(made, stream_)); };
    timed(replay);
    std::vector<double> times;
    const int rounds = once > 20000 ? 1 : 5;
    for (int i = 0; i < rounds; ++i) times.push_back(timed(replay) / launches);
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[rounds / 2];
  }

  const ConvolutionCall call_;
  const ImageSize filter_size_;
  cudaStream_t stream_ = nullptr;
  Findings* findings_ = nullptr;
  std::unique_ptr<Guarded> image_, filter_, out_, bias_, expected_;
  Guarded* result_ = nullptr;
  int64_t count_ = 0, compared_ = 0;
};

// ---- plans -----------------------------------------------------------------------------------------------------

struct Plan {
  std::string name, named_by, notes;
  int64_t workspace_bytes;
  Bench::Launch launch;
};

std::string notes_of(const ChosenPlan& plan) {
  static const std::map<int, const char*> kNames{{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, "tensor_core"},
                                                 {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, "down_convert"},
                                                 {CUDNN_NUMERICAL_NOTE_FFT, "fft"},
                                                 {CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP, "strict_nan"},
                                                 {CUDNN_NUMERICAL_NOTE_WINOGRAD, "winograd"},
                                                 {CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, "winograd_4x4"}};
  std::string words;
  for (const cudnnBackendNumericalNote_t note : plan.notes) {
    const auto known = kNames.find(note);
    words += text(words.empty() ? "" : " ", known == kNames.end() ? "note" + std::to_string(note) : known->second);
  }
  return words;
}

// Those of convolution.cpp's choice come first.
std::vector<Plan> plans_of_cudnn(const Target& target, const ConvolutionCall& call) {
  std::vector<Plan> plans;
  std::set<std::string> engines;
  Wishes wishes;
  wishes.tensor_cores = is_narrow(call.dtype) || call.precision == Precision::Tf32;
  for (const cudnnBackendHeurMode_t mode : heuristics_for(call, wishes.tensor_cores)) {
    const char* const who = mode == CUDNN_HEUR_MODE_A ? "A" : mode == CUDNN_HEUR_MODE_B ? "B" : "fallback";
    wishes.modes = {mode};
    int place = 0;
    find_plans(target, call, wishes, [&](const ChosenPlan& plan) {
      const std::string name = describe(plan), by = text(who, place++);
      const auto same = std::find_if(plans.begin(), plans.end(), [&](const Plan& known) { return known.name == name; });
      if (same != plans.end()) {
        same->named_by += ' ' + by;
        return false;
      }
      const bool is_new = engines.insert(name.substr(0, name.find('_'))).second;
      if (place > kPlaces && !is_new) return false;
      plans.push_back(
          {name, by, notes_of(plan), plan.workspace_bytes, [=](const ConvolutionBuffers& at, cudaStream_t stream) {
             run_plan(target.dnn, target.handle, plan, call.bias, at, stream);
           }});
      return false;
    });
  }
  return plans;
}

std::vector<Plan> plans_of_cublas(const Case& asked) {
  const auto lt = std::make_shared<CublasLt>();
  cublasLtHandle_t handle = nullptr;
  lt->check(lt->cublasLtCreate(&handle), "begin");
  const ConvolutionCall& call = asked.call;
  const auto matmul =
      std::make_shared<Matmul>(lt, ProductCall{asked.product, call.dtype, call.dtype, call.bias, call.precision});
  std::vector<Plan> plans;
  for (const cublasLtMatmulHeuristicResult_t& algorithm : matmul->algorithms(handle, kAlgorithms)) {
    plans.push_back({describe(*lt, algorithm), text(plans.size()), "", static_cast<int64_t>(algorithm.workspaceSize),
                     [=](const ConvolutionBuffers& at, cudaStream_t stream) {
                       matmul->launch(handle, algorithm, {at.image, at.filter, at.bias, at.out, at.scratch}, stream);
                     }});
  }
  return plans;
}

// ---- processes -------------------------------------------------------------------------------------------------
// Each case has a process of its own, because a plan may end it: then another one goes on behind that plan. Plans are
// made in many processes at once; the card is used by one at a time.

struct Progress {
  std::atomic<int> begun;  // the plan that is tried
  std::atomic<int> tried;
};

class Child {
 public:
  Child(const Case& asked, const std::string& description, int card_lock, Progress& progress)
      : asked_(asked), description_(description), lock_(card_lock), progress_(progress) {}

  int run(int first) {
    const std::vector<Plan> plans = find();
    if (plans.empty()) print_line(text("{\"case\":", quoted(asked_.name), ",\"failed\":\"no plan\"}"));
    std::unique_ptr<Bench> bench;
    if (description_.empty()) {
      if (lockf(lock_, F_LOCK, 0) != 0) return EXIT_FAILURE;
      alarm(kChildSeconds);
      bench = std::make_unique<Bench>(asked_);
    }
    bool chosen = false;
    for (int i = 0; i < static_cast<int>(plans.size()); ++i) {
      const Plan& plan = plans[i];
      const bool takes = !asked_.is_product && !chosen && plan.workspace_bytes <= Wishes().most_workspace;
      chosen |= takes;
      if (i < first) continue;
      progress_.begun = i;
      std::string line = text("{\"case\":", quoted(asked_.name), ",\"plan\":", quoted(plan.name),
                              ",\"named_by\":", quoted(plan.named_by), ",\"chosen\":", takes ? "true" : "false",
                              ",\"notes\":", quoted(plan.notes), ",\"workspace\":", plan.workspace_bytes);
      alarm(kChildSeconds);
      try {
        if (bench && plan.workspace_bytes <= kMostWorkspace) line += bench->try_plan(plan.workspace_bytes, plan.launch);
      } catch (const std::exception& error) {
        print_line(line + ",\"failed\":" + quoted(error.what()) + "}");
        return EXIT_FAILURE;  // the card may have given this process up
      }
      print_line(line + "}");
      ++progress_.tried;
    }
    return EXIT_SUCCESS;
  }

 private:
  std::vector<Plan> find() const {
    if (asked_.is_product) return plans_of_cublas(asked_);
    const Dnn dnn = std::make_shared<Cudnn>();
    if (!description_.empty()) return plans_of_cudnn(described_target(dnn, description_), asked_.call);
    cudnnHandle_t handle = nullptr;
    dnn->check(dnn->cudnnCreate(&handle), "begin");
    return plans_of_cudnn({dnn, handle, {}}, asked_.call);
  }

  const Case& asked_;
  const std::string& description_;
  const int lock_;
  Progress& progress_;
};

template <class Work>
pid_t fork_child(const std::string& name, const Work& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  int status = EXIT_FAILURE;
  try {
    status = work();
  } catch (const std::exception& error) {
    print_line(text("{\"case\":", quoted(name), ",\"failed\":", quoted(error.what()), "}"));
  }
  _exit(status);  // without what the libraries would do at an exit
}

// In a process of its own, since none may be forked once one has used the card.
bool has_card() {
  int status = 0;
  const pid_t child = fork_child("which cards there are", [] {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaSuccess && count > 0) return EXIT_SUCCESS;
    print_line(text("{\"no_gpu\":", quoted(cudaGetErrorString(found)), "}"));
    return kSkipped;
  });
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  std::string description;
  if (argc > 1) {
    std::ifstream file(argv[1]);
    description.assign(std::istreambuf_iterator<char>(file), {});
    if (description.empty()) {
      std::fprintf(stderr, "usage: %s [DEVICE.json]\n", argv[0]);
      return EXIT_FAILURE;
    }
  } else if (!has_card()) {
    return kSkipped;
  }
  std::vector<Case> cases = all_cases();
  if (!description.empty())  // which cuBLASLt does not take
    cases.erase(std::remove_if(cases.begin(), cases.end(), [](const Case& each) { return each.is_product; }),
                cases.end());
  const int count = static_cast<int>(cases.size());
  auto* const progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress) * count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::FILE* const card_lock = std::tmpfile();
  if (progress == MAP_FAILED || !card_lock) return EXIT_FAILURE;

  const Clock::time_point began = Clock::now(), end = began + std::chrono::seconds(kSeconds);
  const size_t at_once = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 8);
  struct Run {
    int of_case, first;  // plan
  };
  std::map<pid_t, Run> running;
  int next = 0, done = 0;
  const auto begin = [&](int i, int first) {
    progress[i].begun = first - 1;
    const auto run = [&] { return Child(cases[i], description, fileno(card_lock), progress[i]).run(first); };
    running[fork_child(cases[i].name, run)] = {i, first};
  };
  while ((next < count || !running.empty()) && Clock::now() < end) {
    while (next < count && running.size() < at_once) begin(next++, 0);
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    const auto [i, first] = running.at(ended);
    const int begun = progress[i].begun;
    running.erase(ended);
    if (WIFSIGNALED(status)) {
      print_line(text("{\"case\":", quoted(cases[i].name), ",\"plan_number\":", begun, ",\"failed\":\"ended by signal ",
                      WTERMSIG(status), "\"}"));
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS)
      ++done;
    else if (begun >= first)
      begin(i, begun + 1);
  }
  for (const auto& child : running) kill(child.first, SIGKILL);
  for (const auto& child : running) waitpid(child.first, nullptr, 0);
  int tried = 0;
  for (int i = 0; i < count; ++i) tried += progress[i].tried;
  print_line(text("{\"cases\":", count, ",\"finished\":", done, ",\"plans\":", tried,
                  ",\"seconds\":", number(std::chrono::duration<double>(Clock::now() - began).count()), "}"));
  return done == count ? EXIT_SUCCESS : EXIT_FAILURE;
}
