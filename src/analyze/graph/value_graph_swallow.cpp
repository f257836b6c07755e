// SPDX-License-Identifier: Apache-2.0
// The part of ValueGraph that follows infinities which disappeared.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/analyze/graph/lifecycle.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/swallow.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {
namespace {

bool is_constant(const ValueStats& s) {
  if (!s.counted() || s.numel == 0 || s.nonfinite() > 0) return false;
  return s.zero == s.numel || (s.numel > 1 && s.min == s.max);
}

bool is_mask(const Value* value) { return value != nullptr && value->has_stats && value->stats.is_mask(); }

// The logarithm of a mask: what softmax then gives no weight to was meant to have none.
bool is_of_mask(const Birth& birth) {
  if (birth.context == nullptr) return false;
  return std::ranges::any_of(birth.context->op.inputs, [](const ArgSnapshot& in) { return in.known && in.stats.is_mask(); });
}

}  // namespace

void Swallow::see_output(const ValueStats& stats, std::uint32_t step) {
  if (!is_constant(stats)) {
    dead_now = gradient_alive = false;
    dead_steps = 0;
    return;
  }
  if (!dead_now || step != last_step) ++dead_steps;
  dead_now = true;
  last_step = step;
}

void Swallow::see_gradient(const ValueStats& stats) {
  gradient_seen = true;
  if (dead_now && stats.counted() && stats.zero != stats.numel) gradient_alive = true;
}

// Bad came in and nothing bad went out. Where the op combined numbers, an infinity was lost in it.
void ValueGraph::note_swallowed(const OpInView& op, const OpRef& at) {
  const bool computes = at.phase == Phase::kForward || at.phase == Phase::kLoss || at.phase == Phase::kClip;
  if (!computes || !op.info->has(kAbsorbs)) return;
  const auto first_out = std::find_if(op.out.begin(), op.out.end(),
                                      [](const Value* value) { return value != nullptr && value->has_stats; });
  if (first_out == op.out.end()) return;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    const std::uint8_t lost = op.info->has(kReplaces) ? kBadAny : kBadInf;
    if (value == nullptr || (value->bad & lost) == 0 || value->deliberate != Deliberate::kNo) continue;
    if (!mixes(*op.info, op.inputs[i].role)) continue;
    for (BirthId id : labels_.get(value->labels).births) {
      Birth* birth = find_birth(id);
      if (birth == nullptr || birth->kind != BirthKind::kOp || birth->deliberate != Deliberate::kNo) continue;
      // A clip meets the infinities of gradients, which were sinks already; its own norm may overflow too.
      if (at.phase == Phase::kClip && birth->at.phase != Phase::kClip) continue;
      const Place place{birth->kind, birth->at.op, birth->at.module, birth->at.phase, birth->call_site, false, false};
      const auto known = swallowed_at_.find(place);
      if (known == swallowed_at_.end()) {
        if (swallowed_at_.size() >= kMaxSwallowed || birth->context == nullptr) continue;
        birth->swallow = std::make_unique<Swallow>();
        birth->swallow->at = at;
        const auto index = static_cast<std::size_t>(first_out - op.out.begin());
        birth->swallow->output = snapshot(*first_out, op.outputs[index]);
        swallowed_at_.emplace(place, id);
        swallowers_.insert(at.module);
      }
      Birth* lead = known == swallowed_at_.end() ? birth : find_birth(known->second);
      if (lead != nullptr) lead->swallow->steps.add(at.step);
    }
  }
}

// Bad came in, and the op selected none of it. Backward may meet it again.
void ValueGraph::note_dropped(const OpInView& op, const OpRef& at) {
  if (!op.info->has(kSelects) || (at.phase != Phase::kForward && at.phase != Phase::kLoss)) return;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || value->bad == 0 || !mixes(*op.info, op.inputs[i].role)) continue;
    for (BirthId id : labels_.get(value->labels).births) {
      Birth* birth = find_birth(id);
      if (birth != nullptr && birth->at.step == at.step && !birth->dropped_at) birth->dropped_at = at;
    }
  }
}

// NaN that no arithmetic made, times a mask. The zeros of the mask are at least as many as the NaN, or it was not made
// for them.
void ValueGraph::note_masked(const OpInView& op, const OpRef& at) {
  const bool computes = at.phase != Phase::kBackward && at.phase != Phase::kOptimizer;
  if (!computes || op.info->bound != Bound::kProduct || !op.info->has(kElementwise) || op.in.size() != 2) return;
  for (std::size_t i = 0; i < 2; ++i) {
    const Value *value = op.in[i], *mask = op.in[1 - i];
    if (value == nullptr || (value->bad & kBadNaN) == 0 || !value->stats.counted() || !is_mask(mask)) continue;
    const auto share = [](std::int64_t count, const Value& of) {
      return static_cast<double>(count) / static_cast<double>(of.stats.numel);
    };
    if (share(mask->stats.zero, *mask) < share(value->stats.nan, *value)) continue;
    for (const BirthId id : labels_.get(value->labels).births) {
      Birth* birth = find_birth(id);
      if (birth == nullptr || birth->masked != nullptr) continue;
      const bool computed = birth->kind == BirthKind::kOp && !names_.op(birth->at.op).has(kWritesConstant);
      if (computed) continue;
      birth->masked = std::make_unique<MaskedBy>(MaskedBy{at, op.record->call_site, snapshot(mask, op.inputs[1 - i])});
    }
  }
}

// What was divided by an infinity of arithmetic is 0, as is the softmax of a negative one, and so is what is made of
// that: zeros that the numbers did not have. Within a step.
void ValueGraph::follow_faded(const OpInView& op) {
  const bool softmax = op.info->has(kSoftmax) && !op.info->has(kArithmetic);
  const bool absorbs = softmax || (op.info->has(kAbsorbs) && !op.info->has(kReplaces));
  const bool keeps =
      faded_in_ == op.record->step && op.info->zero != ZeroRule::kStop && op.info->zero != ZeroRule::kConstant;
  if (!absorbs && !keeps) return;
  BirthId lost = 0, before = 0;
  std::int64_t had = 0;  // zeros
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || !value->has_stats || !mixes(*op.info, op.inputs[i].role)) continue;
    if (keeps && value->faded != 0 && value->stats.zero > 0) before = value->faded;
    if (!absorbs || (value->bad & kBadInf) == 0 || value->deliberate != Deliberate::kNo) {
      had += value->stats.counted() ? value->stats.zero : 0;
      continue;
    }
    for (const BirthId id : labels_.get(value->labels).births) {
      const Birth* birth = find_birth(id);
      const bool its_own = birth != nullptr && birth->kind == BirthKind::kOp && birth->deliberate == Deliberate::kNo;
      if (its_own && birth->at.step == op.record->step && !(softmax && is_of_mask(*birth))) lost = id;
    }
  }
  for (Value* out : op.out) {
    if (out == nullptr || out->bad != 0 || !out->stats.counted() || out->stats.zero == 0) continue;
    out->faded = lost != 0 && 2 * had <= out->stats.zero ? lost : before;  // else most were there before
    if (out->faded != 0) faded_in_ = op.record->step;
  }
}

// Of an op that has a pole at 0, or multiplies by an infinite number: whose infinities the zeros at it were. 0: nobody's.
BirthId ValueGraph::faded_of(const OpInView& op) const {
  if (faded_in_ != op.record->step) return 0;
  const bool by_infinity =
      op.info->bound == Bound::kProduct &&
      std::any_of(op.scalars.begin(), op.scalars.end(), [](const ScalarArg& scalar) { return std::isinf(scalar.value); });
  if (!by_infinity && (op.info->pole == Pole::kNone || op.info->pole == Pole::kEmpty)) return 0;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || value->faded == 0 || value->stats.zero == 0 || !births_.contains(value->faded)) continue;
    const bool at_pole =
        std::any_of(op.info->pole_slots.begin(), op.info->pole_slots.end(),
                    [&](std::string_view slot) { return !slot.empty() && names_.is(op.inputs[i].slot, slot); });
    if (by_infinity || at_pole) return value->faded;
  }
  return 0;
}

// What do ops that once swallowed an infinity give out now, and does a gradient still come back through them?
void ValueGraph::watch_swallowers(const OpInView& op) {
  follow_faded(op);
  if (swallowers_.empty() || !swallowers_.contains(op.record->module)) return;
  const bool backward = op.record->phase == Phase::kBackward;
  const std::string forward = backward ? forward_op(names_.text(op.record->op)) : "";
  for (const auto& [place, id] : swallowed_at_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    Swallow& swallow = *birth->swallow;
    if (swallow.at.module != op.record->module) continue;
    const bool gradient = backward && forward == names_.op(swallow.at.op).name;
    if (!gradient && (op.record->op != swallow.at.op || op.record->phase != swallow.at.phase)) continue;
    for (const Value* out : op.out) {
      if (out == nullptr || !out->has_stats) continue;
      if (gradient) {
        swallow.see_gradient(out->stats);
      } else {
        swallow.see_output(out->stats, op.record->step);
      }
    }
  }
}

std::vector<const Birth*> ValueGraph::swallowed() const {
  std::vector<const Birth*> out;
  for (const auto& [id, birth] : births_) {
    if (birth->swallow != nullptr && !birth->harmful) out.push_back(birth.get());
  }
  return out;
}

}  // namespace nanhunt::analyze
