// Images with few channels, which are padded: where each element goes, that the rest is zero, and the way back.
#include "kernels/cuda/layout.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "given_card.h"

using namespace moonflow;
using namespace moonflow::cuda;

namespace {

struct Turner {
  std::shared_ptr<Device> card = make_given_card();
  std::unique_ptr<Stream> stream = card->make_stream();

  // `bytes` in one layout, in another one.
  std::vector<char> operator()(const TensorType& type, const std::vector<char>& bytes, const Layout& from,
                               const Layout& to) const {
    std::vector<char> result(to.bytes_of(type));
    const Buffer before(*card, std::max<int64_t>(static_cast<int64_t>(bytes.size()), 1)),
        after(*card, std::max<int64_t>(static_cast<int64_t>(result.size()), 1));
    card->copy(*stream, before.data(), bytes.data(), static_cast<int64_t>(bytes.size()));
    void *input = before.data(), *output = after.data();
    card->reorder(type, from, to)(LaunchCall{*stream, &input, &output, nullptr});
    card->copy(*stream, result.data(), after.data(), static_cast<int64_t>(result.size()));
    stream->wait();
    return result;
  }
};

// Each element its own number, from 1 on.
std::vector<char> numbered(const TensorType& type) {
  std::vector<char> bytes(type.bytes());
  const int64_t size = size_of(type.dtype);
  for (int64_t i = 0; i < type.count(); ++i) {
    const int64_t number = i + 1;
    std::memcpy(bytes.data() + i * size, &number, static_cast<size_t>(size));
  }
  return bytes;
}

}  // namespace

TEST_CASE("few channels are padded with zeros place by place, and freed of them") {
  const Turner turn;
  for (const DType dtype : {DType::BFloat16, DType::Float32}) {
    for (const Shape& shape : {Shape{3, 3, 7, 50}, Shape{2, 1, 1, 1}, Shape{64, 7, 5}, Shape{1, 8, 3, 2}, Shape{2, 4, 2, 3, 2}}) {
      for (const int64_t stored : {4, 8}) {
        const int64_t channels = shape[1], places = shape.count(2, shape.rank()), size = size_of(dtype);
        if (channels > stored || (size == 2 && stored == 4)) continue;
        const TensorType type{dtype, shape};
        INFO(type << " in places of " << stored);
        const std::vector<char> rows = numbered(type);
        std::vector<char> expected(shape[0] * places * stored * size), last(rows.size());
        for (int64_t n = 0; n < shape[0]; ++n) {
          for (int64_t c = 0; c < channels; ++c) {
            for (int64_t p = 0; p < places; ++p) {
              const char* const element = rows.data() + ((n * channels + c) * places + p) * size;
              std::copy_n(element, size, expected.data() + ((n * places + p) * stored + c) * size);
              std::copy_n(element, size, last.data() + ((n * places + p) * channels + c) * size);
            }
          }
        }
        const Layout padded = padded_channels_last(type, 1, stored);
        CHECK(padded.bytes == static_cast<int64_t>(expected.size()));
        CHECK(turn(type, rows, {}, padded) == expected);
        CHECK(turn(type, expected, padded, {}) == rows);
        CHECK(turn(type, last, channels_last(type), padded) == expected);
        CHECK(turn(type, expected, padded, channels_last(type)) == last);

        // The user's own order of axes.
        Shape turned{shape[0]};
        for (int axis = 2; axis < shape.rank(); ++axis) turned.push_back(shape[axis]);
        turned.push_back(channels);
        const TensorType given{dtype, turned};
        const Layout padded_last = padded_channels_last(given, given.shape.rank() - 1, stored);
        CHECK(turn(given, last, {}, padded_last) == expected);
        CHECK(turn(given, expected, padded_last, {}) == last);
      }
    }
  }
}

TEST_CASE("there are no changes of layout but those of images") {
  const std::shared_ptr<Device> card = make_given_card();
  const TensorType image{DType::BFloat16, {2, 3, 4, 4}}, matrix{DType::BFloat16, {3, 5}};
  const Layout last = channels_last(image), eight = padded_channels_last(image, 1, 8),
               other = padded_channels_last(image, 3, 8), four = padded_channels_last(image, 1, 4);
  CHECK_THROWS_AS(card->reorder(matrix, {}, channels_last(matrix)), Error);
  CHECK_THROWS_AS(card->reorder(image, {}, {}), Error);
  CHECK_THROWS_AS(card->reorder(image, last, last), Error);
  CHECK_THROWS_AS(card->reorder(image, eight, other), Error);
  CHECK_THROWS_AS(card->reorder(image, {}, four), Error);
  CHECK(card->describe(eight) == "NHWC8");
  CHECK(card->describe(last) == "NHWC");
  CHECK(card->describe(Layout{}) == "rows");
}
