// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/precision_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"
#include "src/analyze/graph/slice.h"

namespace nanhunt::analyze {
namespace {

bool is_narrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

bool is_log_softmax(const OpInfo& info) { return info.has(kSoftmax) && info.name.find("log_softmax") != info.name.npos; }

bool computes_forward(Phase phase) { return phase == Phase::kForward || phase == Phase::kLoss; }

}  // namespace

DType PrecisionAudit::dtype_of_value(const Value& value) const {
  const LayoutRecord* layout = names_.layout(value.layout);
  return layout == nullptr ? DType::kBool : layout->dtype;
}

void PrecisionAudit::take(Kind kind, const OpInView& op, DType from, DType to, const OpRef* at, StringId site) {
  std::optional<Seen>& seen = seen_[kind];
  if (seen) {
    if (seen->last_step != op.record->step) ++seen->steps;
    seen->last_step = op.record->step;
    return;
  }
  const OpRecord& record = *op.record;
  seen.emplace();
  seen->at = at != nullptr ? *at
                           : OpRef{record.seq, record.step, record.micro_batch, record.phase, record.module, record.op};
  seen->site = at != nullptr ? site : record.call_site;
  for (std::size_t i = 0; i < op.in.size(); ++i) seen->inputs.push_back(snapshot(op.in[i], op.inputs[i]));
  if (!op.out.empty()) seen->output = snapshot(op.out[0], op.outputs[0]);
  seen->from = from;
  seen->to = to;
  seen->steps = 1;
  seen->last_step = record.step;
}

void PrecisionAudit::on_op(const OpInView& op) {
  const OpRecord& record = *op.record;
  if (step_ != record.step) {
    casts_.clear();
    step_ = record.step;
  }
  if (!computes_forward(record.phase) || op.out.empty() || op.out[0] == nullptr) return;
  const DType made = dtype_of_value(*op.out[0]);

  const bool casts = op.info->name == "_to_copy" || op.info->name == "to";
  if (casts && op.in.size() == 1 && op.in[0] != nullptr) {
    const DType from = dtype_of_value(*op.in[0]);
    if (from == DType::kF32 && made == DType::kF16 && casts_.size() < kMaxCasts) {
      casts_[op.out[0]->id] = {
          {record.seq, record.step, record.micro_batch, record.phase, record.module, record.op}, record.call_site};
    } else if (from == DType::kF16 && made == DType::kF32) {
      // Autocast casts for one op; only what the program itself rounded can be widened again.
      if (const auto cast = casts_.find(op.in[0]->id); cast != casts_.end())
        take(kRounded, op, DType::kF32, DType::kF16, &cast->second.at, cast->second.site);
    }
    return;
  }
  if (is_log_softmax(*op.info) && is_narrow(made)) take(kNarrowLogSoftmax, op, made, made);
  if (op.info->name == "log" && is_narrow(made) && !op.in.empty() && op.in[0] != nullptr) {
    const RecentOp* maker = graph_.ring().find(op.in[0]->producer);
    if (maker != nullptr) {
      const OpInfo& by = names_.op(maker->op);
      if (by.has(kSoftmax) && !is_log_softmax(by)) take(kLogOfSoftmax, op, made, made);
    }
  }
  const Value* target = nullptr;
  const Value* self = nullptr;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const std::string& slot = names_.text(op.inputs[i].slot);
    if (slot == "target") target = op.in[i];
    if (slot == "self" || slot == "input") self = op.in[i];
  }
  if (target == nullptr || self == nullptr) return;
  const DType expected = dtype_of_value(*target), given = dtype_of_value(*self);
  if (is_floating(expected) && is_floating(given) && expected != given) take(kMixed, op, given, expected);
}

std::vector<Finding> PrecisionAudit::findings(bool autocast_fp16) const {
  std::vector<Finding> out;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (!seen_[kind] || (kind == kRounded && !autocast_fp16)) continue;
    const Seen& seen = *seen_[kind];
    Finding f;
    f.cls = FindingClass::kUnderflow;
    f.severity = Severity::kInfo;
    f.place = place_of(seen.at, names_);
    f.first_step = seen.at.step;
    f.last_step = seen.last_step;
    f.occurrence_count = seen.steps;
    f.call_site = names_.text(seen.site);
    for (std::size_t i = 0; i < seen.inputs.size(); ++i)
      f.inputs.push_back(summarise(seen.inputs[i], "input", static_cast<int>(i), names_));
    if (seen.output) f.tensor = f.output = summarise(*seen.output, "output", 0, names_);
    const std::string from(dtype_name(seen.from)), to(dtype_name(seen.to));
    switch (static_cast<Kind>(kind)) {
      case kRounded:
        f.cls = FindingClass::kApiMisuse;
        f.title = "A result is cast to fp16 by hand under autocast, which then needs it in fp32 again";
        f.explanation =
            "Autocast chooses the format of each op by itself. What was rounded to fp16 in between has lost its digits, "
            "and is infinite from 65504 on.";
        f.advice = {manual_cast_advice(DType::kF16)};
        break;
      case kMixed:
        f.cls = FindingClass::kApiMisuse;
        f.title = fmt::format("The loss compares {} with targets in {}", from, to);
        f.explanation =
            "The narrower of the two formats decides how exact the difference is; the wider one decides what it costs.";
        f.advice = {make_advice("same-format-targets")};
        break;
      case kLogOfSoftmax:
        f.severity = Severity::kWarning;
        f.title = fmt::format("The logarithm of a softmax is taken in {}", from);
        f.explanation = fmt::format(
            "Probabilities below {} are 0 in {}, and their logarithm is -Inf, which makes the loss infinite and "
            "gradients NaN. Up to here none was met.",
            number(format_limits(seen.from).min_subnormal), from);
        f.advice = {make_advice("log-softmax")};
        break;
      default:
        f.title = fmt::format("log_softmax is taken in {}", from);
        f.explanation = fmt::format(
            "{} keeps {} bits of a logarithm: differences that the loss learns from are rounded away. Autocast would "
            "have taken it in fp32.",
            from, seen.from == DType::kF16 ? 11 : 8);
        f.advice = {make_advice("log-softmax-fp32")};
        break;
    }
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace nanhunt::analyze
