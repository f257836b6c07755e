// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/origin_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "src/core/ops/op_info.h"
#include "src/core/op_name.h"
#include "src/trace/in_order.h"

namespace nanhunt::hunt {
namespace {

constexpr std::size_t kMaxStepOps = 1u << 20;  // of one step; a longer one is not planned for

// An op of the origin's step, by ids.
struct StepOp {
  OpRecord record;
  std::vector<OpArg> inputs, outputs;
  std::vector<ScalarArg> scalars;
};

// First reading: the ops of the step up to the origin. Second: the values that the plan names.
class StepReader {
 public:
  StepReader(std::uint64_t seq, std::uint32_t step) : seq_(seq), step_(step) {}

  void take_ops(const RecordBatch& batch) {
    for (const StringRecord& record : batch.strings) strings_[record.id] = record.text;
    batch_ = &batch;
    trace::for_each_in_order(batch, *this);
  }

  void on(const OpRecord& op) {
    if (op.step != step_ || op.seq > seq_) return;
    if (ops_.size() >= kMaxStepOps) {
      too_long_ = true;
      return;
    }
    const auto slice = [](const auto& table, std::uint32_t first, std::uint32_t count) {
      const auto begin = table.begin() + first;
      return std::vector<std::decay_t<decltype(table[0])>>(begin, begin + count);
    };
    ops_.push_back({op, slice(batch_->inputs, op.first_input, op.input_count),
                    slice(batch_->outputs, op.first_output, op.output_count),
                    slice(batch_->scalars, op.first_scalar, op.scalar_count)});
  }
  void on(const auto&) {}  // other rows name no op of the step

  void take_values(const RecordBatch& batch) {
    for (const LayoutRecord& record : batch.layouts) layouts_[record.id] = record;
    for (const ValueRecord& record : batch.values) {
      if (const auto wanted = values_.find(record.id); wanted != values_.end()) wanted->second = record;
    }
  }

  bool found() const { return !too_long_ && !ops_.empty() && ops_.back().record.seq == seq_; }

  // Breadth first from the origin, as the analyzer walks: through the arguments that can make it fail, where the op
  // table names some.
  OriginPlan plan(const std::function<bool(std::string_view)>& knows) {
    std::map<ValueId, std::pair<std::size_t, std::size_t>> made;  // by which op of the step, and which output
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (std::size_t o = 0; o < ops_[i].outputs.size(); ++o) made[ops_[i].outputs[o].value] = {i, o};
    }
    OriginPlan plan;
    plan.step = step_;
    std::map<std::size_t, int> taken{{ops_.size() - 1, 0}};
    plan.ops.push_back(planned(ops_.size() - 1));
    std::vector<std::size_t> chosen{ops_.size() - 1};
    for (std::size_t next = 0; next < chosen.size(); ++next) {
      const std::size_t at = chosen[next];
      const bool only_poles = next == 0 && has_pole_slot(plan.ops[0]);
      for (std::size_t k = 0; k < ops_[at].inputs.size(); ++k) {
        const OpArg& input = ops_[at].inputs[k];
        const auto producer = made.find(input.value);
        if (producer == made.end() || producer->second.first >= at) continue;
        const auto known = taken.find(producer->second.first);
        int index = known == taken.end() ? -1 : known->second;
        const bool followed = input.role != ArgRole::kMask && input.role != ArgRole::kIndex &&
                              (!only_poles || is_pole_slot(plan.ops[0], text(input.slot)));
        if (index < 0 && followed && plan.ops.size() < kMaxSliceOps &&
            knows(plain_op_name(text(ops_[producer->second.first].record.op)))) {
          index = static_cast<int>(plan.ops.size());
          taken.emplace(producer->second.first, index);
          chosen.push_back(producer->second.first);
          plan.ops.push_back(planned(producer->second.first));
        }
        plan.ops[next].inputs[k].producer = index;
        plan.ops[next].inputs[k].output = producer->second.second;
        if (index < 0 && input.role == ArgRole::kOverwritten)
          plan.held.emplace_back(position(producer->second.first), producer->second.second);
      }
    }
    // What an op of the plan overwrites may have been made by another one of it, or be read by several: hold that too.
    for (const PlannedOp& op : plan.ops) {
      for (const PlannedValue& input : op.inputs) {
        if (input.producer < 0) continue;
        const PlannedOp& producer = plan.ops[static_cast<std::size_t>(input.producer)];
        if (input.role == ArgRole::kOverwritten) plan.held.emplace_back(producer.at, input.output);
      }
    }
    return plan;
  }

  // Once values were read: formats, shapes and statistics.
  void complete(OriginPlan& plan) const {
    for (PlannedOp& op : plan.ops) {
      for (PlannedValue& value : op.inputs) complete(value);
      for (PlannedValue& value : op.outputs) complete(value);
    }
  }

 private:
  const std::string& text(StringId id) const {
    static const std::string kNone;
    const auto found = strings_.find(id);
    return found == strings_.end() ? kNone : found->second;
  }

  OpPosition position(std::size_t index) const {
    const OpRecord& op = ops_[index].record;
    OpPosition at{op.micro_batch, op.phase, text(op.module), std::string(plain_op_name(text(op.op))), 0};
    for (std::size_t i = 0; i < index; ++i) {
      const OpRecord& other = ops_[i].record;
      if (other.micro_batch == op.micro_batch && other.phase == op.phase && other.module == op.module &&
          other.op == op.op)
        ++at.nth;
    }
    return at;
  }

  PlannedOp planned(std::size_t index) {
    const StepOp& op = ops_[index];
    PlannedOp out{op.record.seq, position(index), {}, {}, {}, op.record.compute_dtype};
    for (const ScalarArg& scalar : op.scalars) out.scalars.emplace_back(text(scalar.name), scalar.value);
    const auto value = [&](const OpArg& arg) {
      values_.try_emplace(arg.value);
      PlannedValue planned;
      planned.slot = text(arg.slot);
      planned.role = arg.role;
      planned.value = arg.value;
      return planned;
    };
    for (const OpArg& arg : op.inputs) out.inputs.push_back(value(arg));
    for (const OpArg& arg : op.outputs) out.outputs.push_back(value(arg));
    return out;
  }

  void complete(PlannedValue& value) const {
    const auto row = values_.find(value.value);
    if (row == values_.end()) return;
    value.has_stats = row->second.has_stats;
    value.stats = row->second.stats;
    if (const auto layout = layouts_.find(row->second.layout); layout != layouts_.end()) {
      value.dtype = layout->second.dtype;
      value.sizes = layout->second.sizes;
    }
  }

  static bool is_pole_slot(const PlannedOp& op, const std::string& slot) {
    const auto& slots = op_info(op.at.op).pole_slots;
    return !slot.empty() && std::find(slots.begin(), slots.end(), slot) != slots.end();
  }
  static bool has_pole_slot(const PlannedOp& op) {
    return std::any_of(op.inputs.begin(), op.inputs.end(),
                       [&](const PlannedValue& v) { return is_pole_slot(op, v.slot); });
  }

  const RecordBatch* batch_ = nullptr;  // the one that on() reads from
  std::uint64_t seq_;
  std::uint32_t step_;
  bool too_long_ = false;
  std::map<StringId, std::string> strings_;
  std::map<LayoutId, LayoutRecord> layouts_;
  std::vector<StepOp> ops_;
  std::map<ValueId, ValueRecord> values_;
};

}  // namespace

Result<std::optional<OriginPlan>> plan_origin(const std::string& attempt_dir, const Finding& finding,
                                              const std::function<bool(std::string_view)>& knows) {
  std::optional<OriginPlan> none;
  if (!finding.place.op || finding.place.seq == kNoSeq || !finding.output || finding.bad_elements == 0) return none;
  auto attempts = find_attempts(attempt_dir);
  if (!attempts) return attempts.status();
  StepReader reader(finding.place.seq, finding.place.step);
  TraceHealth health;
  // Damage is no reason to give up: the origin is there or is not.
  Status read = read_attempt(attempts->front(), [&](const RecordBatch& batch) { reader.take_ops(batch); }, health);
  if (!read && read.code() != StatusCode::kDamaged) return read;
  if (!reader.found()) return Status(StatusCode::kNotFound, "the trace no longer holds the step of the origin.");
  OriginPlan plan = reader.plan(knows);
  health = {};
  read = read_attempt(attempts->front(), [&](const RecordBatch& batch) { reader.take_values(batch); }, health);
  if (!read && read.code() != StatusCode::kDamaged) return read;
  reader.complete(plan);
  plan.bad_output = static_cast<std::size_t>(std::max(finding.output->index, 0));
  if (plan.bad_output >= plan.ops[0].outputs.size()) return none;
  plan.flat_index =
      finding.element ? finding.element->flat_index : plan.ops[0].outputs[plan.bad_output].stats.first_nonfinite;
  return std::optional(std::move(plan));
}

}  // namespace nanhunt::hunt
