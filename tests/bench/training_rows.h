// SPDX-License-Identifier: Apache-2.0
// Records as a watched training loop makes them, without training: for benchmarks of the trace.
//
// Per step, 60 ops of a three-layer MLP (64-256-128-10, batch 64) in mixed precision: forward and backward in
// fp16 (10 + 14 ops), fp32 gradients, for-loop Adam on fp32 masters (36). Every op has one output value with statistics
// of level sums, its inputs, roles and scalars; two values a step are made unseen (the batch). Magnitudes of each
// tensor walk at random from step to step; extrema are drawn around them for every row anew and rounded to the value's
// dtype, so every mantissa bit that the dtype has is random; sums are random multiples of the finest step an fp16 sum
// can have (2^-24, squares 2^-48) or full doubles for fp32. Zero and subnormal counts are drawn. Every 97th step
// overflows.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::bench {

class TrainingRows {
 public:
  // `marks`: also sinks, releases, sample ids and step records, as the recorder keeps them.
  TrainingRows(std::uint64_t seed, bool marks);

  RecordBatch next(std::size_t ops);  // the following `ops` ops of the run

 private:
  struct Variable {
    std::string name;
    DType dtype = DType::kF16;
    std::int64_t numel = 0;
    double log2_scale = 0, zero_share = 0;
    bool from_zero = false;  // no negative elements
    LayoutId layout = 0;
    ValueId value = 0;
    std::uint64_t storage = 0;
    std::uint32_t version = 0;
  };
  struct Argument {
    std::size_t variable = 0;
    StringId slot = 0;
    ArgRole role = ArgRole::kRead;
  };
  struct Op {
    Phase phase = Phase::kForward;
    StringId module = 0, name = 0, call_site = 0;
    std::vector<Argument> inputs;
    std::size_t output = 0;
    bool in_place = false, measures_flush = false;
    std::vector<ScalarArg> scalars;
  };

  void build();
  StringId text(const std::string& text);
  std::size_t variable(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns, double log2_scale,
                       double zero_share = 0, bool from_zero = false);
  void op(Phase phase, const std::string& module, const std::string& name, const std::vector<std::string>& inputs,
          const std::string& output, std::vector<ScalarArg> scalars = {});
  void begin_step(RecordBatch& batch);
  void end_step(RecordBatch& batch);
  void new_value(RecordBatch& batch, Variable& made, bool in_place, std::uint64_t producer, bool measures_flush);
  TensorStats stats(const Variable& of, bool overflowed);
  double normal() { return normal_(random_); }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  bool marks_;
  std::map<std::string, StringId, std::less<>> texts_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<Variable> variables_;
  std::vector<Op> ops_;
  RecordBatch tables_;  // strings and layouts, until the first batch took them
  std::size_t at_op_ = 0;
  std::uint32_t step_ = 0;
  std::uint64_t seq_ = 0, next_storage_ = 1;
  ValueId next_value_ = 1;
};

}  // namespace nanhunt::bench
