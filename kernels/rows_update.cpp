// Updates of the rows of a table that a step has picked: rows_sgd_update and rows_adagrad_update, made by fusion, which
// give what gather_grad and the update of all rows give, and rows_adam_update, which is LazyAdam. A table of words has
// a hundred thousand rows or a million, of which a step picks some thousand: a gradient of all of them would be zeros
// to write and to read, and the others would be written as they are.
//
// picks_by_row has put the picks of a row side by side, in their order, and has found bad indices before anything is
// written. So rows are shared out among threads, each sum has one order, and no two write the same row.
#include "kernels/rows_update.h"

#include <algorithm>

#include "engine/graph.h"
#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/update_loop.h"
#include "kernels/elementwise.h"

namespace moonflow {
namespace {

// ---- inference -------------------------------------------------------------------------------------------------

template <class Rule>
Infer infer_rows(const OpDef& op) {
  return [inputs = op.inputs](const OpCall& call) -> std::vector<TensorType> {
    const TensorType& variable = call.type(0);
    require(variable.shape.rank() > 0, ErrorCode::ShapeMismatch, "the variable is a scalar, it has no rows");
    require_floating(call, 0, "variable");
    for (int i = 1; i < Rule::kWritten; ++i) require_type(call, i, inputs[i].name.c_str(), variable);
    constexpr int kIndices = RowsInput<Rule>::kIndices, kOrder = RowsInput<Rule>::kOrder;
    require_indices(call, kIndices, "indices");
    Shape rows = call.shape(kIndices);
    for (int axis = 1; axis < variable.shape.rank(); ++axis) rows.push_back(variable.shape[axis]);
    require_type(call, Rule::kGradient, "dy", {variable.dtype, rows});
    for (int i = Rule::kGradient + 1; i < Rule::kInputs; ++i)
      if (call.has(i))
        require_type(call, i, inputs[i].name.c_str(), {inputs[i].name == "step" ? DType::Int64 : DType::Float32, {}});
    require_type(call, kOrder, "order", {DType::Int64, {call.shape(kIndices).count()}});
    return {};
  };
}

// ---- CPU -------------------------------------------------------------------------------------------------------

// Goes through picks in the order of their rows: body(row, pick, end) has the places [pick, end) of one row's picks. A
// row belongs to the thread that has its first one.
template <class Index, class Body>
void each_picked_row(const Index* indices, const int64_t* order, int64_t picks, int64_t columns, const Body& body) {
  const auto row_of = [=](int64_t place) { return static_cast<int64_t>(indices[order[place]]); };
  cpu::parallel_for(picks, cpu::kGrain / columns + 1, [&](int64_t first, int64_t last) {
    while (first > 0 && first < last && row_of(first) == row_of(first - 1)) ++first;
    while (first < last) {
      const int64_t row = row_of(first);
      int64_t end = first + 1;
      while (end < picks && row_of(end) == row) ++end;
      body(row, order + first, order + end);
      first = end;
    }
  });
}

template <class Rule, class T>
class UpdateRows {
 public:
  explicit UpdateRows(const KernelCall& call)
      : rule_(call.attrs),
        indices_(call.inputs[RowsInput<Rule>::kIndices].dtype),
        picks_(call.inputs[RowsInput<Rule>::kIndices].count()),
        columns_(call.inputs[0].shape.count(1, call.inputs[0].shape.rank())) {}

  void operator()(const LaunchCall& at) const {
    if (columns_ == 0 || !update::changes<Rule>(at.inputs)) return;
    visit(indices_, [&](auto zero) { go_through(at, at.input<decltype(zero)>(RowsInput<Rule>::kIndices)); });
  }

 private:
  template <class Index>
  void go_through(const LaunchCall& at, const Index* indices) const {
    const auto step = rule_.template step<T, double>(at.inputs);
    each_picked_row(
        indices, at.input<int64_t>(RowsInput<Rule>::kOrder), picks_, columns_,
        [&](int64_t row, const int64_t* pick, const int64_t* end) { update_row(step, at, row, pick, end); });
  }

  // The sum of the picks is made from 0 on, as gather_grad makes it.
  template <class Step>
  void update_row(const Step& step, const LaunchCall& at, int64_t row, const int64_t* pick, const int64_t* end) const {
    constexpr int64_t kSums = 256;
    T sums[kSums];
    const T* const dy = at.input<T>(Rule::kGradient);
    for (int64_t column = 0; column < columns_; column += kSums) {
      const int64_t count = std::min(kSums, columns_ - column);
      std::fill_n(sums, count, T(0));
      for (const int64_t* p = pick; p < end; ++p) {
        const T* const from = dy + *p * columns_ + column;
        for (int64_t i = 0; i < count; ++i) sums[i] = functor::Add()(sums[i], from[i]);
      }
      T* written[Rule::kWritten];
      for (int i = 0; i < Rule::kWritten; ++i) written[i] = static_cast<T*>(at.inputs[i]) + row * columns_ + column;
      cpu::move_elements<Rule>(step, written, sums, count);
    }
  }

  Rule rule_;
  DType indices_;
  int64_t picks_, columns_;
};

template <class Rule>
Launch prepare_rows(KernelCall& call) {
  return visit_floating(call.inputs[0].dtype,
                        [&](auto zero) -> Launch { return UpdateRows<Rule, decltype(zero)>(call); });
}

template <class T>
void sum_row(const T* dy, T* out, int64_t columns, const int64_t* pick, const int64_t* end) {
  T* const sum = out + *pick * columns;
  std::copy_n(dy + *pick * columns, columns, sum);
  while (++pick < end) {
    const T* const from = dy + *pick * columns;
    for (int64_t i = 0; i < columns; ++i) sum[i] += from[i];
    std::fill_n(out + *pick * columns, columns, T(0));
  }
}

Launch prepare_sums(KernelCall& call) {
  const int64_t picks = call.inputs[1].count(), columns = picks == 0 ? 0 : call.inputs[0].count() / picks;
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [=, dtype = call.inputs[1].dtype](const LaunchCall& at) {
      using T = decltype(zero);
      if (columns == 0) return;
      visit(dtype, [&](auto index) {
        each_picked_row(at.input<decltype(index)>(1), at.input<int64_t>(2), picks, columns,
                        [&](int64_t, const int64_t* pick, const int64_t* end) {
                          sum_row(at.input<T>(0), at.output<T>(0), columns, pick, end);
                        });
      });
    };
  });
}

// ---- the ops ---------------------------------------------------------------------------------------------------

const char* const kShapes =
    "shapes: variable (rows, columns...), indices (i...), dy (i..., columns...), order (number of indices)\n";
const char* const kDtypes =
    "dtypes: float32 or float64, one for variable and dy; indices of an integer dtype, all in [0, rows), order int64, "
    "of picks_by_row;\n  learning_rate float32 ()";
const char* const kFactorDoc = "; factor float32 (), multiplies the gradient; 0: nothing is changed; left out: 1";

const AttrDef kScale{"gradient_scale", 1.0, "factor of the gradient"};

// An example's integers must be in the order of the rows: all alike, the first row picked several times.
const int64_t kAlike = 1;
TensorType places(int64_t count) { return {DType::Int64, {count}}; }

void add_rows_sgd_update(Catalog& catalog) {
  OpDef op;
  op.name = "rows_sgd_update";
  op.doc = text(
      "Gradient descent of the rows that indices name; made by fusion.\n"
      "  variable[r] -= learning_rate * gradient_scale * sum of dy[i...] over all i with indices[i...] == r\n"
      "The sum has the order of i and is made before it is scaled, so a row that is named gets the bits that\n"
      "gather_grad and sgd_update give it on the CPU, for any number of threads; a card agrees within the roundings\n"
      "of its sums. A row that is not named is neither read nor written. These would give it its value back, but for\n"
      "a learning_rate or a factor that is infinite or NaN, with which they make every row NaN.\n",
      kShapes, kDtypes, kFactorDoc);
  op.inputs = {{"variable"}, {"dy"}, {"learning_rate"}, {"factor", InputDef::Optional}, {"indices"}, {"order"}};
  op.outputs = {};
  op.attrs = {kScale};
  op.infer = infer_rows<update::Descent>(op);
  op.writes = {0};
  op.cpu = {prepare_rows<update::Descent>};
  const TensorType rate = f32({});
  op.examples = {
      {{f32({5, 3}), f32({2, 2, 3}), rate, rate, i32({2, 2}), places(4)}, {{"gradient_scale", 0.1}}, -1, 1, kAlike},
      {{f32({4}), f32({1}), rate, rate, {DType::UInt8, {1}}, places(1)}, {}, -1, 1, kAlike},
      {{f32({2, 300}), f32({5, 300}), rate, rate, {DType::Int64, {5}}, places(5)}, {}, -1, 1, kAlike}};
  catalog.add(op);
}

void add_rows_adagrad_update(Catalog& catalog) {
  OpDef op;
  op.name = "rows_adagrad_update";
  op.doc = text(
      "Adagrad of the rows that indices name, by the sum of dy[i...] over all i with indices[i...] == r, in the order\n"
      "of i; made by fusion. A row that is named gets the bits that gather_grad and adagrad_update give it, and its\n"
      "square_sum too; the others are neither read nor written.\n",
      kShapes, kDtypes, kFactorDoc);
  op.inputs = {{"variable"}, {"square_sum"}, {"dy"}, {"learning_rate"}, {"factor", InputDef::Optional},
               {"indices"},  {"order"}};
  op.outputs = {};
  op.attrs = catalog.at("adagrad_update").attrs;
  op.infer = infer_rows<update::Adagrad>(op);
  op.writes = {0, 1};
  op.cpu = {prepare_rows<update::Adagrad>};
  const TensorType x = f32({4, 3}), rate = f32({});
  op.examples = {
      {{x, x, f32({2, 3, 3}), rate, rate, i32({2, 3}), places(6)}, {{"gradient_scale", 0.5}}, 0.1, 1, kAlike}};
  catalog.add(op);
}

void add_rows_adam_update(Catalog& catalog) {
  OpDef op;
  op.name = "rows_adam_update";
  op.doc = text(
      "Adam of the rows that indices name, which is LazyAdam: of these as adam_update gives it with the sum of\n"
      "dy[i...] over all i with indices[i...] == r, in the order of i, as the gradient of row r. A row that is not\n"
      "named stays as it is, and so do its m and v.\n",
      kShapes, kDtypes, ", step int64 (), from 0", kFactorDoc);
  op.inputs = {{"variable"}, {"m"},    {"v"}, {"dy"}, {"learning_rate"}, {"step"}, {"factor", InputDef::Optional},
               {"indices"},  {"order"}};
  op.outputs = {};
  op.attrs = catalog.at("adam_update").attrs;
  op.infer = infer_rows<update::Adam>(op);
  op.writes = {0, 1, 2};
  op.cpu = {prepare_rows<update::Adam>};
  const TensorType x = f32({4, 3}), rate = f32({}), step{DType::Int64, {}};
  op.examples = {
      {{x, x, x, f32({2, 3, 3}), rate, step, rate, i32({2, 3}), places(6)}, {{"gradient_scale", 0.5}}, 0.1, 1, kAlike}};
  catalog.add(op);
}

void add_sum_picks(Catalog& catalog) {
  OpDef op;
  op.name = "sum_picks";
  op.doc =
      "The picks of each row as one: their sum, in their order, in the place of the first, and 0 in those of the\n"
      "others. So what is to be done to the rows of a gradient is done to as many as have been picked.\n"
      "  out[i] = sum of dy[j] over all j with indices[j] == indices[i] where there is none before i, else 0\n"
      "shapes: dy (i..., columns...), indices (i...), order (number of indices) -> out of dy's shape\n"
      "dtypes: dy float32, float64 -> the same; indices of an integer dtype, order int64, of picks_by_row";
  op.inputs = {{"dy"}, {"indices"}, {"order"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "dy");
    require_indices(call, 1, "indices");
    const Shape &dy = call.shape(0), &indices = call.shape(1);
    require(dy.rank() >= indices.rank() && std::equal(indices.begin(), indices.end(), dy.begin()),
            ErrorCode::ShapeMismatch, "dy is ", dy, ", it needs a row for each of indices ", indices);
    require_type(call, 2, "order", {DType::Int64, {indices.count()}});
    return {call.type(0)};
  };
  op.cpu = {prepare_sums};
  // More than one place needs an order that has each of them once, which is not drawn: see the tests of this file.
  op.examples = {{{f32({1, 3}), i32({1}), places(1)}, {}, -1, 1, kAlike},
                 {{f32({1, 1}), {DType::UInt8, {1, 1}}, places(1)}, {}, -1, 1, kAlike}};
  catalog.add(op);
}

}  // namespace

// ---- fusion ----------------------------------------------------------------------------------------------------

template <int gradient>
bool fuse_rows_into_update(Rewriter& graph, NodeId id) {
  const Node& update = graph.node(id);
  if (update.inputs.size() != update.op->inputs.size()) return false;  // of several variables
  const ValueId table = update.inputs[0];
  const NodeId sum = graph.made_by(update.inputs[gradient], "gather_grad");
  if (sum == kNone || graph.sole_reader(update.inputs[gradient]) != id) return false;
  const Node& gather_grad = graph.node(sum);
  const ValueId dy = gather_grad.inputs[0], indices = gather_grad.inputs[1];
  const Shape& shape = graph.type(table).shape;
  if (wrap_axis(gather_grad.attrs.integer("axis"), shape.rank()) != 0) return false;
  // Writers come last, so dy lives until then: it must be no larger than the gradient that need not be stored.
  const int64_t rows = shape[0], picks = graph.type(indices).count();
  if (picks > rows) return false;
  if (!may_join_update(graph, {dy, indices})) return false;

  std::vector<NodeId> replaced{id, sum};
  ValueId order = kNone;
  for (const NodeId reader : graph.readers(indices)) {  // tables may be picked from by the same indices
    const Node& node = graph.node(reader);
    if (node.op->name == "picks_by_row" && node.attrs.integer("rows") == rows) order = node.outputs[0];
  }
  if (order == kNone) {
    order = graph.add_value({DType::Int64, {picks}});
    graph.fuse({sum}, "picks_by_row", {indices}, {{"rows", rows}}, {order});
    replaced = {id};
  }
  std::vector<ValueId> inputs = update.inputs;
  inputs[gradient] = dy;
  inputs.insert(inputs.end(), {indices, order});
  graph.fuse(replaced, "rows_" + update.op->name, std::move(inputs), update.attrs, {});
  return true;
}
template bool fuse_rows_into_update<update::Descent::kGradient>(Rewriter&, NodeId);
template bool fuse_rows_into_update<update::Adagrad::kGradient>(Rewriter&, NodeId);

void add_rows_update(Catalog& catalog) {
  add_rows_sgd_update(catalog);
  add_rows_adagrad_update(catalog);
  add_rows_adam_update(catalog);
  add_sum_picks(catalog);
}

}  // namespace moonflow
