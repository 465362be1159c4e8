// Convolutions of 1x1, and of each channel with a filter of its own, forwards: what nets for small devices consist of.
// The lanes of a register are neighbouring channels, as oneDNN has images and filters in blocks, so either library may
// stand before or behind. Each thread has rows of the images where there are enough of them, else filters, in all
// layers alike: what it has made it finds in its own cache. Each element is summed in one order, whatever the threads.
#include <algorithm>
#include <vector>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kRowsOfPart = 6;  // fewer, and the rows around them, which others have made, weigh too much

// Whether the filters are 1x1 over whole images. Of more places in all oneDNN's is faster, by up to 17 %.
bool is_pointwise(const Conv& conv) {
  constexpr int64_t kMostPlaces = 1024;
  for (const Window& w : conv.windows)
    if (w.size != 1 || w.stride != 1 || w.before != 0 || w.after != 0) return false;
  return conv.groups == 1 && conv.out.batch * conv.out.height * conv.out.width <= kMostPlaces;
}

// Whether there is a filter to each channel, of three columns, of which the padding has one at each end of a row, if
// any. Of wider ones oneDNN's is as fast.
bool is_depthwise(const Conv& conv) {
  const Window& across = conv.windows[1];
  if (across.size != 3 || across.stride > 2) return false;
  for (int64_t x = 0; x < across.out; ++x)
    if (across.first(x) > (x == 0 ? 1 : 0) || across.last(x) < (x + 1 == across.out ? 2 : 3)) return false;
  return conv.channels_per_group() == 1 && conv.filters_per_group() == 1;
}

int64_t lane_count() {
  int64_t lanes = 0;
  widest_register([&](auto wide) { lanes = decltype(wide)::kWidth; });
  return lanes;
}

// Images (batch, channels, height, width) in blocks of channels. Those of one place are that in rows.
Layout image_lanes(const TensorType& type, int64_t lanes) {
  const Shape& shape = type.shape;
  if (shape[2] * shape[3] == 1 && shape[1] % lanes == 0) return {};
  return layout_of(Blocked::dense(shape.dims(), {0, 1, 2, 3}, 1, lanes), type);
}

// Filters in blocks, and within one all channels of a place in order; the form is oneDNN's, axis for axis.
Layout filter_lanes(const TensorType& type, const Conv& conv, int64_t lanes) {
  const Shape& shape = type.shape;
  if (!is_pointwise(conv))
    return layout_of(Blocked::dense({shape[0], 1, 1, shape[2], shape[3]}, {0, 1, 2, 3, 4}, 0, lanes), type);
  const int64_t blocks = divide_up(shape[1], lanes);
  Blocked form = Blocked::dense({shape[0], shape[1], 1, 1}, {0, 1, 2, 3}, 0, lanes);
  form.padded_dims[1] = blocks * lanes;
  form.block_count = 2;
  form.blocks = {lanes, lanes};
  form.block_axes = {1, 0};
  form.strides[0] = blocks * lanes * lanes;
  form.strides[1] = form.strides[2] = form.strides[3] = lanes * lanes;
  return layout_of(form, type);
}

// ---- what both loops share -----------------------------------------------------------------------------------------

struct Values {
  const float *image, *filter, *bias, *addend;  // bias: for whole blocks; addend: or none
  float* out;
};

template <class R>
void store(Activation activation, const float* addend, typename R::Vector& sum, float* out) {
  if (addend != nullptr) sum += R::at(addend);
  if (activation != Activation::None) sum = sum < 0 ? typename R::Vector{} : sum;
  if (activation == Activation::Relu6) sum = sum > 6 ? typename R::Vector{} + 6 : sum;
  R::at(out) = sum;
}

// Some rows of an image, and some blocks of the channels made.
struct Share {
  int64_t image, first_row, last_row, first_block, last_block;
};

// ---- 1x1 -----------------------------------------------------------------------------------------------------------

struct Pointwise {
  int64_t channels, places, blocks;  // the places of an image; blocks of filters
  Activation activation;
};

// Channels that are summed over in one go, and whether these begin the sums and end them.
struct Terms {
  int64_t channels;
  bool begin, end;
};

// So many places side by side and blocks of filters: the sums stay in registers.
template <class R, int kPlaces, int kBlocks>
void sum_places(const Pointwise& work, const Terms& terms, const Values& at) {
  constexpr int64_t kLanes = R::kWidth;
  const int64_t filter_block = round_up(work.channels, kLanes) * kLanes, out_block = work.places * kLanes;
  typename R::Vector sum[kPlaces][kBlocks];
#pragma GCC unroll 16
  for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t to = b * out_block + p * kLanes;
      sum[p][b] = terms.begin ? R::at(at.bias + b * kLanes) : R::at(at.out + to);
      if (terms.begin && at.addend != nullptr) sum[p][b] += R::at(at.addend + to);
    }
  }
  const float *image = at.image, *filter = at.filter;
  for (int64_t c = 0; c < terms.channels; c += kLanes, image += out_block) {
    // The places that come next lie a page or more from block to block, where the processor foresees nothing.
#pragma GCC unroll 16
    for (int p = 0; p < kPlaces; p += 16 / kLanes) __builtin_prefetch(image + (kPlaces + p) * kLanes);
    const int64_t count = std::min(kLanes, terms.channels - c);
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; ++i, filter += kLanes) {
      typename R::Vector weights[kBlocks];
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) weights[b] = R::at(filter + b * filter_block);
#pragma GCC unroll 16
      for (int p = 0; p < kPlaces; ++p) {
        const float value = image[p * kLanes + i];
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) sum[p][b] += value * weights[b];
      }
    }
  }
  const Activation activation = terms.end ? work.activation : Activation::None;
#pragma GCC unroll 16
  for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) store<R>(activation, nullptr, sum[p][b], at.out + b * out_block + p * kLanes);
  }
}

// Places that one tile may have.
template <class R, int kBlocks>
constexpr int kMostPlaces = std::min(14, (R::kCount - 4) / kBlocks);

template <class R, int kBlocks>
void sum_stretch(const Pointwise& work, const Terms& terms, int64_t count, Values at) {
  constexpr int kMost = kMostPlaces<R, kBlocks>;
  const int64_t tiles = divide_up(count, kMost), least = count / tiles, larger = count % tiles;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t here = least + (tile < larger ? 1 : 0);
    with_count<kMost>(here, [&](auto places) {
      stand_alone(R(), [&] { sum_places<R, decltype(places)::value, kBlocks>(work, terms, at); });
    });
    at.image += here * R::kWidth;
    at.out += here * R::kWidth;
    if (at.addend != nullptr) at.addend += here * R::kWidth;
  }
}

template <class R>
void convolve(const Pointwise& work, const Share& share, int64_t width, const Values& values) {
  constexpr int64_t kLanes = R::kWidth, kTerms = 128,
                    kNear = 1 << 15;  // floats of places that all filters meet together
  const int64_t channels = round_up(work.channels, kLanes);
  const int64_t stretch = std::max<int64_t>(48, kNear / channels / 12 * 12);
  for (int64_t place = share.first_row * width; place < share.last_row * width; place += stretch) {
    const int64_t count = std::min(stretch, share.last_row * width - place);
    // Where weights are used once, they should be read once.
    const bool single = count <= kMostPlaces<R, 1> && count > kMostPlaces<R, 2>;
    for (int64_t block = share.first_block, taken; block < share.last_block; block += taken) {
      const int64_t to = ((share.image * work.blocks + block) * work.places + place) * kLanes;
      const Values at{values.image + share.image * channels * work.places + place * kLanes,
                      values.filter + block * channels * kLanes, values.bias + block * kLanes,
                      values.addend == nullptr ? nullptr : values.addend + to, values.out + to};
      taken = single || block + 1 == share.last_block ? 1 : 2;
      for (int64_t c = 0; c < work.channels; c += kTerms) {
        const int64_t last = std::min(work.channels, c + kTerms);
        const Terms terms{last - c, c == 0, last == work.channels};
        const Values part{at.image + c * work.places, at.filter + c * kLanes, at.bias, at.addend, at.out};
        taken == 1 ? sum_stretch<R, 1>(work, terms, count, part) : sum_stretch<R, 2>(work, terms, count, part);
      }
    }
  }
}

// ---- each channel --------------------------------------------------------------------------------------------------

constexpr int kMostNeighbours = 8;

// Rows of outputs whose windows have the same taps within the image.
struct Rows {
  int64_t begin, count, first_tap, taps;
};

std::vector<Rows> rows_of(const Window& window) {
  std::vector<Rows> rows;
  for (int64_t y = 0; y < window.out; ++y) {
    const int64_t first = window.first(y), taps = window.last(y) - first;
    if (rows.empty() || rows.back().first_tap != first || rows.back().taps != taps) rows.push_back({y, 0, first, taps});
    ++rows.back().count;
  }
  return rows;
}

// Neighbours in a row. If one begins in the padding, the first lacks the first column of its taps; if one ends there,
// the last lacks the last.
struct Neighbours {
  int64_t begin, count;
  bool begins_in_padding, ends_in_padding;
};

std::vector<Neighbours> neighbours_of(const Window& window) {
  const int64_t parts = divide_up(window.out, kMostNeighbours);
  std::vector<Neighbours> all;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = window.out * part / parts, end = window.out * (part + 1) / parts;
    all.push_back({begin, end - begin, window.first(begin) > 0, window.last(end - 1) < window.size});
  }
  return all;
}

struct Depthwise {
  Windows windows;
  Activation activation;
  int64_t blocks;
  int64_t tap_row, tap_column, filter_row;  // from a tap to the next in the image, in floats, and in the filter
  int64_t image_next, out_next;             // from a row of outputs to the next
  std::vector<Rows> rows;
  std::vector<Neighbours> columns;

  Depthwise(const Conv& conv, Activation activation, int64_t blocks, int64_t lanes)
      : windows(conv.windows),
        activation(activation),
        blocks(blocks),
        tap_row(windows[0].dilation * conv.image.width * lanes),
        tap_column(windows[1].dilation * lanes),
        filter_row(windows[1].size * lanes),
        image_next(windows[0].stride * conv.image.width * lanes),
        out_next(conv.out.width * lanes),
        rows(rows_of(windows[0])),
        columns(neighbours_of(windows[1])) {}
};

// So many neighbours, in some rows, whose windows have the same rows of taps.
template <class R, int kNeighbours, int kStride, bool kBegins, bool kEnds>
void sum_windows(const Depthwise& work, int64_t rows, int64_t tap_rows, const Values& at) {
  constexpr int kLanes = R::kWidth;
  const float *image = at.image, *addend = at.addend;
  float* out = at.out;
  for (int64_t y = 0; y < rows; ++y, image += work.image_next, out += work.out_next) {
    typename R::Vector sum[kNeighbours];
#pragma GCC unroll 8
    for (int n = 0; n < kNeighbours; ++n) sum[n] = R::at(at.bias);
    const float *row = image, *filter = at.filter;
    for (int64_t i = 0; i < tap_rows; ++i, row += work.tap_row, filter += work.filter_row) {
      const float* column = row;
      const auto add_column = [&](int j, bool begins, bool ends) {
        const typename R::Vector weights = R::at(filter + j * kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < kNeighbours; ++n) {
          if ((begins && n == 0) || (ends && n + 1 == kNeighbours)) continue;
          sum[n] += weights * R::at(column + n * kStride * kLanes);
        }
        column += work.tap_column;
      };
      add_column(0, kBegins, false);
      add_column(1, false, false);
      add_column(2, false, kEnds);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kNeighbours; ++n)
      store<R>(work.activation, addend == nullptr ? nullptr : addend + n * kLanes, sum[n], out + n * kLanes);
    if (addend != nullptr) addend += work.out_next;
  }
}

// Rows of a plane, a block of channels, whose parts `plane` has from their beginnings.
template <class R, int kStride>
void convolve_plane(const Depthwise& work, const Share& share, const Values& plane) {
  constexpr int64_t kLanes = R::kWidth;
  const Window &down = work.windows[0], &across = work.windows[1];
  for (const Rows& row : work.rows) {
    const int64_t first = std::max(row.begin, share.first_row),
                  rows = std::min(row.begin + row.count, share.last_row) - first;
    if (rows <= 0) continue;
    const int64_t top = (down.start(first) + row.first_tap * down.dilation) * across.in;
    for (const Neighbours& column : work.columns) {
      // Of a window that begins in the padding, where its first column would lie; it is not read.
      const int64_t from = (top + across.start(column.begin)) * kLanes,
                    to = first * work.out_next + column.begin * kLanes;
      const Values at{plane.image + from, plane.filter + row.first_tap * work.filter_row, plane.bias,
                      plane.addend == nullptr ? nullptr : plane.addend + to, plane.out + to};
      with_count<kMostNeighbours>(column.count, [&](auto neighbours) {
        const auto sum = [&](auto begins, auto ends) {
          stand_alone(R(), [&] {
            sum_windows<R, decltype(neighbours)::value, kStride, decltype(begins)::value, decltype(ends)::value>(
                work, rows, row.taps, at);
          });
        };
        constexpr std::true_type kYes;
        constexpr std::false_type kNo;
        if (column.begins_in_padding) return column.ends_in_padding ? sum(kYes, kYes) : sum(kYes, kNo);
        return column.ends_in_padding ? sum(kNo, kYes) : sum(kNo, kNo);
      });
    }
  }
}

template <class R>
void convolve(const Depthwise& work, const Share& share, const Values& values) {
  constexpr int64_t kLanes = R::kWidth;
  const Window &down = work.windows[0], &across = work.windows[1];
  for (int64_t block = share.first_block; block < share.last_block; ++block) {
    const int64_t plane = share.image * work.blocks + block, to = plane * down.out * across.out * kLanes;
    const Values at{values.image + plane * down.in * across.in * kLanes,
                    values.filter + block * down.size * across.size * kLanes, values.bias + block * kLanes,
                    values.addend == nullptr ? nullptr : values.addend + to, values.out + to};
    across.stride == 1 ? convolve_plane<R, 1>(work, share, at) : convolve_plane<R, 2>(work, share, at);
  }
}

// ---- threads -------------------------------------------------------------------------------------------------------

// Calls body(share) for what each thread has.
template <class Body>
void for_each_share(const Conv& conv, int64_t parts, int64_t blocks, const Body& body) {
  const int64_t height = conv.out.height, rows = conv.out.batch * height, pairs = (blocks + 1) / 2;
  const bool by_rows = rows >= kRowsOfPart * parts;
  if (!by_rows) parts = std::min(parts, pairs);
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    const int64_t first_row = by_rows ? rows * first / parts : 0, last_row = by_rows ? rows * last / parts : rows;
    const int64_t first_block = by_rows ? 0 : pairs * first / parts * 2,
                  last_block = by_rows ? blocks : std::min(blocks, pairs * last / parts * 2);
    for (int64_t row = first_row, end; row < last_row; row = end) {
      const int64_t image = row / height;
      end = std::min(last_row, (image + 1) * height);
      body(Share{image, row - image * height, end - image * height, first_block, last_block});
    }
  });
}

}  // namespace

bool lanes_fit(const Conv& conv, ConvKind kind) {
  // Without a bias it stands in jobs that train, on many images, where oneDNN's are as fast.
  if (kind != ConvKind::ForwardBias && kind != ConvKind::ForwardAdd) return false;
  if (conv.format.channels_last || conv.format.spatial_axes != 2) return false;
  const int64_t lanes = lane_count();
  if (conv.image.channels < lanes || conv.filters() < lanes) return false;
  return (is_pointwise(conv) || is_depthwise(conv)) && conv.out.batch * conv.out.height * conv.out.width > 0;
}

void lane_layouts(const Conv& conv, LayoutCall& call) {
  const int64_t lanes = lane_count();
  std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  call.inputs[0] = image_lanes(call.input_types[0], lanes);
  call.inputs[1] = filter_lanes(call.input_types[1], conv, lanes);
  call.outputs[0] = image_lanes(call.output_types[0], lanes);
  if (call.inputs.size() > 3) call.inputs[3] = call.outputs[0];
}

Launch conv_lanes(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call) {
  const int64_t lanes = lane_count(), filters = conv.filters(), blocks = divide_up(filters, lanes);
  const bool adds = kind == ConvKind::ForwardAdd;
  const Layout out = image_lanes(call.outputs[0], lanes);
  if (call.input_layouts[0] != image_lanes(call.inputs[0], lanes) || call.output_layouts[0] != out) return {};
  if (call.input_layouts[1] != filter_lanes(call.inputs[1], conv, lanes)) return {};
  if (adds && call.input_layouts[3] != out) return {};

  const bool pointwise = is_pointwise(conv);
  // What a place of a plane costs is reading it, so a multiplication takes longer there.
  const int64_t parts = conv_parts(conv, pointwise ? 1 : 0.25);
  const Pointwise each_place{conv.image.channels, conv.out.height * conv.out.width, blocks, activation};
  const Depthwise each_channel(conv, activation, blocks, lanes);
  call.scratch_bytes = blocks * lanes * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    float* const bias = static_cast<float*>(launch.scratch);  // with zeros in the lanes beyond the filters
    std::fill(std::copy_n(launch.input<float>(2), filters, bias), bias + blocks * lanes, 0.0f);
    const Values values{launch.input<float>(0), launch.input<float>(1), bias, adds ? launch.input<float>(3) : nullptr,
                        launch.output<float>(0)};
    for_each_share(conv, parts, blocks, [&](const Share& share) {
      widest_register([&](auto wide) {
        using R = decltype(wide);
        pointwise ? convolve<R>(each_place, share, conv.out.width, values) : convolve<R>(each_channel, share, values);
      });
    });
  };
}

}  // namespace moonflow::cpu
