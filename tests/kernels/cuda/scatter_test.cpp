// Rows that indices name on the card: of every size, by coordinates and along axes, and sums in the CPU's order.
#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("gather_nd and dim_gather move rows of every size") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Int8, DType::Int64, DType::BFloat16}) {
    for (const int64_t inner : {1, 3, 16, 300})
      beside.check("gather_nd",
                   {drawn({dtype, {11, 12, inner}}, 1, 0, 100), drawn({DType::UInt8, {3, 7, 2}}, 2, 0, 11)}, {}, 1e-9);
    for (const int64_t dim : {0, 1, 2}) {
      Shape index{5, 6, 7};
      index[static_cast<int>(dim)] = 40;
      beside.check("dim_gather", {drawn({dtype, {5, 6, 7}}, 3, 0, 100), drawn({DType::Int64, index}, 4, 0, 5)},
                   {{"dim", dim}}, 1e-9);
    }
  }
}

TEST_CASE("rows are taken in in their order, so that the bits are the CPU's") {
  const BesideCpu beside;
  struct Case {
    int64_t rows, inner, picks;
  };
  // Columns for several blocks, rows for several, and all picks of few rows.
  for (const Case& c :
       {Case{50, 300, 90}, Case{5000, 1, 700}, Case{40, 7, 513}, Case{2, 5, 2000}, Case{9000, 1, 2000}}) {
    const Tensor indices = drawn({DType::Int32, {c.picks, 1}}, 4, 0, static_cast<double>(c.rows));
    for (const DType dtype : {DType::Float32, DType::Int8, DType::Int64}) {
      const Tensor params = drawn({dtype, {c.rows, c.inner}}, 1, -1, 100);
      const Tensor updates = drawn({dtype, {c.picks, c.inner}}, 3, -1, 100);
      beside.check("scatter_nd", {indices, updates}, {{"shape", Ints{c.rows, c.inner}}}, 1e-30);
      beside.check("tensor_scatter_nd_add", {params, indices, updates}, {}, 1e-30);
      beside.check("tensor_scatter_nd_update", {params, indices, updates}, {}, 1e-30);
    }
  }
}

TEST_CASE("segments and axes are taken together block by block") {
  const BesideCpu beside;
  const Tensor ids = drawn({DType::Int32, {70}}, 1, 0, 9);
  for (const int64_t axis : {0, 1, 2}) {
    Shape shape{3, 4, 5};
    shape[static_cast<int>(axis)] = 70;
    for (const char* const op : {"unsorted_segment_sum", "unsorted_segment_max"}) {
      for (const DType dtype : {DType::Float32, DType::UInt8}) {
        beside.check(op, {drawn({dtype, shape}, 2, 0, 9), ids}, {{"num_segments", int64_t{9}}, {"axis", axis}}, 1e-30);
      }
    }
    const Attrs attrs{{"dim", axis}, {"size", int64_t{6}}};
    beside.check("dim_gather_grad", {drawn({DType::Float64, shape}, 3), drawn({DType::Int64, shape}, 4, 0, 6)}, attrs,
                 1e-30);
  }
}

TEST_CASE("picks of few places are shared by blocks and added up in one order") {
  const BesideCpu beside;
  const Tensor params = drawn({DType::Float64, {3, 4}}, 1);
  for (const int64_t picks : {9000, 150000}) {  // few parts, and many
    const Trial trial = beside.trial("tensor_scatter_nd_add", {params, drawn({DType::Int32, {picks, 1}}, 6, 0, 3),
                                                               drawn({DType::Float64, {picks, 4}}, 5)});
    const Launched once = beside.check(trial, 1e-12), twice = launch(trial, *beside.card);
    CHECK(same(once.outputs[0], twice.outputs[0]));
  }
  // The last of all stays, however many there are.
  beside.check("tensor_scatter_nd_update",
               {params, drawn({DType::Int32, {9000, 1}}, 6, 0, 3), drawn({DType::Float64, {9000, 4}}, 5)}, {}, 1e-30);
}
