// SPDX-License-Identifier: Apache-2.0
// underflow: numbers below the format's smallest became 0. Either a denominator was lost that way, or (without any
// NaN) optimizer state was.
#include "src/analyze/rules/origin/underflow.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/analyze/graph/summary.h"
#include "src/analyze/rules/registry.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_underflow(const Case& c) {
  if (!c.is_op() || c.singular != Singular::kPole || c.zero.cause != ZeroCause::kFlushed) return std::nullopt;
  const OpSnapshot& op = *c.zero.op;
  Diagnosis d;
  d.title = fmt::format("Results of {} were too small for {} and became 0: {} {}", c.text(op.op),
                        dtype_name(c.zero.stored), pole_words(c), c.where().empty() ? "in " + c.op() : c.where());
  const bool elsewhere = op.call_site != 0 && op.call_site != c.birth.call_site;
  d.explanation = fmt::format(
      "{}{} stored {} of {} results as 0 although they are not; {}. In a wider format none of this happens.", c.text(op.op),
      elsewhere ? fmt::format(" ({})", c.text(op.call_site)) : "", c.zero.flushed, c.zero.numel, made_text(c));
  d.evidence.push_back(fmt::format("The smallest number {} keeps is {}.", dtype_name(c.zero.stored),
                                   number(format_limits(c.zero.stored).min_subnormal)));
  add_if(d.evidence, pole_count_text(c));
  add_if(d.evidence, c.element_text());
  d.advice = c.in_optimizer() ? std::vector<std::string>{"fp32-masters"} : std::vector<std::string>{"fp32-compute"};
  for (std::string& id : denominator_advice(c)) d.advice.push_back(std::move(id));
  return d;
}

}  // namespace

extern const Rule kUnderflowRule{FindingClass::kUnderflow, diagnose_underflow};

const Value* StateUnderflow::gradient_of(const OpInView& op) const {
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || !value->has_stats || !value->stats.counted()) continue;
    if (names_.is(op.inputs[i].slot, "tensor1") || names_.is(op.inputs[i].slot, "grad")) return value;
  }
  return nullptr;
}

void StateUnderflow::on_op(const OpInView& op) {
  if (op.record->phase != Phase::kOptimizer || !takes_step(op, names_)) return;
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    const Value* out = op.out[i];
    if (out == nullptr || !out->has_stats || (!op.info->has(kStoresState) && !out->has_role(TensorRole::kState)))
      continue;
    // Only squares of the gradient are judged: what decays to 0 by itself is no loss.
    const Value* grad = gradient_of(op);
    if (grad == nullptr) continue;
    const ValueStats& g = grad->stats;
    const std::int64_t nonzero = g.numel - g.zero - g.nonfinite();
    std::int64_t flushed = out->flushed;
    // Inside a fused kernel nothing was counted, but more zeros than the gradient has cannot be its own.
    if (flushed < 0 && names_.is(op.outputs[i].slot, "exp_avg_sq")) flushed = out->stats.zero - g.zero;
    if (nonzero <= 0 || flushed <= 0) continue;
    const double share = static_cast<double>(flushed) / static_cast<double>(nonzero);
    if (share <= kFlushedShare) continue;

    if (steps_ == 0 || op.record->step != last_step_) ++steps_;
    last_step_ = op.record->step;
    const auto [it, added] = by_module_.try_emplace(op.record->module, losses_.size());
    if (added) {
      Loss loss;
      loss.at = {op.record->seq,   op.record->step,   op.record->micro_batch,
                 op.record->phase, op.record->module, op.record->op};
      loss.output = snapshot(out, op.outputs[i]);
      for (std::size_t j = 0; j < op.in.size(); ++j) loss.inputs.push_back(snapshot(op.in[j], op.inputs[j]));
      loss.state_name = out->name;
      loss.stored = dtype_of(loss.output, names_, op.record->compute_dtype);
      loss.flushed = flushed;
      loss.nonzero = nonzero;
      losses_.push_back(std::move(loss));
    }
    Loss& loss = losses_[it->second];
    loss.worst_share = std::max(loss.worst_share, share);
    loss.last_step = op.record->step;
  }
}

std::optional<Finding> StateUnderflow::finding() const {
  if (losses_.empty()) return std::nullopt;
  const Loss& first = losses_.front();
  const std::string& module = names_.text(first.at.module);
  Finding f;
  f.cls = FindingClass::kUnderflow;
  f.severity = Severity::kWarning;
  f.confidence = Confidence::kObserved;
  f.place = place_of(first.at, names_);
  f.occurrence_count = steps_;
  f.first_step = first.at.step;
  f.last_step = last_step_;
  f.tensor = f.output = summarise(first.output, "output", 0, names_);
  for (std::size_t i = 0; i < first.inputs.size(); ++i)
    f.inputs.push_back(summarise(first.inputs[i], "input", static_cast<int>(i), names_));
  const std::string state =
      names_.text(first.state_name).empty() ? "the second moment of " + module : names_.text(first.state_name);
  const double share = static_cast<double>(first.flushed) / static_cast<double>(first.nonzero);
  f.title = fmt::format("{} of the non-zero gradients of {} are squared to 0 in {}: {} loses them", percent(share),
                        module, dtype_name(first.stored), state);
  f.explanation = fmt::format(
      "{} stored {} of {} elements as 0 although their gradient is not 0. The optimizer divides by the root of that "
      "number, so such "
      "weights move too far, or are held back by eps alone. No NaN is needed for this to do harm.",
      names_.text(first.at.op), first.flushed, first.nonzero);
  f.evidence.push_back(fmt::format("The smallest number {} keeps is {}.", dtype_name(first.stored),
                                   number(format_limits(first.stored).min_subnormal)));
  std::vector<std::string> later;
  double worst = 0;
  for (const Loss& loss : losses_) {
    worst = std::max(worst, loss.worst_share);
    if (&loss == &first) continue;
    const std::string& name = names_.text(loss.at.module);
    if (loss.at.step == first.at.step && loss.at.op == first.at.op) {
      f.also.push_back(name);
    } else {
      later.push_back(fmt::format("{} (step {})", name, loss.at.step));
    }
  }
  f.evidence.push_back(fmt::format("At worst {} of the elements with a gradient are lost, seen in {} {}.",
                                   percent(std::min(worst, 1.0)), steps_, steps_ == 1 ? "step" : "steps"));
  if (!later.empty()) f.evidence.push_back("Later also in " + join(later, 8) + ".");
  f.advice.push_back(make_advice("fp32-masters"));
  return f;
}

}  // namespace nanhunt::analyze
