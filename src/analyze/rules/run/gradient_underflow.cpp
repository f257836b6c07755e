// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/gradient_underflow.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

double zero_share(const Value& value) {
  return value.stats.numel == 0 ? 1 : static_cast<double>(value.stats.zero) / static_cast<double>(value.stats.numel);
}

}  // namespace

GradientUnderflow::Layer* GradientUnderflow::layer_of(StringId module) {
  const auto [it, added] = index_.try_emplace(module, layers_.size());
  if (added) {
    if (layers_.size() >= kMaxLayers) {
      index_.erase(it);
      return nullptr;
    }
    layers_.emplace_back();
    layers_.back().module = module;
  }
  return &layers_[it->second];
}

// For output (i, j) to be exactly 0, in each product one factor is: so the shares of zeros in row i of one operand and
// column j of the other add up to 1 at least. Averaged over all outputs, their share is at most the sum of the two.
std::optional<double> GradientUnderflow::exact_zeros(const OpInView& op, std::size_t output) const {
  const std::string forward = forward_op(names_.text(op.record->op));
  const OpInfo& info = forward.empty() ? *op.info : op_info(forward);
  // Each element is one element of one operand, perhaps with another sign or rounded.
  const bool copies = info.flush == FlushRule::kCopy || (!forward.empty() && info.has(kUnitDerivative));
  if (!copies && !info.has(kBilinear)) return std::nullopt;
  const std::string& made = names_.text(op.outputs[output].slot);
  // A product with the number 0 is 0 because the program says so.
  if (info.bound == Bound::kProduct) {
    for (const ScalarArg& scalar : op.scalars) {
      if (scalar.value == 0 && names_.is(scalar.name, "other")) return 1.0;
    }
  }
  double share = 0;
  bool any = false;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const ArgRole role = op.inputs[i].role;
    if (role == ArgRole::kMask || role == ArgRole::kIndex || role == ArgRole::kOverwritten) continue;
    // The derivative by an operand does not hold that operand.
    if (!forward.empty() && made == "grad_" + names_.text(op.inputs[i].slot)) continue;
    const Value* value = op.in[i];
    if (value == nullptr || !value->has_stats || !value->stats.counted() || value->bad != 0) return std::nullopt;
    share += zero_share(*value);
    any = true;
  }
  return any ? std::optional(share) : std::nullopt;
}

void GradientUnderflow::Worst::take(const OpInView& op, std::size_t made, std::int64_t count) {
  at = {op.record->seq, op.record->step, op.record->micro_batch, op.record->phase, op.record->module, op.record->op};
  lost = count;
  output = snapshot(op.out[made], op.outputs[made]);
  inputs.clear();
  for (std::size_t j = 0; j < op.in.size(); ++j) inputs.push_back(snapshot(op.in[j], op.inputs[j]));
}

void GradientUnderflow::on_op(const OpInView& op) {
  if (op.record->phase != Phase::kBackward || op.record->module == 0) return;
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    const Value* out = op.out[i];
    if (out == nullptr || !out->has_stats || !out->stats.counted() || out->bad != 0 || out->stats.numel < 2) continue;
    const LayoutRecord* layout = names_.layout(out->layout);
    if (layout == nullptr || !is_floating(layout->dtype) || dtype_size(layout->dtype) > 2) continue;
    Layer* layer = layer_of(op.record->module);
    if (layer == nullptr) return;
    layer->dtype = layout->dtype;
    const auto exact = out->flushed >= 0 ? std::optional(0.0) : exact_zeros(op, i);
    if (!exact) continue;
    // Nothing comes in: whatever was lost, was lost before.
    for (std::size_t j = 0; j < op.in.size(); ++j) {
      const Value* in = op.in[j];
      if (in == nullptr || !in->has_stats || !names_.is(op.inputs[j].slot, "grad_output")) continue;
      (in->stats.zero == in->stats.numel ? layer->starved : layer->fed) = true;
    }
    if (*exact > kUnmeasurable) {
      layer->drained = std::max(layer->drained, zero_share(*out));
      continue;
    }
    const auto numel = static_cast<double>(out->stats.numel);
    const double lost = out->flushed >= 0
                            ? static_cast<double>(out->flushed)
                            : std::max(0.0, static_cast<double>(out->stats.zero) - *exact * numel);
    const double exact_count = out->flushed >= 0 ? static_cast<double>(out->stats.zero - out->flushed) : *exact * numel;
    if (numel - exact_count < 1) continue;
    layer->considered += numel - exact_count;
    layer->lost += lost;
    layer->tiny += lost + static_cast<double>(out->stats.subnormal);
    const auto count = static_cast<std::int64_t>(lost);
    if (count > layer->worst.lost) layer->worst.take(op, i, count);
    if (layer->over == 0 && count > layer->first.lost) layer->first.take(op, i, count);
  }
}

void GradientUnderflow::on_step_end(std::uint32_t step, double scale) {
  std::size_t measured = 0, over = 0, dead = 0;
  const bool any_lost = std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) {
    return layer.considered > 0 && layer.lost >= kLostGradients * layer.considered;
  });
  for (Layer& layer : layers_) {
    // What reaches this layer was lost before: all of it, or nearly all.
    const bool starved = any_lost && layer.starved && !layer.fed;
    const bool drained = any_lost && layer.considered == 0 && layer.drained > 0;
    if (layer.considered > 0 || starved || drained) {
      const double lost = starved ? 1 : drained ? layer.drained : layer.lost / layer.considered;
      const double tiny = starved ? 1 : drained ? layer.drained : layer.tiny / layer.considered;
      ++measured;
      ++layer.measured;
      layer.sum_lost += lost;
      layer.sum_tiny += std::min(1.0, tiny);
      layer.worst_lost = std::max(layer.worst_lost, lost);
      if (lost >= kLostGradients && tiny >= kTinyGradients) {
        ++over;
        if (layer.over++ == 0) layer.first_over = step;
      }
      if (lost >= kAllLost) {
        ++dead;
        ++layer.dead;
      }
    }
    if (layer.over == 0) layer.first = {};
    layer.lost = layer.tiny = layer.considered = layer.drained = 0;
    layer.starved = layer.fed = false;
  }
  if (measured == 0) return;
  ++steps_;
  if (dead * 2 > measured) ++steps_dead_;
  run_ = over * 2 > measured ? run_ + 1 : 0;
  if (run_ == 0) return;
  longest_run_ = std::max(longest_run_, run_);
  ++steps_over_;
  last_over_ = step;
  largest_scale_ = std::max(largest_scale_, scale);
}

std::optional<Finding> GradientUnderflow::finding() const {
  const bool lasts = longest_run_ >= kLostSteps || steps_over_ * 2 > steps_;
  if (steps_over_ < kLostSteps || !lasts) return std::nullopt;
  std::vector<const Layer*> over;
  std::size_t measured = 0;
  const Layer* most = nullptr;
  for (const Layer& layer : layers_) {
    measured += layer.measured > 0 ? 1 : 0;
    if (layer.over == 0) continue;
    over.push_back(&layer);
    if (layer.worst.lost > 0 && (most == nullptr || layer.worst.lost > most->worst.lost)) most = &layer;
  }
  if (most == nullptr) return std::nullopt;
  const bool scaled = largest_scale_ > 1;
  const bool dead = steps_dead_ >= kLostSteps && steps_dead_ * 2 > steps_;
  std::stable_sort(over.begin(), over.end(), [](const Layer* a, const Layer* b) {
    return a->sum_lost * b->measured > b->sum_lost * a->measured;
  });
  Finding f;
  f.cls = FindingClass::kUnderflow;
  f.severity = dead ? Severity::kFault : Severity::kWarning;
  f.confidence = Confidence::kObserved;
  // The numbers shown are those of the step that is named.
  const Worst& shown = most->first.lost > 0 ? most->first : most->worst;
  f.place = place_of(shown.at, names_);
  f.first_step = most->first_over;
  f.last_step = last_over_;
  f.occurrence_count = steps_over_;
  f.scale = scaled ? largest_scale_ : 1;
  f.tensor = f.output = summarise(shown.output, "output", 0, names_);
  for (std::size_t i = 0; i < shown.inputs.size(); ++i)
    f.inputs.push_back(summarise(shown.inputs[i], "input", static_cast<int>(i), names_));
  const std::string format(dtype_name(most->dtype));
  const std::string without =
      scaled ? fmt::format("in spite of the loss scale {}", number(largest_scale_)) : "without loss scaling";
  f.title = dead ? fmt::format("Gradients vanish in {} {}: training stands still", format, without)
                 : fmt::format("Gradients vanish in {} {}: {} of {} layers lose at least {} of theirs", format, without,
                               over.size(), measured, percent(kLostGradients));
  f.explanation = fmt::format(
      "Backward stores gradients in {}, whose smallest number is {}; what is half of that or less becomes 0. In {} "
      "most "
      "layers lost at least {} of their gradients that way, and at least {} were lost or kept with fewer digits only. "
      "No "
      "NaN is needed for this to do harm: what is 0 is not learnt from.",
      format, number(format_limits(most->dtype).min_subnormal), count_of(steps_over_, "step"), percent(kLostGradients),
      percent(kTinyGradients));
  std::vector<std::string> shares;
  for (const Layer* layer : over) {
    const auto n = static_cast<double>(layer->measured);
    shares.push_back(fmt::format("{} ({} lost, {} lost or subnormal, from step {})", names_.text(layer->module),
                                 percent(layer->sum_lost / n), percent(layer->sum_tiny / n), layer->first_over));
    if (layer != most && f.also.size() < 1024) f.also.push_back(names_.text(layer->module));
  }
  f.evidence.push_back("Shares on average over the run, at least: " + join(shares, 12) + ".");
  f.evidence.push_back(fmt::format("{} lost most at once: {} of {} in step {}.", place_text(most->worst.at, names_),
                                   most->worst.lost, most->worst.output.stats.numel, most->worst.at.step));
  f.evidence.push_back(
      "Where the kernel did not count, only zeros are counted that zeros among its inputs cannot explain: the true "
      "shares are as large or larger.");
  if (dead) f.evidence.push_back(fmt::format("In {} of {} steps most layers lost all.", steps_dead_, steps_));
  f.advice = {make_advice(scaled ? "raise-loss-scale" : "loss-scaling")};
  if (most->dtype != DType::kBF16) {
    f.advice.push_back(make_advice("bf16"));
    f.advice.back().why = "bf16 keeps numbers down to 1e-38, so these do not become 0.";
  }
  return f;
}

}  // namespace nanhunt::analyze
