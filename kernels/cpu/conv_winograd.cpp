// Convolution with 3x3 and 5x5 filters as Winograd has it, in all three directions. winograd.h has the arithmetic.
//
// The output is cut into tiles of 4x4, under which lie tiles of n x n inputs, n = taps + 3. An input tile, spread along
// both axes, becomes n^2 points in every channel; so does the filter. At each point the sum over the channels is then a
// matrix product of its own,
//     products[p] (tiles, filters) = points[p] (tiles, channels) * weights[p] (channels, filters),
// and collecting the n^2 products along both axes gives the output tile, to which bias and activation are applied on its
// way to memory. The gradient of the image is the same with the filter turned by 180 degrees, channels and filters
// exchanged. The gradient of the filter takes the products of both sides' points over the tiles,
//     sums[p] (channels, filters) += points[p]^T (channels, tiles) * gradients[p] (tiles, filters),
// and collects them once at the end.
//
// Each thread has one contiguous part of the tiles, and takes a batch of them at a time: about a dozen, as many as one
// product in registers has rows, so that points and products stay in the second-level cache with the weights; more
// where the weights do not fit there, or are sums that each batch has to read and write. A last row or column of tiles
// of which only two outputs are needed is narrow: it has fewer points, and the tiles of a batch lie so that those with
// a point are neighbours. A tile is computed in the same way in whatever batch it falls, so the result is the same for
// any number of threads, but for the filter's gradient, which each thread sums over its own tiles.
//
// Images lie in blocks of 16 channels, so a register is a place in 16, 8 or 4 channels and transforms are plain
// arithmetic on registers. Neighbouring input tiles overlap by n - 4; the vertical half of the transform is done once
// per column of a row of tiles, in a strip of n rows, and only the horizontal half once per tile. Where 2x2 windows are
// pooled behind the convolution, they lie within tiles: the forward pass stores only each window's maximum and its
// place, and the gradients spread what comes back over the windows as they read it.
//
// Error: the numbers 1/90 to 21/4 of the transforms magnify roundings. Against float64, and measured by the largest
// result, up to 1.1e-5 were seen, where direct sums have 3e-7. A test holds it to 2e-5, which is what conv2d promises.
#include "kernels/cpu/conv_winograd.h"

#include <optional>

#include "kernels/cpu/device.h"
#include "kernels/cpu/marked_layout.h"

namespace moonflow::cpu {
namespace {

using namespace winograd;

// The tiles of a batch that have a point.
template <int kTaps>
Batch::Range tiles_at(const Batch& batch, int point) {
  using W = Winograd<kTaps>;
  return batch.tiles(W::is_narrow(point / W::kPoints), W::is_narrow(point % W::kPoints));
}

// ---- the image's direction -----------------------------------------------------------------------------------------

struct Values {
  const float *image, *filter, *bias, *addend;
  const uint8_t* image_places;
  float* out;
  uint8_t* out_places;
};

template <class R, int kTaps>
void convolve_units(const Work& work, int64_t first, int64_t last, const Values& values, const float* weights,
                    float* scratch) {
  constexpr int n = Winograd<kTaps>::kPoints;
  float *points = scratch, *products = points + n * n * work.points_step(),
        *strip = products + work.tiling.most_tiles() * work.products_tile(n);
  for (int64_t from = first; from < last; from += work.tiling.per_batch) {
    const Batch batch(work.tiling, from, std::min(last, from + work.tiling.per_batch));
    batch.each_unit([&](const Unit& here) {
      transform_image<R, kTaps>(work, here, values.image, values.image_places, strip, points);
    });
    for (int64_t panel = 0; panel < work.out.channels; panel += kPanel) {
      const int64_t width = std::min(kPanel, work.out.channels - panel);
      for (int p = 0; p < n * n; ++p) {
        const Batch::Range tiles = tiles_at<kTaps>(batch, p);
        multiply<R>(tiles.count, width, work.image.channels,
                    points + p * work.points_step() + tiles.first * work.image.channels, work.image.channels, 1,
                    weights + p * work.weights_step() + panel * work.image.channels, width,
                    products + p * kPanel + tiles.first * work.products_tile(n), work.products_tile(n), Replace());
      }
      batch.each_unit([&](const Unit& here) {
        if (work.out_pooled) {
          collect_tiles<R, kTaps, true>(work, here, panel, width, products, values.bias, nullptr, values.out,
                                        values.out_places);
        } else {
          collect_tiles<R, kTaps, false>(work, here, panel, width, products, values.bias, values.addend, values.out,
                                         nullptr);
        }
      });
    }
  }
}

// All weights of a filter, shared between up to `parts` threads.
template <int kTaps>
void transform_filter(const FilterPoints& form, const float* filter, int parts, float* weights) {
  const int64_t blocks = divide_up(form.produced, kBlock);
  parallel_for(blocks, parts == 1 ? blocks : 1, [&](int64_t first, int64_t last) {
    widest_register([&](auto width) {
      for (int64_t b = first; b < last; ++b) transform_filter<decltype(width), kTaps>(form, filter, b, weights);
    });
  });
}

template <int kTaps>
Launch convolve(const Work& work, KernelCall& call) {
  constexpr int n = Winograd<kTaps>::kPoints;
  const bool transformed = !call.input_layouts[work.image_pooled ? 2 : 1].row_major();
  const int64_t weights = transformed ? 0 : n * n * work.weights_step();
  const int64_t padded_bias = work.bias ? work.out.channels : 0;
  const int64_t part = round_up(
      n * n * work.points_step() + work.tiling.most_tiles() * work.products_tile(n) + work.strip_floats(n), kLine);
  call.scratch_bytes = (weights + padded_bias + work.parts * part) * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    float* scratch = static_cast<float*>(launch.scratch);
    float* bias = scratch + weights;
    if (work.bias) {  // with zeros in the lanes beyond its channels
      const float* given = launch.input<float>(2);
      std::fill(std::copy(given, given + work.out_channels, bias), bias + padded_bias, 0.0f);
    }
    const Values values{launch.input<float>(0),
                        launch.input<float>(work.image_pooled ? 2 : 1),
                        bias,
                        work.sum ? launch.input<float>(3) : nullptr,
                        work.image_pooled ? launch.input<uint8_t>(1) : nullptr,
                        launch.output<float>(0),
                        work.out_pooled ? launch.output<uint8_t>(1) : nullptr};
    if (!transformed) transform_filter<kTaps>(work.filter_points(kTaps), values.filter, work.parts, scratch);
    const float* at_points = transformed ? values.filter : scratch;
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          convolve_units<decltype(width), kTaps>(work, work.tiling.units * i / work.parts,
                                                 work.tiling.units * (i + 1) / work.parts, values, at_points,
                                                 bias + padded_bias + i * part);
        }
      });
    });
  };
}

// ---- the filter's direction ----------------------------------------------------------------------------------------

// Sums the tiles of some units to sums[p][channel][filter], and adds them to bias.
template <class R, int kTaps>
void sum_units(const Work& work, int64_t first, int64_t last, const float* dy, const uint8_t* places,
               const float* image, float* sums, float* bias, float* scratch) {
  constexpr int n = Winograd<kTaps>::kPoints;
  float *points = scratch, *gradients = points + n * n * work.points_step(),
        *strip = gradients + n * n * work.gradients_step();
  for (int64_t from = first; from < last; from += work.tiling.per_batch) {
    const Batch batch(work.tiling, from, std::min(last, from + work.tiling.per_batch));
    batch.each_unit([&](const Unit& here) {
      transform_image<R, kTaps>(work, here, image, nullptr, strip, points);
      if (work.out_pooled) {
        transform_gradient<R, kTaps, true>(work, here, dy, places, gradients, bias);
      } else {
        transform_gradient<R, kTaps, false>(work, here, dy, nullptr, gradients, bias);
      }
    });
    const auto multiply_points = [&](const auto& ending) {
      for (int p = 0; p < n * n; ++p) {
        const Batch::Range tiles = tiles_at<kTaps>(batch, p);
        multiply<R>(work.image.channels, work.out.channels, tiles.count,
                    points + p * work.points_step() + tiles.first * work.image.channels, 1, work.image.channels,
                    gradients + p * work.gradients_step() + tiles.first * work.out.channels, work.out.channels,
                    sums + p * work.weights_step(), work.out.channels, ending);
      }
    };
    if (from == first)
      multiply_points(Replace());
    else
      multiply_points(Add());
  }
}

template <int kTaps>
Launch sum_filter(const Work& work, KernelCall& call) {
  constexpr int n = Winograd<kTaps>::kPoints;
  const int64_t sums = n * n * work.weights_step() + work.out.channels;  // of one part, with the bias behind
  const int64_t part =
      round_up(sums + n * n * (work.points_step() + work.gradients_step()) + work.strip_floats(n), kLine);
  call.scratch_bytes = work.parts * part * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float *dy = launch.input<float>(0), *image = launch.input<float>(work.out_pooled ? 2 : 1);
    const uint8_t* places = work.out_pooled ? launch.input<uint8_t>(1) : nullptr;
    float *dfilter = launch.output<float>(0), *dbias = work.bias ? launch.output<float>(1) : nullptr;
    float* scratch = static_cast<float*>(launch.scratch);
    const int64_t bias_at = n * n * work.weights_step();
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          float* own = scratch + i * part;
          const int64_t from = work.tiling.units * i / work.parts, to = work.tiling.units * (i + 1) / work.parts;
          const int64_t untouched = from == to ? 0 : bias_at;  // the first batch of units writes the sums
          std::memset(own + untouched, 0, (sums - untouched) * sizeof(float));
          sum_units<decltype(width), kTaps>(work, from, to, dy, places, image, own, own + bias_at, own + sums);
        }
      });
    });
    parallel_for(work.out.channels / kBlock, work.parts == 1 ? work.out.channels : 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t b = first; b < last; ++b) collect_filter<decltype(width), kTaps>(work, scratch, part, b, dfilter);
      });
    });
    if (!dbias) return;
    for (int64_t f = 0; f < work.out_channels; ++f) {
      dbias[f] = scratch[bias_at + f];
      for (int i = 1; i < work.parts; ++i) dbias[f] += scratch[i * part + bias_at + f];
    }
  };
}

// ---- what the op asks ----------------------------------------------------------------------------------------------

// Of all points, in floats.
int64_t weights_floats(const Conv& conv) {
  const int64_t points = conv.windows[0].size + 3;
  return points * points * round_up(conv.image.channels, kBlock) * round_up(conv.filters(), kBlock);
}

// Tiles that meet the weights together. The more, the less often the weights come from where they are; but their own
// points should stay nearer. For the filter's gradient tiles are what is summed over, and the weights are sums that
// each batch reads and writes.
int64_t batch_tiles(const Conv& conv, ConvKind kind) {
  const bool near = weights_floats(conv) <= int64_t{1} << 18;  // 1 MiB, about what a second-level cache has
  return (is_filter_grad(kind) ? 2 : 1) * (near ? 1 : 4) * kTiles;
}

// ---- filters kept as weights ---------------------------------------------------------------------------------

Layout layout_of_points(const FilterPoints& form) {
  return marked_layout(form, form.points() * form.step() * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

bool is_winograd_filter(const Layout& layout) { return is_marked<FilterPoints>(layout); }

Launch winograd_filter(const Layout& layout) {
  return [form = marked_form<FilterPoints>(layout)](const LaunchCall& launch) {
    if (form.taps == 3) return transform_filter<3>(form, launch.input<float>(0), threads(), launch.output<float>(0));
    transform_filter<5>(form, launch.input<float>(0), threads(), launch.output<float>(0));
  };
}

bool winograd_fits(const Conv& conv, ConvKind kind) {
  if (!conv.slides_by_one() || conv.windows[1].size != conv.windows[0].size) return false;
  const int64_t taps = conv.windows[0].size, channels = conv.image.channels, filters = conv.filters();
  if ((taps != 3 && taps != 5) || conv.groups != 1 || conv.format.spatial_axes != 2) return false;
  if (conv.format.channels_last && (channels % kBlock != 0 || filters % kBlock != 0)) return false;
  // The filter's gradient has the weights once for each thread; that should stay within 128 MiB.
  if (weights_floats(conv) * (is_filter_grad(kind) ? threads() : 1) > int64_t{1} << 25) return false;
  return conv.image.batch * conv.image.height * conv.image.width * conv.out.height * conv.out.width > 0;
}

// Counted in cycles of a core with AVX-512, roughly; other registers slow both sides alike.
bool winograd_is_faster(const Conv& conv, ConvKind kind) {
  const double taps = static_cast<double>(conv.windows[0].size), points = taps + 3;
  const ImageSize& made = is_input_grad(kind) ? conv.image : conv.out;
  const double channels = static_cast<double>(round_up(conv.image.channels, kBlock)),
               filters = static_cast<double>(round_up(conv.out.channels, kBlock));
  const Tiling tiling(made.batch, made.height, made.width, kTiles);
  const double tiles = static_cast<double>(made.batch * tiling.rows * tiling.columns);
  const double all_points = (points * static_cast<double>(tiling.rows) - (tiling.narrow_row ? 2 : 0)) *
                            (points * static_cast<double>(tiling.columns) - (tiling.narrow_column ? 2 : 0)) *
                            static_cast<double>(made.batch);
  const double places = static_cast<double>(conv.out.batch * conv.out.height * conv.out.width);
  // What is produced fills registers there as here.
  const double summed = is_input_grad(kind) ? filters : static_cast<double>(conv.image.channels);
  const double direct = places * taps * taps * summed * (is_input_grad(kind) ? channels : filters) / 28;
  const double transforms = tiles * (channels + filters) / kBlock * 4 + channels * filters / kBlock * 10;
  return 1.1 * (all_points * channels * filters / 28 + points * points * transforms) < direct;
}

void winograd_layouts(const Conv& conv, ConvKind kind, LayoutCall& call) {
  block_layouts(conv, kind, call);
  // A plan that only reads the filter has its weights once. The gradient's kernel turns the filter of a step that
  // changes it, so there it stays as it is.
  if (is_forward(kind)) {
    call.inputs[1] =
        layout_of_points({conv.windows[0].size, conv.image.channels, conv.filters(), filter_steps(conv, kind)});
  }
}

Launch conv_winograd(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call) {
  const bool filter = is_filter_grad(kind), turned = is_input_grad(kind), pooled = is_pooled(kind);
  const std::optional<ConvBlocks> blocks = conv_blocks(conv, kind, call);
  if (!blocks) return {};
  const int64_t taps = conv.windows[0].size, above = conv.windows[0].before, left = conv.windows[1].before;
  const Work work{blocks->image,
                  blocks->out,
                  turned ? taps - 1 - above : above,
                  turned ? taps - 1 - left : left,
                  turned ? conv.filters() : conv.image.channels,
                  turned ? conv.image.channels : conv.filters(),
                  filter_steps(conv, kind),
                  Tiling(conv.image.batch, blocks->out.height, blocks->out.width, batch_tiles(conv, kind)),
                  has_bias(kind),
                  activation,
                  kind == ConvKind::ForwardAdd,
                  pooled && turned,
                  pooled && !turned,
                  conv_parts(conv, taps == 3 ? 2.5 : 4)};
  if (taps == 3) return filter ? sum_filter<3>(work, call) : convolve<3>(work, call);
  return filter ? sum_filter<5>(work, call) : convolve<5>(work, call);
}

}  // namespace moonflow::cpu
