// Attention: softmax(scale * query key^T) value for each head of each sample, in one step, and its gradient in another.
//
// The scores of a head are made for a block of queries at a time and never leave the cache; what the gradient needs of
// them is made again from one number per query, the logarithm of the sum of exponentials. Query, key, value and their
// gradients lie as (batch, length, heads, width), which is how a dense layer leaves them, so nothing is transposed: a
// head's rows lie heads * width apart, and the parts that a product reads along the other way are copied into scratch.
//
// A few queries read keys where they lie instead, in cpu/attention_few.h.
//
// Threads share out the heads of all samples. A head is one thread's, so results do not depend on how many there are.
#include <algorithm>
#include <limits>

#include "kernels/attention.h"
#include "kernels/catalog.h"
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/formula.h"
#include "kernels/random_draws.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using namespace attention;
using cpu::copy_rows;
using cpu::copy_transposed;
using cpu::row_step;
using cpu::Rows;
using cpu::Target;

// ---- meaning -------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_attention(const OpCall& call) {
  require_floating(call, kQuery, "query");
  const Shape &query = call.shape(kQuery), &key = call.shape(kKey), &value = call.shape(kValue);
  const char* names[] = {"query", "key", "value"};
  for (int i = kQuery; i <= kValue; ++i) {
    require(call.dtype(i) == call.dtype(kQuery), ErrorCode::DtypeMismatch, names[i], " is ", call.dtype(i),
            ", query is ", call.dtype(kQuery));
    require(call.shape(i).rank() == 4, ErrorCode::ShapeMismatch, names[i], " is ", call.shape(i),
            ", wanted (batch, length, heads, width)");
  }
  require(key == Shape({query[0], key[1], query[2], query[3]}), ErrorCode::ShapeMismatch, "query is ", query,
          ", key is ", key,
          "; they must be alike but for the length, and for a number of heads that divides the query's");
  require(value == Shape({key[0], key[1], key[2], value[3]}), ErrorCode::ShapeMismatch, "key is ", key, ", value is ",
          value, "; they must be alike but for the width");
  const Sizes sizes(query, value);
  if (call.has(kMask)) {
    require(call.dtype(kMask) == DType::Int8, ErrorCode::DtypeMismatch, "mask is ", call.type(kMask),
            ", it must be int8 as comparisons give it");
    require(call.shape(kMask).rank() <= 4 && broadcast(call.shape(kMask), sizes.scores()) == sizes.scores(),
            ErrorCode::ShapeMismatch, "mask is ", call.shape(kMask), ", which cannot be repeated to (batch, heads, ",
            "queries, keys) ", sizes.scores());
  }
  if (call.has(kKept)) require_type(call, kKept, "kept", {DType::Int8, sizes.scores()});
  draws::checked_rate(call.attrs);
  return {{call.dtype(kQuery), {sizes.batch, sizes.queries, sizes.heads, sizes.value_width}},
          {call.dtype(kQuery), {sizes.batch, sizes.heads, sizes.queries}}};
}

std::vector<ValueId> attention_grads(GradCall& g) {
  const ValueId dout = g.grads[0] != kNone ? g.grads[0] : g.op("zeros_like", {g.outputs[0]});
  std::vector<ValueId> inputs = g.inputs;
  inputs.resize(kInputCount, kNone);
  for (const ValueId value : {dout, g.outputs[0], g.outputs[1], g.grads[1]}) inputs.push_back(value);
  std::vector<ValueId> grads = g.ops("dot_product_attention_grad", inputs, g.attrs);
  grads.resize(kInputCount, kNone);
  return grads;
}

// The gradient as it is documented below, in simpler ops, with all scores of a head side by side. Its inputs out and
// log_sum have gradients as well, through which a second gradient reaches what they were computed from.
std::vector<Term> attention_grad_formula(GradCall& call, const Terms& in) {
  const double scale = call.attrs.number("scale"), kept_scale = 1 / (1 - call.attrs.number("rate"));
  const auto heads_first = [](Term x) { return x.op("transpose", {{"perm", Ints{0, 2, 1, 3}}}); };
  const auto along_queries = [](Term x) {
    Shape column = x.shape();
    column.push_back(1);
    return x.reshaped(column);
  };
  const Term query = heads_first(*in[kQuery]), key = heads_first(*in[kKey]), value = heads_first(*in[kValue]);
  const Term dout = heads_first(*in[kDOut]), out = heads_first(*in[kOut]), log_sum = along_queries(*in[kLogSum]);
  const Term none = log_sum.number(-std::numeric_limits<double>::infinity());

  Term scores = scale * query.op("matmul", key, {{"transpose_b", true}});
  if (in[kMask]) scores = in[kMask]->op("where", scores, none);
  if (call.attrs.flag("causal")) {
    const auto counted = [&](int64_t size, const Shape& shape) {
      const Attrs up_to{{"start", 0.0}, {"stop", static_cast<double>(size)}, {"dtype", DType::Int64}};
      return Term(call, call.op("range", {}, up_to)).reshaped(shape);
    };
    const int64_t queries = query.shape()[2], keys = key.shape()[2];
    scores = counted(queries, {queries, 1}).op("greater_equal", counted(keys, {1, keys})).op("where", scores, none);
  }
  // A query that may look at nothing has no finite log_sum, and weights of 0.
  const Term shift = log_sum.op("greater", none).op("where", log_sum, log_sum.number(0));
  const Term p = (scores - shift).op("exp");
  Term dp = dout.op("matmul", value, {{"transpose_b", true}}), weights = p;
  if (in[kKept]) {
    const Term factor = in[kKept]->op("where", p.number(kept_scale), p.number(0));
    dp = dp * factor;
    weights = p * factor;
  }
  Term along = sum(dout * out, {3});
  if (in[kDLogSum]) along = along - along_queries(*in[kDLogSum]);
  const Term dscores = scale * p * (dp - along);
  const Attrs turned{{"transpose_a", true}};
  return {heads_first(dscores.op("matmul", key)), heads_first(dscores.op("matmul", query, turned)),
          heads_first(weights.op("matmul", dout, turned))};
}

// ---- CPU -----------------------------------------------------------------------------------------------------

template <class T>
class Forward {
 public:
  explicit Forward(KernelCall& call)
      : heads_(call, call.inputs[kQuery].shape, call.inputs[kValue].shape),
        key_(heads_.reserve(sizes().width, sizes().keys)),
        value_(heads_.reserve(sizes().keys, sizes().value_width)),
        weights_(heads_.reserve(heads_.block, sizes().keys)),
        out_(heads_.reserve(heads_.block, sizes().value_width)),
        packed_key_(heads_.reserve_factor(sizes().width, sizes().keys)),
        packed_value_(heads_.reserve_factor(sizes().keys, sizes().value_width)),
        packed_first_(heads_.reserve_first()) {
    call.scratch_bytes = heads_.scratch_bytes();
  }

  void operator()(const LaunchCall& call) const {
    heads_.for_each(call, [&](const Head& head) {
      // Behind the place in a text that grows word by word there is room for more, which is passed over.
      const int8_t* const mask = call.input<int8_t>(kMask);
      const int64_t seen = heads_.select.keys_in_sight(mask, head.batch, head.head, sizes());
      const auto seen_of = [&](int i, int64_t width) { return head.of_keys(i, width).part(0, seen); };
      T* const scratch = head.scratch;
      copy_transposed(seen_of(kKey, sizes().width), heads_.scale, scratch + key_);
      copy_rows(seen_of(kValue, sizes().value_width), scratch + value_);
      const Factor key = heads_.factor(scratch + key_, sizes().width, seen, scratch + packed_key_);
      const Factor value = heads_.factor(scratch + value_, seen, sizes().value_width, scratch + packed_value_);
      for (int64_t first = 0; first < sizes().queries; first += heads_.block)
        run_block(head, key, value, seen, first, std::min(heads_.block, sizes().queries - first));
    });
  }

 private:
  using Head = typename Heads<T>::Head;
  using Factor = typename Heads<T>::Factor;

  const Sizes& sizes() const { return heads_.sizes; }

  void run_block(const Head& head, const Factor& key, const Factor& value, int64_t seen, int64_t first,
                 int64_t count) const {
    const int64_t queries = sizes().queries, width = sizes().width, value_width = sizes().value_width;
    const int64_t keys = heads_.select.keys_before(first + count, seen);
    const int64_t step = row_step(seen);
    T *const scratch = head.scratch, *weights = scratch + weights_, *packed = scratch + packed_first_;
    const Rows<const T> query = head.of_queries(kQuery, width).part(first, count);
    const Target<T> out(head.output(0, queries, value_width).part(first, count), scratch + out_);
    heads_.multiply({count, keys, width, query.strided(), nullptr, 0, weights, step}, key, packed);
    const Head next = head.next();
    cpu::widest([&] {
      for (int64_t i = 0; i < count; ++i) {
        heads_.weigh(head, first + i, keys, weights + i * step);
        next.of_queries(kQuery, width).fetch(first + i);
        next.of_keys(kKey, width).fetch(first + i);
        next.of_keys(kValue, value_width).fetch(first + i);
      }
    });
    heads_.multiply({count, value_width, keys, {weights, step, 1}, nullptr, 0, out.data(), out.step()}, value, packed);
    out.finish();
  }

  Heads<T> heads_;
  const int64_t key_, value_, weights_, out_, packed_key_, packed_value_, packed_first_;  // places in the scratch
};

// With p the weights before dropout, w after it, and dw = dout value^T:
//   dvalue = w^T dout,  dp = dropout of dw,  dscores = p * (dp - sum(dp * p) + dlog_sum),
//   dquery = scale * dscores key,  dkey = scale * dscores^T query
// where sum(dp * p) is also the product of a row of dout with that of out, which costs less.

template <class T>
class Backward {
 public:
  explicit Backward(KernelCall& call)
      : heads_(call, call.inputs[kQuery].shape, call.inputs[kValue].shape),
        has_dlog_sum_(call.has(kDLogSum)),
        key_(heads_.reserve(sizes().keys, sizes().width)),
        key_across_(heads_.reserve(sizes().width, sizes().keys)),
        value_across_(heads_.reserve(sizes().value_width, sizes().keys)),
        dkey_(heads_.reserve(sizes().keys, sizes().width)),
        dvalue_(heads_.reserve(sizes().keys, sizes().value_width)),
        weights_(heads_.reserve(heads_.block, sizes().keys)),
        dscores_(heads_.reserve(heads_.block, sizes().keys)),
        query_(heads_.reserve(heads_.block, sizes().width)),
        dout_(heads_.reserve(heads_.block, sizes().value_width)),
        dquery_(heads_.reserve(heads_.block, sizes().width)),
        packed_key_(heads_.reserve_factor(sizes().keys, sizes().width)),
        packed_key_across_(heads_.reserve_factor(sizes().width, sizes().keys)),
        packed_value_across_(heads_.reserve_factor(sizes().value_width, sizes().keys)),
        packed_block_(heads_.reserve_factor(heads_.block, std::max(sizes().width, sizes().value_width))),
        packed_first_(heads_.reserve_first()) {
    call.scratch_bytes = heads_.scratch_bytes();
  }

  void operator()(const LaunchCall& call) const {
    heads_.for_each(call, [&](const Head& head) {
      const int64_t keys = sizes().keys, width = sizes().width, value_width = sizes().value_width;
      const Target<T> dkey(head.output(kKey, keys, width), head.scratch + dkey_);
      const Target<T> dvalue(head.output(kValue, keys, value_width), head.scratch + dvalue_);
      copy_rows(head.input(kKey, keys, width), head.scratch + key_);
      copy_transposed(head.input(kKey, keys, width), heads_.scale, head.scratch + key_across_);
      copy_transposed(head.input(kValue, keys, value_width), T(1), head.scratch + value_across_);
      T* const scratch = head.scratch;
      const Keys of_keys{heads_.factor(scratch + key_, keys, width, scratch + packed_key_),
                         heads_.factor(scratch + key_across_, width, keys, scratch + packed_key_across_),
                         heads_.factor(scratch + value_across_, value_width, keys, scratch + packed_value_across_)};
      // From the last block on, since it looks at all the keys that any looks at; the others add to what it wrote.
      for (int64_t last = sizes().queries; last > 0; last -= std::min(heads_.block, last))
        run_block(head, of_keys, std::max<int64_t>(0, last - heads_.block), last, dkey, dvalue);
      const int64_t seen = sizes().queries == 0 ? 0 : heads_.select.keys_before(sizes().queries, keys);
      dkey.clear_from(seen);
      dvalue.clear_from(seen);
      dkey.finish();
      dvalue.finish();
    });
  }

 private:
  using Head = typename Heads<T>::Head;
  struct Keys {
    typename Heads<T>::Factor key, key_across, value_across;
  };

  const Sizes& sizes() const { return heads_.sizes; }

  void run_block(const Head& head, const Keys& of_keys, int64_t first, int64_t last, const Target<T>& dkey,
                 const Target<T>& dvalue) const {
    const int64_t queries = sizes().queries, width = sizes().width, value_width = sizes().value_width;
    const int64_t count = last - first, keys = heads_.select.keys_before(last, sizes().keys);
    const bool add = last < queries;
    const int64_t step = row_step(sizes().keys), row = row_step(width), value_row = row_step(value_width);
    T *const scratch = head.scratch, *weights = scratch + weights_, *dscores = scratch + dscores_;
    T *const packed = scratch + packed_first_, *packed_block = scratch + packed_block_;
    const Target<T> dquery(head.output(kQuery, queries, width).part(first, count), scratch + dquery_);
    copy_rows(head.input(kQuery, queries, width).part(first, count), scratch + query_);
    copy_rows(head.input(kDOut, queries, value_width).part(first, count), scratch + dout_);
    heads_.multiply({count, keys, width, {scratch + query_, row, 1}, nullptr, 0, weights, step}, of_keys.key_across,
                    packed);
    heads_.multiply({count, keys, value_width, {scratch + dout_, value_row, 1}, nullptr, 0, dscores, step},
                    of_keys.value_across, packed);
    const Head next = head.next();
    cpu::widest([&] {
      for (int64_t i = 0; i < count; ++i) {
        weigh(head, first + i, keys, weights + i * step, dscores + i * step);
        for (const int input : {kQuery + 0, kKey + 0}) next.input(input, queries, width).fetch(first + i);
        for (const int input : {kDOut + 0, kOut + 0}) next.input(input, queries, value_width).fetch(first + i);
        next.of_keys(kValue, value_width).fetch(first + i);
      }
    });
    heads_.multiply({keys, value_width, count, {weights, 1, step}, nullptr, 0, dvalue.data(), dvalue.step(), add},
                    heads_.factor(scratch + dout_, count, value_width, packed_block), packed);
    heads_.multiply({keys, width, count, {dscores, 1, step}, nullptr, 0, dkey.data(), dkey.step(), add},
                    heads_.factor(scratch + query_, count, width, packed_block), packed);
    heads_.multiply({count, width, keys, {dscores, step, 1}, nullptr, 0, dquery.data(), dquery.step()}, of_keys.key,
                    packed);
    dquery.finish();
  }

  // Makes a query's weights after dropout of its scores, and scale * dscores of the gradient of those weights.
  void weigh(const Head& head, int64_t query, int64_t keys, T* weights, T* dscores) const {
    const int64_t n = heads_.select.keys_of(query, sizes().keys), index = head.query_index(query);
    const T log_sum = head.call.template input<T>(kLogSum)[index];
    const T shift = log_sum > -std::numeric_limits<T>::infinity() ? log_sum : T(0);
    heads_.select.mask_row(head.call.template input<int8_t>(kMask), head.batch, head.head, query, n, weights);
    double along = cpu::dot(head.input(kDOut, sizes().queries, sizes().value_width).row(query),
                            head.input(kOut, sizes().queries, sizes().value_width).row(query), sizes().value_width);
    if (has_dlog_sum_) along -= head.call.template input<T>(kDLogSum)[index];
    const T mean = static_cast<T>(along), scale = heads_.scale;
    const int8_t* kept =
        heads_.select.dropped ? head.call.template input<int8_t>(kKept) + index * sizes().keys : nullptr;
    if (kept) drop_row(kept, n, static_cast<T>(heads_.select.kept_scale), dscores);
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const T p = elementary::exp(weights[j] - shift);
      dscores[j] = p * (dscores[j] - mean) * scale;
      weights[j] = p;
    }
    if (kept) drop_row(kept, n, static_cast<T>(heads_.select.kept_scale), weights);
    std::fill(weights + n, weights + keys, T(0));
    std::fill(dscores + n, dscores + keys, T(0));
  }

  Heads<T> heads_;
  const bool has_dlog_sum_;
  // Places in the scratch; "across" is the transpose.
  const int64_t key_, key_across_, value_across_, dkey_, dvalue_, weights_, dscores_, query_, dout_, dquery_;
  const int64_t packed_key_, packed_key_across_, packed_value_across_, packed_block_, packed_first_;
};

template <template <class> class Pass>
Launch prepare(KernelCall& call) {
  return visit_floating(call.inputs[kQuery].dtype, [&](auto zero) -> Launch { return Pass<decltype(zero)>(call); });
}

Launch prepare_forward(KernelCall& call) {
  return call.inputs[kQuery].shape[1] <= Few<float>::kMost ? prepare<Few>(call) : prepare<Forward>(call);
}

double attention_flops(const KernelCall& call, int products) {
  return products * Sizes(call.inputs[kQuery].shape, call.inputs[kValue].shape).flops();
}

// ---- the ops -------------------------------------------------------------------------------------------------

std::vector<AttrDef> attention_attrs() {
  return {{"scale", 1.0, "factor of the scores", true},
          {"causal", false, "query i looks at the keys 0 to i only"},
          {"rate", 0.0, "with `kept`: the part of the weights that dropout drops, in [0, 1)"},
          {"rounds_to", DType::Float32,
           "of automatic mixed precision: bfloat16 where the kernel rounds float32 factors of its products"}};
}

bool rounds(const OpCall& call, DType narrow) {
  return narrow == DType::BFloat16 && call.dtype(kQuery) == DType::Float32 &&
         tiles_fit(Sizes(call.shape(kQuery), call.shape(kValue)));
}

}  // namespace

void add_attention(Catalog& catalog) {
  const TensorType query = f32({2, 5, 3, 4}), key = f32({2, 7, 3, 4}), value = f32({2, 7, 3, 6});
  const TensorType kept{DType::Int8, {2, 3, 5, 7}}, mask{DType::Int8, {2, 1, 5, 7}}, key_mask{DType::Int8, {7}};
  OpDef op;
  op.name = "dot_product_attention";
  op.doc =
      "Attention of every query to all keys of its head and sample, in one step.\n"
      "  weights = softmax over j of scale * query[b, i, h] . key[b, j, h]\n"
      "  out[b, i, h] = sum_j weights[j] * value[b, j, h]\n"
      "  log_sum[b, h, i] = log(sum_j exp(scale * query[b, i, h] . key[b, j, h]))\n"
      "A weight whose mask is 0 is 0, and so is out where no weight is left. Dropout keeps the weights where `kept`\n"
      "is not 0, and multiplies them by 1 / (1 - rate).\n"
      "shapes: query (batch, queries, heads, width), key (batch, keys, heads, width),\n"
      "  value (batch, keys, heads, value width), mask broadcast to (batch, heads, queries, keys), kept of just that\n"
      "  shape -> out (batch, queries, heads, value width), log_sum (batch, heads, queries)\n"
      "dtypes: float32 or float64, all the same; mask and kept int8\n"
      "errors: shapes that do not fit; rate outside [0, 1)\n"
      "source: Vaswani et al., Attention Is All You Need, 2017; keeping only log_sum for the gradient as in\n"
      "  Dao et al., FlashAttention, 2022";
  op.inputs = {{"query"}, {"key"}, {"value"}, {"mask", InputDef::Optional}, {"kept", InputDef::Optional}};
  op.outputs = {"out", "log_sum"};
  op.attrs = attention_attrs();
  op.infer = infer_attention;
  op.grad = attention_grads;
  op.cpu = {prepare_forward};
  op.narrow.rounds = rounds;
  op.flops = [](const KernelCall& call) { return attention_flops(call, 2); };
  const Attrs scaled{{"scale", 0.7}}, causal{{"scale", 1.0}, {"causal", true}};
  op.examples = {{{query, key, value}, scaled},
                 {{query, key, value}, causal},
                 {{query, key, value, mask}, scaled, -1, 1, 2},
                 {{query, key, value, key_mask, kept}, {{"scale", 0.7}, {"rate", 0.5}}, -1, 1, 2},
                 {{f32({1, 150, 2, 17}), f32({1, 150, 2, 17}), f32({1, 150, 2, 17})}, causal}};
  catalog.add(op);

  OpDef grad;
  grad.name = "dot_product_attention_grad";
  grad.doc =
      "Gradients of dot_product_attention. With p the weights and dp = dout value^T, both after dropout:\n"
      "  dvalue = p^T dout\n"
      "  ds = p * (dp - dout . out + dlog_sum), dquery = scale * ds key, dkey = scale * ds^T query\n"
      "shapes: as there; dout as out, dlog_sum as log_sum -> dquery, dkey and dvalue as query, key and value";
  grad.inputs = op.inputs;
  for (const char* name : {"dout", "out", "log_sum"}) grad.inputs.push_back({name});
  grad.inputs.push_back({"dlog_sum", InputDef::Optional});
  grad.outputs = {"dquery", "dkey", "dvalue"};
  grad.attrs = op.attrs;
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const std::vector<TensorType> types = infer_attention(call);
    require_type(call, kDOut, "dout", types[0]);
    require_type(call, kOut, "out", types[0]);
    require_type(call, kLogSum, "log_sum", types[1]);
    if (call.has(kDLogSum)) require_type(call, kDLogSum, "dlog_sum", types[1]);
    return {call.type(kQuery), call.type(kKey), call.type(kValue)};
  };
  grad.grad = gradient_of(attention_grad_formula);
  grad.cpu = {prepare<Backward>};
  grad.narrow.rounds = rounds;
  grad.flops = [](const KernelCall& call) { return attention_flops(call, 5); };
  const TensorType out = f32({2, 5, 3, 6}), per_query = f32({2, 3, 5});
  // There are more keys than queries, so the second has some that no query reaches.
  grad.examples = {{{query, key, value, key_mask, kept, out, out, per_query, per_query}, scaled, -1, 1, 2},
                   {{query, key, value, mask, kept, out, out, per_query, per_query}, causal, -1, 1, 2}};
  catalog.add(std::move(grad));
}

}  // namespace moonflow
