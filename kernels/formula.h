// Formulas over the values of a graph, for gradients that are more than an op or two: a Term is a value, and what is
// computed with Terms is appended. They broadcast as the ops do, and a number takes the dtype of the other side.
#pragma once

#include <optional>
#include <string>

#include "engine/op.h"

namespace moonflow {

class Term {
 public:
  Term(GradCall& call, ValueId id) : call_(&call), id_(id) {}

  ValueId id() const { return id_; }
  Term op(std::string_view name, Attrs attrs = {}) const { return {*call_, call_->op(name, {id_}, std::move(attrs))}; }
  Term op(std::string_view name, Term y, Attrs attrs = {}) const {
    return {*call_, call_->op(name, {id_, y.id_}, std::move(attrs))};
  }
  Term op(std::string_view name, Term y, Term z, Attrs attrs = {}) const {
    return {*call_, call_->op(name, {id_, y.id_, z.id_}, std::move(attrs))};
  }
  Term number(double value) const;
  Term reshaped(const Shape& shape) const;
  DType dtype() const { return call_->type(id_).dtype; }
  Shape shape() const { return call_->type(id_).shape; }

 private:
  GradCall* call_;
  ValueId id_;
};

inline Term operator+(Term x, Term y) { return x.op("add", y); }
inline Term operator-(Term x, Term y) { return x.op("subtract", y); }
inline Term operator*(Term x, Term y) { return x.op("multiply", y); }
inline Term operator/(Term x, Term y) { return x.op("divide", y); }
inline Term operator-(Term x) { return x.op("negative"); }
inline Term operator+(double x, Term y) { return y.number(x) + y; }
inline Term operator-(double x, Term y) { return y.number(x) - y; }
inline Term operator*(double x, Term y) { return y.number(x) * y; }

// Over these axes, which stay with size 1; over none, x itself.
Term sum(Term x, const Ints& axes);
Term mean(Term x, const Ints& axes);

// The gradient of an op that is a formula of simpler ops: those are appended, and differentiated by the engine. For
// what is seldom differentiated; a rule of the op's own appends less. The formula gets the inputs that are given, and
// gives one Term for each output.
using Terms = std::vector<std::optional<Term>>;
using Formula = std::vector<Term> (*)(GradCall& call, const Terms& inputs);
Grad gradient_of(Formula formula);

// A linear op of one input and its gradient, which is told the input's shape in the attribute `shape`: each is the
// gradient of the other.
Grad linear_gradient(std::string gradient_op);
Grad gradient_of_linear(std::string op);

}  // namespace moonflow
