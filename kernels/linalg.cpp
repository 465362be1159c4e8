// Square matrices: cholesky, triangular_solve, solve, inv, det and slogdet, of one or of each of a stack.
//
// All compute in float64 in scratch memory (cpu/factors.h). Threads share the rows of a matrix, of a stack the
// matrices.
//
// The gradients are those of Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
// differentiation", 2008, and of Murray, "Differentiation of the Cholesky decomposition", 2016. They are made of the
// same ops, so they have gradients too.
#include <algorithm>
#include <cmath>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/factors.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- types -----------------------------------------------------------------------------------------------------

void require_square(const OpCall& call, const char* what) {
  require_floating(call, 0, what);
  const Shape& shape = call.shape(0);
  const int rank = shape.rank();
  require(rank >= 2 && shape[rank - 1] == shape[rank - 2], ErrorCode::ShapeMismatch, what, " is ", call.type(0),
          ", wanted a square matrix, or a stack of them: (..., n, n)");
}

std::vector<TensorType> infer_square(const OpCall& call) {
  require_square(call, "x");
  return {call.type(0)};
}

// One number of each matrix.
TensorType infer_of_each(const OpCall& call) {
  require_square(call, "x");
  const Ints& dims = call.shape(0).dims();
  return {call.dtype(0), Shape(Ints(dims.begin(), dims.end() - 2))};
}

std::vector<TensorType> infer_solution(const OpCall& call) {
  require_square(call, "matrix");
  const TensorType &matrix = call.type(0), &rhs = call.type(1);
  require(rhs.dtype == matrix.dtype, ErrorCode::DtypeMismatch, "matrix is ", matrix, ", rhs is ", rhs,
          "; cast one of them");
  const int rank = matrix.shape.rank();
  bool fits = rhs.shape.rank() == rank;
  for (int axis = 0; fits && axis < rank - 1; ++axis) fits = rhs.shape[axis] == matrix.shape[axis];
  require(fits, ErrorCode::ShapeMismatch, "matrix is ", matrix, " and rhs is ", rhs,
          ", which must have its axes but the last one; a vector is one column, flow.expand_dims(rhs, -1)");
  return {rhs};
}

// A value's matrices: `count` of (rows, columns).
struct Stack {
  int64_t count, rows, columns;

  explicit Stack(const TensorType& type)
      : count(type.shape.count(0, type.shape.rank() - 2)),
        rows(type.shape[type.shape.rank() - 2]),
        columns(type.shape.back()) {}
  int64_t elements() const { return rows * columns; }
};

// ---- kernels ---------------------------------------------------------------------------------------------------

template <class To, class From>
void copy(const From* from, int64_t count, To* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

template <class T>
void copy_turned(const T* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) to[j * n + i] = from[i * n + j];
}

// Memory for each matrix of a stack: so many doubles and integers, the last of which is -1 or says what is wrong.
struct Room {
  int64_t doubles, integers;

  void ask(KernelCall& call, const Stack& stack) const {
    call.scratch_bytes = checked_product(stack.count, 8 * (doubles + integers));
  }
  double* numbers(const LaunchCall& launch, int64_t i) const {
    return static_cast<double*>(launch.scratch) + i * (doubles + integers);
  }
  int64_t* places(const LaunchCall& launch, int64_t i) const {
    return reinterpret_cast<int64_t*>(numbers(launch, i) + doubles);
  }
  int64_t& wrong(const LaunchCall& launch, int64_t i) const { return places(launch, i)[integers - 1]; }
};

// Calls body(i) for each matrix of a stack.
template <class Body>
void for_each_matrix(const Stack& stack, const Body& body) {
  const int64_t operations = stack.rows * stack.rows * stack.rows;
  cpu::parallel_for(stack.count, cpu::kGrain / std::max<int64_t>(operations, 1) + 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) body(i);
  });
}

// Fails for the first matrix with which something is wrong; why(Room::wrong) says what. Where all is well no text is
// made: a launch allocates nothing, and text would take longer than a small matrix.
template <class Why>
void check(const Stack& stack, const Room& room, const LaunchCall& launch, const Why& why) {
  for (int64_t i = 0; i < stack.count; ++i) {
    const int64_t wrong = room.wrong(launch, i);
    if (wrong < 0) continue;
    fail(ErrorCode::InvalidArgument, "the matrix", stack.count == 1 ? "" : text(" at ", i, " of the stack"), " is ",
         why(wrong));
  }
}

std::string singular(int64_t) { return "singular"; }

std::string not_positive_definite(int64_t row) {
  return text("not positive definite, as its first ", row + 1, row == 0 ? " row and column" : " rows and columns",
              " show; where rounding is to blame, a small number added to its diagonal helps");
}

Launch prepare_cholesky(KernelCall& call) {
  const Stack stack(call.inputs[0]);
  const int64_t n = stack.rows;
  const Room room{n * n, 1};
  room.ask(call, stack);
  const bool symmetrize = call.attrs.flag("symmetrize");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      for_each_matrix(stack, [&](int64_t m) {
        const T* const x = launch.input<T>(0) + m * n * n;
        double* const w = room.numbers(launch, m);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = i; j < n; ++j) {
            const double below = static_cast<double>(x[j * n + i]);
            w[i * n + j] = symmetrize ? (static_cast<double>(x[i * n + j]) + below) / 2 : below;
          }
        }
        room.wrong(launch, m) = cpu::take_root(w, n);
        T* const out = launch.output<T>(0) + m * n * n;
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < n; ++j) out[i * n + j] = j <= i ? static_cast<T>(w[j * n + i]) : T{0};
      });
      check(stack, room, launch, not_positive_definite);
    };
  });
}

// Of equations: solve(w, x, places) puts the solution for the matrix w in the place of its right sides x, and gives
// whether there is one. With "adjoint" w is the transpose of what is given.
template <class Solve>
Launch prepare_equations(KernelCall& call, int64_t integers, const Solve& solve) {
  const Stack stack(call.inputs[0]), right(call.inputs[1]);
  const int64_t n = stack.rows;
  const Room room{stack.elements() + right.elements(), integers + 1};
  room.ask(call, stack);
  const bool adjoint = call.attrs.flag("adjoint");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      for_each_matrix(stack, [&](int64_t m) {
        const T* const matrix = launch.input<T>(0) + m * n * n;
        double *const w = room.numbers(launch, m), *const x = w + n * n;
        if (adjoint)
          copy_turned(matrix, n, w);
        else
          copy(matrix, n * n, w);
        copy(launch.input<T>(1) + m * right.elements(), right.elements(), x);
        room.wrong(launch, m) = solve(w, x, room.places(launch, m)) ? -1 : 0;
        copy(x, right.elements(), launch.output<T>(0) + m * right.elements());
      });
      check(stack, room, launch, singular);
    };
  });
}

Launch prepare_triangular_solve(KernelCall& call) {
  const Stack right(call.inputs[1]);
  const bool lower = call.attrs.flag("lower") != call.attrs.flag("adjoint");
  return prepare_equations(call, 0, [=](const double* w, double* x, int64_t*) {
    if (cpu::has_zero(w, right.rows)) return false;
    if (lower)
      cpu::substitute<true>(w, right.rows, cpu::Diagonal::Given, x, right.columns);
    else
      cpu::substitute<false>(w, right.rows, cpu::Diagonal::Given, x, right.columns);
    return true;
  });
}

Launch prepare_solve(KernelCall& call) {
  const Stack right(call.inputs[1]);
  return prepare_equations(call, right.rows, [=](double* w, double* x, int64_t* swaps) {
    return cpu::solve(w, right.rows, swaps, x, right.columns);
  });
}

Launch prepare_inv(KernelCall& call) {
  const Stack stack(call.inputs[0]);
  const int64_t n = stack.rows;
  const Room room{2 * n * n, n + 1};
  room.ask(call, stack);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      for_each_matrix(stack, [&](int64_t m) {
        double *const w = room.numbers(launch, m), *const x = w + n * n;
        copy(launch.input<T>(0) + m * n * n, n * n, w);
        std::fill(x, x + n * n, 0.0);
        for (int64_t i = 0; i < n; ++i) x[i * n + i] = 1;
        room.wrong(launch, m) = cpu::solve(w, n, room.places(launch, m), x, n) ? -1 : 0;
        copy(x, n * n, launch.output<T>(0) + m * n * n);
      });
      check(stack, room, launch, singular);
    };
  });
}

// Of each matrix what is made of its factors: take(m, w, swaps) for the m-th one.
template <class Take>
Launch prepare_factors(KernelCall& call, const Take& take) {
  const Stack stack(call.inputs[0]);
  const int64_t n = stack.rows;
  const Room room{n * n, n + 1};
  room.ask(call, stack);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      for_each_matrix(stack, [&](int64_t m) {
        double* const w = room.numbers(launch, m);
        int64_t* const swaps = room.places(launch, m);
        copy(launch.input<T>(0) + m * n * n, n * n, w);
        cpu::eliminate(w, n, swaps);
        take(launch, zero, m, w, swaps);
      });
    };
  });
}

Launch prepare_slogdet(KernelCall& call) {
  return prepare_factors(call, [n = Stack(call.inputs[0]).rows](const LaunchCall& launch, auto zero, int64_t m,
                                                                const double* w, const int64_t* swaps) {
    using T = decltype(zero);
    double sign = 1, logarithm = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double pivot = w[i * n + i];
      logarithm += std::log(std::fabs(pivot));
      sign *= pivot == 0 ? 0 : (pivot < 0) != (swaps[i] != i) ? -1 : 1;
    }
    launch.output<T>(0)[m] = static_cast<T>(std::isnan(logarithm) ? logarithm : sign);
    launch.output<T>(1)[m] = static_cast<T>(logarithm);
  });
}

Launch prepare_det(KernelCall& call) {
  return prepare_factors(call, [n = Stack(call.inputs[0]).rows](const LaunchCall& launch, auto zero, int64_t m,
                                                                const double* w, const int64_t* swaps) {
    double product = 1;
    for (int64_t i = 0; i < n; ++i) product *= swaps[i] != i ? -w[i * n + i] : w[i * n + i];
    launch.output<decltype(zero)>(0)[m] = static_cast<decltype(zero)>(product);
  });
}

// ---- gradients -------------------------------------------------------------------------------------------------

Term product(Term a, Term b, bool transpose_a, bool transpose_b) {
  return a.op("matmul", b, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}, {"precise", true}});
}

Term transposed(Term x) {
  Ints perm;
  for (int axis = 0; axis < x.shape().rank(); ++axis) perm.push_back(axis);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return x.op("transpose", {{"perm", perm}});
}

// One triangle of each matrix, its diagonal multiplied by a number.
Term triangle(GradCall& g, Term x, bool lower, double diagonal) {
  const int64_t n = x.shape().back();
  Tensor mask = Tensor::allocate({x.dtype(), {n, n}});
  visit_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        mask.data<T>()[i * n + j] = static_cast<T>(i == j ? diagonal : (j < i) == lower ? 1 : 0);
  });
  return x * Term(g, g.graph.constant(std::move(mask), g.name + "-triangle"));
}

// With L L^T = x, of which the symmetric part alone is seen, or the lower triangle.
std::vector<ValueId> grad_cholesky(GradCall& g) {
  const Term factor(g, g.outputs[0]), grad(g, g.grads[0]);
  const auto unfactored = [&](Term x) {
    return factor.op("triangular_solve", x, {{"lower", true}, {"adjoint", true}});
  };
  const Term inner = triangle(g, product(factor, grad, true, false), true, 0.5);
  const Term dx = unfactored(transposed(unfactored(inner)));
  const Term both = dx + transposed(dx);
  return {(g.attrs.flag("symmetrize") ? 0.5 * both : triangle(g, both, true, 0.5)).id()};
}

// What reaches the matrix of a solution, from what reaches its right sides.
Term matrix_grad(GradCall& g, Term drhs) {
  const Term out(g, g.outputs[0]);
  return -(g.attrs.flag("adjoint") ? product(out, drhs, false, true) : product(drhs, out, false, true));
}

std::vector<ValueId> grad_triangular_solve(GradCall& g) {
  const bool lower = g.attrs.flag("lower"), adjoint = g.attrs.flag("adjoint");
  const Term drhs =
      Term(g, g.inputs[0]).op("triangular_solve", Term(g, g.grads[0]), {{"lower", lower}, {"adjoint", !adjoint}});
  return {triangle(g, matrix_grad(g, drhs), lower, 1).id(), drhs.id()};
}

std::vector<ValueId> grad_solve(GradCall& g) {
  const Term drhs =
      Term(g, g.inputs[0]).op("linear_solve", Term(g, g.grads[0]), {{"adjoint", !g.attrs.flag("adjoint")}});
  return {matrix_grad(g, drhs).id(), drhs.id()};
}

std::vector<ValueId> grad_inv(GradCall& g) {
  const Term out(g, g.outputs[0]);
  return {(-product(out, product(Term(g, g.grads[0]), out, false, true), true, false)).id()};
}

// What is there once for each matrix times the transpose of its inverse.
ValueId along_inverse(GradCall& g, Term x) {
  Shape shape = x.shape();
  shape.push_back(1);
  shape.push_back(1);
  return (x.reshaped(shape) * transposed(Term(g, g.inputs[0]).op("matrix_inverse"))).id();
}

std::vector<ValueId> grad_slogdet(GradCall& g) {
  if (g.grads[1] == kNone) return {kNone};  // the sign is the same all around
  return {along_inverse(g, Term(g, g.grads[1]))};
}

std::vector<ValueId> grad_det(GradCall& g) { return {along_inverse(g, Term(g, g.grads[0]) * Term(g, g.outputs[0]))}; }

// ---- ops -------------------------------------------------------------------------------------------------------

// Operations of one launch: `cubes` times n^3 for each matrix, and `squares` times n^2 for each right side.
std::function<double(const KernelCall&)> flops(double cubes, double squares) {
  return [=](const KernelCall& call) {
    const Stack stack(call.inputs[0]);
    const double n = static_cast<double>(stack.rows);
    const double sides = call.inputs.size() > 1 ? static_cast<double>(call.inputs[1].shape.back()) : 0;
    return static_cast<double>(stack.count) * (cubes * n * n * n + squares * n * n * sides);
  };
}

constexpr const char* kDtypes = "dtypes: float32 or float64 -> the same, computed in float64\n";

OpDef cholesky() {
  OpDef op;
  op.name = "cholesky";
  op.lua = "linalg.cholesky";
  op.doc = text(
      "The lower triangular L of a symmetric and positive definite matrix. Of a matrix that is not symmetric its "
      "symmetric part, (x + x^T) / 2, is factored, so its gradient is symmetric too, or with symmetrize = false what "
      "its lower triangle says.\n"
      "  L L^T = x\n"
      "shapes: x (..., n, n) -> L (..., n, n)\n",
      kDtypes, "errors: x is not square; in a run: a matrix is not positive definite");
  op.inputs = {{"x"}};
  op.outputs = {"L"};
  op.attrs = {{"symmetrize", true, "factor (x + x^T) / 2; false: the lower triangle of x alone is read"}};
  op.infer = infer_square;
  op.grad = grad_cholesky;
  op.cpu = {prepare_cholesky};
  op.flops = flops(1.0 / 3, 0);
  // Positive definite whatever is drawn. Larger ones are in tests/lua/linalg_spec.lua.
  op.examples = {{{f32({1, 1})}, {}, 0.5, 1.5}, {{f32({2, 3, 1, 1})}, {{"symmetrize", false}}, 0.5, 1.5}};
  return op;
}

OpDef triangular_solve() {
  OpDef op;
  op.name = "triangular_solve";
  op.lua = "linalg.triangular_solve";
  op.doc = text(
      "The solution of linear equations with a triangular matrix, as linalg.cholesky gives one. The other triangle is "
      "not looked at.\n"
      "  matrix out = rhs, or with adjoint matrix^T out = rhs\n"
      "shapes: matrix (..., n, n), rhs (..., n, columns) -> out (..., n, columns)\n",
      kDtypes, "errors: matrix is not square; rhs has other rows or leading axes; in a run: a 0 on the diagonal");
  op.inputs = {{"matrix"}, {"rhs"}};
  op.attrs = {{"lower", true, "the triangle of matrix that counts is the lower one"},
              {"adjoint", false, "solve with the transpose of matrix"}};
  op.infer = infer_solution;
  op.grad = grad_triangular_solve;
  op.cpu = {prepare_triangular_solve};
  op.flops = flops(0, 1);
  op.examples = {{{f32({3, 3}), f32({3, 2})}, {}, 0.5, 1.5},
                 {{f32({3, 3}), f32({3, 1})}, {{"adjoint", true}}, 0.5, 1.5},
                 {{f32({2, 4, 4}), f32({2, 4, 3})}, {{"lower", false}}, 0.5, 1.5},
                 {{f32({3, 3}), f32({3, 2})}, {{"lower", false}, {"adjoint", true}}, 0.5, 1.5}};
  return op;
}

OpDef solve() {
  OpDef op;
  op.name = "linear_solve";
  op.lua = "linalg.solve";
  op.doc = text(
      "The solution of linear equations, by elimination with the greatest pivot of each column.\n"
      "  matrix out = rhs, or with adjoint matrix^T out = rhs\n"
      "shapes: matrix (..., n, n), rhs (..., n, columns) -> out (..., n, columns)\n",
      kDtypes, "errors: matrix is not square; rhs has other rows or leading axes; in a run: a matrix is singular");
  op.inputs = {{"matrix"}, {"rhs"}};
  op.attrs = {{"adjoint", false, "solve with the transpose of matrix"}};
  op.infer = infer_solution;
  op.grad = grad_solve;
  op.cpu = {prepare_solve};
  op.flops = flops(2.0 / 3, 2);
  op.examples = {{{f32({3, 3}), f32({3, 2})}},
                 {{f32({2, 2}), f32({2, 1})}, {{"adjoint", true}}},
                 {{f32({2, 4, 4}), f32({2, 4, 3})}}};
  return op;
}

OpDef inv() {
  OpDef op;
  op.name = "matrix_inverse";
  op.lua = "linalg.inv";
  op.doc = text(
      "The inverse of a matrix. Where it would be multiplied by something, linalg.solve is faster and more exact.\n"
      "  x out = I\n"
      "shapes: x (..., n, n) -> out (..., n, n)\n",
      kDtypes, "errors: x is not square; in a run: a matrix is singular");
  op.inputs = {{"x"}};
  op.infer = infer_square;
  op.grad = grad_inv;
  op.cpu = {prepare_inv};
  op.flops = flops(2, 0);
  op.examples = {{{f32({3, 3})}}, {{f32({2, 4, 4})}}};
  return op;
}

OpDef slogdet() {
  OpDef op;
  op.name = "slogdet";
  op.lua = "linalg.slogdet";
  op.doc = text(
      "The sign of a determinant, which is 1, 0 or -1, and the logarithm of its size, -infinity where it is 0.\n"
      "  det(x) = sign exp(log_size)\n"
      "shapes: x (..., n, n) -> sign (...), log_size (...)\n",
      kDtypes, "errors: x is not square; in a run, for the gradient: a matrix is singular");
  op.inputs = {{"x"}};
  op.outputs = {"sign", "log_size"};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> { return {infer_of_each(call), infer_of_each(call)}; };
  op.grad = grad_slogdet;
  op.cpu = {prepare_slogdet};
  op.flops = flops(2.0 / 3, 0);
  op.examples = {{{f32({3, 3})}}, {{f32({2, 4, 4})}}};
  return op;
}

OpDef det() {
  OpDef op;
  op.name = "determinant";
  op.lua = "linalg.det";
  op.doc = text(
      "The determinant of a matrix. Where it may be too large or too small for a number, linalg.slogdet has its "
      "logarithm.\n"
      "shapes: x (..., n, n) -> out (...)\n",
      kDtypes, "errors: x is not square; in a run, for the gradient: a matrix is singular");
  op.inputs = {{"x"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> { return {infer_of_each(call)}; };
  op.grad = grad_det;
  op.cpu = {prepare_det};
  op.flops = flops(2.0 / 3, 0);
  op.examples = {{{f32({3, 3})}}, {{f32({2, 4, 4})}}};
  return op;
}

}  // namespace

void add_linalg(Catalog& catalog) {
  for (OpDef op : {cholesky(), triangular_solve(), solve(), inv(), det(), slogdet()}) {
    op.on_host = true;  // what a matrix waits for at each pivot is long on a card, where it is not very large
    catalog.add(std::move(op));
  }
}

}  // namespace moonflow
