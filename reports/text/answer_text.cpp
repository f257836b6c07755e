// SPDX-License-Identifier: Apache-2.0
// Implements render_answer of nanhunt/reporter.h. Each fact has a limit of lines; the code takes what they leave.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/reporter.h"
#include "reports/text/text_layout.h"
#include "reports/views/code_view.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/views/timeline_view.h"
#include "src/core/text.h"

namespace nanhunt {
namespace {

using namespace reports;

constexpr std::size_t kLines = 10, kCodeLines = 5;
constexpr std::size_t kLabels = 6;
constexpr std::size_t kCureLines = 3;
constexpr std::size_t kNotedLines = 2;  // of what was lost, of what was not watched

std::size_t lines_of(std::string_view text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string verdict_lines(const ReportModel& model, const TextOptions& options) {
  std::string word = model.verdict_word;
  for (char& c : word) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  TextLayout line(false, options.width);
  line.paragraph(model.headline, 0, word + "  ", 2);
  std::string text = line.take();
  return text.replace(0, word.size(), TextLayout(options.colour, options.width).ink(word, ink_of(model.status)));
}

// "step 41, phase forward, layer blocks.1 (Block); 19 bad steps, from step 41 to step 59".
std::string when_of(const FindingView& f) {
  std::string text = "step " + f.step + ", phase " + f.phase;
  if (f.layer != "—") text += ", layer " + f.layer + (f.module_class.empty() ? "" : " (" + f.module_class + ")");
  if (!f.ranks.empty()) text += "; " + f.ranks;
  const std::string often = f.bad_steps.empty() ? f.how_often : f.bad_steps.substr(0, f.bad_steps.find(" ("));
  return text + (often.empty() ? "" : "; " + often);
}

// "1 more fault, 2 warnings".
std::string others_of(const ReportModel& model) {
  std::uint64_t counts[3] = {0, 0, 0};
  for (const FindingView& f : model.others) ++counts[static_cast<std::size_t>(f.severity)];
  const bool more = model.origin && model.origin->severity == Severity::kFault;
  std::vector<std::string> parts;
  if (counts[2] != 0) parts.push_back(plural(counts[2], more ? "more fault" : "fault", more ? "more faults" : "faults"));
  if (counts[1] != 0) parts.push_back(plural(counts[1], "warning", "warnings"));
  if (counts[0] != 0) parts.push_back(plural(counts[0], "note", "notes"));
  if (model.findings_omitted != 0) parts.push_back(format_count(model.findings_omitted) + " further findings");
  return join(parts, ", ");
}

void write_next(TextLayout& out, const ReportModel& model, const TextOptions& options) {
  // The command is to be copied: it stays one line.
  std::string text = "nanhunt report " + shell_word(printable(options.run)) + " --full";
  std::string others = others_of(model);
  if (!others.empty()) others = "   (also found: " + others + ")";
  if (columns_of(text + others) + kLabels + 4 <= static_cast<std::size_t>(options.width)) text += others;
  out.raw("  " + out.ink("Rest", Ink::kDim) + "    " + text);
}

std::string first_of(const Lines& lines) {
  const std::uint64_t rest = lines.omitted + lines.shown.size() - 1;
  return lines.shown.front() + (rest == 0 ? "" : " And " + format_count(rest) + " more.");
}

// Lines at most of each; what comes first is given up last.
struct Room {
  std::size_t cause, harm;
};
constexpr Room kRooms[] = {{3, 2}, {3, 1}, {2, 2}, {2, 1}, {1, 1}, {1, 0}};

void write_finding(TextLayout& out, const ReportModel& model, const FindingView& f, const Room& room) {
  out.fact("When", when_of(f), kLabels, Ink::kPlain, 1);
  out.fact("Cause", f.cause, kLabels, Ink::kPlain, room.cause);
  const std::string_view yes = "Yes. ";  // the label says so
  if (room.harm != 0)
    out.fact("Harm", f.matter.starts_with(yes) ? f.matter.substr(yes.size()) : f.matter, kLabels, Ink::kPlain,
             room.harm);
  out.fact("Cure", f.cure_badge.empty() ? f.cure : f.cure + " (" + f.cure_badge + ")", kLabels,
           f.cure_tried == Tried::kWorked ? Ink::kGreen : Ink::kBold, f.frames.empty() ? kCureLines + 1 : kCureLines);
  if (!model.losses.empty()) out.fact("Note", first_of(model.losses), kLabels, Ink::kPlain, 1);
}

void write_without_finding(TextLayout& out, const ReportModel& model, const TimelineView& timeline) {
  if (model.status == VerdictStatus::kInconclusive && model.meaning != model.headline)
    out.fact("", model.meaning, kLabels, Ink::kPlain, 1);
  std::vector<std::string> counts;
  for (const Fact& fact : model.watched) {
    std::string label = fact.label;
    label[0] = static_cast<char>(label[0] | 0x20);
    counts.push_back(fact.value + " " + label);
  }
  out.fact("Seen", join(counts, ", "), kLabels, Ink::kPlain, 1);
  if (!timeline.lines.empty()) {
    const LossPoint& first = timeline.lines.front().front();
    const LossPoint& last = timeline.lines.back().back();
    std::string losses = format_short(first.loss) + " at step " + format_count(first.step);
    if (last.step != first.step) losses += ", " + format_short(last.loss) + " at step " + format_count(last.step);
    out.fact("Loss", losses, kLabels, Ink::kPlain, 1);
  }
  if (model.scaler) out.fact("Scaler", model.scaler->summary, kLabels, Ink::kPlain, 2);
  if (model.lr_ramp) out.fact("Rates", model.lr_ramp->answer, kLabels, Ink::kPlain, 2);
  if (!model.losses.empty()) out.fact("Note", first_of(model.losses), kLabels, Ink::kPlain, kNotedLines);
  if (!model.unwatched.empty()) out.fact("Unseen", first_of(model.unwatched), kLabels, Ink::kPlain, kNotedLines);
}

// Where the line stands, and as many lines around it as fit. A statement of more lines than that stands in one.
void write_code(TextLayout& out, const FindingView& f, std::size_t most) {
  if (f.frames.empty()) {
    if (!f.called_from.empty()) out.raw("  " + out.ink(f.called_from, Ink::kBold));
    return;
  }
  const FrameView& frame = f.frames.front();
  const bool short_name = !f.called_from.empty() && frame.place.ends_with("/" + f.called_from);
  out.raw("  " + out.ink(short_name ? f.called_from : frame.place, Ink::kBold) +
          (frame.function.empty() ? "" : " in " + frame.function));
  const std::vector<CodeLine> lines = lines_around(frame, most);
  if (lines.size() > most) {
    const CodeLine whole = statement_in_line(frame);
    out.paragraph(whole.text, 0, "  > " + whole.number + "  ", most);
    return;
  }
  std::size_t width = 0;
  for (const CodeLine& line : lines) width = std::max(width, line.number.size());
  for (const CodeLine& line : lines) {
    const std::string number = std::string(width - line.number.size(), ' ') + line.number;
    out.raw((line.here ? "  > " : "    ") + number + "  " + out.ink(line.text, line.here ? Ink::kBold : Ink::kDim));
  }
}

}  // namespace

std::string render_answer(const Analysis& analysis, const TextOptions& options) {
  const ReportModel model = make_report_model(analysis, options.going);
  const std::string verdict = verdict_lines(model, options);
  std::string below;
  for (const Room& room : kRooms) {
    TextLayout facts(options.colour, options.width);
    if (model.origin) {
      write_finding(facts, model, *model.origin, room);
    } else {
      write_without_finding(facts, model, make_timeline_view(analysis));
    }
    write_next(facts, model, options);
    below = facts.take();
    if (lines_of(verdict) + lines_of(below) + 2 <= kLines) break;  // 2: where the line stands, and the line
  }
  TextLayout code(options.colour, options.width);
  if (model.origin) {
    const std::size_t used = lines_of(verdict) + lines_of(below) + 1;  // 1: where the line stands
    write_code(code, *model.origin, used < kLines ? std::min(kLines - used, kCodeLines) : 1);
  }
  return verdict + code.take() + below;
}

}  // namespace nanhunt
