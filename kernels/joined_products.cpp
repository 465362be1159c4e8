#include "kernels/joined_products.h"

#include <algorithm>
#include <string>

namespace moonflow {
namespace {

// The steps of a recurrent net share a weight, whose gradient is the sum of a[t]^T b[t] over them: as many results of
// the weight's size, each written, read and added. Joined along their rows, all a and all b make one product, which
// writes its result once and is as many operations. Other addends of the sum stay addends.
class JoinedProducts {
 public:
  explicit JoinedProducts(Rewriter& graph) : graph_(graph) {}

  // The outermost of the sums looks for the products.
  bool fuse(NodeId sum) {
    whole_ = graph_.type(graph_.node(sum).outputs[0]);
    if (whole_.shape.rank() != 2 || is_added(graph_.node(sum).outputs[0])) return false;
    collect(sum);
    if (!pays()) return false;
    join();
    return true;
  }

 private:
  bool is_added(ValueId value) const {
    const NodeId reader = graph_.sole_reader(value);
    return reader != kNone && is_sum(reader);
  }

  bool is_sum(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.kind == Node::Op && node.op->name == "add" && graph_.type(node.outputs[0]) == whole_;
  }

  void collect(NodeId outermost) {
    sums_ = {outermost};
    for (size_t next = 0; next < sums_.size(); ++next) {
      for (const ValueId addend : graph_.node(sums_[next]).inputs) {
        const NodeId maker = graph_.maker(addend);
        const bool own = graph_.sole_reader(addend) != kNone;
        if (own && is_sum(maker)) {
          sums_.push_back(maker);
        } else if (own && is_product(addend)) {
          products_.push_back(maker);
        } else {
          others_.push_back(addend);
        }
      }
    }
    // From the youngest to the oldest, so that what is fused is as young as all that it reads.
    std::sort(products_.rbegin(), products_.rend());
  }

  // a^T b, of the kind that the first one is.
  bool is_product(ValueId value) const {
    const NodeId id = graph_.made_by(value, "matmul");
    if (id == kNone || graph_.type(value) != whole_) return false;
    const Node& product = graph_.node(id);
    if (!product.attrs.flag("transpose_a") || product.attrs.flag("transpose_b")) return false;
    if (products_.empty()) return true;
    const Node& first = graph_.node(products_[0]);
    const auto alike = [&](int i) {
      return graph_.type(product.inputs[i]).dtype == graph_.type(first.inputs[i]).dtype;
    };
    return product.attrs == first.attrs && alike(0) && alike(1);
  }

  // To join factors is to copy them, which has to be less than what is done with results of which each is stored.
  bool pays() const {
    if (products_.size() < 2) return false;
    constexpr int64_t kBeginning = 4096;  // elements that are copied while a step begins
    const auto count = static_cast<int64_t>(products_.size());
    int64_t copied = 0;
    for (const NodeId id : products_)
      for (const ValueId factor : graph_.node(id).inputs) copied += graph_.type(factor).count();
    return copied <= count * (whole_.count() + kBeginning);
  }

  // Each fused op takes the places of some of what it is made of: two products those of the joined factors, the last
  // sums those of what is added to the product.
  void join() {
    const Attrs attrs = graph_.node(products_[0]).attrs;
    const std::vector<ValueId> outputs = graph_.node(sums_[0]).outputs;
    std::vector<ValueId> factors[2];
    TensorType joined[2];
    for (int i : {0, 1}) {
      joined[i] = graph_.type(graph_.node(products_[0]).inputs[i]);
      joined[i].shape[0] = 0;
      for (const NodeId id : products_) {
        factors[i].push_back(graph_.node(id).inputs[i]);
        joined[i].shape[0] += graph_.type(factors[i].back()).shape[0];
      }
    }
    const ValueId a = graph_.add_value(joined[0]), b = graph_.add_value(joined[1]);
    graph_.fuse({products_[0]}, "concat", factors[0], {{"axis", int64_t{0}}}, {a});
    graph_.fuse({products_[1]}, "concat", factors[1], {{"axis", int64_t{0}}}, {b});

    std::vector<NodeId> replaced(sums_.begin() + static_cast<int64_t>(others_.size()), sums_.end());
    replaced.insert(replaced.end(), products_.begin() + 2, products_.end());
    ValueId sum = others_.empty() ? outputs[0] : graph_.add_value(whole_);
    graph_.fuse(replaced, "matmul", {a, b}, attrs, {sum});
    for (size_t i = others_.size(); i > 0; --i) {
      const ValueId next = i == 1 ? outputs[0] : graph_.add_value(whole_);
      graph_.fuse({sums_[i - 1]}, "add", {others_[i - 1], sum}, {}, {next});
      sum = next;
    }
  }

  Rewriter& graph_;
  TensorType whole_;
  std::vector<NodeId> sums_;  // the outermost first
  std::vector<NodeId> products_;
  std::vector<ValueId> others_;
};

}  // namespace

bool join_products(Rewriter& graph, NodeId sum) { return JoinedProducts(graph).fuse(sum); }

}  // namespace moonflow
