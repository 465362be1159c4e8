// Which steps go side by side, and that whatever may not is ordered: first of steps that are nothing but their weights
// and needs, then of whole plans, byte by byte.
#include "engine/branches.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "card.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

// What is ordered by a plan, found the plain way: a step comes after another when a path of waits and of neighbours in
// a branch leads there. Row and column -1, the begin of a run, come first; the last is its end.
class Order {
 public:
  template <class BranchOf, class WaitsOf>
  Order(int count, int start, const BranchOf& branch_of, const WaitsOf& waits_of, const std::vector<int>& joins)
      : count_(count), after_(count + 2, std::vector<bool>(count + 2, false)) {
    std::vector<int> newest(8, kNone);
    newest[0] = -1;
    for (int at = 0; at < count; ++at) {
      const int branch = branch_of(at);
      if (newest[branch] != kNone) follow(at, newest[branch]);
      newest[branch] = at;
      for (const int before : waits_of(at)) follow(at, before);
      if (at == start) follow(at, -1);
    }
    follow(count, newest[0]);
    for (const int before : joins) follow(count, before);
  }

  bool ordered(int before, int after) const { return after_[after + 1][before + 1]; }
  int end() const { return count_; }

 private:
  static constexpr int kNone = -3;
  void follow(int at, int before) {
    after_[at + 1][before + 1] = true;
    for (size_t i = 0; i < after_.size(); ++i)
      if (after_[before + 1][i]) after_[at + 1][i] = true;
  }

  int count_;
  std::vector<std::vector<bool>> after_;
};

int start_of(const std::vector<StepWork>& steps) {
  return static_cast<int>(std::count_if(steps.begin(), steps.end(),
                                        [](const StepWork& step) { return step.phase == StepWork::Kept; })) -
         1;
}

Order order_of(const Branches& branches, int start) {
  return Order(
      static_cast<int>(branches.order.size()), start, [&](int at) { return branches.branch[at]; },
      [&](int at) { return branches.waits_for[at]; }, branches.joins);
}

// Small steps, each of which needs up to three of those before it.
std::vector<StepWork> draw_steps(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<StepWork> steps(1 + below(40));
  const int kept = below(4), writes = below(6);
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    steps[i].phase = i < kept                                        ? StepWork::Kept
                     : i + writes >= static_cast<int>(steps.size()) ? StepWork::Write
                                                                     : StepWork::EveryRun;
    steps[i].work_us = below(50) / 10.0;
    for (int needs = below(3); needs > 0 && i > 0; --needs) steps[i].after.push_back(i - 1 - below(std::min(i, 10)));
  }
  return steps;
}

// Whether whatever has to be ordered is: needs, the phases' own rules, the begin of a run and its end.
bool holds(const Branches& branches, const std::vector<StepWork>& steps) {
  const int count = static_cast<int>(steps.size());
  const Order order = order_of(branches, start_of(steps));
  std::vector<int> place(count);
  for (int at = 0; at < count; ++at) place[branches.order[at]] = at;
  for (int step = 0; step < count; ++step) {
    for (const int before : steps[step].after)
      if (!order.ordered(place[before], place[step])) return false;
    if (!order.ordered(start_of(steps), place[step]) && steps[step].phase != StepWork::Kept) return false;
    if (!order.ordered(place[step], order.end())) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("steps that follow one another stay in one branch, in their order") {
  std::vector<StepWork> steps(20);
  for (int i = 1; i < 20; ++i) steps[i].after = {i - 1};
  const Branches branches = in_branches(steps, 2);
  CHECK(branches.count == 1);
  CHECK(branches.order == in_one_branch(20).order);
  CHECK(branches.beside == branches.order);
}

TEST_CASE("the trunk goes the long way, and what nothing needs soon goes beside it") {
  // Down and up a network: 0 1 2 3 forward and 4 6 8 back, each with the gradient of a weight behind it: 5 7 9.
  std::vector<StepWork> steps(11);
  for (const int i : {1, 2, 3, 4}) steps[i].after = {i - 1};
  steps[5].after = steps[6].after = {4};
  steps[7].after = steps[8].after = {6};
  steps[9].after = {8};
  steps[10] = {0, {5, 7, 9}, StepWork::Write};
  const Branches branches = in_branches(steps, 2);
  REQUIRE(branches.count == 2);
  std::vector<int> beside;
  for (size_t at = 0; at < steps.size(); ++at)
    if (branches.branch[at] == 1) beside.push_back(branches.order[at]);
  CHECK(beside == std::vector<int>{5, 7});
  CHECK(branches.order.back() == 10);
  CHECK(branches.waits_for.back().size() == 1);  // the gradient that comes last follows the other
  CHECK(branches.joins.empty());
}

TEST_CASE("work that fills the card gains nothing from a neighbour") {
  for (const double work : {1.0, 1000.0}) {
    const std::vector<StepWork> steps(2, StepWork{work, {}});
    CHECK(in_branches(steps, 2).count == (work == 1 ? 2 : 1));
  }
  CHECK(work_us(3e6, 0) == Approx(1));
  CHECK(work_us(0, 5e7) == Approx(1));
}

TEST_CASE("whatever steps need is ordered, no wait is left that others imply, and who goes beside whom is known") {
  std::mt19937 random(1);
  int branched = 0;
  for (int round = 0; round < 400; ++round) {
    const std::vector<StepWork> steps = draw_steps(random);
    const int count = static_cast<int>(steps.size()), most = 2 + round % 2;
    const Branches branches = in_branches(steps, most);
    branched += branches.count > 1;
    CHECK(branches.count <= most);
    std::vector<int> sorted = branches.order;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == in_one_branch(steps.size()).order);
    for (int at = 1; at < count; ++at)
      CHECK(steps[branches.order[at - 1]].phase <= steps[branches.order[at]].phase);
    for (int at = 0; at <= start_of(steps); ++at) CHECK(branches.branch[at] == 0);
    REQUIRE(holds(branches, steps));

    for (int at = 0; at <= count; ++at) {
      const size_t waits = at == count ? branches.joins.size() : branches.waits_for[at].size();
      for (size_t wait = 0; wait < waits; ++wait) {
        Branches without = branches;
        std::vector<int>& list = at == count ? without.joins : without.waits_for[at];
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(wait));
        CHECK_FALSE(holds(without, steps));
      }
    }
    const Order order = order_of(branches, start_of(steps));
    for (int at = 0; at < count; ++at) {
      int last = at;
      for (int other = at + 1; other < count; ++other)
        if (!order.ordered(at, other)) last = other;
      CHECK(branches.beside[at] == last);
    }
  }
  CHECK(branched > 200);
}

// ---- plans ---------------------------------------------------------------------------------------------------

namespace {

struct Touched {
  const char* begin;
  int64_t bytes;
  bool writes;
};

// All memory of the device that a step touches but the feeds.
std::vector<Touched> touched_by(const Step& step) {
  std::vector<Touched> all;
  const auto touch = [&](const void* at, const TensorType& type, bool writes) {
    if (at) all.push_back({static_cast<const char*>(at), type.bytes(), writes});
  };
  for (size_t i = 0; i < step.inputs.size(); ++i) touch(step.inputs[i], step.input_types[i], step.writes_input(i));
  for (size_t i = 0; i < step.outputs.size(); ++i) touch(step.outputs[i], step.output_types[i], true);
  if (step.scratch) all.push_back({static_cast<const char*>(step.scratch), step.scratch_bytes, true});
  static const char fault_note = 0;
  if (step.explain) all.push_back({&fault_note, 1, true});
  if (step.writes_any()) all.push_back({&fault_note, 1, false});
  return all;
}

bool conflict(const std::vector<Touched>& a, const std::vector<Touched>& b) {
  for (const Touched& x : a)
    for (const Touched& y : b)
      if ((x.writes || y.writes) && x.begin < y.begin + y.bytes && y.begin < x.begin + x.bytes) return true;
  return false;
}

// Pairs of steps that touch the same bytes, one of them writing, and are not ordered; and taps that are copied while
// somebody may write what they copy.
int unordered(const Plan& plan) {
  const int count = static_cast<int>(plan.steps.size());
  const Order order(
      count, plan.start_place(), [&](int at) { return plan.steps[at].branch; },
      [&](int at) { return plan.steps[at].waits_for; }, plan.joins);
  std::vector<std::vector<Touched>> touched;
  for (const Step& step : plan.steps) touched.push_back(touched_by(step));
  int found = 0;
  for (int b = 0; b < count; ++b) {
    found += !order.ordered(b, order.end());
    for (int a = 0; a < b; ++a) found += !order.ordered(a, b) && conflict(touched[a], touched[b]);
    for (const PlannedTap& tap : plan.taps) {
      // A tap is copied behind its step, in its branch; one of a kept value or of none where a run begins.
      const int after = std::max(tap.after_step, plan.start_place());
      const Touched copy{static_cast<const char*>(tap.source), tap.type.bytes(), false};
      if (tap.source && b != after && !order.ordered(after, b) && (b > after || !order.ordered(b, after)))
        found += conflict({copy}, touched[b]);
    }
  }
  return found;
}

// A random network with everything that has to do with memory: aliases, outputs in place, scratch, layouts, several
// outputs, kept steps, taps, faults and updates.
struct RandomGraph {
  Graph graph;
  std::vector<ValueId> variables;

  RandomGraph(const Catalog& catalog, unsigned seed, int64_t elements) : graph(catalog) {
    std::mt19937 random(seed);
    const TensorType type = vec(elements);
    const auto below = [&](size_t n) { return random() % n; };
    std::vector<ValueId> values;
    for (int i = 0; i < 2; ++i) values.push_back(graph.feed(text("x", i), type));
    for (int i = 0; i < 4; ++i) variables.push_back(graph.variable(text("w", i), type));
    values.insert(values.end(), variables.begin(), variables.end());
    values.push_back(graph.constant(floats(std::vector<float>(elements, 1.5f)), "c"));
    const auto any = [&] { return values[values.size() - 1 - below(std::min<size_t>(values.size(), 9))]; };
    const char* const kOps[] = {"add", "mul", "square", "same", "by_way", "halves", "reversing", "ones", "picky"};
    for (size_t left = 8 + below(30); left > 0; --left) {
      const std::string op = kOps[below(std::size(kOps))];
      std::vector<ValueId> inputs{any()};
      if (op == "add" || op == "mul") inputs.push_back(any());
      if (op == "picky") inputs = {graph.append("square", inputs)[0]};
      const std::vector<ValueId> made = graph.append(op, inputs);
      // Small numbers stay small, or the two devices would agree on infinity alone.
      const std::vector<ValueId> bounded = graph.append("halves", {made[0]});
      values.insert(values.end(), bounded.begin(), bounded.end());
      if (below(6) == 0) graph.tap(made[0], graph.taps().size() + 1);
    }
    graph.tap(values.back(), 100);
    graph.tap(variables[0], 101);
    for (int i = 0; i < 2; ++i) graph.append("assign_sub", {variables[i], graph.append("halves", {any()})[0]});
  }
};

std::vector<float> numbers(float first) {
  std::vector<float> values(8);
  for (float& value : values) value = first += 0.0625f;
  return values;
}

// What three runs give, and the variables after them. Bits that are not numbers are equal to themselves.
template <class S>
std::vector<std::vector<uint32_t>> run(S& toy, unsigned seed, bool may_run_inline) {
  const RandomGraph random(toy.session.catalog(), seed, 8);
  const auto plan = toy.session.compile(random.graph, "job");
  for (const PlannedVariable& use : plan->variables) toy.session.write(use.variable->name, floats(numbers(0.5)));
  std::vector<std::vector<uint32_t>> bits;
  const auto add = [&](const Tensor& tensor) {
    bits.emplace_back(tensor.count());
    std::memcpy(bits.back().data(), tensor.data(), tensor.bytes());
  };
  for (int round = 0; round < 3; ++round)
    for (const Tensor& tensor : toy.call(plan, {floats(numbers(1)), floats(numbers(-1))}, may_run_inline)) add(tensor);
  for (const PlannedVariable& use : plan->variables) add(toy.session.read(use.variable->name));
  return bits;
}

}  // namespace

TEST_CASE("in any plan two steps that touch the same bytes are ordered, and memory grows by half at most") {
  int branched = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    CardSession toy, serial;
    serial.device->wants_branches = 1;
    const RandomGraph random(toy.session.catalog(), seed, seed % 2 == 0 ? 8 : 100000);
    const auto plan = toy.session.compile(random.graph, "job"), one = serial.session.compile(random.graph, "job");
    INFO(plan->dump());
    REQUIRE(unordered(*plan) == 0);
    REQUIRE(unordered(*one) == 0);
    CHECK(one->branch_count == 1);
    CHECK(plan->arena_bytes <= one->arena_bytes * 1.5 + (1 << 20));
    branched += plan->branch_count > 1;
    if (plan->branch_count == 1) CHECK(plan->dump() == one->dump());
  }
  CHECK(branched > 100);
}

TEST_CASE("branches change no bit of what a plan gives") {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    ToySession host;
    CardSession toy;
    toy.device->wants_recordings = seed % 3 != 0;
    CHECK(run(host, seed, true) == run(toy, seed, seed % 2 == 0));
    CHECK(toy.device->violations().empty());
  }
}

TEST_CASE("a chain of steps is the same plan whether there may be branches or not") {
  CardSession toy, serial;
  serial.device->wants_branches = 1;
  const auto compile = [](CardSession& toy) {
    Graph graph(toy.session.catalog());
    ValueId value = graph.feed("x", vec(1000));
    const char* const kOps[] = {"by_way", "square", "ones"};
    for (int i = 0; i < 30; ++i) value = graph.append(kOps[i % 3], {value})[0];
    graph.tap(value, 1);
    graph.append("assign_sub", {graph.variable("w", vec(1000)), value});
    return toy.session.compile(graph, "job");
  };
  const auto plan = compile(toy), one = compile(serial);
  CHECK(plan->branch_count == 1);
  CHECK(plan->joins.empty());
  CHECK(plan->dump() == one->dump());
  const auto offset = [](const Plan& plan, const void* at) {
    return static_cast<const char*>(at) - static_cast<const char*>(plan.arena.data());
  };
  for (size_t i = 0; i < plan->steps.size(); ++i) {
    for (size_t output = 0; output < plan->steps[i].outputs.size(); ++output)
      CHECK(offset(*plan, plan->steps[i].outputs[output]) == offset(*one, one->steps[i].outputs[output]));
    if (plan->steps[i].scratch) CHECK(offset(*plan, plan->steps[i].scratch) == offset(*one, one->steps[i].scratch));
  }
}

TEST_CASE("writes stay behind all that can fail, in every branch, and a fault in one keeps those of the other back") {
  for (const bool faulty : {false, true}) {
    CardSession toy;
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(2));
    std::vector<ValueId> ends;
    for (const std::string side : {"a", "b"}) {
      ValueId value = graph.append(side == "a" ? "add" : "plus", {x, x})[0];
      for (int i = 0; i < 4; ++i) value = graph.append("by_way", {value})[0];
      ends.push_back(graph.append("picky", {value}, {}, side, "net.lua:7")[0]);
    }
    for (size_t i = 0; i < 2; ++i) graph.append("assign_sub", {graph.variable(text("w", i), vec(2)), ends[i]});
    const auto plan = toy.session.compile(graph, "train_job");
    REQUIRE(plan->branch_count == 2);
    CHECK(plan->first_write == static_cast<int>(plan->steps.size()) - 2);
    for (int run = 0; run < 3; ++run) {
      if (faulty)
        CHECK_THROWS_WITH(toy.call(plan, {floats({1, -1})}), Catch::Contains("element 1 is -2"));
      else
        toy.call(plan, {floats({1, 1})});
    }
    for (const char* const w : {"w0", "w1"}) CHECK(values(toy.session.read(w))[0] == (faulty ? 0 : -6));
    CHECK(toy.device->violations().empty());
  }
}

TEST_CASE("a step that cannot be launched beside others fails its run alone, also while it is recorded") {
  CardSession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  ValueId a = x, b = x;
  for (int i = 0; i < 4; ++i) a = graph.append("square", {a})[0], b = graph.append("by_way", {b})[0];
  graph.tap(graph.append("add", {a, b})[0], 1);
  const auto plan = toy.session.compile(graph, "job");
  REQUIRE(plan->branch_count == 2);
  const auto call = [&] { return values(toy.call(plan, {floats({1, 2})})[0]); };
  const std::vector<float> right{2, 65538};
  CHECK(call() == right);
  for (int launches = 1; launches < 8; ++launches) {
    toy.device->refuses_launch_after = launches;
    CHECK_THROWS_WITH(call(), "the launch was refused");
    toy.device->refuses_launch_after = -1;
  }
  for (int run = 0; run < 3; ++run) CHECK(call() == right);
  CHECK(toy.device->replays == 3);
  CHECK(toy.device->violations().empty());
}
