// SPDX-License-Identifier: Apache-2.0
#include "tests/trace/long_run.h"

namespace nanhunt::trace_testing {

ValueId LongRun::add_value(RecordBatch& batch, std::uint64_t storage, std::uint32_t version, std::uint64_t producer,
                           bool bad) {
  ValueRecord value;
  value.id = next_value_++;
  value.storage = storage;
  value.version = version;
  value.layout = 1;
  value.producer = producer;
  value.has_stats = true;
  value.stats.level = StatsLevel::kSums;
  value.stats.numel = 64;
  value.stats.any_nonfinite = bad;
  value.stats.first_nonfinite = bad ? 3 : -1;
  value.stats.pos_inf = bad ? 1 : 0;
  value.stats.amax = value.stats.max = static_cast<float>(random_() % 1000);
  value.stats.amin_nonzero = 0.5;
  value.stats.sum = static_cast<double>(random_());  // does not compress: a trace must fill up
  value.stats.sum_sq = static_cast<double>(random_());
  batch.values.push_back(value);
  return value.id;
}

void LongRun::add_op(RecordBatch& batch, StringId name, Phase phase, std::vector<ValueId> inputs, ValueId output) {
  OpRecord op;
  op.seq = seq_++;
  op.step = step_;
  op.phase = phase;
  op.op = name;
  op.first_input = static_cast<std::uint32_t>(batch.inputs.size());
  op.input_count = static_cast<std::uint32_t>(inputs.size());
  for (const ValueId input : inputs) batch.inputs.push_back({input, 4, ArgRole::kRead});
  op.first_output = static_cast<std::uint32_t>(batch.outputs.size());
  op.output_count = 1;
  batch.outputs.push_back({output, 5, ArgRole::kRead});
  batch.ops.push_back(op);
}

void LongRun::add_step(RecordBatch& batch) {
  const bool bad = options_.bad_every <= 1 ? step_ > 0 : random_() % options_.bad_every == 0;
  if (bad) bad_steps_.push_back(step_);
  if (weight_ == 0) weight_ = add_value(batch, 1, 0, kNoSeq, false);
  if (frozen_ == 0) frozen_ = add_value(batch, 2, 0, kNoSeq, false);
  const std::uint64_t hidden = ++storage_, gradient = ++storage_;
  const ValueId out = add_value(batch, hidden, 0, seq_, bad);
  add_op(batch, 1, Phase::kForward, {weight_, frozen_}, out);
  if (bad) {
    batch.evidence.push_back({seq_ - 1, out, 3, 1e30, {{4, frozen_, 0, 2.0}}});
    batch.histograms.push_back({seq_ - 1, weight_, -3, {1, 2, 3}});
    other_ += 2;
  }
  batch.marks.push_back({seq_, step_, 0, TensorRole::kLoss, 6, out});
  const ValueId grad = add_value(batch, gradient, 0, seq_, false);
  add_op(batch, 2, Phase::kBackward, {out}, grad);
  const ValueId next_weight = add_value(batch, 1, step_ + 1, seq_, false);
  add_op(batch, 3, Phase::kOptimizer, {weight_, grad}, next_weight);
  weight_ = next_weight;
  if (step_ % 10 == 0) {
    ScalerRecord row;
    row.seq = seq_;
    row.step = step_;
    row.scale = 1024;
    batch.scaler.push_back(row);
    ++other_;
  }
  batch.steps.push_back({step_, false, 0.5, 0.1, 1024, seq_, 0});
  batch.ends_of_life.push_back({hidden, seq_});
  batch.ends_of_life.push_back({gradient, seq_});
  other_ += 4;  // the mark, the step, two ends
  ++step_;
}

RecordBatch LongRun::next_batch() {
  RecordBatch batch;
  if (step_ == 0) {
    for (const char* text : {"addmm", "addmm_backward", "add_", "self", "out", "loss"}) {
      batch.strings.push_back({static_cast<StringId>(batch.strings.size() + 1), text});
    }
    batch.layouts.push_back({1, DType::kF16, {8, 8}, {8, 1}});
  }
  for (std::uint32_t i = 0; i < options_.steps_a_batch; ++i) add_step(batch);
  return batch;
}

}  // namespace nanhunt::trace_testing
