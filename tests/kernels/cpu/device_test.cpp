// The CPU device: memory, threads, layouts and reorders.
#include "kernels/cpu/device.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "kernels/catalog.h"
#include "kernels/cpu/onednn.h"

using namespace moonflow;

namespace {

Layout blocked(const TensorType& type, dnnl::memory::format_tag tag) {
  return cpu::layout_of(cpu::blocked({type.shape.dims(), dnnl::memory::data_type::f32, tag}), type);
}

std::vector<float> reordered(Device& device, const TensorType& type, const Layout& from, const Layout& to,
                             const std::vector<float>& values, size_t size) {
  std::vector<float> input = values, output(size, -1.0f);
  void* inputs[] = {input.data()};
  void* outputs[] = {output.data()};
  const Launch launch = device.reorder(type, from, to);
  const auto stream = device.make_stream();
  launch(LaunchCall{*stream, inputs, outputs, nullptr});
  stream->wait();
  return output;
}

int64_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// Those of tests before may still be ending.
int64_t threads_that_stay() {
  int64_t least = threads_of_this_process();
  for (int quiet_ms = 0; quiet_ms < 50; ++quiet_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t now = threads_of_this_process();
    if (now < least) quiet_ms = 0;
    least = std::min(least, now);
  }
  return least;
}

}  // namespace

TEST_CASE("memory is aligned and zeroed, and an impossible size is an error") {
  const auto device = make_cpu_device(1);
  const Buffer buffer(*device, 1000);
  CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0);
  const char* bytes = static_cast<const char*>(buffer.data());
  CHECK(std::all_of(bytes, bytes + 1000, [](char byte) { return byte == 0; }));
  CHECK_THROWS_WITH(device->allocate(int64_t{1} << 60), Catch::Contains("no room for 1073741824.0 GiB on the cpu"));
  CHECK_THROWS(device->allocate(-1));
}

TEST_CASE("each device brings its own number of threads") {
  const auto one = make_cpu_device(1), two = make_cpu_device(2);
  one->enter();
  CHECK(cpu::threads() == 1);
  two->enter();
  CHECK((cpu::threads() == 2 || cpu::threads() == 1));  // one where OpenMP is off
  CHECK(one->describe().find("1 thread,") != std::string::npos);
}

TEST_CASE("a loop is cut into parts that cover it once, and stays whole where it is short") {
  const auto device = make_cpu_device(2);
  device->enter();
  std::vector<int> visits(1000, 0);
  cpu::parallel_for(1000, 10, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) ++visits[i];
  });
  CHECK(std::all_of(visits.begin(), visits.end(), [](int n) { return n == 1; }));
  int calls = 0;
  cpu::parallel_for(1000, 1000, [&](int64_t, int64_t) { ++calls; });
  CHECK(calls == 1);
}

TEST_CASE("a thread that rests has given back the other threads of its loops, and gets new ones") {
  const auto device = make_cpu_device(3);
  device->enter();
  device->rest();
  const int64_t alone = threads_that_stay();
  for (int round = 0; round < 2; ++round) {
    const Buffer cleared(*device, 64 << 20);  // by all of them
    CHECK(threads_of_this_process() == alone + cpu::threads() - 1);
    device->rest();
    device->rest();
    for (int ms = 0; threads_of_this_process() > alone && ms < 2000; ++ms)  // they may end a little later
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(threads_of_this_process() == alone);
  }
}

TEST_CASE("two descriptions of one layout are equal, and row-major has none") {
  const TensorType type{DType::Float32, {2, 16, 3, 3}};
  using Tag = dnnl::memory::format_tag;
  CHECK(blocked(type, Tag::nchw).row_major());
  CHECK_FALSE(blocked(type, Tag::nhwc).row_major());
  CHECK(blocked(type, Tag::nChw16c) == blocked(type, Tag::nChw16c));
  CHECK(blocked(type, Tag::nChw16c) != blocked(type, Tag::nChw8c));
  // An axis of one element has no order of its own.
  const TensorType single{DType::Float32, {2, 1, 3, 3}};
  CHECK(blocked(single, Tag::nhwc).row_major());
  CHECK(cpu::layout_of(cpu::Blocked::row_major({1}), {DType::Float32, {}}).row_major());
}

TEST_CASE("a value goes into a private layout and comes back") {
  const auto device = make_cpu_device(1);
  const TensorType type{DType::Float32, {2, 5, 3, 3}};  // 5 channels: padded to 8
  const Layout layout = blocked(type, dnnl::memory::format_tag::nChw8c);
  CHECK(layout.bytes == 2 * 8 * 9 * 4);
  std::vector<float> values(type.count());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<float> inside = reordered(*device, type, {}, layout, values, layout.bytes / 4);
  CHECK(inside != values);
  CHECK(reordered(*device, type, layout, {}, inside, values.size()) == values);
  CHECK(reordered(*device, type, {}, {}, values, values.size()) == values);
  CHECK(reordered(*device, type, layout, layout, inside, inside.size()) == inside);
}

TEST_CASE("what is not padded goes from any layout to any other") {
  const auto device = make_cpu_device(2);
  using Tag = dnnl::memory::format_tag;
  const TensorType type{DType::Float32, {3, 48, 7, 9}};
  // Where the element (a, b, c, d) lies.
  using Place = int64_t (*)(int64_t, int64_t, int64_t, int64_t);
  const std::vector<std::pair<Layout, Place>> forms = {
      {Layout{}, [](auto a, auto b, auto c, auto d) { return ((a * 48 + b) * 7 + c) * 9 + d; }},
      {blocked(type, Tag::nhwc), [](auto a, auto b, auto c, auto d) { return ((a * 7 + c) * 9 + d) * 48 + b; }},
      {blocked(type, Tag::nChw8c),
       [](auto a, auto b, auto c, auto d) { return (((a * 6 + b / 8) * 7 + c) * 9 + d) * 8 + b % 8; }},
      {blocked(type, Tag::nChw16c),
       [](auto a, auto b, auto c, auto d) { return (((a * 3 + b / 16) * 7 + c) * 9 + d) * 16 + b % 16; }},
  };
  const auto filled = [&](Place place) {
    std::vector<float> values(type.count());
    float next = 0;
    for (int64_t a = 0; a < 3; ++a)
      for (int64_t b = 0; b < 48; ++b)
        for (int64_t c = 0; c < 7; ++c)
          for (int64_t d = 0; d < 9; ++d) values[place(a, b, c, d)] = next++;
    return values;
  };
  for (size_t from = 0; from < forms.size(); ++from) {
    for (size_t to = 0; to < forms.size(); ++to) {
      CAPTURE(from, to);
      const std::vector<float> values = filled(forms[from].second), wanted = filled(forms[to].second);
      CHECK(reordered(*device, type, forms[from].first, forms[to].first, values, values.size()) == wanted);
    }
  }
}

TEST_CASE("filters in blocks of both axes come back as they were") {
  const auto device = make_cpu_device(2);
  const TensorType type{DType::Float32, {32, 48, 5, 3}};
  const Layout layout = blocked(type, dnnl::memory::format_tag::OIhw16i16o);
  std::vector<float> values(type.count());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<float> inside = reordered(*device, type, {}, layout, values, values.size());
  for (const int64_t o : {0, 1, 17, 31})
    for (const int64_t i : {0, 15, 16, 47})
      for (const int64_t p : {0, 14})
        CHECK(inside[((o / 16 * 3 + i / 16) * 15 + p) * 256 + i % 16 * 16 + o % 16] == values[(o * 48 + i) * 15 + p]);
  CHECK(reordered(*device, type, layout, {}, inside, values.size()) == values);
}

TEST_CASE("element-wise ops stay in a private layout, and leave a padded one where zeros would not stay zero") {
  const auto catalog = all_ops();
  const auto device = make_cpu_device(1);
  const auto choose = [&](const char* op, const std::vector<TensorType>& types, const std::vector<Layout>& layouts) {
    const Attrs attrs;
    const std::vector<bool> present(types.size(), true);
    const std::vector<TensorType> outputs = {types[0]};
    LayoutCall call{*device, attrs, types, present, outputs, layouts, {Layout{}}};
    catalog->at(op).cpu.layouts(call);
    return std::pair(call.inputs, call.outputs[0]);
  };
  const TensorType full{DType::Float32, {2, 16, 3, 3}}, odd{DType::Float32, {2, 5, 3, 3}}, scalar{DType::Float32, {}};
  const Layout dense = blocked(full, dnnl::memory::format_tag::nChw16c);
  const Layout padded = blocked(odd, dnnl::memory::format_tag::nChw8c);

  CHECK(choose("relu", {full}, {dense}).second == dense);
  CHECK(choose("relu", {odd}, {padded}).second == padded);
  CHECK(choose("exp", {odd}, {padded}).second.row_major());
  CHECK(choose("add", {odd, odd}, {Layout{}, padded}).first[0] == padded);
  CHECK(choose("divide", {odd, odd}, {padded, padded}).second.row_major());
  CHECK(choose("multiply", {odd, scalar}, {padded, Layout{}}).second.row_major());
  CHECK(choose("relu_grad", {full, full}, {Layout{}, dense}).first[0] == dense);
  CHECK(choose("multiply", {full, scalar}, {dense, Layout{}}).second == dense);
  CHECK(choose("multiply", {full, scalar}, {dense, Layout{}}).first[1].row_major());
  CHECK(choose("add", {full, {DType::Float32, {16, 1, 1}}}, {dense, Layout{}}).second == dense);
  CHECK(choose("add", {odd, {DType::Float32, {5, 1, 1}}}, {padded, Layout{}}).first[0].row_major());
  CHECK(choose("add", {full, {DType::Float32, {3, 3}}}, {dense, Layout{}}).first[0].row_major());
}
