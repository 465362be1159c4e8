// Attention at the sizes where tiles end: shorter and longer than one, heads for each size of tile, more queries than
// keys and fewer, masks that leave a query nothing to look at.
#include "beside.h"
#include "kernels/types.h"

using namespace moonflow;
using moonflow::testing::Beside;

namespace {

struct Case {
  int64_t batch, heads, queries, keys, width, value_width;
};
const Case kCases[] = {
    {1, 1, 1, 1, 1, 1},     {2, 3, 5, 7, 4, 6},       {1, 2, 70, 33, 17, 9},
    {2, 1, 33, 65, 64, 64}, {1, 1, 20, 35, 130, 100}, {1, 1, 6, 9, 200, 150},
    {1, 1, 5, 6, 400, 300}, {1, 2, 3, 0, 4, 4},       {0, 2, 3, 4, 4, 4},
};

// The inputs of both ops: query, key, value, mask, kept.
std::vector<TensorType> inputs(const Case& c, DType dtype) {
  return {{dtype, {c.batch, c.queries, c.heads, c.width}},
          {dtype, {c.batch, c.keys, c.heads, c.width}},
          {dtype, {c.batch, c.keys, c.heads, c.value_width}},
          {DType::Int8, {c.batch, 1, c.queries, c.keys}},
          {DType::Int8, {c.batch, c.heads, c.queries, c.keys}}};
}

}  // namespace

TEST_CASE("attention on the card is that of the CPU, and so are its gradients") {
  Beside beside;
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::Float32, DType::Float64}) {
      if (dtype == DType::Float64 && c.width > 200) continue;  // too wide for the card
      for (const bool causal : {false, true}) {
        std::vector<TensorType> types = inputs(c, dtype);
        const Attrs attrs{{"scale", 0.3}, {"causal", causal}, {"rate", 0.25}};
        beside.check("dot_product_attention", types, attrs);
        const TensorType out{dtype, {c.batch, c.queries, c.heads, c.value_width}},
            per_query{dtype, {c.batch, c.heads, c.queries}};
        for (const TensorType& type : {out, out, per_query, per_query}) types.push_back(type);
        // Of random log_sums weights are as large as exp of a score.
        beside.check("dot_product_attention_grad", types, attrs, 1e-4);
        types.resize(3);
        beside.check("dot_product_attention", types, {{"scale", 0.3}, {"causal", causal}});
      }
    }
  }
}

TEST_CASE("attention on the card keeps its digits where scores are large") {
  Beside beside;
  std::vector<TensorType> types = inputs({1, 2, 40, 90, 8, 8}, DType::Float32);
  types.resize(3);
  // A score of a thousand is rounded at 6e-5, and its exponential is off by as much.
  beside.check("dot_product_attention", types, {{"scale", 1.0}}, 1e-4, -12, 12);
}

TEST_CASE("a query that is NaN gives NaN on the card, and one that may look at nothing gives zeros") {
  Beside beside;
  Tensor query = oracle::drawn({DType::Float32, {1, 40, 2, 8}}, 1);
  const Tensor key = oracle::drawn({DType::Float32, {1, 90, 2, 8}}, 2);
  const Tensor value = oracle::drawn({DType::Float32, {1, 90, 2, 8}}, 3);
  Tensor mask = oracle::drawn({DType::Int8, {1, 1, 40, 90}}, 4, 1, 2);
  query.data<float>()[5] = NAN;
  std::fill_n(mask.data<int8_t>() + 3 * 90, 90, int8_t{0});
  beside.check(beside.trial("dot_product_attention", {query, key, value, mask}, {{"scale", 0.3}}));
}
