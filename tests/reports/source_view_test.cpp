// SPDX-License-Identifier: Apache-2.0
#include "reports/views/source_view.h"

#include <gmock/gmock.h>

#include "nanhunt/reporter.h"
#include "tests/reports/sample_analysis.h"

namespace nanhunt {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(SourceView, a_link_opens_the_line_in_an_editor_and_holds_nothing_that_could_leave_it) {
  EXPECT_EQ(reports::editor_link("/data/me/train.py", 12), "vscode://file/data/me/train.py:12");
  EXPECT_EQ(reports::editor_link("/a b/<\"x\">&\xc3\xa9?#.py", 1),
            "vscode://file/a%20b/%3C%22x%22%3E%26%C3%A9%3F%23.py:1");
}

TEST(SourceView, what_is_no_file_has_no_link) {
  EXPECT_EQ(reports::editor_link("<ipython-input-3>", 1), "");
  EXPECT_EQ(reports::editor_link("train.py", 1), "");
  EXPECT_EQ(reports::editor_link("", 1), "");
}

TEST(SourceView, the_first_words_of_a_report_say_what_to_change_and_where) {
  Analysis analysis = testing_reports::make_fault_analysis();
  const std::string text = render_text(analysis);
  EXPECT_THAT(text, HasSubstr("\nCHANGE  At adam.py:88 (p.addcdiv_(m, v.sqrt() + eps)): "));
  EXPECT_LT(text.find("CHANGE"), text.find("Operation"));
  // a line that would have to be cut stands below only
  SourceFrame& frame = analysis.findings[0].frames.front();
  frame.code[frame.line - frame.first_line] = "p.addcdiv_(m, v.sqrt() + " + std::string(80, 'e') + ")";
  EXPECT_THAT(render_text(analysis), HasSubstr("\nCHANGE  At adam.py:88: "));
  analysis.findings[0].advice.clear();
  EXPECT_THAT(render_text(analysis), Not(HasSubstr("CHANGE")));
}

TEST(SourceView, the_text_shows_the_line_that_ran_with_its_neighbours_and_its_callers) {
  const std::string text = render_text(testing_reports::make_fault_analysis());
  EXPECT_THAT(text, HasSubstr("  /data/me/my project/adam.py:88 in Adam.step\n"
                              "    87  for p in group:\n"
                              "  > 88      p.addcdiv_(m, v.sqrt() + eps)\n"
                              "  called from /data/me/train.py:12 in <module>\n"
                              "      optimizer.step()\n"));
  EXPECT_THAT(text, HasSubstr("fc1.weight (Linear)"));
  EXPECT_THAT(text, HasSubstr("Of the same cause"));
}

TEST(SourceView, the_programs_own_frames_come_first_and_those_of_installed_packages_are_folded) {
  Analysis analysis = testing_reports::make_fault_analysis();
  std::vector<SourceFrame>& frames = analysis.findings[0].frames;
  const SourceFrame own = frames.front();
  frames.insert(frames.begin(), {"/v/lib/python3.11/site-packages/transformers/trainer.py", 7, "step", 7, {"inner()"}});
  frames.insert(frames.begin() + 1, {"/usr/lib/python3.11/contextlib.py", 8, "inner", 8, {"yield"}});
  const std::string text = render_text(analysis), page = render_html(analysis), issue = render_markdown(analysis);
  EXPECT_THAT(text, HasSubstr("The code\n  " + own.file + ":88 in Adam.step\n"));
  EXPECT_THAT(text, HasSubstr("  through installed packages: transformers/trainer.py:7, contextlib.py:8\n"));
  EXPECT_THAT(page, HasSubstr("<summary>Through 2 lines of installed packages</summary>"));
  EXPECT_THAT(page, Not(HasSubstr("site-packages/transformers")));
  EXPECT_THAT(issue, HasSubstr("through installed packages: transformers/trainer.py:7, contextlib.py:8\n"));
  EXPECT_THAT(issue, HasSubstr("```text\nadam.py:88 in Adam.step\n"));
  // Where no line is the program's, the innermost is shown.
  frames.resize(2);
  EXPECT_THAT(render_text(analysis), HasSubstr("The code\n  transformers/trainer.py:7 in step\n"));
}

TEST(SourceView, the_page_links_the_file_and_says_what_ran) {
  const std::string page = render_html(testing_reports::make_fault_analysis());
  EXPECT_THAT(page, HasSubstr("<a href=\"vscode://file/data/me/my%20project/adam.py:88\">open in editor</a>"));
  EXPECT_THAT(page, HasSubstr("torch 2.13.0, numpy 2.3.4"));
  EXPECT_THAT(page, HasSubstr("0123456789abcdef0123456789abcdef01234567, tree changed"));
}

}  // namespace
}  // namespace nanhunt
