// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/eps_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nanhunt::analyze {

void EpsAudit::count(StringId op, StringId module, Phase phase, double eps, DType dtype, std::uint64_t zeros) {
  if (!is_floating(dtype) || !std::isfinite(eps)) return;
  auto it = index_.find({op, module, phase, eps, dtype});
  if (it == index_.end()) {
    if (rows_.size() >= kMaxRows) return;
    it = index_.emplace(std::tuple(op, module, phase, eps, dtype), rows_.size()).first;
    EpsAuditRow row;
    row.where = fmt::format("{} {}", phase_name(phase), names_.text(op));
    if (!names_.text(module).empty()) row.where += fmt::format(" ({})", names_.text(module));
    row.phase = phase;
    row.eps = eps;
    row.dtype = dtype;
    row.stored = round_to(dtype, eps);
    row.verdict = row.stored == 0                                           ? "zero"
                  : std::fabs(row.stored) < format_limits(dtype).min_normal ? "subnormal"
                                                                            : "ok";
    rows_.push_back(std::move(row));
  }
  ++rows_[it->second].occurrences;
  rows_[it->second].zero_denominators += zeros;
}

void EpsAudit::on_op(const OpInView& op) {
  // A kernel that forms x + eps itself.
  for (const ScalarArg& scalar : op.scalars) {
    if (scalar.value > 0 && names_.is(scalar.name, "eps")) {
      const DType dtype = eps_dtype(*op.info, op.record->compute_dtype);
      count(op.record->op, op.record->module, op.record->phase, scalar.value, dtype, 0);
    }
  }
  // x + eps as an op of its own, used at once.
  if (op.info->pole == Pole::kNone || op.info->pole >= Pole::kLabels) return;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || op.inputs[i].slot == 0) continue;
    const std::string& slot = names_.text(op.inputs[i].slot);
    if (std::find(op.info->pole_slots.begin(), op.info->pole_slots.end(), slot) == op.info->pole_slots.end()) continue;
    const OpRing& ring = graph_.ring();
    const RecentOp* maker = ring.find(value->producer);
    if (maker == nullptr || maker->scalars == 0) continue;
    const OpInfo& info = names_.op(maker->op);
    if (info.zero != ZeroRule::kAdd && info.zero != ZeroRule::kClamp) continue;
    for (std::uint32_t s = 0; s < maker->scalars; ++s) {
      const ScalarArg& scalar = ring.scalar(*maker, s);
      const std::string& name = names_.text(scalar.name);
      const bool guards = info.zero == ZeroRule::kClamp ? name == "min" : name == "other";
      if (!guards || !(scalar.value > 0) || scalar.value > kLargestGuard) continue;
      const LayoutRecord* layout = names_.layout(value->layout);
      const DType dtype = layout == nullptr ? maker->compute_dtype : layout->dtype;
      const std::uint64_t zeros = value->has_stats ? static_cast<std::uint64_t>(value->stats.zero) : 0;
      count(maker->op, maker->module, maker->phase, scalar.value, dtype, zeros);
    }
  }
}

}  // namespace nanhunt::analyze
