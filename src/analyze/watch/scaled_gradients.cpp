// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/scaled_gradients.h"

#include <algorithm>

namespace nanhunt::analyze {

void ScaledGradients::on_op(const OpInView& op, bool unscales) {
  const Phase phase = op.record->phase;
  const auto is_scaled = [&](const Value* in) { return holds(in); };
  const bool scaled = phase == Phase::kScale || (phase == Phase::kBackward && !unscales &&
                                                 std::any_of(op.in.begin(), op.in.end(), is_scaled));
  for (const Value* out : op.out) {
    if (out == nullptr) continue;
    if (!scaled) {
      storages_.erase(out->storage);
    } else if (storages_.size() < kMaxStorages) {
      storages_.insert(out->storage);
    }
  }
}

bool ScaledGradients::are_used_by(const OpInView& op) const {
  const UpdateRule rule = op.info->update;
  if (op.record->phase != Phase::kOptimizer || rule == UpdateRule::kNotMeasured || rule == UpdateRule::kDecay) return false;
  bool used = false;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    // A fused optimizer is given the scale, and divides by it.
    if (names_.is(op.inputs[i].slot, "grad_scale")) return false;
    used = used || (holds(op.in[i]) && op.in[i]->made_in == Phase::kBackward && op.in[i]->made_step == op.record->step);
  }
  return used;
}

}  // namespace nanhunt::analyze
