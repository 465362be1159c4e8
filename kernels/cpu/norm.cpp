// Batch normalisation on the CPU; see norm.h.
//
// Statistics are taken in one pass over memory. Some rows at a time, few enough to stay in the first-level cache, are
// gone over twice: for their mean, and for the distances from it. What such runs give is joined in double,
//   mean += delta * n_b / n,  spread += spread_b + delta^2 * n_a * n_b / n   with delta = mean_b - mean
// (Chan, Golub, LeVeque, Updating Formulae, COMPSTAT 1982), so a mean far larger than the deviation costs no digits,
// and a variance cannot come out negative.
//
// The gradient of a relu behind the normalisation asks where its output was above zero, that of a relu6 also where it
// was below 6. Where nothing was added in between, that is computed again from x, which is read anyway, so neither the
// output nor the relu's gradient is ever read or written for it.
#include "kernels/cpu/norm.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/cpu/channel_rows.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/types.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kLanes = ChannelRows::kLanes;
constexpr int64_t kRunRows = 64;

ChannelRows rows_of(const KernelCall& call, int x) {
  const int axis = wrap_axis(call.attrs.integer("axis"), call.inputs[x].shape.rank());
  return ChannelRows(*channel_form(call.inputs[x], call.input_layouts[x], axis));
}

// One number for each lane of a block. Where the block is one plane, each is about all of its places.
template <class T>
struct Lanes {
  alignas(64) T at[kLanes] = {};

  T& operator[](int64_t lane) { return at[lane]; }
  T operator[](int64_t lane) const { return at[lane]; }

  // Each lane of a plane has seen a part of it; now all have the sum.
  void fold(bool planar) {
    if (!planar) return;
    T sum = 0;
    for (const T part : at) sum += part;
    std::fill_n(at, kLanes, sum);
  }
};

// The values of a block out of an array with one for each channel; zero beyond the channels.
template <class T>
Lanes<T> lanes_of(const ChannelRows& rows, int64_t block, const T* values) {
  Lanes<T> lanes;
  const int64_t first = rows.first_channel(block), width = std::min(rows.width(block), rows.channels - first);
  if (rows.planar())
    std::fill_n(lanes.at, kLanes, values[first]);
  else
    std::copy_n(values + first, std::max<int64_t>(width, 0), lanes.at);
  return lanes;
}

// Calls body(lane, channel) for the channels of a block.
template <class Body>
void each_channel(const ChannelRows& rows, int64_t block, const Body& body) {
  const int64_t first = rows.first_channel(block), last = std::min(rows.channels, first + rows.width(block));
  for (int64_t c = first; c < last; ++c) body(c - first, c);
}

// What is kept of each chunk until the block's chunks are joined: two numbers a lane.
struct Partial {
  Lanes<double> first, second;
};

// Calls body(first place, last place) for the runs of a chunk.
template <class Body>
void each_run(const ChannelRows& rows, int64_t chunk, const Body& body) {
  const int64_t run = kRunRows * (rows.planar() ? kLanes : 1), last = rows.last_place(chunk);
  for (int64_t place = rows.first_place(chunk); place < last; place += run) body(place, std::min(last, place + run));
}

// Joins the mean and spread of `b_count` places to those of `a_count`.
void join(Partial& a, double a_count, const Partial& b, double b_count) {
  const double share = b_count / (a_count + b_count);
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const double delta = b.first[lane] - a.first[lane];
    a.first[lane] += delta * share;
    a.second[lane] += b.second[lane] + delta * delta * a_count * share;
  }
}

// Means, and sums of squared distances from them.
template <class T>
Partial statistics(const ChannelRows& rows, int64_t block, int64_t chunk, const T* x) {
  Partial total;
  each_run(rows, chunk, [&](int64_t first, int64_t last) {
    const double count = static_cast<double>(last - first);
    Lanes<T> mean, rest, squares;
    rows.each(block, first, last, [&](int64_t lane, int64_t i) { mean[lane] += x[i]; });
    mean.fold(rows.planar());
    for (T& lane : mean.at) lane /= static_cast<T>(count);
    // The mean was rounded; the sum of the distances says by how much.
    rows.each(block, first, last, [&](int64_t lane, int64_t i) {
      const T distance = x[i] - mean[lane];
      rest[lane] += distance;
      squares[lane] += distance * distance;
    });
    rest.fold(rows.planar());
    squares.fold(rows.planar());
    Partial run;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double off = rest[lane] / count;
      run.first[lane] = mean[lane] + off;
      run.second[lane] = std::max(squares[lane] - off * off * count, 0.0);
    }
    join(total, static_cast<double>(first - rows.first_place(chunk)), run, count);
  });
  return total;
}

// Sums of term(lane, element), a pair.
template <class T, class Term>
Partial sums(const ChannelRows& rows, int64_t block, int64_t chunk, const Term& term) {
  Partial total;
  each_run(rows, chunk, [&](int64_t first, int64_t last) {
    Lanes<T> a, b;
    rows.each(block, first, last, [&](int64_t lane, int64_t i) {
      T add_a, add_b;
      term(lane, i, add_a, add_b);
      a[lane] += add_a;
      b[lane] += add_b;
    });
    a.fold(rows.planar());
    b.fold(rows.planar());
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      total.first[lane] += a[lane];
      total.second[lane] += b[lane];
    }
  });
  return total;
}

Partial sum_of_chunks(const ChannelRows& rows, const Partial* chunks) {
  Partial total;
  for (int64_t chunk = 0; chunk < rows.chunks; ++chunk) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      total.first[lane] += chunks[chunk].first[lane];
      total.second[lane] += chunks[chunk].second[lane];
    }
  }
  return total;
}

int64_t partials_bytes(const ChannelRows& rows) {
  return checked_product(checked_product(rows.blocks, std::max<int64_t>(rows.chunks, 1)), sizeof(Partial));
}

// y = (x - mean) * scale + beta of one block. Forward and gradient agree on where a relu cuts, since both ask this.
template <class T>
struct Normalised {
  Lanes<T> mean, scale, beta;

  Normalised(const ChannelRows& rows, int64_t block, const T* means, const T* inv_std, const T* gamma, const T* betas)
      : mean(lanes_of(rows, block, means)), scale(lanes_of(rows, block, gamma)), beta(lanes_of(rows, block, betas)) {
    const Lanes<T> inverse = lanes_of(rows, block, inv_std);
    for (int64_t lane = 0; lane < kLanes; ++lane) scale[lane] *= inverse[lane];
  }
  T operator()(int64_t lane, T x) const { return (x - mean[lane]) * scale[lane] + beta[lane]; }
};

// The gradient behind an activation whose output is `y`. By value, so that dy is read in any case, which vectorises.
template <Activation kActivation, class T>
T where(T y, T dy) {
  return passes(kActivation, y) ? dy : T(0);
}
constexpr Activation kRelu = Activation::Relu, kRelu6 = Activation::Relu6;

}  // namespace

void batch_norm_layouts(LayoutCall& call) {
  const auto is_image = [](const TensorType& type) { return type.shape.rank() > 1; };
  Layout chosen;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Layout offered = call.inputs[i];
    call.inputs[i] = {};
    if (!call.present[i] || !is_image(call.input_types[i]) || !chosen.row_major() || offered.row_major()) continue;
    const int axis = wrap_axis(call.attrs.integer("axis"), call.input_types[i].shape.rank());
    if (channel_form(call.input_types[i], offered, axis)) chosen = offered;
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.present[i] && is_image(call.input_types[i])) call.inputs[i] = chosen;
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = is_image(call.output_types[i]) ? chosen : Layout{};
  }
}

Launch batch_norm_train(KernelCall& call, double epsilon, Tail tail) {
  const ChannelRows rows = rows_of(call, 0);
  call.scratch_bytes = partials_bytes(rows);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = launch.input<T>(2);
      const T* addend = tail == Tail::AddRelu ? launch.input<T>(3) : nullptr;
      T *y = launch.output<T>(0), *mean = launch.output<T>(1), *inv_std = launch.output<T>(2);
      Partial* partials = static_cast<Partial*>(launch.scratch);
      const auto combine = [&](int64_t block) {
        Partial total;
        for (int64_t chunk = 0; chunk < rows.chunks; ++chunk) {
          join(total, static_cast<double>(rows.first_place(chunk)), partials[block * rows.chunks + chunk],
               static_cast<double>(rows.last_place(chunk) - rows.first_place(chunk)));
        }
        each_channel(rows, block, [&](int64_t lane, int64_t c) {
          mean[c] = static_cast<T>(total.first[lane]);
          inv_std[c] = static_cast<T>(1 / std::sqrt(total.second[lane] / static_cast<double>(rows.places) + epsilon));
        });
      };
      const auto map = [&](int64_t block, int64_t chunk) {
        const Normalised<T> normalised(rows, block, mean, inv_std, gamma, beta);
        const auto each = [&](const auto& value) {
          rows.each(block, rows.first_place(chunk), rows.last_place(chunk),
                    [&](int64_t lane, int64_t i) { y[i] = value(lane, i); });
        };
        const auto relu = [](T value) { return activated(kRelu, value); };
        const auto relu6 = [](T value) { return activated(kRelu6, value); };
        if (tail == Tail::None) each([&](int64_t lane, int64_t i) { return normalised(lane, x[i]); });
        if (tail == Tail::Relu) each([&](int64_t lane, int64_t i) { return relu(normalised(lane, x[i])); });
        if (tail == Tail::Relu6) each([&](int64_t lane, int64_t i) { return relu6(normalised(lane, x[i])); });
        if (tail == Tail::AddRelu)
          each([&](int64_t lane, int64_t i) { return relu(normalised(lane, x[i]) + addend[i]); });
      };
      rows.in_two_passes(
          [&](int64_t block, int64_t chunk) {
            partials[block * rows.chunks + chunk] = statistics(rows, block, chunk, x);
          },
          combine, map);
    };
  });
}

// With h = (x - mean) * inv_std, n values a channel, and a = gamma * inv_std:
//   dx = a * (dy - mean(dy) - h * mean(dy * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// The last two terms are there when someone asks for the gradient of the statistics themselves.
Launch batch_norm_train_grad(KernelCall& call, Tail tail) {
  const ChannelRows rows = rows_of(call, 0);
  const bool fused = tail != Tail::None;
  const bool has_dmean = !fused && call.has(5), has_dinv_std = !fused && call.has(6);
  const bool has_more = tail == Tail::AddRelu && call.has(7);
  call.scratch_bytes = partials_bytes(rows);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = fused ? launch.input<T>(2) : nullptr;
      const T *mean = launch.input<T>(fused ? 3 : 2), *inv_std = launch.input<T>(fused ? 4 : 3);
      const T* dy = launch.input<T>(fused ? 5 : 4);
      const T* y = tail == Tail::AddRelu ? launch.input<T>(6) : nullptr;
      const T* more_dy = has_more ? launch.input<T>(7) : nullptr;
      const T *dmean = has_dmean ? launch.input<T>(5) : nullptr,
              *dinv_std = has_dinv_std ? launch.input<T>(6) : nullptr;
      T *dx = launch.output<T>(0), *dgamma = launch.output<T>(1), *dbeta = launch.output<T>(2);
      T* dsum = tail == Tail::AddRelu ? launch.output<T>(3) : nullptr;
      Partial* partials = static_cast<Partial*>(launch.scratch);
      const double count = static_cast<double>(rows.places);

      const auto sum = [&](int64_t block, int64_t chunk) {
        const Lanes<T> means = lanes_of(rows, block, mean), inverse = lanes_of(rows, block, inv_std);
        const auto sums_with = [&](const auto& gradient) {
          partials[block * rows.chunks + chunk] =
              sums<T>(rows, block, chunk, [&](int64_t lane, int64_t i, T& d, T& dh) {
                d = gradient(lane, i);
                dh = d * ((x[i] - means[lane]) * inverse[lane]);
              });
        };
        if (tail == Tail::None) sums_with([&](int64_t, int64_t i) { return dy[i]; });
        if (tail == Tail::Relu) {
          const Normalised<T> normalised(rows, block, mean, inv_std, gamma, beta);
          sums_with([&](int64_t lane, int64_t i) { return where<kRelu>(normalised(lane, x[i]), dy[i]); });
        }
        if (tail == Tail::Relu6) {
          const Normalised<T> normalised(rows, block, mean, inv_std, gamma, beta);
          sums_with([&](int64_t lane, int64_t i) { return where<kRelu6>(normalised(lane, x[i]), dy[i]); });
        }
        if (tail == Tail::AddRelu && !more_dy)
          sums_with([&](int64_t, int64_t i) { return dsum[i] = where<kRelu>(y[i], dy[i]); });
        if (tail == Tail::AddRelu && more_dy)
          sums_with([&](int64_t, int64_t i) { return dsum[i] = where<kRelu>(y[i], dy[i] + more_dy[i]); });
      };
      const auto combine = [&](int64_t block) {
        const Partial total = sum_of_chunks(rows, partials + block * rows.chunks);
        // From here on the block's first partial holds the last terms of dx = slope * d + first + second * h.
        Partial& rest = partials[block * rows.chunks];
        each_channel(rows, block, [&](int64_t lane, int64_t c) {
          const double slope = double{gamma[c]} * inv_std[c];
          dbeta[c] = static_cast<T>(total.first[lane]);
          dgamma[c] = static_cast<T>(total.second[lane]);
          rest.first[lane] = -slope * total.first[lane] / count + (dmean ? dmean[c] / count : 0);
          rest.second[lane] = -slope * total.second[lane] / count -
                              (dinv_std ? double{dinv_std[c]} * inv_std[c] * inv_std[c] / count : 0);
        });
        for (int64_t lane = 1; rows.planar() && lane < kLanes; ++lane) {
          rest.first[lane] = rest.first[0];
          rest.second[lane] = rest.second[0];
        }
      };
      const auto map = [&](int64_t block, int64_t chunk) {
        const Normalised<T> normalised(rows, block, mean, inv_std, gamma, beta ? beta : gamma);
        const Lanes<T> inverse = lanes_of(rows, block, inv_std);
        const Partial& rest = partials[block * rows.chunks];
        Lanes<T> first, second;
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          first[lane] = static_cast<T>(rest.first[lane]);
          second[lane] = static_cast<T>(rest.second[lane]);
        }
        const auto each = [&](const auto& gradient) {
          rows.each(block, rows.first_place(chunk), rows.last_place(chunk), [&](int64_t lane, int64_t i) {
            const T h = (x[i] - normalised.mean[lane]) * inverse[lane];
            dx[i] = normalised.scale[lane] * gradient(lane, i) + first[lane] + second[lane] * h;
          });
        };
        if (tail == Tail::None) each([&](int64_t, int64_t i) { return dy[i]; });
        if (tail == Tail::Relu)
          each([&](int64_t lane, int64_t i) { return where<kRelu>(normalised(lane, x[i]), dy[i]); });
        if (tail == Tail::Relu6)
          each([&](int64_t lane, int64_t i) { return where<kRelu6>(normalised(lane, x[i]), dy[i]); });
        if (tail == Tail::AddRelu) each([&](int64_t, int64_t i) { return dsum[i]; });
      };
      rows.in_two_passes(sum, combine, map);
      if (rows.chunks == 0) {
        std::fill_n(dgamma, rows.channels, T(0));
        std::fill_n(dbeta, rows.channels, T(0));
      }
    };
  });
}

Launch batch_norm_infer(KernelCall& call, double epsilon) {
  const ChannelRows rows = rows_of(call, 0);
  call.scratch_bytes = checked_product(rows.channels, sizeof(double));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = launch.input<T>(2);
      const T *mean = launch.input<T>(3), *variance = launch.input<T>(4);
      T *y = launch.output<T>(0), *inv_std = static_cast<T*>(launch.scratch);
      for (int64_t c = 0; c < rows.channels; ++c) {
        inv_std[c] = static_cast<T>(1 / std::sqrt(double{variance[c]} + epsilon));
      }
      rows.share_out(0, rows.blocks, [&](int64_t block, int64_t chunk) {
        const Normalised<T> normalised(rows, block, mean, inv_std, gamma, beta);
        rows.each(block, rows.first_place(chunk), rows.last_place(chunk),
                  [&](int64_t lane, int64_t i) { y[i] = normalised(lane, x[i]); });
      });
    };
  });
}

// With s = 1 / sqrt(variance + epsilon), h = (x - mean) * s:
//   dx = dy * gamma * s, dgamma = sum(dy * h), dbeta = sum(dy),
//   dmean = -gamma * s * dbeta, dvariance = -gamma * s^2 * dgamma / 2
Launch batch_norm_infer_grad(KernelCall& call, double epsilon) {
  const ChannelRows rows = rows_of(call, 1);
  const int64_t partials = partials_bytes(rows);
  call.scratch_bytes = checked_sum(partials, checked_product(rows.channels, sizeof(double)));
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *dy = launch.input<T>(0), *x = launch.input<T>(1), *gamma = launch.input<T>(2);
      const T *mean = launch.input<T>(3), *variance = launch.input<T>(4);
      T *dx = launch.output<T>(0), *dgamma = launch.output<T>(1), *dbeta = launch.output<T>(2);
      T *dmean = launch.output<T>(3), *dvariance = launch.output<T>(4);
      Partial* of_chunks = static_cast<Partial*>(launch.scratch);
      T* inv_std = reinterpret_cast<T*>(static_cast<char*>(launch.scratch) + partials);
      for (int64_t c = 0; c < rows.channels; ++c) {
        inv_std[c] = static_cast<T>(1 / std::sqrt(double{variance[c]} + epsilon));
      }
      rows.in_two_passes(
          [&](int64_t block, int64_t chunk) {
            const Lanes<T> means = lanes_of(rows, block, mean), inverse = lanes_of(rows, block, inv_std);
            of_chunks[block * rows.chunks + chunk] =
                sums<T>(rows, block, chunk, [&](int64_t lane, int64_t i, T& d, T& dh) {
                  d = dy[i];
                  dh = d * ((x[i] - means[lane]) * inverse[lane]);
                });
          },
          [&](int64_t block) {
            const Partial total = sum_of_chunks(rows, of_chunks + block * rows.chunks);
            each_channel(rows, block, [&](int64_t lane, int64_t c) {
              const double slope = double{gamma[c]} * inv_std[c];
              dbeta[c] = static_cast<T>(total.first[lane]);
              dgamma[c] = static_cast<T>(total.second[lane]);
              dmean[c] = static_cast<T>(-slope * total.first[lane]);
              dvariance[c] = static_cast<T>(-slope * inv_std[c] * total.second[lane] / 2);
            });
          },
          [&](int64_t block, int64_t chunk) {
            const Normalised<T> normalised(rows, block, mean, inv_std, gamma, gamma);
            rows.each(block, rows.first_place(chunk), rows.last_place(chunk),
                      [&](int64_t lane, int64_t i) { dx[i] = dy[i] * normalised.scale[lane]; });
          });
    };
  });
}

}  // namespace moonflow::cpu
