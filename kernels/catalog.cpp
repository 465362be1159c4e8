#include "kernels/catalog.h"

#include "kernels/narrow.h"

namespace moonflow {

namespace {

// The same ops, all of which take the narrow dtypes.
std::shared_ptr<const Catalog> with_narrow_dtypes(const Catalog& catalog) {
  const auto result = std::make_shared<Catalog>();
  for (const auto& [name, def] : catalog.ops()) {
    const OpDef& known = def;
    OpDef op = known;
    if (op.cpu && !op.narrow.in_kernels) {
      std::function<bool(size_t)> is_written;
      if (!op.writes.empty()) is_written = [known](size_t place) { return known.updates(place); };
      op.cpu = cpu::widened(std::move(op.cpu), std::move(is_written));
    }
    result->add(std::move(op));
  }
  result->sum_op = catalog.sum_op;
  result->cast_op = catalog.cast_op;
  return result;
}

std::shared_ptr<const Catalog> make_catalog() {
  auto catalog = std::make_shared<Catalog>();
  add_elementwise(*catalog);
  add_fill(*catalog);
  add_reduce(*catalog);
  add_shape(*catalog);
  add_slice(*catalog);
  add_index(*catalog);
  add_scatter(*catalog);
  add_sort(*catalog);
  add_matmul(*catalog);
  add_dense_pair(*catalog);
  add_matmul_update(*catalog);
  add_matmul_bfloat16_update(*catalog);
  add_conv(*catalog);
  add_bias(*catalog);
  add_pool(*catalog);
  add_resample(*catalog);
  add_softmax(*catalog);
  add_attention(*catalog);
  add_cross_entropy(*catalog);
  add_loss(*catalog);
  add_l2_normalize(*catalog);
  add_loss_scale(*catalog);
  add_classifier(*catalog);
  add_norm(*catalog);
  add_layer_norm(*catalog);
  add_moments(*catalog);
  add_random(*catalog);
  add_dense_back(*catalog);
  add_dense_update(*catalog);
  add_update(*catalog);
  add_schedule(*catalog);
  catalog->sum_op = "add";
  catalog->cast_op = "cast";
  return with_narrow_dtypes(*catalog);
}

}  // namespace

std::shared_ptr<const Catalog> all_ops() {
  static const std::shared_ptr<const Catalog> catalog = make_catalog();
  return catalog;
}

}  // namespace moonflow
