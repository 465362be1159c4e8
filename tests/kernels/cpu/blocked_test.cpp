// Forms in memory: what oneDNN is told of them and tells, and the copies that a reorder is.
#include "kernels/cpu/onednn.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"

using namespace moonflow;
using cpu::Blocked;

namespace {

using Tag = dnnl::memory::format_tag;
constexpr auto kFloat = dnnl::memory::data_type::f32;

struct Known {
  dnnl::memory::dims dims;
  Tag tag;
  const char* name;
};

// What convolutions and pools have been seen to choose, with axes that fill their blocks, do not, or have one element.
const std::vector<Known> kKnown = {
    {{2, 16, 3, 4}, Tag::nchw, "abcd"},
    {{2, 16, 3, 4}, Tag::nhwc, "acdb"},
    {{2, 16, 3, 4}, Tag::nChw8c, "aBcd8b"},
    {{2, 5, 3, 4}, Tag::nChw8c, "aBcd8b"},
    {{2, 40, 1, 1}, Tag::nChw16c, "aBcd16b"},
    {{3, 20, 7}, Tag::nCw8c, "aBc8b"},
    {{20, 50, 5, 5}, Tag::OIhw8i8o, "ABcd8b8a"},
    {{32, 48, 1, 1}, Tag::OIhw16i16o, "ABcd16b16a"},
    {{32, 48, 3, 3}, Tag::IOhw16o16i, "BAcd16a16b"},
    {{20, 3, 5, 5}, Tag::Ohwi8o, "Acdb8a"},
    {{2, 20, 12, 3, 3}, Tag::gOIhw8i8o, "aBCde8c8b"},
    {{24, 1, 1, 3, 3}, Tag::Goihw8g, "Abcde8a"},
};

// The value at each place of memory that a reorder of the library's own leaves.
std::vector<float> reordered_by_library(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                                        std::vector<float> values) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  std::vector<float> result(to.get_size() / sizeof(float), -1.0f);
  dnnl::memory source(from, engine, values.data()), target(to, engine, result.data());
  dnnl::reorder(source, target).execute(stream, source, target);
  stream.wait();
  return result;
}

}  // namespace

TEST_CASE("a form that oneDNN has a name for is told and understood, in any order of its axes") {
  for (const Known& known : kKnown) {
    CAPTURE(known.name);
    const Blocked form = cpu::blocked(dnnl::memory::desc(known.dims, kFloat, known.tag));
    if (std::find(known.dims.begin(), known.dims.end(), 1) == known.dims.end()) CHECK(form.name() == known.name);
    CHECK(cpu::blocked(cpu::descriptor(form, kFloat)).lies_as(form));

    std::vector<int> order(known.dims.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      const Blocked turned = cpu::blocked(dnnl::memory::desc(known.dims, kFloat, known.tag).permute_axes(order));
      CHECK(cpu::blocked(cpu::descriptor(turned, kFloat)).lies_as(turned));
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("a form without a name is none of oneDNN's, and says so") {
  CHECK_THROWS_AS(cpu::descriptor(Blocked::dense({32, 7}, {0, 1}, 0, 5), kFloat), dnnl::error);
}

TEST_CASE("a reorder is the library's, by copies too, and what pads is zero") {
  const std::unique_ptr<Device> usual = make_cpu_device(2), real_time = make_real_time_cpu_device();  // copies alone
  for (const Known& known : kKnown) {
    CAPTURE(known.name, known.dims);
    const TensorType type{DType::Float32, Shape(known.dims)};
    const dnnl::memory::desc plain = cpu::descriptor(Blocked::row_major(known.dims), kFloat);
    const dnnl::memory::desc target(known.dims, kFloat, known.tag);
    std::vector<float> values(type.count());
    std::iota(values.begin(), values.end(), 1.0f);
    const std::vector<float> wanted = reordered_by_library(plain, target, values);

    const Layout layout = cpu::layout_of(cpu::blocked(target), type);
    REQUIRE(cpu::reorder_boxes(cpu::blocked(plain), cpu::blocked(target)).has_value());
    for (Device* device : {usual.get(), real_time.get()}) {
      const auto stream = device->make_stream();
      const auto reorder = [&](const Layout& a, const Layout& b, std::vector<float> input, size_t size) {
        std::vector<float> output(size, -1.0f);
        void* inputs[] = {input.data()};
        void* outputs[] = {output.data()};
        device->reorder(type, a, b)(LaunchCall{*stream, inputs, outputs, nullptr});
        return output;
      };
      CHECK(reorder({}, layout, values, wanted.size()) == wanted);
      CHECK(reorder(layout, {}, wanted, values.size()) == values);
    }
  }
}
