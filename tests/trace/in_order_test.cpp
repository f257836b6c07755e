// SPDX-License-Identifier: Apache-2.0
// What a batch holds kind by kind comes back in the order in which it happened.
#include "src/trace/in_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nanhunt::trace {
namespace {

using testing::ElementsAre;

struct Reported {
  std::vector<std::string> rows;

  void add(const char* what, std::uint64_t at) { rows.push_back(what + std::to_string(at)); }
  void on(const OpRecord& row) { add("op ", row.seq); }
  void on(const MarkRecord& row) { add("mark ", row.seq); }
  void on(const StepRecord& row) { add("step ", row.step); }
  void on(const SampleIdsRecord& row) { add("samples ", row.step); }
  void on(const EndOfLifeRecord& row) { add("end ", row.seq); }
  void on(const DropRecord& row) { add("drop ", row.seq); }
  void on(const RetiredRecord& row) { add("retired ", row.seq); }
  void on(const ScalerRecord& row) { add("scaler ", row.seq); }
  void on(const ChangedRecord& row) { add("changed ", row.seq); }
  void on(const NormRecord& row) { add("norm ", row.seq); }
  void on(const UnheardRecord& row) { add("unheard ", row.seq); }
  void on(const HealthRecord& row) { add("health ", row.seq); }
  void on(const KernelRecord& row) { add("kernel ", row.seq); }
};

template <typename Row>
Row at(std::uint64_t seq, std::uint32_t step = 0) {
  Row row;
  row.seq = seq;
  if constexpr (requires { row.step; }) row.step = step;
  return row;
}
StepRecord step_that_ended(std::uint64_t seq, std::uint32_t step) {
  StepRecord row;
  row.step = step;
  row.end_seq = seq;
  return row;
}

std::vector<std::string> told(const RecordBatch& batch) {
  Reported told;
  for_each_in_order(batch, told);
  return told.rows;
}

TEST(InOrder, all_that_stands_at_one_moment_has_its_place) {
  RecordBatch batch;
  batch.ops = {at<OpRecord>(4), at<OpRecord>(5, 1)};
  batch.kernels = {at<KernelRecord>(4)};
  batch.ends_of_life = {{.storage = 1, .seq = 5}};
  batch.steps = {step_that_ended(5, 0)};
  batch.marks = {at<MarkRecord>(5)};
  batch.scaler = {at<ScalerRecord>(5)};
  batch.health = {at<HealthRecord>(5)};
  batch.unheard = {at<UnheardRecord>(5)};
  batch.norms = {at<NormRecord>(5)};
  batch.changed = {at<ChangedRecord>(5)};
  batch.drops = {at<DropRecord>(5)};
  batch.retired = {at<RetiredRecord>(5)};
  batch.sample_ids = {{.step = 1, .micro_batch = 0, .sample_ids = {7}}};
  EXPECT_THAT(told(batch), ElementsAre("op 4", "retired 5", "changed 5", "norm 5", "unheard 5", "health 5", "drop 5",
                                       "mark 5", "scaler 5", "step 0", "end 5", "samples 1", "op 5", "kernel 4"));
}

TEST(InOrder, a_step_that_ended_comes_before_what_the_next_one_left_at_that_moment) {
  RecordBatch batch;
  batch.steps = {step_that_ended(5, 0), step_that_ended(5, 1)};
  batch.marks = {at<MarkRecord>(5, 1)};
  batch.health = {at<HealthRecord>(5, 0), at<HealthRecord>(5, 1)};
  batch.scaler = {at<ScalerRecord>(5, 1)};
  EXPECT_THAT(told(batch), ElementsAre("health 5", "step 0", "health 5", "mark 5", "scaler 5", "step 1"));
}

TEST(InOrder, what_stands_between_two_ops_keeps_its_moment) {
  RecordBatch batch;
  batch.ops = {at<OpRecord>(1), at<OpRecord>(9)};
  batch.unheard = {at<UnheardRecord>(6)};
  batch.marks = {at<MarkRecord>(3), at<MarkRecord>(8)};
  EXPECT_THAT(told(batch), ElementsAre("op 1", "mark 3", "unheard 6", "mark 8", "op 9"));
}

TEST(InOrder, rows_after_the_last_op_are_told_too) {
  RecordBatch batch;
  batch.health = {at<HealthRecord>(9)};
  batch.sample_ids = {{.step = 2, .micro_batch = 0, .sample_ids = {}}};
  EXPECT_THAT(told(batch), ElementsAre("health 9", "samples 2"));
}

}  // namespace
}  // namespace nanhunt::trace
