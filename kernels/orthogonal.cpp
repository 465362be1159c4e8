// The random orthogonal matrix that a variable may begin with: of a matrix of normal numbers the orthogonal factor Q,
// A = Q R, each column with the sign that makes its number on R's diagonal positive. So it is any orthogonal matrix as
// likely as any other.
//
// A's columns lie as rows of the scratch memory, "vectors" here. Householder's reflections y - (h . y) h, where h . h
// is 2, make them triangular one after the other: reflection i turns what is left of vector i, from element i on, onto
// its first element. Q's column j is what the reflections j, ..., 0 make of the unit vector j. Both halves take a panel
// of reflections at a time to each of the other vectors, which stays in the nearest cache meanwhile, and those are
// shared between threads. Each sum has an order of its own, so the bits depend neither on the number of threads nor on
// the width of the processor's registers. The cost is about 4 n^2 m - 4/3 n^3 operations in float64 for n vectors of m.
#include <algorithm>
#include <cmath>

#include "kernels/boxes.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/random_source.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

constexpr int64_t kLanes = 8;   // partial sums of a product, as many as the widest registers have
constexpr int64_t kPanel = 16;  // reflections whose vectors the second cache holds, up to thousands of elements

// (rows, columns): the first axis and all others, as weights of (out, in, ...) are seen by a layer.
struct Matrix {
  int64_t rows, columns;

  explicit Matrix(const Shape& shape) : rows(shape[0]), columns(rows == 0 ? 0 : shape.count() / rows) {}
  int64_t vectors() const { return std::min(rows, columns); }
  int64_t length() const { return std::max(rows, columns); }
  int64_t elements() const { return checked_product(rows, columns); }
};

double product(const double* x, const double* y, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  }
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void reflect(const double* h, double* y, int64_t count) {
  const double along = product(h, y, count);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] -= along * h[i];
}

class Factors {
 public:
  Factors(const Matrix& matrix, double* scratch)
      : count_(matrix.vectors()),
        length_(matrix.length()),
        vectors_(scratch),
        columns_(scratch + count_ * length_),
        signs_(columns_ + count_ * length_) {}
  static int64_t scratch_elements(const Matrix& matrix) {
    return checked_product(2, matrix.elements()) + matrix.vectors();
  }

  void draw(const philox::Sequence& sequence) {
    const int64_t elements = count_ * length_;
    cpu::parallel_for((elements + 1) / 2, cpu::kGrain / 32, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const philox::NormalPair pair = philox::normal_pair(sequence.block(static_cast<uint64_t>(i)));
        vectors_[2 * i] = pair.first;
        if (2 * i + 1 < elements) vectors_[2 * i + 1] = pair.second;
      }
    });
  }

  // Each vector i becomes 0 up to element i, and from there on the h of its reflection.
  void factor() {
    for (int64_t start = 0; start < count_; start += kPanel) {
      const int64_t end = std::min(start + kPanel, count_);
      cpu::widest([=] {
        for (int64_t i = start; i < end; ++i) {
          for (int64_t before = start; before < i; ++before) reflect_by(before, vector(i));
          find_reflection(i);
        }
      });
      for_each_vector(end, length_ - start, [=](int64_t j) {
        for (int64_t i = start; i < end; ++i) reflect_by(i, vector(j));
      });
    }
  }

  void make_columns() {
    std::fill(columns_, columns_ + count_ * length_, 0.0);
    for (int64_t j = 0; j < count_; ++j) column(j)[j] = 1;
    const int64_t panels = (count_ + kPanel - 1) / kPanel;
    for (int64_t panel = panels - 1; panel >= 0; --panel) {
      const int64_t start = panel * kPanel, end = std::min(start + kPanel, count_);
      for_each_vector(start, length_ - start, [=](int64_t j) {
        for (int64_t i = std::min(end - 1, j); i >= start; --i) reflect_by(i, column(j));
      });
    }
  }

  // Element i of column j, with the column's sign.
  double element(int64_t i, int64_t j) const { return signs_[j] * columns_[j * length_ + i]; }

 private:
  double* vector(int64_t i) const { return vectors_ + i * length_; }
  double* column(int64_t j) const { return columns_ + j * length_; }
  void reflect_by(int64_t i, double* y) const { reflect(vector(i) + i, y + i, length_ - i); }

  void find_reflection(int64_t i) {
    double* const x = vector(i) + i;
    const double norm = std::sqrt(product(x, x, length_ - i));
    signs_[i] = x[0] > 0 ? -1 : 1;  // of what stands on R's diagonal: the reflection with the longer h
    x[0] -= signs_[i] * norm;
    const double scale = norm == 0 ? 0 : 1 / std::sqrt(norm * std::fabs(x[0]));  // of a vector of zeros none
    for (int64_t k = 0; k < length_ - i; ++k) x[k] *= scale;
  }

  // Calls body(j) for j from `first` on, each of which has kPanel reflections of so many elements.
  template <class Body>
  void for_each_vector(int64_t first, int64_t elements, const Body& body) const {
    const int64_t grain = std::max<int64_t>(1, cpu::kGrain / (kPanel * std::max<int64_t>(elements, 1)));
    cpu::parallel_for(count_ - first, grain, [=](int64_t begin, int64_t end) {
      cpu::widest([=] {
        for (int64_t j = begin; j < end; ++j) body(first + j);
      });
    });
  }

  int64_t count_, length_;
  double *vectors_, *columns_, *signs_;
};

Launch prepare_orthogonal(KernelCall& call) {
  const Matrix matrix(call.outputs[0].shape);
  call.scratch_bytes = checked_product(Factors::scratch_elements(matrix), sizeof(double));
  return visit_floating(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [matrix, source = RandomSource(call, 0), gain = call.attrs.number("gain")](const LaunchCall& launch) {
      Factors factors(matrix, static_cast<double*>(launch.scratch));
      factors.draw(source.at(launch));
      factors.factor();
      factors.make_columns();
      T* const out = launch.output<T>(0);
      cpu::parallel_for(
          matrix.rows, cpu::kGrain / std::max<int64_t>(matrix.columns, 1), [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; ++row) {
              for (int64_t column = 0; column < matrix.columns; ++column) {
                const double x =
                    matrix.rows <= matrix.columns ? factors.element(column, row) : factors.element(row, column);
                out[row * matrix.columns + column] = static_cast<T>(gain * x);
              }
            }
          });
    };
  });
}

}  // namespace

void add_orthogonal(Catalog& catalog) {
  OpDef op;
  op.name = "random_orthogonal";
  op.doc =
      "A random matrix whose rows are orthogonal and of length `gain`, or where it has more rows than columns its\n"
      "columns; any such matrix is as likely as any other. Computed in float64.\n"
      "  out out^T = gain^2 I, or out^T out = gain^2 I\n"
      "shapes: seed and step () -> out `shape`, of two axes or more: the matrix is (the first, all others)\n"
      "dtypes: seed and step int64 -> float32 or float64\n"
      "defaults: gain = 1\n"
      "errors: less than two axes; a gain that is not finite\n"
      "source: Saxe, McClelland, Ganguli, Exact solutions to the nonlinear dynamics of learning in deep linear neural\n"
      "  networks, ICLR 2014; Mezzadri, How to generate random matrices from the classical compact groups, 2007";
  op.inputs = {{"seed"}, {"step"}};
  op.attrs = {{"gain", 1.0, "length of the orthogonal rows or columns"},
              {"shape", Ints{}, "of the result", true},
              {"dtype", DType::Float32, "of the result"},
              key_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_source(call, 0);
    const DType dtype = call.attrs.dtype("dtype");
    require(is_floating(dtype), ErrorCode::DtypeMismatch, "dtype must be float32 or float64, got ", dtype);
    require(std::isfinite(call.attrs.number("gain")), ErrorCode::InvalidArgument, "gain must be finite, got ",
            call.attrs.number("gain"));
    const Shape shape = checked_shape(call.attrs);
    require(shape.rank() >= 2, ErrorCode::ShapeMismatch, "an orthogonal matrix has two axes or more, got shape ",
            shape);
    return {{dtype, shape}};
  };
  op.cpu = {prepare_orthogonal};
  op.random = true;
  const TensorType scalar{DType::Int64, {}};
  for (const Ints& shape : {Ints{3, 5}, Ints{5, 3}, Ints{4, 2, 3}}) {
    op.examples.push_back({{scalar, scalar}, {{"shape", shape}, {"key", std::string("a")}}});
  }
  op.examples.push_back(
      {{scalar, scalar}, {{"shape", Ints{4, 4}}, {"dtype", DType::Float64}, {"gain", 2.0}, {"key", std::string("a")}}});
  catalog.add(op);
}

}  // namespace moonflow
