// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<json> rows_of(const Outcome& outcome) {
  std::vector<json> rows;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  return rows;
}

TEST(Dump, ops_are_shown_with_names_and_layouts) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome dump = run_nanhunt({"dump", run, "--step", "2", "--module", "fc1"});
  EXPECT_EQ(dump.status, 0) << dump.err;
  EXPECT_EQ(dump.out,
            "step=2  seq=4  phase=loss  module=fc1  op=sqrt  inputs=[self=%7 fp32[4]]  outputs=[out=%8 fp32[4] nan=1]  "
            "call_site=loss.py:12\n");
}

TEST(Dump, json_lines_write_numbers_that_are_not_finite_as_strings) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const auto steps = rows_of(run_nanhunt({"dump", run, "--kind", "steps", "--json"}));
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_EQ(steps[2]["loss"], "NaN");
  EXPECT_EQ(steps[2]["kind"], "steps");
  const auto evidence = rows_of(run_nanhunt({"dump", run, "--kind", "evidence", "--json"}));
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_EQ(evidence[0]["number"], "NaN");
  EXPECT_EQ(evidence[0]["operands"][0]["number"], -1);
  EXPECT_EQ(evidence[0]["op"], "sqrt");
}

TEST(Dump, values_know_the_op_that_made_them) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const auto values = rows_of(run_nanhunt({"dump", run, "--kind", "values", "--step", "2", "--json"}));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0]["op"], "sqrt");
  EXPECT_EQ(values[0]["nan"], 1);
  EXPECT_EQ(values[0]["shape"], json({4}));
  // The loss has no finite element, so no extrema.
  EXPECT_EQ(values[1]["op"], "mean");
  EXPECT_TRUE(values[1]["min"].is_null());
}

TEST(Dump, every_kind_can_be_shown) {
  const std::string run = make_folder();
  write_sample_trace(run);
  for (const char* kind : {"ops", "values", "marks", "steps", "samples", "evidence", "frees", "experiments", "drops",
                           "scaler", "histograms", "retired", "health", "norms", "unheard", "changed", "probes",
                           "captures", "notes", "collectives", "kernels", "frames", "setup"}) {
    EXPECT_EQ(run_nanhunt({"dump", run, "--kind", kind}).status, 0) << kind;
    EXPECT_EQ(run_nanhunt({"dump", run, "--kind", kind, "--json"}).status, 0) << kind;
  }
  EXPECT_THAT(run_nanhunt({"dump", run, "--kind", "marks", "--limit", "1"}).out, HasSubstr("mark=batch  path=inputs"));
  EXPECT_THAT(run_nanhunt({"dump", run, "--kind", "samples", "--step", "1"}).out, HasSubstr("[10, 11, 12, 13]"));
}

TEST(Dump, what_was_watched_unheard_changed_and_proved_is_shown) {
  const std::string run = make_folder();
  write_sample_trace(run, {.watched = true});
  const auto row = [&](const char* kind) {
    const auto rows = rows_of(run_nanhunt({"dump", run, "--kind", kind, "--step", "2", "--json"}));
    EXPECT_EQ(rows.size(), 1u) << kind;
    return rows.at(0);
  };
  EXPECT_EQ(row("health")["bad"], json({"loss"}));
  EXPECT_EQ(row("health")["gradient_norm"], nullptr);  // not measured: no gradient was found bad
  EXPECT_EQ(row("health")["weight_norm"], 2.5);
  EXPECT_EQ(row("norms")["mark"], "parameter");
  EXPECT_EQ(row("norms")["path"], "fc1");
  EXPECT_EQ(row("unheard")["step"], 2);
  EXPECT_EQ(row("changed")["before"], 7);
  EXPECT_EQ(row("changed")["since_seq"], 3);
  EXPECT_EQ(row("probes")["op"], "sqrt");
  EXPECT_EQ(row("probes")["dtype"], "fp64");
  EXPECT_EQ(row("captures")["file"], "2-sqrt.safetensors");
  EXPECT_EQ(row("collectives")["collective"], "allreduce");
  EXPECT_EQ(row("collectives")["ranks"], json({0, 1}));
  EXPECT_EQ(row("kernels")["op"], "sqrt");
  EXPECT_EQ(row("kernels")["name"], "2-sqrt.safetensors");
  EXPECT_EQ(row("kernels")["count"], 3);
  EXPECT_EQ(row("kernels")["duration_ns"], 1500);
  // ... to people too
  EXPECT_THAT(run_nanhunt({"dump", run, "--kind", "health"}).out, HasSubstr("bad=[loss]"));
  EXPECT_THAT(run_nanhunt({"dump", run, "--kind", "probes", "--module", "fc1"}).out, HasSubstr("dtype=fp64"));
}

TEST(Dump, a_limit_stops_early) {
  const std::string run = make_folder();
  write_sample_trace(run, {.steps = 2000});
  EXPECT_EQ(rows_of(run_nanhunt({"dump", run, "--limit", "3", "--json"})).size(), 3u);
  EXPECT_EQ(run_nanhunt({"dump", run, "--limit", "0"}).out, "");
}

TEST(Dump, a_module_takes_what_is_below_it_but_not_what_begins_alike) {
  const std::string run = make_folder(), other = make_folder();
  write_sample_trace(run, {.module = "fc1.weight"});
  write_sample_trace(other, {.module = "fc12"});
  EXPECT_NE(run_nanhunt({"dump", run, "--module", "fc1"}).out, "");
  EXPECT_EQ(run_nanhunt({"dump", other, "--module", "fc1"}).out, "");
}

TEST(Dump, says_why_nothing_matches) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome step = run_nanhunt({"dump", run, "--step", "9999"});
  EXPECT_EQ(step.status, 0);
  EXPECT_EQ(step.err, "nanhunt: no rows match; steps are 0 to 7.\n");
  EXPECT_EQ(run_nanhunt({"dump", run, "--module", "nosuch"}).err, "nanhunt: no rows match; modules are <loss>, fc1.\n");
  EXPECT_EQ(run_nanhunt({"dump", run, "--kind", "scaler"}).err,
            "nanhunt: there are no rows of kind scaler in this run.\n");
  EXPECT_EQ(run_nanhunt({"dump", run, "--limit", "1"}).err, "");
  EXPECT_EQ(run_nanhunt({"dump", run, "--limit", "0"}).err, "");
}

TEST(Dump, hostile_names_are_made_visible) {
  const std::string run = make_folder();
  write_sample_trace(run, {.module = "m\x1b]0;owned\x07\xff"});
  const Outcome text = run_nanhunt({"dump", run, "--limit", "1"});
  EXPECT_THAT(text.out, HasSubstr("module=m\\x1b]0;owned\\x07\\xff"));
  const Outcome lines = run_nanhunt({"dump", run, "--limit", "1", "--json"});
  EXPECT_EQ(lines.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(rows_of(lines).at(0)["module"], "m\x1b]0;owned\x07\xef\xbf\xbd");
}

TEST(Dump, a_reader_that_goes_away_ends_it_quietly) {
  const std::string run = make_folder();
  write_sample_trace(run, {.steps = 5000});
  const Outcome dump = run_nanhunt({"dump", run}, {.close_stdout_early = true});
  EXPECT_EQ(dump.status, 0);
  EXPECT_EQ(dump.err, "");
}

TEST(Dump, a_full_disk_gives_status_6) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome dump = run_nanhunt({"dump", run}, {.stdout_to = "/dev/full"});
  EXPECT_EQ(dump.status, 6);
  EXPECT_THAT(dump.err, HasSubstr("stdout"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
