// Convolutions through cuDNN's graph interface.
#include "kernels/cuda/convolution.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

// All that a plan depends on, beside the device.
std::string key_of(const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  std::string key =
      text(static_cast<int>(call.kind), ' ', static_cast<int>(call.dtype), ' ', call.bias, call.relu, call.exact,
           call.timed_on != nullptr, static_cast<int>(call.precision), conv.format.channels_last, ' ', conv.groups);
  for (const ImageSize& size : {conv.image, conv.out})
    key += text(' ', size.batch, ' ', size.channels, ' ', size.height, ' ', size.width);
  for (const Window& window : conv.windows)
    key += text(' ', window.size, ' ', window.stride, ' ', window.dilation, ' ', window.before, ' ', window.after);
  return key;
}

class CudnnConvolutions final : public Convolutions {
 public:
  ConvolutionLaunch prepare(const ConvolutionCall& call, int64_t& scratch_bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    open();
    const std::string key = key_of(call);
    if (const auto known = plans_.find(key); known == plans_.end()) {
      Wishes wishes;
      wishes.exact = call.exact;
      wishes.tensor_cores = call.may_use_tensor_cores();
      std::optional<ChosenPlan> plan;
      if (call.timed_on) plan = fastest_plan(call, wishes);
      if (!plan) plan = choose_plan({opened_->dnn, opened_->handle, {}}, call, wishes);
      plans_[key] = std::move(plan);
    }
    const std::optional<ChosenPlan>& chosen = plans_[key];
    if (!chosen) return {};
    scratch_bytes = with_room_to_align(chosen->workspace_bytes);
    return [opened = opened_, plan = *chosen, bias = call.bias](Stream& stream, const ConvolutionBuffers& at) {
      opened->run(plan, bias, at, stream);
      check_launch(stream);
    };
  }

 private:
  // What launches keep alive: they may outlive the kernels.
  struct Opened {
    Dnn dnn;
    cudnnHandle_t handle = nullptr;  // never destroyed: the card may be gone by then
    mutable std::mutex mutex;

    void run(const ChosenPlan& plan, bool bias, const ConvolutionBuffers& at, Stream& stream) const {
      const std::lock_guard<std::mutex> one_stream_at_a_time(mutex);
      run_plan(dnn, handle, plan, bias, at, native(stream));
    }
  };

  void open() {
    if (opened_) return;
    auto opened = std::make_shared<Opened>();
    opened->dnn = std::make_shared<Cudnn>();
    opened->dnn->check(opened->dnn->cudnnCreate(&opened->handle), "begin");
    opened_ = std::move(opened);
  }

  // Of the first that fit the workspace, since there may be hundreds; nothing where none of them runs.
  std::optional<ChosenPlan> fastest_plan(const ConvolutionCall& call, const Wishes& wishes) const {
    Device& device = *call.timed_on;
    const Conv& conv = call.conv;
    const auto memory = [&](int64_t batch, int64_t channels, int64_t height, int64_t width) {
      return Buffer(device, batch * channels * height * width * size_of(call.dtype));
    };
    const Buffer image = memory(conv.image.batch, conv.image.channels, conv.image.height, conv.image.width),
                 filter = memory(conv.filters(), conv.channels_per_group(), conv.windows[0].size, conv.windows[1].size),
                 out = memory(conv.out.batch, conv.out.channels, conv.out.height, conv.out.width),
                 bias = memory(1, conv.filters(), 1, 1);
    constexpr int kTried = 12;
    int tried = 0;
    std::optional<ChosenPlan> fastest;
    double least = std::numeric_limits<double>::infinity();
    find_plans({opened_->dnn, opened_->handle, {}}, call, wishes, [&](const ChosenPlan& plan) {
      if (plan.workspace_bytes > wishes.most_workspace) return false;
      try {
        const Buffer scratch(device, with_room_to_align(plan.workspace_bytes));
        const ConvolutionBuffers at{image.data(), filter.data(), out.data(), bias.data(), scratch.data()};
        const double seconds = seconds_of(plan, call, at, least);
        if (seconds < least) {
          least = seconds;
          fastest = plan;
        }
      } catch (const Error&) {  // an engine that cannot run after all: the others are tried
      }
      return ++tried == kTried;
    });
    return fastest;
  }

  // Of one of several launches in a row, recorded where the device records, as those of a job are. Where the first is
  // far from `least`, by itself.
  double seconds_of(const ChosenPlan& plan, const ConvolutionCall& call, const ConvolutionBuffers& at,
                    double least) const {
    constexpr int kLaunches = 10, kRounds = 3;
    Device& device = *call.timed_on;
    const std::unique_ptr<Stream> stream = device.make_stream();
    const auto timed = [&](const auto& work) {
      const auto begun = std::chrono::steady_clock::now();
      work();
      stream->wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    };
    const auto launch = [&] { opened_->run(plan, call.bias, at, *stream); };
    timed(launch);  // which loads the kernels
    double seconds = timed(launch);
    if (seconds > 10 * least) return seconds;
    const auto launch_several = [&] {
      for (int i = 0; i < kLaunches; ++i) launch();
    };
    std::unique_ptr<Recording> recording;
    if (device.records()) {
      stream->begin_recording();
      launch_several();
      recording = stream->end_recording();
    }
    for (int round = 0; round < kRounds; ++round) {
      const double of_all = recording ? timed([&] { stream->start(*recording); }) : timed(launch_several);
      seconds = std::min(seconds, of_all / kLaunches);
    }
    return seconds;
  }

  std::mutex mutex_;
  std::shared_ptr<const Opened> opened_;
  std::map<std::string, std::optional<ChosenPlan>> plans_;
};

}  // namespace

std::shared_ptr<Convolutions> make_convolutions() { return std::make_shared<CudnnConvolutions>(); }

}  // namespace moonflow::cuda
