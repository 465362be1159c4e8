#include "engine/storage.h"

#include <algorithm>

namespace moonflow {

namespace {

class MemoryStage {
 public:
  MemoryStage(const Draft& draft, const LaidOut& laid_out, const Branches& branches)
      : draft_(draft),
        laid_out_(laid_out),
        branches_(branches),
        uses_(draft.value_count(), 0),
        tap_source_(draft.value_count(), false),
        last_(draft.value_count(), -1) {
    for (const DraftStep& step : laid_out.steps)
      for (const ValueId input : step.inputs)
        if (input != kNone) ++uses_[laid_out.origins[input]];
    for (const Tap& tap : draft.taps()) tap_source_[laid_out.origins[laid_out.tap_source(tap.value)]] = true;
  }

  Storage run(const std::vector<Step>& prepared) {
    const int step_count = static_cast<int>(branches_.order.size());
    storage_.root = laid_out_.origins;
    storage_.block.assign(draft_.value_count(), -1);
    std::vector<int> root_uses(draft_.value_count(), 0);
    bool keeping = step_count > 0 && step_at(0).kept;
    for (int at = 0; at < step_count; ++at) {
      const DraftStep& step = step_at(at);
      if (keeping && !step.kept) {  // what is alive now stays so for all runs: it has one reader more
        for (int& uses : root_uses) uses += uses > 0 ? 1 : 0;
        keeping = false;
      }
      for (size_t output = 0; output < step.outputs.size() && !step.is_form; ++output) {
        const ValueId value = step.outputs[output];
        const ValueId shared = share(step, static_cast<int>(output), root_uses, at);
        if (shared != kNone) {
          storage_.root[value] = shared;
          root_uses[shared] += uses_[value];
        } else {
          storage_.block[value] = static_cast<int>(storage_.blocks.size());
          storage_.blocks.push_back({bytes(value), at, step_count});
          root_uses[value] = uses_[value];
        }
        use(storage_.root[value], at);
        // A tap copies a kept value in every run, not only where it is made.
        if (step.kept && tap_source_[value]) ++root_uses[storage_.root[value]];
      }
      // What nobody reads from here on is free for what comes when they have ended.
      for (const ValueId input : step.inputs) {
        if (input == kNone || !storage_.in_arena(root_of(input))) continue;
        use(root_of(input), at);
        if (--root_uses[root_of(input)] == 0) release(root_of(input));
      }
      for (const ValueId output : step.outputs) {
        const ValueId root = storage_.root[output];
        if (storage_.in_arena(root) && root_uses[root] == 0 && uses_[output] == 0 && root == output) release(root);
      }
    }
    for (ValueId value = 0; value < draft_.value_count(); ++value) storage_.root[value] = root_of(value);
    for (int at = 0; at < step_count; ++at) {
      const int64_t bytes = prepared[branches_.order[at]].scratch_bytes;
      storage_.scratch.push_back(bytes > 0 ? static_cast<int>(storage_.blocks.size()) : -1);
      if (bytes > 0) storage_.blocks.push_back({checked_aligned(bytes), at, branches_.beside[at]});
    }
    storage_.arena = arrange(storage_.blocks);
    return std::move(storage_);
  }

 private:
  const Draft& draft_;
  const LaidOut& laid_out_;
  const Branches& branches_;
  std::vector<int> uses_;         // by origin: how many steps read it
  std::vector<bool> tap_source_;  // by origin: a tap copies it
  std::vector<int> last_;         // by root: the last place that may go on beside one of its users so far
  Storage storage_;

  const DraftStep& step_at(int place) const { return laid_out_.steps[branches_.order[place]]; }
  ValueId root_of(ValueId value) const { return storage_.root[laid_out_.origins[value]]; }

  int64_t bytes(ValueId value) const {
    return checked_aligned(std::max<int64_t>(laid_out_.layouts[value].bytes_of(draft_.type(value)), 1));
  }

  void use(ValueId root, int place) { last_[root] = std::max(last_[root], branches_.beside[place]); }
  void release(ValueId root) { storage_.blocks[storage_.block[root]].last_step = last_[root]; }

  // The root whose memory an output takes over, or kNone when it needs its own.
  ValueId share(const DraftStep& step, int output, const std::vector<int>& root_uses, int place) const {
    if (step.is_reorder) return kNone;
    for (const Sharing& inplace : step.node->op->inplace) {
      const ValueId input = step.inputs[inplace.input], value = step.outputs[output];
      if (inplace.output != output || input == kNone) continue;
      const ValueId root = root_of(input);
      const bool last_use = storage_.in_arena(root) && root_uses[root] == 1 && last_[root] < place;
      if (last_use && draft_.type(input) == draft_.type(value) &&
          laid_out_.layouts[input] == laid_out_.layouts[value] &&
          draft_.type(root).bytes() == draft_.type(value).bytes())
        return root;
    }
    return kNone;
  }
};

}  // namespace

Storage plan_storage(const Draft& draft, const LaidOut& laid_out, const Branches& branches,
                     const std::vector<Step>& prepared) {
  return MemoryStage(draft, laid_out, branches).run(prepared);
}

}  // namespace moonflow
