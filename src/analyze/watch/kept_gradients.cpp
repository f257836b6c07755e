// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/kept_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/analyze/graph/writes.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {

void KeptGradients::on_op(const OpInView& op) {
  if (op.record->phase == Phase::kOptimizer && call_site_ == 0) call_site_ = op.record->call_site;
  if (used_.empty() && added_.empty() && using_.empty()) return;
  if (op.record->phase != Phase::kBackward && !writes_in_place(op)) return;  // what it makes is no gradient's memory
  const auto was_used = [&](const Value* in) {
    return in != nullptr && (used_.contains(in->storage) || added_.contains(in->storage));
  };
  const bool adds = op.record->phase == Phase::kBackward && op.record->step == used_in_ + std::uint64_t{1} &&
                    op.info->bound == Bound::kSum && op.info->name == "add" &&
                    std::any_of(op.in.begin(), op.in.end(), was_used);
  const bool clears = op.info->has(kOverwritesAll) && op.info->has(kWritesConstant);
  for (const Value* out : op.out) {
    if (out == nullptr) continue;
    used_.erase(out->storage);
    if (clears) using_.erase(out->storage);  // by who updates by hand, in its step
    if (adds) {
      added_.insert(out->storage);
    } else if (op.record->phase <= Phase::kBackward) {
      added_.erase(out->storage);
    }
  }
}

void KeptGradients::on_gradient(const Value& value) {
  ++(added_.contains(value.storage) ? kept_ : others_);
  if (using_.size() < kMaxStorages) using_.insert(value.storage);
}

void KeptGradients::on_step_end(std::uint32_t step) {
  if (kept_ > others_ && steps_++ == 0) {
    first_step_ = step;
    first_site_ = call_site_;
  }
  used_ = std::exchange(using_, {});
  used_in_ = step;
  added_.clear();
  kept_ = others_ = 0;
  call_site_ = 0;
}

void KeptGradients::conclude(std::vector<Finding>& findings) const {
  if (steps_ == 0) return;
  const auto diverged = std::find_if(findings.begin(), findings.end(), [](const Finding& f) {
    return f.cls == FindingClass::kExploding && f.severity == Severity::kFault;
  });
  if (diverged == findings.end()) return;
  Finding f = std::move(*diverged);
  findings.erase(diverged);
  f.evidence.insert(f.evidence.begin(), {fmt::format("From it follows: {}.", f.title), f.explanation});
  f.cls = FindingClass::kApiMisuse;
  f.confidence = Confidence::kInferred;
  f.cause.clear();
  f.title = "Gradients are not cleared between the steps of the optimizer: each backward adds to those before";
  f.explanation = fmt::format(
      "Backward of step {} added to the gradients that the optimizer had used in the step before, and the optimizer used "
      "the sum{}. An update is then made of the gradients of all steps so far.",
      first_step_, steps_ == 1 ? "" : fmt::format(", and so in {} in all", count_of(static_cast<std::int64_t>(steps_), "step")));
  f.place.op = "step";
  f.place.phase = Phase::kOptimizer;
  f.place.module.reset();
  f.call_site = names_.text(first_site_);
  f.advice = {make_advice("clear-gradients")};
  findings.insert(findings.begin(), std::move(f));
}

}  // namespace nanhunt::analyze
