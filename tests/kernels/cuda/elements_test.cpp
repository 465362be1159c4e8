// The element-wise kernels where the examples of the ops do not reach: many blocks, sizes that no pack divides,
// addresses that are aligned to nothing, broadcasting of any rank, values without elements, results beyond 32 bits.
#include "kernels/cuda/elements.h"

#include <catch2/catch.hpp>

#include "kernels/simulated/device.h"
#include "oracle.h"
#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("element-wise kernels compute what the CPU computes at any address and any size") {
  Bench bench;
  const auto types = [](DType dtype, const Shape& shape, int count) {
    return std::vector<TensorType>(count, TensorType{dtype, shape});
  };
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
    for (const int64_t size : {1, 7, 8, 1023, 100003}) {
      for (const char* op : {"relu", "tanh", "sin"}) bench.check(op, types(dtype, {size}, 1), {});
      for (const char* op : {"tanh_grad", "mish_grad", "add", "less", "pow"})
        bench.check(op, types(dtype, {size}, 2), {});
    }
  }
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    bench.check("add", types(dtype, {4099}, 2), {});
    bench.check("floordiv", types(dtype, {4099}, 2), {});
    bench.check("cast", types(dtype, {4099}, 1), {{"dtype", DType::Float32}});
    bench.check("cast", types(dtype, {4099}, 1), {{"dtype", DType::BFloat16}});
    bench.check("cast", types(dtype, {4099}, 1), {{"dtype", DType::Float16}});
  }
}

TEST_CASE("element-wise kernels broadcast along any axes") {
  Bench bench;
  const Shape pairs[][2] = {{{64, 32}, {32}},
                            {{64, 31}, {31}},
                            {{64, 31}, {64, 1}},
                            {{8, 16, 12, 12}, {16, 1, 1}},
                            {{5, 1, 7, 1}, {1, 6, 1, 8}},
                            {{2, 1, 3, 1, 2, 1, 3, 1}, {1, 3, 1, 2, 1, 2, 1, 4}},
                            {{2, 3, 2, 1, 2, 3, 1, 8}, {8}},
                            {{1}, {4097}},
                            {{}, {}}};
  for (const auto& [x, y] : pairs) {
    for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::UInt8}) {
      bench.check("subtract", {{dtype, x}, {dtype, y}}, {});
      bench.check("subtract", {{dtype, y}, {dtype, x}}, {});
      bench.check("where", {{DType::Int8, y}, {dtype, x}, {dtype, {}}}, {});
      bench.check("where", {{DType::Int8, x}, {dtype, y}, {dtype, x}}, {});
    }
    bench.check("greater", {{DType::Float64, x}, {DType::Float64, y}}, {});
  }
}

TEST_CASE("biases are added and their gradients summed over any number of rows and places") {
  Bench bench;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    // Of the first two so many blocks have a part each that the parts are shared, too.
    for (const Shape& shape : {Shape{9000, 35}, Shape{40000, 3}, Shape{1000, 70}, Shape{700, 3}, Shape{9, 1},
                               Shape{0, 4}, Shape{40, 0}, Shape{3, 5, 61, 40}, Shape{30, 2, 7, 11},
                               Shape{1, 2, 9001}}) {
      bench.check("bias_add", {{dtype, shape}, {dtype, {shape[1]}}}, {});
      bench.check("bias_grad", {{dtype, shape}}, {});
      if (shape.rank() == 2) continue;
      const Attrs last{{"data_format", std::string("NHWC")}};
      bench.check("bias_add", {{dtype, shape}, {DType::Float32, {shape.back()}}}, last);
      bench.check("bias_grad", {{dtype, shape}}, last);
    }
  }
}

TEST_CASE("element-wise kernels take values without elements") {
  Bench bench;
  const TensorType none{DType::Float32, {3, 0, 2}};
  bench.check("exp", {none}, {});
  bench.check("exp_grad", {none, none}, {});
  bench.check("add", {none, {DType::Float32, {1, 2}}}, {});
  bench.check("where", {{DType::Int8, {2}}, none, none}, {});
  bench.check("cast", {none}, {{"dtype", DType::Int64}});
}

TEST_CASE("a product and a shift divide as division does") {
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 10u, 641u, 65535u, 65536u, 1000003u, 0x40000001u, 0x7fffffffu}) {
    const cuda::Divisor by(divisor);
    for (const uint32_t x : {0u, 1u, 2u, divisor - 1, divisor, divisor + 1, 12345678u, 0x7ffffffeu, 0x7fffffffu})
      if (x <= 0x7fffffffu) CHECK(by.quotient(x) == x / divisor);
  }
}

TEST_CASE("a result that 32 bits cannot count is made in pieces") {
  const Shape shapes[][2] = {
      {{3, 1 << 30, 2}, {1 << 30, 1}}, {{5000, 1, 1000003}, {1, 1}}, {{5, int64_t{3} << 30}, {5, 1}}, {{7, 3}, {3}}};
  for (const auto& [x, y] : shapes) {
    const Shape out = broadcast(x, y);
    INFO(out);
    const Broadcast<2> geometry({x, y}, out);
    int64_t next = 0;
    for (const cuda::Piece<2>& piece : cuda::pieces_of<2>({x, y}, out)) {
      CHECK(piece.first == next);
      REQUIRE(piece.count < int64_t{1} << 31);
      next += piece.count;
      for (const int64_t i : {int64_t{0}, piece.count / 3, piece.count - 1}) {
        uint32_t offsets[2];
        piece.places.of(static_cast<uint32_t>(i), offsets);
        const auto expected = geometry.offsets_of(piece.first + i);
        for (int v = 0; v < 2; ++v) CHECK(piece.offsets[v] + offsets[v] == expected[v]);
      }
    }
    CHECK(next == out.count());
  }
}
