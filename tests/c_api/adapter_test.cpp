// SPDX-License-Identifier: Apache-2.0
// The interface for adapters as a careless caller uses it.
#include "tests/c_api/adapter_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

// Where there is a GPU the device with this number is still missing.
TEST_F(CAdapter, where_no_device_can_be_read_the_reason_is_said_in_one_line) {
  EXPECT_EQ(nanhunt_device_stream(recorder_, 1 << 20, 0), -1);
  EXPECT_STRNE(nanhunt_last_error(), "");
  EXPECT_THAT(nanhunt_last_error(), Not(HasSubstr("\n")));
  nanhunt_device_counts counts{};
  counts.struct_size = sizeof counts;
  EXPECT_EQ(nanhunt_device_counters(recorder_, &counts), NANHUNT_OK);
  EXPECT_EQ(counts.streams, 0u);
}

TEST_F(CAdapter, what_is_said_of_steps_reaches_the_trace) {
  nanhunt_health health{};
  health.struct_size = sizeof health;
  health.step = 3;
  health.bad = 1u << NANHUNT_BOUNDARY_GRADIENT;
  health.bad_tensors = 2;
  health.first_bad = "fc1.weight";
  health.gradient_norm = INFINITY;
  ASSERT_EQ(nanhunt_record_health(recorder_, &health), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(nanhunt_record_norm(recorder_, 3, NANHUNT_BOUNDARY_GRADIENT, "fc1.weight", NAN, 2.5), NANHUNT_OK);
  ASSERT_EQ(record(log_row(x_.data(), y_.data(), 1)), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_not_heard(recorder_, 3, "the budget had no room"), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_changed(recorder_, 3, value(x_.data(), 1).data(), 0, 2, 1), NANHUNT_OK);
  nanhunt_probe probe{};
  probe.struct_size = sizeof probe;
  probe.mode = 2;
  probe.dtype = NANHUNT_F64;
  probe.ops = 1;
  probe.ran = 1;
  probe.number = 7;
  ASSERT_EQ(nanhunt_record_probe(recorder_, &probe), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_capture(recorder_, 0, 3, "op-0.safetensors", 128), NANHUNT_OK);

  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.health, SizeIs(1));
  EXPECT_EQ(all.health[0].bad, 1u << 1);
  ASSERT_THAT(all.norms, SizeIs(1));
  EXPECT_TRUE(std::isnan(all.norms[0].norm));
  ASSERT_THAT(all.unheard, SizeIs(1));
  EXPECT_EQ(all.unheard[0].step, 3u);
  ASSERT_THAT(all.changed, SizeIs(1));
  EXPECT_TRUE(all.changed[0].opaque);
  EXPECT_NE(all.changed[0].before, 0u);
  ASSERT_THAT(all.probes, SizeIs(1));
  EXPECT_EQ(all.probes[0].mode, nanhunt::ProbeMode::kWider);
  ASSERT_THAT(all.captures, SizeIs(1));
  EXPECT_EQ(all.captures[0].bytes, 128u);
}

TEST_F(CAdapter, the_last_count_of_a_note_is_in_the_report) {
  ASSERT_EQ(record(log_row(x_.data(), y_.data(), 1)), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_note(recorder_, 0, "sparse tensors", 3), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_note(recorder_, 0, "quantized tensors", 1), NANHUNT_OK);
  ASSERT_EQ(nanhunt_record_note(recorder_, 4, "sparse tensors", 12), NANHUNT_OK);
  EXPECT_EQ(nanhunt_record_note(recorder_, 4, "", 12), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_note(recorder_, 4, nullptr, 12), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_note(nullptr, 4, "x", 12), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_judge_at_signals(recorder_, nullptr, 0), NANHUNT_USAGE);
  EXPECT_THAT(close_and_read().notes, SizeIs(3));
  char* text = nullptr;
  ASSERT_EQ(nanhunt_report(folder_.c_str(), NANHUNT_JSON, &text, nullptr), NANHUNT_OK);
  EXPECT_THAT(text, HasSubstr("\"sparse tensors (12)\""));
  EXPECT_THAT(text, HasSubstr("\"quantized tensors (1)\""));
  EXPECT_THAT(text, Not(HasSubstr("sparse tensors (3)")));
  nanhunt_free(text);
}

TEST_F(CAdapter, the_code_above_a_site_and_how_a_program_is_set_up_are_kept_as_given) {
  nanhunt_frame frame{};
  frame.struct_size = sizeof frame;
  frame.site = "train.py:12";
  frame.file = "/data/me/train.py";
  frame.function = "step";
  frame.code = "a\nb";
  frame.line = 12;
  frame.first_line = 11;
  ASSERT_EQ(nanhunt_record_frame(recorder_, &frame), NANHUNT_OK);
  frame.depth = 1;
  frame.file = frame.function = frame.code = nullptr;
  ASSERT_EQ(nanhunt_record_frame(recorder_, &frame), NANHUNT_OK);
  frame.site = nullptr;
  EXPECT_EQ(nanhunt_record_frame(recorder_, &frame), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_frame(recorder_, nullptr), NANHUNT_USAGE);
  nanhunt_setup setup{};
  setup.struct_size = sizeof setup;
  setup.fact = NANHUNT_SETUP_AUTOCAST;
  setup.dtype = NANHUNT_F16;
  ASSERT_EQ(nanhunt_record_setup(recorder_, &setup), NANHUNT_OK);
  setup.fact = NANHUNT_SETUP_REPLICAS + 1;
  EXPECT_EQ(nanhunt_record_setup(recorder_, &setup), NANHUNT_USAGE);
  const auto all = close_and_read();
  ASSERT_THAT(all.frames, SizeIs(2));
  EXPECT_EQ(all.frames[0].line, 12u);
  EXPECT_NE(all.frames[0].code, 0u);
  EXPECT_EQ(all.frames[1].depth, 1u);
  ASSERT_THAT(all.setup, SizeIs(1));
  EXPECT_EQ(all.setup[0].fact, nanhunt::SetupFact::kAutocast);
  EXPECT_EQ(all.setup[0].dtype, nanhunt::DType::kF16);
}

TEST_F(CAdapter, what_a_rank_gives_to_others_is_read_before_the_call_writes_over_it) {
  // given a share that is not finite
  x_[1] = INFINITY;
  const std::array<std::uint32_t, 2> ranks = {0, 3};
  const Words share = value(x_.data(), 1);
  nanhunt_collective collective{};
  collective.struct_size = sizeof collective;
  collective.step = 3;
  collective.seq = nanhunt_recorder_next_seq(recorder_);
  collective.group = "dp";
  collective.call = 7;
  collective.kind = NANHUNT_REDUCE;
  collective.reduction = NANHUNT_SUM;
  collective.peer = 3;
  collective.ranks = ranks.data();
  collective.rank_count = ranks.size();
  collective.shares = share.data();
  collective.share_count = 1;
  // when
  ASSERT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_OK) << nanhunt_last_error();
  // then
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.collectives, SizeIs(1));
  const nanhunt::CollectiveRecord& row = all.collectives[0];
  EXPECT_EQ(row.seq, 0u);
  EXPECT_EQ(row.call, 7u);
  EXPECT_EQ(row.kind, nanhunt::CollectiveKind::kReduce);
  EXPECT_EQ(row.reduction, nanhunt::Reduction::kSum);
  EXPECT_EQ(row.peer, 3);
  EXPECT_EQ(row.ranks, (std::vector<std::uint32_t>{0, 3}));
  ASSERT_THAT(all.values, SizeIs(1));
  EXPECT_EQ(all.values[0].stats.pos_inf, 1);
}

TEST_F(CAdapter, wrong_calls_between_ranks_are_refused) {
  nanhunt_collective collective{};
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_collective(recorder_, nullptr), NANHUNT_USAGE);
  collective.struct_size = sizeof collective;
  collective.kind = 11;
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE);
  collective.kind = 0;
  collective.reduction = 6;
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE);
  collective.reduction = 0;
  collective.peer = -2;
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE);
  collective.peer = -1;
  collective.rank_count = 2;
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE) << "no ranks";
  collective.rank_count = 0;
  collective.share_count = 1;
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE) << "no shares";
  const Words no_layout = {0, 0, 0, 77};
  collective.shares = no_layout.data();
  EXPECT_EQ(nanhunt_record_collective(recorder_, &collective), NANHUNT_USAGE) << "no such layout";
  EXPECT_THAT(close_and_read().collectives, IsEmpty());
}

TEST_F(CAdapter, wrong_watching_is_refused) {
  nanhunt_health health{};
  EXPECT_EQ(nanhunt_record_health(recorder_, &health), NANHUNT_USAGE);
  health.struct_size = sizeof health;
  health.bad = 1u << 20;
  EXPECT_EQ(nanhunt_record_health(recorder_, &health), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_health(recorder_, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_norm(recorder_, 0, NANHUNT_LOSS, "x", 0, 0), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_changed(recorder_, 0, nullptr, 0, 0, 0), NANHUNT_USAGE);
  const Words no_layout = {0, 0, 0, 77};
  EXPECT_EQ(nanhunt_record_changed(recorder_, 0, no_layout.data(), 0, 0, 0), NANHUNT_USAGE);
  nanhunt_probe probe{};
  probe.struct_size = sizeof probe;
  EXPECT_EQ(nanhunt_record_probe(recorder_, &probe), NANHUNT_USAGE) << "no ops";
  probe.ops = 1;
  probe.mode = 4;
  EXPECT_EQ(nanhunt_record_probe(recorder_, &probe), NANHUNT_USAGE);
  for (const char* file : {"", "..", "../x", "/etc/passwd", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(nanhunt_record_capture(recorder_, 0, 0, file, 1), NANHUNT_USAGE);
  }
  EXPECT_EQ(nanhunt_record_norm(nullptr, 0, NANHUNT_PARAMETER, "x", 0, 0), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_anomalies(nullptr), 0u);
  EXPECT_STREQ(nanhunt_recorder_folder(nullptr), "");
  EXPECT_EQ(nanhunt_recorder_next_seq(nullptr), 0u);
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.health, IsEmpty());
  EXPECT_THAT(all.captures, IsEmpty());
}

TEST_F(CAdapter, tensors_are_read_for_norm_badness_and_checksum) {
  const std::array<float, 2> good = {3, -4}, bad = {NAN, INFINITY}, down = {1, -INFINITY};
  const std::array<std::int64_t, 2> whole = {1, 2};
  const std::int64_t integers = nanhunt_intern_layout(recorder_, NANHUNT_I64, 1, sizes_.data(), nullptr);
  const Words values = {address(good.data()), layout_, address(bad.data()),   layout_,
                        address(down.data()), layout_, address(whole.data()), integers};
  std::array<nanhunt_reading, 4> readings{};
  std::size_t count = 9;
  ASSERT_EQ(
      nanhunt_read(recorder_, values.data(), 4, NANHUNT_READ_NORM | NANHUNT_READ_CHECKSUM, readings.data(), &count),
      NANHUNT_OK)
      << nanhunt_last_error();
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(readings[0].norm, 5);
  EXPECT_EQ(readings[0].amax, 4);
  EXPECT_EQ(readings[0].bad, 0u);
  EXPECT_TRUE(std::isnan(readings[1].norm));
  EXPECT_EQ(readings[1].bad, static_cast<std::uint32_t>(NANHUNT_HAS_NAN | NANHUNT_HAS_POS_INF));
  EXPECT_TRUE(std::isinf(readings[2].norm));
  EXPECT_EQ(readings[2].amax, 1);
  EXPECT_EQ(readings[2].bad, static_cast<std::uint32_t>(NANHUNT_HAS_NEG_INF));
  EXPECT_EQ(readings[3].bad, 0u);
  EXPECT_NE(readings[0].checksum, readings[2].checksum);

  ASSERT_EQ(nanhunt_read(recorder_, values.data(), 4, 0, readings.data(), &count), NANHUNT_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(readings[0].checksum, 0u);
  EXPECT_EQ(readings[1].bad, static_cast<std::uint32_t>(NANHUNT_HAS_NAN | NANHUNT_HAS_POS_INF));
  EXPECT_EQ(nanhunt_read(recorder_, nullptr, 0, 0, nullptr, nullptr), NANHUNT_OK);
}

TEST_F(CAdapter, wrong_readings_are_refused) {
  nanhunt_reading reading{};
  std::size_t bad = 7;
  const Words no_data = {0, layout_}, no_layout = {address(x_.data()), 9};
  EXPECT_EQ(nanhunt_read(recorder_, nullptr, 1, 0, &reading, &bad), NANHUNT_USAGE);
  EXPECT_EQ(bad, 0u);
  EXPECT_EQ(nanhunt_read(recorder_, no_data.data(), 1, 0, nullptr, &bad), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_read(recorder_, no_data.data(), 1, 0, &reading, &bad), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_read(recorder_, no_layout.data(), 1, 0, &reading, &bad), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_read(recorder_, no_layout.data(), 1, 4, &reading, &bad), NANHUNT_USAGE);
}

TEST_F(CAdapter, statistics_of_a_tensor_say_where_there_are_none) {
  const std::array<float, 2> numbers = {-2, NAN};
  nanhunt_value given{numbers.data(), NANHUNT_F32, 1, sizes_.data(), nullptr, 0, 0, 0};
  nanhunt_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(nanhunt_tensor_stats(&given, &stats), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(stats.numel, 2);
  EXPECT_EQ(stats.nan, 1);
  EXPECT_EQ(stats.first_bad, 1);
  EXPECT_EQ(stats.min, -2);
  EXPECT_EQ(stats.amax, 2);
  EXPECT_EQ(stats.sum_sq, 4);
  const std::array<float, 2> nothing = {NAN, INFINITY};
  given.data = nothing.data();
  stats.sum_sq = 1;
  stats.struct_size = offsetof(nanhunt_stats, sum_sq);
  ASSERT_EQ(nanhunt_tensor_stats(&given, &stats), NANHUNT_OK);
  EXPECT_TRUE(std::isnan(stats.max));
  EXPECT_EQ(stats.sum_sq, 1) << "beyond what the caller has";
  given.data = nullptr;
  EXPECT_EQ(nanhunt_tensor_stats(&given, &stats), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_tensor_stats(nullptr, &stats), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_tensor_stats(&given, nullptr), NANHUNT_USAGE);
}

TEST(CStepJudge, takes_the_first_of_a_streak_and_refuses_what_means_nothing) {
  nanhunt_step_judge* judge = nanhunt_step_judge_new(1, 0);
  ASSERT_NE(judge, nullptr);
  EXPECT_EQ(nanhunt_step_judge_bad(judge, 0, 0), 0);
  EXPECT_EQ(nanhunt_step_note(judge, 1, NANHUNT_LOSS, 0, "loss"), 1 << NANHUNT_LOSS);
  EXPECT_EQ(nanhunt_step_judge_bad(judge, 1, 0), NANHUNT_STEP_TAKEN);
  EXPECT_EQ(nanhunt_step_judge_harm(judge, 2), 0);
  EXPECT_EQ(nanhunt_step_judge_harm(judge, 500), 1);
  EXPECT_EQ(nanhunt_step_pass(judge, NANHUNT_STEP_FORWARD), NANHUNT_STEP_FORWARD);
  EXPECT_EQ(nanhunt_step_pass(judge, NANHUNT_STEP_EXITED + 1), -1);
  EXPECT_EQ(nanhunt_step_note(judge, 1, 99, 0, "loss"), -1);
  EXPECT_EQ(nanhunt_step_end(judge, -1, 0), -1);
  EXPECT_EQ(nanhunt_step_record(judge, nullptr, 1, 1, 1, 0, 0), -1);
  EXPECT_EQ(nanhunt_step_judge_bad(nullptr, 0, 0), -1);
  EXPECT_EQ(nanhunt_recorder_judge_at_signals(nullptr, judge, 0), NANHUNT_USAGE);
  nanhunt_step_judge_free(judge);
  nanhunt_step_judge_free(nullptr);
}

TEST_F(CAdapter, a_judged_step_has_a_row_where_something_is_bad_or_all_was_read) {
  open();
  nanhunt_step_judge* judge = nanhunt_step_judge_new(0, 0);
  ASSERT_NE(judge, nullptr);
  EXPECT_EQ(nanhunt_step_record(judge, recorder_, 0, 1, /*read=*/0, 1.0, 0), 0);
  EXPECT_EQ(nanhunt_step_record(judge, recorder_, 1, 1, /*read=*/1, 1.0, 0x8000000000000001u), 0);
  nanhunt_step_note(judge, 2, NANHUNT_STATE, 0, "exp_avg");
  nanhunt_step_note(judge, 2, NANHUNT_BATCH, 1, "images");
  EXPECT_EQ(nanhunt_step_record(judge, recorder_, 2, 1, 0, 2.0, 0), (1 << NANHUNT_STATE) | (1 << NANHUNT_BATCH));
  EXPECT_EQ(nanhunt_step_bad(judge, 2), 0) << "its row was taken";
  nanhunt_step_judge_free(judge);
  const auto trace = close_and_read();
  ASSERT_THAT(trace.health, SizeIs(2));
  EXPECT_EQ(trace.health[0].step, 1u);
  EXPECT_EQ(trace.health[0].weight_checksum, 0x8000000000000001u);
  EXPECT_EQ(trace.health[1].step, 2u);
}

TEST_F(CAdapter, run_json_says_what_ran_and_no_secrets) {
  nanhunt_recorder_options how = options();
  how.level = "live";
  how.max_trace_bytes = 4u << 20;
  how.details =
      R"({"command": ["python", "train.py", "--token", "abcdef", "x=\"y\""], "dtypes": ["fp16"],)"
      R"( "options": {"lr": "0.1", "api_key": "abcdef", "a": "https://me:abcdef@host/"}, "newer": [1, {}]})";
  open(how);
  ASSERT_EQ(record(log_row(x_.data(), y_.data(), 1)), NANHUNT_OK);
  close_and_read();
  const nanhunt::RunInfo info = info_of(folder_);
  EXPECT_EQ(info.level, "live");
  EXPECT_THAT(info.command, testing::ElementsAre("python", "train.py", "--token", "<redacted>", "x=\"y\""));
  EXPECT_THAT(info.dtypes, testing::ElementsAre("fp16"));
  ASSERT_THAT(info.options, SizeIs(3));
  EXPECT_EQ(info.options[0].first, "lr");
  EXPECT_EQ(info.options[1].second, "<redacted>");
  EXPECT_THAT(info.options[2].second, Not(HasSubstr("abcdef")));
  EXPECT_NE(info.pid, 0);
  EXPECT_FALSE(info.started.empty());
}

TEST_F(CAdapter, hostile_options_are_refused_whole) {
  const auto refused = [&](const std::string& details) {
    nanhunt_recorder_options how = options();
    how.details = details.c_str();
    nanhunt_recorder* none = nullptr;
    EXPECT_EQ(nanhunt_recorder_open(&how, &none), NANHUNT_USAGE) << details.substr(0, 60);
    EXPECT_EQ(none, nullptr);
  };
  refused("");
  refused("[]");
  refused("{");
  refused("{\"command\": \"python\"}");
  refused("{\"command\": [1]}");
  refused("{\"command\": [[\"x\"]]}");
  refused("{\"dtypes\": {\"a\": \"b\"}}");
  refused("{\"options\": [\"a\"]}");
  refused("{\"options\": {\"a\": 1}}");
  refused("{\"command\": [\"\xff\"]}");
  refused(std::string(100'000, '['));
  refused("{\"a\": " + std::string(50'000, '{') + "}");
  refused("{\"command\": [\"" + std::string(200'000, 'x') + "\"]}");

  const auto status_of = [&](const nanhunt_recorder_options& how) {
    nanhunt_recorder* none = nullptr;
    const nanhunt_status status = nanhunt_recorder_open(&how, &none);
    EXPECT_EQ(none, nullptr);
    return status;
  };
  nanhunt_recorder_options how = options();
  how.level = "everything";
  EXPECT_EQ(status_of(how), NANHUNT_USAGE);
  how = options();
  how.max_trace_bytes = 1000;
  EXPECT_EQ(status_of(how), NANHUNT_USAGE);
  how = options();
  how.flush_ms = -1;
  EXPECT_EQ(status_of(how), NANHUNT_USAGE);
  how = options();
  how.run_dir = nullptr;
  EXPECT_EQ(status_of(how), NANHUNT_USAGE);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
