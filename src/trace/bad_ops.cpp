// SPDX-License-Identifier: Apache-2.0
#include "src/trace/bad_ops.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "nanhunt/dtype.h"
#include "nanhunt/event.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::trace {
namespace {

struct BadCounts {
  bool any = false;
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0;
};

BadCounts bad_outputs_of(const RecordBatch& batch, std::size_t row, const TraceNames& names) {
  BadCounts counts;
  const OpRecord& op = batch.ops[row];
  for (std::size_t i = op.first_output; i < op.first_output + op.output_count; ++i) {
    const ValueBrief* value = names.value(batch.outputs[i].value);
    if (value == nullptr || !value->is_bad) continue;
    counts.any = true;
    counts.nan += value->nan;
    counts.pos_inf += value->pos_inf;
    counts.neg_inf += value->neg_inf;
  }
  return counts;
}

bool reads_bad(const RecordBatch& batch, const OpRecord& op, const TraceNames& names) {
  const bool ignores_old = op_info(names.text(op.op)).has(kOverwritesAll);
  const auto first = batch.inputs.begin() + op.first_input;
  return std::any_of(first, first + op.input_count, [&](const OpArg& arg) {
    const bool mixed_in = arg.role != ArgRole::kMask && arg.role != ArgRole::kIndex;
    if (!mixed_in || (arg.role == ArgRole::kOverwritten && ignores_old)) return false;
    const ValueBrief* value = names.value(arg.value);
    return value != nullptr && value->is_bad;
  });
}

// Between ranks: what it gives bad may have come from another one. By its name where the call's row comes later.
bool is_collective(const RecordBatch& batch, const OpRecord& op, std::string_view name) {
  const auto is_of_op = [&](const CollectiveRecord& row) { return row.seq == op.seq; };
  return name.starts_with("c10d::") || name.starts_with("_c10d_functional::") || std::ranges::any_of(batch.collectives, is_of_op);
}

}  // namespace

bool is_bad_op(const RecordBatch& batch, std::size_t row, const TraceNames& names) {
  return bad_outputs_of(batch, row, names).any;
}

void show_bad_op(const RecordBatch& batch, std::size_t row, const TraceNames& names, Cells& cells) {
  const OpRecord& op = batch.ops[row];
  const BadCounts out = bad_outputs_of(batch, row, names);
  const bool counted = out.nan + out.pos_inf + out.neg_inf > 0;  // else it is only known that there are some
  cells.u32("step", op.step);
  cells.u32("micro_batch", op.micro_batch);
  cells.seq("seq", op.seq);
  cells.text("phase", phase_name(op.phase));
  cells.text("module", names.text(op.module));
  cells.text("op", names.text(op.op));
  cells.text("call_site", names.text(op.call_site));
  cells.text("compute_dtype", dtype_name(op.compute_dtype));
  cells.integer("nan", counted ? std::optional(out.nan) : std::nullopt);
  cells.integer("pos_inf", counted ? std::optional(out.pos_inf) : std::nullopt);
  cells.integer("neg_inf", counted ? std::optional(out.neg_inf) : std::nullopt);
  cells.flag("read_bad", reads_bad(batch, op, names));
  cells.flag("is_collective", is_collective(batch, op, names.text(op.op)));
}

}  // namespace nanhunt::trace
