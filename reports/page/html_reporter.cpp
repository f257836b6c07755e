// SPDX-License-Identifier: Apache-2.0
// Implements render_html of nanhunt/reporter.h: one file that opens offline and asks for nothing. All of it can be read
// without scripts; with them (html/src) the chain becomes a graph, the timeline and the layers become charts.
// The page around it is html/page.html.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/reporter.h"
#include "reports/page/html_chart.h"
#include "reports/page/html_lr_chart.h"
#include "reports/page/html_data.h"
#include "reports/page/html_finding.h"
#include "reports/page/html_frame.h"
#include "reports/page/html_layers.h"
#include "reports/page/html_magnitudes.h"
#include "reports/page/html_page.h"
#include "reports/page/html_writer.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "reports/views/timeline_view.h"

namespace nanhunt {
namespace {

using namespace reports;

// The file stays below 5 MB: what can be long stops being written past these sizes, and the map of layers takes what is
// left.
constexpr std::size_t kOthersStopAt = 1'600'000;
constexpr std::size_t kLayersStopAt = 2'500'000;
constexpr std::size_t kPageBytes = 4'800'000;

// The loss with the origin's step, where steps were recorded.
void write_curve(HtmlWriter& out, const ReportModel& model, const TimelineView& timeline,
                 std::optional<std::uint32_t> origin) {
  out.markup("<figure class=\"curve\" id=\"curve\">");
  write_loss_chart(out, timeline, {.origin = origin, .small = true});
  out.element("figcaption", "", "Loss by step" + model.of_rank + (timeline.logarithmic ? ", logarithmic" : ""));
  out.markup("</figure>");
}

// What is seen first: the headline, the cure, the code beside the curve of the loss.
void write_verdict(HtmlWriter& out, const ReportModel& model, const TimelineView& timeline,
                   std::optional<std::uint32_t> origin) {
  open_verdict(out, model.status);
  out.text(model.verdict_word).markup("</p><h1 id=\"headline\">").text(model.headline).markup("</h1>");
  const bool says_more = model.status == VerdictStatus::kInconclusive && model.meaning != model.headline;
  if (says_more) out.element("p", "lede", model.meaning);
  if (model.origin) write_cure(out, *model.origin);
  const bool has_where = !model.origin || !model.origin->frames.empty() || model.origin->element;
  if (has_where && !timeline.empty()) {
    out.markup("<div class=\"first both\">");
  } else {
    out.markup("<div class=\"first\">");
  }
  if (!model.origin) {
    out.markup("<div class=\"where\">");
    write_facts(out, model.watched);
    if (!model.watched_how.empty()) out.element("p", "more", model.watched_how);
    out.markup("</div>");
  } else if (has_where) {
    write_where(out, *model.origin);
  }
  if (!timeline.empty()) write_curve(out, model, timeline, origin);
  out.markup("</div>");
  if (model.origin) write_answers(out, *model.origin, model.scaler_answer);
  out.markup("</section>\n");
}

void write_others(HtmlWriter& out, const ReportModel& model) {
  if (model.others.empty()) return;
  begin_part(out, "others", model.origin ? "Also found" : "Found");
  std::size_t shown = 0;
  for (const FindingView& finding : model.others) {
    if (out.size() > kOthersStopAt) break;
    write_other_finding(out, finding);
    ++shown;
  }
  write_and_more(out, model.findings_omitted + (model.others.size() - shown));
  end_part(out);
}

void write_eps(HtmlWriter& out, const ReportModel& model) {
  const auto guards_not = [](const EpsRow& row) { return row.bad; };
  if (std::none_of(model.eps_audit.begin(), model.eps_audit.end(), guards_not)) return;
  begin_part(out, "eps", "Guard constants that do not guard");
  out.markup(
      "<p>A small constant (eps) keeps a denominator away from zero, as long as the format in which it is added can "
      "hold it.</p><div class=\"scroll\" role=\"region\" aria-label=\"Table of guard constants\" tabindex=\"0\"><table>"
      "<caption>eps, as the arithmetic sees it</caption><thead><tr><th scope=\"col\">Where</th>"
      "<th scope=\"col\">Phase</th><th scope=\"col\" class=\"num\">eps</th><th scope=\"col\">Formed in</th>"
      "<th scope=\"col\" class=\"num\">Becomes</th><th scope=\"col\">Verdict</th><th scope=\"col\" "
      "class=\"num\">Uses</th>"
      "<th scope=\"col\" class=\"num\">Zero denominators</th></tr></thead><tbody>");
  for (const EpsRow& row : model.eps_audit) {
    if (!row.bad) continue;
    out.markup("<tr class=\"bad\"><th scope=\"row\"><code>");
    out.text(row.where).markup("</code></th>").element("td", "", row.phase).element("td", "num", row.eps);
    out.element("td", "", row.dtype).element("td", "num", row.stored);
    out.element("td", "alarm", row.verdict).element("td", "num", row.uses);
    out.element("td", row.zero_denominators != "0" ? "num alarm" : "num", row.zero_denominators).markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  if (model.eps_audit.back().bad) write_and_more(out, model.eps_omitted);  // the bad ones come first
  end_part(out);
}

void write_experiments(HtmlWriter& out, const ReportModel& model) {
  if (model.experiments.empty()) return;
  begin_part(out, "tried", "What was tried");
  out.markup(
      "<p>The run was trained again from its start, each time with one thing changed.</p>"
      "<div class=\"scroll\" role=\"region\" aria-label=\"Table of what was tried\" tabindex=\"0\"><table>"
      "<caption>Fixes tried on this very run</caption><thead><tr><th scope=\"col\">Change</th><th "
      "scope=\"col\">Outcome</th>"
      "<th scope=\"col\" class=\"num\">Finite steps past the failure</th><th scope=\"col\" class=\"num\">Loss</th>"
      "<th scope=\"col\" class=\"num\">Worst update against fp64</th></tr></thead><tbody>");
  for (const ExperimentView& e : model.experiments) {
    out.markup("<tr>").markup("<th scope=\"row\">").text(e.description).markup("</th>");
    out.element("td", e.verified ? "good" : "", e.outcome).element("td", "num", e.trained);
    out.element("td", "num", e.loss).element("td", "num", e.factor + " ×").markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, model.experiments_omitted);
  end_part(out);
}

void write_timeline(HtmlWriter& out, const ReportModel& model, const TimelineView& view) {
  if (view.empty()) return;
  begin_part(out, "timeline", "Over the steps" + model.of_rank);
  out.markup(
      "<details><summary>Steps in numbers</summary><div class=\"scroll\" role=\"region\" aria-label=\"Steps\" "
      "tabindex=\"0\"><table><caption>Steps with anything bad, and the last one</caption><thead><tr>"
      "<th scope=\"col\" class=\"num\">Step</th><th scope=\"col\" class=\"num\">Loss</th>");
  if (view.has_scale) out.markup("<th scope=\"col\" class=\"num\">Loss scale</th>");
  out.markup("<th scope=\"col\" class=\"num\">Learning rate</th><th scope=\"col\">What</th></tr></thead><tbody>");
  for (const TimelineRow& row : view.notable) {
    out.markup("<tr><th scope=\"row\" class=\"num\">").text(row.step).markup("</th>").element("td", "num", row.loss);
    if (view.has_scale) out.element("td", "num", row.scale);
    out.element("td", "num", row.lr).element("td", "", row.what).markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, view.notable_omitted);
  out.markup("</details>");
  if (view.omitted != 0) {
    out.element("p", "more", plural(view.omitted, "step is", "steps are") + " not drawn; bad ones are kept longest.");
  }
  if (model.lr_ramp) write_lr_ramp(out, *model.lr_ramp);
  if (model.scaler) write_scaler(out, *model.scaler);
  end_part(out);
}

void write_device_time(HtmlWriter& out, const ReportModel& model) {
  if (!model.device_time) return;
  begin_part(out, "device", "Time on the device" + model.of_rank);
  out.element("p", "", model.device_time->summary);
  if (!model.device_time->lines.empty()) {
    out.markup(
        "<div class=\"scroll\" role=\"region\" aria-label=\"Table of time on the device\" tabindex=\"0\"><table>"
        "<caption>What a GPU ran for each operation, longest first</caption><thead><tr>"
        "<th scope=\"col\">Operation</th><th scope=\"col\">Layer</th><th scope=\"col\">Phase</th>"
        "<th scope=\"col\" class=\"num\">Time</th><th scope=\"col\" class=\"num\">Share</th>"
        "<th scope=\"col\" class=\"num\">Kernels</th><th scope=\"col\">Kernel that took most</th></tr></thead><tbody>");
    for (const DeviceTimeLine& line : model.device_time->lines) {
      out.markup("<tr><th scope=\"row\"><code>").text(line.operation).markup("</code></th><td><code>").text(line.layer);
      out.markup("</code></td>").element("td", "", line.phase).element("td", "num", line.time);
      out.element("td", "num", line.share).element("td", "num", line.kernels).markup("<td><code>");
      out.text(line.kernel).markup("</code></td></tr>");
    }
    out.markup("</tbody></table></div>");
  }
  write_and_more(out, model.device_time->omitted);
  end_part(out);
}

void write_coverage(HtmlWriter& out, const ReportModel& model) {
  begin_part(out, "coverage", "What was watched");
  if (model.origin) {  // else the verdict holds them
    write_facts(out, model.watched);
    if (!model.watched_how.empty()) out.element("p", "more", model.watched_how);
  }
  if (!model.losses.empty()) {
    out.markup("<h3>Lost</h3>");
    write_list(out, model.losses);
  }
  out.markup("<h3>Not watched</h3>");
  if (model.unwatched.empty()) {
    out.markup("<p>Nothing is known to have been left out.</p>");
  } else {
    write_list(out, model.unwatched);
  }
  if (!model.not_modelled.empty()) {
    out.markup("<h3>Not modelled</h3>");
    write_list(out, model.not_modelled);
  }
  end_part(out);
}

// What the page says, without its markup and in small letters.
std::string spoken(std::string_view html) {
  std::string text;
  bool inside = false;
  for (const char c : html) {
    if (c == '<') inside = true;
    if (!inside) text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (c == '>') {
      inside = false;
      text += ' ';
    }
  }
  return text;
}

// Of the words that have a meaning of their own here those that the page uses.
void write_words(HtmlWriter& out) {
  const std::string page = spoken(out.so_far());
  std::vector<Word> used;
  for (const Word& word : words()) {
    std::string small(word.word);
    for (char& c : small) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (page.find(small) != std::string::npos) used.push_back(word);
  }
  if (used.empty()) return;
  begin_part(out, "words", "Words used here");
  out.markup("<dl class=\"words\">");
  for (const Word& word : used) {
    out.markup("<div>").element("dt", "", word.word).element("dd", "", word.meaning).markup("</div>");
  }
  out.markup("</dl>");
  end_part(out);
}

void write_runs(HtmlWriter& out, const ReportModel& model) {
  if (model.runs.empty()) return;
  begin_part(out, "run", "What ran");
  for (const RunView& run : model.runs) {
    out.element("h3", "", run.heading);
    write_facts(out, run.facts);
    if (!run.problems.empty()) {
      out.markup("<details><summary>Damage in the trace</summary>");
      write_list(out, run.problems);
      out.markup("</details>");
    }
  }
  write_and_more(out, model.runs_omitted);
  end_part(out);
}

// What the charts are drawn from; nothing where they could not be bundled.
std::string make_data(const Analysis& analysis, const ReportModel& model, std::size_t layer_rows, std::size_t so_far) {
  if (kPageScript.empty()) return "";
  const std::size_t taken = so_far + frame_bytes();
  const std::size_t left = taken < kPageBytes ? kPageBytes - taken : 0;
  return make_page_data(analysis, model, layer_rows, left);
}

}  // namespace

std::string render_html(const Analysis& analysis, const std::vector<std::uint32_t>& going) {
  const ReportModel model = make_report_model(analysis, going);
  HtmlWriter out;
  out.markup("<header class=\"masthead\"><p class=\"brand\">nanhunt</p>").element("p", "run", model.run_line);
  out.markup("</header>\n<main>\n");
  const Finding* origin = find_origin(analysis);
  const TimelineView timeline = make_timeline_view(analysis);
  write_verdict(out, model, timeline, origin != nullptr ? std::optional(origin->place.step) : std::nullopt);
  if (model.origin) {
    write_finding_parts(out, *model.origin, origin != nullptr ? view_magnitudes(*origin) : MagnitudeView{});
  }
  write_experiments(out, model);
  write_others(out, model);
  write_timeline(out, model, timeline);
  const std::size_t layer_rows = write_layers(out, model, kLayersStopAt);
  write_eps(out, model);
  write_device_time(out, model);
  write_coverage(out, model);
  write_words(out);
  write_runs(out, model);
  out.markup("</main>\n");
  write_footer(out, "from the recorded trace alone");
  const std::string body = out.take();
  const std::string data = make_data(analysis, model, layer_rows, body.size());
  return fill_page(model.verdict_word + ": " + model.headline + " · nanhunt", body, data);
}

}  // namespace nanhunt
