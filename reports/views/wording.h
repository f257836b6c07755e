// SPDX-License-Identifier: Apache-2.0
// The words every view uses for classes, severities and outcomes. One place, so that no two views differ.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

std::string_view class_phrase(FindingClass c);       // "the guard constant (eps) is lost in this format"
std::string_view class_explanation(FindingClass c);  // one sentence
std::string_view confidence_phrase(Confidence c);    // "proved: recomputing ... agreed"
std::string_view lifecycle_word(Lifecycle l);        // "began here"
std::string_view lifecycle_phrase(Lifecycle l);      // "clean inputs, bad output"
std::string_view verdict_word(VerdictStatus s);      // "Fault"
std::string_view verdict_meaning(VerdictStatus s);   // one sentence
std::string_view severity_word(Severity s);          // "Fault"

// What became of an advice on this very run.
std::string_view tried_phrase(Tried t);  // "seen to work on this run"

// After the number of a step in which nothing was trained.
inline constexpr std::string_view kOfForward = " (a forward: nothing was trained)";

// A word of the report and what it means. README.md has the same table; tests/reports hold the two together.
struct Word {
  std::string_view word, meaning;
};
std::span<const Word> words();

// Does it matter? A sentence that begins with Yes, No or It may.
std::string matter_sentence(const Finding& finding);

}  // namespace nanhunt::reports
