// SPDX-License-Identifier: Apache-2.0
#include "src/trace/bad_ops.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/event.h"

namespace nanhunt::trace {
namespace {

struct BadCounts {
  bool any = false;
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0;
};

BadCounts bad_counts_of(const std::vector<OpArg>& args, std::size_t first, std::size_t count, const TraceNames& names,
                        bool is_read) {
  BadCounts counts;
  for (std::size_t i = first; i < first + count; ++i) {
    if (is_read && args[i].role != ArgRole::kRead) continue;
    const ValueBrief* value = names.value(args[i].value);
    if (value == nullptr || !value->is_bad) continue;
    counts.any = true;
    counts.nan += value->nan;
    counts.pos_inf += value->pos_inf;
    counts.neg_inf += value->neg_inf;
  }
  return counts;
}

BadCounts bad_outputs_of(const RecordBatch& batch, std::size_t row, const TraceNames& names) {
  return bad_counts_of(batch.outputs, batch.ops[row].first_output, batch.ops[row].output_count, names, false);
}

// Between ranks: what it gives bad may have come from another one.
bool is_collective(const RecordBatch& batch, std::uint64_t seq) {
  return std::ranges::any_of(batch.collectives, [&](const CollectiveRecord& row) { return row.seq == seq; });
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
  cells.flag("read_bad", bad_counts_of(batch.inputs, op.first_input, op.input_count, names, true).any);
  cells.flag("is_collective", is_collective(batch, op.seq));
}

}  // namespace nanhunt::trace
