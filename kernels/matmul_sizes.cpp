#include "kernels/matmul.h"

namespace moonflow {

double flops_of(const Product& sizes) {
  return 2.0 * static_cast<double>(sizes.batch * sizes.rows) * static_cast<double>(sizes.columns * sizes.inner);
}

Product product(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b) {
  require(a.rank() >= 2 && a.rank() == b.rank(), ErrorCode::ShapeMismatch, "a is ", a, " and b is ", b,
          ", wanted two matrices, or two stacks of matrices of equal rank");
  const int row = a.rank() - 2, column = row + 1;
  for (int axis = 0; axis < row; ++axis) {
    require(a[axis] == b[axis], ErrorCode::ShapeMismatch, "leading sizes differ: a is ", a, ", b is ", b, ", so ",
            a[axis], " against ", b[axis], " on axis ", axis);
  }
  Product result{a.count(0, row),
                 a[transpose_a ? column : row],
                 b[transpose_b ? row : column],
                 a[transpose_a ? row : column],
                 transpose_a,
                 transpose_b};
  const int64_t other = b[transpose_b ? column : row];
  require(result.inner == other, ErrorCode::ShapeMismatch, "inner sizes differ: a is ", a,
          transpose_a ? " transposed" : "", ", b is ", b, transpose_b ? " transposed" : "", ", so ", result.inner,
          " against ", other);
  return result;
}

Product matmul_product(const Attrs& attrs, const Shape& a, const Shape& b) {
  return product(a, b, attrs.flag("transpose_a"), attrs.flag("transpose_b"));
}

Product dense_product(const Shape& x, const Shape& weight) {
  require(x.rank() == 2 && weight.rank() == 2, ErrorCode::ShapeMismatch, "x is ", x, " and weight is ", weight,
          ", wanted (rows, in) and (units, in)");
  require(x[1] == weight[1], ErrorCode::ShapeMismatch, "inner sizes differ: x is ", x, ", weight is ", weight, ", so ",
          x[1], " against ", weight[1]);
  return {1, x[0], weight[0], x[1], false, true};
}

bool is_plain_product(const Attrs& matmul, bool transpose_a, bool transpose_b) {
  return matmul.flag("transpose_a") == transpose_a && matmul.flag("transpose_b") == transpose_b &&
         matmul.string("mixed").empty() && !matmul.flag("precise");
}

}  // namespace moonflow
