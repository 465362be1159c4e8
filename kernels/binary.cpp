// Element-wise ops of two inputs, and `where`, with NumPy broadcasting. Gradients are composed of the same ops; what was
// repeated by broadcasting is summed by sum_to_shape.
#include <map>
#include <type_traits>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/formula.h"
#include "kernels/joined_products.h"
#include "kernels/slice.h"

namespace moonflow::elementwise {
namespace {

void check_one_dtype(const OpCall& call, int a, const char* a_name, int b, const char* b_name) {
  require(call.dtype(a) == call.dtype(b), ErrorCode::DtypeMismatch, a_name, " is ", call.type(a), ", ", b_name, " is ",
          call.type(b), "; cast one of them, both must have one dtype");
}

template <Dtypes dtypes>
std::vector<TensorType> infer_binary(const OpCall& call) {
  check_one_dtype(call, 0, "x", 1, "y");
  check_dtype(dtypes, call.type(0));
  return {{call.dtype(0), broadcast(call.shape(0), call.shape(1))}};
}

std::vector<TensorType> infer_comparison(const OpCall& call) {
  check_one_dtype(call, 0, "x", 1, "y");
  return {{DType::Int8, broadcast(call.shape(0), call.shape(1))}};
}

// The gradient of an input, summed over the axes along which that was repeated.
ValueId shrink(Term gradient, const Shape& shape) {
  return (gradient.shape() == shape ? gradient : gradient.op("sum_to_shape", {{"shape", shape.dims()}})).id();
}

Term where(Term condition, Term x, Term y) { return condition.op("where", x, y); }

struct Gradients {
  Term x, y;
};
// Those of the inputs before they are shrunk: by that of the output, the inputs, and the output.
using Rule = Gradients (*)(Term dy, Term x, Term y, Term out);

Grad grad_of(Rule rule) {
  if (!rule) return {};
  return [rule](GradCall& call) -> std::vector<ValueId> {
    const Term x(call, call.inputs[0]), y(call, call.inputs[1]);
    if (!is_floating(x.dtype())) return {kNone, kNone};
    const Gradients gradients = rule({call, call.grads[0]}, x, y, {call, call.outputs[0]});
    return {shrink(gradients.x, x.shape()), shrink(gradients.y, y.shape())};
  };
}

Gradients add_grad(Term dy, Term, Term, Term) { return {dy, dy}; }
Gradients subtract_grad(Term dy, Term, Term, Term) { return {dy, -dy}; }
Gradients multiply_grad(Term dy, Term x, Term y, Term) { return {dy * y, dy * x}; }
Gradients divide_grad(Term dy, Term, Term y, Term out) {
  const Term dx = dy / y;
  return {dx, -(dx * out)};
}
// out = x - floor(x / y) * y, and the floor is constant almost everywhere.
Gradients mod_grad(Term dy, Term x, Term y, Term) { return {dy, -(dy * x.op("floordiv", y))}; }
// The logarithm is taken of positive bases only: x ^ 2 of a negative x has a gradient for x, and 0 for the exponent. So
// has the infinity that 0 ^ -1 is, which times a logarithm of 0 would be a NaN. A base that is a NaN remains one.
// x ^ 0 is 1 whatever x is, so its slope is 0 everywhere, and not 0 * x ^ -1, which is a NaN where x is next to 0.
Gradients pow_grad(Term dy, Term x, Term y, Term out) {
  const Term zero = x.number(0), one = x.number(1);
  const Term exponent = where(y.op("equal", zero), one, y) - one;
  const Term has_no_logarithm = x.op("less_equal", zero);
  const Term base = where(has_no_logarithm, one, x), power = where(has_no_logarithm, zero, out);
  return {dy * (y * x.op("pow", exponent)), dy * (power * base.op("log"))};
}
// The origin has no angle, and a slope of 0 rather than 0 / 0: one point there among many is nothing to go by.
Gradients atan2_grad(Term dy, Term x, Term y, Term) {
  const Term distance = x.op("square") + y.op("square");
  const Term scaled = dy / where(distance.op("equal", x.number(0)), x.number(1), distance);
  return {scaled * y, -(scaled * x)};
}
Gradients choose_grad(Term dy, Term takes_x) {
  const Term zero = dy.number(0);
  return {where(takes_x, dy, zero), where(takes_x, zero, dy)};
}
Gradients maximum_grad(Term dy, Term x, Term y, Term) { return choose_grad(dy, x.op("greater_equal", y)); }
Gradients minimum_grad(Term dy, Term x, Term y, Term) { return choose_grad(dy, x.op("less_equal", y)); }
Gradients squared_difference_grad(Term dy, Term x, Term y, Term) {
  const Term dx = dy * (2 * (x - y));
  return {dx, -dx};
}
// 1 where x is not 0, so that y is read at all.
Term reads_y(Term x) { return x.op("not_equal", x.number(0)).op("cast", {{"dtype", x.dtype()}}); }
Gradients xdivy_grad(Term dy, Term x, Term y, Term) {
  return {dy * reads_y(x).op("xdivy", y), dy * (-x).op("xdivy", y).op("xdivy", y)};
}
Gradients xlogy_grad(Term dy, Term x, Term y, Term) { return {dy * reads_y(x).op("xlogy", y), dy * x.op("xdivy", y)}; }

// Ops that are not here have no gradient.
Rule rule_of(const std::string& name) {
  static const auto& rules =
      *new std::map<std::string, Rule>{{"add", add_grad},           {"subtract", subtract_grad},
                                       {"multiply", multiply_grad}, {"divide", divide_grad},
                                       {"mod", mod_grad},           {"pow", pow_grad},
                                       {"atan2", atan2_grad},       {"maximum", maximum_grad},
                                       {"minimum", minimum_grad},   {"squared_difference", squared_difference_grad},
                                       {"xdivy", xdivy_grad},       {"xlogy", xlogy_grad}};
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}

void add_binary(const Family& family, const BinaryRow& row, MakeLoop loop, Dtypes dtypes, bool is_bool) {
  OpDef op;
  op.name = row.name;
  op.lua = text("math.", row.name);
  op.doc = doc(row.says, row.formula, dtypes, "x and y broadcast against each other as in NumPy -> out",
               text(is_bool ? " -> int8, 1 for true" : "", "; x and y of one dtype",
                    is_bool ? ", or a script's integers of two, in the one that holds both" : "",
                    "\nerrors: shapes that do not broadcast; two dtypes"));
  op.inputs = {{"x"}, {"y"}};
  op.infer = is_bool                ? infer_comparison
             : dtypes == Dtypes::All ? infer_binary<Dtypes::All>
                                     : infer_binary<Dtypes::Floating>;
  op.grad = grad_of(rule_of(row.name));
  op.cpu = broadcast_kernel(loop);
  if (op.name == "add") {
    op.rewrites = {{"sum of padded slices", {"concat"}, join_slices},
                   {"sum of products", {"concat", "matmul", "add"}, join_products}};
  }
  family.add_link(op, loop);
  op.narrow = narrow_use(row.name);
  op.inplace = {{0, 0}, {0, 1}};
  const auto example = [&](DType dtype, const Shape& x, const Shape& y) {
    op.examples.push_back({{{dtype, x}, {dtype, y}}, {}, row.low, row.high});
  };
  example(DType::Float32, {2, 3}, {2, 3});
  example(DType::Float32, {4, 3}, {3});
  example(DType::Float32, {2, 3, 2, 2}, {3, 1, 1});
  example(DType::Float32, {3, 1}, {1, 4});
  example(DType::Float32, {}, {5});
  if (dtypes == Dtypes::All) {
    for (DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) example(dtype, {2, 3}, {3});
  }
  family.catalog.add(std::move(op));
}

template <class F, Dtypes dtypes>
void add_binary(const Family& family, const BinaryRow& row) {
  add_binary(family, row, make_binary_loop<F, dtypes>, dtypes,
             std::is_same_v<std::invoke_result_t<F, float, float>, bool>);
}

}  // namespace

void add_binary_ops(const Family& family) {
  for_each_binary([&](auto computes, const BinaryRow& row) {
    using Row = decltype(computes);
    add_binary<typename Row::Functor, Row::dtypes>(family, row);
  });
}

// ---- where ---------------------------------------------------------------------------------------------------

namespace {

std::vector<TensorType> infer_where(const OpCall& call) {
  require(call.dtype(0) == DType::Int8, ErrorCode::DtypeMismatch, "condition is ", call.type(0),
          ", it must be int8 as comparisons give it");
  check_one_dtype(call, 1, "x", 2, "y");
  return {{call.dtype(1), broadcast(call.shape(0), broadcast(call.shape(1), call.shape(2)))}};
}

std::vector<ValueId> where_grad(GradCall& call) {
  const Term condition(call, call.inputs[0]), x(call, call.inputs[1]), y(call, call.inputs[2]),
      dout(call, call.grads[0]);
  if (!is_floating(x.dtype())) return {kNone, kNone, kNone};
  const Term zero = y.number(0);
  return {kNone, shrink(where(condition, dout, zero), x.shape()), shrink(where(condition, zero, dout), y.shape())};
}

// Both sides are read before one is chosen, and steps are constants, so that a loop over neighbours is vectorised.
template <class T, class XStep, class YStep>
void choose(const int8_t* condition, const T* x, XStep x_step, const T* y, YStep y_step, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T of_x = x[i * x_step], of_y = y[i * y_step];
    out[i] = condition[i] != 0 ? of_x : of_y;
  }
}

template <class T>
Launch launch_where(const KernelCall& kernel) {
  const Broadcast<3> geometry({kernel.inputs[0].shape, kernel.inputs[1].shape, kernel.inputs[2].shape},
                              kernel.outputs[0].shape);
  return [geometry, count = kernel.outputs[0].count()](const LaunchCall& call) {
    const int8_t* condition = static_cast<const int8_t*>(call.inputs[0]);
    const T* x = static_cast<const T*>(call.inputs[1]);
    const T* y = static_cast<const T*>(call.inputs[2]);
    T* out = static_cast<T*>(call.outputs[0]);
    const auto& steps = geometry.axes.back().steps;
    parallel_for(count, cpu::kGrain, [=, &geometry](int64_t first, int64_t last) {
      geometry.for_each_run(first, last, [=](int64_t at, int64_t n, const std::array<int64_t, 3>& offsets) {
        const int8_t* c = condition + offsets[0];
        const T *a = x + offsets[1], *b = y + offsets[2];
        T* to = out + at;
        constexpr std::integral_constant<int64_t, 1> next;
        constexpr std::integral_constant<int64_t, 0> same;
        cpu::widest([&] {
          if (steps[0] == 0) {
            const T* const from = *c != 0 ? a : b;
            const int64_t step = *c != 0 ? steps[1] : steps[2];
            for (int64_t i = 0; i < n; ++i) to[i] = from[i * step];
          } else if (steps[1] == 0) {
            steps[2] == 0 ? choose(c, a, same, b, same, to, n) : choose(c, a, same, b, next, to, n);
          } else {
            steps[2] == 0 ? choose(c, a, next, b, same, to, n) : choose(c, a, next, b, next, to, n);
          }
        });
      });
    });
  };
}

}  // namespace

void add_where(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "where";
  op.doc = "Each element from x where the condition is true, else from y.\n"
           "  out = x if condition else y\n"
           "shapes: condition, x and y broadcast against each other as in NumPy -> out\n"
           "dtypes: condition int8 (every number but 0 is true); x and y of one dtype, any\n"
           "errors: shapes that do not broadcast; a condition that is not int8; two dtypes";
  op.inputs = {{"condition"}, {"x"}, {"y"}};
  op.infer = infer_where;
  op.grad = where_grad;
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit(call.outputs[0].dtype, [&](auto zero) { return launch_where<decltype(zero)>(call); });
  }};
  op.inplace = {{0, 1}, {0, 2}};
  op.examples = {{{{DType::Int8, {2, 3}}, {DType::Float32, {2, 3}}, {DType::Float32, {2, 3}}}, {}, -1, 1, 2},
                 {{{DType::Int8, {3, 1}}, {DType::Float32, {4}}, {DType::Float32, {}}}, {}, -1, 1, 2},
                 {{{DType::Int8, {4}}, {DType::Int64, {4}}, {DType::Int64, {1}}}, {}, -1, 1, 2}};
  catalog.add(std::move(op));
}

}  // namespace moonflow::elementwise
