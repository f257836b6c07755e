// SPDX-License-Identifier: Apache-2.0
// render_markdown and render_annotations.
#include <gmock/gmock.h>

#include "nanhunt/reporter.h"
#include "tests/reports/golden.h"
#include "tests/reports/sample_analysis.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Markdown, a_fault_is_the_golden_issue) { expect_golden("fault.md.txt", render_markdown(make_fault_analysis())); }

TEST(Markdown, begins_with_what_to_change) {
  EXPECT_THAT(render_markdown(make_fault_analysis()), StartsWith("**At `adam.py:88`: "));
}

// Runs of backticks open code that ends at a run as long; a backslash before one takes its meaning.
std::string outside_of_code(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\\') {
      out += text.substr(at, 2);
      at += 2;
    } else if (text[at] != '`') {
      out += text[at++];
    } else {
      const std::size_t end = text.find_first_not_of('`', at);
      const std::string fence = text.substr(at, end - at);
      std::size_t close = end;
      while (true) {
        close = text.find(fence, close);
        if (close == std::string::npos) return out + "<code does not end>";
        const std::size_t after = text.find_first_not_of('`', close);
        if (after == std::string::npos || after - close == fence.size()) break;
        close = after;
      }
      at = close + fence.size();
    }
  }
  return out;
}

// Outside of code no character of a name is markup, and nothing mentions or links.
TEST(Markdown, hostile_names_open_no_markup) {
  Analysis analysis = make_hostile_analysis();
  analysis.findings[0].title = "@someone #1 http://evil www.evil.example `code` [x](y) **b** <b> |";
  analysis.verdict.headline = analysis.findings[0].title;
  const std::string text = render_markdown(analysis);
  const std::string prose = outside_of_code(text);
  EXPECT_EQ(prose.find('<'), std::string::npos) << prose.substr(prose.find('<'), 80);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("`@someone` `#1` `http://evil` `www.evil.example`"));
  EXPECT_THAT(text, HasSubstr("\\`code\\` \\[x\\](y) \\*\\*b\\*\\* &lt;b&gt; \\|"));
}

TEST(Markdown, names_files_as_the_command_did_and_counts_what_repeats) {
  Analysis analysis = make_fault_analysis();
  const auto add = [&](const char* file) { analysis.findings[0].frames.push_back({file, 3, "f", 3, {"g()"}}); };
  analysis.findings[0].frames.clear();
  add("/data/me/code/src/train.py");
  add("/data/me/code/other.py");
  analysis.ranks[0].info.command = {"python", "./src/train.py"};
  analysis.findings[0].occurrence_count = 3;
  const std::string text = render_markdown(analysis);
  EXPECT_THAT(text, HasSubstr("```text\nsrc/train.py:3 in f\n"));
  EXPECT_THAT(text, HasSubstr("called from other.py:3 in f\n"));
  EXPECT_THAT(text, Not(HasSubstr("/data/me")));
  EXPECT_THAT(text, HasSubstr("| Cause | `eps_underflow`: "));
  EXPECT_THAT(text, HasSubstr("in 3 steps, from step"));
}

TEST(Markdown, a_fence_is_longer_than_what_it_holds) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].frames[0].code[1] = "````` # fence";
  EXPECT_THAT(render_markdown(analysis), HasSubstr("\n``````text\n"));
}

TEST(Markdown, a_clean_run_and_an_empty_analysis_have_no_finding) {
  EXPECT_THAT(render_markdown(make_clean_analysis()), StartsWith("Clean: "));
  EXPECT_THAT(render_markdown(Analysis{}), StartsWith("Inconclusive: "));
}

TEST(Annotations, name_the_line_in_the_checkout) {
  const std::string text = render_annotations(make_fault_analysis(), "/data/me/my project");
  EXPECT_THAT(text, StartsWith("::error file=adam.py,line=88,title=nanhunt%3A eps_underflow::"));
  EXPECT_THAT(text, HasSubstr("%0AAt adam.py:88"));
}

TEST(Annotations, prefer_the_innermost_frame_that_lies_in_the_checkout) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].frames[0].file = "/usr/lib/python3/site-packages/lib/adam.py";
  EXPECT_THAT(render_annotations(analysis, "/data/me"), StartsWith("::error file=train.py,line=12,"));
  EXPECT_THAT(render_annotations(analysis, "/elsewhere"),
              StartsWith("::error file=/usr/lib/python3/site-packages/lib/adam.py,line=88,"));
  analysis.findings[0].frames.clear();
  EXPECT_THAT(render_annotations(analysis, "/data/me"), StartsWith("::error file=adam.py,line=88,"));
}

TEST(Annotations, one_line_each_whatever_names_hold) {
  Analysis analysis = make_hostile_analysis();
  analysis.findings[0].frames[0].file = "/x\n::error::y,line=3:%";
  const std::string text = render_annotations(analysis, "/");
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    EXPECT_THAT(line, ::testing::AnyOf(StartsWith("::error "), StartsWith("::warning "), StartsWith("::notice ")));
    const std::string properties = line.substr(2, line.find("::", 2) - 2);
    EXPECT_LE(std::count(properties.begin(), properties.end(), ','), 2) << line;
    begin = end + 1;
  }
  EXPECT_EQ(begin, text.size());
}

TEST(Annotations, a_run_without_findings_is_told_as_well) {
  EXPECT_THAT(render_annotations(make_clean_analysis(), ""), StartsWith("::notice title=nanhunt%3A clean::"));
  EXPECT_THAT(render_annotations(Analysis{}, ""), StartsWith("::warning title=nanhunt%3A inconclusive::"));
}

}  // namespace
}  // namespace nanhunt
