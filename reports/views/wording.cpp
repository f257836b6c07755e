// SPDX-License-Identifier: Apache-2.0
#include "reports/views/wording.h"

#include <algorithm>
#include <array>
#include <vector>

#include "reports/views/numbers.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kSinksInSentence = 4;

// What a sink begins with, and what several of its kind are called.
struct SinkKind {
  std::string_view begins, one, many;
};
constexpr std::array<SinkKind, 5> kSinkKinds = {{{"loss", "the loss", "losses"},
                                                 {"gradient of ", "1 gradient", "gradients"},
                                                 {"parameter ", "1 parameter", "parameters"},
                                                 {"optimizer state ", "1 optimizer state", "optimizer states"},
                                                 {"buffer ", "1 buffer", "buffers"}}};

// Many are told by kind: "loss, 28 gradients, 28 parameters". Empty where one is of no known kind.
std::string reached_kinds(const std::vector<std::string>& sinks) {
  std::array<std::uint64_t, kSinkKinds.size()> counts{};
  for (const std::string& sink : sinks) {
    const auto kind = std::find_if(kSinkKinds.begin(), kSinkKinds.end(),
                                   [&](const SinkKind& one) { return sink.starts_with(one.begins); });
    if (kind == kSinkKinds.end()) return "";
    ++counts[static_cast<std::size_t>(kind - kSinkKinds.begin())];
  }
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    parts.push_back(counts[i] == 1 ? std::string(kSinkKinds[i].one)
                                   : format_count(counts[i]) + " " + std::string(kSinkKinds[i].many));
  }
  return join(parts, ", ");
}

std::string reached(const std::vector<std::string>& sinks) {
  if (sinks.size() > kSinksInSentence) {
    if (std::string kinds = reached_kinds(sinks); !kinds.empty()) return kinds;
  }
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < sinks.size() && i < kSinksInSentence; ++i) shown.push_back(clip(sinks[i], kNameLimit));
  std::string text = join(shown, ", ");
  if (sinks.size() > shown.size()) text += " and " + format_count(sinks.size() - shown.size()) + " more";
  return text;
}

// "The weights hold NaN from step 20 to step 149. "; "": they do not.
std::string weights_text(const Finding& f) {
  const auto first = std::find_if(f.chain.nodes.begin(), f.chain.nodes.end(),
                                  [](const ChainNode& n) { return n.role == "sink" && n.op == "<parameter>"; });
  if (first == f.chain.nodes.end()) return "";
  const std::string what = first->nan > 0 ? "NaN" : "infinities";
  const BadSteps& bad = f.bad_steps;
  // With good steps in between something mended them.
  const bool stays = bad.last > first->step && bad.count > std::uint64_t{bad.last} - bad.first;
  if (!stays) return "The weights held " + what + " after step " + format_count(first->step) + ". ";
  return "The weights hold " + what + " from step " + format_count(first->step) + " to step " + format_count(f.bad_steps.last) + ". ";
}

}  // namespace

std::string_view class_phrase(FindingClass c) {
  switch (c) {
    case FindingClass::kOverflow:
      return "a result too large for its number format";
    case FindingClass::kInvalid:
      return "an operation without an answer";
    case FindingClass::kDivideByZero:
      return "a division by zero, or another pole";
    case FindingClass::kEpsUnderflow:
      return "the guard constant (eps) is lost in this number format";
    case FindingClass::kUnderflow:
      return "small numbers became zero";
    case FindingClass::kUpdateLoss:
      return "updates that change nothing";
    case FindingClass::kExploding:
      return "numbers that grow step after step";
    case FindingClass::kBadInput:
      return "bad numbers in the data";
    case FindingClass::kBadState:
      return "a tensor was bad before any recorded operation wrote it";
    case FindingClass::kUninitialised:
      return "memory read before it was written";
    case FindingClass::kUnseenKernel:
      return "a change made inside a call that could not be watched";
    case FindingClass::kCorruption:
      return "a change that no recorded operation made";
    case FindingClass::kComm:
      return "numbers that went bad between ranks";
    case FindingClass::kApiMisuse:
      return "training calls that are missing, or in the wrong order";
    case FindingClass::kScalerCalibration:
      return "the loss scaler finding its scale";
    case FindingClass::kScalerCollapse:
      return "a loss scale that cannot recover";
    case FindingClass::kNotReproducible:
      return "a result that did not come again";
    case FindingClass::kKernelDependent:
      return "a compiled kernel that computes otherwise";
    case FindingClass::kUnexplained:
      return "no known cause";
  }
  return "no known cause";
}

std::string_view class_explanation(FindingClass c) {
  switch (c) {
    case FindingClass::kOverflow:
      return "The exact result was finite but larger than the format can hold, so it became infinity.";
    case FindingClass::kInvalid:
      return "The operation was given numbers for which it has no answer, such as the root of a negative number or "
             "infinity minus infinity.";
    case FindingClass::kDivideByZero:
      return "The operation was evaluated at a pole: a division by zero, the logarithm of zero or a slope without "
             "bound.";
    case FindingClass::kEpsUnderflow:
      return "The small constant that should keep a denominator away from zero rounds to zero, or is absorbed, in the "
             "format in which it is added.";
    case FindingClass::kUnderflow:
      return "Results that are not zero were smaller than the format can hold, so they became zero.";
    case FindingClass::kUpdateLoss:
      return "Updates changed nothing: they were smaller than half a unit in the last place of what they were added to, or "
             "gradients were 0.";
    case FindingClass::kExploding:
      return "Training as a whole grew: no single operation is at fault. Where something overflows, the place of the first "
             "overflow is arbitrary.";
    case FindingClass::kBadInput:
      return "The data given to the model already held numbers that are not finite.";
    case FindingClass::kBadState:
      return "A parameter, optimizer state or buffer already held numbers that are not finite when the step began.";
    case FindingClass::kUninitialised:
      return "Memory was used before anything had been written to it.";
    case FindingClass::kUnseenKernel:
      return "A value changed while a call that could not be watched had hold of it.";
    case FindingClass::kCorruption:
      return "A value differs from its last record although no recorded operation wrote it.";
    case FindingClass::kComm:
      return "What this rank gave was finite, and what came back from the ranks together was not.";
    case FindingClass::kApiMisuse:
      return "The calls of the training step came in an order that damages its numbers.";
    case FindingClass::kScalerCalibration:
      return "The loss scaler tried a scale that was too large, skipped the step and lowered it, as it is meant to.";
    case FindingClass::kScalerCollapse:
      return "The loss scale keeps falling, or stands at a value from which it cannot recover.";
    case FindingClass::kNotReproducible:
      return "The same operation gave finite numbers when it was run again from the same inputs.";
    case FindingClass::kKernelDependent:
      return "What the compiler made of the operations gave bad numbers; one by one they give finite ones.";
    case FindingClass::kUnexplained:
      return "Bad numbers began here, and no rule of this version knows why.";
  }
  return "";
}

std::string_view confidence_phrase(Confidence c) {
  switch (c) {
    case Confidence::kProved:
      return "proved: operation and cause, by computing it again from the numbers that it read";
    case Confidence::kObserved:
      return "observed: every input was watched";
    case Confidence::kInferred:
      return "inferred: something that feeds it was not watched";
  }
  return "";
}

std::string_view lifecycle_word(Lifecycle l) {
  switch (l) {
    case Lifecycle::kAppear:
      return "began here";
    case Lifecycle::kTransform:
      return "became NaN";
    case Lifecycle::kPropagate:
      return "passed on";
    case Lifecycle::kDisappear:
      return "ended here";
    case Lifecycle::kUnknown:
      return "not known";
  }
  return "not known";
}

std::string_view lifecycle_phrase(Lifecycle l) {
  switch (l) {
    case Lifecycle::kAppear:
      return "clean inputs, bad output";
    case Lifecycle::kTransform:
      return "infinity in, NaN out";
    case Lifecycle::kPropagate:
      return "bad inputs, bad output";
    case Lifecycle::kDisappear:
      return "bad inputs, clean output";
    case Lifecycle::kUnknown:
      return "an input was not watched";
  }
  return "";
}

std::string_view verdict_word(VerdictStatus s) {
  switch (s) {
    case VerdictStatus::kClean:
      return "Clean";
    case VerdictStatus::kCalibrating:
      return "Calibrating";
    case VerdictStatus::kWarning:
      return "Warning";
    case VerdictStatus::kFault:
      return "Fault";
    case VerdictStatus::kInconclusive:
      return "Inconclusive";
  }
  return "Inconclusive";
}

std::string_view verdict_meaning(VerdictStatus s) {
  switch (s) {
    case VerdictStatus::kClean:
      return "Nothing that was watched did harm.";
    case VerdictStatus::kCalibrating:
      return "The loss scaler skipped steps while it found its scale. That is its work, not a fault.";
    case VerdictStatus::kWarning:
      return "Training goes on, but some of its numbers are not what they should be.";
    case VerdictStatus::kFault:
      return "What is being trained is harmed.";
    case VerdictStatus::kInconclusive:
      return "What was recorded does not decide whether the run is healthy.";
  }
  return "";
}

std::string_view severity_word(Severity s) {
  switch (s) {
    case Severity::kInfo:
      return "Info";
    case Severity::kWarning:
      return "Warning";
    case Severity::kFault:
      return "Fault";
  }
  return "Info";
}

std::string_view tried_phrase(Tried t) {
  switch (t) {
    case Tried::kWorked:
      return "seen to work on this run";
    case Tried::kOnTheseNumbers:
      return "finite on these numbers, not tried in a run";
    case Tried::kFailed:
      return "tried: no cure";
    case Tried::kNotTried:
      return "not tried";
  }
  return "not tried";
}

std::span<const Word> words() {
  const auto confidence = [](Confidence c) {
    return Word{confidence_name(c), confidence_phrase(c).substr(confidence_name(c).size() + 2)};
  };
  const auto lifecycle = [](Lifecycle l) { return Word{lifecycle_word(l), lifecycle_phrase(l)}; };
  static const std::array<Word, 15> kWords = {{
      {"origin", "the operation at which the numbers that did harm began"},
      {"sink", "what is harmed: the loss, a gradient, a parameter, optimizer state or a buffer"},
      {"class", "the kind of thing that went wrong, such as overflow"},
      lifecycle(Lifecycle::kAppear),
      lifecycle(Lifecycle::kTransform),
      lifecycle(Lifecycle::kPropagate),
      lifecycle(Lifecycle::kDisappear),
      lifecycle(Lifecycle::kUnknown),
      confidence(Confidence::kProved),
      confidence(Confidence::kObserved),
      confidence(Confidence::kInferred),
      {"headroom", "how often the largest number could double before its format overflows, in binades (powers of two)"},
      {"underflow", "the share of elements that were lost to zero, or are subnormal and keep fewer digits"},
      {"optimizer boundary", "the moment before the optimizer uses the gradients, when a step is judged"},
      {"skipped step", "the loss scaler found NaN or infinity in the gradients and left the parameters as they were"},
  }};
  return kWords;
}

std::string matter_sentence(const Finding& finding) {
  const std::string sinks = reached(finding.sinks);
  if (finding.benign || finding.severity == Severity::kInfo) {
    return "No. It did not harm what is being trained.";
  }
  const bool of_validation = std::all_of(finding.sinks.begin(), finding.sinks.end(), [](const std::string& sink) {
    return sink == "what a validation computed";
  });
  if (finding.unfinished && (finding.place.phase == Phase::kValidation || (of_validation && !finding.sinks.empty()))) {
    return "Only where the result of the validation is used: a schedule of the learning rate, the choice of a checkpoint. "
           "Training itself was not harmed.";
  }
  if (finding.severity == Severity::kWarning && finding.unfinished) {
    return "It may. The program skipped the steps or batches in which it came up, and went on.";
  }
  if (finding.severity == Severity::kWarning && sinks.empty() && !finding.place.op) {
    if (finding.cls == FindingClass::kUpdateLoss && finding.place.phase == Phase::kBackward)
      return "Yes. Parameters whose gradient is 0 do not learn.";
    if (finding.cls == FindingClass::kExploding && finding.place.phase == Phase::kOptimizer)
      return "Yes, unless the loss is meant to become larger.";
    if (finding.cls == FindingClass::kExploding) return "Yes. Training diverges, though no number is bad.";
  }
  if (finding.severity == Severity::kWarning) {
    return sinks.empty() ? "It may. Nothing watched became non-finite, but numbers were lost."
                         : "It may. Numbers were lost on the way to " + sinks + ".";
  }
  if (sinks.empty() && finding.chain.nodes.size() > 1 &&
      finding.chain.nodes.back().lifecycle == Lifecycle::kDisappear) {
    const ChainNode& end = finding.chain.nodes.back();
    return "Yes. No NaN reached training, but " + clip(end.op, kNameLimit) +
           (end.module.empty() ? "" : " in " + clip(end.module, kNameLimit)) +
           " gives only zeros or one number from step " + format_count(finding.first_step) +
           " on: what it feeds learns nothing.";
  }
  if (sinks.empty() && finding.cls == FindingClass::kApiMisuse) return "Yes. Training did not do what the program asked for.";
  if (sinks.empty()) return "Yes. It does harm to training.";
  return "Yes. " + weights_text(finding) + "Bad numbers reached " + sinks + ".";
}

}  // namespace nanhunt::reports
