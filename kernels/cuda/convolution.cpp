// Convolutions through cuDNN's graph interface.
#include "kernels/cuda/convolution.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "kernels/cuda/code_cache.h"
#include "kernels/cuda/cudart.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/timing.h"

namespace moonflow::cuda {
namespace {

// All that a plan depends on, beside the device.
std::string key_of(const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  std::string key =
      text(static_cast<int>(call.kind), ' ', static_cast<int>(call.dtype), ' ', call.bias, call.exact,
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
      if (call.timed_on && may_time()) plan = fastest_plan(call, wishes, key);
      if (!plan) {
        const std::lock_guard<std::mutex> one_thread_at_a_time(opened_->mutex);
        plan = choose_plan({opened_->dnn, opened_->handle, {}}, call, wishes);
      }
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
    cudnnHandle_t handle = nullptr;
    mutable std::mutex mutex;  // of the handle, which belongs to one thread at a time

    void run(const ChosenPlan& plan, bool bias, const ConvolutionBuffers& at, Stream& stream) const {
      const std::lock_guard<std::mutex> one_thread_at_a_time(mutex);
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

  // That another process has found for this card and library, or the fastest of the first that fit the workspace, since
  // there may be hundreds; nothing where none of them runs.
  std::optional<ChosenPlan> fastest_plan(const ConvolutionCall& call, const Wishes& wishes,
                                         const std::string& key) const {
    constexpr size_t kTried = 12;
    Device& device = *call.timed_on;
    const Conv& conv = call.conv;
    const std::string folder = cache_folder(),
                      question = text("cuDNN ", opened_->dnn->cudnnGetVersion(), " on ", card_of(device),
                                      ": convolution ", key),
                      kept = read_cached(folder, question);
    std::vector<ChosenPlan> plans;
    std::vector<std::string> names;
    int64_t workspace = 0;
    std::unique_lock<std::mutex> one_thread_at_a_time(opened_->mutex);
    find_plans({opened_->dnn, opened_->handle, {}}, call, wishes, [&](const ChosenPlan& plan) {
      const std::string name = describe(plan);
      if (plan.workspace_bytes > wishes.most_workspace) return false;
      if (std::find(names.begin(), names.end(), name) != names.end()) return false;
      if (name == kept) {
        plans.clear();
        names.clear();
      }
      plans.push_back(plan);
      names.push_back(name);
      workspace = std::max(workspace, plan.workspace_bytes);
      return name == kept || plans.size() == kTried;
    });
    one_thread_at_a_time.unlock();
    if (names.size() == 1 && names[0] == kept) return plans[0];
    try {
      const auto values = [&](const ImageSize& size) { return drawn_values(device, call.dtype, size.count()); };
      const Buffer image = values(conv.image), out = values(conv.out), filter = values(conv.filter_size()),
                   bias = drawn_values(device, call.dtype, conv.filters()),
                   scratch(device, with_room_to_align(workspace));
      const ConvolutionBuffers at{image.data(), filter.data(), out.data(), bias.data(), scratch.data()};
      std::vector<TimedLaunch> launches;
      for (const ChosenPlan& plan : plans)
        launches.push_back([&](Stream& stream) { opened_->run(plan, call.bias, at, stream); });
      const std::optional<size_t> place = fastest(device, launches);
      if (!place) return std::nullopt;
      write_cached(folder, question, names[*place]);
      return plans[*place];
    } catch (const Error&) {  // no room to try them
      return std::nullopt;
    }
  }

  std::mutex mutex_;
  std::shared_ptr<const Opened> opened_;
  std::map<std::string, std::optional<ChosenPlan>> plans_;
};

}  // namespace

std::shared_ptr<Convolutions> make_convolutions() { return kept_for_card<CudnnConvolutions>(); }

}  // namespace moonflow::cuda
