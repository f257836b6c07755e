// SPDX-License-Identifier: Apache-2.0
// Implements render_markdown and render_annotations of nanhunt/reporter.h: an issue ready to paste, and workflow commands
// of GitHub's. Names are hostile: outside of code they are escaped and can neither link, mention nor open markup.
#include <algorithm>
#include <string>
#include <string_view>

#include "nanhunt/reporter.h"
#include "reports/views/finding_view.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/views/source_view.h"
#include "src/core/text.h"

namespace nanhunt {
namespace {

using namespace reports;

constexpr std::size_t kFramesInIssue = 6, kEvidenceInIssue = 6, kAdviceInIssue = 4, kOthersInIssue = 8;
constexpr std::size_t kAnnotations = 10;  // of each kind: what GitHub shows of one step
constexpr std::size_t kMessageLimit = 2000;

std::size_t longest_run(std::string_view text, char c) {
  std::size_t longest = 0, run = 0;
  for (const char one : text) {
    run = one == c ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

// A code span, also inside of a table.
std::string code(std::string_view text) {
  if (text.empty()) return "";
  const std::string fence(longest_run(text, '`') + 1, '`');
  std::string inside;
  for (const char c : text) {
    if (c == '|') inside += '\\';
    inside += c;
  }
  const bool padded = text.front() == '`' || text.back() == '`' || fence.size() > 1;
  return fence + (padded ? " " : "") + inside + (padded ? " " : "") + fence;
}

// Would GitHub make a link or a mention of it?
bool may_link(std::string_view word) {
  return word.find_first_of("@#") != word.npos || word.find(":/") != word.npos || word.find("www.") != word.npos;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '\\': case '`': case '*': case '_': case '[': case ']': case '|': case '~': case '!': case '$':
        out += '\\';
        out += c;
        break;
      default: out += c;
    }
  }
  return out;
}

// Nothing in it is markup any more: a word that could become a link or a mention is code.
std::string prose(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    out += may_link(word) ? code(word) : escaped(word);
    if (space == text.size()) break;
    out += ' ';
    text.remove_prefix(space + 1);
  }
  return out;
}

void row(std::string& out, std::string_view label, const std::string& value) {
  if (value.empty() || value == "—") return;
  out.append("| ").append(label).append(" | ").append(value).append(" |\n");
}

// The folder in which the program was started, by a word of the command that is the end of a file's path; else what the
// line's short name leaves of its path. Where a file lies on a machine is nobody's business.
std::string working_folder(const Finding& f, const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  words.push_back(f.call_site.substr(0, f.call_site.rfind(':')));
  for (const std::string& word : words) {
    if (word.empty() || word.front() == '/') continue;
    const std::string end = "/" + (word.starts_with("./") ? word.substr(2) : word);
    for (const SourceFrame& frame : f.frames) {
      if (package_path(frame.file) == 0 && frame.file.ends_with(end))
        return frame.file.substr(0, frame.file.size() - end.size() + 1);
    }
  }
  return "";
}

std::string without(const std::string& folder, const std::string& place) {
  return !folder.empty() && place.starts_with(folder) ? place.substr(folder.size()) : place;
}

void write_source(std::string& out, const FindingView& f, const std::string& folder) {
  if (f.frames.empty()) return;
  out += "\n### Code\n\n";
  std::string block;
  for (std::size_t i = 0; i < f.frames.size() && i < kFramesInIssue; ++i) {
    const FrameView& frame = f.frames[i];
    block += (i == 0 ? "" : "called from ") + without(folder, frame.place) +
             (frame.function.empty() ? "" : " in " + frame.function);
    block += '\n';
    if (i != 0) {
      if (!frame.code.empty()) block += "    " + frame.code + "\n";
      continue;
    }
    for (const CodeLine& line : frame.lines) block += (line.here ? "> " : "  ") + line.number + "  " + line.text + "\n";
  }
  for (std::size_t i = 0; i < f.package_frames.size() && i < kFramesInIssue; ++i)
    block += (i == 0 ? "through installed packages: " : ", ") + f.package_frames[i].place;
  if (f.package_frames.size() > kFramesInIssue)
    block += " and " + format_count(f.package_frames.size() - kFramesInIssue) + " more";
  if (!f.package_frames.empty()) block += '\n';
  const std::string fence(std::max<std::size_t>(3, longest_run(block, '`') + 1), '`');
  out += fence + "text\n" + block + fence + "\n";
}

void write_list(std::string& out, std::string_view title, const std::vector<std::string>& lines, std::size_t limit) {
  if (lines.empty()) return;
  out.append("\n### ").append(title).append("\n\n");
  for (std::size_t i = 0; i < lines.size() && i < limit; ++i) out += "- " + prose(lines[i]) + "\n";
  if (lines.size() > limit) out += "- and " + format_count(lines.size() - limit) + " more\n";
}

void write_finding(std::string& out, const FindingView& f, const std::string& folder) {
  out += "\n| | |\n| --- | --- |\n";
  row(out, "Operation", code(f.operation) + (f.part_of.empty() ? "" : ", " + prose(f.part_of)));
  row(out, "Line of code", code(f.called_from));
  row(out, "Layer", f.layer == "—" ? "" : code(f.layer) + (f.module_class.empty() ? "" : " " + code(f.module_class)));
  row(out, "When", "step " + f.step + ", phase " + f.phase);
  row(out, "How often", prose(f.how_often + (f.bad_steps.empty() ? "" : "; " + f.bad_steps)));
  row(out, "Cause", code(f.class_name) + ": " + prose(f.why));
  row(out, "Matters?", prose(f.matter));
  row(out, "Certainty", prose(f.confidence));
  row(out, "Rank", prose(f.ranks));
  write_source(out, f, folder);
  out += "\n### Why\n\n" + prose(f.explanation.empty() ? f.class_explanation : f.explanation) + "\n";
  if (!f.evidence.empty()) out += '\n';
  for (std::size_t i = 0; i < f.evidence.shown.size() && i < kEvidenceInIssue; ++i)
    out += "- " + prose(f.evidence.shown[i]) + "\n";
  if (!f.tensors.empty()) {
    out += "\n### Inputs and output\n\n| tensor | name | format | shape | NaN | +Inf | -Inf | min | max |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const TensorRow& t : f.tensors) {
      out += "| " + prose(t.part) + " | " + code(t.name) + " | " + t.dtype + " | " + prose(t.shape) + " | " + t.nan +
             " | " + t.pos_inf + " | " + t.neg_inf + " | " + t.min + " | " + t.max + " |\n";
    }
  }
  std::vector<std::string> advice;
  for (const AdviceView& one : f.advice) {
    if (one.tried != Tried::kFailed) advice.push_back(one.text + " (" + one.badge + ")");
  }
  write_list(out, "What to do", advice, kAdviceInIssue);
  write_list(out, "Of the same cause", f.related.shown, kOthersInIssue);
}

// Relative to the checkout where the file lies in it: GitHub knows no other paths.
std::string inside(const std::string& root, const std::string& file) {
  if (root.empty() || root == "/") return "";
  const std::string start = root.back() == '/' ? root : root + "/";
  return file.size() > start.size() && file.compare(0, start.size(), start) == 0 ? file.substr(start.size()) : "";
}

struct At {
  std::string file;
  std::uint32_t line = 0;
};

// The innermost line of the checkout; else the innermost of all.
At place_of(const Finding& f, const std::string& root) {
  for (const SourceFrame& frame : f.frames) {
    if (package_path(frame.file) != 0) continue;
    if (std::string file = inside(root, frame.file); !file.empty()) return {std::move(file), frame.line};
  }
  if (!f.frames.empty()) return {f.frames.front().file, f.frames.front().line};
  const std::size_t colon = f.call_site.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == f.call_site.size()) return {};
  std::uint32_t line = 0;
  for (std::size_t i = colon + 1; i < f.call_site.size(); ++i) {
    const char c = f.call_site[i];
    if (c < '0' || c > '9' || line > 100'000'000) return {};
    line = line * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return {f.call_site.substr(0, colon), line};
}

std::string command_data(std::string_view text, bool property) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '%': out += "%25"; break;
      case '\r': out += "%0D"; break;
      case '\n': out += "%0A"; break;
      case ':': out += property ? "%3A" : ":"; break;
      case ',': out += property ? "%2C" : ","; break;
      default: out += c;
    }
  }
  return out;
}

void annotate(std::string& out, std::string_view kind, const At& at, std::string_view title, std::string_view message) {
  out.append("::").append(kind).append(" ");
  if (!at.file.empty()) {
    out += "file=" + command_data(clip(at.file, kSentenceLimit), true) + ",";
    if (at.line != 0) out += "line=" + std::to_string(at.line) + ",";
  }
  out += "title=" + command_data(title, true) + "::" + command_data(message, false) + "\n";
}

}  // namespace

std::string render_markdown(const Analysis& analysis) {
  const ReportModel model = make_report_model(analysis);
  std::string out;
  if (model.origin && !model.origin->change.empty()) {
    const std::string& at = model.origin->called_from;
    out += "**" + (at.empty() ? "" : "At " + code(at) + ": ") + prose(model.origin->cure) + "**\n\n";
  }
  out += prose(model.verdict_word) + ": " + prose(model.headline) + "\n";
  if (model.origin) {
    const std::vector<std::string> none;
    write_finding(out, *model.origin,
                  working_folder(*find_origin(analysis),
                                 analysis.ranks.empty() ? none : analysis.ranks.front().info.command));
  }
  std::vector<std::string> others;
  for (const FindingView& f : model.others) {
    others.push_back(f.severity_word + ", " + f.class_name + ": " + f.title +
                     (f.how_often.empty() ? "" : " (" + f.how_often + ")"));
  }
  write_list(out, model.origin ? "Also found" : "Found", others, kOthersInIssue);
  out += "\n### What ran\n\n" + prose(model.run_line) + "\n";
  if (!model.runs.empty()) {
    out += "\n| | |\n| --- | --- |\n";
    for (const Fact& fact : model.runs.front().facts) row(out, fact.label, code(fact.value));
  }
  for (const Fact& fact : model.watched) out += "\n" + prose(fact.label) + ": " + prose(fact.value) + "  ";
  out += "\n";
  return out;
}

std::string render_annotations(const Analysis& analysis, const std::string& root) {
  std::string out;
  std::size_t counts[3] = {0, 0, 0};
  for (const Finding& f : analysis.findings) {
    const auto severity = static_cast<std::size_t>(f.severity);
    if (severity > 2 || ++counts[severity] > kAnnotations) continue;
    const FindingView view = view_finding(f, rank_count(analysis) > 1);
    const std::string message = view.title + (view.change.empty() ? "" : "\n" + view.change) + "\nnanhunt " + view.id +
                                ", " + view.class_name + ", step " + view.step;
    constexpr std::string_view kKinds[] = {"notice", "warning", "error"};
    annotate(out, kKinds[severity], place_of(f, root), "nanhunt: " + view.class_name, message.substr(0, kMessageLimit));
  }
  if (analysis.findings.empty()) {
    const ReportModel model = make_report_model(analysis);
    annotate(out, model.status == VerdictStatus::kClean ? "notice" : "warning", {},
             "nanhunt: " + std::string(verdict_status_name(model.status)), model.headline);
  }
  return out;
}

}  // namespace nanhunt
