// Adding one number per channel, and its gradient. Both take values in row-major form or in blocks of channels, since
// they sit between convolutions.
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using cpu::channel_form;

int checked_channel_axis(const OpCall& call) {
  const Shape& shape = call.shape(0);
  require(shape.rank() >= 2, ErrorCode::ShapeMismatch, "value is ", shape, ", wanted rank 2 or more");
  return channel_axis(call.attrs.string("data_format"), shape.rank());
}

std::vector<TensorType> infer_bias_add(const OpCall& call) {
  const int axis = checked_channel_axis(call);
  const DType dtype = call.dtype(0);
  require(is_floating(dtype), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", dtype);
  const bool mixed = is_narrow(dtype) && call.dtype(1) == DType::Float32;
  require(call.dtype(1) == dtype || mixed, ErrorCode::DtypeMismatch, "value is ", dtype, ", bias is ", call.dtype(1));
  require(call.shape(1) == Shape{call.shape(0)[axis]}, ErrorCode::ShapeMismatch, "value is ", call.shape(0), " with ",
          call.shape(0)[axis], " channels on axis ", axis, ", bias is ", call.shape(1));
  return {call.type(0)};
}

std::vector<TensorType> infer_bias_grad(const OpCall& call) {
  const int axis = checked_channel_axis(call);
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  return {{mixed_result(call), {call.shape(0)[axis]}}};
}

std::vector<ValueId> grad_bias_add(GradCall& call) {
  const ValueId dy = call.grads[0];
  return {dy, call.op("bias_grad", {dy}, {{"data_format", call.attrs.string("data_format")}})};
}

std::vector<ValueId> grad_bias_grad(GradCall& call) {
  const ValueId zeros = call.op("zeros_like", {call.inputs[0]});
  return {call.op("bias_add", {zeros, call.grads[0]}, {{"data_format", call.attrs.string("data_format")}})};
}

int axis_of(const Attrs& attrs, const TensorType& type) {
  return channel_axis(attrs.string("data_format"), type.shape.rank());
}

// A private layout stays where it is a form of channels.
void keep_layout(LayoutCall& call) {
  const TensorType& type = call.input_types[0];
  if (!channel_form(type, call.inputs[0], axis_of(call.attrs, type))) call.inputs[0] = Layout{};
  for (size_t i = 1; i < call.inputs.size(); ++i) call.inputs[i] = Layout{};
  if (call.output_types[0].shape.rank() > 1) call.outputs[0] = call.inputs[0];
}

ChannelForm form_of(const KernelCall& call) {
  return *channel_form(call.inputs[0], call.input_layouts[0], axis_of(call.attrs, call.inputs[0]));
}

template <class T>
void add(const ChannelForm& form, const T* value, const T* bias, T* out) {
  // A run has one bias, or one bias per lane.
  const int64_t run = form.lanes == 1 ? form.positions : form.lanes;
  const int64_t runs_per_block = form.lanes == 1 ? 1 : form.positions;
  if (form.count() == 0) return;
  cpu::parallel_for(form.count() / run, std::max<int64_t>(1, cpu::kWideGrain / run), [&](int64_t first, int64_t last) {
    cpu::widest([&] {
      for (int64_t r = first; r < last; ++r) {
        const T* b = bias + r / runs_per_block % form.blocks * form.lanes;
        const T* x = value + r * run;
        T* y = out + r * run;
        if (form.lanes == 1) {
          const T b0 = *b;
#pragma omp simd
          for (int64_t i = 0; i < run; ++i) y[i] = x[i] + b0;
        } else {
#pragma omp simd
          for (int64_t i = 0; i < run; ++i) y[i] = x[i] + b[i];
        }
      }
    });
  });
}

Launch prepare_bias_add(KernelCall& call) {
  const ChannelForm form = form_of(call);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    // The last block may have lanes beyond the channels; they hold zeros, and stay so.
    const int64_t lanes = form.blocks * form.lanes;
    call.scratch_bytes = lanes == form.channels ? 0 : lanes * static_cast<int64_t>(sizeof(T));
    return [form, lanes](const LaunchCall& launch) {
      const T* bias = launch.input<T>(1);
      if (lanes != form.channels) {
        T* padded = static_cast<T*>(launch.scratch);
        std::fill(std::copy(bias, bias + form.channels, padded), padded + lanes, T(0));
        bias = padded;
      }
      add(form, launch.input<T>(0), bias, launch.output<T>(0));
    };
  });
}

// ---- the sum over all but the channels --------------------------------------------------------------------------
// The rows (outer, position) are cut into parts, whatever the number of threads; each part adds up to kRun numbers in T
// before it goes on in double, and the parts are added in order. So the sum is accurate, and the same for any number of
// threads.

constexpr int64_t kMostParts = 16;
constexpr int64_t kRun = 64;
// Lanes summed side by side. In rows of many, so many that their sums hide the latency of one another and some lines of
// a row are read together; it is the same sum for each.
constexpr int64_t kFewLanes = 16, kManyLanes = 64;

// Adds `count` rows of `width` lanes, `stride` apart, where most have kWidth.
template <int64_t kWidth, class T>
void add_rows(const T* rows, int64_t count, int64_t stride, int64_t width, double* sums) {
  for (int64_t from = 0; from < count; from += kRun) {
    T run[kWidth] = {};
    const int64_t to = std::min(count, from + kRun);
    if (width == kWidth) {
      for (int64_t row = from; row < to; ++row) {
#pragma omp simd
        for (int64_t i = 0; i < kWidth; ++i) run[i] += rows[row * stride + i];
      }
    } else {
      for (int64_t row = from; row < to; ++row) {
        for (int64_t i = 0; i < width; ++i) run[i] += rows[row * stride + i];
      }
    }
    for (int64_t i = 0; i < width; ++i) sums[i] += run[i];
  }
}

// Adds `count` neighbours: as rows of kFewLanes lanes, folded at the end.
template <class T>
void add_neighbours(const T* values, int64_t count, double* sum) {
  double lanes[kFewLanes] = {};
  const int64_t rows = count / kFewLanes;
  add_rows<kFewLanes>(values, rows, kFewLanes, kFewLanes, lanes);
  add_rows<kFewLanes>(values + rows * kFewLanes, 1, kFewLanes, count % kFewLanes, lanes);
  for (double lane : lanes) *sum += lane;
}

int64_t part_count(const ChannelForm& form) {
  return std::clamp<int64_t>(form.outer * form.positions / kRun, 1, kMostParts);
}

template <class T>
void sum_channels(const ChannelForm& form, const T* value, double* part_sums, T* out) {
  const int64_t lanes = form.blocks * form.lanes;
  const int64_t chunk_width = form.lanes % kManyLanes == 0 ? kManyLanes : kFewLanes;
  const int64_t chunks = (form.lanes + chunk_width - 1) / chunk_width;  // of one block
  const int64_t parts = part_count(form);
  const bool by_outer = form.outer > 1;
  const int64_t rows = by_outer ? form.outer : form.positions;
  if (form.count() == 0) {
    std::fill_n(out, form.channels, T(0));
    return;
  }

  auto sum_part = [&](int64_t part, int64_t block, int64_t chunk) {
    const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
    const int64_t width = std::min(chunk_width, form.lanes - chunk * chunk_width);
    double* sums = part_sums + part * lanes + block * form.lanes + chunk * chunk_width;
    std::fill(sums, sums + width, 0.0);
    for (int64_t outer = by_outer ? first : 0; outer < (by_outer ? last : form.outer); ++outer) {
      const int64_t from = by_outer ? 0 : first, to = by_outer ? form.positions : last;
      const T* at = value + ((outer * form.blocks + block) * form.positions + from) * form.lanes + chunk * chunk_width;
      if (form.lanes == 1) {
        add_neighbours(at, to - from, sums);
      } else if (chunk_width == kManyLanes) {
        add_rows<kManyLanes>(at, to - from, form.lanes, width, sums);
      } else {
        add_rows<kFewLanes>(at, to - from, form.lanes, width, sums);
      }
    }
  };

  const int64_t work = std::max<int64_t>(1, form.count() / (parts * form.blocks * chunks));
  cpu::parallel_for(parts * form.blocks * chunks, std::max<int64_t>(1, cpu::kWideGrain / work),
                    [&](int64_t first, int64_t last) {
                      cpu::widest([&] {
                        for (int64_t i = first; i < last; ++i) {
                          sum_part(i / chunks / form.blocks, i / chunks % form.blocks, i % chunks);
                        }
                      });
                    });
  for (int64_t c = 0; c < form.channels; ++c) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += part_sums[part * lanes + c];
    out[c] = static_cast<T>(sum);
  }
}

Launch prepare_bias_grad(KernelCall& call) {
  const ChannelForm form = form_of(call);
  call.scratch_bytes = part_count(form) * form.blocks * form.lanes * static_cast<int64_t>(sizeof(double));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [form](const LaunchCall& launch) {
      sum_channels(form, launch.input<T>(0), static_cast<double*>(launch.scratch), launch.output<T>(0));
    };
  });
}

AttrDef data_format_attr() {
  return {"data_format", std::string(),
          "where the channels are: axis 1 for \"\" and \"NC...\", the last axis for \"N...C\""};
}

}  // namespace

void add_bias(Catalog& catalog) {
  OpDef bias_add;
  bias_add.name = "bias_add";
  bias_add.lua = "nn.bias_add";
  bias_add.doc =
      "Adds one number to all elements of a channel.\n"
      "  out[n, c, ...] = value[n, c, ...] + bias[c]\n"
      "shapes: value of rank 2 or more, bias (channels) -> the shape of value\n"
      "dtypes: float32 or float64, both inputs alike; a bfloat16 or float16 value also takes a float32 bias\n"
      "errors: bias has another length than the channel axis";
  bias_add.inputs = {{"value"}, {"bias"}};
  bias_add.attrs = {data_format_attr()};
  bias_add.infer = infer_bias_add;
  bias_add.grad = grad_bias_add;
  bias_add.cpu = {prepare_bias_add, keep_layout};
  bias_add.inplace = {{0, 0}};
  bias_add.narrow.role = NarrowUse::Follows;
  bias_add.narrow.keeps_float32 = {1};
  bias_add.examples = {
      {{f32({5, 3}), f32({3})}},
      {{f32({2, 3, 4, 5}), f32({3})}},
      {{f32({2, 3, 4, 5}), f32({5})}, {{"data_format", std::string("NHWC")}}},
      {{f32({2, 20, 1}), f32({20})}, {{"data_format", std::string("NCW")}}},
  };
  catalog.add(std::move(bias_add));

  OpDef bias_grad;
  bias_grad.name = "bias_grad";
  bias_grad.doc =
      "Gradient of bias_add with respect to the bias: dbias[c] = sum of dy over all axes but the channels'.";
  bias_grad.inputs = {{"dy"}};
  bias_grad.outputs = {"dbias"};
  bias_grad.attrs = {data_format_attr(), mixed_result_attr()};
  bias_grad.infer = infer_bias_grad;
  bias_grad.grad = grad_bias_grad;
  bias_grad.cpu = {prepare_bias_grad, keep_layout};
  bias_grad.narrow = follows_off_cpu();
  bias_grad.examples = {
      {{f32({5, 3})}},
      {{f32({100, 37})}},
      {{f32({20, 3, 4, 5})}},
      {{f32({2, 3, 9, 18})}, {{"data_format", std::string("NHWC")}}},
      {{bf16({7, 3, 4, 5})}, {{"mixed", std::string("float32")}}},
      {{bf16({5, 40})}, {{"mixed", std::string("bfloat16")}}},
  };
  catalog.add(std::move(bias_grad));
}

}  // namespace moonflow
