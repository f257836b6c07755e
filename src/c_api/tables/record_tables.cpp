// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/tables/record_tables.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "reports/json/json_values.h"
#include "src/trace/health_norms.h"

namespace nanhunt::c_api {
namespace {

std::optional<std::uint64_t> seq_of(std::uint64_t seq) {
  return seq == kNoSeq ? std::nullopt : std::optional<std::uint64_t>(seq);
}
std::optional<std::uint64_t> id_of(std::uint64_t id) {
  return id == 0 ? std::nullopt : std::optional<std::uint64_t>(id);
}
template <typename T>
std::optional<T> known(bool is_known, T value) {
  return is_known ? std::optional<T>(value) : std::nullopt;
}

// A range of `list` as an op has it; a range that does not fit is empty.
template <typename T>
std::span<const T> range_of(const std::vector<T>& list, std::uint32_t first, std::uint32_t count) {
  if (first > list.size() || count > list.size() - first) return {};
  return std::span<const T>(list).subspan(first, count);
}

// Step, module and name of the op that a row is about, where the trace still holds it.
void op_cells(Row& row, const RowContext& c, std::uint64_t seq, bool with_step) {
  const trace::OpBrief* op = seq == kNoSeq ? nullptr : c.names.op(seq);
  if (with_step) row.cell("step", known(op != nullptr, op == nullptr ? 0u : op->step));
  row.cell("module", op == nullptr ? std::string_view() : std::string_view(c.names.text(op->module)));
  row.cell("op", op == nullptr ? std::string_view() : std::string_view(c.names.text(op->op)));
}

void layout_cells(Row& row, const RowContext& c, LayoutId id) {
  static const std::vector<std::int64_t> kNone;
  const LayoutRecord* layout = c.names.layout(id);
  row.cell("dtype", layout == nullptr ? std::string_view() : dtype_name(layout->dtype));
  row.cell("shape", layout == nullptr ? kNone : layout->sizes);
}

void arg_cells(Row& row, const RowContext& c, const OpArg& arg) {
  const trace::ValueBrief* value = c.names.value(arg.value);
  const bool counted = value != nullptr && value->has_stats;
  row.cell("slot", std::string_view(c.names.text(arg.slot)));
  row.cell("value", id_of(arg.value));
  row.cell("role", reports::arg_role_name(arg.role));
  layout_cells(row, c, value == nullptr ? 0 : value->layout);
  row.cell("nan", known(counted, counted ? value->nan : 0));
  row.cell("pos_inf", known(counted, counted ? value->pos_inf : 0));
  row.cell("neg_inf", known(counted, counted ? value->neg_inf : 0));
}

// Element i, or an empty one where a list is only declared.
template <typename T>
T at_or_empty(std::span<const T> list, std::size_t i) {
  return i < list.size() ? list[i] : T{};
}

void cells(Row& row, const RowContext& c, const OpRecord& op) {
  const auto inputs = range_of(c.batch.inputs, op.first_input, op.input_count);
  const auto outputs = range_of(c.batch.outputs, op.first_output, op.output_count);
  const auto scalars = range_of(c.batch.scalars, op.first_scalar, op.scalar_count);
  row.cell("seq", seq_of(op.seq));
  row.cell("step", op.step);
  row.cell("micro_batch", op.micro_batch);
  row.cell("phase", phase_name(op.phase));
  row.cell("module", std::string_view(c.names.text(op.module)));
  row.cell("op", std::string_view(c.names.text(op.op)));
  row.cell("call_site", std::string_view(c.names.text(op.call_site)));
  row.cell("compute_dtype", dtype_name(op.compute_dtype));
  row.list("inputs", inputs.size(), [&](Row& item, std::size_t i) { arg_cells(item, c, at_or_empty(inputs, i)); });
  row.list("outputs", outputs.size(), [&](Row& item, std::size_t i) { arg_cells(item, c, at_or_empty(outputs, i)); });
  row.list("scalars", scalars.size(), [&](Row& item, std::size_t i) {
    const ScalarArg arg = at_or_empty(scalars, i);
    item.cell("name", std::string_view(c.names.text(arg.name)));
    item.cell("value", arg.value);
  });
}

void cells(Row& row, const RowContext& c, const ValueRecord& value) {
  const TensorStats& s = value.stats;
  const bool counts = value.has_stats && s.level >= StatsLevel::kCounts;
  const bool sums = value.has_stats && s.level >= StatsLevel::kSums;
  row.cell("id", value.id);
  row.cell("storage", value.storage);
  row.cell("version", value.version);
  row.cell("offset", value.offset);
  row.cell("base", id_of(value.base));
  row.cell("producer", seq_of(value.producer));
  op_cells(row, c, value.producer, true);
  layout_cells(row, c, value.layout);
  row.cell("numel", known(value.has_stats, s.numel));
  row.cell("first_nonfinite", known(value.has_stats && s.any_nonfinite, s.first_nonfinite));
  row.cell("nan", known(counts, s.nan));
  row.cell("pos_inf", known(counts, s.pos_inf));
  row.cell("neg_inf", known(counts, s.neg_inf));
  row.cell("zero", known(counts, s.zero));
  row.cell("subnormal", known(counts, s.subnormal));
  row.cell("amin_nonzero", known(counts && s.has_nonzero(), s.amin_nonzero));
  row.cell("amax", known(counts && s.has_finite(), s.amax));
  row.cell("min", known(counts && s.has_finite(), s.min));
  row.cell("max", known(counts && s.has_finite(), s.max));
  row.cell("sum", known(sums, s.sum));
  row.cell("sum_sq", known(sums, s.sum_sq));
  row.cell("flushed", known(value.flushed >= 0, value.flushed));
}

void cells(Row& row, const RowContext& c, const MarkRecord& mark) {
  row.cell("seq", seq_of(mark.seq));
  row.cell("step", mark.step);
  row.cell("micro_batch", mark.micro_batch);
  row.cell("mark", mark_kind_name(mark.kind));
  row.cell("path", std::string_view(c.names.text(mark.path)));
  row.cell("value", id_of(mark.value));
}

void cells(Row& row, const RowContext&, const StepRecord& step) {
  row.cell("step", step.step);
  row.cell("skipped", step.skipped);
  row.cell("loss", step.loss);
  row.cell("lr", step.lr);
  row.cell("scale", step.scale);
  row.cell("end_seq", seq_of(step.end_seq));
  row.cell("wall_ns", step.wall_ns);
}

void cells(Row& row, const RowContext&, const SampleIdsRecord& samples) {
  row.cell("step", samples.step);
  row.cell("micro_batch", samples.micro_batch);
  row.cell("sample_ids", samples.sample_ids);
}

void cells(Row& row, const RowContext& c, const EvidenceRecord& e) {
  row.cell("seq", seq_of(e.seq));
  op_cells(row, c, e.seq, true);
  row.cell("value", id_of(e.value));
  row.cell("flat_index", e.flat_index);
  row.cell("number", e.number);
  row.list("operands", e.operands.size(), [&](Row& item, std::size_t i) {
    const Operand operand = at_or_empty(std::span<const Operand>(e.operands), i);
    item.cell("slot", std::string_view(c.names.text(operand.slot)));
    item.cell("value", id_of(operand.value));
    item.cell("flat_index", operand.flat_index);
    item.cell("number", operand.number);
  });
}

void cells(Row& row, const RowContext&, const EndOfLifeRecord& end) {
  row.cell("seq", seq_of(end.seq));
  row.cell("storage", end.storage);
}

void cells(Row& row, const RowContext&, const ExperimentRecord& e) {
  row.cell("step", e.step);
  row.cell("fix", std::string_view(e.fix));
  row.cell("description", std::string_view(e.description));
  row.cell("finite", e.finite);
  row.cell("verified", e.verified);
  row.cell("further_steps", e.further_steps);
  row.cell("loss_before", e.loss_before);
  row.cell("loss_after", e.loss_after);
  row.cell("update_factor", e.update_factor);
}

void cells(Row& row, const RowContext&, const DropRecord& drop) {
  row.cell("seq", seq_of(drop.seq));
  row.cell("ops", drop.ops);
  row.cell("values", drop.values);
  row.cell("other", drop.other);
}

void cells(Row& row, const RowContext& c, const ScalerRecord& s) {
  row.cell("seq", seq_of(s.seq));
  row.cell("step", s.step);
  row.cell("micro_batch", s.micro_batch);
  row.cell("action", scaler_action_name(s.action));
  row.cell("optimizer", s.optimizer);
  row.cell("found_inf", s.found_inf);
  row.cell("scale", s.scale);
  row.cell("growth_tracker", s.growth_tracker);
  row.cell("total_norm", s.total_norm);
  row.cell("max_norm", s.max_norm);
  row.cell("dynamic", s.dynamic);
  row.cell("growth_factor", s.growth_factor);
  row.cell("backoff_factor", s.backoff_factor);
  row.cell("growth_interval", s.growth_interval);
  row.cell("text", std::string_view(c.names.text(s.text)));
}

void cells(Row& row, const RowContext& c, const HistogramRecord& h) {
  row.cell("seq", seq_of(h.seq));
  op_cells(row, c, h.seq, true);
  row.cell("value", id_of(h.value));
  row.cell("min_exponent", h.min_exponent);
  row.cell("bins", h.bins);
}

void cells(Row& row, const RowContext&, const RetiredRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("steps", r.steps);
  row.cell("anomalies", r.anomalies);
  row.cell("ops", r.ops);
  row.cell("values", r.values);
  row.cell("other", r.other);
}

void cells(Row& row, const RowContext& c, const HealthRecord& h) {
  row.cell("seq", seq_of(h.seq));
  row.cell("step", h.step);
  row.cell("bad", h.bad);
  row.cell("bad_tensors", h.bad_tensors);
  row.cell("first_bad", std::string_view(c.names.text(h.first_bad)));
  row.cell("gradient_norm", trace::measured_gradient_norm(h));
  row.cell("weight_norm", trace::measured_weight_norm(h));
}

void cells(Row& row, const RowContext& c, const NormRecord& n) {
  row.cell("seq", seq_of(n.seq));
  row.cell("step", n.step);
  row.cell("mark", mark_kind_name(n.kind));
  row.cell("path", std::string_view(c.names.text(n.path)));
  row.cell("norm", n.norm);
  row.cell("amax", n.amax);
}

void cells(Row& row, const RowContext& c, const ReplayRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("step", r.step);
  row.cell("trigger", replay_trigger_name(r.trigger));
  row.cell("result", replay_result_name(r.result));
  row.cell("text", std::string_view(c.names.text(r.text)));
}

void cells(Row& row, const RowContext&, const ChangedRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("step", r.step);
  row.cell("before", id_of(r.before));
  row.cell("after", id_of(r.after));
  row.cell("since_seq", seq_of(r.since_seq));
  row.cell("since_step", r.since_step);
  row.cell("opaque", r.opaque);
}

void cells(Row& row, const RowContext& c, const ProbeRecord& p) {
  row.cell("seq", seq_of(p.seq));
  row.cell("step", p.step);
  op_cells(row, c, p.seq, false);
  row.cell("mode", probe_mode_name(p.mode));
  row.cell("dtype", dtype_name(p.dtype));
  row.cell("ops", p.ops);
  row.cell("ran", p.ran);
  row.cell("nan", p.nan);
  row.cell("pos_inf", p.pos_inf);
  row.cell("neg_inf", p.neg_inf);
  row.cell("flat_index", p.flat_index);
  row.cell("number", p.number);
  row.cell("text", std::string_view(c.names.text(p.text)));
}

void cells(Row& row, const RowContext& c, const CaptureRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("step", r.step);
  op_cells(row, c, r.seq, false);
  row.cell("file", std::string_view(c.names.text(r.file)));
  row.cell("bytes", r.bytes);
}

void cells(Row& row, const RowContext& c, const NoteRecord& n) {
  row.cell("seq", seq_of(n.seq));
  row.cell("step", n.step);
  row.cell("text", std::string_view(c.names.text(n.text)));
  row.cell("count", n.count);
}

void cells(Row& row, const RowContext& c, const CollectiveRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("step", r.step);
  op_cells(row, c, r.seq, false);
  row.cell("group", std::string_view(c.names.text(r.group)));
  row.cell("call", r.call);
  row.cell("collective", collective_kind_name(r.kind));
  row.cell("reduction", reduction_name(r.reduction));
  row.cell("peer", known(r.peer >= 0, r.peer));
  row.cell("ranks", std::vector<std::int64_t>(r.ranks.begin(), r.ranks.end()));
}

void cells(Row& row, const RowContext& c, const KernelRecord& r) {
  row.cell("seq", seq_of(r.seq));
  row.cell("step", r.step);
  op_cells(row, c, r.seq, false);
  row.cell("name", std::string_view(c.names.text(r.name)));
  row.cell("own", r.own);
  row.cell("count", r.count);
  row.cell("timed", r.timed);
  row.cell("duration_ns", r.duration_ns);
}

template <typename Record>
void whole_row(Row& row, const RowContext& context, const Record& record) {
  row.cell("rank", context.run.rank);
  row.cell("attempt", context.run.attempt);
  cells(row, context, record);
}

template <auto List>
struct Kind {
  using Record = typename std::remove_cvref_t<decltype(std::declval<RecordBatch>().*List)>::value_type;

  static void declare(Table& table) {
    const RunInfo run;
    const trace::TraceNames names;
    const RecordBatch batch;
    table.declare([&](Row& row) { whole_row(row, {run, names, batch}, Record{}); });
  }
  static void add(const RowContext& context, Table& table, const std::function<void()>& added) {
    for (const Record& record : context.batch.*List) {
      table.add([&](Row& row) { whole_row(row, context, record); });
      added();
    }
  }
  static constexpr TableKind named(std::string_view name) { return {name, declare, add}; }
};

constexpr std::array kKinds = {
    Kind<&RecordBatch::ops>::named("ops"),
    Kind<&RecordBatch::values>::named("values"),
    Kind<&RecordBatch::marks>::named("marks"),
    Kind<&RecordBatch::steps>::named("steps"),
    Kind<&RecordBatch::sample_ids>::named("samples"),
    Kind<&RecordBatch::evidence>::named("evidence"),
    Kind<&RecordBatch::ends_of_life>::named("frees"),
    Kind<&RecordBatch::experiments>::named("experiments"),
    Kind<&RecordBatch::drops>::named("drops"),
    Kind<&RecordBatch::scaler>::named("scaler"),
    Kind<&RecordBatch::histograms>::named("histograms"),
    Kind<&RecordBatch::retired>::named("retired"),
    Kind<&RecordBatch::health>::named("health"),
    Kind<&RecordBatch::norms>::named("norms"),
    Kind<&RecordBatch::replays>::named("replays"),
    Kind<&RecordBatch::changed>::named("changed"),
    Kind<&RecordBatch::probes>::named("probes"),
    Kind<&RecordBatch::captures>::named("captures"),
    Kind<&RecordBatch::notes>::named("notes"),
    Kind<&RecordBatch::collectives>::named("collectives"),
    Kind<&RecordBatch::kernels>::named("kernels"),
};

}  // namespace

std::span<const TableKind> table_kinds() { return kKinds; }

const TableKind* find_table_kind(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &TableKind::name);
  return found == kKinds.end() ? nullptr : &*found;
}

}  // namespace nanhunt::c_api
