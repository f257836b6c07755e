// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "nanhunt/reporter.h"
#include "reports/page/html_data.h"
#include "reports/page/html_page.h"
#include "reports/page/html_writer.h"
#include "reports/views/layer_planes.h"
#include "tests/reports/golden.h"
#include "tests/reports/html_scan.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_runs.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using namespace reports;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kMaxPageBytes = 5'000'000;

// Style, scripts, their hashes and the version are checked apart: a golden that holds them would change with every
// colour, and with whether the charts could be bundled.
std::string without_style(std::string html) {
  const auto replace = [&](const std::string& from, const std::string& to, const std::string& with) {
    const std::size_t begin = html.find(from) + from.size();
    html.replace(begin, html.find(to, begin) - begin, with);
  };
  replace("<style>", "</style>", "…");
  replace("default-src 'none'; ", "; base-uri", "…");
  replace("Made by nanhunt ", "</p>", "…");
  const std::size_t script = html.find("<script");
  if (script != std::string::npos) html.erase(script, html.rfind("</body>") - script);
  return html;
}

const std::set<std::string>& known_attributes() {
  static const std::set<std::string> kKnown = {
      "lang",        "charset",  "http-equiv", "content", "name",    "class",   "href", "id", "aria-labelledby",
      "role",        "tabindex", "aria-label", "scope",   "colspan", "viewBox", "x",    "y",  "text-anchor",
      "x1",          "y1",       "x2",         "y2",      "points",  "cx",      "cy",   "r",  "d",
      "aria-hidden", "html",     "width",      "height",  "type"};
  return kKnown;
}

void expect_inert(const std::string& html) {
  const HtmlScan scan = scan_html(html);
  EXPECT_EQ(scan.error, "");
  EXPECT_EQ(unbalanced(scan), "");
  // The data and the charts that read it, or neither.
  EXPECT_EQ(scan.scripts.size(), reports::kPageScript.empty() ? 0U : 2U);
  for (const HtmlTag& tag : scan.tags) {
    EXPECT_NE(tag.name, "img");
    EXPECT_NE(tag.name, "link");
    EXPECT_NE(tag.name, "iframe");
    for (const auto& [name, value] : tag.attributes) {
      EXPECT_TRUE(known_attributes().contains(name)) << tag.name << " has " << name;
      if (name == "href") {
        EXPECT_TRUE(value.starts_with("#")) << value;  // a place in the page: nothing that a browser would fetch
        EXPECT_EQ(value.find_first_of("<>\"'\\ "), std::string::npos) << value;
      }
    }
  }
  EXPECT_EQ(scan.style.find("url("), std::string::npos);
  EXPECT_EQ(scan.style.find("@import"), std::string::npos);
  EXPECT_LE(html.size(), kMaxPageBytes);
}

TEST(HtmlReporter, a_fault_is_drawn_as_the_golden_page) {
  expect_golden("fault.html", without_style(render_html(make_fault_analysis())));
}

TEST(HtmlReporter, a_run_with_scaler_layers_and_histograms_is_drawn_as_the_golden_page) {
  expect_golden("overflow.html", without_style(render_html(make_overflow_analysis())));
}

TEST(HtmlReporter, a_clean_run_is_drawn_as_the_golden_page) {
  expect_golden("clean.html", without_style(render_html(make_clean_analysis())));
}

TEST(HtmlReporter, equal_analyses_give_equal_bytes) {
  EXPECT_EQ(render_html(make_fault_analysis()), render_html(make_fault_analysis()));
}

TEST(HtmlReporter, pages_hold_no_foreign_script_no_request_and_no_event_handler) {
  expect_inert(render_html(make_fault_analysis()));
  expect_inert(render_html(make_clean_analysis()));
  expect_inert(render_html(Analysis{}));
}

TEST(HtmlReporter, hostile_names_stay_text) {
  const std::string html = render_html(make_hostile_analysis());

  expect_inert(html);
  EXPECT_THAT(html, HasSubstr("&lt;/script&gt;&lt;/style&gt;&lt;img src=x onerror=alert(1)&gt;&quot;&#39;"));
  EXPECT_THAT(html, HasSubstr("\\x1b[31m"));
  EXPECT_THAT(html, HasSubstr("\\u{202e}"));
  for (const char* raw : {"\x1b", "\x7f", "\xe2\x80\xae", "\xe2\x81\xa6", "\xff", "\xc2\x9b", "\r"}) {
    EXPECT_EQ(html.find(raw), std::string::npos) << static_cast<int>(static_cast<unsigned char>(raw[0]));
  }
  // A name equal to a placeholder of the template is not filled in.
  EXPECT_THAT(html, HasSubstr("{{body}}{{style}}"));
}

TEST(HtmlReporter, the_same_tags_come_out_whatever_the_names_are) {
  const auto names_of_tags = [](const Analysis& analysis) {
    std::vector<std::string> names;
    for (const HtmlTag& tag : scan_html(render_html(analysis)).tags) names.push_back(tag.name);
    return names;
  };
  const Analysis hostile = make_hostile_analysis();
  Analysis tame = hostile;
  for (Finding& f : tame.findings) {
    f.title = f.explanation = f.call_site = "t";
    f.place.module = f.place.op = "t";
    f.evidence = f.sinks = f.also = {"t", "t"};
  }
  tame.verdict.headline = "t";

  EXPECT_EQ(names_of_tags(hostile), names_of_tags(tame));
}

TEST(HtmlReporter, a_hundred_thousand_findings_with_long_names_stay_below_five_megabytes) {
  Analysis analysis = make_hostile_analysis();
  const std::string long_name(100'000, '"');
  Finding finding = analysis.findings[0];
  finding.title = finding.explanation = finding.call_site = long_name;
  finding.place.module = finding.place.op = long_name;
  finding.evidence.assign(100, long_name);
  finding.chain.nodes.resize(1000, finding.chain.nodes[2]);
  for (ChainNode& node : finding.chain.nodes) node.op = node.module = node.label = std::string(2000, '"');
  finding.inputs.resize(100, finding.inputs[0]);
  for (TensorSummary& t : finding.inputs) t.name = t.slot = t.role = std::string(2000, '"');
  analysis.findings.assign(100, finding);
  Finding small;
  small.title = small.id = std::string(500, '&');
  analysis.findings.resize(100'000, small);
  analysis.coverage.unwatched.assign(1000, long_name);
  analysis.ranks.assign(1000, analysis.ranks[0]);
  analysis.eps_audit.assign(10'000, analysis.eps_audit[0]);

  const std::string html = render_html(analysis);

  EXPECT_LE(html.size(), kMaxPageBytes);
  EXPECT_EQ(unbalanced(scan_html(html)), "");
  EXPECT_THAT(html, HasSubstr("… and 99,9"));
}

TEST(HtmlReporter, a_hundred_thousand_steps_of_a_thousand_layers_stay_below_five_megabytes) {
  const std::string html = render_html(make_long_analysis(100'000, 1000));
  EXPECT_LE(html.size(), kMaxPageBytes);
  EXPECT_EQ(unbalanced(scan_html(html)), "");
  EXPECT_THAT(html, HasSubstr("blocks.199.norm"));
}

TEST(HtmlReporter, a_map_gives_up_columns_before_the_page_grows_too_large) {
  Analysis analysis = make_long_analysis(100'000, 2048);
  for (LayerSummary& layer : analysis.layers) layer.module = std::string(200, '<');
  const ReportModel model = make_report_model(analysis);

  const std::string whole = make_page_data(analysis, model, 1000, 4'000'000);
  const std::string small = make_page_data(analysis, model, 1000, 500'000);
  const std::string none = make_page_data(analysis, model, 1000, 1'000);

  EXPECT_EQ(nlohmann::json::parse(whole)["map"]["columns"], 511);
  EXPECT_LE(small.size(), 510'000U);
  EXPECT_LT(nlohmann::json::parse(small)["map"]["columns"], 511);
  EXPECT_TRUE(nlohmann::json::parse(none)["map"].is_null());
  EXPECT_LE(render_html(analysis).size(), kMaxPageBytes);
}

TEST(HtmlReporter, data_for_the_charts_cannot_end_its_element) {
  const Analysis analysis = make_hostile_analysis();
  const std::string data = make_page_data(analysis, make_report_model(analysis), 0, 1'000'000);
  EXPECT_EQ(data.find_first_of("<>&"), std::string::npos);
  for (const char c : data) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << static_cast<int>(c);
  const nlohmann::json chain = nlohmann::json::parse(data)["chain"];
  EXPECT_THAT(chain["nodes"][0]["title"].get<std::string>(),
              HasSubstr("</script></style><img src=x onerror=alert(1)>"));
  EXPECT_EQ(chain["edges"].size(), 6U);  // none that leads outside
}

TEST(HtmlReporter, numbers_for_the_charts_are_finite_or_marked) {
  Analysis analysis = make_fault_analysis();
  analysis.timeline.resize(4);
  const double losses[] = {1.5, std::nan(""), std::numeric_limits<double>::infinity(), 1e300};
  for (std::size_t i = 0; i < 4; ++i) analysis.timeline[i].loss = losses[i];
  analysis.timeline[3].skipped = true;
  for (TimelineStep& t : analysis.timeline) t.bad_ops = 0;

  const auto timeline =
      nlohmann::json::parse(make_page_data(analysis, make_report_model(analysis), 0, 1'000'000))["timeline"];

  EXPECT_EQ(timeline["flags"], base64({0, 1, 2, 4}));
  EXPECT_EQ(timeline["loss"], base64({0, 0, 0xc0, 0x3f, 0, 0, 0xc0, 0x7f, 0, 0, 0xc0, 0x7f, 0xff, 0xff, 0x7f, 0x7f}));
  EXPECT_EQ(timeline["step"], base64({0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}));
}

TEST(HtmlReporter, magnitudes_are_drawn_where_a_histogram_is_known_and_spans_where_it_is_not) {
  const std::string bars = render_html(make_overflow_analysis());
  EXPECT_THAT(bars, HasSubstr("class=\"bar\""));
  EXPECT_THAT(bars, HasSubstr("fp16 (used here)"));
  EXPECT_THAT(bars, HasSubstr("fewer digits below 2^-14"));
  const std::string spans = render_html(make_fault_analysis());
  EXPECT_THAT(spans, HasSubstr("class=\"span\""));
  EXPECT_THAT(spans, Not(HasSubstr("class=\"bar\"")));
}

TEST(HtmlReporter, what_failed_is_no_advice) {
  const std::string text = scan_html(render_html(make_fault_analysis())).text;
  const std::size_t to_do = text.find("What to do"), vain = text.find("What does not help");
  ASSERT_LT(to_do, vain);
  EXPECT_LT(text.find("Train in bf16.", to_do), vain);
  EXPECT_GT(text.find("Raise Adam&#39;s eps to 1e-4.", to_do), vain);
}

TEST(HtmlReporter, the_page_says_whether_it_is_the_loss_scaler) {
  EXPECT_THAT(render_html(make_fault_analysis()), Not(HasSubstr("Is it the loss scaler?"))) << "there is none";
  EXPECT_THAT(render_html(make_overflow_analysis()),
              HasSubstr("The scaler skipped 5 of 60 steps, at most 4 in a row."));
  EXPECT_THAT(render_html(make_calibrating_analysis()), HasSubstr("Yes, and that is its work"));
}

TEST(HtmlReporter, the_verdict_comes_first_and_names_op_layer_step_cause_and_cure) {
  const std::string text = scan_html(render_html(make_fault_analysis())).text;
  const std::size_t verdict = text.find("In step 0 the optimizer&#39;s addcdiv_");
  ASSERT_NE(verdict, std::string::npos);
  std::size_t at = verdict;
  for (const char* expected : {"addcdiv_", "fc1.weight", "Keep fp32 master weights", "seen to work on this run", "step 0",
                               "phase optimizer", "eps_underflow", "Yes."}) {
    const std::size_t found = text.find(expected, at);
    ASSERT_NE(found, std::string::npos) << expected;
    at = found;
  }
  EXPECT_LT(at, text.find("What happened"));
}

TEST(HtmlReporter, outcomes_of_advice_differ_by_more_than_colour) {
  const std::string html = render_html(make_fault_analysis());
  EXPECT_THAT(html, HasSubstr("✓</span> seen to work on this run"));
  EXPECT_THAT(html, HasSubstr("✕</span> tried: no cure"));
  EXPECT_THAT(html, HasSubstr("○</span> not tried"));
}

TEST(HtmlReporter, losses_that_are_not_finite_or_huge_never_reach_a_coordinate) {
  Analysis analysis = make_fault_analysis();
  const double huge = std::numeric_limits<double>::max();
  analysis.timeline.resize(6);
  const double losses[] = {huge, -huge, std::nan(""), std::numeric_limits<double>::infinity(), 1e-320, 0};
  for (std::size_t i = 0; i < 6; ++i) analysis.timeline[i].loss = losses[i];

  const HtmlScan scan = scan_html(render_html(analysis));

  for (const HtmlTag& tag : scan.tags) {
    for (const auto& [name, value] : tag.attributes) {
      if (name != "points" && name != "d" && name != "cx" && name != "cy" && name != "y1") continue;
      EXPECT_THAT(value, Not(HasSubstr("n"))) << tag.name << ' ' << name;
      EXPECT_FALSE(value.empty()) << tag.name << ' ' << name;
    }
  }
}

TEST(HtmlWriter, escapes_what_could_end_text_or_an_attribute) {
  EXPECT_EQ(reports::escape_html("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
}

}  // namespace
}  // namespace nanhunt
