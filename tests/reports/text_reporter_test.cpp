// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "nanhunt/reporter.h"
#include "reports/text/text_layout.h"
#include "tests/reports/golden.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_runs.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(TextReporter, a_fault_is_told_as_in_the_golden_text) {
  expect_golden("fault.txt", render_text(make_fault_analysis()));
}

TEST(TextReporter, hostile_names_and_an_empty_analysis_are_told_as_in_the_golden_texts) {
  expect_golden("hostile.txt", render_text(make_hostile_analysis()));
  expect_golden("empty.txt", render_text(Analysis{}));
}

TEST(TextReporter, a_clean_run_is_told_as_in_the_golden_text) {
  expect_golden("clean.txt", render_text(make_clean_analysis()));
}

TEST(TextReporter, the_five_questions_are_answered_in_the_first_lines) {
  const std::string text = render_text(make_fault_analysis());
  EXPECT_THAT(text, StartsWith("FAULT  "));
  EXPECT_THAT(text, ContainsRegex("Operation +addcdiv_\n"));
  EXPECT_THAT(text, ContainsRegex("Layer +fc1.weight .Linear.\n"));
  EXPECT_THAT(text, ContainsRegex("When +step 0, phase optimizer\n"));
  EXPECT_THAT(text, ContainsRegex("Cause +eps_underflow: "));
  EXPECT_THAT(text, ContainsRegex("Cure +Keep fp32 master weights and optimizer state. .seen to work on this run.\n"));
}

TEST(TextReporter, of_several_ranks_the_one_is_named_where_it_was_born_and_how_it_came_to_others) {
  Analysis analysis = make_fault_analysis();
  analysis.ranks[0].info.world_size = 4;
  Finding& f = analysis.findings[0];
  f.ranks = {2};
  f.rank_propagation = {{{0, 1, 3}, "allreduce", "dp", 12}};
  f.chain.nodes[0].rank = 2;
  const std::string text = render_text(analysis);
  EXPECT_THAT(text, HasSubstr("began on rank 2; it came to ranks 0, 1 and 3 through allreduce, step 12"));
  EXPECT_THAT(text, HasSubstr(" · rank 2"));
  EXPECT_THAT(render_html(analysis), HasSubstr("it came to ranks 0, 1 and 3 through allreduce, step 12"));
  f.ranks = {0, 1};
  f.rank_propagation.clear();
  EXPECT_THAT(render_text(analysis), HasSubstr("began on ranks 0 and 1, on each by itself"));
  f.cls = FindingClass::kComm;
  EXPECT_THAT(render_text(analysis), HasSubstr("began between the ranks: it came back bad to ranks 0 and 1"));
}

TEST(TextReporter, a_run_with_a_scaler_is_told_as_in_the_golden_text) {
  expect_golden("overflow.txt", render_text(make_overflow_analysis()));
}

TEST(TextReporter, time_on_the_device_is_told_where_kernels_were_watched_and_only_there) {
  Analysis analysis = make_overflow_analysis();
  analysis.device_time = make_device_time();
  analysis.findings[0].kernel = "gemm_f16_128x128_tn";
  const std::string text = render_text(analysis);
  EXPECT_THAT(text, ContainsRegex("Kernel +gemm_f16_128x128_tn\n"));
  EXPECT_THAT(text, HasSubstr("69,004 kernels ran for 2 s in all; nanhunt's own took 1.2 % of it (24 ms)"));
  EXPECT_THAT(text, ContainsRegex("900 ms +45 % +addmm +blocks.1.mlp.fc2 +forward +60 +gemm_f16_128x128_tn"));
  EXPECT_THAT(text, HasSubstr("no watched operation"));
  EXPECT_THAT(text, ContainsRegex("No watched operation\\s+launched 0.75 %"));
  EXPECT_THAT(render_html(analysis), HasSubstr("<td class=\"num\">45 %</td>"));
  // and without
  analysis.device_time.reset();
  analysis.findings[0].kernel.clear();
  EXPECT_THAT(render_text(analysis), Not(HasSubstr("on the device")));
  EXPECT_THAT(render_text(analysis), Not(HasSubstr("Kernel ")));
  EXPECT_THAT(render_html(analysis), Not(HasSubstr("on the device")));
}

TEST(TextReporter, hostile_kernels_cannot_steer_a_terminal_or_leave_an_element) {
  const std::string evil = "</td><script>\x1b[31m\r\x7f\xe2\x80\xae\xff";
  Analysis analysis = make_overflow_analysis();
  analysis.findings[0].kernel = evil;
  analysis.device_time = DeviceTime{};
  DeviceTime& time = *analysis.device_time;
  time.kernels = time.untimed = std::numeric_limits<std::uint64_t>::max();
  time.total_ns = time.own_ns = std::numeric_limits<std::int64_t>::max();
  time.rows = {{evil, evil, Phase::kLoss, evil, 1, 1, -5}, {evil, "", Phase::kLoss, evil, 1, 0, 1}};
  const std::string text = render_text(analysis), html = render_html(analysis), json = render_json(analysis);
  for (const char* raw : {"\x1b", "\r", "\x7f", "\xe2\x80\xae", "\xff"}) {
    EXPECT_EQ(text.find(raw), std::string::npos);
    EXPECT_EQ(html.find(raw), std::string::npos);
    EXPECT_EQ(json.find(raw), std::string::npos);
  }
  EXPECT_EQ(html.find("</td><script>"), std::string::npos);
}

TEST(TextReporter, only_bad_samples_are_listed) {
  Analysis analysis = make_overflow_analysis();
  EXPECT_THAT(render_text(analysis), Not(HasSubstr("Samples")));
  analysis.findings[0].cls = FindingClass::kBadInput;
  EXPECT_THAT(render_text(analysis), ContainsRegex("Samples +4, 8, 15, 16, 23, 42\n"));
}

TEST(TextReporter, hostile_names_cannot_steer_a_terminal) {
  for (const bool colour : {false, true}) {
    std::string text = render_text(make_hostile_analysis(), {colour, 80});
    for (const char* raw : {"\x7f", "\xe2\x80\xae", "\xe2\x81\xa6", "\xff", "\xc2\x9b", "\r", "\t", "\x1b[31m"}) {
      EXPECT_EQ(text.find(raw), std::string::npos);
    }
    EXPECT_EQ(text.find('\x1b') != std::string::npos, colour);
  }
}

TEST(TextReporter, colours_come_only_when_asked_for_and_change_nothing_else) {
  std::string coloured = render_text(make_fault_analysis(), {true, 100});
  EXPECT_THAT(coloured, HasSubstr("\x1b[1;31mFAULT\x1b[0m"));
  for (std::size_t at = coloured.find('\x1b'); at != std::string::npos; at = coloured.find('\x1b')) {
    coloured.erase(at, coloured.find('m', at) - at + 1);
  }
  EXPECT_EQ(coloured, render_text(make_fault_analysis()));
}

TEST(TextReporter, a_hundred_thousand_findings_fit_on_a_few_screens) {
  Analysis analysis = make_fault_analysis();
  analysis.findings.resize(100'000, analysis.findings[1]);

  const std::string text = render_text(analysis);

  EXPECT_LT(text.size(), 20'000u);
  EXPECT_THAT(text, HasSubstr("… and 99,987 more"));
}

TEST(TextReporter, damage_and_a_missing_end_are_told) {
  Analysis analysis = make_clean_analysis();
  analysis.coverage.chunks_lost = 2;
  analysis.coverage.records_dropped = 1;
  analysis.coverage.clean_end = false;
  analysis.ranks[0].health.bytes_skipped = 2048;

  const std::string text = render_text(analysis);

  EXPECT_THAT(text, HasSubstr("2 chunks of the trace could not be read"));
  EXPECT_THAT(text, HasSubstr("1 record was dropped while recording"));
  EXPECT_THAT(text, Not(HasSubstr("damaged")));
  EXPECT_THAT(text, HasSubstr("2.0 KiB of the trace made no sense"));
  EXPECT_THAT(text, HasSubstr("no clean end"));
}

TEST(TextReporter, records_lost_in_damage_and_records_dropped_while_recording_are_told_apart) {
  Analysis analysis = make_clean_analysis();
  analysis.coverage.records_dropped = 35;
  analysis.ranks[0].health.rows_lost = 10;
  analysis.ranks[0].info.options.emplace_back("salvaged", "chunks lost 1, rows lost 20, bytes skipped 0");

  const std::string text = render_text(analysis);

  EXPECT_THAT(text, HasSubstr("5 records were dropped while recording"));
  EXPECT_THAT(text, HasSubstr("30 records were lost where the trace was damaged"));
}

TEST(TextReporter, an_empty_analysis_is_inconclusive) {
  EXPECT_THAT(render_text(Analysis{}), StartsWith("INCONCLUSIVE  "));
}

TEST(TextReporter, lines_are_no_wider_than_asked_for) {
  const std::string text = render_text(make_clean_analysis(), {false, 60});
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    if (line.find("·") == std::string::npos) {
      EXPECT_LE(reports::columns_of(line), 60u) << line;
    }
    begin = end + 1;
  }
}

TEST(TextLayout, words_longer_than_a_line_stay_whole) {
  reports::TextLayout layout(false, 40);
  const std::string word(100, 'x');
  layout.paragraph("a " + word + " b", 2, "- ");
  EXPECT_EQ(layout.take(), "  - a\n    " + word + "\n    b\n");
}

TEST(TextLayout, columns_line_up_by_characters_not_bytes) {
  reports::TextLayout layout(false, 80);
  layout.table({{"é", "n"}, {"ab", "10"}}, {false, true}, 0);
  EXPECT_EQ(layout.take(), "é    n\nab  10\n");
}

}  // namespace
}  // namespace nanhunt
