// SPDX-License-Identifier: Apache-2.0
// The part of RowBuilder for statistics that come later than the rows that show them.
#include <algorithm>
#include <iterator>

#include "src/record/evidence.h"
#include "src/record/row_builder.h"

namespace nanhunt::record {
namespace {

std::int64_t numel_of(const KnownLayout& layout) {
  std::int64_t n = 1;
  for (const std::int64_t s : layout.sizes) n *= s;
  return n;
}
bool is_contiguous(const KnownLayout& layout) {
  return TensorView{nullptr, layout.dtype, layout.sizes, layout.strides}.is_contiguous();
}

// As a ValueRecord keeps them.
TensorStats kept(const TensorStats& stats) {
  TensorStats out = stats;
  out.level = std::min(out.level, StatsLevel::kSums);
  out.what_if = {};
  out.histogram_min_exponent = 0;
  out.histogram.clear();
  return out;
}

}  // namespace

bool RowBuilder::shares_contents(const ValueView& view, LayoutId layout, const ValueInfo& known) const {
  if (layout == 0 || known.record.layout == 0 || known.record.storage != view.storage || view.storage == 0 ||
      known.record.version != view.version || known.record.offset != view.offset) {
    return false;
  }
  if (!known.record.has_stats && !known.is_late) return false;
  if (known.record.layout == layout) return true;
  const KnownLayout& other = layouts_.layout(known.record.layout);
  return other.dtype == view.tensor.dtype && numel_of(other) == view.tensor.numel() && is_contiguous(other) &&
         view.tensor.is_contiguous();
}

bool RowBuilder::wants_stats(const ValueView& view) {
  const LayoutId layout = number(view.tensor);
  if (table_.find(view.storage, view.version, view.offset, layout) != nullptr) return false;
  const ValueInfo* base = table_.find_base(view.storage, view.version);
  return base == nullptr || !shares_contents(view, layout, *base);
}

// `info` is new and has no row yet. `same_key` was hidden by it.
void RowBuilder::expect_late(ValueInfo& info, const ValueView& view, const ValueInfo* base, const ValueInfo* same_key) {
  ++late_.told;
  const ValueInfo* source = nullptr;
  if (view.late == kLateAsKnown) {
    const ValueInfo* candidates[] = {base, same_key, table_.find_base(view.storage, view.version)};
    for (const ValueInfo* known : candidates) {
      if (source == nullptr && known != nullptr && known != &info && shares_contents(view, info.record.layout, *known)) {
        source = known;
      }
    }
    if (source == nullptr) {
      ++late_.not_taken.statistics;
      return;
    }
    if (source->record.has_stats) {
      info.record.stats = source->record.stats;
      info.record.has_stats = true;
      return;
    }
  }
  const ValueId id = info.record.id;
  event_late_.push_back(id);
  LateValue& value = late_.values[id];
  value.storage = view.storage;
  value.numel = view.tensor.numel();
  value.since = late_.steps;
  late_.order.push_back(id);
  if (source != nullptr) {
    const auto followed = late_.values.find(source->record.id);
    if (followed != late_.values.end()) followed->second.followers.push_back(id);
  } else {
    event_numbers_.push_back(view.late);
    late_.value_of.insert_or_assign(view.late, id);
  }
  info.is_late = true;
  extra_bytes_ += sizeof(LateValue) + 64;
}

void RowBuilder::place_late_row(const ValueInfo& info) {
  const auto found = late_.values.find(info.record.id);
  if (found == late_.values.end()) return;
  found->second.batch = rows_.number;
  found->second.row = rows_.batch.values.size() - 1;
  ++rows_.waiting;
}

PendingRows* RowBuilder::rows_numbered(std::uint64_t number) {
  if (number == rows_.number) return &rows_;
  const auto at = std::lower_bound(late_.held.begin(), late_.held.end(), number,
                                   [](const HeldRows& held, std::uint64_t n) { return held.rows.number < n; });
  return at != late_.held.end() && at->rows.number == number ? &at->rows : nullptr;
}

// The op's row is the last one. Everything that throws comes first.
void RowBuilder::add_late_op(const OpEvent& event, const OpNumbers& numbers, std::uint64_t seq, bool bad_out,
                             bool has_update_slots) {
  LateOp op;
  op.seq = seq;
  op.batch = rows_.number;
  op.row = rows_.batch.ops.size() - 1;
  op.number = event.late;
  op.findings_wait = event.late != 0;
  op.since = late_.steps;
  op.bad = bad_out;
  op.traits = numbers.traits;
  op.has_update_slots = has_update_slots;
  const auto know = [&](const ValueInfo& info) {
    const auto [at, is_new] = late_.values.try_emplace(info.record.id);
    if (!is_new) return;
    event_late_.push_back(info.record.id);
    at->second.storage = info.record.storage;
    at->second.state = info.record.has_stats ? LateState::kKnown : LateState::kUnknown;
    if (info.record.has_stats) at->second.stats = info.record.stats;
  };
  for (std::size_t i = 0; i < event.inputs.size(); ++i) {
    const OpInput& in = event.inputs[i];
    know(*inputs_[i]);
    op.inputs.push_back({inputs_[i]->record.id, numbers.input_slots[i], in.role, is_readable(in.value.tensor)});
  }
  for (std::size_t i = 0; i < event.outputs.size(); ++i) {
    const TensorView& made = event.outputs[i].value.tensor;
    know(*outputs_[i]);
    op.outputs.push_back({outputs_[i]->record.id, made.dtype, is_readable(made)});
    // What the host can read now it will not be able to read when the op is judged.
    if (!outputs_[i]->is_bad() || !is_readable(made)) continue;
    for (const BadKind kind : {BadKind::kInf, BadKind::kNan}) {
      const std::int64_t at = find_first(made, kind);
      if (at < 0) continue;
      FoundElement found{i, kind == BadKind::kNan, at, element_at(made, at), {}};
      for (const OperandNumber& operand : operands_at(numbers.traits.elements, event.inputs, made.sizes, at)) {
        found.operands.push_back({operand.input, operand.flat_index, operand.number});
      }
      op.elements.push_back(std::move(found));
    }
  }
  for (std::size_t i = 0; i < event.scalars.size(); ++i) op.scalars.emplace_back(numbers.scalar_names[i], event.scalars[i].value);
  const std::size_t bytes = sizeof(LateOp) + op.inputs.size() * sizeof(LateOp::Input) +
                            op.outputs.size() * sizeof(LateOp::Output) + event_late_.size() * sizeof(LateValue);
  late_.ops.push_back(std::move(op));
  LateOp& kept_op = late_.ops.back();
  if (event.late != 0) {
    try {
      event_numbers_.push_back(event.late);
      late_.op_of.insert_or_assign(event.late, &kept_op);
    } catch (...) {
      late_.ops.pop_back();
      throw;
    }
    ++late_.told;
  }
  for (const LateOp::Input& in : kept_op.inputs) ++late_.values.find(in.value)->second.users;
  for (const LateOp::Output& out : kept_op.outputs) ++late_.values.find(out.value)->second.users;
  ++rows_.waiting;
  extra_bytes_ += bytes;
}

void RowBuilder::take_late_back() noexcept {
  for (const std::uint64_t number : event_numbers_) {
    late_.value_of.erase(number);
    late_.op_of.erase(number);
  }
  for (auto id = event_late_.rbegin(); id != event_late_.rend(); ++id) {
    if (const auto value = late_.values.find(*id); value != late_.values.end()) {
      if (ValueInfo* info = table_.find_id(value->second.storage, *id)) info->is_late = false;
      late_.values.erase(value);
    }
    if (!late_.order.empty() && late_.order.back() == *id) late_.order.pop_back();
  }
}

// What has come is not looked at again.
void RowBuilder::trim_late() noexcept {
  while (!late_.order.empty()) {
    const auto found = late_.values.find(late_.order.front());
    if (found != late_.values.end() && found->second.state == LateState::kWaiting) break;
    late_.order.pop_front();
  }
}

void RowBuilder::settle(ValueId id, const TensorStats* stats) {
  const auto found = late_.values.find(id);
  if (found == late_.values.end() || found->second.state != LateState::kWaiting) return;
  LateValue& value = found->second;
  // Counts are the least that a row says, and of all its elements.
  if (stats != nullptr && (stats->level < StatsLevel::kCounts || stats->numel != value.numel)) stats = nullptr;
  TensorStats known;
  if (stats != nullptr) known = kept(*stats);
  // Nothing throws from here on but what the followers need.
  if (stats == nullptr) ++late_.not_taken.statistics;
  value.state = stats != nullptr ? LateState::kKnown : LateState::kUnknown;
  value.stats = known;
  PendingRows* rows = value.batch == 0 ? nullptr : rows_numbered(value.batch);
  if (rows != nullptr) {
    ValueRecord& row = rows->batch.values[value.row];
    row.stats = known;
    row.has_stats = stats != nullptr;
    --rows->waiting;
  }
  if (ValueInfo* info = table_.find_id(value.storage, id)) {
    info->record.stats = known;
    info->record.has_stats = stats != nullptr;
    info->is_late = false;
  }
  if (known.nonfinite() > 0) {
    for (const auto& [batch, row] : value.marks) {
      PendingRows* marked = rows_numbered(batch);
      if (marked != nullptr && row < marked->mark_is_essential.size()) marked->mark_is_essential[row] = 1;
    }
  }
  const std::vector<ValueId> followers = std::move(value.followers);
  if (value.users == 0) late_.values.erase(found);
  for (const ValueId follower : followers) settle(follower, stats);
}

void RowBuilder::late_stats(std::uint64_t number, const TensorStats& stats) {
  const auto found = late_.value_of.find(number);
  if (found == late_.value_of.end()) return;
  const ValueId id = found->second;
  late_.value_of.erase(found);
  settle(id, &stats);
  trim_late();
  judge_ops();
}

void RowBuilder::late_findings(std::uint64_t number, const LateFindings& findings) {
  const auto found = late_.op_of.find(number);
  if (found == late_.op_of.end()) return;
  LateOp& op = *found->second;
  for (const LateElement& e : findings.elements) {
    op.elements.push_back({e.output, e.nan, e.flat_index, e.number, {e.operands.begin(), e.operands.end()}});
  }
  for (const LateHistogram& h : findings.histograms) {
    op.histograms.push_back({h.of_output, h.index, h.min_exponent, {h.bins.begin(), h.bins.end()}});
  }
  op.flushed = findings.flushed;
  op.updates = findings.updates;
  op.lost_updates = findings.lost_updates;
  op.lost_update_share = findings.lost_update_share;
  op.findings_wait = false;
  late_.op_of.erase(found);
  judge_ops();
}

void RowBuilder::late_lost(std::uint64_t number) {
  if (const auto value = late_.value_of.find(number); value != late_.value_of.end()) {
    const ValueId id = value->second;
    late_.value_of.erase(value);
    settle(id, nullptr);
  }
  if (const auto op = late_.op_of.find(number); op != late_.op_of.end()) give_up_findings(*op->second);
  judge_ops();
}

void RowBuilder::give_up_findings(LateOp& op) noexcept {
  if (!op.findings_wait) return;
  op.findings_wait = false;
  ++late_.not_taken.statistics;
  late_.op_of.erase(op.number);
}

// Everything told before `since` ended steps ago, and everything that rows up to batch `number` wait for.
void RowBuilder::give_up_late(std::uint64_t since, std::uint64_t number) {
  while (!late_.order.empty()) {
    const ValueId id = late_.order.front();
    const auto found = late_.values.find(id);
    if (found != late_.values.end() && found->second.state == LateState::kWaiting) {
      const LateValue& value = found->second;
      if (value.since >= since && value.batch > number) break;
      settle(id, nullptr);
    }
    late_.order.pop_front();
  }
  for (LateOp& op : late_.ops) {
    if (op.since >= since && op.batch > number) break;
    give_up_findings(op);
  }
  judge_ops();
}

void RowBuilder::end_late_step(std::uint32_t late_steps) {
  ++late_.steps;
  if (late_.steps > late_steps) give_up_late(late_.steps - late_steps, 0);
  trim_late();
}

void RowBuilder::judge_ops() {
  const auto is_settled = [&](ValueId id) { return late_.values.find(id)->second.state != LateState::kWaiting; };
  while (!late_.ops.empty()) {
    LateOp& op = late_.ops.front();
    if (op.findings_wait) return;
    for (const LateOp::Input& in : op.inputs) {
      if (!is_settled(in.value)) return;
    }
    for (const LateOp::Output& out : op.outputs) {
      if (!is_settled(out.value)) return;
    }
    judge(op);
    const auto drop_user = [&](ValueId id) {
      const auto found = late_.values.find(id);
      if (found != late_.values.end() && --found->second.users == 0) late_.values.erase(found);
    };
    for (const LateOp::Input& in : op.inputs) drop_user(in.value);
    for (const LateOp::Output& out : op.outputs) drop_user(out.value);
    late_.ops.pop_front();
  }
}

// What add_op() does at once where the host can read. No memory for a row of evidence: it counts as not taken.
void RowBuilder::judge(LateOp& op) noexcept {
  PendingRows* rows = rows_numbered(op.batch);
  if (rows == nullptr) return;
  --rows->waiting;
  const auto value_of = [&](ValueId id) -> const LateValue& { return late_.values.find(id)->second; };
  const auto is_bad = [&](ValueId id) { return value_of(id).state == LateState::kKnown && value_of(id).stats.nonfinite() > 0; };
  bool bad_in = false, bad_out = false, born = false;
  for (const LateOp::Input& in : op.inputs) bad_in = bad_in || is_bad(in.value);
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const LateOp::Output& out = op.outputs[i];
    if (value_of(out.value).state != LateState::kKnown) continue;
    try {
      count_late_flushed(op, i);
    } catch (...) {
      ++late_.not_taken.flushed;
    }
    if (!is_bad(out.value)) continue;
    bad_out = true;
    const Birth birth = birth_of(op, value_of(out.value).stats);
    born = born || birth.any();
    try {
      if (birth.any()) add_late_evidence(op, i, birth, *rows);
    } catch (...) {
      ++late_.not_taken.elements;
    }
  }
  if (born) {
    try {
      add_late_histograms(op, *rows);
    } catch (...) {
      ++late_.not_taken.histograms;
    }
  }
  if (op.has_update_slots) {
    OpRecord& row = rows->batch.ops[op.row];
    if (op.updates >= 0) {
      ScalarArg* last = rows->batch.scalars.data() + row.first_scalar + row.scalar_count - 3;
      last[0].value = static_cast<double>(op.updates);
      last[1].value = static_cast<double>(op.lost_updates);
      last[2].value = op.lost_update_share;
    } else {
      row.scalar_count -= 3;
      ++late_.not_taken.updates;
    }
  }
  if (bad_in || bad_out) rows->op_is_essential[op.row] = 1;
  if (bad_out && !op.bad) ++late_.anomalies;
}

RowBuilder::Birth RowBuilder::birth_of(const LateOp& op, const TensorStats& made) const {
  bool nan_in = false, inf_in = false;
  for (const LateOp::Input& in : op.inputs) {
    const LateValue& value = late_.values.find(in.value)->second;
    const bool mixes = in.role != ArgRole::kMask && in.role != ArgRole::kIndex;
    if (!mixes || value.state != LateState::kKnown || (op.traits.ignores_old && in.role == ArgRole::kOverwritten)) continue;
    nan_in = nan_in || value.stats.nan > 0;
    inf_in = inf_in || value.stats.inf() > 0;
  }
  return {.inf = made.inf() > 0 && !inf_in && !nan_in, .nan = made.nan > 0 && !nan_in};
}

void RowBuilder::count_late_flushed(const LateOp& op, std::size_t index) {
  const LateOp::Output& out = op.outputs[index];
  if (op.traits.flush == FlushRule::kNotMeasured) return;
  LateValue& made = late_.values.find(out.value)->second;
  PendingRows* rows = made.batch == 0 ? nullptr : rows_numbered(made.batch);
  ValueInfo* info = table_.find_id(made.storage, out.value);
  if ((info != nullptr && info->record.flushed >= 0) || (rows != nullptr && rows->batch.values[made.row].flushed >= 0)) return;
  std::vector<OpInput> inputs(op.inputs.size());
  std::vector<FlushInput> flush_inputs;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs[i].role = op.inputs[i].role;
    const LateValue& value = late_.values.find(op.inputs[i].value)->second;
    flush_inputs.push_back({&inputs[i], value.state == LateState::kKnown ? &value.stats : nullptr, op.inputs[i].value});
  }
  std::vector<OpScalar> scalars;
  for (const auto& [name, number] : op.scalars) {
    scalars.push_back({name == 0 ? std::string_view() : std::string_view(strings_.text(name)), number});
  }
  std::int64_t flushed = settle_flushed(op.traits.flush, flush_inputs, scalars, out.dtype, made.stats);
  if (flushed == kNeedsElements) {
    flushed = index == 0 ? op.flushed : -1;
    if (flushed < 0) ++late_.not_taken.flushed;
  }
  if (rows != nullptr) rows->batch.values[made.row].flushed = flushed;
  if (info != nullptr) info->record.flushed = flushed;
}

void RowBuilder::add_late_evidence(const LateOp& op, std::size_t index, Birth birth, PendingRows& rows) {
  for (const bool nan : {false, true}) {
    if (!(nan ? birth.nan : birth.inf) || evidence_left_ == 0) continue;
    const auto found = std::find_if(op.elements.begin(), op.elements.end(), [&](const FoundElement& e) {
      return e.output == index && e.nan == nan && e.flat_index >= 0;
    });
    if (found == op.elements.end()) {
      ++late_.not_taken.elements;
      continue;
    }
    EvidenceRecord row;
    row.seq = op.seq;
    row.value = op.outputs[index].value;
    row.flat_index = found->flat_index;
    row.number = found->number;
    for (const LateOperand& operand : found->operands) {
      if (operand.input >= op.inputs.size()) continue;
      const LateOp::Input& in = op.inputs[operand.input];
      row.operands.push_back({in.slot, in.value, operand.flat_index, operand.number});
    }
    rows.batch.evidence.push_back(std::move(row));
    --evidence_left_;
  }
}

void RowBuilder::add_late_histograms(const LateOp& op, PendingRows& rows) {
  if (histograms_left_ == 0) return;
  if (op.histograms.empty()) ++late_.not_taken.histograms;
  std::vector<ValueId> shown;
  for (const FoundHistogram& h : op.histograms) {
    const std::size_t count = h.of_output ? op.outputs.size() : op.inputs.size();
    if (histograms_left_ == 0 || h.index >= count) continue;
    const ValueId id = h.of_output ? op.outputs[h.index].value : op.inputs[h.index].value;
    if (std::find(shown.begin(), shown.end(), id) != shown.end()) continue;  // mul(x, x)
    shown.push_back(id);
    rows.batch.histograms.push_back({op.seq, id, h.min_exponent, h.bins});
    --histograms_left_;
  }
}

void RowBuilder::hold_rows(RecordBatch&& empty_batch) {
  late_.held.emplace_back();
  HeldRows& held = late_.held.back();
  held.bytes = bytes();
  held.next_seq = next_seq_;
  held.rows = std::move(rows_);
  const std::uint64_t number = held.rows.number;
  late_.held_bytes += held.bytes;
  rows_ = PendingRows{};
  rows_.number = number;
  begin_batch(std::move(empty_batch));
}

HeldRows* RowBuilder::ready_rows() {
  return late_.held.empty() || late_.held.front().rows.waiting != 0 ? nullptr : &late_.held.front();
}

Dropped RowBuilder::thin_ready_rows() {
  HeldRows& held = late_.held.front();
  std::unordered_set<ValueId> named;
  for (std::size_t i = 1; i < late_.held.size(); ++i) add_named_values(late_.held[i].rows.batch, named);
  add_named_values(rows_.batch, named);
  std::vector<ValueRecord> gone;
  const Dropped dropped = thin(held.rows, gone, named);
  for (const ValueRecord& value : gone) {
    if (ValueInfo* info = table_.find_id(value.storage, value.id)) info->row_batch = 0;
  }
  return dropped;
}

void RowBuilder::pop_ready_rows() noexcept {
  late_.held_bytes -= late_.held.front().bytes;
  late_.held.pop_front();
}

Dropped RowBuilder::drop_late() noexcept {
  Dropped dropped;
  for (HeldRows& held : late_.held) dropped.add(nanhunt::record::drop_value_graph(held.rows));
  late_.values.clear();
  late_.value_of.clear();
  late_.op_of.clear();
  late_.order.clear();
  late_.ops.clear();
  table_.for_each([](ValueInfo& info) { info.is_late = false; });
  return dropped;
}

void RowBuilder::note_not_taken(std::uint32_t step) {
  const NotTaken& now = late_.not_taken;
  if (now == late_.noted) return;
  // What throws in between leaves notes that are told again.
  const auto note = [&](std::uint64_t count, std::uint64_t noted, std::string_view what) {
    if (count == noted) return;
    rows_.batch.notes.push_back({next_seq_, step, strings_.intern(what, rows_.batch), count});
    extra_bytes_ += sizeof(NoteRecord);
  };
  note(now.statistics, late_.noted.statistics, "not taken on a device: statistics that were lost or came too late");
  note(now.elements, late_.noted.elements, "not taken on a device: first bad elements and what they were made from");
  note(now.flushed, late_.noted.flushed, "not taken on a device: how many values were lost to zero");
  note(now.histograms, late_.noted.histograms, "not taken on a device: histograms of ops where bad numbers were born");
  note(now.updates, late_.noted.updates, "not taken on a device: updates that changed nothing");
  late_.noted = now;
}

}  // namespace nanhunt::record
