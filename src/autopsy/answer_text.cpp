// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reports/text/text_layout.h"
#include "src/autopsy/answer.h"
#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

using reports::Ink;
using reports::TextLayout;

constexpr std::size_t kLabel = 10;  // and two columns before it

std::string began_text(const Began& began) {
  const std::string unit(unit_name(began.unit));
  if (began.first_bad && began.last_good) {
    return "after " + unit + " " + number_text(*began.last_good) + ", the last good log, and by " + unit + " " +
           number_text(*began.first_bad) + ", the first bad one";
  }
  if (began.first_bad)
    return "by " + unit + " " + number_text(*began.first_bad) + ", the first bad log; no good one came before";
  if (began.last_good) return "after " + unit + " " + number_text(*began.last_good) + ", the last good log";
  return "the log does not say when";
}

std::string_view confidence_word(Confidence confidence) {
  return confidence == Confidence::kLikely ? "likely" : "possible";
}

std::string evidence_text(const Evidence& evidence, const Guess& guess) {
  std::string text;
  for (const Sentence& one : guess.evidence) {
    text.append(text.empty() ? "" : "; ").append(one.text);
    if (&one == &guess.evidence.back() || one.source != (&one)[1].source) {
      text += " [" + evidence.sources[one.source].path + "]";
    }
  }
  return text;
}

std::string join(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out.append(out.empty() ? "" : "; ").append(text);
  return out;
}

std::string read_text(const Evidence& evidence) {
  std::vector<std::string> formats;
  std::vector<std::size_t> counts;
  for (const Source& source : evidence.sources) {
    const auto found = std::find(formats.begin(), formats.end(), source.format);
    if (found == formats.end()) {
      formats.push_back(source.format);
      counts.push_back(1);
    } else {
      ++counts[static_cast<std::size_t>(found - formats.begin())];
    }
  }
  std::string text;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    if (formats[i].empty()) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(counts[i]) + " " + formats[i];
  }
  std::size_t damaged = 0;
  std::string first;
  for (const Source& source : evidence.sources) {
    if (source.damage.empty()) continue;
    if (damaged++ == 0) first = source.path + ": " + source.damage;
  }
  if (damaged != 0) {
    text += std::string(text.empty() ? "" : "; ") + "damaged: " + std::to_string(damaged) + " (" + first + ")";
  }
  if (evidence.cut) text += "; more than is read was there";
  return text;
}

}  // namespace

std::string answer_text(const Evidence& evidence, const Judgement& judgement, const std::optional<Resume>& resume,
                        bool colour, int width) {
  TextLayout out(colour, width);
  const bool bad = judgement.outcome == Outcome::kBadNumbers;
  const auto fact = [&](std::string_view label, std::string_view value, std::size_t most, Ink ink = Ink::kPlain) {
    if (!value.empty()) out.fact(label, printable(value), kLabel, ink, most);
  };
  const std::string status = bad ? "BAD" : judgement.outcome == Outcome::kNothingBad ? "CLEAN" : "UNKNOWN";
  out.raw(out.ink(status, bad                                         ? Ink::kRed
                          : judgement.outcome == Outcome::kNothingBad ? Ink::kGreen
                                                                      : Ink::kYellow) +
          "  " + printable(judgement.headline));
  const Guess* first = judgement.guesses.empty() ? nullptr : &judgement.guesses[0];
  if (bad) {
    const Began* began = first != nullptr && (first->began.first_bad || first->began.last_good) ? &first->began
                         : judgement.began                                                      ? &*judgement.began
                                                                                                : nullptr;
    fact("Began", began != nullptr ? began_text(*began) : "the log does not say when", 2);
  }
  if (first != nullptr) {
    fact("Why",
         std::string(confidence_word(first->confidence)) + ": " + std::string(first->title) + " (" +
             std::string(first->pattern) + ")",
         2);
    fact("Seen", evidence_text(evidence, *first), 4);
    fact("Unlikely", join(first->unlikely), 1);
    fact("Check", join(first->checks), 2);
  } else if (bad) {
    fact("Why", "the log does not say why", 1);
  }
  if (judgement.guesses.size() > 1) {
    std::string others;
    for (std::size_t i = 1; i < judgement.guesses.size(); ++i) {
      const Guess& guess = judgement.guesses[i];
      others.append(others.empty() ? "" : "; ")
          .append(confidence_word(guess.confidence))
          .append(": ")
          .append(guess.title);
    }
    fact("Or", others, 2);
  }
  fact("Read", read_text(evidence), 2);
  if (bad) {
    // The command is to be copied: it stays on one line, however long.
    out.raw("  Prove       " + printable(next_command(evidence, judgement).text()));
    if (resume) fact("From", resume->text, 2);
  }
  return out.take();
}

}  // namespace nanhunt::autopsy
