#include "kernels/catalog.h"

#include "kernels/cpu/narrow.h"
#include "kernels/lacks_gradient.h"

namespace moonflow {

namespace {

// The CPU's kernel takes the narrow dtypes too.
void take_narrow_dtypes(OpDef& op) {
  if (!op.cpu || op.narrow.in_kernels) return;
  std::function<bool(size_t)> is_written;
  if (!op.writes.empty()) is_written = [op](size_t place) { return op.updates(place); };
  op.cpu = cpu::widened(std::move(op.cpu), std::move(is_written));
}

// The name says that it is a gradient, and so no constant.
void refuse_gradient_it_lacks(OpDef& op) {
  constexpr std::string_view kEnd = "_grad";
  const bool is_gradient = op.name.size() > kEnd.size() && op.name.substr(op.name.size() - kEnd.size()) == kEnd;
  if (is_gradient && !op.grad) op.grad = LacksGradient{};
}

std::shared_ptr<const Catalog> make_catalog() {
  auto catalog = std::make_shared<Catalog>();
  add_elementwise(*catalog);
  add_array_elements(*catalog);
  add_fill(*catalog);
  add_fourier(*catalog);
  add_reduce(*catalog);
  add_argmax(*catalog);
  add_shape(*catalog);
  add_slice(*catalog);
  add_index(*catalog);
  add_scatter(*catalog);
  add_sort(*catalog);
  add_cumsum(*catalog);
  add_matmul(*catalog);
  add_dense_pair(*catalog);
  add_matmul_update(*catalog);
  add_matmul_bfloat16_update(*catalog);
  add_conv(*catalog);
  add_quantized_conv(*catalog);
  add_bias(*catalog);
  add_pool(*catalog);
  add_resample(*catalog);
  add_resample_axis(*catalog);
  add_grid_sample(*catalog);
  add_softmax(*catalog);
  add_attention(*catalog);
  add_cross_entropy(*catalog);
  add_ctc(*catalog);
  add_loss(*catalog);
  add_l2_normalize(*catalog);
  add_loss_scale(*catalog);
  add_collective(*catalog);
  add_classifier(*catalog);
  add_norm(*catalog);
  add_layer_norm(*catalog);
  add_linalg(*catalog);
  add_moments(*catalog);
  add_random(*catalog);
  add_dense_back(*catalog);
  add_dense_update(*catalog);
  add_update(*catalog);
  add_rows_update(*catalog);
  add_schedule(*catalog);
  catalog->sum_op = "add";
  catalog->cast_op = "cast";
  catalog->revise(take_narrow_dtypes);
  catalog->revise(refuse_gradient_it_lacks);
  return catalog;
}

}  // namespace

std::shared_ptr<const Catalog> all_ops() {
  // Never destroyed, as no table is that it is made by: another thread may still ask for it when the process ends.
  static const auto& catalog = *new std::shared_ptr<const Catalog>(make_catalog());
  return catalog;
}

}  // namespace moonflow
