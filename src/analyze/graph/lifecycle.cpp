// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/lifecycle.h"

#include <algorithm>

namespace nanhunt::analyze {

bool mixes(const OpInfo& info, ArgRole role) {
  if (role == ArgRole::kMask || role == ArgRole::kIndex) return false;
  return (role != ArgRole::kOverwritten || !info.has(kOverwritesAll)) && !info.has(kReadsShape);
}

bool is_share(const OpInView& op, std::size_t input) {
  const ArgRole role = op.inputs[input].role;
  if (!op.gives || role == ArgRole::kMask || role == ArgRole::kIndex) return false;
  if (role != ArgRole::kOverwritten) return true;
  return std::none_of(op.inputs.begin(), op.inputs.end(), [](const OpArg& arg) { return arg.role == ArgRole::kRead; });
}

bool leaves_unread(const OpInView& op, std::size_t input, const Names& names) {
  if (op.call != nullptr && !is_share(op, input)) return true;
  const OpArg& arg = op.inputs[input];
  const bool overwritten = arg.role == ArgRole::kOverwritten;
  if (op.info->has(kReadsShape) || (overwritten && op.info->has(kOverwritesAll))) return true;
  if (overwritten && op.info->known() && names.is(arg.slot, "out")) return true;
  if (!names.is(arg.slot, "self") && !names.is(arg.slot, "input")) return false;
  return std::any_of(op.scalars.begin(), op.scalars.end(),
                     [&](const ScalarArg& s) { return s.value == 0 && names.is(s.name, "beta"); });
}

Flow classify(const OpInView& op, std::uint8_t out_kinds, const Names& names) {
  Flow flow;
  std::uint8_t in_kinds = 0;
  const bool tells_selected = op.info->has(kSelects) && std::all_of(op.out.begin(), op.out.end(), [](const Value* out) {
                                return out == nullptr || out->bad == 0 || out->stats.counted();
                              });
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    if (!mixes(*op.info, op.inputs[i].role) || leaves_unread(op, i, names)) continue;
    const Value* value = op.in[i];
    if (value == nullptr || !value->has_stats) {
      flow.watched = false;
      if (value != nullptr && value->tainted()) flow.tainted.push_back(value);
      continue;
    }
    if (value->bad == 0) continue;
    if (tells_selected && value->stats.counted() && (value->bad & out_kinds) == 0) continue;  // none was selected
    in_kinds = static_cast<std::uint8_t>(in_kinds | value->bad);
    flow.bad.push_back(value);
  }
  if (!flow.bad.empty()) {
    const bool new_nan = (out_kinds & kBadNaN) != 0 && (in_kinds & kBadNaN) == 0;
    flow.lifecycle = new_nan ? Lifecycle::kTransform : Lifecycle::kPropagate;
  } else {
    flow.lifecycle = flow.watched ? Lifecycle::kAppear : Lifecycle::kUnknown;
  }
  return flow;
}

}  // namespace nanhunt::analyze
