// Convolutions through cuDNN's graph interface.
#include "kernels/cuda/convolution.h"

#include <map>
#include <mutex>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

// All that a plan depends on, beside the device.
std::string key_of(const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  std::string key = text(static_cast<int>(call.kind), ' ', static_cast<int>(call.dtype), ' ', call.bias, call.relu,
                         call.exact, static_cast<int>(call.precision), conv.format.channels_last, ' ', conv.groups);
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
      plans_[key] = choose_plan({opened_->dnn, opened_->handle, {}}, call, wishes);
    }
    const std::optional<ChosenPlan>& chosen = plans_[key];
    if (!chosen) return {};
    scratch_bytes = with_room_to_align(chosen->workspace_bytes);
    return [opened = opened_, plan = *chosen, bias = call.bias](Stream& stream, const ConvolutionBuffers& at) {
      const std::lock_guard<std::mutex> one_stream_at_a_time(opened->mutex);
      run_plan(opened->dnn, opened->handle, plan, bias, at, native(stream));
      check_launch(stream);
    };
  }

 private:
  // What launches keep alive: they may outlive the kernels.
  struct Opened {
    Dnn dnn;
    cudnnHandle_t handle = nullptr;  // never destroyed: the card may be gone by then
    mutable std::mutex mutex;
  };

  void open() {
    if (opened_) return;
    auto opened = std::make_shared<Opened>();
    opened->dnn = std::make_shared<Cudnn>();
    opened->dnn->check(opened->dnn->cudnnCreate(&opened->handle), "begin");
    opened_ = std::move(opened);
  }

  std::mutex mutex_;
  std::shared_ptr<const Opened> opened_;
  std::map<std::string, std::optional<ChosenPlan>> plans_;
};

}  // namespace

std::shared_ptr<Convolutions> make_convolutions() { return std::make_shared<CudnnConvolutions>(); }

}  // namespace moonflow::cuda
