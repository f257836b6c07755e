// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/ops_in_trace.h"

#include <fmt/format.h>

#include "src/analyze/wording/advice.h"

namespace nanhunt::analyze {
namespace {

constexpr std::string_view kNoTap = "operations: the tap is missing, because ";  // as hooks/torch/nanhunt/_tap/tap.py

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool says_what_to_do(std::string_view why) { return has(why, "install ") || has(why, "run the program with"); }

// Classes that say that no operation in the trace made it.
bool is_made_by_no_op(FindingClass c) {
  switch (c) {
    case FindingClass::kBadInput:
    case FindingClass::kBadState:
    case FindingClass::kUninitialised:
    case FindingClass::kUnseenKernel:
    case FindingClass::kCorruption:
      return true;
    default:
      return false;
  }
}

// The reason as it was recorded, and what it does not say itself.
Advice tap_advice(std::string_view why) {
  Advice advice = make_advice("get-tap");
  advice.text += fmt::format(" It was missing, because {}.", why);
  if (const std::string todo = tap_todo(why); !todo.empty()) {
    advice.text += " " + todo;
  } else if (!says_what_to_do(why)) {
    advice.text += " `nanhunt doctor --env` says what is there.";
  }
  return advice;
}

}  // namespace

std::string why_no_tap(std::string_view note) {
  if (!note.starts_with(kNoTap)) return "";
  note.remove_prefix(kNoTap.size());
  return note.empty() ? "the run does not say why" : std::string(note);
}

std::string tap_todo(std::string_view why) {
  constexpr std::string_view kNewer = " or newer is needed";
  if (const std::size_t end = why.find(kNewer); end != std::string_view::npos)
    return fmt::format("Install {} or newer.", why.substr(0, end));
  if (says_what_to_do(why)) return "";
  if (has(why, "could not compile")) return "Install another C++ compiler, or name one in CXX.";
  if (has(why, "no C++ headers")) return "Install PyTorch from its wheel, which has them.";
  if (has(why, "not installed with the package")) return "Install nanhunt again.";
  if (has(why, "dispatch key")) return "Train without the library that holds it, or name the other place in NANHUNT_LISTEN.";
  return "";
}

void advise_recording(std::vector<Finding>& findings, const OpsInTrace& ops) {
  if (ops.level_helps() && !ops.damaged) return;
  const bool lost_ops = ops.damaged && ops.why_no_tap.empty();
  for (Finding& f : findings) {
    for (Advice& advice : f.advice) {
      if (advice.id != "record-ops") continue;
      if (!ops.why_no_tap.empty()) {
        advice = tap_advice(ops.why_no_tap);
      } else if (ops.damaged) {  // what it lacks was recorded: to record more would not have helped
        advice = make_advice("record-again");
        f.evidence.push_back("The trace is damaged: what explains this may be among the records that it lost.");
      } else {
        advice = make_advice("look-beyond-ops");
      }
    }
    if (!lost_ops || !is_made_by_no_op(f.cls)) continue;
    f.confidence = Confidence::kInferred;
    f.explanation = "The trace is damaged: the operation that made this may be among the records that it lost." +
                    (f.explanation.empty() ? "" : " " + f.explanation);
    f.advice.insert(f.advice.begin(), make_advice("record-again"));
  }
}

}  // namespace nanhunt::analyze
