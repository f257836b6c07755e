// SPDX-License-Identifier: Apache-2.0
// Three reports byte for byte: a fault, a warning and a clean run. test_report_schema.py holds every sample to the
// schema.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "nanhunt/reporter.h"
#include "reports/json/json_values.h"
#include "tests/reports/golden.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_runs.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using nlohmann::json;

json report_of(const Analysis& analysis) { return json::parse(render_json(analysis)); }

TEST(JsonReporter, a_fault_with_scaler_layers_norms_and_histograms_is_written_as_the_golden_report) {
  expect_golden("overflow.json", render_json(make_overflow_analysis()));
}

TEST(JsonReporter, a_warning_with_audits_frames_ranks_and_device_time_is_written_as_the_golden_report) {
  expect_golden("warning.json", render_json(make_warning_analysis()));
}

TEST(JsonReporter, a_clean_run_with_a_ramp_of_the_learning_rate_is_written_as_the_golden_report) {
  expect_golden("ramp.json", render_json(make_ramp_analysis()));
}

TEST(JsonReporter, an_empty_analysis_is_inconclusive_and_has_empty_lists) {
  const json report = report_of(Analysis{});
  EXPECT_EQ(report["verdict"],
            json::parse(R"({"status": "inconclusive", "headline": "", "change": null, "origin": null})"));
  for (const char* list : {"findings", "eps_audit", "update_loss", "headroom", "experiments"}) {
    EXPECT_EQ(report[list], json::array()) << list;
  }
  EXPECT_EQ(report["run"]["ranks"], json::array());
  EXPECT_EQ(report["timeline"]["steps"], json::array());
  for (const char* none : {"scaler", "lr_ramp", "device_time"}) EXPECT_TRUE(report[none].is_null()) << none;
}

TEST(JsonReporter, numbers_that_json_cannot_write_become_strings) {
  const json report = report_of(make_hostile_analysis());
  EXPECT_EQ(report["timeline"]["steps"][1]["loss"], "NaN");
  EXPECT_EQ(report["timeline"]["steps"][3]["loss"], "-Infinity");
  EXPECT_EQ(report["timeline"]["steps"][4]["loss"], "Infinity");
  EXPECT_TRUE(report["timeline"]["steps"][6]["lr"].is_null());
  EXPECT_EQ(report["findings"][0]["scale"], "Infinity");
  EXPECT_EQ(report["findings"][0]["element"]["value"], "NaN");
  EXPECT_EQ(report["findings"][0]["element"]["operands"][0]["value"], "-Infinity");
}

TEST(JsonReporter, integers_stay_exact_in_a_double) {
  const json report = report_of(make_hostile_analysis());
  const json& finding = report["findings"][0];
  EXPECT_TRUE(finding["op_seq"].is_null());
  EXPECT_EQ(finding["occurrences"]["count"], 9007199254740991);
  EXPECT_EQ(finding["bad_steps"]["count"], 40);
  EXPECT_EQ(report["findings"][1]["bad_steps"], nullptr);  // nothing stopped being finite
  EXPECT_EQ(finding["samples"], json({"-9223372036854775808", "9223372036854775807"}));
  EXPECT_EQ(finding["tensor"]["shape"], json(std::vector<std::string>(64, "9223372036854775807")));  // of 1,000
  EXPECT_TRUE(finding["element"]["flat_index"].is_null());
  EXPECT_EQ(reports::json_integer(9007199254740991), 9007199254740991);
  EXPECT_EQ(reports::json_integer(9007199254740992), "9007199254740992");
  EXPECT_TRUE(reports::json_seq(kNoSeq).is_null());
  EXPECT_EQ(reports::json_seq(0), 0);
}

TEST(JsonReporter, what_was_not_seen_is_null_and_never_zero) {
  Analysis analysis = make_overflow_analysis();
  analysis.timeline[0].gradient_norm = std::nan("");
  analysis.layers[0].bad_ops = 0;
  analysis.layers[0].headroom_gradient = std::nan("");
  json report = report_of(analysis);
  EXPECT_TRUE(report["timeline"]["steps"][0]["gradient_norm"].is_null());
  EXPECT_TRUE(report["headroom"][0]["first_bad_step"].is_null());
  EXPECT_TRUE(report["headroom"][0]["gradient"]["headroom"].is_null());
  EXPECT_TRUE(report["findings"][0]["inputs"][0]["stats"]["histogram"].is_object());

  report = report_of(make_fault_analysis());
  EXPECT_TRUE(report["scaler"].is_null());
  EXPECT_TRUE(report["timeline"]["layer_map"].is_null());
  EXPECT_TRUE(report["findings"][0]["inputs"][0]["stats"]["histogram"].is_null());
}

TEST(JsonReporter, the_largest_map_of_layers_is_written_whole) {
  const json report = report_of(make_long_analysis(100'000, 2048));
  const json& map = report["timeline"]["layer_map"];
  EXPECT_EQ(map["rows"], 2048);
  EXPECT_EQ(map["columns"], 511);
  EXPECT_EQ(map["headroom"].get<std::string>().size(), (2048u * 511u + 2) / 3 * 4);
}

TEST(JsonReporter, extrema_of_no_elements_are_null) {
  Analysis analysis = make_fault_analysis();
  TensorStats& stats = analysis.findings[0].output->stats;
  stats = {};
  stats.level = StatsLevel::kSums;
  stats.numel = stats.nan = 3;
  stats.any_nonfinite = true;
  stats.first_nonfinite = 0;

  const json report = report_of(analysis);
  const json& shown = report["findings"][0]["output"]["stats"];

  for (const char* name : {"amax", "amin_nonzero", "min", "max"}) EXPECT_TRUE(shown[name].is_null()) << name;
  EXPECT_EQ(shown["nan"], 3);
  EXPECT_EQ(shown["sum"], 0);
}

TEST(JsonReporter, zeros_alone_have_extrema_but_no_smallest_magnitude) {
  Analysis analysis = make_fault_analysis();
  TensorStats& stats = analysis.findings[0].output->stats;
  stats = {};
  stats.level = StatsLevel::kCounts;
  stats.numel = stats.zero = 3;

  const json report = report_of(analysis);
  const json& shown = report["findings"][0]["output"]["stats"];

  EXPECT_EQ(shown["amax"], 0);
  EXPECT_EQ(shown["min"], 0);
  EXPECT_TRUE(shown["amin_nonzero"].is_null());
  EXPECT_TRUE(shown["sum"].is_null());  // not at this level
}

TEST(JsonReporter, contents_that_were_not_read_have_no_statistics) {
  EXPECT_TRUE(report_of(make_fault_analysis())["findings"][0]["inputs"][2]["stats"].is_null());
}

TEST(JsonReporter, only_ascii_is_written_so_nothing_can_steer_a_terminal) {
  for (const char c : render_json(make_hostile_analysis())) {
    const auto byte = static_cast<unsigned char>(c);
    ASSERT_TRUE((byte >= 0x20 && byte < 0x7f) || c == '\n') << static_cast<int>(byte);
  }
}

TEST(JsonReporter, hostile_names_read_back_as_they_were_but_for_bytes_that_are_no_text) {
  const json report = report_of(make_hostile_analysis());
  const json name =
      "</script></style><img src=x onerror=alert(1)>\"'><!--{{body}}{{style}}\x1b[31m\r\n\t\x7f\u202e\u2066\ufffd"
      "\ufffd\u009b]]>&amp;javascript:";
  EXPECT_EQ(report["verdict"]["headline"], name);
  EXPECT_EQ(report["run"]["ranks"][0]["options"][1]["value"], name);
  EXPECT_EQ(report["findings"][0]["module"], name);
  EXPECT_EQ(report["findings"][0]["frames"][0]["code"][0], name);
}

TEST(JsonReporter, edges_outside_the_chain_are_left_out) {
  const json report = report_of(make_hostile_analysis());
  const json& chain = report["findings"][0]["chain"];
  for (const json& edge : chain["edges"]) {
    EXPECT_LT(edge["from"].get<std::size_t>(), chain["nodes"].size());
    EXPECT_LT(edge["to"].get<std::size_t>(), chain["nodes"].size());
  }
  EXPECT_EQ(chain["edges"].size(), 6u);
}

TEST(JsonReporter, ranks_and_the_ways_between_them_are_written) {
  Analysis analysis = make_fault_analysis();
  Finding& f = analysis.findings[0];
  EXPECT_EQ(report_of(analysis)["findings"][0]["ranks"], json({0}));
  f.ranks = {2, 5};
  f.rank_propagation = {{{0, 1}, "recv", "", 12}};
  f.chain.nodes[0].rank = 2;
  const json finding = report_of(analysis)["findings"][0];
  EXPECT_EQ(finding["ranks"], json({2, 5}));
  EXPECT_EQ(finding["rank_propagation"], json::parse(R"([{"ranks": [0, 1], "through": "recv", "group": null, "step": 12}])"));
  EXPECT_EQ(finding["chain"]["nodes"][0]["rank"], 2);
  EXPECT_TRUE(finding["chain"]["nodes"][1]["rank"].is_null());
}

TEST(JsonReporter, what_varies_between_equal_runs_stands_under_volatile_alone) {
  Analysis other = make_fault_analysis();
  other.ranks[0].info.started = "2031-01-01T00:00:00Z";
  other.ranks[0].info.host = "elsewhere";
  other.ranks[0].info.pid = 1;
  json a = report_of(make_fault_analysis()), b = report_of(other);
  EXPECT_NE(a, b);
  for (json* report : {&a, &b}) (*report)["run"]["ranks"][0].erase("volatile");
  EXPECT_EQ(a, b);
}

TEST(JsonReporter, findings_are_bounded_and_the_rest_is_counted) {
  Analysis analysis = make_fault_analysis();
  Finding small;
  small.id = "F";
  analysis.findings.resize(100'000, small);
  analysis.verdict.origin = "F1";
  std::swap(analysis.findings.front(), analysis.findings.back());

  const json report = report_of(analysis);

  EXPECT_EQ(report["findings"].size() + report["findings_omitted"].get<std::size_t>(), 100'000u);
  EXPECT_LE(report["findings"].size(), 256u);
  // The finding that the verdict names is there, wherever it stood.
  EXPECT_EQ(report["findings"][0]["id"], "F1");
}

TEST(JsonReporter, advice_says_what_came_of_it_when_it_was_tried) {
  const json report = report_of(make_fault_analysis());
  const json& advice = report["findings"][0]["advice"];
  EXPECT_EQ(advice[0]["id"], "fp32-masters");
  EXPECT_EQ(advice[0]["verified"], true);
  EXPECT_TRUE(advice[1]["verified"].is_null());
  EXPECT_EQ(advice[2]["verified"], false);
}

TEST(JsonReporter, the_other_lines_at_which_the_same_arose_are_listed) {
  Analysis analysis = make_fault_analysis();
  EXPECT_EQ(report_of(analysis)["findings"][0]["also_at"], json::array());
  analysis.findings[0].also_at = {"adam.py:91", "adam.py:95"};
  EXPECT_EQ(report_of(analysis)["findings"][0]["also_at"], json::array({"adam.py:91", "adam.py:95"}));
}

TEST(JsonText, long_text_is_cut_at_a_character) {
  const json cut = reports::json_text("aé", 2);
  EXPECT_EQ(cut, "a…");
  EXPECT_EQ(reports::json_text("aé", 3), "aé");
}

}  // namespace
}  // namespace nanhunt
