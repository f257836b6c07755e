// SPDX-License-Identifier: Apache-2.0
#include "src/record/rows/row_builder.h"

#include <algorithm>
#include <utility>

#include "nanhunt/recorder.h"
#include "src/record/measure/evidence.h"
#include "src/record/measure/lost_updates.h"
#include "src/record/rows/rollback.h"

namespace nanhunt::record {
namespace {

bool mixes_numbers(ArgRole role) { return role != ArgRole::kMask && role != ArgRole::kIndex; }

}  // namespace

RowBuilder::RowBuilder(const RowBuilderOptions& options)
    : level_(std::clamp(options.stats, StatsLevel::kCounts, StatsLevel::kSums)),
      evidence_left_(options.max_evidence),
      histograms_left_(options.max_histograms),
      checks_left_(kMaxChangesFound),
      checks_inputs_(options.check_inputs),
      only_asked_(!options.check_inputs),
      table_(options.table) {}

void RowBuilder::write_row(ValueInfo& info) {
  rows_.batch.values.push_back(info.record);
  info.row_batch = rows_.number;
}

void RowBuilder::write_again_if_dropped(ValueInfo& info) {
  if (info.row_batch != 0) return;
  if (info.record.base != 0) {
    ValueInfo* base = table_.find_id(info.record.storage, info.record.base);
    if (base != nullptr) write_again_if_dropped(*base);  // bases are older: this ends
  }
  write_row(info);
}

ValueInfo& RowBuilder::add_value(const ValueView& view, LayoutId layout, ValueInfo* base, std::uint64_t producer,
                                 const Use& use) {
  ValueRecord record;
  record.id = next_value_;
  record.storage = view.storage;
  record.version = view.version;
  record.offset = view.offset;
  record.layout = layout;
  record.producer = producer;
  std::uint64_t checksum = 0;
  const bool readable = has_contents(view),
             checked = can_compare(view) && checks_left_ > 0 && layout != 0 && !use.old_contents &&
                       (!only_asked_ || !is_readable(view.tensor));  // that one costs a pass
  ValueInfo* before = nullptr;
  if (readable) {
    // A view of the same elements has the same counts, extrema and sums (which then add in the base's order); only
    // where the first bad element stands depends on the order.
    bool same_elements = base != nullptr && shows_same_elements(view, layout, *base);
    const bool just_checked = same_elements && base->has_checksum && base->checked_after == use.after;
    if (checked) checksum = just_checked ? base->checksum : checksum_of(view, layout);
    if (checked && !only_asked_ && same_elements && base->has_checksum && base->checksum != checksum) {
      before = std::exchange(base, nullptr);
      same_elements = false;
    }
    const bool takes_over = same_elements && base->known_finite() &&
                            (base->record.stats.level >= StatsLevel::kCounts || !is_readable(view.tensor));
    if (takes_over) record.stats = base->record.stats;
    record.has_stats = takes_over || take_stats(view, record.stats);
  }
  if (base != nullptr) {
    record.base = base->record.id;
    write_again_if_dropped(*base);
  }
  ValueInfo& info = table_.add(std::move(record), view.tensor.dtype, /*row_batch=*/0);
  ++next_value_;
  info.checksum = checksum;
  info.has_checksum = checked;
  info.checked_after = use.after;
  info.checked_step = use.step;
  if (before != nullptr && producer == kNoSeq) note_change(*before, info, use);
  return info;
}

ValueInfo& RowBuilder::look_up(const ValueView& view, LayoutId layout, const Use& use) {
  count_reading(view, use);
  ValueInfo* known = table_.find(view.storage, view.version, view.offset, layout);
  if (known == nullptr) {
    known = &add_value(view, layout, table_.find_base(view.storage, view.version), kNoSeq, use);
  } else if (!still_holds(view, *known, use)) {
    ValueInfo& after = add_value(view, layout, nullptr, kNoSeq, use);  // hides the one before
    note_change(*known, after, use);
    known = &after;
  }
  table_.touch(view.storage, next_seq_);
  write_again_if_dropped(*known);
  return *known;
}

ValueInfo& RowBuilder::make_output(const OpEvent& event, std::size_t output, LayoutId layout, FlushRule rule,
                                   const Use& use) {
  const ValueView& view = event.outputs[output].value;
  count_reading(view, use);
  ValueInfo* base = nullptr;  // the input this output is a view of
  for (std::size_t i = 0; i < event.inputs.size() && base == nullptr; ++i) {
    const ValueView& in = event.inputs[i].value;
    if (in.storage != 0 && in.storage == view.storage && in.version == view.version) base = inputs_[i];
  }
  ValueInfo& info = add_value(view, layout, base, use.reader, use);
  table_.touch(view.storage, next_seq_);
  if (rule != FlushRule::kNotMeasured && info.record.has_stats) {
    flush_inputs_.clear();
    for (std::size_t i = 0; i < event.inputs.size(); ++i) {
      const ValueRecord& in = inputs_[i]->record;
      flush_inputs_.push_back({&event.inputs[i], in.has_stats && in.stats.level >= StatsLevel::kCounts ? &in.stats : nullptr, in.id});
    }
    info.record.flushed = is_readable(view.tensor)
                              ? count_flushed(rule, flush_inputs_, event.scalars, view.tensor, info.record.stats)
                              : known_flushed(event, rule, output, info.record.stats);
  }
  write_row(info);
  return info;
}

RowBuilder::Birth RowBuilder::birth_of(const OpEvent& event, bool ignores_old, const ValueInfo& made) const {
  bool nan_in = false, inf_in = false;
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const ArgRole role = event.inputs[i].role;
    if (!mixes_numbers(role) || !inputs_[i]->is_bad() || (ignores_old && role == ArgRole::kOverwritten)) continue;
    nan_in = nan_in || inputs_[i]->record.stats.nan > 0;
    inf_in = inf_in || inputs_[i]->record.stats.inf() > 0;
  }
  const TensorStats& stats = made.record.stats;
  return {.inf = stats.inf() > 0 && !inf_in && !nan_in, .nan = stats.nan > 0 && !nan_in};
}

void RowBuilder::add_evidence(const OpEvent& event, const OpNumbers& numbers, const OpOutput& output,
                              const ValueInfo& made, Birth birth, std::uint64_t seq) {
  const ElementMap map = numbers.traits.elements;
  const auto add = [&](std::int64_t at) {
    if (at < 0 || evidence_left_ == 0) return;
    EvidenceRecord row;
    row.seq = seq;
    row.value = made.record.id;
    row.flat_index = at;
    row.number = element_at(output.value.tensor, at);
    for (const OperandNumber& operand : operands_at(map, event.inputs, output.value.tensor.sizes, at)) {
      row.operands.push_back({numbers.input_slots[operand.input], inputs_[operand.input]->record.id,
                              operand.flat_index, operand.number});
    }
    extra_bytes_ += sizeof(EvidenceRecord) + row.operands.size() * sizeof(Operand);
    rows_.batch.evidence.push_back(std::move(row));
    --evidence_left_;
  };
  if (birth.inf) add(find_first(output.value.tensor, BadKind::kInf));
  if (birth.nan) add(find_first(output.value.tensor, BadKind::kNan));
}

bool RowBuilder::shows_histogram(const ValueInfo& value, std::uint64_t seq) const {
  const auto& rows = rows_.batch.histograms;
  for (auto row = rows.rbegin(); row != rows.rend() && row->seq == seq; ++row) {
    if (row->value == value.record.id) return true;  // mul(x, x)
  }
  return false;
}

void RowBuilder::add_histogram(const OpEvent& event, bool of_output, std::size_t index, std::uint64_t seq) {
  const ValueView& view = of_output ? event.outputs[index].value : event.inputs[index].value;
  const ValueInfo& value = of_output ? *outputs_[index] : *inputs_[index];
  if (histograms_left_ == 0 || !is_floating(view.tensor.dtype) || shows_histogram(value, seq)) return;
  if (is_readable(view.tensor)) return add_histogram(view.tensor, value, seq);
  if (view.known != nullptr) add_known_histogram(event, of_output, index, seq);
}

void RowBuilder::add_histogram(const TensorView& tensor, const ValueInfo& value, std::uint64_t seq) {
  TensorStats stats = compute_stats(tensor, StatsLevel::kHistogram);
  extra_bytes_ += sizeof(HistogramRecord) + stats.histogram.size() * sizeof(stats.histogram[0]);
  rows_.batch.histograms.push_back({seq, value.record.id, stats.histogram_min_exponent, std::move(stats.histogram)});
  --histograms_left_;
}

// Old contents are gone: whatever a hook hands over for them is something else.
void RowBuilder::add_histograms(const OpEvent& event, std::uint64_t seq) {
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const OpInput& in = event.inputs[i];
    if (mixes_numbers(in.role) && in.role != ArgRole::kOverwritten) add_histogram(event, false, i, seq);
  }
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    add_histogram(event, true, i, seq);
  }
}

// The spans are good until the next call.
OpNumbers RowBuilder::numbers_of(const OpEvent& event) {
  names_.clear();
  op_layouts_.clear();
  OpNumbers numbers;
  numbers.module = number(event.module);
  numbers.op = number(event.op);
  numbers.call_site = number(event.call_site);
  for (const OpInput& in : event.inputs) {
    op_layouts_.push_back(number(in.value.tensor));
    names_.push_back(number(in.slot));
  }
  for (const OpOutput& out : event.outputs) {
    op_layouts_.push_back(number(out.value.tensor));
    names_.push_back(number(out.slot));
  }
  for (const OpScalar& scalar : event.scalars) names_.push_back(number(scalar.name));
  const std::size_t inputs = event.inputs.size(), outputs = event.outputs.size();
  numbers.input_slots = std::span(names_).first(inputs);
  numbers.output_slots = std::span(names_).subspan(inputs, outputs);
  numbers.scalar_names = std::span(names_).subspan(inputs + outputs);
  numbers.input_layouts = std::span(op_layouts_).first(inputs);
  numbers.output_layouts = std::span(op_layouts_).subspan(inputs);
  numbers.traits = op_traits(event.op);
  return numbers;
}

// A seq is used up even if the op is lost, so that it never names another.
bool RowBuilder::add_op(const OpEvent& event) {
  const std::uint64_t seq = next_seq_++;
  return add_op(event, numbers_of(event), seq);
}

bool RowBuilder::add_op(const OpEvent& event, const OpNumbers& numbers) { return add_op(event, numbers, next_seq_++); }

bool RowBuilder::add_op(const OpEvent& event, const OpNumbers& numbers, std::uint64_t seq) {
  Rollback rollback(*this);
  const Use use{seq, seq, event.step};
  RecordBatch& b = rows_.batch;
  if (event.late != 0) {
    ++deferred_readings_;
    if (event.findings == nullptr) ++not_recorded_.statistics;
  }
  OpRecord op;
  op.seq = seq;
  op.step = event.step;
  op.micro_batch = event.micro_batch;
  op.phase = event.phase;
  op.module = numbers.module;
  op.op = numbers.op;
  op.call_site = numbers.call_site;
  op.compute_dtype = event.compute_dtype;

  bool bad_in = false, bad_out = false;
  op.first_input = static_cast<std::uint32_t>(b.inputs.size());
  op.input_count = static_cast<std::uint32_t>(event.inputs.size());
  inputs_.clear();
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const OpInput& in = event.inputs[i];
    ValueInfo& info =
        look_up(in.value, numbers.input_layouts[i], {seq, seq, event.step, in.role == ArgRole::kOverwritten});
    inputs_.push_back(&info);
    bad_in = bad_in || info.is_bad();
    b.inputs.push_back({info.record.id, numbers.input_slots[i], in.role});
  }
  op.first_output = static_cast<std::uint32_t>(b.outputs.size());
  op.output_count = static_cast<std::uint32_t>(event.outputs.size());
  outputs_.clear();
  bool born = false, number = false;
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    ValueInfo& info = make_output(event, i, numbers.output_layouts[i], numbers.traits.flush, use);
    outputs_.push_back(&info);
    b.outputs.push_back({info.record.id, numbers.output_slots[i], ArgRole::kRead});
    if (!info.is_bad()) continue;
    bad_out = true;
    const Birth birth = birth_of(event, numbers.traits.ignores_old, info);
    born = born || birth.any();
    number = number || birth.nan || (birth.inf && info.record.stats.numel == 1);
    if (!birth.any() || evidence_left_ == 0) continue;
    if (is_readable(event.outputs[i].value.tensor)) {
      add_evidence(event, numbers, event.outputs[i], info, birth, seq);
    } else {
      add_known_evidence(event, numbers, i, info, birth, seq);
    }
  }
  began_ = born;
  began_number_ = number;
  if (born && histograms_left_ > 0) add_histograms(event, seq);
  op.first_scalar = static_cast<std::uint32_t>(b.scalars.size());
  op.scalar_count = static_cast<std::uint32_t>(event.scalars.size());
  for (std::size_t i = 0; i < event.scalars.size(); ++i) {
    b.scalars.push_back({numbers.scalar_names[i], event.scalars[i].value});
  }
  if (const auto updates = lost_updates_of(event)) {
    b.scalars.push_back({strings_.intern(kUpdatesScalar, b), static_cast<double>(updates->updates)});
    b.scalars.push_back({strings_.intern(kLostUpdatesScalar, b), static_cast<double>(updates->lost)});
    b.scalars.push_back({strings_.intern(kLostShareScalar, b), updates->share});
    op.scalar_count += 3;
  }
  b.ops.push_back(op);
  rows_.op_is_essential.push_back(bad_in || bad_out ? 1 : 0);
  rollback.commit();
  finish_event();
  return bad_out;
}

void RowBuilder::add_mark(const MarkEvent& event) {
  const LayoutId layout = number(event.value.tensor);
  add_mark(event, number(event.path), layout);
}

void RowBuilder::add_mark(const MarkEvent& event, StringId path, LayoutId layout) {
  Rollback rollback(*this);
  ValueInfo& info = look_up(event.value, layout, between_ops(event.step));
  remember(event.value, info, between_ops(event.step));
  MarkRecord mark;
  mark.seq = next_seq_;
  mark.step = event.step;
  mark.micro_batch = event.micro_batch;
  mark.kind = event.kind;
  mark.path = path;
  mark.value = info.record.id;
  const bool bad = info.is_bad();
  rows_.batch.marks.push_back(mark);
  rows_.mark_is_essential.push_back(bad ? 1 : 0);
  rollback.commit();
  finish_event();
}

void RowBuilder::add_batch(const BatchEvent& event) {
  Rollback rollback(*this);
  rows_.batch.sample_ids.push_back({event.step, event.micro_batch, {event.sample_ids.begin(), event.sample_ids.end()}});
  extra_bytes_ += sizeof(SampleIdsRecord) + event.sample_ids.size_bytes();
  rollback.commit();
}

void RowBuilder::add_scaler(const ScalerEvent& event) {
  Rollback rollback(*this);
  ScalerRecord row;
  row.seq = next_seq_;
  row.step = event.step;
  row.micro_batch = event.micro_batch;
  row.action = event.action;
  row.optimizer = event.optimizer;
  row.found_inf = event.found_inf;
  row.scale = event.scale;
  row.growth_tracker = event.growth_tracker;
  row.total_norm = event.total_norm;
  row.max_norm = event.max_norm;
  row.dynamic = event.dynamic;
  row.growth_factor = event.growth_factor;
  row.backoff_factor = event.backoff_factor;
  row.growth_interval = event.growth_interval;
  row.hysteresis = event.hysteresis;
  row.text = strings_.intern(event.text, rows_.batch);
  rows_.batch.scaler.push_back(row);
  extra_bytes_ += sizeof(ScalerRecord);
  rollback.commit();
}

void RowBuilder::add_health(const HealthEvent& event) {
  Rollback rollback(*this);
  const StringId first_bad = strings_.intern(event.first_bad, rows_.batch);
  rows_.batch.health.push_back({next_seq_, event.step, event.bad, event.bad_tensors, first_bad, event.gradient_norm,
                                event.weight_norm, event.weight_checksum});
  extra_bytes_ += sizeof(HealthRecord);
  rollback.commit();
}

void RowBuilder::add_norm(const NormEvent& event) {
  Rollback rollback(*this);
  const StringId path = strings_.intern(event.path, rows_.batch);
  rows_.batch.norms.push_back({next_seq_, event.step, event.kind, path, event.norm, event.amax});
  extra_bytes_ += sizeof(NormRecord);
  rollback.commit();
}

void RowBuilder::add_unheard(const UnheardEvent& event) {
  Rollback rollback(*this);
  const StringId text = strings_.intern(event.text, rows_.batch);
  rows_.batch.unheard.push_back({next_seq_, event.step, text});
  extra_bytes_ += sizeof(UnheardRecord);
  rollback.commit();
}

void RowBuilder::add_changed(const ChangedEvent& event) {
  Rollback rollback(*this);
  const LayoutId layout = layouts_.intern(event.value.tensor, rows_.batch);
  const ValueInfo* known = table_.find(event.value.storage, event.value.version, event.value.offset, layout);
  const ValueId before = known == nullptr ? 0 : known->record.id;
  ValueInfo& after = add_value(event.value, layout, nullptr, kNoSeq, between_ops(event.step));
  write_row(after);
  rows_.batch.changed.push_back(
      {next_seq_, event.step, before, after.record.id, event.since_seq, event.since_step, event.opaque});
  extra_bytes_ += sizeof(ChangedRecord);
  hide_what_overlaps(after);
  rollback.commit();
  finish_event();
}

void RowBuilder::check(std::uint32_t step, const ValueView& value, LayoutId layout) {
  Rollback rollback(*this);
  ValueInfo* known = table_.find(value.storage, value.version, value.offset, layout);
  if (known != nullptr) look_again(value, layout, *known, between_ops(step));
  rollback.commit();
  finish_event();
}

void RowBuilder::add_probe(const ProbeEvent& event) {
  Rollback rollback(*this);
  const StringId text = strings_.intern(event.text, rows_.batch);
  rows_.batch.probes.push_back({event.seq, event.step, event.mode, event.dtype, event.ops, event.ran, event.nan,
                                event.pos_inf, event.neg_inf, event.flat_index, event.number, text});
  extra_bytes_ += sizeof(ProbeRecord);
  rollback.commit();
}

void RowBuilder::add_capture(const CaptureEvent& event) {
  Rollback rollback(*this);
  const StringId file = strings_.intern(event.file, rows_.batch);
  rows_.batch.captures.push_back({event.seq, event.step, file, event.bytes});
  extra_bytes_ += sizeof(CaptureRecord);
  rollback.commit();
}

void RowBuilder::add_note(const NoteEvent& event) {
  Rollback rollback(*this);
  const StringId text = strings_.intern(event.text, rows_.batch);
  rows_.batch.notes.push_back({next_seq_, event.step, text, event.count});
  extra_bytes_ += sizeof(NoteRecord);
  rollback.commit();
}

void RowBuilder::add_collective(const CollectiveEvent& event) {
  Rollback rollback(*this);
  for (const ValueView& share : event.shares) look_up(share, number(share.tensor), between_ops(event.step));
  CollectiveRecord row;
  row.seq = event.seq;
  row.step = event.step;
  row.group = strings_.intern(event.group, rows_.batch);
  row.call = event.call;
  row.kind = event.kind;
  row.reduction = event.reduction;
  row.peer = event.peer;
  row.ranks.assign(event.ranks.begin(), event.ranks.end());
  rows_.batch.collectives.push_back(std::move(row));
  extra_bytes_ += sizeof(CollectiveRecord) + event.ranks.size_bytes();
  rollback.commit();
  finish_event();
}

void RowBuilder::add_kernel(const KernelEvent& event) {
  Rollback rollback(*this);
  const StringId name = strings_.intern(event.name, rows_.batch);
  rows_.batch.kernels.push_back({event.seq, event.step, name, event.own, event.count, event.timed, event.duration_ns});
  extra_bytes_ += sizeof(KernelRecord);
  rollback.commit();
}

void RowBuilder::add_step(const StepEvent& event, std::int64_t wall_ns) {
  Rollback rollback(*this);
  const StringId message = event.message.empty() ? 0 : strings_.intern(event.message, rows_.batch);
  rows_.batch.steps.push_back({event.step, event.skipped, event.loss, event.lr, event.scale, next_seq_, wall_ns,
                               event.ending, message, event.watch_ns});
  rollback.commit();
}

void RowBuilder::add_release(std::uint64_t storage) {
  Rollback rollback(*this);
  const ValueTable::Released released = table_.release(storage);
  // One that is not known may have been forgotten: its rows are then in the file.
  if (released.has_rows || (!released.known && forgot_storages_)) {
    rows_.batch.ends_of_life.push_back({storage, next_seq_});
    rows_.end_first_batch.push_back(released.first_batch);
  }
  rollback.commit();
}

void RowBuilder::add_experiment(const ExperimentRecord& experiment) {
  rows_.batch.experiments.push_back(experiment);
  extra_bytes_ += sizeof(ExperimentRecord) + experiment.fix.size() + experiment.description.size();
}

void RowBuilder::add_drop(const Dropped& dropped) {
  rows_.batch.drops.push_back({next_seq_, dropped.ops, dropped.values, dropped.other});
}

void RowBuilder::finish_event() noexcept {
  if (!table_.over_limit()) return;
  try {
    const std::vector<std::uint64_t> storages = table_.least_recently_used();
    forgot_storages_ = true;
    for (std::uint64_t storage : storages) table_.release(storage);
  } catch (...) {  // no memory: the next event tries again
  }
}

std::size_t RowBuilder::bytes() const {
  constexpr std::size_t kNameBytes = 64;  // a string's or layout's own memory, typically
  const RecordBatch& b = rows_.batch;
  return b.values.size() * sizeof(ValueRecord) + b.ops.size() * (sizeof(OpRecord) + 1) +
         (b.inputs.size() + b.outputs.size()) * sizeof(OpArg) + b.scalars.size() * sizeof(ScalarArg) +
         b.marks.size() * (sizeof(MarkRecord) + 1) + b.strings.size() * (sizeof(StringRecord) + kNameBytes) +
         b.layouts.size() * (sizeof(LayoutRecord) + kNameBytes) +
         b.ends_of_life.size() * (sizeof(EndOfLifeRecord) + 8) + b.steps.size() * sizeof(StepRecord) + extra_bytes_;
}

void RowBuilder::begin_batch(RecordBatch&& empty_batch) noexcept {
  rows_.batch = std::move(empty_batch);
  rows_.clear();
  ++rows_.number;
  held_from_ = next_seq_;
  extra_bytes_ = 0;
}

Dropped RowBuilder::thin_rows() {
  std::vector<ValueRecord> gone;
  const Dropped dropped = thin(rows_, gone);
  for (const ValueRecord& value : gone) {
    ValueInfo* info = table_.find_id(value.storage, value.id);
    if (info != nullptr) info->row_batch = 0;
  }
  return dropped;
}

Dropped RowBuilder::drop_value_graph() noexcept { return nanhunt::record::drop_value_graph(rows_); }

std::uint64_t RowBuilder::drop_ops() {
  evidence_left_ += static_cast<std::uint32_t>(rows_.batch.evidence.size());
  histograms_left_ += static_cast<std::uint32_t>(rows_.batch.histograms.size());
  checks_left_ += static_cast<std::uint32_t>(rows_.batch.changed.size());
  extra_bytes_ = 0;
  next_seq_ = held_from_;
  nanhunt::record::drop_ops(rows_, next_seq_);
  table_.for_each([&](ValueInfo& info) {
    if (info.row_batch >= rows_.number) info.row_batch = 0;
    if (info.record.producer >= next_seq_) info.record.producer = kNoSeq;
    if (info.checked_after >= next_seq_) info.checked_after = next_seq_ == 0 ? kNoSeq : next_seq_ - 1;
  });
  return next_seq_;
}

void RowBuilder::forget_rows(std::uint64_t first_batch, std::vector<ValueId> values) {
  std::sort(values.begin(), values.end());
  table_.for_each([&](ValueInfo& info) {
    if (info.row_batch >= first_batch || std::binary_search(values.begin(), values.end(), info.record.id)) {
      info.row_batch = 0;
    }
  });
}

}  // namespace nanhunt::record
