// The gradients of the element-wise gradients. name_grad(dy, v) is dy * slope(v), so for the gradient g of it dy has
// name_grad(g, v), and v has g * dy * slope'(v): a row here. v is what the op's gradient reads, its input or output.
#include <cmath>
#include <map>

#include "kernels/cpu/elementwise.h"
#include "kernels/formula.h"

namespace moonflow::elementwise {
namespace {

// Of p = g * dy and v. nullptr: the slope is constant but for single points.
using Rule = Term (*)(Term p, Term v, const Attrs& attrs);

Term square(Term x) { return x.op("square"); }
Term sigmoid(Term x) { return x.op("sigmoid"); }

// (x * x + c) ^ (-3/2), for the inverse functions whose slope is the -1/2nd power.
Term power_of_inverse(Term x, double sign, double c) {
  const Term root = (c + sign * square(x)).op("rsqrt");
  return root * square(root);
}

Term elu(Term p, Term x, const Attrs& attrs) {
  const Term below = x.op("minimum", x.number(0));
  const Term falls = x.op("less_equal", x.number(0)).op("cast", {{"dtype", p.dtype()}});
  return falls * p * (attrs.number("alpha") * below.op("exp"));
}

// With s = sigmoid(beta x) the slope is s + beta x s (1 - s).
Term swish(Term p, Term x, const Attrs& attrs) {
  const double beta = attrs.number("beta");
  const Term bx = beta * x, s = sigmoid(bx);
  return beta * p * s * (1 - s) * (2 + bx * (1 - 2 * s));
}

// With s = sigmoid(x), t = tanh(softplus(x)) and t' = s (1 - t^2) the slope is t + x t'.
Term mish(Term p, Term x, const Attrs&) {
  const Term s = sigmoid(x), t = x.op("softplus").op("tanh");
  const Term dt = s * (1 - square(t));
  return p * dt * (2 + x * (1 - s - 2 * t * s));
}

// The slope is Phi(x) + x phi(x), and phi' = -x phi.
Term gelu(Term p, Term x, const Attrs&) {
  const Term xx = square(x);
  const Term density = functor::kTwoOverSqrtPi / std::sqrt(8.0) * (-0.5 * xx).op("exp");
  return p * density * (2 - xx);
}

const std::map<std::string, Rule>& rules() {
  static const auto& table = *new std::map<std::string, Rule>{
      {"abs", nullptr},
      {"negative", nullptr},
      {"relu", nullptr},
      {"leaky_relu", nullptr},
      {"relu6", nullptr},
      {"hardtanh", nullptr},
      {"hardsigmoid", nullptr},
      {"clip_by_value", nullptr},
      {"square", [](Term p, Term, const Attrs&) { return 2 * p; }},
      {"sqrt", [](Term p, Term y, const Attrs&) { return -0.5 * p / square(y); }},
      {"rsqrt", [](Term p, Term y, const Attrs&) { return -1.5 * p * square(y); }},
      {"reciprocal", [](Term p, Term y, const Attrs&) { return -2 * p * y; }},
      {"reciprocal_no_nan", [](Term p, Term y, const Attrs&) { return -2 * p * y; }},
      {"exp", [](Term p, Term, const Attrs&) { return p; }},
      {"expm1", [](Term p, Term, const Attrs&) { return p; }},
      {"log", [](Term p, Term x, const Attrs&) { return -(p / x) / x; }},
      {"log1p", [](Term p, Term x, const Attrs&) { return -(p / (1 + x)) / (1 + x); }},
      {"sin", [](Term p, Term x, const Attrs&) { return -p * x.op("sin"); }},
      {"cos", [](Term p, Term x, const Attrs&) { return -p * x.op("cos"); }},
      {"tan", [](Term p, Term y, const Attrs&) { return 2 * p * y; }},
      {"asin", [](Term p, Term x, const Attrs&) { return p * x * power_of_inverse(x, -1, 1); }},
      {"acos", [](Term p, Term x, const Attrs&) { return -p * x * power_of_inverse(x, -1, 1); }},
      {"atan", [](Term p, Term x, const Attrs&) { return -2 * p * x / square(1 + square(x)); }},
      {"sinh", [](Term p, Term x, const Attrs&) { return p * x.op("sinh"); }},
      {"cosh", [](Term p, Term x, const Attrs&) { return p * x.op("cosh"); }},
      {"tanh", [](Term p, Term y, const Attrs&) { return -2 * p * y; }},
      {"asinh", [](Term p, Term x, const Attrs&) { return -p * x * power_of_inverse(x, 1, 1); }},
      {"acosh", [](Term p, Term x, const Attrs&) { return -p * x * power_of_inverse(x, 1, -1); }},
      {"atanh", [](Term p, Term x, const Attrs&) { return 2 * p * x / square(1 - square(x)); }},
      {"erf", [](Term p, Term x, const Attrs&) { return -2 * x * p.op("erf_grad", x); }},
      {"erfc", [](Term p, Term x, const Attrs&) { return -2 * x * p.op("erfc_grad", x); }},
      {"lgamma", [](Term p, Term x, const Attrs&) { return p.op("digamma_grad", x); }},
      {"sigmoid", [](Term p, Term y, const Attrs&) { return p * (1 - 2 * y); }},
      {"log_sigmoid", [](Term p, Term x, const Attrs&) { return -p.op("sigmoid_grad", sigmoid(x)); }},
      {"softplus", [](Term p, Term x, const Attrs&) { return p.op("sigmoid_grad", sigmoid(x)); }},
      {"gelu", gelu},
      {"elu", elu},
      {"hardswish", [](Term p, Term x, const Attrs&) { return 2 * p.op("hardsigmoid_grad", x); }},
      {"swish", swish},
      {"mish", mish}};
  return table;
}

}  // namespace

Grad gradient_of_unary_grad(const std::string& name) {
  const auto found = rules().find(name);
  if (found == rules().end()) return {};
  return [gradient = text(name, "_grad"), rule = found->second](GradCall& call) -> std::vector<ValueId> {
    const Term g(call, call.grads[0]), dy(call, call.inputs[0]), v(call, call.inputs[1]);
    const ValueId of_dy = g.op(gradient, v, call.attrs).id();
    return {of_dy, rule ? rule(g * dy, v, call.attrs).id() : kNone};
  };
}

}  // namespace moonflow::elementwise
