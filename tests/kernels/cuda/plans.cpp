// Plans of cuDNN for the convolutions of LeNet and the ResNets, made without a card for a device that is only
// described: h100.json is what cuDNN has said of such a card (gpu_probe writes it).
//
// Each convolution is tried in a process of its own with a limit of time, because the library may crash where it misses
// a driver. Exits with 77 where there is no cuDNN, unless MOONFLOW_REQUIRE_CUDNN=1 is set.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "kernels/cuda/cudnn.h"

using namespace moonflow;
using namespace moonflow::cuda;

namespace {

struct Layer {
  std::string name;
  int64_t batch, channels, in, filters, size, stride, before, after;
};

const Layer kLayers[] = {
    {"LeNet's first", 100, 1, 28, 32, 5, 1, 2, 2},
    {"LeNet's first, padded", 100, 8, 28, 32, 5, 1, 2, 2},
    {"LeNet's second", 100, 32, 14, 64, 5, 1, 2, 2},
    {"ResNet's first", 64, 3, 224, 64, 7, 2, 3, 3},
    {"ResNet's first, SAME", 64, 3, 224, 64, 7, 2, 3, 2},
    {"ResNet-18, 3x3 at 56", 64, 64, 56, 64, 3, 1, 1, 1},
    {"ResNet-18, 3x3 to 28", 64, 64, 56, 128, 3, 2, 1, 1},
    {"ResNet-18, 3x3 to 28, SAME", 64, 64, 56, 128, 3, 2, 1, 0},
    {"ResNet-18, shortcut to 28", 64, 64, 56, 128, 1, 2, 0, 0},
    {"ResNet-18, 3x3 at 28", 64, 128, 28, 128, 3, 1, 1, 1},
    {"ResNet-18, 3x3 at 14", 64, 256, 14, 256, 3, 1, 1, 1},
    {"ResNet-18, 3x3 at 7", 64, 512, 7, 512, 3, 1, 1, 1},
    {"ResNet-50, 1x1 in at 56", 64, 64, 56, 64, 1, 1, 0, 0},
    {"ResNet-50, 1x1 out at 56", 64, 64, 56, 256, 1, 1, 0, 0},
    {"ResNet-50, 3x3 to 14", 64, 256, 28, 256, 3, 2, 1, 1},
    {"ResNet-50, shortcut to 14", 64, 512, 28, 1024, 1, 2, 0, 0},
    {"ResNet-50, 1x1 in at 7", 64, 2048, 7, 512, 1, 1, 0, 0},
    {"ResNet-50, 1x1 out at 7", 64, 512, 7, 2048, 1, 1, 0, 0},
};

// Each convolution of ResNet-50 for 256 images, the first as we pad it: to 8 channels, without which it wants 205 MB.
std::vector<Layer> resnet50() {
  std::vector<Layer> layers{{"the first, padded", 256, 8, 224, 64, 7, 2, 3, 3}};
  std::set<std::string> known;
  const auto add = [&](int64_t channels, int64_t in, int64_t filters, int64_t size, int64_t stride) {
    const std::string name =
        text(size, 'x', size, " of ", channels, " channels at ", in, " to ", filters, " by ", stride);
    if (known.insert(name).second)
      layers.push_back({name, 256, channels, in, filters, size, stride, size / 2, size / 2});
  };
  int64_t channels = 64, in = 56;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      add(channels, in, width, 1, 1);
      add(width, in, width, 3, stride);
      if (block == 0) add(channels, in, 4 * width, 1, stride);
      in /= stride;
      add(width, in, 4 * width, 1, 1);
      channels = 4 * width;
    }
  }
  return layers;
}

Conv conv_of(const Layer& layer, bool channels_last) {
  Conv conv;
  conv.format = {2, channels_last};
  conv.image = {layer.batch, layer.channels, layer.in, layer.in};
  const int64_t out = (layer.in + layer.before + layer.after - layer.size) / layer.stride + 1;
  conv.out = {layer.batch, layer.filters, out, out};
  for (Window& window : conv.windows) window = {layer.in, layer.size, layer.stride, 1, layer.before, layer.after, out};
  return conv;
}

bool has(const ChosenPlan& plan, cudnnBackendNumericalNote_t note) {
  for (const cudnnBackendNumericalNote_t each : plan.notes)
    if (each == note) return true;
  return false;
}

// What is wrong with the plan for a call, or nothing.
std::string fault_of(const Target& target, const ConvolutionCall& call, const Wishes& wishes, int64_t most_workspace) {
  const std::optional<ChosenPlan> plan = choose_plan(target, call, wishes);
  if (!plan) return "no engine";
  if (plan->workspace_bytes > most_workspace)
    return text("wants ", plan->workspace_bytes, " bytes of workspace");
  if (has(*plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return "two runs may differ";
  for (const auto note : {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS})
    if (!wishes.tensor_cores && has(*plan, note)) return "float32 is rounded";
  for (const auto note : {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_FFT})
    if (wishes.exact && has(*plan, note)) return "the sums are not the formula's";
  if (is_filter_grad(call.kind) && !is_padded_evenly(call.conv) && (plan->engine == 1 || plan->engine == 18))
    return text("engine ", plan->engine, " takes the padding before an image for that after it");
  return {};
}

struct Mode {
  const char* name;
  DType dtype;
  bool channels_last, tensor_cores, exact;
  int64_t most_workspace = Wishes().most_workspace;  // of the plan that is chosen with more room
};

// Tries all that we ask of one layer. The number of faults, which are printed.
int try_layer(const Target& target, const Layer& layer, const std::vector<Mode>& modes) {
  struct Pass {
    const char* name;
    ConvKind kind;
    bool bias;
  };
  const Pass passes[] = {{"forward", ConvKind::Forward, false},
                         {"forward with a bias", ConvKind::Forward, true},
                         {"gradient of the input", ConvKind::InputGrad, false},
                         {"gradient of the filter", ConvKind::FilterGrad, false}};
  int faults = 0;
  for (const Mode& mode : modes) {
    for (const Pass& pass : passes) {
      Wishes wishes;
      wishes.tensor_cores = mode.tensor_cores;
      wishes.exact = mode.exact;
      const ConvolutionCall call{conv_of(layer, mode.channels_last), pass.kind, mode.dtype, pass.bias, mode.exact};
      const std::string fault = fault_of(target, call, wishes, mode.most_workspace);
      if (fault.empty()) continue;
      std::printf("%s, %s, %s: %s\n", layer.name.c_str(), pass.name, mode.name, fault.c_str());
      ++faults;
    }
  }
  return faults;
}

// The exit status of `work` in a process of its own.
template <class Work>
int in_child(const Work& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // seconds; the library is read from disk by the first
    int result = 1;
    try {
      result = work() == 0 ? 0 : 1;
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
    }
    std::fflush(stdout);
    _exit(result);  // without what the libraries would do at an exit
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::printf("ended by signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int count, char** arguments) {
  std::ifstream file(count > 1 ? arguments[1] : "");
  const std::string description{std::istreambuf_iterator<char>(file), {}};
  if (description.empty()) {
    std::printf("usage: %s DEVICE.json\n", arguments[0]);
    return 1;
  }
  try {
    const Cudnn there;
  } catch (const Error& error) {
    const char* const required = std::getenv("MOONFLOW_REQUIRE_CUDNN");
    std::printf("no plans: %s\n", error.what());
    return required && std::string(required) == "1" ? 1 : 77;
  }
  // Strict float32 in both orders, its exact form, TF32, and what mixed precision asks for.
  const Mode narrow{"bfloat16 channels last", DType::BFloat16, true, true, false};
  const Mode half{"float16 channels last", DType::Float16, true, true, false};
  const std::vector<Mode> modes{{"float32", DType::Float32, false, false, false},
                                {"float32 channels last", DType::Float32, true, false, false},
                                {"float32 direct", DType::Float32, false, false, true},
                                {"tf32 channels last", DType::Float32, true, true, false},
                                narrow,
                                half};
  std::vector<Mode> little_workspace{narrow, half};
  for (Mode& mode : little_workspace) mode.most_workspace = int64_t{16} << 20;
  int failed = 0, tried = 0;
  const auto try_apart = [&](const Layer& layer, const std::vector<Mode>& asked) {
    const int status = in_child([&] {
      const Dnn dnn = std::make_shared<Cudnn>();
      return try_layer(described_target(dnn, description), layer, asked);
    });
    if (status != 0) std::printf("FAILED: %s\n", layer.name.c_str());
    failed += status != 0;
    ++tried;
  };
  for (const Layer& layer : kLayers) try_apart(layer, modes);
  for (const Layer& layer : resnet50()) try_apart(layer, little_workspace);
  std::printf("%d layers, %d failed\n", tried, failed);
  return failed == 0 ? 0 : 1;
}
