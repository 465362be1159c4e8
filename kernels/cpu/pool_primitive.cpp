// Pooling through oneDNN, in the layout that the values have.
#include <limits>
#include <vector>

#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/primitive.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

using dnnl::memory;
using dnnl::prop_kind;

memory::desc stored(const TensorType& type, const Layout& layout, const ImageFormat& format) {
  if (layout.row_major()) return plain_image(image_size(type.shape, format, "image"), format);
  return channels_first(describe(type, layout), format);
}

struct Geometry {
  memory::dims strides, kernel, before, after;

  explicit Geometry(const Pool& pool) {
    for (const Window& window : pool.windows) {
      strides.push_back(window.stride);
      kernel.push_back(window.size);
      before.push_back(window.before);
      after.push_back(window.after);
    }
  }
};

dnnl::pooling_forward::primitive_desc forward(const Pool& pool, prop_kind kind, dnnl::algorithm algorithm,
                                              const memory::desc& x, const memory::desc& out,
                                              const dnnl::engine& engine) {
  const Geometry at(pool);
  return {{kind, algorithm, x, out, at.strides, at.kernel, at.before, at.after}, attributes(), engine};
}

dnnl::pooling_backward::primitive_desc backward(const Pool& pool, dnnl::algorithm algorithm, const memory::desc& dx,
                                                const memory::desc& dy, const dnnl::engine& engine,
                                                const dnnl::pooling_forward::primitive_desc& hint) {
  const Geometry at(pool);
  return {{algorithm, dx, dy, at.strides, at.kernel, at.before, at.after}, attributes(), engine, hint};
}

Launch forward_launch(const Pool& pool, dnnl::algorithm algorithm, KernelCall& call) {
  const memory::desc x = stored(call.inputs[0], call.input_layouts[0], pool.format);
  const memory::desc out = stored(call.outputs[0], call.output_layouts[0], pool.format);
  const auto desc = forward(pool, prop_kind::forward_inference, algorithm, x, out, dnnl_engine(call.device));
  PrimitiveLaunch launch(call, dnnl::pooling_forward(desc), desc.scratchpad_desc());
  launch.read(DNNL_ARG_SRC, 0, x, x);
  launch.write(DNNL_ARG_DST, 0, out, out);
  return launch.finish();
}

// oneDNN begins a maximum with float32's lowest number, above which -inf and NaN are not: a window of nothing else
// would give that number. Windows that do are looked at once more.
struct LowestMaxima {
  Pool pool;
  ChannelForm image, out;

  void mend(const float* x, float* maxima) const {
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    parallel_for(out.count(), kGrain, [=](int64_t first, int64_t last) {
      int any = 0;
      widest([&] {
#pragma omp simd reduction(| : any)
        for (int64_t i = first; i < last; ++i) any |= maxima[i] == kLowest;
      });
      for (int64_t i = any ? first : last; i < last; ++i)
        if (maxima[i] == kLowest) maxima[i] = maximum(x, i);
    });
  }

  float maximum(const float* x, int64_t place) const {
    const int64_t block = place / out.lanes / out.positions, position = place / out.lanes % out.positions;
    const int64_t channel = block % out.blocks * out.lanes + place % out.lanes;
    if (channel >= image.channels) return 0;  // padding of the last block
    const int64_t above = block / out.blocks * image.blocks + channel / image.lanes;
    const int64_t plane = above * image.positions * image.lanes + channel % image.lanes;
    const Window &rows = pool.windows[0], &columns = pool.windows[1];
    const int64_t row = position / pool.out.width, column = position % pool.out.width;
    float most = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = rows.first(row); i < rows.last(row); ++i) {
      for (int64_t j = columns.first(column); j < columns.last(column); ++j) {
        const int64_t seen = (rows.start(row) + i) * pool.image.width + columns.start(column) + j;
        const float value = x[plane + seen * image.lanes];
        if (gives_way(most, value)) most = value;
      }
    }
    return most;
  }
};

Launch max_launch(const Pool& pool, KernelCall& call) {
  const int axis = pool.format.channel_axis();
  const auto image = channel_form(call.inputs[0], call.input_layouts[0], axis);
  const auto out = channel_form(call.outputs[0], call.output_layouts[0], axis);
  require(image && out, ErrorCode::Internal, "pooling of what has no channels");
  return [pooled = forward_launch(pool, dnnl::algorithm::pooling_max, call),
          lowest = LowestMaxima{pool, *image, *out}](const LaunchCall& launch) {
    pooled(launch);
    lowest.mend(launch.input<float>(0), launch.output<float>(0));
  };
}

Launch average_grad_launch(const Pool& pool, KernelCall& call) {
  constexpr auto kAverage = dnnl::algorithm::pooling_avg_exclude_padding;
  const memory::desc dy = stored(call.inputs[0], call.input_layouts[0], pool.format);
  const memory::desc dx = stored(call.outputs[0], call.output_layouts[0], pool.format);
  const dnnl::engine& engine = dnnl_engine(call.device);
  const auto hint = forward(pool, prop_kind::forward_training, kAverage, dx, dy, engine);
  const auto desc = backward(pool, kAverage, dx, dy, engine, hint);
  PrimitiveLaunch launch(call, dnnl::pooling_backward(desc), desc.scratchpad_desc());
  launch.read(DNNL_ARG_DIFF_DST, 0, dy, dy);
  launch.write(DNNL_ARG_DIFF_SRC, 0, dx, dx);
  return launch.finish();
}

// The gradient of max pooling. oneDNN wants to know where the maxima were (its workspace). Finding them again costs
// about as much as the gradient itself and little beside a convolution, and it spares max_pool2d a second output: so
// the forward pass runs once more into scratch, and then dx may lie over x.
struct MaxGrad {
  Bound forward, backward;
  // Arguments of the two, as Bound numbers them.
  int x = 0, maxima = 0, forward_places = 0, forward_scratch = 0;
  int dy = 0, dx = 0, backward_places = 0, backward_scratch = 0;
  // Offsets in the scratch.
  int64_t maxima_at = 0, passed_at = 0, places_at = 0, scratch_at = 0;
  bool relu = false;
  int64_t count = 0;  // elements of dy as stored, padding included

  void launch(const LaunchCall& call) {
    char* scratch = static_cast<char*>(call.scratch);
    forward.set(x, call.inputs[1]);
    forward.set(maxima, scratch + maxima_at);
    forward.set(forward_places, scratch + places_at);
    forward.set(forward_scratch, scratch + scratch_at);
    forward.execute(call.stream);

    void* gradient = call.inputs[0];
    if (relu) {
      gradient = scratch + passed_at;
      pass_positive(reinterpret_cast<const float*>(scratch + maxima_at), call.input<float>(0),
                    static_cast<float*>(gradient));
    }
    backward.set(dy, gradient);
    backward.set(dx, call.outputs[0]);
    backward.set(backward_places, scratch + places_at);
    backward.set(backward_scratch, scratch + scratch_at);
    backward.execute(call.stream);
  }

  void pass_positive(const float* maximum, const float* from, float* to) const {
    parallel_for(count, kGrain, [=](int64_t first, int64_t last) {
      widest([=] {
        for (int64_t i = first; i < last; ++i) to[i] = maximum[i] > 0 ? from[i] : 0.0f;
      });
    });
  }
};

Launch max_grad_launch(const Pool& pool, bool relu, KernelCall& call) {
  constexpr auto kMax = dnnl::algorithm::pooling_max;
  const memory::desc dy = stored(call.inputs[0], call.input_layouts[0], pool.format);
  const memory::desc x = stored(call.inputs[1], call.input_layouts[1], pool.format);
  const dnnl::engine& engine = dnnl_engine(call.device);
  const auto ahead = forward(pool, prop_kind::forward_training, kMax, x, dy, engine);
  const auto back = backward(pool, kMax, x, dy, engine, ahead);

  // Shared: a Launch is copied, the memories it binds are not.
  auto grad = std::make_shared<MaxGrad>(
      MaxGrad{Bound(dnnl::pooling_forward(ahead), call.device), Bound(dnnl::pooling_backward(back), call.device)});
  grad->x = grad->forward.add(DNNL_ARG_SRC, x);
  grad->maxima = grad->forward.add(DNNL_ARG_DST, dy);
  grad->forward_places = grad->forward.add(DNNL_ARG_WORKSPACE, ahead.workspace_desc());
  grad->forward_scratch = grad->forward.add(DNNL_ARG_SCRATCHPAD, ahead.scratchpad_desc());
  grad->dy = grad->backward.add(DNNL_ARG_DIFF_DST, dy);
  grad->dx = grad->backward.add(DNNL_ARG_DIFF_SRC, x);
  grad->backward_places = grad->backward.add(DNNL_ARG_WORKSPACE, ahead.workspace_desc());
  grad->backward_scratch = grad->backward.add(DNNL_ARG_SCRATCHPAD, back.scratchpad_desc());
  grad->relu = relu;
  grad->count = static_cast<int64_t>(dy.get_size() / sizeof(float));

  const auto reserve = [&](size_t bytes) {
    const int64_t at = call.scratch_bytes;
    call.scratch_bytes = checked_sum(at, aligned(static_cast<int64_t>(bytes)));
    return at;
  };
  call.scratch_bytes = 0;
  grad->maxima_at = reserve(dy.get_size());
  grad->passed_at = reserve(relu ? dy.get_size() : 0);
  grad->places_at = reserve(ahead.workspace_desc().get_size());
  grad->scratch_at = reserve(std::max(ahead.scratchpad_desc().get_size(), back.scratchpad_desc().get_size()));
  return [grad](const LaunchCall& launch) { grad->launch(launch); };
}

}  // namespace

Launch pool_primitive(const Pool& pool, PoolKind kind, bool relu, KernelCall& call) {
  const double windows = static_cast<double>(pool.out.shape(pool.format).count());
  const ThreadLimit limit(
      threads_for(windows * static_cast<double>(pool.windows[0].size * pool.windows[1].size), kGrain));
  switch (kind) {
    case PoolKind::Max:
      return max_launch(pool, call);
    case PoolKind::Average:
      return forward_launch(pool, dnnl::algorithm::pooling_avg_exclude_padding, call);
    case PoolKind::MaxGrad:
      return max_grad_launch(pool, relu, call);
    case PoolKind::AverageGrad:
      break;
  }
  return average_grad_launch(pool, call);
}

}  // namespace moonflow::cpu
