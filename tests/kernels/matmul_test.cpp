// Matrix products and bias: golden values, and float32 against float64.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16.h"
#include "kernels/cpu/matmul_stack.h"
#include "kernels/cpu/matmul_tiles.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

}  // namespace

TEST_CASE("ones(3, 3) times W has a gradient of 3 in every element of W") {
  // Example (a) of the original's documentation.
  Session session = make_session();
  Graph graph(session.catalog());
  const ValueId x = graph.feed("x", {DType::Float32, {3, 3}}), w = graph.feed("w", {DType::Float32, {3, 2}});
  const ValueId y = graph.append("matmul", {x, w}, {}, "y")[0];
  const ValueId seed = graph.append("ones_like", {y}, {}, "seed")[0];
  graph.tap(y, 1);
  graph.tap(gradients(graph, {y}, {seed}, {w})[0], 2);
  const Tensor ones = Tensor::of<float>({3, 3}, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  const Tensor twos = Tensor::of<float>({3, 2}, {2, 2, 2, 2, 2, 2});
  const std::vector<Tensor> values = run(session, session.compile(graph, "job"), {ones, twos});
  CHECK(numbers(values[0]) == std::vector<double>(6, 6));
  CHECK(numbers(values[1]) == std::vector<double>(6, 3));
}

TEST_CASE("matmul multiplies, transposes and stacks") {
  Session session = make_session();
  const Tensor a = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6}), b = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  CHECK(numbers(session.evaluate("matmul", {a, b})[0]) == std::vector<double>{22, 28, 49, 64});
  CHECK(numbers(session.evaluate("matmul", {a, b}, transposes(true, true))[0]) ==
        std::vector<double>{9, 19, 29, 12, 26, 40, 15, 33, 51});
  const Tensor stack = Tensor::of<float>({2, 1, 2}, {1, 2, 3, 4}), other = Tensor::of<float>({2, 2, 1}, {1, 1, 2, 2});
  CHECK(numbers(session.evaluate("matmul", {stack, other})[0]) == std::vector<double>{3, 14});
}

TEST_CASE("float32 products agree with float64 for few rows and many, transposed and stacked") {
  Session session = make_session();
  for (const int64_t rows : {1, 3, 8, 9, 64}) {
    for (const int64_t inner : {1, 10, 300}) {
      for (const int64_t batch : {1, 3}) {
        for (const bool ta : {false, true}) {
          for (const bool tb : {false, true}) {
            CAPTURE(rows, inner, batch, ta, tb);
            const int64_t columns = 33;
            Shape left = ta ? Shape{inner, rows} : Shape{rows, inner};
            Shape right = tb ? Shape{columns, inner} : Shape{inner, columns};
            if (batch > 1) left.insert(0, batch), right.insert(0, batch);
            const Tensor a = random_values({DType::Float32, left}, 1), b = random_values({DType::Float32, right}, 2);
            const Tensor c = session.evaluate("matmul", {a, b}, transposes(ta, tb))[0];
            const Tensor expected = session.evaluate("matmul", {as_double(a), as_double(b)}, transposes(ta, tb))[0];
            CHECK(distance(c, expected) < 5e-6);  // sums of up to 300 terms, each rounded at 6e-8
          }
        }
      }
    }
  }
}

// The vector on either side, beside matrices of few rows and many, and sums that are taken in pieces.
TEMPLATE_TEST_CASE("a matrix beside a vector gives its sums, the same for any number of threads", "", float, double) {
  constexpr DType dtype = std::is_same_v<TestType, float> ? DType::Float32 : DType::Float64;
  Session one = make_session(1), three = make_session(3);
  for (const auto& [size, inner] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 5}, {9, 1}, {15, 30}, {16, 6}, {70, 33}, {130, 9001}, {9000, 40}, {513, 8192}}) {
    for (const bool vector_first : {false, true}) {
      for (const bool turned : {false, true}) {
        CAPTURE(size, inner, vector_first, turned);
        const Tensor matrix = random_values({dtype, turned ? Shape{inner, size} : Shape{size, inner}}, 1);
        const Tensor vector = random_values({dtype, vector_first ? Shape{1, inner} : Shape{inner, 1}}, 2);
        const TestType *const m = matrix.data<TestType>(), *const v = vector.data<TestType>();
        const auto product = [&](Session& session) {
          return vector_first ? session.evaluate("matmul", {vector, matrix}, transposes(false, !turned))[0]
                              : session.evaluate("matmul", {matrix, vector}, transposes(turned, false))[0];
        };
        const Tensor result = product(one);
        CHECK(distance(result, product(three)) == 0);
        double worst = 0;
        for (int64_t i = 0; i < size; ++i) {
          double sum = 0;
          for (int64_t k = 0; k < inner; ++k)
            sum += static_cast<double>(m[turned ? k * size + i : i * inner + k]) * static_cast<double>(v[k]);
          worst = std::max(worst, std::fabs(sum - static_cast<double>(result.data<TestType>()[i])));
        }
        CHECK(worst < (dtype == DType::Float32 ? 2e-6 : 1e-14) * std::sqrt(static_cast<double>(inner)));
      }
    }
  }
}

// Up to a few rows whole rows of b are read, up to some more b is read in pieces, and beyond it is packed.
TEST_CASE("products of few rows and of deep matrices agree with float64, the same for any number of threads") {
  Session one = make_session(1), three = make_session(3);
  for (const auto& [rows, columns, inner] : {std::array<int64_t, 3>{128, 256, 256},
                                             {61, 128, 517},
                                             {2, 640, 1},
                                             {2, 300, 4100},
                                             {3, 2100, 21},
                                             {4, 97, 300},
                                             {5, 1000, 1000},
                                             {20, 700, 515},
                                             {28, 333, 1000}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        CAPTURE(rows, columns, inner, ta, tb);
        const Tensor a = random_values({DType::Float32, ta ? Shape{inner, rows} : Shape{rows, inner}}, 1);
        const Tensor b = random_values({DType::Float32, tb ? Shape{columns, inner} : Shape{inner, columns}}, 2);
        const Tensor c = one.evaluate("matmul", {a, b}, transposes(ta, tb))[0];
        CHECK(distance(c, three.evaluate("matmul", {a, b}, transposes(ta, tb))[0]) == 0);
        const Tensor exact = one.evaluate("matmul", {as_double(a), as_double(b)}, transposes(ta, tb))[0];
        CHECK(distance(c, exact) < 5e-7 * std::sqrt(static_cast<double>(inner)));
      }
    }
  }
}

TEST_CASE("stacks of small matrices agree with float64, the same for any number of threads") {
  Session session = make_session();
  using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  // Of a few numbers and of more; whole registers of matrices, and some left over; whole rows of registers, and not.
  for (const auto& [batch, rows, columns, inner] : {Sizes{2, 3, 3, 3},
                                                    {2049, 4, 4, 4},
                                                    {37, 2, 5, 7},
                                                    {5, 1, 1, 9},
                                                    {33, 1, 16, 8},
                                                    {19, 8, 16, 64},
                                                    {7, 20, 21, 13},
                                                    {40, 13, 33, 40},
                                                    {3, 4, 64, 100}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        CAPTURE(batch, rows, columns, inner, ta, tb);
        const Product sizes{batch, rows, columns, inner, ta, tb};
        REQUIRE(cpu::is_small_stack(sizes));
        const Shape left = ta ? Shape{batch, inner, rows} : Shape{batch, rows, inner};
        const Shape right = tb ? Shape{batch, columns, inner} : Shape{batch, inner, columns};
        const Tensor a = random_values({DType::Float32, left}, 1), b = random_values({DType::Float32, right}, 2);
        const auto multiplied = [&](int threads) {
          const cpu::ThreadLimit limit(threads);
          std::vector<float> scratch(static_cast<size_t>(cpu::stack_scratch_bytes(sizes)) / sizeof(float),
                                     std::numeric_limits<float>::quiet_NaN());
          Tensor c = Tensor::zeros({DType::Float32, {batch, rows, columns}});
          cpu::multiply_stack(sizes, a.data<float>(), b.data<float>(), c.data<float>(), scratch.data());
          return c;
        };
        const Tensor c = multiplied(1);
        CHECK(distance(c, multiplied(2)) == 0);
        CHECK(distance(c, session.evaluate("matmul", {as_double(a), as_double(b)}, transposes(ta, tb))[0]) < 5e-6);
        CHECK(distance(c, session.evaluate("matmul", {a, b}, transposes(ta, tb))[0]) == 0);
      }
    }
  }
}

TEST_CASE("products of a turned factor agree with float64, the same for any number of threads") {
  Session session = make_session();
  // Whole panels of rows and less, and sizes for which an op takes this way.
  for (const auto& [rows, columns, inner] :
       {std::array<int64_t, 3>{100, 256, 520}, {37, 70, 53}, {32, 129, 8}, {3, 40, 17}, {16, 1, 1}}) {
    CAPTURE(rows, columns, inner);
    const Product sizes{1, rows, columns, inner, false, true};
    const Tensor a = random_values({DType::Float32, {rows, inner}}, 1);
    const Tensor b = random_values({DType::Float32, {columns, inner}}, 2);
    const Tensor bias = random_values({DType::Float32, {columns}}, 3);
    const auto multiplied = [&](int threads, const float* plus, bool relu) {
      const cpu::ThreadLimit limit(threads);
      std::vector<float> scratch(static_cast<size_t>(cpu::turned_scratch_bytes(sizes)) / sizeof(float));
      Tensor c = Tensor::zeros({DType::Float32, {rows, columns}});
      cpu::multiply_turned(sizes, a.data<float>(), b.data<float>(), plus, relu, c.data<float>(), scratch.data());
      return c;
    };
    const Tensor c = multiplied(1, nullptr, false);
    CHECK(distance(c, multiplied(2, nullptr, false)) == 0);
    const Tensor exact = session.evaluate("matmul", {as_double(a), as_double(b)}, transposes(false, true))[0];
    CHECK(distance(c, exact) < 5e-6);
    CHECK(distance(session.evaluate("matmul", {a, b}, transposes(false, true))[0], exact) < 5e-6);
    const Tensor shifted = session.evaluate("bias_add", {exact, as_double(bias)})[0];
    CHECK(distance(multiplied(1, bias.data<float>(), false), shifted) < 5e-6);
    CHECK(distance(multiplied(1, bias.data<float>(), true), session.evaluate("relu", {shifted})[0]) < 5e-6);
  }
}

namespace {

// The sum of products a^T b whose factors have as many rows as `rows` says, in the order of autodiff, and of `others`
// after the second product.
struct SumOfProducts {
  Graph graph;
  std::vector<ValueId> products;
  ValueId sum = kNone;

  SumOfProducts(const Catalog& catalog, DType dtype, const Shape& shape, const std::vector<int64_t>& rows, int others)
      : graph(catalog) {
    for (const int64_t count : rows) {
      const std::string number = text(products.size());
      const ValueId a = graph.feed("a" + number, {dtype, {count, shape[0]}});
      const ValueId b = graph.feed("b" + number, {dtype, {count, shape[1]}});
      products.push_back(graph.append("matmul", {a, b}, transposes(true, false), "product" + number)[0]);
      add(products.back());
      for (; products.size() == 2 && others > 0; --others) add(graph.feed(text("other", others), {dtype, shape}));
    }
    graph.tap(sum, 1);
  }

  std::vector<Tensor> feeds() const {
    std::vector<Tensor> values;
    for (const NodeId feed : graph.feeds())
      values.push_back(random_values(graph.type(graph.node(feed).outputs[0]), static_cast<uint32_t>(values.size())));
    return values;
  }

 private:
  void add(ValueId value) { sum = sum == kNone ? value : graph.append("add", {sum, value}, {}, "sum")[0]; }
};

}  // namespace

TEST_CASE("a sum of products is the product of all factors joined, and what else is added is added to it") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int others : {0, 1, 3}) {
      CAPTURE(dtype, others);
      const SumOfProducts sum(session.catalog(), dtype, {24, 40}, {3, 5, 1, 4, 3}, others);
      const std::vector<Tensor> feeds = sum.feeds();
      const auto plan = session.compile(sum.graph, "sum");
      CHECK(count(*plan, "matmul") == 1);
      CHECK(count(*plan, "concat") == 2);
      CHECK(count(*plan, "add") == (others == 3 ? 0 : others));  // three of them are a chain
      CHECK(count(*plan, "element_chain") == (others == 3 ? 1 : 0));

      Tensor wanted = Tensor::zeros({DType::Float64, {24, 40}});
      const auto add = [&](const Tensor& value) {
        for (int64_t i = 0; i < wanted.count(); ++i) wanted.data<double>()[i] += value.data<double>()[i];
      };
      for (size_t i = 0; i < feeds.size(); ++i) {
        if (feeds[i].shape()[0] == 24) {
          add(as_double(feeds[i]));
        } else {
          add(session.evaluate("matmul", {as_double(feeds[i]), as_double(feeds[i + 1])}, transposes(true, false))[0]);
          ++i;
        }
      }
      // A sum of up to 19 terms, each rounded at 6e-8.
      CHECK(distance(run(session, plan, feeds)[0], wanted) < (dtype == DType::Float32 ? 2e-6 : 1e-14));
    }
  }
}

TEST_CASE("products are joined where that is less work, and nobody wants one of them") {
  Session session = make_session();
  const auto products_of = [&](const Shape& shape, const std::vector<int64_t>& rows, int tapped) {
    SumOfProducts sum(session.catalog(), DType::Float32, shape, rows, 0);
    if (tapped >= 0) sum.graph.tap(sum.products[tapped], 2);
    return count(*session.compile(sum.graph, "sum"), "matmul");
  };
  CHECK(products_of({80, 80}, {20, 20, 20}, -1) == 1);
  CHECK(products_of({80, 80}, {20, 20, 20}, 1) == 2);   // the two others
  CHECK(products_of({80, 80}, {20, 20}, 1) == 2);
  CHECK(products_of({80, 80}, {400, 400}, -1) == 2);    // whose factors are larger than the results

  Graph graph(session.catalog());  // each of these sums is read by somebody else
  const TensorType type{DType::Float32, {20, 20}};
  const auto product = [&](const std::string& name) {
    const ValueId a = graph.feed("a-" + name, type), b = graph.feed("b-" + name, type);
    return graph.append("matmul", {a, b}, transposes(true, false), name)[0];
  };
  const ValueId once = product("once"), inner = graph.append("add", {product("one"), product("two")}, {}, "inner")[0];
  graph.tap(inner, 1);
  graph.tap(graph.append("add", {once, once}, {}, "twice")[0], 2);
  graph.tap(graph.append("add", {inner, product("three")}, {}, "outer")[0], 3);
  const auto plan = session.compile(graph, "sums");
  CHECK(count(*plan, "matmul") == 3);
  std::vector<Tensor> feeds;
  for (size_t i = 0; i < graph.feeds().size(); ++i) feeds.push_back(random_values(type, static_cast<uint32_t>(i)));
  const std::vector<Tensor> sums = run(session, plan, feeds);
  const auto value = [&](int feed) {
    return numbers(session.evaluate("matmul", {feeds[feed], feeds[feed + 1]}, transposes(true, false))[0]);
  };
  const std::vector<double> doubled = value(0), one = value(2), two = value(4), three = value(6);
  for (size_t i = 0; i < doubled.size(); ++i) {
    CHECK(numbers(sums[0])[i] == Approx(one[i] + two[i]).margin(1e-5));
    CHECK(numbers(sums[1])[i] == Approx(2 * doubled[i]).margin(1e-5));
    CHECK(numbers(sums[2])[i] == Approx(one[i] + two[i] + three[i]).margin(1e-5));
  }
}

TEST_CASE("products in bfloat16 are those of the rounded factors, summed in float32") {
  Session session = make_session(), alone = make_session(1);
  const auto as = [&](const Tensor& x, DType dtype) { return session.evaluate("cast", {x}, {{"dtype", dtype}})[0]; };
  const DType kinds[] = {DType::Float32, DType::BFloat16};
  int trial = 0;
  for (const int64_t rows : {1, 3, 8, 9, 100}) {
    for (const int64_t inner : {1, 31, 300}) {
      for (const int64_t batch : {1, 3}) {
        for (const int way : {0, 1, 2, 3}) {
          // One of the eight ways to store the three matrices at a time.
          const DType a_kind = kinds[trial % 2], b_kind = kinds[trial / 2 % 2], out_kind = kinds[trial / 4 % 2];
          ++trial;
          const bool ta = way % 2 != 0, tb = way / 2 != 0;
          CAPTURE(rows, inner, batch, ta, tb, a_kind, b_kind, out_kind);
          const int64_t columns = trial % 3 == 0 ? 150 : 33;
          Shape left = ta ? Shape{inner, rows} : Shape{rows, inner};
          Shape right = tb ? Shape{columns, inner} : Shape{inner, columns};
          if (batch > 1) left.insert(0, batch), right.insert(0, batch);
          const Tensor a = as(random_values({DType::Float32, left}, 1), DType::BFloat16);
          const Tensor b = as(random_values({DType::Float32, right}, 2), DType::BFloat16);
          Attrs attrs = transposes(ta, tb);
          const Tensor exact = session.evaluate("matmul", {as(a, DType::Float64), as(b, DType::Float64)}, attrs)[0];
          attrs.set("mixed", std::string(name(out_kind)));
          const std::vector<Tensor> factors{as(a, a_kind), as(b, b_kind)};
          const Tensor c = session.evaluate("matmul", factors, attrs)[0];
          REQUIRE(c.dtype() == out_kind);
          CHECK(distance(as(c, DType::Float64), exact) < (out_kind == DType::BFloat16 ? 1.0 / 256 : 5e-6));
          if (!cpu::multiplies_bfloat16()) continue;  // float32's products, some of which sum in another order
          const Tensor other = alone.evaluate("matmul", factors, attrs)[0];
          CHECK(std::memcmp(c.data(), other.data(), static_cast<size_t>(c.bytes())) == 0);
        }
      }
    }
  }
}

TEST_CASE("a descent along a product in bfloat16 is the product, and then the descent") {
  Session session = make_session();
  const auto as = [&](const Tensor& x, DType dtype) { return session.evaluate("cast", {x}, {{"dtype", dtype}})[0]; };
  const Tensor rate = Tensor::of<float>({}, {0.25f});
  for (const int way : {0, 1, 2, 3}) {
    const bool ta = way % 2 != 0, tb = way / 2 != 0;
    const int64_t rows = 70, columns = 150, inner = 33;
    CAPTURE(ta, tb);
    const Tensor a =
        as(random_values({DType::Float32, ta ? Shape{inner, rows} : Shape{rows, inner}}, 1), DType::BFloat16);
    const Tensor b =
        as(as(random_values({DType::Float32, tb ? Shape{columns, inner} : Shape{inner, columns}}, 2), DType::BFloat16),
           DType::Float32);
    const Tensor start = random_values({DType::Float32, {rows, columns}}, 3);
    Graph graph(session.catalog());
    const std::string name = text("weight", way);
    const ValueId weight = graph.variable(name, start.type());
    Attrs attrs = transposes(ta, tb);
    attrs.set("gradient_scale", 0.5);
    graph.append("matmul_bfloat16_sgd_update",
                 {weight, graph.constant(a, "a"), graph.constant(b, "b"), graph.constant(rate, "rate")}, attrs);
    const std::shared_ptr<Plan> plan = session.compile(graph, "job");
    session.write(name, start);
    run(session, plan, {});
    attrs = transposes(ta, tb);
    const std::vector<double> product =
        numbers(session.evaluate("matmul", {as(a, DType::Float64), as(b, DType::Float64)}, attrs)[0]);
    const std::vector<double> before = numbers(start), after = numbers(session.read(name));
    double largest = 0;
    for (size_t i = 0; i < before.size(); ++i)
      largest = std::max(largest, std::abs(after[i] - (before[i] - 0.125 * product[i])));
    CHECK(largest < 5e-6);
  }
}

TEST_CASE("a product in bfloat16 keeps what is not a number, and what is infinite") {
  Session session = make_session();
  for (const int64_t rows : {1, 16}) {
    Tensor a = Tensor::zeros({DType::Float32, {rows, 40}}), b = Tensor::zeros({DType::Float32, {40, 40}});
    a.data<float>()[1] = NAN;
    b.data<float>()[40] = INFINITY;
    const Attrs mixed{{"transpose_b", true}, {"mixed", std::string("float32")}};
    const Tensor narrow = session.evaluate("cast", {b}, {{"dtype", DType::BFloat16}})[0];
    const Tensor c = session.evaluate("matmul", {a, narrow}, mixed)[0];
    CHECK(std::isnan(c.data<float>()[0]));
    CHECK(std::isnan(c.data<float>()[1]));
    if (rows > 1) CHECK(c.data<float>()[40] == 0);
    if (rows > 1) CHECK(std::isnan(c.data<float>()[41]));  // 0 times infinity
  }
}

TEST_CASE("products in float16 are those of the widened factors") {
  Session session = make_session();
  const auto as = [&](const Tensor& x, DType dtype) { return session.evaluate("cast", {x}, {{"dtype", dtype}})[0]; };
  const DType half = DType::Float16;
  for (const int64_t rows : {1, 20}) {
    const Tensor a = as(random_values({DType::Float32, {rows, 70}}, 1), half);
    const Tensor b = as(random_values({DType::Float32, {33, 70}}, 2), half);
    const Tensor exact =
        session.evaluate("matmul", {as(a, DType::Float64), as(b, DType::Float64)}, transposes(false, true))[0];
    const Tensor c = session.evaluate("matmul", {a, b}, transposes(false, true))[0];
    REQUIRE(c.dtype() == half);
    CHECK(distance(as(c, DType::Float64), exact) < 1.0 / 2048);
    Attrs attrs = transposes(false, true);
    attrs.set("rounds_to", half);
    for (const DType out : {DType::Float32, half}) {
      attrs.set("mixed", std::string(name(out)));
      const Tensor mixed = session.evaluate("matmul", {as(a, DType::Float32), b}, attrs)[0];
      REQUIRE(mixed.dtype() == out);
      CHECK(distance(as(mixed, DType::Float64), exact) < (out == half ? 1.0 / 2048 : 5e-6));
    }
  }
  // Sums are float32, and what is larger than float16 has is infinite when it is stored.
  const Tensor large = Tensor::of<Float16>({1, 2}, {Float16(300.0f), Float16(-300.0f)});
  const Tensor other = Tensor::of<Float16>({2, 2}, {Float16(300.0f), Float16(300.0f), Float16(0.0f), Float16(299.0f)});
  const Tensor sums = session.evaluate("matmul", {large, other})[0];
  CHECK(std::isinf(static_cast<float>(sums.data<Float16>()[0])));
  CHECK(static_cast<float>(sums.data<Float16>()[1]) == 300);
}

TEST_CASE("mixed precision asks for float32 or what it rounds to") {
  Session session = make_session();
  const Tensor a = random_values({DType::Float32, {2, 2}}, 1), wide = random_values({DType::Float64, {2, 2}}, 1);
  CHECK(message_of([&] {
          session.evaluate("matmul", {a, a}, {{"mixed", std::string("float64")}});
        }) == "mixed is \"float64\", wanted \"float32\" or \"bfloat16\"");
  CHECK(message_of([&] {
          session.evaluate("matmul", {wide, a}, {{"mixed", std::string("float32")}});
        }) == "mixed precision needs float32 or bfloat16, got float64");
  const auto in_half = [](const char* result) {
    return Attrs{{"mixed", std::string(result)}, {"rounds_to", DType::Float16}};
  };
  CHECK(message_of([&] {
          session.evaluate("matmul", {a, a}, in_half("bfloat16"));
        }) == "mixed is \"bfloat16\", wanted \"float32\" or \"float16\"");
  const Tensor narrow = session.evaluate("cast", {a}, {{"dtype", DType::BFloat16}})[0];
  CHECK(message_of([&] {
          session.evaluate("matmul", {a, narrow}, in_half("float32"));
        }) == "mixed precision needs float32 or float16, got bfloat16");
  CHECK(message_of([&] {
          session.evaluate("matmul", {a, a}, {{"mixed", std::string("float32")}, {"rounds_to", DType::Float32}});
        }) == "rounds_to is float32, wanted bfloat16 or float16");
}

TEST_CASE("a product over nothing is zero, and a product of nothing is nothing") {
  Session session = make_session();
  const auto zeros = [](const Shape& shape) { return Tensor::zeros({DType::Float32, shape}); };
  CHECK(numbers(session.evaluate("matmul", {zeros({2, 0}), zeros({0, 2})})[0]) == std::vector<double>{0, 0, 0, 0});
  CHECK(session.evaluate("matmul", {zeros({0, 3}), zeros({3, 2})})[0].shape() == Shape{0, 2});
  const int64_t many = int64_t{1} << 40;  // rows of no elements, which nothing counts
  CHECK(session.evaluate("matmul", {zeros({many, 0}), zeros({0, 0})})[0].shape() == Shape{many, 0});
}

TEST_CASE("bias_grad sums over all but the channels, the same for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  for (const char* format : {"", "NHWC"}) {
    const Tensor dy = random_values({DType::Float32, {7, 40, 30, 33}}, 5);
    const Attrs attrs = {{"data_format", std::string(format)}};
    const Tensor sum = one.evaluate("bias_grad", {dy}, attrs)[0];
    CHECK(distance(sum, two.evaluate("bias_grad", {dy}, attrs)[0]) == 0);
    CHECK(distance(sum, one.evaluate("bias_grad", {as_double(dy)}, attrs)[0]) < 1e-6);
  }
  for (const int64_t channels : {33, 128}) {
    const Tensor dy = random_values({DType::Float32, {300, channels}}, 6);
    const Tensor sum = one.evaluate("reduce_sum", {as_double(dy)}, {{"axis", Ints{0}}})[0];
    CHECK(distance(one.evaluate("bias_grad", {dy})[0], sum) < 1e-6);
  }
  const Tensor dy = Tensor::of<float>({2, 3}, {1, 2, 3, 10, 20, 30});
  CHECK(numbers(one.evaluate("bias_grad", {dy})[0]) == std::vector<double>{11, 22, 33});
}

TEST_CASE("a product of few rows is the same in every run of its plan, whichever end it reads first") {
  for (const int64_t columns : {1, 7, 8, 130}) {
    CAPTURE(columns);
    Session session = make_session();
    Graph graph(session.catalog());
    const ValueId a = graph.feed("a", {DType::Float32, {3, 50}}), b = graph.feed("b", {DType::Float32, {columns, 50}});
    graph.tap(graph.append("matmul", {a, b}, transposes(false, true), "product")[0], 1);
    const auto plan = session.compile(graph, "product");
    const std::vector<Tensor> feeds{random_values({DType::Float32, {3, 50}}, 1),
                                    random_values({DType::Float32, {columns, 50}}, 2)};
    const Tensor first = run(session, plan, feeds)[0];
    for (int repeat = 0; repeat < 3; ++repeat) CHECK(distance(run(session, plan, feeds)[0], first) == 0);
    const Tensor exact =
        session.evaluate("matmul", {as_double(feeds[0]), as_double(feeds[1])}, transposes(false, true))[0];
    CHECK(distance(first, exact) < 1e-6);
  }
}

TEST_CASE("bias_add adds to the channels") {
  Session session = make_session();
  const Tensor value = Tensor::of<float>({1, 2, 2}, {1, 2, 3, 4}), bias = Tensor::of<float>({2}, {10, 20});
  CHECK(numbers(session.evaluate("bias_add", {value, bias})[0]) == std::vector<double>{11, 12, 23, 24});
  CHECK(numbers(session.evaluate("bias_add", {value, bias}, {{"data_format", std::string("NWC")}})[0]) ==
        std::vector<double>{11, 22, 13, 24});
}

TEST_CASE("faults of products and bias are named") {
  Session session = make_session();
  const auto zeros = [](const Shape& shape) { return Tensor::zeros({DType::Float32, shape}); };
  const auto fault = [&](const char* op, const Shape& a, const Shape& b, Attrs attrs = {}) {
    return message_of([&] { session.evaluate(op, {zeros(a), zeros(b)}, attrs); });
  };
  CHECK(fault("matmul", {100, 784}, {512, 28}) ==
        "inner sizes differ: a is (100, 784), b is (512, 28), so 784 against 512");
  CHECK(fault("matmul", {100, 784}, {512, 28}, transposes(false, true)) ==
        "inner sizes differ: a is (100, 784), b is (512, 28) transposed, so 784 against 28");
  CHECK(fault("matmul", {2, 3, 4}, {5, 4, 3}) ==
        "leading sizes differ: a is (2, 3, 4), b is (5, 4, 3), so 2 against 5 on axis 0");
  CHECK(fault("matmul", {3}, {3}) ==
        "a is (3) and b is (3), wanted two matrices, or two stacks of matrices of equal rank");
  CHECK(fault("bias_add", {2, 3}, {2}) == "value is (2, 3) with 3 channels on axis 1, bias is (2)");
  CHECK(message_of([&] {
          session.evaluate("matmul", {Tensor::zeros({DType::Int32, {1, 1}}), Tensor::zeros({DType::Int32, {1, 1}})});
        }) == "needs float32 or float64, got int32");
}
