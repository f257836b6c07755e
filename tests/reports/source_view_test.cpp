// SPDX-License-Identifier: Apache-2.0
#include "reports/views/source_view.h"

#include <gmock/gmock.h>

#include <limits>

#include "nanhunt/reporter.h"
#include "reports/views/code_view.h"
#include "reports/views/finding_view.h"
#include "tests/reports/sample_analysis.h"

namespace nanhunt {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(CodeView, the_lines_around_the_one_that_ran_keep_no_indent_that_all_share_and_no_blank_ends) {
  reports::FrameView frame;
  frame.lines = {{"1", "    def f(x):", false}, {"2", "", false},           {"3", "        y = x", false},
                 {"4", "        return y / 0", true}, {"5", "", false}, {"6", "z = 1", false}};
  const auto lines = reports::lines_around(frame, 3);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "y = x");
  EXPECT_EQ(lines[1].text, "return y / 0");
  EXPECT_TRUE(lines[1].here);
  EXPECT_EQ(reports::lines_around(frame, 1).front().number, "4");
  EXPECT_EQ(reports::lines_around(frame, 9).size(), 6u);
  frame.lines[3].here = false;
  EXPECT_TRUE(reports::lines_around(frame, 5).empty());
}

reports::FrameView frame_of(const std::vector<std::string>& lines, std::size_t here) {
  reports::FrameView frame;
  for (std::size_t i = 0; i < lines.size(); ++i)
    frame.lines.push_back({std::to_string(i + 1), lines[i], i + 1 == here});
  return frame;
}

std::string numbers_of(const std::vector<reports::CodeLine>& lines) {
  std::string out;
  for (const reports::CodeLine& line : lines) out += (line.here ? ">" : "") + line.number + " ";
  return out;
}

TEST(CodeView, a_statement_of_several_lines_is_shown_as_a_whole_wherever_its_operation_stands) {
  const std::vector<std::string> code = {"total = f(x)", "loss = torch.log(", "    probs /  # (of all",
                                         "    total,",   ").mean()",          "loss.backward()"};
  for (const std::size_t here : {2u, 3u, 4u}) {
    const reports::FrameView frame = frame_of(code, here);
    EXPECT_EQ(reports::lines_around(frame, 2).size(), 4u);
    EXPECT_EQ(reports::lines_around(frame, 2).front().number, "2");
    EXPECT_EQ(reports::statement_in_line(frame).text, "loss = torch.log(probs / total).mean()");
    EXPECT_EQ(reports::statement_in_line(frame).number, "2-5");
  }
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of(code, 3), 5)), "1 2 >3 4 5 ");
  // What stands beside it stays what it was.
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of(code, 6), 2)), "5 >6 ");
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of(code, 1), 1)), ">1 ");
  EXPECT_EQ(reports::statement_in_line(frame_of(code, 6)).number, "6");
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of({"y = a \\", "    / b", "z = 1"}, 2), 1)), "1 >2 ");
}

TEST(CodeView, a_line_that_was_cut_opens_no_statement_that_those_below_it_go_on_with) {
  const std::string call = "args = Arguments(steps=2, rate=1e-3", below = "train(args)";
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of({call + ", log…", below, "print(1)"}, 2), 1)), ">2 ");
  EXPECT_EQ(reports::statement_in_line(frame_of({call + ", log…", below}, 2)).text, below);
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of({"y = f(", "    g(a, b…", "    c)", below}, 3), 1)), "1 2 >3 ");
  // Its twin stands whole.
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of({call + ",", "  log=1)", below}, 2), 1)), "1 >2 ");
}

TEST(CodeView, of_a_long_statement_are_shown_the_lines_around_the_operation) {
  std::vector<std::string> code = {"y = f("};
  for (int i = 0; i < 12; ++i) code.push_back("    a,");
  code.push_back(")");
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of(code, 2), 1)), "1 >2 3 4 5 6 ");
  EXPECT_EQ(numbers_of(reports::lines_around(frame_of(code, 9), 1)), "6 7 8 >9 10 11 ");
}

TEST(SourceView, the_answer_has_a_statement_of_several_lines_in_one_where_there_is_no_room) {
  Analysis analysis = testing_reports::make_fault_analysis();
  SourceFrame& frame = analysis.findings[0].frames.front();
  frame.first_line = 86;
  frame.code = {"p.addcdiv_(", "    m,", "    v.sqrt() +", "    eps", ")"};
  EXPECT_THAT(render_answer(analysis), HasSubstr("  > 86-90  p.addcdiv_(m, v.sqrt() + eps)\n"));
  EXPECT_THAT(render_text(analysis), HasSubstr("\nCHANGE  At adam.py:88 (p.addcdiv_(m, v.sqrt() + eps)): "));
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

TEST(SourceView, a_cure_names_the_other_lines_at_which_the_same_arose) {
  Analysis analysis = testing_reports::make_fault_analysis();
  const auto words = [&] {
    const std::string text = render_text(analysis);
    return text.substr(text.find("CHANGE"), text.find("Operation") - text.find("CHANGE"));
  };
  EXPECT_THAT(words(), Not(HasSubstr("Likewise")));
  analysis.findings[0].also_at = {"adam.py:91", "adam.py:95"};
  EXPECT_THAT(words(), ContainsRegex("Likewise[[:space:]]+at[[:space:]]+adam.py:91,[[:space:]]+adam.py:95\\."));
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

TEST(SourceView, the_line_has_the_numbers_where_the_code_of_their_module_did_the_operation) {
  Finding finding;
  finding.place.op = "aten::mul";
  finding.module_class = "Net";
  finding.element.emplace().operands = {{"self", "", 3}, {"other", "", 0.5}};
  const auto in_code = [&](std::vector<std::string> functions) {
    finding.frames.clear();
    for (std::string& function : functions)
      finding.frames.push_back({"net.py", 7, std::move(function), 7, {"y = self.part(x) * 0.5"}});
    return reports::view_finding(finding).element->in_code;
  };
  EXPECT_EQ(in_code({"Net.forward", "<module>"}), "self.part(x) * 0.5");
  EXPECT_EQ(in_code({"scaled", "build.<locals>.Net.forward"}), "self.part(x) * 0.5");
  EXPECT_EQ(in_code({"forward", "<module>"}), "self.part(x) * 0.5");  // before Python 3.11
  // A part of PyTorch's, which the line calls, multiplies inside.
  finding.module_class = "RMSNorm";
  EXPECT_EQ(in_code({"Net.forward", "<module>"}), "");
}

TEST(SourceView, a_number_that_a_line_divides_is_told_by_what_it_is_divided_by) {
  Finding finding;
  finding.cls = FindingClass::kDivideByZero;
  finding.place.op = "aten::reciprocal";
  finding.element.emplace().operands = {{"self", "", 0}};
  finding.element->value = std::numeric_limits<double>::infinity();
  finding.frames = {{"solve.py", 7, "<module>", 7, {"factor = 0.9 * (tol / err) ** 0.5"}}};
  EXPECT_THAT(reports::view_finding(finding).cause, StartsWith("tol / err: err = 0. "));
  // Its twin calls the function.
  finding.frames.front().code = {"factor = err.reciprocal()"};
  EXPECT_THAT(reports::view_finding(finding).cause, StartsWith("1 / 0 = +Inf. "));
}

TEST(SourceView, the_page_names_the_whole_path_and_says_what_ran) {
  const std::string page = render_html(testing_reports::make_fault_analysis());
  EXPECT_THAT(page, HasSubstr("<code class=\"path\">/data/me/my project/adam.py:88</code>"));
  EXPECT_THAT(page, HasSubstr("torch 2.13.0, numpy 2.3.4"));
  EXPECT_THAT(page, HasSubstr("0123456789abcdef0123456789abcdef01234567, tree changed"));
}

}  // namespace
}  // namespace nanhunt
