// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/value_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/analyze/graph/call.h"
#include "src/analyze/graph/lifecycle.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/writes.h"

namespace nanhunt::analyze {
namespace {

constexpr std::uint8_t kLastingRoles = 1u << static_cast<unsigned>(TensorRole::kParameter) |
                                       1u << static_cast<unsigned>(TensorRole::kState) |
                                       1u << static_cast<unsigned>(TensorRole::kBuffer);

// A range of a batch's argument table; a damaged one is cut to what is there.
template <typename T>
std::span<const T> slice_of(const std::vector<T>& table, std::uint32_t first, std::uint32_t count) {
  if (first >= table.size()) return {};
  return std::span<const T>(table).subspan(first, std::min<std::size_t>(count, table.size() - first));
}

// A view that was never read is as bad as what else shows the same contents.
void taint_unread(ValueTable& values, Value& value) {
  constexpr int kMaxViews = 64;
  const auto take = [&value](const Value& other) {
    if (other.bad == 0 || !other.resolved || other.version != value.version) return false;
    value.labels = other.labels;
    value.deliberate = other.deliberate;
    value.node = other.node;
    return true;
  };
  if (const Value* base = values.find(value.base); base != nullptr && take(*base)) return;
  int looked = 0;
  for (std::int32_t slot = value.older; slot >= 0 && looked < kMaxViews; slot = values.at(slot).older, ++looked) {
    if (take(values.at(slot))) return;
  }
  // All of a memory shows what was written into parts of it.
  const StorageInfo* info = values.storage(value.storage);
  if (info == nullptr || info->residual_labels == 0 || !value.extent.holds(info->seen)) return;
  value.labels = info->residual_labels;
  value.deliberate = info->residual_deliberate;
  value.node = info->residual_node;
}

}  // namespace

void ValueGraph::add_value(const ValueRecord& record) {
  ++counts_.values;
  values_.insert(record, names_.layout(record.layout));
}

const OpInView& ValueGraph::on_op(const RecordBatch& batch, const OpRecord& op, const CollectiveRecord* call) {
  collect_garbage_if_needed();
  enter_step(op.step);
  ++counts_.ops;
  if (op.seq > next_seq_) {
    counts_.lost_ops += op.seq - next_seq_;
    lost_records_ = true;
  }
  next_seq_ = std::max(next_seq_, op.seq + 1);

  view_.record = &op;
  view_.info = &names_.op(op.op);
  view_.inputs = slice_of(batch.inputs, op.first_input, op.input_count);
  view_.outputs = slice_of(batch.outputs, op.first_output, op.output_count);
  view_.scalars = slice_of(batch.scalars, op.first_scalar, op.scalar_count);
  view_.call = call;
  view_.gives = call == nullptr || gives_share(*call, rank_);
  view_.gets = call == nullptr || gets_result(*call, rank_);
  born_ = 0;
  given_.clear();
  in_.clear();
  out_.clear();
  const OpRef at{op.seq, op.step, op.micro_batch, op.phase, op.module, op.op};
  bool bad_in = false;
  bool bad_out = false;
  bool suspects = false;
  for (const OpArg& arg : view_.inputs) {
    Value* value = values_.find(arg.value);
    in_.push_back(value);
    if (value != nullptr) suspect_view(*value);
    suspects = suspects || (value != nullptr && value->suspect != 0);
    if (value == nullptr || !value->has_stats) {
      if (mixes(*view_.info, arg.role)) counts_.note_unread(op.op);
      if (value != nullptr && !value->tainted()) taint_unread(values_, *value);
      bad_in = bad_in || (value != nullptr && value->tainted());
      continue;
    }
    if (value->bad == 0) continue;
    bad_in = true;
    if (!value->resolved) {
      OpRef use = at;
      use.seq = kNoSeq;
      use.module = 0;
      if (gives_number(view_, *value, names_.layout(value->layout))) {
        resolve(*value, BirthKind::kGiven, TensorRole::kBatch, at);
        read_at(*value, op.call_site);
        continue;
      }
      // What ops of phase data read first came from the program: samples that a loader puts together. What the loss
      // reads first it is given beside what the model made: labels, weights; an evaluation too: noise levels.
      const bool outside = value->producer == kNoSeq && value->roles == 0;
      const bool sample = outside && op.phase == Phase::kData;
      const bool given = outside && (op.phase == Phase::kLoss || op.phase == Phase::kValidation);
      use.op = sample || given ? kBatchOp : kUnwatchedOp;
      resolve(*value, sample ? BirthKind::kBatch : BirthKind::kUnwatched, TensorRole::kBatch, use);
      if (outside) read_at(*value, op.call_site);
    }
  }
  for (const OpArg& arg : view_.outputs) {
    Value* value = values_.find(arg.value);
    out_.push_back(value);
    bad_out = bad_out || (value != nullptr && value->bad != 0);
  }
  view_.in = in_;
  view_.out = out_;

  ring_.push(op, view_.inputs, view_.outputs, view_.scalars);
  if (suspects) {
    note_reader(view_, at);
    follow_suspects(view_);
  }
  if (view_.info->has(kMakesGarbage)) {
    make_garbage(view_, at);
  } else if (bad_out) {
    bad_outputs(view_, at);
    note_masked(view_, at);
    note_target(view_);
    const bool unmeant = std::any_of(out_.begin(), out_.end(), [](const Value* value) {
      return value != nullptr && value->bad != 0 && value->deliberate == Deliberate::kNo;
    });
    counts_.bad_ops += unmeant ? 1 : 0;  // infinities of a mask are no news
    step_bad_ops_ += unmeant ? 1 : 0;
    backward_is_bad_ = backward_is_bad_ || (unmeant && op.phase == Phase::kBackward);
  } else if (bad_in) {
    note_swallowed(view_, at);
    note_dropped(view_, at);
    taint_outputs(view_);
  }
  const bool exchanges = (bad_in || bad_out) && names_.is_exchange(op.phase, op.op);
  if (exchanges) note_given(view_, at);
  note_written_unread(view_);
  watch_swallowers(view_);
  finish_outputs(view_);
  if (exchanges) note_exchanged(view_);
  // Derivatives that a program takes between forwards train nothing.
  trained_ = trained_ || op.phase == Phase::kScale || (op.phase == Phase::kBackward && !infers_) ||
             op.phase == Phase::kUnscale || op.phase == Phase::kClip || op.phase == Phase::kOptimizer;
  if (bad_in && !bad_out && (!trained_ || op.phase <= Phase::kLoss || op.phase == Phase::kValidation))
    forget_cured(view_);
  note_trial(view_);
  if (bad_out) note_last_number(view_);
  if (bad_in || !questions_.empty()) note_question(view_);
  return view_;
}

// What was not read may be bad where something bad went into it; a mask, where nothing but one did.
void ValueGraph::taint_outputs(const OpInView& op) {
  if (op.info->has(kReadsShape)) return;
  LabelSetId labels = 0;
  Deliberate level = Deliberate::kYes;
  for (const Value* value : op.in) {
    if (value == nullptr || (value->bad == 0 && !value->tainted())) continue;
    labels = labels_.merge(labels, value->labels);
    level = std::min(level, value->deliberate);
  }
  if (labels == 0) return;
  for (Value* value : op.out) {
    if (value == nullptr || value->has_stats) continue;
    value->labels = labels;
    value->deliberate = op.info->has(kKeepsMask) ? level : Deliberate::kNo;
  }
}

void ValueGraph::carry(Value& value, LabelSetId labels, Deliberate deliberate, NodeId node) {
  value.labels = labels;
  value.deliberate = deliberate;
  value.node = node;
  value.resolved = true;
}

void ValueGraph::bad_outputs(const OpInView& given, const OpRef& at) {
  OpInView op = given;
  // A NaN that PyTorch gives itself is none that the program read.
  if (gave_sign(op, names_, values_, ring_) != nullptr) op.in = {}, op.inputs = {};
  unsigned kinds = 0;
  for (const Value* value : op.out) kinds |= value != nullptr ? value->bad : 0u;
  Flow flow = classify(op, static_cast<std::uint8_t>(kinds), names_);
  const bool nan_out = (kinds & kBadNaN) != 0;

  LabelSetId labels = 0;
  BirthId birth = 0;
  NodeId suspect_node = kNoNode;
  Deliberate deliberate = Deliberate::kNo;
  auto give_birth = [&](Deliberate on_purpose, BirthKind kind = BirthKind::kOp) {
    Birth& made = new_birth(kind, at);
    made.call_site = op.record->call_site;
    made.lifecycle = flow.lifecycle;
    made.watched = flow.watched;
    made.deliberate = deliberate = on_purpose;
    made.context = capture(op, names_, values_, ring_);
    birth = born_ = made.id;
    labels = labels_.of(birth);
  };
  const auto deferred_call = [&](const OpInView& view) -> const RecentOp* {
    for (std::size_t i = 0; i < view.in.size(); ++i) {
      const Value* value = view.in[i];
      if (value == nullptr || value->has_stats || !mixes(*view.info, view.inputs[i].role) ||
          leaves_unread(view, i, names_))
        continue;
      if (const RecentOp* call = call_behind(*value)) return call;
    }
    return nullptr;
  };
  // Nobody reads what is added to before it is written over: finite numbers made it bad, so it was bad.
  const auto adds_to_kept = [&](std::size_t i) {
    const Value* value = op.in[i];
    return value != nullptr && !value->has_stats && op.inputs[i].role == ArgRole::kOverwritten && is_left_by_skip(*value, at);
  };
  bool kept = std::any_of(flow.bad.begin(), flow.bad.end(),
                          [&](const Value* value) { return reads_kept_gradient(*value, at); });
  for (std::size_t i = 0; i < op.in.size() && flow.bad.empty(); ++i) kept = kept || adds_to_kept(i);
  if (kept) {
    // The step that left them was skipped and is over: from here on it is the keeping that does harm.
    give_birth(Deliberate::kNo, BirthKind::kKept);
    for (const Value* value : flow.bad) {
      if (!reads_kept_gradient(*value, at)) labels = labels_.merge(labels, value->labels);
    }
  } else if (!flow.bad.empty()) {
    Deliberate level = Deliberate::kYes;
    bool mask_like = true;  // nothing but -Inf came in
    for (const Value* value : flow.bad) {
      level = std::min(level, value->deliberate);
      mask_like = mask_like && value->stats.nan == 0 && value->stats.pos_inf == 0;
    }
    // Masks are added, selected by or given to a softmax; features that are multiplied and summed up are none.
    const bool takes_masks = !op.info->has(kAccumulates) || op.info->has(kSoftmax);
    const bool mask = level == Deliberate::kYes || (level == Deliberate::kLikely && mask_like && takes_masks);
    // What was written over, unread, shows badness that was not meant: it came in beside the mask.
    const bool beside = nan_out && std::any_of(flow.tainted.begin(), flow.tainted.end(), [](const Value* value) {
      return value->deliberate == Deliberate::kNo;
    });
    if (mask && beside) {
      flow.lifecycle = Lifecycle::kPropagate;
      for (const Value* value : flow.tainted) labels = labels_.merge(labels, value->labels);
    } else if ((mask && (flow.lifecycle == Lifecycle::kTransform || sums_only_masks(op))) ||
               (mask_like && !nan_out && reduces_masked_logs(op, flow.bad))) {
      give_birth(Deliberate::kNo);
      lead_masks(flow.bad, birth);
    } else if (level != Deliberate::kNo && !nan_out && makes_new_infinities(op, flow.bad)) {
      give_birth(Deliberate::kNo);
      find_birth(birth)->lifecycle = Lifecycle::kAppear;
    } else {
      // An infinity written on purpose takes no blame where arithmetic badness came in beside it.
      for (const Value* value : flow.bad) {
        if (level == value->deliberate || value->deliberate == Deliberate::kNo)
          labels = labels_.merge(labels, value->labels);
      }
      labels = less_asked_for(op, labels);
      if (!nan_out && (level == Deliberate::kYes || op.info->has(kKeepsMask))) deliberate = level;
    }
  } else if (!flow.tainted.empty()) {
    Deliberate level = Deliberate::kYes;
    for (const Value* value : flow.tainted) level = std::min(level, value->deliberate);
    if (level != Deliberate::kNo && nan_out && op.info->has(kSoftmax)) {
      give_birth(Deliberate::kNo);
      lead_masks(flow.tainted, birth);
    } else {
      for (const Value* value : flow.tainted) labels = labels_.merge(labels, value->labels);
      if (!nan_out && op.info->has(kKeepsMask)) deliberate = level;
    }
  } else if (!nan_out && (writes_infinity_on_purpose(op) || reads_written_unread(op))) {
    give_birth(Deliberate::kYes);
  } else if (op.call != nullptr && !nan_out && op.call->reduction == Reduction::kNone) {
    give_birth(Deliberate::kLikely);  // handed on by another rank as infinities alone: may be a mask
  } else if (const BirthId blamed = suspect_of(op, /*to_blame=*/true); blamed != 0) {
    labels = labels_.of(blamed);
    suspect_node = find_birth(blamed)->node;
  } else if (const RecentOp* call = deferred_call(op)) {
    const auto out =
        std::find_if(op.out.begin(), op.out.end(), [](const Value* v) { return v != nullptr && v->bad != 0; });
    Birth& made = deferred_birth(*call, **out);
    labels = labels_.of(made.id);
    made.node = suspect_node = add_node(**out, made.at, made.lifecycle, made.id, {});
    deliberate = made.deliberate;
  } else if (const Value* result = exchanged_behind(op)) {
    labels = result->labels;
    suspect_node = result->node;
    deliberate = result->deliberate;
  } else {
    give_birth(Deliberate::kNo);
  }

  parents_.clear();
  if (suspect_node != kNoNode) parents_.push_back(suspect_node);
  for (const Value* value : flow.bad) parents_.push_back(value->node);
  for (const Value* value : flow.tainted) parents_.push_back(value->node);
  for (Value* value : op.out) {
    if (value == nullptr) continue;
    if (!value->has_stats) value->labels = labels;
    if (value->bad == 0) continue;
    value->labels = labels;
    const NodeId node = add_node(*value, at, flow.lifecycle, birth, parents_);
    carry(*value, labels, deliberate, node);
    if (birth != 0) {
      Birth* made = find_birth(birth);
      if (made != nullptr && made->node == kNoNode) made->node = node;
    }
    note_first(value->labels, value->bad, at);
  }
}

// where(isnan(x), 0, y): the program wrote NaN into x as a mark, and selects it away. What is left has another origin,
// where an op was seen to be one.
LabelSetId ValueGraph::less_asked_for(const OpInView& op, LabelSetId labels) {
  if (!op.info->has(kSelects)) return labels;
  LabelSetId asked = 0;
  for (const OpArg& arg : op.inputs) {
    const auto question = questions_.find(arg.value);
    const Value* about = question == questions_.end() ? nullptr : values_.find(question->second);
    if (about != nullptr) asked = labels_.merge(asked, about->labels);
  }
  if (asked == 0) return labels;
  LabelSetId left = 0;
  bool computed = false;
  for (const BirthId id : labels_.get(labels).births) {
    const Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    const bool written = birth->kind == BirthKind::kGiven ||
                         (birth->context != nullptr && names_.op(birth->at.op).has(kWritesConstant));
    if (written && labels_.contains(asked, id)) continue;
    const bool other =
        birth->kind == BirthKind::kOp || (birth->kind == BirthKind::kState && !labels_.contains(asked, id));
    computed = computed || (other && !written && birth->deliberate == Deliberate::kNo);
    left = labels_.merge(left, labels_.of(id));
  }
  return computed ? left : labels;
}

bool ValueGraph::reduces_masked_logs(const OpInView& op, std::span<const Value* const> bad) {
  if (op.info->bound != Bound::kReduceSum || op.record->phase > Phase::kLoss) return false;
  return std::all_of(bad.begin(), bad.end(), [&](const Value* value) {
    const bool computed = std::ranges::any_of(labels_.get(value->labels).births, [&](BirthId id) {
      const Birth* birth = find_birth(id);
      return birth == nullptr || (birth->deliberate == Deliberate::kNo && birth->kind != BirthKind::kGiven);
    });
    if (computed) return false;
    const RecentOp* maker = ring_.find(values_.producer_of(*value));
    for (int i = 0; i < 2 && maker != nullptr; ++i) {
      if (names_.op(maker->op).has(kSoftmax)) return true;
      if (maker->inputs != 1) return false;  // only the negative of a log_softmax is looked through
      const Value* read = values_.find(ring_.input(*maker, 0).value);
      maker = read == nullptr ? nullptr : ring_.find(values_.producer_of(*read));
    }
    return false;
  });
}

// Infinities that were meant do harm where arithmetic makes something else of them: there, not where they were written.
void ValueGraph::lead_masks(std::span<const Value* const> masks, BirthId there) {
  for (const Value* mask : masks) {
    for (const BirthId id : labels_.get(mask->labels).births) {
      Birth* birth = find_birth(id);
      if (birth != nullptr && id != there && birth->deliberate != Deliberate::kNo && !birth->harmful && birth->lead == 0)
        birth->lead = there;
    }
  }
}

// What every op does to its outputs: an in-place write keeps name and role, old versions die.
void ValueGraph::finish_outputs(const OpInView& op) {
  for (Value* value : op.out) {
    if (value == nullptr) continue;
    value->resolved = true;
    value->made_step = op.record->step;
    value->made_in = op.record->phase;
    for (std::size_t i = 0; i < op.in.size(); ++i) {
      const Value* old = op.in[i];
      if (old == nullptr || op.inputs[i].role != ArgRole::kOverwritten || old->storage != value->storage) continue;
      if (value->name == 0) value->name = old->name;
      value->roles = static_cast<std::uint8_t>(value->roles | (old->roles & kLastingRoles));
    }
    if (value->name == 0 && value->base != 0) {
      if (const Value* base = values_.find(value->base)) value->name = base->name;
    }
    // A scaler's own, that is: what a program does by hand it may do to look whether a step must be skipped.
    if (value->bad != 0 && op.record->phase == Phase::kUnscale && names_.text(op.record->op).find("unscale") != std::string::npos)
      unscaled_bad_.push_back(value->id);
    if (op.record->phase == Phase::kOptimizer && value->has_role(TensorRole::kParameter)) note_update(op, *value);
    const auto in_place = [&] {
      return std::any_of(op.in.begin(), op.in.end(),
                         [&](const Value* in) { return in != nullptr && in->storage == value->storage; });
    };
    if ((value->roles & kLastingRoles) != 0 || (is_parameter_home(value->storage) && in_place())) {
      if (value->bad != 0) {
        bad_homes_[value->storage] = value->id;
      } else if (value->has_stats) {
        bad_homes_.erase(value->storage);
        standing_.erase(value->storage);
      }
    }
    values_.retire(value->storage, value->version, [&](Value& gone, StorageInfo& info) {
      if ((gone.bad == 0 && !gone.tainted()) || gone.labels == 0) return;
      const bool first = info.residual_labels == 0;
      if (first) info.residual_bad = 0;
      info.residual_labels = labels_.merge(info.residual_labels, gone.labels);
      info.residual_bad = static_cast<std::uint8_t>(info.residual_bad | (gone.has_stats ? gone.bad : kBadAny));
      info.residual_node = gone.node;
      info.residual_deliberate = first ? gone.deliberate : std::min(info.residual_deliberate, gone.deliberate);
    });
    if (value->has_stats) {
      StorageInfo* info = values_.storage(value->storage);
      // Only what covers all that was ever seen of the storage, without gaps, leaves nothing of the past in it.
      const bool whole = info != nullptr && value->extent.holds(info->seen) &&
                         value->stats.numel >= info->seen.end - info->seen.first;
      if (whole) info->residual_labels = 0;
    }
  }
}

// From what else is known of the storage: the base, other views, and what rewritten versions left behind. Each kind of
// badness has its own source: a mask written through a view does not explain the NaN beside it.
bool ValueGraph::inherit(Value& value, int depth) {
  constexpr int kMaxDepth = 64;
  std::uint8_t open = value.bad;
  bool found = false;
  auto take = [&](std::uint8_t kinds, LabelSetId labels, Deliberate deliberate, NodeId node) {
    if (found && (kinds & open) == 0) return;
    carry(value, found ? labels_.merge(value.labels, labels) : labels,
          found ? std::min(value.deliberate, deliberate) : deliberate, found ? value.node : node);
    open = static_cast<std::uint8_t>(open & ~kinds);
    found = true;
  };
  if (Value* base = values_.find(value.base)) {
    if (base->bad != 0 && !base->resolved && depth < kMaxDepth) inherit(*base, depth + 1);
    if (base->bad != 0 && base->resolved) {
      take(base->bad, base->labels, base->deliberate, base->node);
      if (value.name == 0) value.name = base->name;
    } else if (base->tainted() && base->version == value.version) {
      take(kBadAny, base->labels, Deliberate::kNo, base->node);  // not read when it was made
    }
  }
  StorageInfo* info = values_.storage(value.storage);
  if (info == nullptr || value.dead) return found;
  int looked = 0;
  for (std::int32_t slot = value.older; open != 0 && slot >= 0 && looked < kMaxDepth;
       slot = values_.at(slot).older, ++looked) {
    const Value& other = values_.at(slot);
    if (other.bad == 0 || !other.resolved || other.version > value.version) continue;
    take(other.bad, other.labels, other.deliberate, other.node);
  }
  if (open != 0 && info->residual_labels != 0) {
    take(info->residual_bad, info->residual_labels, info->residual_deliberate, info->residual_node);
  }
  return found;
}

void ValueGraph::read_at(const Value& value, StringId call_site) {
  for (const BirthId id : labels_.get(value.labels).births) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    if (birth->kind != BirthKind::kOp && birth->source.value == value.id) birth->call_site = call_site;
  }
}

void ValueGraph::resolve(Value& value, BirthKind kind, TensorRole role, const OpRef& at) {
  if (inherit(value, 0)) {
    note_first(value.labels, value.bad, at);
    return;
  }
  // What training gave out in steps whose ops were not kept is no sample: it is as bad as the weights that made it.
  if (kind == BirthKind::kBatch && at.step > heard_step_ + 1 && !standing_.empty() && !streak_.empty()) {
    LabelSetId of_streak = 0;
    for (const BirthId id : streak_) of_streak = labels_.merge(of_streak, labels_.of(id));
    carry(value, of_streak, Deliberate::kNo, kNoNode);
    return;
  }
  // What is bad in memory that nothing has written was there when it was given out.
  suspect_view(value);
  Birth* given = find_birth(value.suspect);
  const StorageInfo* memory = values_.storage(value.storage);
  if (given != nullptr && given->kind == BirthKind::kGarbage && memory != nullptr && memory->maker == given->at.seq) {
    if (!given->source.known) given->source.stats = value.stats;
    carry(value, labels_.of(given->id), Deliberate::kNo, given->node);
    note_first(value.labels, value.bad, given->at);
    return;
  }
  if (const RecentOp* call = unread_call_of(value)) {
    Birth& made = deferred_birth(*call, value);
    made.node = add_node(value, made.at, made.lifecycle, made.id, {});
    carry(value, labels_.of(made.id), made.deliberate, made.node);
    note_first(value.labels, value.bad, made.at);
    return;
  }
  if (const Value* result = kind == BirthKind::kUnwatched ? exchanged_as(value) : nullptr; result != nullptr) {
    carry(value, result->labels, result->deliberate, result->node);
    return;
  }
  Birth& birth = new_birth(kind, at);
  birth.role = role;
  birth.lifecycle = Lifecycle::kUnknown;
  birth.watched = kind != BirthKind::kUnwatched;
  birth.source = snapshot(&value, OpArg{value.id, 0, ArgRole::kRead});
  const bool inf_alone = (value.bad & kBadNaN) == 0;
  const bool may_be_mask = role != TensorRole::kParameter && role != TensorRole::kState;
  if (inf_alone && may_be_mask) birth.deliberate = Deliberate::kLikely;
  if (value.older >= 0) {
    const Value& before = values_.at(value.older);
    birth.was_clean = before.has_stats && before.bad == 0 && before.stats.numel >= value.stats.numel;
  }
  birth.node = add_node(value, at, Lifecycle::kUnknown, birth.id, {});
  carry(value, labels_.of(birth.id), birth.deliberate, birth.node);
  note_first(value.labels, value.bad, at);
}

// What takes part in backward, and no op was seen to make, is older than a step that comes right after a skipped one.
bool ValueGraph::is_left_by_skip(const Value& value, const OpRef& at) {
  const StorageInfo* storage = values_.storage(value.storage);
  const bool made = std::min(value.producer, storage == nullptr ? kNoSeq : storage->maker) < at.seq;
  return !made && value.roles == 0 && at.phase == Phase::kBackward && names_.op(at.op).name == "add" &&
         last_skip_ && *last_skip_ + 1 == at.step;
}

bool ValueGraph::reads_kept_gradient(const Value& value, const OpRef& at) {
  if (at.phase != Phase::kBackward || value.bad == 0 || value.made_step >= at.step) return false;
  const bool after = value.made_in >= Phase::kBackward && value.made_in <= Phase::kClip;
  const bool gradient = value.has_role(TensorRole::kBoundaryGradient) || (value.roles == 0 && after);
  return gradient && last_skip_ && *last_skip_ >= value.made_step && *last_skip_ < at.step;
}

Birth& ValueGraph::new_birth(BirthKind kind, const OpRef& at) {
  auto made = std::make_unique<Birth>();
  made->id = next_birth_++;
  made->kind = kind;
  made->at = at;
  made->after_loss = lost_records_;
  if (samples_ != nullptr && samples_of_.step == at.step && samples_of_.micro_batch == at.micro_batch)
    made->samples = samples_;
  born_in_step_.push_back(made->id);
  return *births_.emplace_hint(births_.end(), made->id, std::move(made))->second;
}

Birth* ValueGraph::find_birth(BirthId id) {
  const auto it = births_.find(id);
  return it == births_.end() ? nullptr : it->second.get();
}

bool ValueGraph::all_settled(LabelSetId labels) {
  LabelSets::Set& set = labels_.get(labels);
  if (set.settled) return true;
  for (BirthId id : set.births) {
    const Birth* birth = find_birth(id);
    if (birth != nullptr && !birth->settled) return false;
  }
  return set.settled = true;
}

NodeId ValueGraph::add_node(const Value& value, const OpRef& at, Lifecycle lifecycle, BirthId birth,
                            std::span<const NodeId> parents) {
  if (birth == 0 && value.labels != 0 && all_settled(value.labels)) return kNoNode;
  BadNode node;
  node.at = at;
  node.lifecycle = lifecycle;
  node.birth = birth;
  node.nan = value.stats.nan;
  node.pos_inf = value.stats.pos_inf;
  node.neg_inf = value.stats.neg_inf;
  node.numel = value.stats.numel;
  return graph_.add(node, parents);
}

void ValueGraph::note_first(LabelSetId labels, std::uint8_t kinds, const OpRef& at) {
  LabelSets::Set& set = labels_.get(labels);
  const bool inf = (kinds & kBadInf) != 0 && !set.saw_inf;
  const bool nan = (kinds & kBadNaN) != 0 && !set.saw_nan;
  if (!inf && !nan) return;
  for (BirthId id : set.births) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    if (inf && !birth->first_inf) birth->first_inf = at;
    if (nan && !birth->first_nan) birth->first_nan = at;
  }
  set.saw_inf = set.saw_inf || inf;
  set.saw_nan = set.saw_nan || nan;
}

}  // namespace nanhunt::analyze
