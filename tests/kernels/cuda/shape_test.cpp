// Box copies on the card: tiles with ragged edges, elements of every size, runs that are moved sixteen bytes at a time.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

const DType kDTypes[] = {DType::Int8, DType::Float32, DType::Int64, DType::BFloat16, DType::Float16};

}  // namespace

TEST_CASE("transposes agree with the CPU for elements of every size") {
  const BesideCpu beside;
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : {Shape{3, 70, 33}, Shape{70, 3, 34}, Shape{5, 40, 64}, Shape{9, 1, 100}}) {
      const Tensor x = drawn({dtype, shape}, 1, 0, 100);
      for (const Ints& perm : {Ints{2, 1, 0}, Ints{0, 2, 1}, Ints{1, 0, 2}, Ints{1, 2, 0}, Ints{0, 1, 2}})
        beside.check("transpose", {x}, {{"perm", perm}}, 1e-9);
    }
  }
}

TEST_CASE("copies of runs agree with the CPU, aligned and not") {
  const BesideCpu beside;
  for (const DType dtype : kDTypes) {
    const Tensor x = drawn({dtype, {6, 64}}, 2, 0, 100), y = drawn({dtype, {6, 32}}, 3, 0, 100);
    for (const int64_t begin : {0, 1, 2, 16}) {
      beside.check("slice", {x}, {{"begin", Ints{1, begin}}, {"size", Ints{4, 32}}}, 1e-9);
      beside.check("pad", {x}, {{"paddings", Ints{1, 2, begin, 16}}, {"constant_value", 3.0}}, 1e-9);
    }
    for (const int64_t step : {-3, 1, 2}) {
      const Attrs attrs{{"start", Ints{step < 0 ? 5 : 0, step < 0 ? 60 : 2}},
                        {"stop", Ints{step < 0 ? 0 : 6, step < 0 ? 3 : 62}},
                        {"step", Ints{step, step}}};
      const Tensor part = beside.check("strided_slice", {x}, attrs, 1e-9).outputs[0];
      Attrs with_shape = attrs;
      with_shape.set("shape", x.shape().dims());
      beside.check("strided_slice_grad", {part}, with_shape, 1e-9);
    }
    for (const int64_t axis : {0, 1}) {
      beside.check("reverse", {x}, {{"axis", Ints{axis}}}, 1e-9);
      beside.check("stack", {x, x, x}, {{"axis", axis}}, 1e-9);
    }
    beside.check("concat", {x, y, x}, {{"axis", int64_t{1}}}, 1e-9);
    beside.check("tile", {x}, {{"reps", Ints{2, 3, 2}}}, 1e-9);
    beside.check("broadcast_to", {drawn({dtype, {6, 1, 5}}, 4, 0, 100)}, {{"shape", Ints{2, 6, 7, 5}}}, 1e-9);
  }
}

TEST_CASE("copies of nothing write nothing") {
  const BesideCpu beside;
  const Tensor none = Tensor::allocate({DType::Float32, {0, 4}});
  beside.check("transpose", {none});
  beside.check("pad", {none}, {{"paddings", Ints{1, 1, 0, 2}}, {"constant_value", 2.0}});
  beside.check("concat", {none, drawn({DType::Float32, {2, 4}}, 5), none});
}
