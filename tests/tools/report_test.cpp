// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string make_run() {
  const std::string run = make_folder();
  write_sample_trace(run);
  return run;
}

TEST(Report, writes_both_files_and_prints_the_text) {
  const std::string run = make_run();
  const Outcome report = run_nanhunt({"report", run});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_THAT(report.out, StartsWith("FAULT  "));
  EXPECT_THAT(report.err, HasSubstr(run + "/report.json"));
  EXPECT_THAT(report.err, HasSubstr(run + "/report.html"));
  EXPECT_EQ(json::parse(read_file(run + "/report.json"))["schema"], "nanhunt.report");
  EXPECT_THAT(read_file(run + "/report.html"), StartsWith("<!doctype html>"));
  EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 3);  // no temporary file is left
}

TEST(Report, the_text_names_the_files_it_wrote_and_commands_that_can_be_run) {
  const std::string run = make_run();
  const std::string text = run_nanhunt({"report", run, "--full"}).out;
  EXPECT_THAT(text, HasSubstr(run + "/report.json and"));
  EXPECT_THAT(text, HasSubstr("`nanhunt dump " + run + " --kind ops --step 2`"));
  EXPECT_EQ(text.find("nanhunt report RUN"), std::string::npos);
}

TEST(Report, of_the_run_of_quickstart_reads_as_the_readme_shows_it) {
  const std::string readme = read_file(NANHUNT_SOURCE_DIR "/README.md"), fence = "```text\n";
  const std::size_t begin = readme.find(fence, readme.find("<!-- quickstart output: begin -->")) + fence.size();
  std::string shown = readme.substr(begin, readme.find("```\n", begin) - begin);
  const std::string run = make_folder() + "/run", named = "nanhunt-quickstart/adam-eps";
  ASSERT_EQ(run_nanhunt({"train", "adam-eps", "--out", run}).status, 0);
  ASSERT_NE(shown.find(named), std::string::npos);
  shown.replace(shown.find(named), named.size(), run);
  EXPECT_EQ(run_nanhunt({"report", run}).out, shown);
}

TEST(Report, is_ten_lines_that_name_the_command_for_all_of_it) {
  const std::string run = make_run();
  const std::string text = run_nanhunt({"report", run}).out, full = run_nanhunt({"report", run, "--full"}).out;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_THAT(text, HasSubstr("nanhunt report " + run + " --full"));
  EXPECT_GT(std::count(full.begin(), full.end(), '\n'), 20) << full;
  EXPECT_THAT(full, HasSubstr("\nWatched\n"));
  EXPECT_EQ(run_nanhunt({"report", run, "--full", "--json"}).status, 2);
}

TEST(Report, open_hands_the_page_to_the_browser_and_says_where_it_is_when_there_is_none) {
  const std::string run = make_run(), browser = run + "/browser", seen = run + "/seen";
  write_file(browser, "#!/bin/sh\nprintf '%s' \"$1\" > '" + seen + "'\n");
  fs::permissions(browser, fs::perms::owner_all);
  EXPECT_EQ(run_nanhunt({"report", run, "--open"}, {.environment = {"BROWSER=" + browser}}).status, 0);
  EXPECT_TRUE(fs::equivalent(read_file(seen), run + "/report.html"));
  const Outcome none = run_nanhunt({"report", run, "--open"}, {.environment = {"BROWSER=/no/such/program"}});
  EXPECT_EQ(none.status, 0);
  EXPECT_THAT(none.err, HasSubstr("could not open the page"));
  EXPECT_THAT(none.err, HasSubstr("report.html"));
}

TEST(Report, the_same_trace_gives_the_same_bytes_wherever_it_lies) {
  const std::string run = make_run(), copy = make_folder() + "/elsewhere";
  fs::copy(run, copy, fs::copy_options::recursive);
  for (const char* format : {"--json", "--html", "--text", "--markdown", "--github"}) {
    EXPECT_EQ(run_nanhunt({"report", run, format}).out, run_nanhunt({"report", copy, format}).out) << format;
  }
}

TEST(Report, one_format_goes_to_stdout_and_writes_nothing) {
  const std::string run = make_run();
  EXPECT_EQ(json::parse(run_nanhunt({"report", run, "--json"}).out)["verdict"]["status"], "fault");
  EXPECT_THAT(run_nanhunt({"report", run, "--html"}).out, StartsWith("<!doctype html>"));
  EXPECT_THAT(run_nanhunt({"report", run, "--text"}).out, StartsWith("FAULT  "));
  EXPECT_EQ(run_nanhunt({"report", run, "--json", "-o", "-"}).out, run_nanhunt({"report", run, "--json"}).out);
  EXPECT_FALSE(fs::exists(run + "/report.json"));
  EXPECT_FALSE(fs::exists(run + "/report.html"));
}

TEST(Report, the_ending_of_the_output_names_the_format) {
  const std::string run = make_run();
  for (const char* name : {"a.json", "a.html", "a.txt"}) {
    const Outcome report = run_nanhunt({"report", run, "-o", run + "/" + name});
    EXPECT_EQ(report.status, 0) << report.err;
    EXPECT_EQ(report.out, "");
  }
  EXPECT_EQ(json::parse(read_file(run + "/a.json"))["schema_version"], 1);
  EXPECT_THAT(read_file(run + "/a.html"), StartsWith("<!doctype html>"));
  EXPECT_THAT(read_file(run + "/a.txt"), StartsWith("FAULT  "));
}

TEST(Report, what_the_bundled_engine_does_not_model_is_in_every_format) {
  const std::string run = make_folder(), other = make_folder();
  write_sample_trace(run, {.framework = "nanhunt-engine 0.1.0"});
  write_sample_trace(other);
  for (const char* format : {"--json", "--html", "--full"}) {
    EXPECT_THAT(run_nanhunt({"report", run, format}).out, HasSubstr("Split-K reduction in fp16.")) << format;
    EXPECT_THAT(run_nanhunt({"report", other, format}).out, Not(HasSubstr("Split-K"))) << format;
  }
}

TEST(Report, no_colour_reaches_a_file_or_a_pipe) {
  const std::string run = make_run();
  EXPECT_EQ(run_nanhunt({"report", run, "--text"}, {.environment = {"TERM=xterm-256color"}}).out.find('\x1b'),
            std::string::npos);
}

TEST(Report, an_output_that_cannot_be_written_gives_status_6) {
  const std::string run = make_run();
  for (const std::string& target : {std::string("/dev/full"), run + "/no/such/folder/a.json", run}) {
    const Outcome report = run_nanhunt({"report", run, "--json", "-o", target});
    EXPECT_EQ(report.status, 6) << target;
    EXPECT_THAT(report.err, HasSubstr("cannot write '" + target + "'")) << target;
  }
  EXPECT_EQ(run_nanhunt({"report", run, "--json"}, {.stdout_to = "/dev/full"}).status, 6);
}

TEST(Report, a_run_folder_that_cannot_be_written_still_tells_the_verdict) {
  const std::string run = make_run();
  fs::create_directory(run + "/report.json");
  const Outcome report = run_nanhunt({"report", run});
  EXPECT_EQ(report.status, 6);
  EXPECT_THAT(report.out, StartsWith("FAULT  "));
  EXPECT_THAT(report.err, HasSubstr("report.json"));
}

TEST(Report, a_link_in_the_run_folder_is_replaced_not_followed) {
  const std::string run = make_run(), outside = make_folder();
  write_file(outside + "/precious", "keep me");
  fs::create_symlink(outside + "/precious", run + "/report.json");
  EXPECT_EQ(run_nanhunt({"report", run}).status, 0);
  EXPECT_EQ(read_file(outside + "/precious"), "keep me");
  EXPECT_FALSE(fs::is_symlink(run + "/report.json"));
}

TEST(Report, a_single_segment_is_reported_beside_it) {
  const std::string run = make_folder();
  const std::string segment = write_sample_trace(run);
  const Outcome report = run_nanhunt({"report", segment});
  EXPECT_EQ(report.status, 0);
  EXPECT_THAT(report.err, HasSubstr("beside '" + segment + "' and tell of this one segment"));
  EXPECT_TRUE(fs::exists(fs::path(segment).parent_path() / "report.html"));
}

TEST(Report, a_reader_that_goes_away_is_no_error) {
  const std::string run = make_run();
  const Outcome report = run_nanhunt({"report", run, "--html"}, {.close_stdout_early = true});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_EQ(report.err, "");
}

}  // namespace
}  // namespace nanhunt::testing_tools
