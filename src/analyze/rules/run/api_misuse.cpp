// SPDX-License-Identifier: Apache-2.0
// api_misuse: calls of the loss scaler in a wrong order, calls that it refused or that are missing, and gradients of a
// skipped step that were kept and added to.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/analyze/wording/advice.h"
#include "src/analyze/rules/registry.h"
#include "src/analyze/rules/run/scaler.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_api_misuse(const Case& c) {
  if (c.birth.kind != BirthKind::kKept) return std::nullopt;
  Diagnosis d;
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  d.title = fmt::format("Gradients of a skipped step were kept: {} adds new ones to NaN or Inf", place);
  d.explanation = fmt::format(
      "An earlier step was skipped because its gradients were not finite. They were not cleared, so every "
      "later gradient is added to them, and no scale can make the sum finite. {}.",
      made_text(c));
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (arg.bad == 0) continue;
    d.evidence.push_back(fmt::format("{} still holds {}.", arg_text(c, arg),
                                     bad_count_text(arg.stats.nan, arg.stats.pos_inf, arg.stats.neg_inf,
                                                    arg.stats.numel)));
  }
  d.advice = {"zero-grad-after-skip"};
  return d;
}

// "unscale_" of "unscale_() has already been called ...". Texts are torch's.
std::string refused_call(const std::string& text) {
  const auto has = [&](std::string_view words) { return text.find(words) != std::string::npos; };
  const std::size_t end = text.find("()");
  if (end != std::string::npos && end > 0 && text.find(' ') > end) return text.substr(0, end);
  for (const char* call : {"unscale_", "step", "update"}) {
    if (text.starts_with(std::string("Attempted ") + call + " ")) return call;
  }
  if (has("prior to update")) return "update";
  if (has("FP16 gradients")) return "unscale_";
  if (has("growth factor") || has("backoff factor")) return "GradScaler";
  if (has("state dict")) return "load_state_dict";
  return "step";
}

Phase phase_of_call(const std::string& call) {
  if (call == "unscale_") return Phase::kUnscale;
  if (call == "update" || call == "GradScaler" || call == "load_state_dict") return Phase::kUpdate;
  return call == "scale" ? Phase::kScale : Phase::kOptimizer;
}

// Does a fault come of gradients that were never unscaled? What backward and the optimizer make carries the scale; the
// weights do so once a step was taken with it, where updates are as large as gradients are.
bool carries_scale(Phase phase) {
  return phase == Phase::kScale || phase == Phase::kBackward || phase == Phase::kComm || phase == Phase::kUnscale ||
         phase == Phase::kClip || phase == Phase::kOptimizer;
}
bool comes_of_scale(const Finding& f, const ScalerWatch::MisuseState& never) {
  if (f.severity != Severity::kFault || began(f) < never.first_step) return false;
  if (f.cls == FindingClass::kExploding) return true;
  if (f.cls != FindingClass::kOverflow) return false;
  return carries_scale(f.place.phase) || (never.sizes_count && began(f) > never.first_step);
}

// A fault that began in the step that the scaler skipped right before, or that the update itself made.
bool comes_of_step_after_skip(const Finding& f, const ScalerWatch::MisuseState& m) {
  return f.severity == Severity::kFault && (began(f) + std::uint64_t{1} == m.first_step || began(f) == m.first_step);
}

// The first of the faults that come of a misuse becomes the finding about it: it keeps what was harmed, and how.
void lead(std::vector<Finding>& findings, Finding misuse, const ScalerWatch::MisuseState& m) {
  const bool after_skip = m.kind == ScalerWatch::Misuse::kSteppedAfterSkip;
  const auto follows = [&](const Finding& f) {
    return after_skip ? comes_of_step_after_skip(f, m) : comes_of_scale(f, m);
  };
  const auto first = std::find_if(findings.begin(), findings.end(), follows);
  if (first == findings.end()) {
    findings.push_back(std::move(misuse));
    return;
  }
  for (auto later = std::next(first); later != findings.end(); ++later) {
    if (follows(*later)) later->evidence.insert(later->evidence.begin(), "It follows from this: " + misuse.title + ".");
  }
  misuse.severity = Severity::kFault;
  const bool sure = after_skip || first->cls == FindingClass::kExploding || carries_scale(first->place.phase);
  if (!sure) misuse.confidence = Confidence::kInferred;
  misuse.evidence.insert(
      misuse.evidence.begin(),
      fmt::format("{}, in step {} ({}): {}.", after_skip ? "What the scaler had skipped" : "From it follows",
                  began(*first), phase_name(first->place.phase), first->title));
  misuse.evidence.insert(misuse.evidence.end(), first->evidence.begin(), first->evidence.end());
  misuse.bad_steps = first->bad_steps;
  misuse.sinks.insert(misuse.sinks.end(), first->sinks.begin(), first->sinks.end());
  misuse.chain = std::move(first->chain);
  misuse.first_inf = std::move(first->first_inf);
  misuse.first_nan = std::move(first->first_nan);
  misuse.ranks = std::move(first->ranks);
  misuse.rank_propagation = std::move(first->rank_propagation);
  findings.erase(first);
  findings.insert(findings.begin(), std::move(misuse));
}

}  // namespace

extern const Rule kApiMisuseRule{FindingClass::kApiMisuse, diagnose_api_misuse};

void report_misuses(std::vector<Finding>& findings, const ScalerWatch& scaler) {
  using Kind = ScalerWatch::Misuse;
  std::vector<ScalerWatch::MisuseState> misuses = scaler.misuses();
  if (const auto never = scaler.never_unscaled()) {  // which says more
    std::erase_if(misuses, [](const ScalerWatch::MisuseState& m) { return m.kind == Kind::kSteppedPast; });
    misuses.push_back(*never);
  }
  for (const ScalerWatch::MisuseState& m : misuses) {
    Finding f;
    f.cls = FindingClass::kApiMisuse;
    f.place.step = f.first_step = m.first_step;
    f.place.micro_batch = m.micro_batch;
    f.place.seq = m.seq;
    f.last_step = m.last_step;
    f.occurrence_count = m.steps;
    f.scale = m.scale;
    f.severity = m.did_harm ? Severity::kFault : Severity::kWarning;
    const auto of_step = [&] {
      f.place.op = "step";
      f.place.phase = Phase::kOptimizer;
      f.call_site = m.call_site;
    };
    switch (m.kind) {
      case Kind::kRefused:
        f.place.op = refused_call(m.text);
        f.place.phase = phase_of_call(*f.place.op);
        // Nobody caught it if nothing came after.
        f.severity = m.went_on ? Severity::kWarning : Severity::kFault;
        f.title = fmt::format("The loss scaler refused {}(): {}", *f.place.op, m.text);
        f.explanation = m.went_on ? "The call had no effect and the run went on."
                                  : "The run ended there: no later step and no later call of the scaler was recorded.";
        f.advice = {make_advice("scaler-call-order")};
        break;
      case Kind::kClipBeforeUnscale:
        if (m.max_norm > 0) f.place.op = "clip_grad_norm_";
        f.place.phase = Phase::kClip;
        f.call_site = scaler.clip_site();
        f.title = fmt::format("Gradients are clipped before they are unscaled: their norm is {} times too large",
                              scale_text(m.scale));
        f.explanation = !(m.max_norm > 0)
                            ? fmt::format(
                                  "At step {} the program multiplied gradients by {}, a number made of them, while "
                                  "they were still multiplied by "
                                  "the scale {}. What was clipped to a limit is divided by the scale afterwards, so "
                                  "updates are far too small.",
                                  m.first_step, number(m.clipped_by), scale_text(m.scale))
                            : fmt::format(
                                  "At step {} the clip saw a norm of {} at scale {}; the gradients' own norm was {}, "
                                  "the limit {}. {}",
                                  m.first_step, number(m.total_norm), scale_text(m.scale),
                                  number(m.total_norm / m.scale), number(m.max_norm),
                                  m.did_harm ? "What was clipped to the limit is divided by the scale afterwards, so "
                                               "updates are far too small."
                                             : "It was below the limit so far, so nothing was changed yet.");
        f.advice = {make_advice("unscale-before-clip")};
        break;
      case Kind::kUnscaleTwice:
        f.place.op = "unscale_";
        f.place.phase = Phase::kUnscale;
        f.title = fmt::format("Gradients were unscaled twice: they are {} times too small", scale_text(m.scale));
        f.explanation =
            fmt::format("Step {} divided the same gradients by the scale {} a second time before an update.",
                        m.first_step, scale_text(m.scale));
        f.advice = {make_advice("scaler-call-order")};
        break;
      case Kind::kStepTwice:
        of_step();
        f.severity = Severity::kWarning;
        f.title = "The loss scaler's update() is not called between steps: the scale cannot adapt";
        f.explanation = fmt::format(
            "At step {} the same optimizer stepped again with no update since. An overflow is then remembered for ever "
            "and the scale never changes.",
            m.first_step);
        f.advice = {make_advice("scaler-call-order")};
        break;
      case Kind::kNeverUnscaled:
        of_step();
        f.severity = Severity::kWarning;
        f.title = fmt::format("Gradients are never unscaled: the optimizer steps with gradients {} times too large",
                              scale_text(m.scale));
        f.explanation =
            "The scaler multiplies the loss, and then the optimizer steps by itself. Adam divides by the gradients' "
            "magnitude, which hides the factor. SGD and clipping do not.";
        f.advice = {make_advice("step-by-scaler")};
        break;
      case Kind::kSteppedPast:
        of_step();
        f.severity = Severity::kWarning;
        f.title = fmt::format("An optimizer steps past the loss scaler: its gradients are {} times too large",
                              scale_text(m.scale));
        f.explanation = fmt::format(
            "Backward of the scaled loss made them, and nothing divided them by the scale: the scaler was asked to step "
            "another optimizer, and this one's own step() was called. It neither unscales nor skips a step whose "
            "gradients are not finite.{}",
            m.sizes_count ? "" : " It divides by the gradients' magnitude, which hides the factor in its updates.");
        if (!m.parameters.empty()) f.evidence.push_back(fmt::format("It updates {}.", join(m.parameters, 4)));
        f.advice = {make_advice("step-by-scaler")};
        break;
      case Kind::kSteppedAfterSkip:
        of_step();
        for (const std::string& path : m.parameters) f.sinks.push_back("parameter " + path);
        f.title = "The optimizer steps by itself with gradients that the loss scaler had skipped";
        f.explanation = fmt::format(
            "Gradients were not finite in step {}, as happens while a scale is being found, and scaler.step() left the "
            "optimizer out. Then the program called the optimizer's own step() with the same gradients. After a step "
            "that is not skipped, such a call makes the update a second time.",
            m.first_step - 1);
        f.advice = {make_advice("no-step-beside-scaler")};
        break;
    }
    if (m.count > 1) {
      const std::string when = m.first_step == m.last_step
                                   ? fmt::format("all in step {}", m.first_step)
                                   : fmt::format("in steps {} to {}", m.first_step, m.last_step);
      f.evidence.push_back(fmt::format("Seen {} times, {}.", m.count, when));
    }
    if (m.kind == Kind::kNeverUnscaled || m.kind == Kind::kSteppedAfterSkip || m.kind == Kind::kSteppedPast) {
      lead(findings, std::move(f), m);
    } else {
      findings.push_back(std::move(f));
    }
  }
}

}  // namespace nanhunt::analyze
