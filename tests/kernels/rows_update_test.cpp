// Updates of the rows that a step has picked: those of a whole gradient to the bit, and where one would see a
// difference, or lose by it, the gradient stays whole.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// Rows of a table picked by `indices`, and what their gradient does to the table.
struct Table {
  Graph graph;
  std::string rule = "sgd_update";
  ValueId indices, table, rate, gradient;
  Tensor given;

  Table(const Catalog& catalog, const TensorType& type, const Tensor& indices_given, int64_t axis = 0)
      : graph(catalog), given(indices_given) {
    indices = graph.feed("indices", given.type());
    table = graph.variable("table", type);
    rate = graph.constant(Tensor::of<float>({}, {0.3f}), "rate");
    gradient = gradient_of(table, "dy", axis);
  }
  ValueId gradient_of(ValueId variable, const std::string& dy, int64_t axis = 0) {
    const ValueId out = graph.append("gather", {variable, indices}, {{"axis", axis}}, "picked")[0];
    return gradients(graph, {out}, {graph.feed(dy, graph.type(out))}, {variable})[0];
  }
  void update(ValueId factor = kNone) {
    const ValueId prepared = graph.append("prepare_gradient", {gradient, table}, {{"scale", 0.7}})[0];
    std::vector<ValueId> inputs{table};
    if (rule == "adagrad_update") inputs.push_back(graph.variable("sums", graph.type(table)));
    inputs.insert(inputs.end(), {prepared, rate, factor});
    graph.append(rule, inputs, {}, "update");
  }
};

struct Trained {
  std::shared_ptr<Plan> plan;
  Tensor table, sums;  // sums of squares, where the rule has such
};

Trained train(Table& job, int threads = 2) {
  Session session = make_session(threads);
  Trained trained{session.compile(job.graph, "train"), {}, {}};
  const bool has_sums = job.rule == "adagrad_update";
  session.write("table", random_values(job.graph.type(job.table), 1));
  if (has_sums) session.write("sums", random_values(job.graph.type(job.table), 6, 0, 1));
  std::vector<Tensor> feeds;
  for (const NodeId feed : job.graph.feeds()) {
    const TensorType& type = job.graph.type(job.graph.node(feed).outputs[0]);
    feeds.push_back(is_floating(type.dtype) ? random_values(type, 2 + static_cast<uint32_t>(feeds.size())) : job.given);
  }
  for (int step = 0; step < 2; ++step) run(session, trained.plan, feeds);
  trained.table = session.read("table").copy();
  if (has_sums) trained.sums = session.read("sums").copy();
  return trained;
}

Tensor picks(const Shape& shape, int64_t below, uint32_t seed) {
  Tensor tensor = Tensor::allocate({DType::Int64, shape});
  std::mt19937 random(seed);
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<int64_t>()[i] = static_cast<int64_t>(random() % below);
  return tensor;
}

}  // namespace

TEST_CASE("only the rows that are picked are written, and get the bits of a whole gradient") {
  const auto catalog = all_ops();
  struct Case {
    Shape table, picks;
    int64_t below;
  };
  // Rows of less than a register, of some and a rest, of more than is summed at once; of no columns; no picks; all
  // picks alike; so many that two threads share them, and rows fall to either side of where their parts meet.
  const std::vector<Case> cases = {{{40, 5}, {3, 4}, 40},    {{9}, {9}, 4},          {{30, 3, 11}, {2, 5}, 7},
                                   {{20, 600}, {20}, 9},     {{10, 0}, {4}, 10},     {{10, 4}, {0}, 10},
                                   {{100, 64}, {100}, 1},    {{5, 8}, {}, 5},        {{3000, 64}, {40, 60}, 3000},
                                   {{2500, 64}, {2400}, 20}, {{70000}, {70000}, 300}};
  for (const char* rule : {"sgd_update", "adagrad_update"}) {
    for (const DType dtype : {DType::Float32, DType::Float64}) {
      for (const Case& c : cases) {
        CAPTURE(rule, c.table.str(), c.picks.str(), c.below, name(dtype));
        const Tensor given = picks(c.picks, c.below, 5);
        Table rows(*catalog, {dtype, c.table}, given), whole(*catalog, {dtype, c.table}, given);
        for (Table* const job : {&rows, &whole}) {
          job->rule = rule;
          job->update();
        }
        whole.graph.tap(whole.gradient, 1);
        const Trained two = train(rows, 2), one = train(rows, 1), expected = train(whole);
        CHECK(count(*two.plan, text("rows_", rule)) == 1);
        CHECK(count(*two.plan, "gather_grad") == 0);
        CHECK(count(*expected.plan, text("rows_", rule)) == 0);
        for (const Trained* const got : {&two, &one}) {
          CHECK(same(got->table, expected.table));
          if (expected.sums) CHECK(same(got->sums, expected.sums));
        }
      }
    }
  }
}

TEST_CASE("indices of any dtype name rows, and a factor says whether anything happens") {
  const auto catalog = all_ops();
  for (const float value : {0.25f, 0.0f}) {
    for (const Tensor& given : {Tensor::of<uint8_t>({3}, {200, 7, 200}), Tensor::of<int32_t>({3}, {200, 7, 200})}) {
      Table rows(*catalog, {DType::Float32, {256, 3}}, given), whole(*catalog, {DType::Float32, {256, 3}}, given);
      for (Table* const job : {&rows, &whole})
        job->update(job->graph.constant(Tensor::of<float>({}, {value}), "factor"));
      whole.graph.tap(whole.gradient, 1);
      const Trained got = train(rows);
      CHECK(count(*got.plan, "rows_sgd_update") == 1);
      CHECK(same(got.table, train(whole).table));
      CHECK(same(got.table, random_values(got.table.type(), 1)) == (value == 0));
    }
  }
}

TEST_CASE("a gradient that others read, of other axes, of many picks, or of a variable stays whole") {
  const auto catalog = all_ops();
  const auto stays_whole = [](Table& job) {
    job.update();
    Session session = make_session();
    const auto plan = session.compile(job.graph, "train");
    CHECK(count(*plan, "rows_sgd_update") == 0);
    CHECK(count(*plan, "sgd_update") == 1);
  };
  const TensorType type{DType::Float32, {20, 4}};
  Table read(*catalog, type, picks({6}, 20, 1));
  read.graph.tap(read.graph.append("square", {read.gradient}, {}, "square")[0], 1);
  stays_whole(read);
  Table columns(*catalog, type, picks({3}, 4, 1), 1);
  stays_whole(columns);
  Table many(*catalog, type, picks({21}, 20, 1));
  stays_whole(many);
  Table kept(*catalog, type, picks({6}, 20, 1));
  const ValueId out = kept.graph.append("gather", {kept.table, kept.indices}, {}, "picked")[0];
  kept.gradient = gradients(kept.graph, {out}, {kept.graph.variable("dy", kept.graph.type(out))}, {kept.table})[0];
  stays_whole(kept);
}

TEST_CASE("tables that the same indices pick from share the order of the picks") {
  const auto catalog = all_ops();
  const TensorType type{DType::Float32, {50, 4}};
  Table job(*catalog, type, picks({9}, 50, 1));
  job.update();
  job.table = job.graph.variable("other", {DType::Float32, {50, 2}});
  job.gradient = job.gradient_of(job.table, "other dy");
  job.update();
  Session session = make_session();
  const auto plan = session.compile(job.graph, "train");
  CHECK(count(*plan, "rows_sgd_update") == 2);
  CHECK(count(*plan, "picks_by_row") == 1);
}

TEST_CASE("a bad index is found before any variable is written") {
  const auto catalog = all_ops();
  for (const int64_t bad : {int64_t{-1}, int64_t{10}}) {
    Table job(*catalog, {DType::Float32, {10, 4}}, Tensor::of<int64_t>({2, 2}, {3, 9, bad, 0}));
    const ValueId first = job.graph.variable("first", {DType::Float32, {}});
    job.graph.append("sgd_update", {first, job.graph.feed("step", {DType::Float32, {}}), job.rate}, {}, "first update");
    job.update();
    Session session = make_session();
    const auto plan = session.compile(job.graph, "train");
    REQUIRE(count(*plan, "rows_sgd_update") == 1);
    const Tensor table = random_values({DType::Float32, {10, 4}}, 1);
    session.write("table", table);
    session.write("first", Tensor::of<float>({}, {1}));
    const std::string message = message_of([&] {
      run(session, plan, {job.given, random_values({DType::Float32, {2, 2, 4}}, 2), Tensor::of<float>({}, {1})});
    });
    CHECK(message.find(text("indices at (1, 0) is ", bad, ", outside [0, 10)")) != std::string::npos);
    CHECK(same(session.read("table"), table));
    CHECK(numbers(session.read("first")) == std::vector<double>{1});
  }
}

TEST_CASE("Adam of rows is Adam where a row is picked, and leaves the others and their moments") {
  Session session = make_session();
  const Catalog& catalog = session.catalog();
  const TensorType type{DType::Float32, {6, 3}};
  const Tensor given = Tensor::of<int32_t>({4}, {4, 1, 4, 4}), dy = random_values({DType::Float32, {4, 3}}, 3);
  const char* const names[] = {"w", "m", "v"};
  const auto update = [&](bool by_rows) {
    Graph graph(catalog);
    std::vector<ValueId> inputs;
    for (const char* const name : names) inputs.push_back(graph.variable(name, type));
    const ValueId indices = graph.constant(given, "indices"), rows = graph.constant(dy, "dy");
    inputs.push_back(by_rows ? rows
                             : graph.append("gather_grad", {rows, indices}, {{"shape", Ints{6, 3}}}, "gradient")[0]);
    inputs.push_back(graph.constant(Tensor::of<float>({}, {0.1f}), "rate"));
    inputs.push_back(graph.constant(Tensor::of<int64_t>({}, {3}), "step"));
    inputs.push_back(kNone);
    if (by_rows) {
      inputs.push_back(indices);
      inputs.push_back(graph.append("picks_by_row", {indices}, {{"rows", int64_t{6}}}, "order")[0]);
    }
    graph.append(by_rows ? "rows_adam_update" : "adam_update", inputs, {{"gradient_scale", 0.5}}, "update");
    const auto plan = session.compile(graph, "adam");
    for (uint32_t i = 0; i < 3; ++i) session.write(names[i], random_values(type, i, 0, 1));
    run(session, plan, {});
    std::vector<Tensor> after;
    for (const char* const name : names) after.push_back(session.read(name).copy());
    return after;
  };
  const std::vector<Tensor> got = update(true), of_all = update(false);
  for (uint32_t i = 0; i < 3; ++i) {
    const Tensor before = random_values(type, i, 0, 1);
    for (int64_t row = 0; row < 6; ++row) {
      const bool is_picked = row == 1 || row == 4;
      CAPTURE(names[i], row);
      CHECK(same(got[i].rows(row, 1).copy(),
                 (is_picked ? of_all : std::vector<Tensor>(3, before))[i].rows(row, 1).copy()));
      CHECK_FALSE(same(of_all[i].rows(row, 1).copy(), before.rows(row, 1).copy()));
    }
  }
}

TEST_CASE("picks stand in the order of their rows, and then in their own") {
  Session session = make_session();
  const Tensor given = Tensor::of<int32_t>({2, 3}, {7, 2, 7, 0, 2, 7});
  CHECK(numbers(session.evaluate("picks_by_row", {given}, {{"rows", int64_t{8}}})[0]) ==
        std::vector<double>{3, 1, 4, 0, 2, 5});
  CHECK(message_of([&] {
          session.evaluate("picks_by_row", {given}, {{"rows", int64_t{7}}});
        }).find("indices at (0, 0) is 7, outside [0, 7)") != std::string::npos);
}

TEST_CASE("the picks of a row become one, where its first stands, and their sum keeps its bits") {
  Session session = make_session(2);
  const auto summed = [&](const Tensor& dy, const Tensor& indices, int64_t rows) {
    const Tensor order = session.evaluate("picks_by_row", {indices}, {{"rows", rows}})[0];
    return session.evaluate("sum_picks", {dy, indices, order}, {})[0];
  };
  CHECK(numbers(summed(Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6}), Tensor::of<int32_t>({2, 3}, {7, 2, 7, 0, 2, 7}),
                       8)) == std::vector<double>{10, 7, 0, 4, 0, 0});
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const Shape& shape : {Shape{40}, Shape{9, 0}, Shape{0, 4}, Shape{2400, 64}, Shape{3000, 3, 2}}) {
      CAPTURE(shape.str(), name(dtype));
      const Tensor dy = random_values({dtype, shape}, 3), indices = picks({shape[0]}, 20, 5);
      Shape table = shape;
      table[0] = 20;
      const auto gradient = [&](const Tensor& rows) {
        return session.evaluate("gather_grad", {rows, indices}, {{"shape", Ints(table.begin(), table.end())}})[0];
      };
      CHECK(same(gradient(summed(dy, indices, 20)), gradient(dy)));
    }
  }
}
