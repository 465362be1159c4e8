// Ops whose indices name single places: what is read there, what is put there and in which order, and bad indices.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

using Values = std::vector<double>;

Tensor integers(const Shape& shape, int64_t below, uint32_t seed) {
  Tensor tensor = Tensor::allocate({DType::Int32, shape});
  std::mt19937 random(seed);
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<int32_t>()[i] = static_cast<int32_t>(random() % below);
  return tensor;
}

}  // namespace

TEST_CASE("gather_nd picks rows by coordinates") {
  Session session = make_session();
  const Tensor params = Tensor::of<float>({2, 3, 2}, {0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121});
  const Tensor rows = Tensor::of<int64_t>({3, 2}, {1, 2, 0, 0, 1, 0});
  CHECK(numbers(session.evaluate("gather_nd", {params, rows})[0]) == Values{120, 121, 0, 1, 100, 101});
  const Tensor single = Tensor::of<uint8_t>({3}, {1, 1, 0});
  const Tensor element = session.evaluate("gather_nd", {params, single})[0];
  CHECK(element.shape() == Shape{});
  CHECK(numbers(element) == Values{110});
}

TEST_CASE("scatter_nd adds up what has one place") {
  Session session = make_session();
  const Tensor indices = Tensor::of<int32_t>({4, 1}, {3, 0, 3, 3}), updates = Tensor::of<int32_t>({4}, {1, 2, 4, 8});
  CHECK(numbers(session.evaluate("scatter_nd", {indices, updates}, {{"shape", Ints{5}}})[0]) == Values{2, 0, 0, 13, 0});
}

TEST_CASE("rows are added to a tensor, or take the place of its own, the last one for good") {
  Session session = make_session();
  const Tensor params = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor indices = Tensor::of<int32_t>({3, 1}, {2, 0, 2});
  const Tensor updates = Tensor::of<float>({3, 2}, {10, 20, 30, 40, 50, 60});
  CHECK(numbers(session.evaluate("tensor_scatter_nd_add", {params, indices, updates})[0]) ==
        Values{31, 42, 3, 4, 65, 86});
  CHECK(numbers(session.evaluate("tensor_scatter_nd_update", {params, indices, updates})[0]) ==
        Values{30, 40, 3, 4, 50, 60});
}

TEST_CASE("unsorted_segment_sum adds up slices by their segment") {
  Session session = make_session();
  const Tensor data = Tensor::of<int8_t>({4, 2}, {1, 10, 2, 20, 4, 40, 120, 0}),
               ids = Tensor::of<int32_t>({4}, {1, 0, 1, 1});
  const Tensor sums = session.evaluate("unsorted_segment_sum", {data, ids}, {{"num_segments", int64_t{3}}})[0];
  CHECK(sums.type() == TensorType{DType::Int8, {3, 2}});
  CHECK(numbers(sums) == Values{2, 20, 125, 50, 0, 0});
  const Tensor columns = Tensor::of<int32_t>({2}, {0, 0});
  const Attrs along{{"num_segments", int64_t{1}}, {"axis", int64_t{-1}}};
  CHECK(numbers(session.evaluate("unsorted_segment_sum", {data, columns}, along)[0]) == Values{11, 22, 44, 120});
}

TEST_CASE("unsorted_segment_max keeps the largest of each segment, a NaN before all") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Session session = make_session();
  const Tensor ids = Tensor::of<int64_t>({5}, {1, 0, 1, 0, 3});
  const Attrs attrs{{"num_segments", int64_t{4}}};
  const Tensor data = Tensor::of<float>({5, 2}, {1, -10, -2, -20, -4, -40, -3, 7, NAN, 0});
  const Tensor largest = session.evaluate("unsorted_segment_max", {data, ids}, attrs)[0];
  CHECK(largest.shape() == Shape{4, 2});
  CHECK(std::isnan(largest.data<float>()[6]));
  const Values all = numbers(largest);
  CHECK(Values(all.begin(), all.begin() + 6) == Values{-2, 7, 1, -10, -kInfinity, -kInfinity});
  CHECK(all[7] == 0);
  const Tensor bytes = Tensor::of<int8_t>({5}, {-100, 3, -90, 2, 1});
  CHECK(numbers(session.evaluate("unsorted_segment_max", {bytes, ids}, attrs)[0]) == Values{3, -90, -128, 1});
}

TEST_CASE("rows of no elements cost nothing, however many there are") {
  Session session = make_session();
  const int64_t many = int64_t{1} << 50;  // to go through them would take weeks
  const Tensor none = Tensor::allocate({DType::Float32, {2, 0}}), ids = Tensor::of<int32_t>({2}, {0, 7});
  CHECK(session.evaluate("unsorted_segment_sum", {none, ids}, {{"num_segments", many}})[0].shape() == Shape{many, 0});
  const Tensor places = Tensor::of<int64_t>({2, 1}, {0, many - 1});
  CHECK(session.evaluate("scatter_nd", {places, none}, {{"shape", Ints{many, 0}}})[0].shape() == Shape{many, 0});
  CHECK_THROWS_AS(session.evaluate("scatter_nd", {places, none}, {{"shape", Ints{many - 1, 0}}}), Error);
}

TEST_CASE("dim_gather picks along an axis, each element for itself") {
  Session session = make_session();
  const Tensor x = Tensor::of<float>({2, 3}, {0, 1, 2, 10, 11, 12});
  const Tensor last = Tensor::of<int32_t>({2, 2}, {2, 0, 1, 1}), first = Tensor::of<int32_t>({1, 3}, {1, 0, 1});
  CHECK(numbers(session.evaluate("dim_gather", {x, last}, {{"dim", int64_t{-1}}})[0]) == Values{2, 0, 11, 11});
  CHECK(numbers(session.evaluate("dim_gather", {x, first}, {{"dim", int64_t{0}}})[0]) == Values{10, 1, 12});
}

TEST_CASE("dim_gather and gather read the same places by any number of threads, with indices of any integers") {
  Session one = make_session(1), three = make_session(3);
  const Shape shape{40, 50, 60};
  const Tensor x = random_values({DType::Float32, shape}, 1);
  for (int axis = 0; axis < 3; ++axis) {
    Shape picks = shape;
    picks[axis] = 23;
    const int64_t inner = shape.count(axis + 1, 3), size = shape[axis];
    const Tensor places = integers(picks, size, 2), rows = integers({23}, size, 3);
    Tensor along = Tensor::allocate({DType::Float32, picks}), by_row = Tensor::allocate(along.type());
    for (int64_t i = 0; i < along.count(); ++i) {
      const int64_t block = i / (23 * inner) * size * inner, within = i % inner;
      along.data<float>()[i] = x.data<float>()[block + places.data<int32_t>()[i] * inner + within];
      by_row.data<float>()[i] = x.data<float>()[block + rows.data<int32_t>()[i / inner % 23] * inner + within];
    }
    for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
      CAPTURE(axis, dtype);
      const auto indices = [&](const Tensor& of) { return one.evaluate("cast", {of}, {{"dtype", dtype}})[0]; };
      for (Session* session : {&one, &three}) {
        CHECK(same(session->evaluate("dim_gather", {x, indices(places)}, {{"dim", int64_t{axis}}})[0], along));
        CHECK(same(session->evaluate("gather", {x, indices(rows)}, {{"axis", int64_t{axis}}})[0], by_row));
      }
    }
  }
}

TEST_CASE("an index outside of its axis is found in every integer dtype") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {3, 7}}, 1), wide = random_values({DType::Float32, {2, 300}}, 1);
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    for (const double bad : {7.0, -1.0, 120.0}) {
      CAPTURE(dtype, bad);
      const Tensor given = Tensor::of<double>({3, 1}, {6, bad, 0});
      const Tensor index = session.evaluate("cast", {given}, {{"dtype", dtype}})[0];
      if (dtype == DType::UInt8 && bad < 0) continue;  // which it has not
      CHECK_THROWS_AS(session.evaluate("dim_gather", {x, index}, {{"dim", int64_t{1}}}), Error);
    }
    const Tensor far = session.evaluate("cast", {Tensor::of<double>({2, 1}, {127, 0})}, {{"dtype", dtype}})[0];
    CHECK_NOTHROW(session.evaluate("dim_gather", {wide, far}, {{"dim", int64_t{1}}}));
  }
}

TEST_CASE("sums have one order, and the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2), three = make_session(3);
  struct Case {
    Shape out;
    int64_t picks;
  };
  // Shared by columns, and by rows; many picks of few rows, and few of many.
  for (const Case& c : {Case{{40, 200}, 1000}, Case{{40, 3}, 20000}, Case{{50000}, 300}, Case{{7}, 100000}}) {
    const Tensor indices = integers({c.picks, 1}, c.out[0], 1);
    Shape rows = c.out;
    rows[0] = c.picks;
    const Tensor updates = random_values({DType::Float32, rows}, 2);
    const Attrs attrs{{"shape", c.out.dims()}};
    const Tensor expected = one.evaluate("scatter_nd", {indices, updates}, attrs)[0];
    CHECK(distance(two.evaluate("scatter_nd", {indices, updates}, attrs)[0], expected) == 0);
    CHECK(distance(three.evaluate("scatter_nd", {indices, updates}, attrs)[0], expected) == 0);
    Tensor plain = Tensor::zeros({DType::Float32, c.out});
    const int64_t inner = c.out.count() / c.out[0];
    for (int64_t i = 0; i < updates.count(); ++i)
      plain.data<float>()[indices.data<int32_t>()[i / inner] * inner + i % inner] += updates.data<float>()[i];
    CHECK(distance(expected, plain) == 0);
  }
}

TEST_CASE("an index out of bounds is named by its own axis and place") {
  Session session = make_session();
  const Tensor params = random_values({DType::Float32, {4, 3}}, 1);
  const Tensor indices = Tensor::of<int32_t>({2, 2}, {3, 2, 1, 3}), negative = Tensor::of<int32_t>({1, 1}, {-1});
  CHECK(message_of([&] {
          session.evaluate("gather_nd", {params, indices});
        }) == "indices at (1, 1) is 3, outside [0, 3)");
  CHECK(
      message_of([&] {
        session.evaluate("scatter_nd", {negative, random_values({DType::Float32, {1, 3}}, 2)}, {{"shape", Ints{4, 3}}});
      }) == "indices at (0, 0) is -1, outside [0, 4)");
  CHECK(message_of([&] {
          session.evaluate("dim_gather", {params, indices}, {{"dim", int64_t{-1}}});
        }) == "x is (4, 3), index is (2, 2); they may differ along axis 1 only");
  const Tensor index = Tensor::of<int32_t>({4, 1}, {0, 3, 1, 7});
  CHECK(message_of([&] {
          session.evaluate("dim_gather", {params, index}, {{"dim", int64_t{-1}}});
        }) == "indices at (1, 0) is 3, outside [0, 3)");
  const Tensor ids = Tensor::of<int32_t>({4}, {0, 1, 2, 5});
  CHECK(message_of([&] {
          session.evaluate("unsorted_segment_sum", {params, ids}, {{"num_segments", int64_t{5}}});
        }) == "indices at (3) is 5, outside [0, 5)");
}

TEST_CASE("of many bad indices the first is named, by any number of threads") {
  Session three = make_session(3);
  Tensor indices = integers({100000, 1}, 10, 1);
  for (int64_t i = 50000; i < 100000; ++i) indices.data<int32_t>()[i] = static_cast<int32_t>(i);
  const Tensor params = random_values({DType::Float32, {10}}, 1);
  CHECK(message_of([&] {
          three.evaluate("gather_nd", {params, indices});
        }) == "indices at (50000, 0) is 50000, outside [0, 10)");
}

TEST_CASE("shapes that do not go together are told") {
  Session session = make_session();
  const Tensor params = random_values({DType::Float32, {4, 3}}, 1), wide = integers({2, 3}, 3, 1);
  const Tensor pairs = integers({2, 2}, 3, 1), ids = integers({3}, 3, 1);
  CHECK(message_of([&] {
          session.evaluate("gather_nd", {params, wide});
        }) == "indices (2, 3) hold 3 coordinates each, wanted 1 to 2 for the axes of (4, 3)");
  CHECK(message_of([&] {
          session.evaluate("gather_nd", {params, params});
        }) == "indices must be integers (int32 or int64), got float32");
  CHECK(message_of([&] {
          session.evaluate("tensor_scatter_nd_add", {params, pairs, params});
        }) == "updates are (4, 3), indices (2, 2) name rows of (4, 3) that are (2) together");
  CHECK(message_of([&] {
          session.evaluate("unsorted_segment_sum", {params, ids}, {{"num_segments", int64_t{3}}});
        }) == "segment_ids are (3), they must be axes of data (4, 3) from axis 0 on");
}

TEST_CASE("an update that a later one has replaced has no gradient") {
  Session session = make_session();
  Graph graph(session.catalog());
  const ValueId params = graph.feed("params", {DType::Float32, {3}}),
                updates = graph.feed("updates", {DType::Float32, {4}});
  const ValueId indices = graph.constant(Tensor::of<int32_t>({4, 1}, {2, 0, 2, 2}), "indices");
  const ValueId seed = graph.constant(Tensor::of<float>({3}, {1, 2, 3}), "seed");
  const ValueId out = graph.append("tensor_scatter_nd_update", {params, indices, updates}, {}, "update")[0];
  const std::vector<ValueId> grads = gradients(graph, {out}, {seed}, {params, updates});
  graph.tap(grads[0], 1);
  graph.tap(grads[1], 2);
  const std::vector<Tensor> given{Tensor::of<float>({3}, {0, 0, 0}), Tensor::of<float>({4}, {1, 2, 3, 4})};
  const std::vector<Tensor> got = run(session, session.compile(graph, "update"), given);
  CHECK(numbers(got[0]) == Values{0, 2, 0});
  CHECK(numbers(got[1]) == Values{0, 1, 0, 3});
}

TEST_CASE("rows outside of a variable are refused before any is written") {
  Session session = make_session();
  const Tensor variable = Tensor::of<float>({2, 2}, {1, 2, 3, 4}), updates = Tensor::of<float>({2, 2}, {5, 6, 7, 8});
  for (const int64_t row : {2, -1}) {
    const Tensor rows = Tensor::of<int64_t>({2}, {0, row});
    CHECK_THROWS_WITH(session.evaluate("tensor_scatter_nd_assign", {variable, updates, rows}),
                      Catch::Contains("indices at (1) is " + std::to_string(row) + ", outside [0, 2)"));
    CHECK(numbers(variable) == std::vector<double>{1, 2, 3, 4});
  }
}
