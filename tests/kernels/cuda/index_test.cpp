// Gather and one_hot on the card: rows of every size, sums of many picks, and indices that are wrong.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("gather moves rows of every size") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Int8, DType::Int64, DType::BFloat16, DType::Float16}) {
    for (const int64_t inner : {1, 3, 6, 16, 300}) {
      const Tensor params = drawn({dtype, {2, 11, inner}}, 1, 0, 100);
      for (const DType index : {DType::UInt8, DType::Int64})
        beside.check("gather", {params, drawn({index, {3, 7}}, 2, 0, 11)}, {{"axis", int64_t{1}}}, 1e-9);
    }
  }
}

TEST_CASE("the picks of a row are added in their order, so that the bits are the CPU's") {
  const BesideCpu beside;
  struct Case {
    int64_t outer, rows, inner, picks;
  };
  // Columns for several blocks, rows for several, and all picks of few rows.
  for (const Case& c : {Case{1, 50, 300, 90}, Case{2, 5000, 1, 700}, Case{3, 40, 7, 513}, Case{1, 2, 5, 2000}}) {
    const Attrs attrs{{"axis", int64_t{1}}, {"shape", Ints{c.outer, c.rows, c.inner}}};
    const Tensor dy = drawn({DType::Float32, {c.outer, c.picks, c.inner}}, 3);
    const Tensor indices = drawn({DType::Int32, {c.picks}}, 4, 0, static_cast<double>(c.rows));
    beside.check("gather_grad", {dy, indices}, attrs, 1e-30);
  }
}

TEST_CASE("picks of few rows are shared by blocks and added up in one order") {
  const BesideCpu beside;
  const Attrs attrs{{"shape", Ints{3, 4}}};
  const Trial trial = beside.trial(
      "gather_grad", {drawn({DType::Float64, {9000, 4}}, 5), drawn({DType::Int32, {9000}}, 6, 0, 3)}, attrs);
  const Launched once = beside.check(trial, 1e-12), twice = launch(trial, *beside.card);
  CHECK(same(once.outputs[0], twice.outputs[0]));
}

TEST_CASE("one_hot puts the classes on any axis") {
  const BesideCpu beside;
  const Tensor indices = drawn({DType::Int32, {30, 20}}, 7, 0, 11);
  for (const int64_t axis : {0, 1, 2})
    for (const DType dtype : {DType::Float32, DType::Int8})
      beside.check("one_hot", {indices}, {{"depth", int64_t{11}}, {"axis", axis}, {"dtype", dtype}}, 1e-9);
}
