// SPDX-License-Identifier: Apache-2.0
// The last ops, by sequence number, with their arguments: what a slice is walked back through. Fixed memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::analyze {

struct RecentOp {
  std::uint64_t seq = kNoSeq;
  std::uint32_t step = 0;
  Phase phase = Phase::kForward;
  DType compute_dtype = DType::kF32;
  StringId op = 0, module = 0, call_site = 0;
  std::uint64_t first_arg = 0, first_scalar = 0;  // running numbers, see OpRing
  std::uint32_t inputs = 0, outputs = 0, scalars = 0;
};

class OpRing {
 public:
  static constexpr std::uint64_t kOps = 1u << 15;

  OpRing() : ops_(kOps), args_(kArgs), scalars_(kScalars) {}

  void push(const OpRecord& op, std::span<const OpArg> inputs, std::span<const OpArg> outputs,
            std::span<const ScalarArg> scalars) {
    if (inputs.size() + outputs.size() > kMaxArgs || scalars.size() > kMaxArgs) return;  // cannot be held whole
    RecentOp& slot = ops_[op.seq & (kOps - 1)];
    slot = RecentOp{op.seq,
                    op.step,
                    op.phase,
                    op.compute_dtype,
                    op.op,
                    op.module,
                    op.call_site,
                    next_arg_,
                    next_scalar_,
                    static_cast<std::uint32_t>(inputs.size()),
                    static_cast<std::uint32_t>(outputs.size()),
                    static_cast<std::uint32_t>(scalars.size())};
    for (const OpArg& arg : inputs) args_[next_arg_++ & (kArgs - 1)] = arg;
    for (const OpArg& arg : outputs) args_[next_arg_++ & (kArgs - 1)] = arg;
    for (const ScalarArg& scalar : scalars) scalars_[next_scalar_++ & (kScalars - 1)] = scalar;
  }

  // nullptr: too long ago, or never seen.
  const RecentOp* find(std::uint64_t seq) const {
    const RecentOp& slot = ops_[seq & (kOps - 1)];
    const bool whole = next_arg_ - slot.first_arg <= kArgs && next_scalar_ - slot.first_scalar <= kScalars;
    return seq != kNoSeq && slot.seq == seq && whole ? &slot : nullptr;
  }
  const OpArg& input(const RecentOp& op, std::uint32_t i) const { return args_[(op.first_arg + i) & (kArgs - 1)]; }
  void free() {  // for good
    ops_ = {};
    args_ = {};
    scalars_ = {};
  }
  const OpArg& output(const RecentOp& op, std::uint32_t i) const { return input(op, op.inputs + i); }
  const ScalarArg& scalar(const RecentOp& op, std::uint32_t i) const {
    return scalars_[(op.first_scalar + i) & (kScalars - 1)];
  }

 private:
  static constexpr std::uint64_t kArgs = 1u << 17, kScalars = 1u << 16;
  static constexpr std::size_t kMaxArgs = 1u << 12;

  std::vector<RecentOp> ops_;
  std::vector<OpArg> args_;
  std::vector<ScalarArg> scalars_;
  std::uint64_t next_arg_ = 0, next_scalar_ = 0;
};

}  // namespace nanhunt::analyze
