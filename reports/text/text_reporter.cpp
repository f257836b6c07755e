// SPDX-License-Identifier: Apache-2.0
// Implements render_text of nanhunt/reporter.h: all that is known, which op, which layer, when, why, does it matter, what
// cures it.
#include <algorithm>

#include "nanhunt/reporter.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/text/text_layout.h"
#include "reports/views/timeline_view.h"
#include "src/core/text.h"

namespace nanhunt {
namespace {

using namespace reports;

constexpr std::size_t kLabelWidth = 10;
constexpr std::size_t kCarriersShown = 3;
constexpr std::size_t kFramesShown = 6, kPackageFramesShown = 3;
constexpr std::size_t kOthersShown = 12;
constexpr std::size_t kEvidenceShown = 8;
constexpr std::size_t kTensorsShown = 8;
constexpr std::size_t kEpsShown = 8;
constexpr std::size_t kNamesShown = 8;
constexpr std::size_t kLinesShown = 8;
constexpr std::size_t kDeviceRowsShown = 8;
constexpr std::size_t kRatesShown = 12;
constexpr std::size_t kKernelInTable = 48;

Ink tried_ink(Tried t) { return t < Tried::kNotTried ? Ink::kGreen : t == Tried::kFailed ? Ink::kRed : Ink::kDim; }

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string and_more(std::uint64_t n) { return "… and " + format_count(n) + " more"; }

std::string listed(const Lines& lines) {
  const std::size_t shown = std::min(lines.shown.size(), kNamesShown);
  const std::vector<std::string> first(lines.shown.begin(), lines.shown.begin() + static_cast<std::ptrdiff_t>(shown));
  const std::uint64_t rest = lines.omitted + (lines.shown.size() - shown);
  return join(first, ", ") + (rest == 0 ? "" : std::string(" ").append(and_more(rest)));
}

void write_answers(TextLayout& out, const FindingView& f, const std::string& scaler_answer) {
  out.fact("Operation", f.operation + (f.part_of.empty() ? "" : ", " + f.part_of), kLabelWidth, Ink::kBold);
  if (!f.kernel.empty()) out.fact("Kernel", f.kernel, kLabelWidth);
  const std::string shared = f.shared_line.empty() ? "" : ", " + f.shared_line;
  if (!f.called_from.empty()) out.fact("Code line", f.called_from + shared, kLabelWidth, Ink::kBold);
  out.fact("Layer", f.module_class.empty() ? f.layer : f.layer + " (" + f.module_class + ")", kLabelWidth, Ink::kBold);
  out.fact("When", "step " + f.step + ", phase " + f.phase, kLabelWidth, Ink::kBold);
  if (!f.how_often.empty()) {
    out.fact("How often", f.how_often + (f.bad_steps.empty() ? "" : "; " + f.bad_steps), kLabelWidth);
  }
  if (!f.ranks.empty()) out.fact("Rank", f.ranks, kLabelWidth, Ink::kBold);
  out.fact("Cause", f.class_name + ": " + f.why, kLabelWidth, Ink::kBold);
  out.fact("Matters?", f.matter, kLabelWidth);
  out.fact("Cure", f.cure_badge.empty() ? f.cure : f.cure + " (" + f.cure_badge + ")", kLabelWidth,
           f.cure_tried == Tried::kWorked ? Ink::kGreen : Ink::kPlain);
  if (!scaler_answer.empty()) out.fact("Scaler?", scaler_answer, kLabelWidth);
  out.fact("Certainty", f.confidence, kLabelWidth);
  if (!f.samples.empty() && f.samples_are_bad) out.fact("Samples", listed(f.samples), kLabelWidth);
}

// The line that ran with those around it, then its callers, each with its line.
void write_code(TextLayout& out, const FindingView& f) {
  if (f.frames.empty()) return;
  out.heading("The code");
  for (std::size_t i = 0; i < f.frames.size() && i < kFramesShown; ++i) {
    const FrameView& frame = f.frames[i];
    out.raw("  " + std::string(i == 0 ? "" : "called from ") + out.ink(frame.place, Ink::kBold) +
            (frame.function.empty() ? "" : " in " + frame.function));
    if (i == 0) {
      std::size_t width = 0;
      for (const CodeLine& line : frame.lines) width = std::max(width, line.number.size());
      for (const CodeLine& line : frame.lines) {
        const std::string number = std::string(width - line.number.size(), ' ') + line.number;
        out.raw((line.here ? "  > " : "    ") + number + "  " + out.ink(line.text, line.here ? Ink::kBold : Ink::kDim));
      }
    } else if (!frame.code.empty()) {
      out.raw("      " + frame.code);
    }
  }
  if (f.frames.size() > kFramesShown) out.paragraph(and_more(f.frames.size() - kFramesShown), 2);
  if (f.package_frames.empty()) return;
  std::string through;
  for (std::size_t i = 0; i < f.package_frames.size() && i < kPackageFramesShown; ++i)
    through += (i == 0 ? "" : ", ") + f.package_frames[i].place;
  if (f.package_frames.size() > kPackageFramesShown)
    through += " " + and_more(f.package_frames.size() - kPackageFramesShown);
  out.paragraph("through installed packages: " + through, 2);
}

void write_related(TextLayout& out, const FindingView& f) {
  if (f.related.empty()) return;
  out.heading("Of the same cause");
  for (const std::string& one : f.related.shown) out.paragraph(one, 2, "- ");
  if (f.related.omitted != 0) out.paragraph(and_more(f.related.omitted), 4);
}

void write_why(TextLayout& out, const FindingView& f) {
  out.heading("Why");
  out.paragraph(f.explanation.empty() ? f.class_explanation : f.explanation, 2);
  for (std::size_t i = 0; i < f.evidence.shown.size() && i < kEvidenceShown; ++i) {
    out.paragraph(f.evidence.shown[i], 2, "- ");
  }
  const std::uint64_t rest =
      f.evidence.omitted + (f.evidence.shown.size() > kEvidenceShown ? f.evidence.shown.size() - kEvidenceShown : 0);
  if (rest != 0) out.paragraph(and_more(rest), 4);
  if (!f.first_inf.empty()) out.paragraph(f.first_inf, 2, "- ");
  if (!f.first_nan.empty()) out.paragraph(f.first_nan, 2, "- ");
}

void write_element(TextLayout& out, const FindingView& f) {
  if (!f.element) return;
  std::string text = f.element->where + ": " + f.element->value;
  std::vector<std::string> operands;
  for (const OperandView& operand : f.element->operands) {
    operands.push_back(operand.slot + " = " + operand.value + (operand.name.empty() ? "" : " (" + operand.name + ")"));
  }
  if (!operands.empty()) text += ", made from " + join(operands, ", ");
  out.heading("The numbers that met");
  out.paragraph(text, 2);
}

void write_tensors(TextLayout& out, const FindingView& f) {
  if (f.tensors.empty()) return;
  out.heading("Inputs and output of the operation");
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "name", "format", "shape", "NaN", "+Inf", "-Inf", "zeros", "min |x| > 0", "min", "max"}};
  std::size_t shown = 0;
  // The last row is the output: it is always shown.
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    const TensorRow& t = f.tensors[i];
    if (shown + 1 >= kTensorsShown && i + 1 != f.tensors.size()) continue;
    ++shown;
    const auto cell = [&](const std::string& text) { return !t.has_stats ? "?" : text.empty() ? "-" : text; };
    rows.push_back({t.part, t.name, t.dtype, t.shape, cell(t.nan), cell(t.pos_inf), cell(t.neg_inf), cell(t.zeros),
                    cell(t.smallest), cell(t.min), cell(t.max)});
  }
  out.table(rows, {false, false, false, false, true, true, true, true, true, true, true}, 2);
  for (const TensorRow& t : f.tensors) {
    if (!t.note.empty()) out.paragraph(t.part + ": " + t.note, 2, "- ");
  }
  const std::uint64_t rest = f.tensors_omitted + (f.tensors.size() - shown);
  if (rest != 0) out.paragraph(and_more(rest), 2);
}

void write_chain_step(TextLayout& out, const ChainStep& step) {
  const std::string_view arrow = step.role == "origin" ? "* " : step.role == "sink" ? "# " : "> ";
  std::string text = step.badge + "  " + step.title + "  " + step.place;
  if (!step.amount.empty()) text += "  " + step.amount;
  out.paragraph(text, 2, arrow);
}

void write_chain(TextLayout& out, const FindingView& f) {
  if (f.chain.empty()) return;
  out.heading(std::string("What happened (* origin, > carried on, # reached ") +
              (f.trained ? "what is trained)" : "what a forward gave)"));
  std::size_t carriers = 0, sinks = 0, hidden_carriers = 0, hidden_sinks = 0;
  for (const ChainStep& step : f.chain.steps) {
    if (step.role == "carrier" && ++carriers > kCarriersShown) {
      ++hidden_carriers;
      continue;
    }
    if (step.role == "sink" && sinks == 0 && hidden_carriers != 0) {
      out.paragraph(and_more(hidden_carriers) + " that carried it on", 4);
      hidden_carriers = 0;
    }
    if (step.role == "sink" && ++sinks > kNamesShown) {
      ++hidden_sinks;
      continue;
    }
    write_chain_step(out, step);
  }
  const std::uint64_t rest = hidden_carriers + hidden_sinks + f.chain.omitted;
  if (rest != 0) out.paragraph(and_more(rest), 4);
}

void write_advice(TextLayout& out, const FindingView& f) {
  if (f.advice.empty()) return;
  const auto failed = std::find_if(f.advice.begin(), f.advice.end(),
                                   [](const AdviceView& advice) { return advice.tried == Tried::kFailed; });
  if (failed != f.advice.begin()) out.heading("What to do");
  for (auto advice = f.advice.begin(); advice != failed; ++advice) {
    out.raw("  " + out.ink(std::string("[").append(advice->badge).append("]"), tried_ink(advice->tried)));
    out.paragraph(advice->text, 4);
    if (!advice->evidence.empty()) out.paragraph(advice->evidence, 4);
    if (!advice->why.empty()) out.paragraph(advice->why, 4, "why: ");
  }
  if (failed == f.advice.end()) return;
  out.heading("What does not help");
  for (auto advice = failed; advice != f.advice.end(); ++advice) {
    out.paragraph(advice->text, 2, "- ");
    if (!advice->evidence.empty()) out.paragraph(advice->evidence, 4);
  }
}

void write_others(TextLayout& out, const ReportModel& model) {
  if (model.others.empty()) return;
  out.heading(model.origin ? "Also found" : "Found");
  std::size_t shown = 0;
  for (const FindingView& f : model.others) {
    if (shown == kOthersShown) break;
    ++shown;
    std::string text = f.severity_word + ", " + f.class_name + ": " + f.title;
    for (const std::string* more : {&f.ranks, &f.called_from, &f.shared_line}) {
      if (!more->empty()) text += " (" + *more + ")";
    }
    out.paragraph(text, 2, f.id + "  ");
    if (!f.change.empty()) out.paragraph(f.change, 6);
  }
  const std::uint64_t rest = model.findings_omitted + (model.others.size() - shown);
  if (rest != 0) out.paragraph(and_more(rest), 2);
}

void write_eps(TextLayout& out, const ReportModel& model) {
  std::vector<std::vector<std::string>> rows = {
      {"guard constant", "eps", "formed in", "becomes", "verdict", "zero denominators"}};
  std::size_t bad = 0;
  for (const EpsRow& row : model.eps_audit) {
    if (!row.bad || ++bad > kEpsShown) continue;
    rows.push_back({row.where, row.eps, row.dtype, row.stored, row.verdict, row.zero_denominators});
  }
  if (bad == 0) return;
  out.heading("Guard constants that do not guard");
  out.table(rows, {false, true, false, true, false, true}, 2);
  if (bad > kEpsShown) out.paragraph(and_more(bad - kEpsShown), 2);
}

void write_scaler(TextLayout& out, const ReportModel& model) {
  if (!model.scaler) return;
  out.heading("Loss scaler");
  out.paragraph(model.scaler->summary, 2);
}

void write_device_time(TextLayout& out, const ReportModel& model) {
  if (!model.device_time) return;
  out.heading("Time on the device");
  out.paragraph(model.device_time->summary, 2);
  std::vector<std::vector<std::string>> rows = {{"time", "share", "operation", "layer", "phase", "kernels", "kernel"}};
  const std::vector<DeviceTimeLine>& lines = model.device_time->lines;
  for (std::size_t i = 0; i < lines.size() && i < kDeviceRowsShown; ++i) {
    const DeviceTimeLine& line = lines[i];
    rows.push_back({line.time, line.share, line.operation, line.layer, line.phase, line.kernels,
                    clip(line.kernel, kKernelInTable)});
  }
  if (rows.size() > 1) out.table(rows, {true, true, false, false, false, true, false}, 2);
  const std::uint64_t rest = model.device_time->omitted + (lines.size() - (rows.size() - 1));
  if (rest != 0) out.paragraph(and_more(rest), 2);
}

void write_lr_ramp(TextLayout& out, const ReportModel& model) {
  if (!model.lr_ramp) return;
  out.heading("Loss over the learning rate");
  out.paragraph(model.lr_ramp->answer, 2);
  std::vector<std::vector<std::string>> rows = {{"step", "rate", "loss", "smoothed"}};
  const std::vector<LrRow>& all = model.lr_ramp->rows;
  const std::size_t shown = std::min<std::size_t>(all.size(), kRatesShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const LrRow& row = all[shown < 2 ? 0 : i * (all.size() - 1) / (shown - 1)];
    rows.push_back({row.step, row.lr, row.loss, row.smoothed});
  }
  out.table(rows, {true, true, true, true}, 2);
}

void write_lines(TextLayout& out, const Lines& lines) {
  for (std::size_t i = 0; i < lines.shown.size() && i < kLinesShown; ++i) out.paragraph(lines.shown[i], 2, "- ");
  const std::uint64_t rest = lines.omitted + (lines.shown.size() > kLinesShown ? lines.shown.size() - kLinesShown : 0);
  if (rest != 0) out.paragraph(and_more(rest), 4);
}

void write_coverage(TextLayout& out, const ReportModel& model, const TimelineView& timeline) {
  out.heading("Watched");
  std::vector<std::string> counts;
  for (const Fact& fact : model.watched) counts.push_back(fact.value + " " + fact.label);
  std::string text = join(counts, " · ");
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  out.paragraph(text, 2);
  if (!model.watched_how.empty()) out.paragraph(model.watched_how, 2);
  if (!timeline.lines.empty()) {
    const LossPoint& first = timeline.lines.front().front();
    const LossPoint& last = timeline.lines.back().back();
    std::string losses = "finite loss " + format_short(first.loss) + " at step " + format_count(first.step);
    if (last.step != first.step) losses += ", " + format_short(last.loss) + " at step " + format_count(last.step);
    out.paragraph(losses, 2);
  }
  write_lines(out, model.losses);
  if (!model.unwatched.empty()) {
    out.heading("Not watched");
    write_lines(out, model.unwatched);
  }
  if (!model.not_modelled.empty()) {
    out.heading("Not modelled");
    write_lines(out, model.not_modelled);
  }
}

}  // namespace

std::string render_text(const Analysis& analysis, const TextOptions& options) {
  const ReportModel model = make_report_model(analysis, options.going);
  TextLayout out(options.colour, options.width);

  const std::string word = upper(model.verdict_word);
  const std::string badge = out.ink(word, ink_of(model.status));
  TextLayout line(false, options.width);
  line.paragraph(model.headline, 0, word + "  ");
  std::string verdict = line.take();
  verdict.replace(0, word.size(), badge);
  verdict.pop_back();
  out.raw(verdict);
  if (model.origin && !model.origin->change.empty()) out.paragraph(model.origin->change, 0, "CHANGE  ");
  out.raw(out.ink(model.run_line, Ink::kDim));

  if (model.origin) {
    const FindingView& f = *model.origin;
    out.blank();
    write_answers(out, f, model.scaler_answer);
    write_code(out, f);
    write_why(out, f);
    write_element(out, f);
    write_tensors(out, f);
    write_chain(out, f);
    if (!f.also.empty()) out.paragraph("The same at: " + listed(f.also), 2);
    write_related(out, f);
    write_advice(out, f);
  } else if (model.status != VerdictStatus::kClean) {
    out.paragraph(model.meaning, 0);
  }
  write_others(out, model);
  write_scaler(out, model);
  write_lr_ramp(out, model);
  write_eps(out, model);
  write_device_time(out, model);
  write_coverage(out, model, make_timeline_view(analysis));
  if (model.origin) {
    out.heading("Where next");
    const std::string run = shell_word(printable(options.run));
    out.fact("All of it",
             options.written.empty()
                 ? "report.html and report.json: `nanhunt report " + run + "` writes them into " + run
                 : printable(options.written),
             kLabelWidth);
    out.fact("Records",
             "`nanhunt dump " + run + " --kind ops --step " + std::to_string(find_origin(analysis)->place.step) + "`",
             kLabelWidth);
  }
  return out.take();
}

}  // namespace nanhunt
