// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/sample_trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "nanhunt/trace.h"

namespace nanhunt::testing_tools {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

enum Name : StringId { kModule = 1, kLossRegion, kSqrt, kMean, kSelf, kOut, kInputs, kLoss, kSite, kCapture };

RunInfo make_info(std::uint32_t rank, const std::string& framework) {
  RunInfo info;
  info.command = {"train.py", "--lr", "0.1"};
  info.nanhunt_version = "0.1.0";
  info.framework = framework;
  info.device = "cpu";
  info.level = "ops";
  info.dtypes = {"fp32"};
  info.rank = rank;
  info.started = "2026-01-02T03:04:05Z";
  info.host = "machine";
  info.pid = 7;
  return info;
}

TensorStats make_stats(std::int64_t numel, double low, double high, std::int64_t nan) {
  TensorStats s;
  s.level = StatsLevel::kSums;
  s.numel = numel;
  s.nan = nan;
  s.any_nonfinite = nan != 0;
  s.first_nonfinite = nan != 0 ? 1 : -1;
  s.min = low;
  s.max = high;
  s.amax = std::fmax(std::fabs(low), std::fabs(high));
  s.amin_nonzero = s.amax / 4;
  s.sum = high;
  s.sum_sq = high * high;
  if (nan == numel) {
    s.min = s.max = s.amax = s.amin_nonzero = s.sum = s.sum_sq = 0;
  }
  return s;
}

void add_names(RecordBatch& batch, const std::string& module, const std::string& site) {
  batch.strings = {{kModule, module}, {kLossRegion, "<loss>"}, {kSqrt, "sqrt"}, {kMean, "mean"},      {kSelf, "self"},
                   {kOut, "out"},     {kInputs, "inputs"},     {kLoss, "loss"}, {kSite, site}};
  batch.layouts = {{1, DType::kF32, {4}, {1}}, {2, DType::kF32, {}, {}}};
}

ValueRecord make_value(ValueId id, LayoutId layout, std::uint64_t producer, TensorStats stats) {
  ValueRecord value;
  value.id = id;
  value.storage = id;
  value.layout = layout;
  value.producer = producer;
  value.has_stats = true;
  value.stats = std::move(stats);
  return value;
}

OpRecord make_op(RecordBatch& batch, std::uint64_t seq, std::uint32_t step, StringId op, ValueId input,
                 ValueId output) {
  OpRecord record;
  record.seq = seq;
  record.step = step;
  record.phase = Phase::kLoss;
  record.module = op == kSqrt ? kModule : kLossRegion;
  record.op = op;
  record.call_site = kSite;
  record.first_input = static_cast<std::uint32_t>(batch.inputs.size());
  record.input_count = 1;
  record.first_output = static_cast<std::uint32_t>(batch.outputs.size());
  record.output_count = 1;
  batch.inputs.push_back({input, kSelf, ArgRole::kRead});
  batch.outputs.push_back({output, kOut, ArgRole::kRead});
  return record;
}

// inputs -> sqrt -> mean -> loss
RecordBatch make_step(std::uint32_t step, bool bad) {
  RecordBatch batch;
  const ValueId first = 3ull * step + 1;
  const std::uint64_t seq = 2ull * step;
  batch.values = {make_value(first, 1, kNoSeq, make_stats(4, bad ? -1 : 0.25, 4, 0)),
                  make_value(first + 1, 1, seq, make_stats(4, 0.5, 2, bad ? 1 : 0)),
                  make_value(first + 2, 2, seq + 1, make_stats(1, 1, 1, bad ? 1 : 0))};
  batch.marks.push_back({seq, step, 0, TensorRole::kBatch, kInputs, first});
  batch.ops.push_back(make_op(batch, seq, step, kSqrt, first, first + 1));
  batch.ops.push_back(make_op(batch, seq + 1, step, kMean, first + 1, first + 2));
  batch.marks.push_back({seq + 2, step, 0, TensorRole::kLoss, kLoss, first + 2});
  batch.sample_ids.push_back({step, 0, {10, 11, 12, 13}});
  if (bad) batch.evidence.push_back({seq, first + 1, 1, kNaN, {{kSelf, first, 1, -1}}});
  StepRecord done;
  done.step = step;
  done.loss = bad ? kNaN : 1.0 / (step + 1);
  done.lr = 0.1;
  done.end_seq = seq + 2;
  batch.steps.push_back(done);
  return batch;
}

RecordBatch make_watching(std::uint32_t step) {
  RecordBatch batch;
  const std::uint64_t seq = 2ull * step;
  const ValueId value = 3ull * step + 1;
  batch.strings = {{kCapture, "2-sqrt.safetensors"}};
  batch.health = {{seq, step, 1u << static_cast<unsigned>(TensorRole::kLoss), 1, kLoss, kNaN, 2.5}};
  batch.norms = {{seq, step, TensorRole::kParameter, kModule, 2.5, 1}};
  batch.unheard = {{seq, step, 0}};
  batch.changed = {{seq, step, value, value + 1, seq - 1, step - 1, false}};
  batch.probes = {{seq, step, ProbeMode::kWider, DType::kF64, 1, true, 0, 1, 0, 1, 3.5, 0}};
  batch.captures = {{seq, step, kCapture, 4096}};
  batch.notes = {{seq, step, kModule, 12}};
  batch.frames = {{seq, kModule, 0, kModule, 12, kModule, 10, kModule}};
  batch.setup = {{seq, step, SetupFact::kModule, kModule, 0, DType::kF32, 0, kModule}};
  batch.kernels = {{seq, step, kCapture, false, 3, 2, 1500}};
  batch.collectives = {{seq, step, kModule, 7, CollectiveKind::kAllReduce, Reduction::kSum, -1, {0, 1}}};
  return batch;
}

}  // namespace

std::string write_sample_trace(const std::string& run, const TraceOptions& options) {
  auto writer = TraceWriter::create(run, make_info(options.rank, options.framework));
  EXPECT_TRUE(writer) << writer.status().message();
  RecordBatch names;
  add_names(names, options.module, options.site);
  EXPECT_TRUE((*writer)->write(names));
  for (std::uint32_t step = 0; step < options.steps; ++step) {
    EXPECT_TRUE((*writer)->write(make_step(step, options.bad && step == 2)));
    if (options.watched && step == 2) {
      EXPECT_TRUE((*writer)->write(make_watching(step)));
    }
  }
  if (!options.capture.empty()) {
    RecordBatch captured;
    captured.strings = {{kCapture, options.capture}};
    captured.captures = {{4, 2, kCapture, 16}};
    EXPECT_TRUE((*writer)->write(captured));
  }
  if (options.clean_end) {
    EXPECT_TRUE((*writer)->close());
  }
  return (*writer)->attempt_dir() + "/000000.nht";
}

void write_empty_trace(const std::string& run) {
  auto writer = TraceWriter::create(run, make_info(0, "test"));
  EXPECT_TRUE(writer) << writer.status().message();
  EXPECT_TRUE((*writer)->close());
}

}  // namespace nanhunt::testing_tools
