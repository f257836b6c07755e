// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tests/reports/golden.h"
#include "tests/reports/html_scan.h"
#include "nanhunt/reporter.h"
#include "reports/html_writer.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sha256.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kMaxPageBytes = 5'000'000;

// Style, its hash and the version are checked apart: a golden that holds them would change with every colour.
std::string without_style(std::string html) {
  const auto replace = [&](const std::string& from, const std::string& to, const std::string& with) {
    const std::size_t begin = html.find(from) + from.size();
    html.replace(begin, html.find(to, begin) - begin, with);
  };
  replace("<style>", "</style>", "…");
  replace("style-src '", "'", "…");
  replace("Made by nanhunt ", " ", "…");
  return html;
}

const std::set<std::string>& known_attributes() {
  static const std::set<std::string> kKnown = {
      "lang",        "charset",  "http-equiv", "content", "name",    "class",   "href", "id", "aria-labelledby",
      "role",        "tabindex", "aria-label", "scope",   "colspan", "viewBox", "x",    "y",  "text-anchor",
      "x1",          "y1",       "x2",         "y2",      "points",  "cx",      "cy",   "r",  "d",
      "aria-hidden", "html"};
  return kKnown;
}

void expect_inert(const std::string& html) {
  const HtmlScan scan = scan_html(html);
  EXPECT_EQ(scan.error, "");
  EXPECT_EQ(unbalanced(scan), "");
  for (const HtmlTag& tag : scan.tags) {
    EXPECT_NE(tag.name, "script");
    EXPECT_NE(tag.name, "img");
    EXPECT_NE(tag.name, "link");
    EXPECT_NE(tag.name, "iframe");
    for (const auto& [name, value] : tag.attributes) {
      EXPECT_TRUE(known_attributes().contains(name)) << tag.name << " has " << name;
      if (name == "href") {
        EXPECT_EQ(value.substr(0, 1), "#");
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

TEST(HtmlReporter, a_clean_run_is_drawn_as_the_golden_page) {
  expect_golden("clean.html", without_style(render_html(make_clean_analysis())));
}

TEST(HtmlReporter, equal_analyses_give_equal_bytes) {
  EXPECT_EQ(render_html(make_fault_analysis()), render_html(make_fault_analysis()));
}

TEST(HtmlReporter, pages_hold_no_script_no_request_and_no_event_handler) {
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

TEST(HtmlReporter, the_policy_allows_exactly_the_style_of_the_page) {
  const std::string html = render_html(make_fault_analysis());
  const HtmlScan scan = scan_html(html);

  const std::string policy =
      "default-src 'none'; style-src 'sha256-" + sha256_base64(scan.style) + "'; base-uri 'none'; form-action 'none'";
  EXPECT_THAT(html, HasSubstr("http-equiv=\"Content-Security-Policy\" content=\"" + policy + "\""));
  // The standard's own example, so that the check itself is checked.
  EXPECT_EQ(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
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

TEST(HtmlReporter, the_verdict_comes_first_and_names_op_layer_step_cause_and_cure) {
  const std::string text = scan_html(render_html(make_fault_analysis())).text;
  const std::size_t verdict = text.find("In step 0 the optimizer&#39;s addcdiv_");
  ASSERT_NE(verdict, std::string::npos);
  std::size_t at = verdict;
  for (const char* expected : {"addcdiv_", "fc1.weight", "step 0", "phase optimizer", "eps_underflow", "Yes.",
                               "Keep fp32 master weights", "seen to work on this run"}) {
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
