// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_finding.h"

#include <algorithm>

#include "reports/page/html_magnitudes.h"
#include "reports/views/code_view.h"
#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kCarriersUnfolded = 5;
constexpr std::size_t kOtherChainNodes = 12;
constexpr std::size_t kOtherEvidence = 8;
constexpr std::size_t kFirstScreenLines = 5;

constexpr std::size_t kNamesUnfolded = 8;

std::string listed(const Lines& lines) {
  return join(lines.shown, ", ") + (lines.omitted == 0 ? "" : " … and " + format_count(lines.omitted) + " more");
}

// Names behind a label; a long list is folded.
void write_names(HtmlWriter& out, std::string_view label, const Lines& names) {
  if (names.empty()) return;
  if (names.shown.size() + names.omitted <= kNamesUnfolded) {
    out.markup("<p><b>").text(label).markup(":</b> ").text(listed(names)).markup("</p>");
    return;
  }
  Lines first;
  first.shown.assign(names.shown.begin(), names.shown.begin() + std::min(names.shown.size(), kNamesUnfolded));
  out.markup("<details><summary><b>").text(label).markup(":</b> ").text(join(first.shown, ", "));
  out.text(" … " + format_count(names.shown.size() + names.omitted) + " in all").markup("</summary><p>");
  out.text(listed(names)).markup("</p></details>");
}

void answer(HtmlWriter& out, std::string_view question, std::string_view value, std::string_view note, bool code) {
  out.markup("<div>").element("dt", "", question).markup("<dd>");
  out.element(code ? "code" : "span", "value", value);
  if (!note.empty()) out.element("span", "note", note);
  out.markup("</dd></div>");
}

// The one note that is a name and no words.
void answer_why(HtmlWriter& out, const FindingView& f) {
  out.markup("<div>").element("dt", "", "Why").markup("<dd>");
  out.element("span", "value", f.why).element("code", "note", f.class_name).markup("</dd></div>");
}

void write_tried(HtmlWriter& out, Tried tried, std::string_view badge) {
  switch (tried) {
    case Tried::kWorked:
    case Tried::kOnTheseNumbers:
      out.markup("<span class=\"tried worked\"><span aria-hidden=\"true\">✓</span> ");
      break;
    case Tried::kFailed:
      out.markup("<span class=\"tried failed\"><span aria-hidden=\"true\">✕</span> ");
      break;
    case Tried::kNotTried:
      out.markup("<span class=\"tried untried\"><span aria-hidden=\"true\">○</span> ");
      break;
  }
  out.text(badge).markup("</span>");
}

void write_chain_step(HtmlWriter& out, const ChainStep& step) {
  if (step.role == "origin") {
    out.markup("<li class=\"origin\">");
  } else if (step.role == "sink") {
    out.markup("<li class=\"sink\">");
  } else {
    out.markup("<li>");
  }
  out.markup("<div class=\"hop\">").element("span", "badge", step.badge).element("code", "op", step.title);
  out.element("span", "place", step.place).markup("</div>");
  if (!step.amount.empty()) out.element("p", "amount", step.amount);
  out.markup("</li>");
}

void write_chain(HtmlWriter& out, const ChainView& chain, std::size_t limit) {
  const std::size_t shown = std::min(chain.steps.size(), limit);
  const auto is_carrier = [&](std::size_t i) { return chain.steps[i].role == "carrier"; };
  out.markup("<ol class=\"chain\">");
  for (std::size_t i = 0; i < shown;) {
    std::size_t end = i;
    while (end < shown && is_carrier(end)) ++end;
    if (end - i > kCarriersUnfolded) {
      // The first and the last carrier tell where it came from and where it went; the rest is folded.
      write_chain_step(out, chain.steps[i]);
      out.markup("<li class=\"fold\"><details><summary>");
      out.text(plural(end - i - 2, "more op", "more ops") + " carried it on")
          .markup("</summary><ol class=\"chain\">");
      for (std::size_t k = i + 1; k + 1 < end; ++k) write_chain_step(out, chain.steps[k]);
      out.markup("</ol></details></li>");
      write_chain_step(out, chain.steps[end - 1]);
      i = end;
    } else {
      write_chain_step(out, chain.steps[i]);
      ++i;
    }
  }
  if (const std::uint64_t rest = chain.omitted + (chain.steps.size() - shown); rest != 0) {
    out.markup("<li class=\"fold\">");
    write_and_more(out, rest);
    out.markup("</li>");
  }
  out.markup("</ol>");
}

void count_cell(HtmlWriter& out, const std::string& text, bool alarming) {
  const bool alarm = alarming && !text.empty() && text != "0";
  out.element("td", alarm ? "num alarm" : "num", text.empty() ? "—" : text);
}

void write_tensors(HtmlWriter& out, const FindingView& f) {
  if (f.tensors.empty()) return;
  out.markup(
      "<div class=\"scroll\" role=\"region\" aria-label=\"Statistics of inputs and output\" tabindex=\"0\"><table>"
      "<caption>What went into the operation, and what came out</caption><thead><tr>"
      "<th scope=\"col\">Tensor</th><th scope=\"col\" class=\"num\">NaN</th>"
      "<th scope=\"col\" class=\"num\">+Inf</th><th scope=\"col\" class=\"num\">-Inf</th>"
      "<th scope=\"col\" class=\"num\">Zero</th><th scope=\"col\" class=\"num\">Subnormal</th>"
      "<th scope=\"col\" class=\"num\">Min |x| &gt; 0</th><th scope=\"col\" class=\"num\">Min</th>"
      "<th scope=\"col\" class=\"num\">Max</th></tr></thead><tbody>");
  for (const TensorRow& t : f.tensors) {
    if (t.bad) {
      out.markup("<tr class=\"bad\">");
    } else {
      out.markup("<tr>");
    }
    out.markup("<th scope=\"row\">").element("span", "which", t.part);
    if (!t.name.empty()) out.markup(" ").element("code", "", t.name);
    out.markup("<span class=\"note\">").text(t.dtype).markup(" ").text(t.shape);
    if (!t.use.empty()) out.text(" · " + t.use);
    out.markup("</span>");
    if (!t.note.empty()) out.element("span", "note remark", t.note);
    out.markup("</th>");
    if (!t.has_stats) {
      out.markup("<td class=\"num unread\" colspan=\"8\">its contents were not read</td></tr>");
      continue;
    }
    count_cell(out, t.nan, true);
    count_cell(out, t.pos_inf, true);
    count_cell(out, t.neg_inf, true);
    count_cell(out, t.zeros, false);
    count_cell(out, t.subnormals, false);
    count_cell(out, t.smallest, false);
    count_cell(out, t.min, false);
    count_cell(out, t.max, false);
    out.markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, f.tensors_omitted);
}

void write_element(HtmlWriter& out, const ElementView& element) {
  out.markup("<figure class=\"element\"><figcaption>");
  out.text(element.operands.empty() ? "One bad element (" : "The numbers that met in one bad element (");
  out.text(element.where).markup(")</figcaption><div class=\"operands\">");
  for (const OperandView& operand : element.operands) {
    out.markup("<div class=\"operand\">")
        .element("span", "slot", operand.slot)
        .element("span", "figure", operand.value);
    if (!operand.name.empty()) out.element("code", "", operand.name);
    out.markup("</div>");
  }
  if (!element.operands.empty()) out.markup("<div class=\"arrow\" aria-hidden=\"true\">→</div>");
  if (element.bad) {
    out.markup("<div class=\"operand result alarm\">");
  } else {
    out.markup("<div class=\"operand result\">");
  }
  out.markup("<span class=\"slot\">result</span>")
      .element("span", "figure", element.value)
      .markup("</div></div></figure>");
}

void write_outcome(HtmlWriter& out, const AdviceView& one) {
  if (!one.evidence.empty()) out.element("p", "seen", one.evidence);
  if (!one.why.empty()) out.markup("<p class=\"reason\"><b>Why:</b> ").text(one.why).markup("</p>");
}

// What failed is no advice: it stands apart, as something that was tried.
void write_advice(HtmlWriter& out, const std::vector<AdviceView>& advice) {
  const auto failed =
      std::find_if(advice.begin(), advice.end(), [](const AdviceView& a) { return a.tried == Tried::kFailed; });
  if (advice.begin() != failed) {
    out.markup("<ul class=\"advice\">");
    for (auto one = advice.begin(); one != failed; ++one) {
      out.markup("<li>");
      write_tried(out, one->tried, one->badge);
      out.element("p", "what", one->text);
      write_outcome(out, *one);
      out.markup("</li>");
    }
    out.markup("</ul>");
  } else {
    out.markup("<p>Nothing that was tried on this run helped. The place and the numbers below are where to start.</p>");
  }
  if (failed == advice.end()) return;
  out.markup("<h3>What does not help</h3><ul class=\"advice vain\">");
  for (auto one = failed; one != advice.end(); ++one) {
    out.markup("<li>");
    write_tried(out, one->tried, one->badge);
    out.element("p", "tried-text", one->text);
    if (!one->evidence.empty()) out.element("p", "seen", one->evidence);
    out.markup("</li>");
  }
  out.markup("</ul>");
}

void write_code_lines(HtmlWriter& out, const std::vector<CodeLine>& lines);

void write_frame(HtmlWriter& out, const FrameView& frame, bool innermost) {
  out.markup("<p class=\"frame\">");
  if (!innermost) out.markup("called from ");
  out.markup("<code class=\"path\">").text(frame.place).markup("</code>");
  if (!frame.function.empty()) out.markup(" in <code>").text(frame.function).markup("</code>");
  out.markup("</p>");
  write_code_lines(out, innermost ? frame.lines : lines_around(frame, 1));
}

void write_code_lines(HtmlWriter& out, const std::vector<CodeLine>& lines) {
  if (lines.empty()) return;
  out.markup("<ol class=\"source\">");
  for (const CodeLine& line : lines) {
    if (line.here) {
      out.markup("<li class=\"here\">");
    } else {
      out.markup("<li>");
    }
    out.element("span", "number", line.number).element("code", "", line.text.empty() ? " " : line.text);
    out.markup("</li>");
  }
  out.markup("</ol>");
}

void write_frames(HtmlWriter& out, const FindingView& f) {
  for (const FrameView& frame : f.frames) write_frame(out, frame, &frame == &f.frames.front());
  if (f.package_frames.empty()) return;
  out.markup("<details><summary>");
  out.text("Through " + plural(f.package_frames.size(), "line", "lines") + " of installed packages");
  out.markup("</summary>");
  for (const FrameView& frame : f.package_frames) write_frame(out, frame, false);
  out.markup("</details>");
}

void write_evidence(HtmlWriter& out, const FindingView& f, std::size_t limit) {
  Lines lines = f.evidence;
  if (lines.shown.size() > limit) {
    lines.omitted += lines.shown.size() - limit;
    lines.shown.resize(limit);
  }
  if (!f.first_inf.empty()) lines.shown.push_back(f.first_inf);
  if (!f.first_nan.empty()) lines.shown.push_back(f.first_nan);
  if (!lines.empty()) write_list(out, lines);
}

}  // namespace

namespace {

void finish_part_head(HtmlWriter& out, std::string_view id, std::string_view title) {
  out.text(id).markup("\" aria-labelledby=\"").text(id).markup("-title\"><h2 id=\"");
  out.text(id).markup("-title\">").text(title).markup("</h2><div class=\"content\">");
}

}  // namespace

void begin_part(HtmlWriter& out, std::string_view id, std::string_view title) {
  out.markup("<section class=\"part\" id=\"");
  finish_part_head(out, id, title);
}

void begin_wide_part(HtmlWriter& out, std::string_view id, std::string_view title) {
  out.markup("<section class=\"part wide\" id=\"");
  finish_part_head(out, id, title);
}

void end_part(HtmlWriter& out) { out.markup("</div></section>\n"); }

void write_severity(HtmlWriter& out, Severity severity, std::string_view word) {
  switch (severity) {
    case Severity::kFault:
      out.markup("<span class=\"severity fault\"><span aria-hidden=\"true\">■</span> ");
      break;
    case Severity::kWarning:
      out.markup("<span class=\"severity warning\"><span aria-hidden=\"true\">▲</span> ");
      break;
    case Severity::kInfo:
      out.markup("<span class=\"severity info\"><span aria-hidden=\"true\">●</span> ");
      break;
  }
  out.text(word).markup("</span>");
}

void write_list(HtmlWriter& out, const Lines& lines) {
  out.markup("<ul class=\"plain\">");
  for (const std::string& one : lines.shown) out.element("li", "", one);
  out.markup("</ul>");
  write_and_more(out, lines.omitted);
}

void write_and_more(HtmlWriter& out, std::uint64_t omitted) {
  if (omitted != 0) out.element("p", "more", "… and " + format_count(omitted) + " more");
}

void write_facts(HtmlWriter& out, const std::vector<Fact>& facts) {
  out.markup("<dl class=\"facts\">");
  for (const Fact& fact : facts) {
    out.markup("<div>").element("dt", "", fact.label).element("dd", "", fact.value).markup("</div>");
  }
  out.markup("</dl>");
}

void write_answers(HtmlWriter& out, const FindingView& f, std::string_view scaler_answer) {
  out.markup("<dl class=\"answers\">");
  const std::string_view shared = f.frames.empty() ? std::string_view(f.shared_line) : "";
  answer(out, "Which operation", f.operation, f.part_of.empty() ? shared : f.part_of, true);
  if (f.frames.empty() && !f.called_from.empty()) answer(out, "Which line of code", f.called_from, f.shared_line, true);
  if (!f.kernel.empty()) answer(out, "Which kernel", f.kernel, "", true);
  answer(out, "Which layer", f.layer, f.module_class, true);
  answer(out, "When", "step " + f.step, "phase " + f.phase, false);
  if (!f.how_often.empty()) answer(out, "How often", f.how_often, f.bad_steps, false);
  if (!f.ranks.empty()) answer(out, "Which rank", f.ranks, "", false);
  answer_why(out, f);
  answer(out, "Does it matter?", f.matter, "", false);
  if (!scaler_answer.empty()) answer(out, "Is it the loss scaler?", scaler_answer, "", false);
  answer(out, "How sure", f.confidence, "", false);
  out.markup("</dl>");
}

void write_cure(HtmlWriter& out, const FindingView& f) {
  if (f.advice.empty()) return;
  out.markup("<p class=\"cure\"><b>Cure</b> ").text(f.cure);
  if (!f.cure_badge.empty()) {
    out.markup(" ");
    write_tried(out, f.cure_tried, f.cure_badge);
  }
  out.markup("</p>");
}

void write_where(HtmlWriter& out, const FindingView& f) {
  out.markup("<div class=\"where\">");
  if (!f.frames.empty()) {
    const FrameView& frame = f.frames.front();
    out.markup("<p class=\"frame\"><code class=\"path\">").text(frame.place).markup("</code>");
    if (!frame.function.empty()) out.markup(" in <code>").text(frame.function).markup("</code>");
    out.markup("</p>");
    write_code_lines(out, lines_around(frame, kFirstScreenLines));
  }
  if (f.element && !f.element->equation.empty()) {
    out.markup("<p class=\"equation\">");
    if (!f.element->in_code.empty()) out.markup("<code>").text(f.element->in_code).markup("</code>").text(f.element->joint);
    out.markup("<code class=\"alarm\">").text(f.element->equation).markup("</code>");
    if (!f.element->place.empty()) out.text(" at " + f.element->place);
    out.markup("</p>");
  }
  out.markup("</div>");
}

void write_finding_parts(HtmlWriter& out, const FindingView& f, const MagnitudeView& magnitudes) {
  if (!f.frames.empty()) {
    begin_part(out, "code", "The code");
    write_frames(out, f);
    end_part(out);
  }
  begin_part(out, "why", "Why");
  out.element("p", "lede", f.explanation.empty() ? f.class_explanation : f.explanation);
  write_evidence(out, f, kMaxEvidence);
  end_part(out);

  begin_part(out, "advice", "What to do");
  if (f.advice.empty()) {
    out.markup("<p>No fix is known for this. The place and the numbers below are where to start.</p>");
  } else {
    write_advice(out, f.advice);
  }
  end_part(out);

  if (!f.chain.empty()) {
    begin_part(out, "chain", "What happened");
    out.markup(
        "<p>From the <b>origin</b>, where the bad numbers began, through the operations that carried them on, to "
        "the "
        "<b>sinks</b> that they harmed.</p>");
    write_chain(out, f.chain, kMaxChainNodes);
    write_names(out, "Harmed", f.sinks);
    write_names(out, "The same happened at", f.also);
    end_part(out);
  }
  if (!f.related.empty()) {
    begin_part(out, "related", "Of the same cause");
    write_list(out, f.related);
    end_part(out);
  }
  begin_part(out, "numbers", "The numbers");
  if (f.element) write_element(out, *f.element);
  write_tensors(out, f);
  write_magnitudes(out, magnitudes);
  write_names(out, f.samples_label, f.samples);
  write_facts(out, f.facts);
  end_part(out);
}

void write_other_finding(HtmlWriter& out, const FindingView& f) {
  out.markup("<details class=\"finding\"><summary>");
  write_severity(out, f.severity, f.severity_word);
  out.markup(" ").element("span", "title", f.title).markup(" ").element("code", "", f.class_name);
  out.markup("</summary><div class=\"inside\">");
  write_answers(out, f, "");
  write_cure(out, f);
  write_frames(out, f);
  if (!f.related.empty()) write_list(out, f.related);
  out.element("p", "", f.explanation.empty() ? f.class_explanation : f.explanation);
  write_evidence(out, f, kOtherEvidence);
  if (!f.chain.empty()) write_chain(out, f.chain, kOtherChainNodes);
  if (f.element) write_element(out, *f.element);
  write_tensors(out, f);
  write_names(out, f.samples_label, f.samples);
  write_names(out, "The same happened at", f.also);
  if (!f.advice.empty()) write_advice(out, f.advice);
  write_facts(out, f.facts);
  out.markup("</div></details>");
}

}  // namespace nanhunt::reports
