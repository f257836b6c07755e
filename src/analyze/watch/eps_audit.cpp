// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/eps_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// The smallest power of ten that is a normal number.
double smallest_safe(DType dtype) { return std::pow(10.0, std::ceil(std::log10(format_limits(dtype).min_normal))); }

// In which the op stores the reciprocal deviations that it divides by, if it does.
std::optional<DType> deviations_of(const OpInView& op, const Names& names) {
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    if (op.out[i] == nullptr || !holds_deviations(names.text(op.outputs[i].slot))) continue;
    if (const LayoutRecord* layout = names.layout(op.out[i]->layout)) return layout->dtype;
  }
  return std::nullopt;
}

}  // namespace

void EpsAudit::count(const First& place, double eps, DType dtype, std::uint64_t zeros) {
  const auto [op, module, phase] = std::tuple(place.at.op, place.at.module, place.at.phase);
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
    first_.push_back(place);
  }
  ++rows_[it->second].occurrences;
  rows_[it->second].zero_denominators += zeros;
}

void EpsAudit::on_op(const OpInView& op) {
  // A kernel that forms x + eps itself.
  for (const ScalarArg& scalar : op.scalars) {
    if (scalar.value > 0 && names_.is(scalar.name, "eps")) {
      const DType dtype = eps_dtype(*op.info, op.record->compute_dtype, deviations_of(op, names_));
      const OpRecord& r = *op.record;
      count({{r.seq, r.step, r.micro_batch, r.phase, r.module, r.op}, r.call_site}, scalar.value, dtype, 0);
    }
  }
  // x + eps as an op of its own, used at once.
  if (op.info->pole == Pole::kNone || op.info->pole >= Pole::kLabels) return;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || op.inputs[i].slot == 0) continue;
    const std::string& slot = names_.text(op.inputs[i].slot);
    if (std::find(op.info->pole_slots.begin(), op.info->pole_slots.end(), slot) == op.info->pole_slots.end()) continue;
    const RecentOp* maker = graph_.ring().find(graph_.producer_of(*value));
    if (maker == nullptr) continue;
    for (const double guard : guards_of(*maker)) {
      const LayoutRecord* layout = names_.layout(value->layout);
      const DType dtype = layout == nullptr ? maker->compute_dtype : layout->dtype;
      const std::uint64_t zeros = value->has_stats ? static_cast<std::uint64_t>(value->stats.zero) : 0;
      const OpRef at{maker->seq, maker->step, op.record->micro_batch, maker->phase, maker->module, maker->op};
      const bool added = names_.op(maker->op).zero == ZeroRule::kAdd;
      count({at, op.record->call_site, added}, guard, dtype, zeros);
    }
  }
}

std::vector<double> EpsAudit::guards_of(const RecentOp& maker) {
  std::vector<double> guards;
  const OpRing& ring = graph_.ring();
  const ZeroRule rule = names_.op(maker.op).zero;
  if (rule != ZeroRule::kAdd && rule != ZeroRule::kClamp) return guards;
  const auto add = [&](double number) {
    if (number > 0 && number <= kLargestGuard) guards.push_back(number);
  };
  const std::string_view name = rule == ZeroRule::kClamp ? "min" : "other";
  for (std::uint32_t i = 0; i < maker.scalars; ++i) {
    const ScalarArg& scalar = ring.scalar(maker, i);
    if (names_.is(scalar.name, name)) add(scalar.value);
  }
  // A lower limit may be a tensor of one number.
  for (std::uint32_t i = 0; rule == ZeroRule::kClamp && i < maker.inputs; ++i) {
    const OpArg& input = ring.input(maker, i);
    const Value* limit = names_.is(input.slot, name) ? graph_.value(input.value) : nullptr;
    if (limit != nullptr && limit->has_stats && limit->stats.numel == 1) add(limit->stats.max);
  }
  return guards;
}

std::vector<Finding> EpsAudit::findings() const {
  std::vector<Finding> out;
  std::map<std::tuple<Phase, double, DType>, std::size_t> index;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const EpsAuditRow& row = rows_[i];
    if (row.verdict == "ok") continue;
    const auto [known, added] = index.try_emplace({row.phase, row.eps, row.dtype}, out.size());
    const std::string& module = names_.text(first_[i].at.module);
    if (!added) {
      Finding& f = out[known->second];
      if (!module.empty() && f.also.size() < 1024) f.also.push_back(module);
      continue;
    }
    const bool lost = row.verdict == "zero";
    const std::string format(dtype_name(row.dtype)), eps = number(row.eps);
    Finding f;
    f.cls = FindingClass::kEpsUnderflow;
    f.severity = lost && first_[i].added ? Severity::kFault : Severity::kWarning;
    f.place = place_of(first_[i].at, names_);
    f.first_step = f.last_step = first_[i].at.step;
    f.call_site = names_.text(first_[i].site);
    f.title = lost ? fmt::format("eps {} is 0 in {}: nothing keeps the denominator from being 0", eps, format)
                   : fmt::format("eps {} is subnormal in {}: {} is left of it, and 0 where subnormals are flushed", eps,
                                 format, number(row.stored));
    f.explanation = fmt::format(
        "The constant is added in {}, whose smallest normal number is {}. The smallest power of ten that is safe there "
        "is {}.",
        format, number(format_limits(row.dtype).min_normal), number(smallest_safe(row.dtype)));
    f.evidence.push_back(row.zero_denominators == 0
                             ? "No denominator of 0 was met so far."
                             : fmt::format("{} denominators were 0 after it was added.", row.zero_denominators));
    f.advice = {make_advice("raise-eps")};
    f.advice.back().text = fmt::format("Raise eps to {} or more, or add it in fp32.", number(smallest_safe(row.dtype)));
    if (row.phase == Phase::kOptimizer) {
      f.advice.push_back(make_advice("fp32-masters"));
      f.advice.push_back(make_advice("fused-optimizer"));
    }
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace nanhunt::analyze
