// gather and one_hot: the right rows, sums in one order, and indices that are out of bounds.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

using Values = std::vector<double>;

}  // namespace

TEST_CASE("gather picks rows along an axis") {
  Session session = make_session();
  const Tensor params = Tensor::of<int8_t>({3, 2}, {0, 1, 10, 11, 20, 21});
  const Tensor indices = Tensor::of<int64_t>({2, 2}, {2, 0, 2, 1});
  const Tensor rows = session.evaluate("gather", {params, indices})[0];
  CHECK(rows.type() == TensorType{DType::Int8, {2, 2, 2}});
  CHECK(numbers(rows) == Values{20, 21, 0, 1, 20, 21, 10, 11});
  const Tensor one = Tensor::of<int32_t>({}, {1});
  const Tensor column = session.evaluate("gather", {params, one}, {{"axis", int64_t{-1}}})[0];
  CHECK(column.shape() == Shape{3});
  CHECK(numbers(column) == Values{1, 11, 21});
}

TEST_CASE("an index out of bounds is named by its place") {
  Session session = make_session();
  const Tensor params = Tensor::of<float>({3}, {1, 2, 3});
  const Tensor bad = Tensor::of<int32_t>({2, 3}, {0, 1, 2, 0, 3, 7}), negative = Tensor::of<int32_t>({1}, {-1});
  CHECK(message_of([&] { session.evaluate("gather", {params, bad}); }) == "indices at (1, 1) is 3, outside [0, 3)");
  CHECK(message_of([&] { session.evaluate("gather", {params, negative}); }) == "indices at (0) is -1, outside [0, 3)");
  CHECK(message_of([&] {
          session.evaluate("one_hot", {bad}, {{"depth", int64_t{4}}});
        }) == "indices at (1, 2) is 7, outside [0, 4)");
  const Tensor dy = random_values({DType::Float32, {2, 3}}, 1);
  CHECK_THROWS_AS(session.evaluate("gather_grad", {dy, bad}, {{"shape", Ints{3}}}), Error);
  CHECK(message_of([&] {
          session.evaluate("gather", {params, params});
        }) == "indices must be integers (int32 or int64), got float32");
}

TEST_CASE("the gradient of gather adds up what was picked more than once") {
  Session session = make_session();
  const Tensor dy = Tensor::of<float>({4, 2}, {1, 10, 2, 20, 3, 30, 4, 40});
  const Tensor indices = Tensor::of<int32_t>({4}, {2, 0, 2, 2});
  const Tensor dparams = session.evaluate("gather_grad", {dy, indices}, {{"shape", Ints{3, 2}}})[0];
  CHECK(numbers(dparams) == Values{2, 20, 0, 0, 8, 80});
}

TEST_CASE("the gradient of gather has the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  Tensor indices = Tensor::allocate({DType::Int32, {1000}});
  for (int64_t i = 0; i < 1000; ++i) indices.data<int32_t>()[i] = static_cast<int32_t>(i * i % 50);
  const Tensor rows = random_values({DType::Float32, {1000, 77}}, 1);
  const Attrs shape{{"shape", Ints{50, 77}}};
  CHECK(distance(one.evaluate("gather_grad", {rows, indices}, shape)[0],
                 two.evaluate("gather_grad", {rows, indices}, shape)[0]) == 0);
  const Tensor blocks = random_values({DType::Float32, {9, 1000, 7}}, 2);
  const Attrs inner{{"shape", Ints{9, 50, 7}}, {"axis", int64_t{1}}};
  CHECK(distance(one.evaluate("gather_grad", {blocks, indices}, inner)[0],
                 two.evaluate("gather_grad", {blocks, indices}, inner)[0]) == 0);
}

TEST_CASE("one_hot turns a class into a vector") {
  Session session = make_session();
  const Tensor indices = Tensor::of<int32_t>({2}, {2, 0});
  const Tensor rows = session.evaluate("one_hot", {indices}, {{"depth", int64_t{3}}})[0];
  CHECK(rows.type() == TensorType{DType::Float32, {2, 3}});
  CHECK(numbers(rows) == Values{0, 0, 1, 1, 0, 0});
  const Attrs columns{
      {"depth", int64_t{3}}, {"axis", int64_t{0}}, {"on_value", 5.0}, {"off_value", -1.0}, {"dtype", DType::Int8}};
  CHECK(numbers(session.evaluate("one_hot", {indices}, columns)[0]) == Values{-1, 5, -1, -1, 5, -1});
  const Attrs wrong{{"depth", int64_t{3}}, {"on_value", 300.0}, {"dtype", DType::UInt8}};
  CHECK(message_of([&] { session.evaluate("one_hot", {indices}, wrong); }) == "on_value 300 is not a value of uint8");
}
