// SPDX-License-Identifier: Apache-2.0
// Ops carry their inputs, outputs and scalars in the same chunk: a lost neighbour leaves no dangling range.
#include <algorithm>
#include <tuple>

#include "src/trace/cells.h"
#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

constexpr std::uint64_t kMaxPhase = static_cast<std::uint64_t>(Phase::kValidation);
constexpr std::uint64_t kMaxRole = static_cast<std::uint64_t>(ArgRole::kIndex);

constexpr const char* kBadId = "a string id is above 1048575";

std::size_t count(const RecordBatch& batch) { return batch.ops.size(); }

void clear(RecordBatch& batch) {
  batch.ops.clear();
  batch.inputs.clear();
  batch.outputs.clear();
  batch.scalars.clear();
}

bool range_fits(std::uint32_t first, std::uint32_t length, std::size_t size) {
  return length == 0 || (first <= size && length <= size - first);
}

template <typename T>
void copy_list(const std::vector<T>& from, std::uint32_t& first, std::uint32_t length, std::vector<T>& to) {
  const std::size_t begin = first;
  first = static_cast<std::uint32_t>(to.size());
  for (std::size_t i = 0; i < length; ++i) to.push_back(from[begin + i]);
}

void copy(const RecordBatch& from, std::size_t row, RecordBatch& to) {
  OpRecord op = from.ops[row];
  copy_list(from.inputs, op.first_input, op.input_count, to.inputs);
  copy_list(from.outputs, op.first_output, op.output_count, to.outputs);
  copy_list(from.scalars, op.first_scalar, op.scalar_count, to.scalars);
  to.ops.push_back(op);
}

// Looks at all but the arguments: those are checked column by column.
const char* refuse_but_args(const RecordBatch& batch, std::size_t row) {
  const OpRecord& op = batch.ops[row];
  if (!range_fits(op.first_input, op.input_count, batch.inputs.size()) ||
      !range_fits(op.first_output, op.output_count, batch.outputs.size()) ||
      !range_fits(op.first_scalar, op.scalar_count, batch.scalars.size())) {
    return "its inputs, outputs or scalars lie outside the batch";
  }
  if (std::uint64_t{op.input_count} + op.output_count + op.scalar_count > kMaxRowItems) {
    return "it has more than 524288 arguments";
  }
  if (static_cast<std::uint64_t>(op.phase) > kMaxPhase || static_cast<int>(op.compute_dtype) >= kDTypeCount) {
    return "its phase or compute dtype is unknown";
  }
  static_assert(((kMaxTableId + 1) & kMaxTableId) == 0);  // so that ids can be tested together
  return (op.module | op.op | op.call_site) > kMaxTableId ? kBadId : nullptr;
}

const char* refuse(const RecordBatch& batch, std::size_t row) {
  if (const char* why = refuse_but_args(batch, row)) return why;
  const OpRecord& op = batch.ops[row];
  StringId ids = 0;
  for (std::size_t i = 0; i < op.scalar_count; ++i) ids |= batch.scalars[op.first_scalar + i].name;
  for (const auto& [list, first, length] : {std::tie(batch.inputs, op.first_input, op.input_count),
                                            std::tie(batch.outputs, op.first_output, op.output_count)}) {
    for (std::size_t i = 0; i < length; ++i) {
      ids |= list[first + i].slot;
      if (static_cast<std::uint64_t>(list[first + i].role) > kMaxRole) return "a role is unknown";
    }
  }
  return ids > kMaxTableId ? kBadId : nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) {
  const OpRecord& op = batch.ops[row];
  return 13u * (std::size_t{op.input_count} + op.output_count) + 12u * std::size_t{op.scalar_count};
}

KeyRange keys(const RecordBatch& batch, RowRange range) {
  KeyRange found{batch.ops[range.begin].seq, batch.ops[range.begin].seq};
  for (std::size_t i = range.begin; i < range.end; ++i) {
    found.first = std::min(found.first, batch.ops[i].seq);
    found.last = std::max(found.last, batch.ops[i].seq);
  }
  return found;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const std::size_t n = range.size();
  std::uint64_t *seq = out.take(n), *step = out.take(n), *micro_batch = out.take(n), *phase = out.take(n),
                *module = out.take(n), *name = out.take(n), *call_site = out.take(n), *dtype = out.take(n),
                *input_count = out.take(n), *output_count = out.take(n), *scalar_count = out.take(n);
  std::size_t inputs = 0, outputs = 0, scalars = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (refuse_but_args(batch, range.begin + i) != nullptr) return out.refuse();
    const OpRecord& op = batch.ops[range.begin + i];
    seq[i] = op.seq;
    step[i] = op.step;
    micro_batch[i] = op.micro_batch;
    phase[i] = static_cast<std::uint64_t>(op.phase);
    module[i] = op.module;
    name[i] = op.op;
    call_site[i] = op.call_site;
    dtype[i] = static_cast<std::uint64_t>(op.compute_dtype);
    inputs += input_count[i] = op.input_count;
    outputs += output_count[i] = op.output_count;
    scalars += scalar_count[i] = op.scalar_count;
  }
  out.column(seq, n, Coding::kDelta);
  out.column(step, n, Coding::kDelta);
  out.column(micro_batch, n, Coding::kDelta);
  for (const std::uint64_t* column : {phase, module, name, call_site, dtype, input_count, output_count, scalar_count}) {
    out.column(column, n);
  }

  std::uint64_t *out_value = out.take(outputs), *out_slot = out.take(outputs), *out_role = out.take(outputs);
  std::uint64_t *in_value = out.take(inputs), *in_slot = out.take(inputs), *in_role = out.take(inputs);
  std::uint64_t *scalar_name = out.take(scalars), *scalar_value = out.take(scalars);
  std::size_t next_in = 0, next_out = 0, next_scalar = 0;
  ValueId last = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const OpRecord& op = batch.ops[i];
    const ValueId reference = op.output_count > 0 ? batch.outputs[op.first_output].value : last;
    for (std::size_t k = 0; k < op.output_count; ++k, ++next_out) {
      const OpArg& arg = batch.outputs[op.first_output + k];
      out_value[next_out] = arg.value;
      out_slot[next_out] = arg.slot;
      out_role[next_out] = static_cast<std::uint64_t>(arg.role);
      last = arg.value;
    }
    for (std::size_t k = 0; k < op.input_count; ++k, ++next_in) {
      const OpArg& arg = batch.inputs[op.first_input + k];
      in_value[next_in] = zigzag(reference - arg.value);
      in_slot[next_in] = arg.slot;
      in_role[next_in] = static_cast<std::uint64_t>(arg.role);
    }
    for (std::size_t k = 0; k < op.scalar_count; ++k, ++next_scalar) {
      const ScalarArg& arg = batch.scalars[op.first_scalar + k];
      scalar_name[next_scalar] = arg.name;
      scalar_value[next_scalar] = double_bits(arg.value);
    }
  }
  out.column(out_value, outputs, Coding::kDelta);
  out.column(out_slot, outputs, Coding::kPlain, kMaxTableId);
  out.column(out_role, outputs, Coding::kPlain, kMaxRole);
  out.column(in_value, inputs);
  out.column(in_slot, inputs, Coding::kPlain, kMaxTableId);
  out.column(in_role, inputs, Coding::kPlain, kMaxRole);
  out.column(scalar_name, scalars, Coding::kPlain, kMaxTableId);
  out.column(scalar_value, scalars);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* seq = in.column(rows, Coding::kDelta);
  const std::uint64_t* step = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* micro_batch = in.column(rows, Coding::kDelta, ColumnReader::kU32);
  const std::uint64_t* phase = in.column(rows, Coding::kPlain, kMaxPhase);
  const std::uint64_t* module = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* name = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* call_site = in.column(rows, Coding::kPlain, kMaxTableId);
  const std::uint64_t* dtype = in.column(rows, Coding::kPlain, kDTypeCount - 1);
  std::size_t inputs = 0, outputs = 0, scalars = 0;
  const std::uint64_t* input_count = in.counts(rows, inputs);
  const std::uint64_t* output_count = in.counts(rows, outputs);
  const std::uint64_t* scalar_count = in.counts(rows, scalars);
  if (!in.ok()) return kBadColumns;
  const std::uint64_t* out_value = in.column(outputs, Coding::kDelta);
  const std::uint64_t* out_slot = in.column(outputs, Coding::kPlain, kMaxTableId);
  const std::uint64_t* out_role = in.column(outputs, Coding::kPlain, kMaxRole);
  const std::uint64_t* in_value = in.column(inputs);
  const std::uint64_t* in_slot = in.column(inputs, Coding::kPlain, kMaxTableId);
  const std::uint64_t* in_role = in.column(inputs, Coding::kPlain, kMaxRole);
  const std::uint64_t* scalar_name = in.column(scalars, Coding::kPlain, kMaxTableId);
  const std::uint64_t* scalar_value = in.column(scalars);
  if (!in.finished()) return kBadColumns;

  const std::size_t ops_before = batch.ops.size(), inputs_before = batch.inputs.size(),
                    outputs_before = batch.outputs.size(), scalars_before = batch.scalars.size();
  batch.ops.resize(ops_before + rows);
  batch.inputs.resize(inputs_before + inputs);
  batch.outputs.resize(outputs_before + outputs);
  batch.scalars.resize(scalars_before + scalars);
  std::size_t next_in = 0, next_out = 0, next_scalar = 0;
  ValueId last = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    OpRecord& op = batch.ops[ops_before + i];
    op.seq = seq[i];
    op.step = static_cast<std::uint32_t>(step[i]);
    op.micro_batch = static_cast<std::uint32_t>(micro_batch[i]);
    op.phase = static_cast<Phase>(phase[i]);
    op.module = static_cast<StringId>(module[i]);
    op.op = static_cast<StringId>(name[i]);
    op.call_site = static_cast<StringId>(call_site[i]);
    op.compute_dtype = static_cast<DType>(dtype[i]);
    op.first_input = static_cast<std::uint32_t>(inputs_before + next_in);
    op.input_count = static_cast<std::uint32_t>(input_count[i]);
    op.first_output = static_cast<std::uint32_t>(outputs_before + next_out);
    op.output_count = static_cast<std::uint32_t>(output_count[i]);
    op.first_scalar = static_cast<std::uint32_t>(scalars_before + next_scalar);
    op.scalar_count = static_cast<std::uint32_t>(scalar_count[i]);
    ValueId reference = last;
    for (std::size_t k = 0; k < op.output_count; ++k, ++next_out) {
      last = out_value[next_out];
      if (k == 0) reference = last;
      batch.outputs[outputs_before + next_out] = {last, static_cast<StringId>(out_slot[next_out]),
                                                  static_cast<ArgRole>(out_role[next_out])};
    }
    for (std::size_t k = 0; k < op.input_count; ++k, ++next_in) {
      batch.inputs[inputs_before + next_in] = {reference - unzigzag(in_value[next_in]),
                                               static_cast<StringId>(in_slot[next_in]),
                                               static_cast<ArgRole>(in_role[next_in])};
    }
    for (std::size_t k = 0; k < op.scalar_count; ++k, ++next_scalar) {
      batch.scalars[scalars_before + next_scalar] = {static_cast<StringId>(scalar_name[next_scalar]),
                                                     bits_double(scalar_value[next_scalar])};
    }
  }
  return nullptr;
}

// A range of `list` as an op has it; a range that does not fit is empty.
template <typename T>
std::span<const T> range_of(const std::vector<T>& list, std::uint32_t first, std::uint32_t length) {
  return range_fits(first, length, list.size()) && length != 0 ? std::span<const T>(list).subspan(first, length)
                                                               : std::span<const T>();
}

// What goes in or comes out of an op. Statistics are those of the whole value.
void show_arg(Cells& cells, const TraceNames& names, const OpArg& arg) {
  const ValueBrief* value = names.value(arg.value);
  const auto counted = [&](std::int64_t ValueBrief::*count) {
    return value != nullptr && value->has_stats ? std::optional(value->*count) : std::nullopt;
  };
  cells.own_text("slot", names.text(arg.slot));
  cells.id("value", arg.value);
  cells.text("role", arg_role_name(arg.role));
  show_layout(cells, names, value == nullptr ? 0 : value->layout);
  cells.integer("nan", counted(&ValueBrief::nan));
  cells.integer("pos_inf", counted(&ValueBrief::pos_inf));
  cells.integer("neg_inf", counted(&ValueBrief::neg_inf));
}

void show(const RecordBatch& batch, std::size_t row, const TraceNames& names, Cells& cells) {
  const OpRecord& op = batch.ops[row];
  const auto inputs = range_of(batch.inputs, op.first_input, op.input_count);
  const auto outputs = range_of(batch.outputs, op.first_output, op.output_count);
  const auto scalars = range_of(batch.scalars, op.first_scalar, op.scalar_count);
  cells.seq("seq", op.seq);
  cells.u32("step", op.step);
  cells.u32("micro_batch", op.micro_batch);
  cells.text("phase", phase_name(op.phase));
  cells.text("module", names.text(op.module));
  cells.text("op", names.text(op.op));
  cells.text("call_site", names.text(op.call_site));
  cells.text("compute_dtype", dtype_name(op.compute_dtype));
  cells.list("inputs", inputs.size(),
             [&](Cells& item, std::size_t i) { show_arg(item, names, at_or_empty(inputs, i)); });
  cells.list("outputs", outputs.size(),
             [&](Cells& item, std::size_t i) { show_arg(item, names, at_or_empty(outputs, i)); });
  cells.list("scalars", scalars.size(), [&](Cells& item, std::size_t i) {
    const ScalarArg arg = at_or_empty(scalars, i);
    item.own_text("name", names.text(arg.name));
    item.number("value", arg.value);
  });
}

}  // namespace

constinit const RecordKind kOps = {.type = kOpsType,
                                   .name = "ops",
                                   .counted = "ops",
                                   .line_cells = "step seq phase module op inputs scalars outputs call_site",
                                   .encode = encode,
                                   .decode = decode,
                                   .refuse = refuse,
                                   .weight = weight,
                                   .keys = keys,
                                   .show = show,
                                   .count = count,
                                   .clear = clear,
                                   .copy = copy};

}  // namespace nanhunt::trace
