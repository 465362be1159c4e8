#include "kernels/joined_products.h"

#include <algorithm>
#include <map>
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
    choose();
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
  }

  // a^T b
  bool is_product(ValueId value) const {
    const NodeId id = graph_.made_by(value, "matmul");
    if (id == kNone || graph_.type(value) != whole_) return false;
    const Attrs& attrs = graph_.node(id).attrs;
    return attrs.flag("transpose_a") && !attrs.flag("transpose_b");
  }

  // Leaves the products that are of one kind, of the first kind that has several; the others are added as they are.
  // Factors that are computed once more to save memory are there for one part of the job at a time.
  void choose() {
    std::map<int, std::vector<NodeId>> kinds;  // by part
    for (const NodeId id : products_) {
      std::vector<NodeId>& kind = kinds[part(id)];
      if (kind.empty() || alike(id, kind[0])) kind.push_back(id);
    }
    std::vector<NodeId> chosen;
    for (const auto& [part, kind] : kinds)
      if (chosen.size() < 2) chosen = kind;
    for (const NodeId id : products_)
      if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) others_.push_back(graph_.node(id).outputs[0]);
    products_ = std::move(chosen);
    // From the youngest to the oldest, so that what is fused is as young as all that it reads.
    std::sort(products_.rbegin(), products_.rend());
  }

  int part(NodeId product) const {
    int part = 0;
    for (const ValueId factor : graph_.node(product).inputs)
      part = later_repeated(part, graph_.node(graph_.maker(factor)).part);
    return part;
  }

  bool alike(NodeId a, NodeId b) const {
    const Node &one = graph_.node(a), &other = graph_.node(b);
    const auto same_dtype = [&](int i) {
      return graph_.type(one.inputs[i]).dtype == graph_.type(other.inputs[i]).dtype;
    };
    return one.attrs == other.attrs && same_dtype(0) && same_dtype(1);
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
