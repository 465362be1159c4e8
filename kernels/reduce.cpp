// Reductions along axes: sums, extremes, moments, and the two helpers of training: the undo of broadcasting and the
// global norm. The loop is in cpu/reduce.h.
#include <limits>

#include "engine/autodiff.h"
#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/reduce.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace reduce {

Geometry::Geometry(const Shape& shape, const std::vector<bool>& reduced) : Groups(shape, reduced) {
  const bool one_run = columns == 1 && count <= kShort && folded.axes.size() == 1 && folded.axes[0].steps[0] == 1;
  if (one_run && kept.axes.size() == 1 && kept.axes[0].steps[0] == count) {
    column_step = count;
    columns = outputs;
    kept = Broadcast<1>({});
  }
  // A shape without elements has no groups, or outputs that nothing is folded into.
  chunks = (columns + kChunk - 1) / kChunk;
  groups = columns > 0 ? outputs / columns * chunks : 0;
  // Blocks give threads something to do where outputs are few, and each is worth a thread.
  if (groups > 0 && groups < 16) {
    const int64_t work = count * std::min(columns, kChunk);
    blocks = std::clamp<int64_t>(work / (2 * cpu::kGrain), 1, 64 / groups);
  }
}

namespace {

// ---- types ---------------------------------------------------------------------------------------------------

Shape reduced_shape(const Shape& shape, const std::vector<bool>& reduced, bool keepdims) {
  Shape out;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!reduced[axis]) out.push_back(shape[axis]);
    else if (keepdims) out.push_back(1);
  }
  return out;
}

enum class Accepts { All, Floating };

// Sums of what is narrow are taken in a wider type, so that they may be given as float32 as well.
DType sum_dtype(const OpCall& call) { return call.attrs.find("mixed") ? mixed_result(call) : call.dtype(0); }

template <Accepts accepts, bool is_bool, bool needs_elements>
std::vector<TensorType> infer(const OpCall& call) {
  require(accepts == Accepts::All || is_floating(call.dtype(0)), ErrorCode::DtypeMismatch,
          "needs float32 or float64, got ", call.type(0), "; cast it first");
  const Shape out =
      reduced_shape(call.shape(0), reduced_axes(call.attrs, call.shape(0)), call.attrs.flag("keepdims"));
  require(!needs_elements || out.count() == 0 || call.shape(0).count() > 0, ErrorCode::InvalidArgument,
          "there is nothing to choose from in x ", call.type(0));
  return {{is_bool ? DType::Int8 : sum_dtype(call), out}};
}

// ---- gradients -----------------------------------------------------------------------------------------------

// A reduction whose gradient is asked for.
struct Reduced {
  const Attrs& attrs;
  Term x, out, dy;

  explicit Reduced(GradCall& call)
      : attrs(call.attrs), x(call, call.inputs[0]), out(call, call.outputs[0]), dy(call, call.grads[0]) {}

  // `value`, which has the output's type, with its reduced axes as 1 so that it broadcasts against x.
  Term beside_x(Term value) const {
    return value.reshaped(reduced_shape(x.shape(), reduced_axes(attrs, x.shape()), true));
  }
  Term spread(Term value) const {
    const Term beside = beside_x(value);
    return beside.shape() == x.shape() ? beside : beside.op("broadcast_to", {{"shape", x.shape().dims()}});
  }
  double inputs_per_output() const {
    return static_cast<double>(x.shape().count()) / static_cast<double>(std::max<int64_t>(1, out.shape().count()));
  }
  Term deviation() const { return x - x.op("reduce_mean", {{"axis", attrs.ints("axis")}, {"keepdims", true}}); }
};

// dy times a number, which half precision may have few digits of, or none: of 1 / n where n is a million.
Term times(Term dy, double factor) {
  if (!is_narrow(dy.dtype())) return dy * dy.number(factor);
  return times(dy.op("cast", {{"dtype", DType::Float32}}), factor).op("cast", {{"dtype", dy.dtype()}});
}

Term sum_grad(const Reduced& of) { return of.spread(of.dy); }

Term mean_grad(const Reduced& of) { return of.spread(times(of.dy, 1 / of.inputs_per_output())); }

// Shared equally where several elements are the extreme one.
Term extreme_grad(const Reduced& of) {
  const Term chosen = of.x.op("equal", of.beside_x(of.out)).op("cast", {{"dtype", of.x.dtype()}});
  const Term winners = chosen.op("reduce_sum", {{"axis", of.attrs.ints("axis")}, {"keepdims", true}});
  return chosen * (of.beside_x(of.dy) / winners);
}

Term prod_grad(const Reduced& of) { return of.dy.op("reduce_prod_grad", of.x, {{"axis", of.attrs.ints("axis")}}); }

Term variance_grad(const Reduced& of) {
  const Term scaled = times(of.dy, 2 / of.inputs_per_output());
  return of.deviation() * of.beside_x(scaled);
}

// Where all elements are equal the deviation has its smallest value, in a kink; the gradient is 0 there.
Term std_grad(const Reduced& of) {
  const Term scaled = times(of.dy, 1 / of.inputs_per_output());
  return of.deviation() * of.beside_x(scaled * of.out.op("reciprocal_no_nan"));
}

// Where all elements are minus infinity so is the result, and the elements less that would be no numbers; the gradient
// is 0 there.
Term logsumexp_grad(const Reduced& of) {
  const Term is_none = of.out.op("equal", of.out.number(-std::numeric_limits<double>::infinity()));
  const Term shift = of.beside_x(is_none.op("where", of.out.number(0), of.out));
  return of.beside_x(of.dy) * (of.x - shift).op("exp");
}

using Rule = Term (*)(const Reduced& of);

Grad floating_grad(Rule rule) {
  if (!rule) return {};
  return [rule](GradCall& call) -> std::vector<ValueId> {
    return {is_floating(call.type(call.inputs[0]).dtype) ? rule(Reduced(call)).id() : kNone};
  };
}

// ---- kernels -------------------------------------------------------------------------------------------------

template <class Op, class T>
Launch launch_reduce(const Geometry& g, int64_t& scratch) {
  using Out = decltype(Op::finish(Op::kStart, 1, 0));
  if constexpr (std::is_same_v<typename Op::Center, NoCenter>) {
    scratch = scratch_bytes<Op>(g);
    return [g](const LaunchCall& call) {
      reduce<Op>(g, static_cast<const T*>(call.inputs[0]), nullptr, call.scratch, static_cast<Out*>(call.outputs[0]));
    };
  } else {
    const int64_t center_bytes = aligned(g.outputs * 8);
    scratch = center_bytes + std::max(scratch_bytes<Op>(g), scratch_bytes<typename Op::Center>(g));
    return [g, center_bytes](const LaunchCall& call) {
      const T* x = static_cast<const T*>(call.inputs[0]);
      double* centers = static_cast<double*>(call.scratch);
      void* partials = static_cast<char*>(call.scratch) + center_bytes;
      reduce<typename Op::Center>(g, x, nullptr, partials, centers);
      reduce<Op>(g, x, centers, partials, static_cast<Out*>(call.outputs[0]));
    };
  }
}

// An image whose channels are kept and whose places are reduced may come in blocks of channels, without padding: one
// more axis at the end, and the results lie in the same order.
void keep_blocks(LayoutCall& call) {
  const TensorType& x = call.input_types[0];
  const std::vector<bool> reduced = reduced_axes(call.attrs, x.shape);
  const bool reduces_places =
      x.shape.rank() > 2 && !reduced[1] && std::count(reduced.begin() + 2, reduced.end(), false) == 0;
  const bool is_dense = call.inputs[0].row_major() || call.inputs[0].bytes == x.bytes();
  if (!reduces_places || !is_dense || !cpu::channel_form(x, call.inputs[0], 1)) call.inputs[0] = {};
}

Geometry geometry_of(const KernelCall& call) {
  const Shape& shape = call.inputs[0].shape;
  const std::vector<bool> reduced = reduced_axes(call.attrs, shape);
  if (call.input_layouts[0].row_major()) return {shape, reduced};
  const int64_t lanes = cpu::channel_form(call.inputs[0], call.input_layouts[0], 1)->lanes;
  return {{shape[0], shape[1] / lanes, shape.count(2, shape.rank()), lanes}, {reduced[0], false, true, false}};
}

template <template <class> class Op, Accepts accepts>
Launch prepare(KernelCall& call) {
  const Geometry g = geometry_of(call);
  const auto launch = [&](auto zero) {
    return launch_reduce<Op<decltype(zero)>, decltype(zero)>(g, call.scratch_bytes);
  };
  if constexpr (accepts == Accepts::All) return visit(call.inputs[0].dtype, launch);
  else return visit_floating(call.inputs[0].dtype, launch);
}

// ---- the table -----------------------------------------------------------------------------------------------

struct Row {
  const char* name;
  const char* says;
  const char* formula;
  const char* dtypes;
  Rule grad = nullptr;
  double low = -1, high = 1;
  bool follows = false;  // automatic mixed precision
};

void add(Catalog& catalog, const Row& row, Infer infer, Kernel kernel, bool integers) {
  OpDef op;
  op.name = row.name;
  op.lua = text("math.", row.name);
  op.doc = text(row.says, "\n  ", row.formula,
                "\nshapes: x of any shape -> out without the reduced axes, or with 1 in their place (keepdims)"
                "\ndtypes: ", row.dtypes, "\nerrors: an axis outside x, or named twice");
  op.inputs = {{"x"}};
  op.attrs = {{"axis", Ints{}, "axes to reduce, negative ones count from the end; empty: all"},
              {"keepdims", false, "keep reduced axes with size 1"}};
  op.infer = std::move(infer);
  op.grad = floating_grad(row.grad);
  op.cpu = std::move(kernel);
  const auto example = [&](const Shape& shape, Ints axis, bool keepdims, DType dtype = DType::Float32) {
    op.examples.push_back({{{dtype, shape}}, {{"axis", axis}, {"keepdims", keepdims}}, row.low, row.high});
  };
  example({2, 3}, {}, false);
  example({2, 3}, {1}, false);
  example({4, 3}, {0}, true);
  example({2, 3, 2, 4}, {0, -2, -1}, false);
  example({2, 3, 4}, {1}, true);
  if (integers) {
    for (DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) example({3, 4}, {0}, false, dtype);
  }
  if (row.follows) {
    op.attrs.push_back(mixed_result_attr());
    op.narrow = follows_off_cpu();
    for (const char* mixed : {"float32", "bfloat16"}) {
      example({2, 3, 2, 4}, {2, 3}, false, DType::BFloat16);
      op.examples.back().attrs.set("mixed", std::string(mixed));
    }
  }
  catalog.add(std::move(op));
}

template <template <class> class Op, Accepts accepts, bool is_bool = false, bool needs_elements = false>
void add(Catalog& catalog, const Row& row) {
  add(catalog, row, infer<accepts, is_bool, needs_elements>, {prepare<Op, accepts>, keep_blocks},
      accepts == Accepts::All);
}

void add_reductions(Catalog& catalog) {
  constexpr Accepts all = Accepts::All, floating = Accepts::Floating;
  const char* const kept = "all -> the same; floats are computed in float64, integers wrap around";
  const char* const floats = "float32, float64 -> the same; summed in float64";
  add<Sum, all>(catalog, {"reduce_sum", "Sum along axes.", "out = sum(x)", kept, sum_grad, -1, 1, true});
  add<Mean, floating>(catalog,
                      {"reduce_mean", "Mean along axes; along those of an image, { 2, 3 }, global average pooling.",
                       "out = sum(x) / n", floats, mean_grad, -1, 1, true});
  add<Max, all, false, true>(
      catalog, {"reduce_max", "Largest element along axes. A NaN wins; equal elements share the gradient.",
                "out = max(x)", "all -> the same", extreme_grad});
  add<Min, all, false, true>(
      catalog, {"reduce_min", "Smallest element along axes. A NaN wins; equal elements share the gradient.",
                "out = min(x)", "all -> the same", extreme_grad});
  add<Prod, all>(catalog, {"reduce_prod", "Product along axes.", "out = prod(x)", kept, prod_grad, 0.5, 1.5});
  add<Any, all, true>(
      catalog, {"reduce_any", "Whether an element is not 0.", "out = any(x != 0)", "all -> int8, 1 for true"});
  add<All, all, true>(
      catalog, {"reduce_all", "Whether no element is 0.", "out = all(x != 0)", "all -> int8, 1 for true"});
  add<Variance, floating>(catalog, {"reduce_variance", "Variance of the elements along axes, not of a sample.",
                                    "out = sum((x - mean(x)) ^ 2) / n", floats, variance_grad});
  add<Std, floating>(catalog, {"reduce_std",
                               "Standard deviation of the elements along axes, not of a sample. Its gradient is 0 "
                               "where it is 0 itself.",
                               "out = sqrt(sum((x - mean(x)) ^ 2) / n)", floats, std_grad});
  add<LogSumExp, floating>(catalog, {"reduce_logsumexp", "Logarithm of the sum of exponentials, without overflow. "
                                     "The gradient is 0 where all elements are -infinity.",
                                     "out = log(sum(exp(x))), shifted by max(x)", floats, logsumexp_grad});
}

// ---- of integers, for arrays ---------------------------------------------------------------------------------

template <template <class> class Op>
void add_whole(Catalog& catalog, const char* name, const char* formula, DType result) {
  OpDef op = catalog.at("reduce_sum");
  op.name = name;
  op.lua = "";
  op.doc = text("Of integers, with a result that holds what comes out, and without a copy of x in that dtype.\n  ",
                formula, "\nshapes: as reduce_sum\ndtypes: int8, uint8, int32 -> ", result);
  op.attrs = {op.attrs[0], op.attrs[1]};
  op.infer = [result](const OpCall& call) -> std::vector<TensorType> {
    const DType dtype = call.dtype(0);
    require(dtype == DType::Int8 || dtype == DType::UInt8 || dtype == DType::Int32, ErrorCode::DtypeMismatch,
            "needs int8, uint8 or int32, got ", call.type(0));
    return {{result, infer<Accepts::All, false, false>(call)[0].shape}};
  };
  op.grad = {};
  op.narrow = {};
  op.rewrites = {};
  op.examples = {};
  for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32})
    op.examples.push_back({{{dtype, {3, 4, 2}}}, {{"axis", Ints{0, 2}}}});
  op.cpu = {[](KernelCall& call) {
              const Geometry g = geometry_of(call);
              return visit_whole(call.inputs[0].dtype, [&](auto zero) {
                return launch_reduce<Op<decltype(zero)>, decltype(zero)>(g, call.scratch_bytes);
              });
            },
            keep_blocks};
  catalog.add(std::move(op));
}

void add_whole_reductions(Catalog& catalog) {
  add_whole<WholeSum>(catalog, "whole_sum", "out = sum(x)", DType::Int64);
  add_whole<WholeProd>(catalog, "whole_prod", "out = prod(x)", DType::Int64);
  add_whole<WholeMean>(catalog, "whole_mean", "out = sum(x) / n", DType::Float64);
  add_whole<WholeVariance>(catalog, "whole_variance", "out = sum((x - mean(x)) ^ 2) / n", DType::Float64);
  add_whole<WholeStd>(catalog, "whole_std", "out = sqrt(sum((x - mean(x)) ^ 2) / n)", DType::Float64);
}

// ---- reduce_prod_grad ----------------------------------------------------------------------------------------

// dx = dy * (product of the others). A zero among the others leaves 0, which dividing the product by x would not give.
template <class T>
Launch launch_prod_grad(const Groups& g) {
  return [g](const LaunchCall& call) {
    const T* dy = static_cast<const T*>(call.inputs[0]);
    const T* x = static_cast<const T*>(call.inputs[1]);
    T* dx = static_cast<T*>(call.outputs[0]);
    const int64_t step = g.folded.axes.back().steps[0];
    cpu::parallel_for(g.outputs, std::max<int64_t>(1, cpu::kGrain / std::max<int64_t>(1, g.count)),
                      [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        const int64_t origin = g.kept.offsets_of(k / g.columns)[0] + k % g.columns;
        double product = 1;  // of what is not 0
        int64_t zeros = 0;
        const auto each = [&](const auto& work) {
          g.folded.for_each_run(0, g.count, [&](int64_t, int64_t n, const std::array<int64_t, 1>& offsets) {
            for (int64_t i = 0; i < n; ++i) work(origin + offsets[0] + i * step);
          });
        };
        each([&](int64_t i) {
          if (x[i] == 0) ++zeros;
          else product *= x[i];
        });
        each([&](int64_t i) {
          const bool other_zero = zeros > (x[i] == 0 ? 1 : 0);
          dx[i] = static_cast<T>(other_zero ? 0 : x[i] == 0 ? dy[k] * product : dy[k] * (product / x[i]));
        });
      }
    });
  };
}

// The product as a tree of halves, whose gradient the engine makes. It divides by nothing, so zeros need no word, and
// what is small beside the others costs no digits; and it can be differentiated as often as one likes.
std::vector<Term> prod_grad_formula(GradCall& call, const Terms& inputs) {
  const Term &dy = *inputs[0], &x = *inputs[1];
  const std::vector<bool> reduced = reduced_axes(call.attrs, x.shape());
  const Shape kept = reduced_shape(x.shape(), reduced, true);
  if (x.shape().count() == 0) return {dy.reshaped(kept) * x};
  Term product = x;
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    while (reduced[axis] && product.shape()[axis] > 1) {
      if (product.shape()[axis] % 2 != 0) {
        Ints paddings(2 * product.shape().rank(), 0);
        paddings[2 * axis + 1] = 1;
        product = product.op("pad", {{"paddings", paddings}, {"constant_value", 1.0}});
      }
      const auto half = [&](int64_t place) {
        Ints begin(product.shape().rank(), 0), size = product.shape().dims();
        size[axis] /= 2;
        begin[axis] = place * size[axis];
        return product.op("slice", {{"begin", begin}, {"size", size}});
      };
      product = half(0) * half(1);
    }
  }
  return {Term(call, gradients(call.graph, {product.id()}, {dy.reshaped(kept).id()}, {x.id()})[0])};
}

OpDef prod_grad_op() {
  OpDef op;
  op.name = "reduce_prod_grad";
  op.doc =
      "Gradient of reduce_prod.\n"
      "  dx[i] = dy * product of all x[j] with j != i\n"
      "shapes: dy of the output's shape, with or without kept axes, x -> dx of x's shape\n"
      "dtypes: float32, float64";
  op.inputs = {{"dy"}, {"x"}};
  op.outputs = {"dx"};
  op.attrs = {{"axis", Ints{}, "axes that were reduced; empty: all"}};
  op.infer = [](const OpCall& call) {
    const Shape& x = call.shape(1);
    require(call.type(0).count() == reduced_shape(x, reduced_axes(call.attrs, x), false).count(),
            ErrorCode::ShapeMismatch, "dy is ", call.type(0), ", x is ", call.type(1));
    require(call.dtype(0) == call.dtype(1) && is_floating(call.dtype(1)), ErrorCode::DtypeMismatch, "dy is ",
            call.type(0), ", x is ", call.type(1));
    return std::vector<TensorType>{call.type(1)};
  };
  op.grad = gradient_of(prod_grad_formula);
  op.cpu = {[](KernelCall& call) -> Launch {
    const Shape& x = call.inputs[1].shape;
    const Groups g(x, reduced_axes(call.attrs, x));
    return visit_floating(call.inputs[1].dtype, [&](auto zero) { return launch_prod_grad<decltype(zero)>(g); });
  }};
  op.examples = {{{{DType::Float32, {2}}, {DType::Float32, {2, 3}}}, {{"axis", Ints{1}}}},
                 {{{DType::Float32, {}}, {DType::Float32, {2, 3}}}},
                 {{{DType::Float32, {3}}, {DType::Float32, {2, 3, 5}}}, {{"axis", Ints{0, 2}}}}};
  return op;
}

// ---- sum_to_shape --------------------------------------------------------------------------------------------

OpDef sum_to_shape() {
  OpDef op;
  op.name = "sum_to_shape";
  op.doc =
      "Undoes broadcasting: sums the axes along which a value of the given shape would be repeated to give x.\n"
      "  out = sum of x over those axes\n"
      "shapes: x -> shape\n"
      "dtypes: all -> the same; floats are summed in float64\n"
      "errors: a shape that does not broadcast to x";
  op.inputs = {{"x"}};
  op.attrs = {{"shape", Ints{}, "shape of out", true}, mixed_result_attr()};
  op.narrow = follows_off_cpu();
  op.infer = [](const OpCall& call) {
    broadcast_axes(call.shape(0), call.attrs.ints("shape"));
    return std::vector<TensorType>{{sum_dtype(call), Shape(call.attrs.ints("shape"))}};
  };
  op.grad = [](GradCall& call) -> std::vector<ValueId> {
    const TensorType x = call.type(call.inputs[0]);
    if (!is_floating(x.dtype)) return {kNone};
    return {call.op("broadcast_to", {call.grads[0]}, {{"shape", x.shape.dims()}})};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const Shape& shape = call.inputs[0].shape;
    const Geometry g(shape, broadcast_axes(shape, call.attrs.ints("shape")));
    return visit(call.inputs[0].dtype, [&](auto zero) {
      return launch_reduce<Sum<decltype(zero)>, decltype(zero)>(g, call.scratch_bytes);
    });
  }};
  op.examples = {{{{DType::Float32, {5, 3}}}, {{"shape", Ints{3}}}},
                 {{{DType::Float32, {2, 3, 2, 4}}}, {{"shape", Ints{3, 1, 1}}}},
                 {{{DType::Float32, {2, 3}}}, {{"shape", Ints{2, 1}}}},
                 {{{DType::Float32, {4}}}, {{"shape", Ints{}}}},
                 {{{DType::Int32, {4, 2}}}, {{"shape", Ints{2}}}},
                 {{{DType::BFloat16, {2, 3, 2, 4}}}, {{"shape", Ints{3, 1, 1}}, {"mixed", std::string("float32")}}}};
  return op;
}

// ---- global_norm ---------------------------------------------------------------------------------------------

template <class T>
Launch launch_norm(KernelCall& kernel) {
  std::vector<Geometry> parts;
  for (const TensorType& type : kernel.inputs) {
    parts.emplace_back(type.shape, std::vector<bool>(type.shape.rank(), true));
    kernel.scratch_bytes = std::max(kernel.scratch_bytes, scratch_bytes<SumOfSquares<T>>(parts.back()));
  }
  return [parts](const LaunchCall& call) {
    double total = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      double sum = 0;
      reduce<SumOfSquares<T>>(parts[i], static_cast<const T*>(call.inputs[i]), nullptr, call.scratch, &sum);
      total += sum;
    }
    *static_cast<T*>(call.outputs[0]) = static_cast<T>(std::sqrt(total));
  };
}

OpDef global_norm() {
  OpDef op;
  op.name = "global_norm";
  op.doc =
      "Length of several values taken as one vector.\n"
      "  out = sqrt(sum of all x[i] ^ 2)\n"
      "shapes: any number of x of any shapes -> ()\n"
      "dtypes: float32, float64, one for all -> the same; summed in float64\n"
      "errors: no x; two dtypes";
  op.inputs = {{"x", InputDef::Many}};
  op.infer = [](const OpCall& call) {
    require(call.count() > 0, ErrorCode::InvalidArgument, "needs at least one value");
    for (int i = 0; i < call.count(); ++i) {
      require(is_floating(call.dtype(i)) && call.dtype(i) == call.dtype(0), ErrorCode::DtypeMismatch,
              "needs float32 or float64 values of one dtype, got ", call.type(0), " and ", call.type(i));
    }
    return std::vector<TensorType>{{call.dtype(0), Shape{}}};
  };
  op.grad = [](GradCall& call) {
    const ValueId scale = call.op("xdivy", {call.grads[0], call.outputs[0]});
    std::vector<ValueId> gradients;
    for (const ValueId x : call.inputs) gradients.push_back(call.op("multiply", {x, scale}));
    return gradients;
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_norm<decltype(zero)>(call); });
  }};
  op.examples = {{{{DType::Float32, {2, 3}}, {DType::Float32, {4}}, {DType::Float32, {}}}}, {{{DType::Float32, {5}}}}};
  return op;
}

}  // namespace
}  // namespace reduce

void add_reduce(Catalog& catalog) {
  reduce::add_reductions(catalog);
  reduce::add_whole_reductions(catalog);
  catalog.add(reduce::prod_grad_op());
  catalog.add(reduce::sum_to_shape());
  catalog.add(reduce::global_norm());
}

}  // namespace moonflow
