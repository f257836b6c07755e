// SPDX-License-Identifier: Apache-2.0
// The C interface as a careless caller uses it. A careful one is in consumer/.
#include "nanhunt/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory_resource>
#include <string>

#include "tests/support/temp_dir.h"

namespace {

using testing::HasSubstr;
using testing::Not;

class CApi : public testing::Test {
 protected:
  void TearDown() override { nanhunt_recorder_close(recorder_); }

  void open(std::uint32_t rank = 0, std::uint32_t world_size = 1) {
    nanhunt_recorder_options options{};
    options.struct_size = sizeof options;
    options.run_dir = run_.c_str();
    options.rank = rank;
    options.world_size = world_size;
    ASSERT_EQ(nanhunt_recorder_open(&options, &recorder_), NANHUNT_OK) << nanhunt_last_error();
  }
  nanhunt_status close() {
    const nanhunt_status status = nanhunt_recorder_close(recorder_);
    recorder_ = nullptr;
    return status;
  }

  nanhunt_value value(const float* data, std::uint64_t storage) const {
    return {data, NANHUNT_F32, 1, sizes_.data(), nullptr, storage, 0, 0};
  }
  // y = log(x), marked as the loss.
  void record_log(const std::array<float, 2>& x, const std::array<float, 2>& y) {
    const nanhunt_input in{"self", value(x.data(), nanhunt_new_storage()), NANHUNT_READ};
    const nanhunt_output out{"out", value(y.data(), nanhunt_new_storage())};
    nanhunt_op op = log_op();
    op.inputs = &in;
    op.input_count = 1;
    op.outputs = &out;
    op.output_count = 1;
    ASSERT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_OK) << nanhunt_last_error();
    nanhunt_mark mark{sizeof mark, 0, 0, NANHUNT_LOSS, "loss", out.value};
    ASSERT_EQ(nanhunt_record_mark(recorder_, &mark), NANHUNT_OK);
    nanhunt_step step{sizeof step, 0, 0, static_cast<double>(y[1]), 0.1, 1, NANHUNT_ENDED_BY_OPTIMIZER, nullptr, 0};
    ASSERT_EQ(nanhunt_record_step(recorder_, &step), NANHUNT_OK);
  }
  static nanhunt_op log_op() {
    nanhunt_op op{};
    op.struct_size = sizeof op;
    op.phase = NANHUNT_PHASE_LOSS;
    op.module = "<loss>";
    op.op = "log";
    op.compute_dtype = NANHUNT_F32;
    return op;
  }
  // In a process of its own.
  void record_and_be_killed(std::uint32_t rank = 0, std::uint32_t world_size = 1) {
    const pid_t child = fork();
    if (child == 0) {
      open(rank, world_size);
      record_log({1, 2}, {0, 0.6931472F});
      nanhunt_recorder_flush(recorder_);
      _exit(0);
    }
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
  }
  std::string report(std::int32_t format) const {
    char* text = nullptr;
    EXPECT_EQ(nanhunt_report((run_ + "/").c_str(), format, &text, nullptr), NANHUNT_OK) << nanhunt_last_error();
    const std::string all = text == nullptr ? "" : text;
    nanhunt_free(text);
    return all;
  }
  std::int32_t verdict() const {
    std::int32_t out = -1;
    EXPECT_EQ(nanhunt_check(run_.c_str(), &out), NANHUNT_OK) << nanhunt_last_error();
    return out;
  }

  nanhunt::testing_support::TempDir dir_;
  const std::string run_ = dir_.path("run");
  std::array<std::int64_t, 1> sizes_ = {2};
  nanhunt_recorder* recorder_ = nullptr;
};

TEST_F(CApi, a_log_of_zero_is_found_and_its_twin_is_clean) {
  open();
  record_log({1, 0}, {0, -INFINITY});
  ASSERT_EQ(close(), NANHUNT_OK);
  EXPECT_EQ(verdict(), NANHUNT_FAULT);
  char* text = nullptr;
  std::size_t size = 0;
  ASSERT_EQ(nanhunt_report(run_.c_str(), NANHUNT_JSON, &text, &size), NANHUNT_OK);
  EXPECT_EQ(std::string(text).size(), size);
  EXPECT_THAT(text, HasSubstr("\"divide_by_zero\""));
  nanhunt_free(text);

  std::filesystem::remove_all(run_);
  open();
  record_log({1, 2}, {0, 0.6931472F});
  ASSERT_EQ(close(), NANHUNT_OK);
  EXPECT_EQ(verdict(), NANHUNT_CLEAN);
}

TEST_F(CApi, the_memory_that_a_program_gives_its_own_containers_by_default_is_not_asked_for) {
  std::pmr::memory_resource* const before = std::pmr::set_default_resource(std::pmr::null_memory_resource());
  open();
  record_log({1, 0}, {0, -INFINITY});
  EXPECT_EQ(close(), NANHUNT_OK);
  EXPECT_EQ(verdict(), NANHUNT_FAULT);
  std::pmr::set_default_resource(before);
}

TEST_F(CApi, of_a_run_that_this_process_records_the_report_says_that_it_goes_on) {
  // given a run that was killed
  record_and_be_killed();
  EXPECT_THAT(report(NANHUNT_TEXT), HasSubstr("is still going, or it was killed"));
  // when it is begun again
  open();
  record_log({1, 2}, {0, 0.6931472F});
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  for (const std::int32_t format : {NANHUNT_TEXT, NANHUNT_HTML}) {
    EXPECT_THAT(report(format), HasSubstr("The run is still going"));
    EXPECT_THAT(report(format), Not(HasSubstr("killed")));
  }
  ASSERT_EQ(close(), NANHUNT_OK);
  EXPECT_THAT(report(NANHUNT_TEXT), Not(HasSubstr("still going")));
  // nor does it go on where its end is lost later
  const std::string segment = run_ + "/rank-00000/attempt-1/000000.nht";
  std::filesystem::resize_file(segment, std::filesystem::file_size(segment) - 1);
  EXPECT_THAT(report(NANHUNT_TEXT), HasSubstr("is still going, or it was killed"));
}

TEST_F(CApi, of_a_rank_whose_newest_attempt_is_another_process_s_it_is_not_said_for_certain) {
  // given an attempt that goes on here, and a newer one that was killed elsewhere
  open();
  record_log({1, 2}, {0, 0.6931472F});
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  record_and_be_killed();
  EXPECT_THAT(report(NANHUNT_TEXT), HasSubstr("is still going, or it was killed"));
  ASSERT_EQ(close(), NANHUNT_OK);
}

TEST_F(CApi, of_several_ranks_only_those_of_this_process_are_said_to_go_on_for_certain) {
  // given rank 1, which was killed, and rank 0, which goes on here
  record_and_be_killed(1, 2);
  open(0, 2);
  record_log({1, 2}, {0, 0.6931472F});
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  // then the page tells them apart
  const std::string page = report(NANHUNT_HTML);
  EXPECT_THAT(page, HasSubstr("The run is still going"));
  const std::size_t own = page.find("Rank 0, attempt 0"), other = page.find("Rank 1, attempt 0");
  ASSERT_LT(own, other);
  ASSERT_NE(other, std::string::npos);
  EXPECT_THAT(page.substr(own, other - own), HasSubstr("none: still going<"));
  EXPECT_THAT(page.substr(other), HasSubstr("none: still going, or killed<"));
}

TEST_F(CApi, wrong_arguments_are_refused_and_the_recorder_goes_on) {
  open();
  EXPECT_EQ(nanhunt_record_op(recorder_, nullptr), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("got NULL"));
  nanhunt_op op = log_op();
  op.struct_size = 0;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("struct_size"));
  op = log_op();
  op.phase = 11;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("expected 0 to 10, got 11"));
  op = log_op();
  op.input_count = 3;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);

  const std::array<float, 2> x = {1, 2};
  nanhunt_input in{"self", value(x.data(), 1), NANHUNT_READ};
  op = log_op();
  op.inputs = &in;
  op.input_count = 1;
  in.value.dtype = 10;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  in.value.dtype = NANHUNT_F32;
  in.value.ndim = 65;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  in.value.ndim = 1;
  in.value.sizes = nullptr;
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  const std::array<std::int64_t, 3> huge = {std::int64_t{1} << 40, std::int64_t{1} << 40, 2};
  in.value.ndim = 3;
  in.value.sizes = huge.data();
  EXPECT_EQ(nanhunt_record_op(recorder_, &op), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("'self'"));
  EXPECT_EQ(nanhunt_record_batch(recorder_, 0, 0, nullptr, 2), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_record_op(nullptr, &op), NANHUNT_USAGE);

  record_log({1, 2}, {0, 0.6931472F});
  nanhunt_counters counters{};
  counters.struct_size = sizeof counters;
  ASSERT_EQ(nanhunt_recorder_counters(recorder_, &counters), NANHUNT_OK);
  EXPECT_EQ(counters.ops, 1u);
  EXPECT_EQ(counters.dropped_ops, 0u);
  EXPECT_EQ(close(), NANHUNT_OK);
  EXPECT_EQ(verdict(), NANHUNT_CLEAN);
}

TEST_F(CApi, a_caller_with_a_shorter_struct_gets_defaults_for_the_rest) {
  open();
  // An older header's step: only the number.
  nanhunt_step step{};
  step.struct_size = offsetof(nanhunt_step, loss);
  step.step = 0;
  step.scale = -5;  // beyond the caller's size: must not be read
  EXPECT_EQ(nanhunt_record_step(recorder_, &step), NANHUNT_OK);
  ASSERT_EQ(close(), NANHUNT_OK);
  char* text = nullptr;
  ASSERT_EQ(nanhunt_report(run_.c_str(), NANHUNT_JSON, &text, nullptr), NANHUNT_OK);
  EXPECT_THAT(text, testing::Not(HasSubstr("-5")));
  nanhunt_free(text);
}

TEST_F(CApi, scaler_events_reach_the_report) {
  open();
  nanhunt_scaler_event event{};
  event.struct_size = sizeof event;
  event.action = NANHUNT_SCALER_CREATE;
  event.scale = 1024;
  event.dynamic = 1;
  event.growth_factor = 2;
  event.backoff_factor = 0.5;
  event.growth_interval = 2000;
  event.text = "my scaler";
  ASSERT_EQ(nanhunt_record_scaler(recorder_, &event), NANHUNT_OK);
  event.action = 10;
  EXPECT_EQ(nanhunt_record_scaler(recorder_, &event), NANHUNT_USAGE);
  record_log({1, 2}, {0, 0.6931472F});
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  ASSERT_EQ(close(), NANHUNT_OK);
  EXPECT_EQ(verdict(), NANHUNT_CLEAN);
}

TEST_F(CApi, failures_of_the_outside_world_have_their_status_and_words) {
  std::int32_t verdict = -1;
  EXPECT_EQ(nanhunt_check("/no/such/run", &verdict), NANHUNT_NOT_FOUND);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("/no/such/run"));
  EXPECT_EQ(nanhunt_check("/no/such/run", nullptr), NANHUNT_USAGE);
  char* text = nullptr;
  EXPECT_EQ(nanhunt_report("/no/such/run", 5, &text, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_report("/no/such/run", NANHUNT_TEXT, nullptr, nullptr), NANHUNT_USAGE);

  std::ofstream(run_) << "a file where the folder should be";
  nanhunt_recorder_options options{};
  options.struct_size = sizeof options;
  options.run_dir = run_.c_str();
  EXPECT_EQ(nanhunt_recorder_open(&options, &recorder_), NANHUNT_WRITE_FAILED);
  EXPECT_EQ(recorder_, nullptr);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr(run_));
  EXPECT_EQ(nanhunt_recorder_open(nullptr, &recorder_), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_open(&options, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_close(nullptr), NANHUNT_OK);
}

TEST(CApiVersion, is_that_of_the_header) {
  EXPECT_EQ(nanhunt_c_api_version(), static_cast<std::uint32_t>(NANHUNT_C_API_VERSION));
  EXPECT_THAT(nanhunt_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
