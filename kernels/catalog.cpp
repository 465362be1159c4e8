#include "kernels/catalog.h"

namespace moonflow {

std::shared_ptr<const Catalog> make_catalog() {
  auto catalog = std::make_shared<Catalog>();
  add_elementwise(*catalog);
  add_fill(*catalog);
  add_reduce(*catalog);
  add_shape(*catalog);
  add_slice(*catalog);
  add_index(*catalog);
  add_matmul(*catalog);
  add_conv(*catalog);
  add_bias(*catalog);
  add_pool(*catalog);
  add_softmax(*catalog);
  add_attention(*catalog);
  add_loss(*catalog);
  add_norm(*catalog);
  add_layer_norm(*catalog);
  add_moments(*catalog);
  add_random(*catalog);
  add_update(*catalog);
  add_schedule(*catalog);
  catalog->sum_op = "add";
  return catalog;
}

}  // namespace moonflow
