// SPDX-License-Identifier: Apache-2.0
#include "reports/views/finding_view.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "reports/views/equation.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

constexpr std::string_view kNone = "—";

std::string or_none(std::string text) { return text.empty() ? std::string(kNone) : text; }

std::string name_of(const std::optional<std::string>& text) { return text ? clip(*text, kNameLimit) : ""; }

Lines names(const std::vector<std::string>& from, std::size_t limit) {
  Lines lines;
  for (std::size_t i = 0; i < from.size() && i < limit; ++i) lines.shown.push_back(clip(from[i], kNameLimit));
  lines.omitted = from.size() - lines.shown.size();
  return lines;
}

// "NaN in 3, +Inf in 1 of 4,096 (0.1 %)"
std::string bad_amount(std::int64_t nan, std::int64_t pos_inf, std::int64_t neg_inf, std::int64_t numel) {
  std::vector<std::string> kinds;
  if (nan > 0) kinds.push_back("NaN");
  if (pos_inf > 0) kinds.push_back("+Inf");
  if (neg_inf > 0) kinds.push_back("-Inf");
  if (kinds.empty()) return "";
  if (kinds.size() == 1) return kinds[0] + " in " + format_share(nan + pos_inf + neg_inf, numel);
  std::vector<std::string> parts;
  if (nan > 0) parts.push_back("NaN in " + format_signed_count(nan));
  if (pos_inf > 0) parts.push_back("+Inf in " + format_signed_count(pos_inf));
  if (neg_inf > 0) parts.push_back("-Inf in " + format_signed_count(neg_inf));
  return join(parts, ", ") + " of " + format_signed_count(numel);
}

std::string_view use_phrase(ArgRole role) {
  switch (role) {
    case ArgRole::kRead:
      return "";
    case ArgRole::kSaved:
      return "saved in forward";
    case ArgRole::kOverwritten:
      return "overwritten";
    case ArgRole::kMask:
      return "mask";
    case ArgRole::kIndex:
      return "indices";
  }
  return "";
}

TensorRow view_tensor(const TensorSummary& tensor) {
  TensorRow row;
  row.part = clip(tensor.role, kNameLimit);
  if (!tensor.slot.empty()) row.part += (row.part.empty() ? "" : " ") + clip(tensor.slot, kNameLimit);
  if (row.part.empty()) row.part = "tensor " + std::to_string(tensor.index);
  row.name = clip(tensor.name, kNameLimit);
  row.dtype = dtype_name(tensor.dtype);
  row.shape = format_dims(tensor.shape);
  row.use = use_phrase(tensor.arg_role);
  if (tensor.flushed > 0) {
    row.note = plural(static_cast<std::uint64_t>(tensor.flushed), "result", "results") +
               " became 0 although the exact value is not 0";
  }
  row.has_stats = tensor.has_stats;
  if (!tensor.has_stats) return row;
  const TensorStats& s = tensor.stats;
  row.bad = s.any_nonfinite || s.nonfinite() > 0;
  row.elements = format_signed_count(s.numel);
  if (s.level < StatsLevel::kCounts) return row;
  row.nan = format_signed_count(s.nan);
  row.pos_inf = format_signed_count(s.pos_inf);
  row.neg_inf = format_signed_count(s.neg_inf);
  row.zeros = format_signed_count(s.zero);
  row.subnormals = format_signed_count(s.subnormal);
  if (s.has_nonzero()) row.smallest = format_short(s.amin_nonzero);
  if (s.has_finite()) {
    row.min = format_short(s.min);
    row.max = format_short(s.max);
  }
  return row;
}

// Whether the module's own code is among the callers: else PyTorch's code of a module that the innermost line calls,
// whose frames are not recorded, did the operation. Before Python 3.11 functions are recorded without their class.
bool by_own_code(const Finding& f) {
  const std::string method = f.module_class + ".";
  bool classes = false;
  for (const SourceFrame& frame : f.frames) {
    const std::size_t at = frame.function.find(method);
    if (at != std::string::npos && (at == 0 || frame.function[at - 1] == '.')) return true;
    classes = classes || frame.function.find('.') != std::string::npos;
  }
  return f.module_class.empty() || !classes;
}

// Adds what the innermost line calls the numbers that met. What a backward computes stands in no line.
void add_code(ElementView& view, const Finding& f) {
  if (f.place.phase == Phase::kBackward || !f.place.op || f.frames.empty() || !by_own_code(f)) return;
  const SourceFrame& inner = f.frames.front();
  if (inner.line < inner.first_line || inner.line - inner.first_line >= inner.code.size()) return;
  const std::span<const std::string> lines = std::span(inner.code).subspan(inner.line - inner.first_line);
  const std::string divisor = clip(divisor_in_line(*f.place.op, lines.front(), lines.subspan(1)), kNameLimit);
  // Of one side alone the whole line says too much.
  if (view.operands.size() < 2 && divisor.empty()) return;
  view.in_code = clip(operation_in_line(*f.place.op, lines.front(), lines.subspan(1)), kNameLimit);
  // The numbers are what must be read: the line itself stands above.
  constexpr std::size_t kMost = 60, kMostBesideDivisor = 40;
  if (view.in_code.size() > (divisor.empty() ? kMost : kMostBesideDivisor)) view.in_code.clear();
  if (divisor.empty() || view.operands.empty() || divisor.size() > kMost) return;
  view.joint = ": ";
  view.equation = divisor + " = " + view.operands.front().value;
}

// "a / b = 0 / 0 = NaN at [3, 0]. Nothing keeps b from 0."
std::string cause_of(const FindingView& view) {
  const std::string why = view.explanation.empty() ? view.class_explanation : view.explanation;
  if (!view.element || view.element->equation.empty()) return why;
  std::string text = view.element->in_code.empty() ? "" : view.element->in_code + std::string(view.element->joint);
  text += view.element->equation;
  if (!view.element->place.empty()) text += " at " + view.element->place;
  return text + ". " + why;
}

ElementView view_element(const ElementEvidence& element, std::string_view op) {
  ElementView view;
  if (!element.coords.empty()) view.place = format_dims(element.coords);
  view.equation = equation_of(op, element);
  view.where = "element " + format_signed_count(element.flat_index);
  if (!element.coords.empty()) view.where += ", at " + format_dims(element.coords);
  if (element.row_is_sample) {
    view.where += ", sample " + format_signed_count(element.row) + " of the batch";
    if (element.sample_id) view.where += " (id " + std::to_string(*element.sample_id) + " in the data set)";
  } else if (element.row >= 0) {
    view.where += ", row " + format_signed_count(element.row);
  }
  view.value = format_short(element.value);
  view.bad = !std::isfinite(element.value);
  for (const auto& operand : element.operands) {
    if (view.operands.size() == kMaxTensors) break;
    view.operands.push_back(
        {or_none(clip(part_of_quotient(op, operand.slot, operand.slot), kNameLimit)), clip(operand.name, kNameLimit), format_short(operand.value)});
  }
  return view;
}

std::string place_text(const std::string& module, Phase phase, std::uint32_t step) {
  std::string text = module.empty() ? "" : clip(module, kNameLimit) + " · ";
  return text + std::string(phase_name(phase)) + " · step " + format_count(step);
}

// Sinks are no operations: "<parameter>" is shown as "parameter".
std::string sink_title(std::string_view op) {
  if (op.size() > 2 && op.front() == '<' && op.back() == '>') op = op.substr(1, op.size() - 2);
  return clip(op, kNameLimit);
}

ChainView view_chain(const Chain& chain) {
  ChainView view;
  for (const ChainNode& node : chain.nodes) {
    if (view.steps.size() == kMaxChainNodes) break;
    ChainStep step;
    step.lifecycle = node.lifecycle;
    step.role = node.role == "origin" || node.role == "sink" ? node.role : "carrier";
    step.badge = step.role == "sink" ? "harmed" : std::string(lifecycle_word(node.lifecycle));
    if (step.role == "origin" && node.lifecycle == Lifecycle::kUnknown) step.badge = "origin";
    step.title = step.role == "sink" ? sink_title(node.op) : clip(node.op, kNameLimit);
    if (step.title.empty()) step.title = node.label.empty() ? "value" : clip(node.label, kSentenceLimit);
    step.place = place_text(node.module, node.phase, node.step);
    if (node.rank) step.place += " · rank " + std::to_string(*node.rank);
    step.amount = bad_amount(node.nan, node.pos_inf, node.neg_inf, node.numel);
    view.steps.push_back(std::move(step));
  }
  view.omitted = chain.omitted + (chain.nodes.size() - view.steps.size());
  return view;
}

std::string first_text(const std::optional<OpPlace>& place, std::string_view what) {
  if (!place) return "";
  std::string text = "The first " + std::string(what) + " came from ";
  text += place->op ? clip(*place->op, kNameLimit) : "a value made unseen";
  if (place->module && !place->module->empty()) text += " in " + clip(*place->module, kNameLimit);
  return text + " (" + std::string(phase_name(place->phase)) + ", step " + format_count(place->step) + ").";
}

AdviceView view_advice(const Advice& advice) {
  AdviceView view;
  view.tried = tried(advice);
  view.badge = tried_phrase(view.tried);
  view.text = clip(advice.text, kSentenceLimit);
  view.why = clip(advice.why, kSentenceLimit);
  view.evidence = clip(advice.evidence, kSentenceLimit);
  return view;
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  constexpr std::size_t kMaxRanksNamed = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < kMaxRanksNamed; ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? " " : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMaxRanksNamed) text += " and " + format_count(ranks.size() - kMaxRanksNamed) + " more";
  return text;
}

// Where it began, and how it came to other ranks.
std::string ranks_sentence(const Finding& f) {
  const bool between = f.cls == FindingClass::kComm && f.lifecycle != Lifecycle::kDisappear;
  std::string text = ranks_text(f.ranks.empty() ? std::vector<std::uint32_t>{f.rank} : f.ranks);
  if (between) {
    text = "began between the ranks: it came back bad to " + text;
  } else {
    text = "began on " + text + (f.ranks.size() > 1 ? ", on each by itself" : "");
  }
  std::size_t told = 0;
  for (const RankPropagation& propagation : f.rank_propagation) {
    if (++told > 4) break;
    text += (told == 1 ? "; it came to " : ", and to ") + ranks_text(propagation.ranks) + " through " +
            clip(propagation.through, kNameLimit) + ", step " + format_count(propagation.step);
  }
  return clip(text, kSentenceLimit);
}

std::string steps_text(std::uint32_t first, std::uint32_t last) {
  return first == last ? "in step " + format_count(first)
                       : "from step " + format_count(first) + " to step " + format_count(last);
}

// "58 bad steps, from step 3 to step 60", or "it began in step 3": what is bad in later steps follows from it, or was not
// watched.
std::string how_often(const Finding& f) {
  if (f.occurrence_count <= 1 && f.bad_steps.count <= 1 && !f.bad_steps.open) return "";
  if (f.occurrence_count <= 1) return "it began " + steps_text(f.first_step, f.first_step);
  const bool skipped = f.cls == FindingClass::kScalerCalibration;
  const bool all_bad = f.bad_steps.count == f.occurrence_count && f.bad_steps.anew == f.bad_steps.count;
  const std::string steps = skipped || !all_bad || f.bad_steps.open
                                ? "in " + plural(f.occurrence_count, "step", "steps") + (skipped ? " that the scaler skipped" : "")
                                : plural(f.occurrence_count, "bad step", "bad steps");
  return steps + ", " + steps_text(f.first_step, f.last_step);
}

// "58 bad steps, from step 3 to step 60 (57 as its aftermath)", "at least 3 bad steps, from step 6 on". Nothing where
// these are the steps in which it happened.
std::string bad_steps(const Finding& f) {
  const BadSteps& bad = f.bad_steps;
  const std::uint64_t aftermath = bad.count - std::min(bad.count, bad.anew + bad.unwatched);
  if (f.occurrence_count <= 1 && bad.count <= 1 && !bad.open) return "";
  if (aftermath == 0 && bad.unwatched == 0 && !bad.open) return "";
  std::vector<std::string> parts;
  if (aftermath != 0) parts.push_back(format_count(aftermath) + " as its aftermath");
  if (bad.unwatched != 0) parts.push_back(format_count(bad.unwatched) + " not watched op by op");
  return (bad.open ? "at least " : "") + plural(bad.count, "bad step", "bad steps") + ", " +
         (bad.open ? "from step " + format_count(bad.first) + " on" : steps_text(bad.first, bad.last)) +
         (parts.empty() ? "" : " (" + join(parts, ", ") + ")");
}

// The fact list below the answers: everything that says exactly where.
std::vector<Fact> place_facts(const Finding& f) {
  std::vector<Fact> facts;
  if (f.place.seq != kNoSeq) facts.push_back({"Operation number", format_count(f.place.seq)});
  facts.push_back({"Micro-batch", format_count(f.place.micro_batch)});
  facts.push_back({"Rank", format_count(f.rank)});
  if (std::isfinite(f.scale) && f.scale != 1) facts.push_back({"Loss scale", format_short(f.scale)});
  if (f.lifecycle != Lifecycle::kUnknown) {
    facts.push_back(
        {"Lifecycle", std::string(lifecycle_word(f.lifecycle)) + ": " + std::string(lifecycle_phrase(f.lifecycle))});
  }
  if (f.bad_elements > 0 && f.tensor && f.tensor->has_stats) {
    facts.push_back({"Bad elements", format_share(f.bad_elements, f.tensor->stats.numel)});
  } else if (f.bad_elements > 0) {
    facts.push_back({"Bad elements", format_signed_count(f.bad_elements)});
  }
  return facts;
}

}  // namespace

FindingView view_finding(const Finding& f, bool many_ranks) {
  FindingView view;
  view.id = clip(f.id, kNameLimit);
  view.severity = f.severity;
  view.severity_word = severity_word(f.severity);
  view.class_name = finding_class_name(f.cls);
  view.class_phrase = f.cause.empty() ? std::string(class_phrase(f.cls)) : clip(f.cause, kNameLimit);
  view.class_explanation = class_explanation(f.cls);
  view.title = clip(f.title, kSentenceLimit);
  if (view.title.empty()) view.title = view.class_explanation;
  view.explanation = clip(f.explanation, kParagraphLimit);
  view.operation = or_none(name_of(f.place.op));
  view.called_from = clip(f.call_site, kNameLimit);
  view.kernel = clip(f.kernel, kNameLimit);
  if (!f.part_of.empty()) view.part_of = "part of " + clip(f.part_of, kNameLimit);
  view.layer = or_none(name_of(f.place.module));
  if (f.module_class != view.layer) view.module_class = clip(f.module_class, kNameLimit);
  FramesView frames = view_frames(f.frames);
  view.frames = std::move(frames.own);
  view.package_frames = std::move(frames.installed);
  for (const RelatedFinding& one : f.related) {
    if (view.related.shown.size() == kMaxEvidence) break;
    view.related.shown.push_back(std::string(finding_class_name(one.cls)) + ": " + clip(one.title, kSentenceLimit));
  }
  view.related.omitted = f.related_omitted + (f.related.size() - view.related.shown.size());
  view.phase = phase_name(f.place.phase);
  view.step = format_count(f.place.step) + std::string(f.trained ? "" : kOfForward);
  view.trained = f.trained;
  view.matter = matter_sentence(f);
  view.confidence = confidence_phrase(f.confidence);
  if (f.confidence == Confidence::kProved && !f.place.op)
    view.confidence = "proved: the cause, by computing its first operation again from the numbers that it read";
  if (many_ranks || f.ranks.size() > 1 || !f.rank_propagation.empty()) view.ranks = ranks_sentence(f);
  view.how_often = how_often(f);
  view.bad_steps = bad_steps(f);
  if (!f.same_line_as.empty())
    view.shared_line = "the same line of code as " + clip(f.same_line_as, kNameLimit) + ": the cause may be one";
  view.facts = place_facts(f);
  for (std::size_t i = 0; i < f.evidence.size() && i < kMaxEvidence; ++i) {
    view.evidence.shown.push_back(clip(f.evidence[i], kSentenceLimit));
  }
  view.evidence.omitted = f.evidence.size() - view.evidence.shown.size();
  for (std::size_t i = 0; i < f.samples.size() && i < kMaxSamples; ++i) {
    view.samples.shown.push_back(std::to_string(f.samples[i]));
  }
  view.samples_are_bad = f.cls == FindingClass::kBadInput;
  view.samples_label = view.samples_are_bad ? "Bad samples" : "Sample ids in the batch of that step";
  view.samples.omitted = f.samples.size() - view.samples.shown.size();
  view.sinks = names(f.sinks, kMaxNames);
  view.also = names(f.also, kMaxNames);

  for (std::size_t i = 0; i < f.inputs.size() && i < kMaxTensors; ++i) {
    TensorRow& row = view.tensors.emplace_back(view_tensor(f.inputs[i]));
    row.part = part_of_quotient(f.place.op.value_or(""), f.inputs[i].slot, row.part);
  }
  view.tensors_omitted = f.inputs.size() - view.tensors.size();
  const std::optional<TensorSummary>& result = f.output ? f.output : f.tensor;
  if (result) view.tensors.push_back(view_tensor(*result));
  if (f.element) {
    view.element = view_element(*f.element, f.place.op.value_or(""));
    add_code(*view.element, f);
  }
  view.cause = cause_of(view);
  const bool vague = f.cls == FindingClass::kInvalid || f.cls == FindingClass::kDivideByZero;
  view.why = vague && view.element && !view.element->equation.empty() ? view.element->equation : view.class_phrase;
  view.chain = view_chain(f.chain);
  view.first_inf = first_text(f.first_inf, "infinity");
  view.first_nan = first_text(f.first_nan, "NaN");

  for (const Advice& advice : f.advice) {
    if (view.advice.size() == kMaxAdvice) break;
    view.advice.push_back(view_advice(advice));
  }
  view.change = change_sentence(f);
  if (view.advice.empty() || view.advice.front().tried == Tried::kFailed) {
    view.cure = view.advice.empty() ? std::string(kNone) : "nothing that was tried helped";
  } else {
    view.cure = view.advice.front().text + likewise_at(f);
    view.cure_badge = view.advice.front().badge;
    view.cure_tried = view.advice.front().tried;
  }
  return view;
}

}  // namespace nanhunt::reports
