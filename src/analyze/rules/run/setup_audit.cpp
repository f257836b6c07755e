// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/setup_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {

void SetupAudit::on_setup(const SetupRecord& record) {
  if (record.fact == SetupFact::kModule || record.fact >= SetupFact::kWideColumn) return;
  for (Seen& seen : seen_) {
    if (seen.record.fact != record.fact || seen.record.dtype != record.dtype) continue;
    ++seen.count;
    return;
  }
  if (seen_.size() < kMaxSeen) seen_.push_back({record, 1});
}

// A loss is one number; whoever multiplies it by a lot before backward scales it.
void SetupAudit::on_op(const OpInView& op) {
  if (scaled_ || (op.record->phase != Phase::kLoss && op.record->phase != Phase::kScale)) return;
  if (op.info->bound != Bound::kProduct || op.out.empty()) return;
  const Value* out = op.out[0];
  if (out == nullptr || !out->has_stats || out->stats.numel != 1) return;
  for (const ScalarArg& scalar : op.scalars) {
    if (names_.is(scalar.name, "other")) scaled_ = scaled_ || std::fabs(scalar.value) >= kLeastLossScale;
  }
  for (const Value* in : op.in) {
    const bool constant = in != nullptr && in->has_stats && in->stats.numel == 1 && in->producer == kNoSeq;
    scaled_ = scaled_ || (constant && in->stats.counted() && in->stats.amax >= kLeastLossScale);
  }
}

void SetupAudit::on_step_end(const StepRecord& step, bool scaled) {
  if (step.ending == StepEnding::kOptimizer) ++finished_;
  scaled_ = scaled_ || scaled || (std::isfinite(step.scale) && step.scale != 1);
}

const SetupAudit::Seen* SetupAudit::first(SetupFact fact) const {
  const auto at = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.record.fact == fact; });
  return at == seen_.end() ? nullptr : &*at;
}

const SetupAudit::Seen* SetupAudit::first(SetupFact fact, DType dtype) const {
  const auto at = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) {
    return seen.record.fact == fact && seen.record.dtype == dtype;
  });
  return at == seen_.end() ? nullptr : &*at;
}

bool SetupAudit::autocasts(DType dtype) const { return first(SetupFact::kAutocast, dtype) != nullptr; }

Finding SetupAudit::finding_of(const SetupRecord& record) const {
  Finding f;
  f.cls = FindingClass::kApiMisuse;
  f.severity = Severity::kWarning;
  f.confidence = Confidence::kObserved;
  f.place.step = f.first_step = f.last_step = record.step;
  f.place.seq = kNoSeq;
  if (const std::string& path = names_.text(record.path); !path.empty()) f.place.module = path;
  f.call_site = names_.text(record.site);
  return f;
}

std::vector<Finding> SetupAudit::findings(const ScalerSection* scaler) const {
  std::vector<Finding> out;
  if (const Seen* seen = first(SetupFact::kForeignParameters)) {
    Finding f = finding_of(seen->record);
    f.severity = Severity::kFault;
    f.place.op = "step";
    f.place.phase = Phase::kOptimizer;
    const std::string& what = names_.text(seen->record.text);
    f.title = fmt::format("{} holds other parameters than the model: training stands still",
                          what.empty() ? "The optimizer" : what);
    f.explanation = fmt::format(
        "None of its {} got a gradient or belongs to a model that ran, while the model's own parameters got gradients "
        "and are in no optimizer. That is so where the optimizer was built before the model was converted, moved, "
        "copied or built anew.",
        count_of(static_cast<std::int64_t>(seen->record.number), "parameter"));
    f.advice = {make_advice("optimizer-after-convert")};
    out.push_back(std::move(f));
  }
  const bool has_scaler = scaler != nullptr;
  if (const Seen* seen = first(SetupFact::kAutocast, DType::kF16); seen && !has_scaler && !scaled_ && finished_ > 0) {
    Finding f = finding_of(seen->record);
    f.place.phase = Phase::kForward;
    f.title = "The model runs under autocast to fp16 without a loss scaler";
    f.explanation = fmt::format(
        "Backward then stores gradients in fp16, whose smallest number is {}: smaller ones become 0 and nothing is "
        "learnt from them.",
        number(format_limits(DType::kF16).min_subnormal));
    f.advice = {make_advice("loss-scaling"), make_advice("bf16")};
    out.push_back(std::move(f));
  }
  const Seen* bf16 = first(SetupFact::kAutocast, DType::kBF16);
  if (bf16 && has_scaler && scaler->dynamic && scaler->init_scale != 1 && !autocasts(DType::kF16)) {
    Finding f = finding_of(bf16->record);
    f.severity = Severity::kInfo;
    f.place.phase = Phase::kScale;
    f.title = "A dynamic loss scaler is used with bf16, which needs none";
    f.explanation =
        "bf16 has the range of fp32, so no scale keeps gradients from becoming 0. The scaler costs a check in each step "
        "and skips steps whenever something else is not finite.";
    f.advice = {make_advice("no-scaler-bf16")};
    out.push_back(std::move(f));
  }
  if (const Seen* seen = first(SetupFact::kBackwardInAutocast)) {
    Finding f = finding_of(seen->record);
    f.severity = Severity::kInfo;
    f.place.phase = Phase::kBackward;
    f.title = fmt::format("backward() is called while autocast to {} is on", dtype_name(seen->record.dtype));
    f.explanation =
        "Backward runs in the formats that forward chose, so it needs no autocast; under it, what a custom function or "
        "a second derivative computes in fp32 is cast down as well.";
    f.advice = {make_advice("backward-outside")};
    out.push_back(std::move(f));
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Seen* seen = first(SetupFact::kNarrowParameters, dtype);
    if (seen == nullptr || !autocasts()) continue;
    Finding f = finding_of(seen->record);
    f.severity = dtype == DType::kF16 ? Severity::kWarning : Severity::kInfo;
    f.place.phase = Phase::kForward;
    const std::string format(dtype_name(dtype));
    f.title = fmt::format("The model was converted to {} and runs under autocast as well", format);
    f.explanation = fmt::format(
        "{} of the model {} in {}. Autocast is made for fp32 parameters, which it rounds for each use: now there is no "
        "fp32 copy to update, small updates are lost{}.",
        count_of(static_cast<std::int64_t>(seen->record.number), "parameter"), seen->record.number == 1 ? "is" : "are",
        format, dtype == DType::kF16 ? ", and a GradScaler refuses to unscale fp16 gradients" : "");
    f.advice = {manual_cast_advice(dtype)};
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace nanhunt::analyze
