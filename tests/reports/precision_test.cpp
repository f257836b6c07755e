// SPDX-License-Identifier: Apache-2.0
// fp32 against mixed precision as JSON, text and page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/json/json_precision.h"
#include "reports/page/html_precision.h"
#include "reports/text/precision_text.h"
#include "reports/views/precision_view.h"
#include "tests/reports/golden.h"
#include "tests/reports/html_scan.h"
#include "tests/reports/sample_precision.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using namespace testing_reports;

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(PrecisionReports, are_the_golden_ones) {
  expect_golden("precision.txt", render_precision_text(make_precision_comparison()));
  expect_golden("precision-good.txt", render_precision_text(make_good_comparison()));
}

TEST(PrecisionView, says_which_layer_to_keep_only_where_a_training_has_shown_it) {
  PrecisionComparison c = make_precision_comparison();
  EXPECT_THAT(view_precision(c).headline, HasSubstr("In torch-amp-fp16 keep ffn.wo in fp32."));
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("Trained so, it ends at 0.1704"));
  // given trials of which none but all layers together helped
  c.runs[1].keep.clear();
  c.runs[1].trials[1].restored = false;
  EXPECT_THAT(view_precision(c).headline, Not(HasSubstr("keep")));
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("with the worst few alone it does not get there"));
  // and where not even that did
  c.runs[1].trials.resize(1);
  c.runs[1].trials[0].restored = false;
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("look at the loss, the loss scale and the optimizer"));
}

KeptTrial trial_of(std::vector<std::string> layers, bool other_seed, bool restored) {
  KeptTrial trial;
  trial.layers = std::move(layers);
  trial.other_seed = other_seed;
  trial.restored = restored;
  return trial;
}

TEST(PrecisionView, advises_nothing_from_chance) {
  // Given a recipe that is as good as fp32 from another seed,
  PrecisionComparison c = make_precision_comparison();
  PrecisionRun& run = c.runs[1];
  run.keep.clear();
  run.trials.resize(1);
  run.trials[0] = trial_of({}, /*other_seed=*/true, /*restored=*/true);
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("From another seed it is as good as fp32"));
  EXPECT_THAT(view_precision(c).headline, Not(HasSubstr("keep")));
  EXPECT_EQ(view_precision(c).trials.rows[0].cells[0], "nothing, from another seed");
  // and one that a layer has helped from this seed alone
  run.trials = {trial_of({}, true, false), trial_of({}, false, true), trial_of({"ffn.wo"}, false, true),
                trial_of({"ffn.wo"}, true, false)};
  run.trials[1].all_layers = true;
  EXPECT_THAT(view_precision(c).headline, Not(HasSubstr("keep")));
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("from this seed do not from another"));
}

TEST(PrecisionView, says_that_masters_helped_where_they_did) {
  PrecisionComparison c = make_precision_comparison();
  c.runs[1].keep_masters = c.runs[1].trials[1].masters = true;
  EXPECT_THAT(view_precision(c).headline, HasSubstr("keep ffn.wo in fp32 and use fp32 master weights"));
  EXPECT_EQ(view_precision(c).trials.rows[1].cells[0], "ffn.wo, fp32 masters");
  c.runs[1].keep.clear();
  c.runs[1].trials[1].layers.clear();
  EXPECT_THAT(view_precision(c).answers[0].sentence,
              HasSubstr("What helps: use fp32 master weights and optimizer state. Trained so"));
  EXPECT_EQ(view_precision(c).trials.rows[1].cells[0], "fp32 masters");
}

TEST(PrecisionView, says_that_the_scale_was_all_that_was_wrong) {
  PrecisionComparison c = make_precision_comparison();
  PrecisionRun& run = c.runs[1];
  run.keep.clear();
  run.trials[1].layers.clear();
  run.start_scale = run.trials[1].start_scale = 64;
  EXPECT_THAT(view_precision(c).answers[0].sentence, HasSubstr("What helps: use a loss scale of 64 from the start."));
  EXPECT_EQ(view_precision(c).trials.rows[1].cells[0], "a loss scale of 64 from the start");
}

TEST(PrecisionView, names_all_recipes_that_one_change_helps_and_those_that_do_not_take_the_training) {
  PrecisionComparison c = make_precision_comparison();
  c.runs.push_back(c.runs[1]);
  c.runs.back().recipe = "apex-o1";
  EXPECT_THAT(view_precision(c).headline, HasSubstr("In torch-amp-fp16, apex-o1 keep ffn.wo in fp32."));
  EXPECT_THAT(view_precision(c).headline, HasSubstr("apex-o2 does not take this training."));
}

TEST(PrecisionView, of_a_good_comparison_asks_for_nothing) {
  const PrecisionView view = view_precision(make_good_comparison());
  EXPECT_TRUE(view.good);
  EXPECT_THAT(view.headline, HasSubstr("torch-amp-bf16 ends as far as fp32, whose loss is 0.17 (up to "));
  EXPECT_THAT(view.headline, HasSubstr(" counts). No layer has to stay in fp32."));
  EXPECT_TRUE(view.trials.rows.empty());
}

TEST(PrecisionView, without_a_reference_sends_to_where_the_fault_is_found) {
  PrecisionComparison c = make_good_comparison();
  for (PrecisionRun& run : c.runs) run.outcome = PrecisionOutcome::kNoReference;
  // given an fp32 that learns nothing
  EXPECT_THAT(view_precision(c).headline, HasSubstr("fp32 has learnt next to nothing in "));
  EXPECT_THAT(view_precision(c).headline, HasSubstr("Train longer: --steps."));
  // and one that does not stay finite
  c.runs[0].final_loss = std::nan("");
  const PrecisionView view = view_precision(c);
  EXPECT_FALSE(view.good);
  EXPECT_EQ(view.headline, "fp32 itself does not stay finite: nanhunt train made-up finds out why.");
}

TEST(PrecisionView, is_bounded) {
  PrecisionComparison c = make_good_comparison();
  c.runs[1].layers.assign(5000, c.runs[1].layers.front());
  const PrecisionView view = view_precision(c);
  EXPECT_EQ(view.layers.rows.size(), kPrecisionLayers);
  EXPECT_EQ(view.layers.omitted, 5000 - kPrecisionLayers);
}

TEST(PrecisionView, says_what_its_times_are_worth) {
  EXPECT_THAT(view_precision(make_good_comparison()).time_note, HasSubstr("nothing of a GPU"));
  EXPECT_THAT(render_precision_text(make_good_comparison()), HasSubstr("nothing of a"));
}

TEST(PrecisionPage, draws_a_curve_for_each_recipe_beside_that_of_fp32) {
  const std::string html = render_precision_html(make_precision_comparison());
  EXPECT_EQ(count_of(html, "<svg class=\"chart\""), 2U) << "apex-o2 made no step";
  EXPECT_EQ(count_of(html, "<polyline class=\"loss reference\""), 2U);
  EXPECT_THAT(html, HasSubstr("Loss by step in torch-amp-fp16 and in fp32"));
  EXPECT_EQ(count_of(html, "<path class=\"mark bad\""), 10U) << "NaN";
  EXPECT_EQ(count_of(html, "<path class=\"mark bad fill\""), 10U) << "+Inf";
  for (const char* no_number : {"=\"nan", "=\"inf", ",nan", ",inf"}) EXPECT_THAT(html, Not(HasSubstr(no_number)));
  EXPECT_EQ(html, render_precision_html(make_precision_comparison()));
}

TEST(PrecisionPage, is_inert_whatever_things_are_called) {
  const HtmlScan plain = scan_html(render_precision_html(make_precision_comparison()));
  const HtmlScan hostile = scan_html(render_precision_html(make_hostile_comparison()));
  EXPECT_EQ(hostile.error, "");
  EXPECT_EQ(unbalanced(hostile), "");
  EXPECT_EQ(hostile.scripts, plain.scripts);
  ASSERT_EQ(hostile.tags.size(), plain.tags.size());
  for (std::size_t i = 0; i < plain.tags.size(); ++i) EXPECT_EQ(hostile.tags[i].name, plain.tags[i].name);
  EXPECT_THAT(render_precision_text(make_hostile_comparison()), Not(HasSubstr("\x1b")));
}

TEST(PrecisionJson, has_every_field_of_a_comparison_and_of_its_runs_and_batch_sizes) {
  PrecisionComparison c = make_precision_comparison();
  c.allowed_validation_loss = 0.4;
  c.runs[1].layers_unmeasured = 2;
  c.runs[1].keep_masters = true;
  c.runs[1].start_scale = 64;
  KeptTrial& trial = c.runs[1].trials[1];
  trial.start_scale = 128;
  trial.validation_loss = 0.2;
  trial.refused = "no";
  json report = json::parse(render_precision_json(c));
  json run = report["runs"][1], other = report["runs"][2], refused = report["runs"][3], sizes = report["batch_sizes"];
  report.erase("runs");
  report.erase("batch_sizes");
  EXPECT_EQ(report, json::parse(R"({"schema": "nanhunt.precision", "schema_version": 1, "workload": "made-up",
    "summary": "a training that never was", "seed": 7, "steps": 40, "batch_size": 32, "tolerance": 0.05,
    "allowed_loss": 0.27, "other_seed_loss": 0.11, "allowed_validation_loss": 0.4})"));

  const json head = json::parse(R"({"recipe": "torch-amp-fp16", "summary": "made up: torch-amp-fp16", "dtype": "fp16",
    "outcome": "nonfinite", "why": null, "final_loss": "NaN", "accuracy": 0.96875, "nonfinite_steps": 20,
    "skipped_steps": 20, "validation": {"accuracy": 0.1, "loss": "Infinity"},
    "validation_in_fp32": {"accuracy": 0.9475, "loss": 0.2005}, "probed_steps": [13, 20, 26, 39],
    "layers_unmeasured": 2, "keep": ["ffn.wo"], "keep_masters": true, "start_scale": 64.0,
    "volatile": {"step_time": {"high": 0.0019, "low": 0.0012, "median": 0.00125, "steps": 36}}})");
  const json memory = json::parse(R"({"peak": 139392, "scratch": 65536,
    "at_peak": {"parameters": 16384, "buffers": 128, "masters": 0, "optimizer_state": 32768, "gradients": 16384,
                "weight_casts": 0, "batch": 8192, "activations": 65536, "temporaries": 0},
    "largest": {"parameters": 16384, "buffers": 128, "masters": 0, "optimizer_state": 32768, "gradients": 16384,
                "weight_casts": 0, "batch": 8192, "activations": 65536, "temporaries": 4096}})");
  EXPECT_EQ(run["memory"], memory);
  EXPECT_EQ(run["steps"].size(), 40U);
  EXPECT_EQ(run["steps"][20], json::parse(R"({"loss": "NaN", "scale": 1024.0, "skipped": true, "step": 20})"));
  EXPECT_EQ(run["layers"].size(), 3U);
  EXPECT_EQ(run["layers"][0], json::parse(R"({"layer": "ffn.wo", "output_error": "Infinity",
    "gradient_error": "Infinity", "elements": 40960, "overflowed": 12, "flushed": 0, "first_overflow": 20,
    "alone_error": "Infinity", "kept_error": 0.002})"));
  EXPECT_EQ(run["layers"][2]["flushed"], 3);
  EXPECT_EQ(run["layers"][2]["first_overflow"], nullptr);
  EXPECT_EQ(other["layers"][1]["gradient_error"], nullptr);
  EXPECT_EQ(run["trials"][0]["all_layers"], true);
  EXPECT_EQ(run["trials"][1], json::parse(R"({"layers": ["ffn.wo"], "all_layers": false, "masters": false,
    "other_seed": false, "start_scale": 128.0, "final_loss": 0.1704, "validation_loss": 0.2, "nonfinite_steps": 0, "skipped_steps": 2,
    "restored": true, "refused": "no"})"));
  for (const char* list : {"memory", "steps", "layers", "trials"}) run.erase(list);
  EXPECT_EQ(run, head);

  EXPECT_EQ(refused["outcome"], "refused");
  EXPECT_EQ(refused["why"], "[addmm] expected fp16, got fp32");
  for (const char* none : {"final_loss", "accuracy", "validation", "validation_in_fp32", "memory", "start_scale"}) {
    EXPECT_TRUE(refused[none].is_null()) << none;
  }
  EXPECT_EQ(sizes.size(), 4U);
  EXPECT_EQ(sizes[0]["memory"]["peak"], 90240);
  sizes[0].erase("memory");
  EXPECT_EQ(sizes[0], json::parse(R"({"batch_size": 8, "recipe": "fp32", "why": null,
    "volatile": {"step_time": {"high": 0.0016, "low": 0.00072, "median": 0.0008, "steps": 10}}})"));
  EXPECT_EQ(sizes[1], json::parse(R"({"batch_size": 8, "recipe": "apex-o2", "memory": null,
    "why": "[addmm] expected fp16, got fp32",
    "volatile": {"step_time": {"high": null, "low": null, "median": null, "steps": 0}}})"));
}

TEST(PrecisionJson, differs_in_what_a_clock_measured_alone) {
  PrecisionComparison slow = make_precision_comparison();
  for (PrecisionRun& run : slow.runs) run.time.median *= 2;
  for (BatchSizeRow& row : slow.sweep) row.time.high *= 3;
  json a = json::parse(render_precision_json(make_precision_comparison())),
       b = json::parse(render_precision_json(slow));
  EXPECT_NE(a, b);
  for (json* one : {&a, &b}) {
    for (const char* list : {"runs", "batch_sizes"}) {
      for (json& entry : (*one)[list]) entry.erase("volatile");
    }
  }
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace nanhunt::reports
