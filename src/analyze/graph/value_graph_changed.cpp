// SPDX-License-Identifier: Apache-2.0
// The part of ValueGraph that follows what changed unseen, what was never written, and bad steps that are
// not in the trace.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "src/analyze/graph/lifecycle.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {
namespace {

// The largest magnitude grew, or some magnitude fell below all there were: the two ways in which the flip of a high
// bit of an exponent shows.
bool is_gross(const ValueStats& then, const ValueStats& now) {
  if (now.amax >= kGrossChange * std::max(then.amax, kNegligible)) return true;
  if (then.amax < kNegligible) return false;
  const bool fell = now.amin_nonzero > 0 && now.amin_nonzero * kGrossChange <= then.amin_nonzero;
  return fell || now.amax * kGrossChange <= then.amax;
}

// How the contents changed, as far as statistics tell. Without those of before anything may have.
void judge(Change& change, const Value& after) {
  if (after.bad != 0) {
    change.gross = change.carries = true;
    return;
  }
  const ValueStats& now = after.stats;
  const ValueStats& then = change.before.stats;
  if (!change.before.known || !then.counted() || !now.counted()) {
    change.carries = true;
    return;
  }
  change.gross = is_gross(then, now);
  // A sign or a zero where there was none can lead out of the domain of what follows.
  change.carries = change.gross || (then.min >= 0 && now.min < 0) || (then.zero == 0 && now.zero > 0);
}

// What memory held may lead out of the format further on: bad already, or so large that its square is. Not known: yes.
bool may_overflow(const Value& value, const LayoutRecord* layout) {
  const ValueStats& now = value.stats;
  if (layout != nullptr && !is_floating(layout->dtype)) return false;  // every whole number is in its format
  if (value.bad != 0 || !value.has_stats || !now.counted() || layout == nullptr) return true;
  return now.amax >= std::sqrt(format_limits(layout->dtype).max_finite);
}

// What was made of memory of which it is not known what it held: a function that writes by a pointer is not heard, and
// leaves ordinary numbers. Read and finite, of a size that was not recorded: ordinary.
bool is_large(const Value& value, const LayoutRecord* layout) {
  const bool known_finite = value.has_stats && value.bad == 0 && !value.stats.counted();
  return !known_finite && may_overflow(value, layout);
}

}  // namespace

// Where the contents are at home: the parameter, or the op that made them.
void ValueGraph::place_change(Birth& birth, const Value& value) {
  birth.source.name = value.name;
  weigh_change(birth);
  constexpr TensorRole kHomes[] = {TensorRole::kParameter, TensorRole::kState, TensorRole::kBuffer, TensorRole::kBatch,
                                 TensorRole::kLabel};
  for (const TensorRole kind : kHomes) {
    if (!value.has_role(kind)) continue;
    const bool data = kind == TensorRole::kBatch || kind == TensorRole::kLabel;
    birth.role = kind;
    birth.at.phase = Phase::kData;
    birth.at.op = data ? kBatchOp : kStateOp;
    birth.at.module = data ? 0 : value.name;
    return;
  }
  birth.role = TensorRole::kLoss;  // none of these
  if (const RecentOp* producer = ring_.find(value.producer)) {
    birth.at.phase = producer->phase;
    birth.at.op = producer->op;
    birth.at.module = producer->module;
  }
}

void ValueGraph::on_changed(const ChangedRecord& record) {
  collect_garbage_if_needed();
  enter_step(record.step);
  Value* after = values_.find(record.after);
  if (after == nullptr) return;
  Value* before = values_.find(record.before);
  if (before != nullptr) {
    if (after->name == 0) after->name = before->name;
    after->roles = static_cast<std::uint8_t>(after->roles | before->roles);
    after->made_in = before->made_in;
    after->made_step = before->made_step;
  }
  const auto key = std::pair(after->storage, after->version);
  if (const auto known = changed_at_.find(key); known != changed_at_.end() && find_birth(known->second) != nullptr) {
    // The same change, seen through another view.
    const Birth& birth = *find_birth(known->second);
    after->suspect = birth.id;
    if (after->bad != 0) carry(*after, labels_.of(birth.id), Deliberate::kNo, birth.node);
    return;
  }
  ++counts_.changes;
  if (before != nullptr && before->resolved && (after->bad & ~before->bad) == 0 && after->bad != 0) {
    carry(*after, before->labels, before->deliberate, before->node);  // bad as it was
    return;
  }
  if (const Value* result = exchanged_as(*after)) return carry(*after, result->labels, result->deliberate, result->node);
  if (changed_at_.size() >= kMaxChanges) return;

  OpRef at;
  at.step = record.step;
  at.op = kUnwatchedOp;
  at.phase = Phase::kData;
  Birth& birth = new_birth(BirthKind::kUnseenWrite, at);
  birth.lifecycle = Lifecycle::kUnknown;
  birth.watched = before != nullptr && before->has_stats;
  birth.source = snapshot(after, OpArg{after->id, 0, ArgRole::kRead});
  birth.change = std::make_unique<Change>();
  Change& change = *birth.change;
  if (before != nullptr) change.before = snapshot(before, OpArg{before->id, 0, ArgRole::kRead});
  change.opaque = record.opaque;
  change.since_step = record.since_step;
  change.has_since = record.since_step <= record.step;
  if (const RecentOp* op = ring_.find(record.since_seq)) {
    change.since = OpRef{op->seq, op->step, 0, op->phase, op->module, op->op};
  }
  change.reader.seq = record.seq;  // that op, once it comes
  judge(change, *after);
  // A view of a parameter is at home where the parameter is.
  const Value* home = before != nullptr ? before : after;
  for (int depth = 0; depth < 64 && home->base != 0 && home->roles == 0; ++depth) {
    const Value* base = values_.find(home->base);
    if (base == nullptr) break;
    home = base;
  }
  place_change(birth, *home);
  if (birth.source.name == 0) birth.source.name = after->name;
  birth.node = add_node(*after, birth.at, Lifecycle::kUnknown, birth.id, {});
  after->suspect = birth.id;
  changed_at_.emplace(key, birth.id);
  unread_changes_.push_back(birth.id);
  suspect_until_ = std::max(suspect_until_, record.step + kSuspectSteps);
  if (after->bad != 0) {
    carry(*after, labels_.of(birth.id), Deliberate::kNo, birth.node);
    note_first(after->labels, after->bad, birth.at);
  }
}

// Before is known by its norm alone.
void ValueGraph::weigh_change(Birth& birth) {
  Change& change = *birth.change;
  if (change.before.known || change.amax_before >= 0 || birth.source.name == 0) return;
  const auto norms = amax_before_.find(birth.source.name);
  if (norms == amax_before_.end()) return;
  double before = -1, older = -1;
  for (const auto& [step, amax] : norms->second) {
    if (step == change.since_step) before = amax;
    if (step < change.since_step) older = amax;
  }
  if (before < 0) return;
  const ValueStats& now = birth.source.stats;
  const auto is_far = [&now](double then) {
    return now.counted() && now.amax >= kGrossChange * std::max(then, kNegligible);
  };
  // Read before the next update: that may be after the change.
  const bool late = before == now.amax && older >= 0 && is_far(older);
  change.amax_before = late ? older : before;
  change.gross = change.gross || is_far(change.amax_before);
}

void ValueGraph::on_norm(const NormRecord& record) {
  if (record.kind != TensorRole::kParameter || record.path == 0 || !std::isfinite(record.amax)) return;
  if (amax_before_.size() >= kMaxNorms && !amax_before_.contains(record.path)) return;
  auto& norms = amax_before_[record.path];
  if (norms.size() >= kNormsKept) norms.erase(norms.begin());
  norms.emplace_back(record.step, record.amax);
  for (const auto& [where, id] : changed_at_) {
    if (Birth* birth = find_birth(id)) weigh_change(*birth);
  }
}

// A view that no watched op made shows contents that changed as well, or that were made of such.
void ValueGraph::suspect_view(Value& value) {
  if (value.suspect != 0 || value.producer != kNoSeq || step_ > suspect_until_) return;
  const Value* base = values_.find(value.base);
  for (; base != nullptr && base->version == value.version; base = values_.find(base->base)) {
    if (base->suspect == 0) continue;
    value.suspect = base->suspect;
    return;
  }
  const auto changed = changed_at_.find({value.storage, value.version});
  if (changed != changed_at_.end() && find_birth(changed->second) != nullptr) value.suspect = changed->second;
}

// What a step without ops made of changed contents: a parameter or state that it left under a newer version, and,
// where the change was gross, any of them.
void ValueGraph::suspect_unseen(Value& value) {
  if (value.suspect != 0 || value.producer != kNoSeq || step_ > suspect_until_) return;
  for (const auto& [where, id] : changed_at_) {
    const Birth* birth = find_birth(id);
    if (birth == nullptr || step_ <= birth->at.step || step_ > birth->at.step + kSuspectSteps) continue;
    const bool same = where.first == value.storage && value.version > where.second;
    if (!(same && birth->change->carries) && !birth->change->gross) continue;
    value.suspect = id;
    return;
  }
}

// The change from which badness of this op's outputs would descend. `to_blame`: the op reads it itself, or it was
// gross; and else what its zeros were.
BirthId ValueGraph::suspect_of(const OpInView& op, bool to_blame) {
  BirthId first = to_blame ? faded_of(op) : 0;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || value->suspect == 0) continue;
    if (leaves_unread(op, i, names_)) continue;
    const Birth* birth = find_birth(value->suspect);
    if (birth == nullptr || birth->change == nullptr || op.record->step > birth->at.step + kSuspectSteps) continue;
    const bool itself = birth->source.value == value->id;
    if (!birth->change->carries && !(to_blame && itself)) continue;
    if (first == 0 || birth->id < first) first = birth->id;
  }
  return first;
}

void ValueGraph::follow_suspects(const OpInView& op) {
  if (op.record->step > suspect_until_) return;
  const BirthId suspect = suspect_of(op, /*to_blame=*/false);
  if (suspect == 0) return;
  const Birth& birth = *find_birth(suspect);
  const bool unread = birth.kind == BirthKind::kGarbage && !birth.source.stats.counted();
  for (Value* value : op.out) {
    if (value == nullptr || value->suspect != 0) continue;
    if (unread && !is_large(*value, names_.layout(value->layout))) continue;
    value->suspect = suspect;
  }
}

void ValueGraph::note_reader(const OpInView& op, const OpRef& at) {
  std::erase_if(unread_changes_, [&](BirthId id) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) return true;
    for (std::size_t i = 0; i < op.in.size(); ++i) {
      if (op.in[i] == nullptr || op.in[i]->suspect != id) continue;
      const bool unread = leaves_unread(op, i, names_);
      if (unread && op.inputs[i].role != ArgRole::kOverwritten) continue;  // still to be read, or written
      if (!unread) birth->change->reader = at;
      return true;
    }
    return false;
  });
  constexpr std::size_t kMaxUnread = 4096;
  if (unread_changes_.size() > kMaxUnread) unread_changes_.erase(unread_changes_.begin());
}

// What an op like `empty` gives out is whatever the memory held before. It harms whom reads it before it is written.
void ValueGraph::make_garbage(const OpInView& op, const OpRef& at) {
  for (Value* value : op.out) {
    if (value == nullptr) continue;
    Birth& birth = new_birth(BirthKind::kGarbage, at);
    birth.lifecycle = Lifecycle::kUnknown;
    birth.call_site = op.record->call_site;
    birth.source = snapshot(value, OpArg{value->id, 0, ArgRole::kRead});
    birth.change = std::make_unique<Change>();
    birth.change->carries = may_overflow(*value, names_.layout(value->layout));
    birth.node = add_node(*value, at, Lifecycle::kUnknown, birth.id, {});
    value->suspect = birth.id;
    unread_changes_.push_back(birth.id);
    suspect_until_ = std::max(suspect_until_, at.step + kSuspectSteps);
    if (value->bad != 0) carry(*value, labels_.of(birth.id), Deliberate::kNo, birth.node);
  }
}

void ValueGraph::on_unheard_mark(const MarkRecord& mark) {
  Value* value = values_.find(mark.value);
  const bool unknown = value != nullptr && value->bad != 0 && !value->resolved && !inherit(*value, 0);
  if (!unknown) return on_mark(mark);
  if (mark.path != 0) value->name = mark.path;
  value->add_role(mark.kind);
}

std::vector<const Birth*> ValueGraph::changes() const {
  std::vector<const Birth*> out;
  for (const auto& [id, birth] : births_) {
    if (birth->kind == BirthKind::kUnseenWrite) out.push_back(birth.get());
  }
  return out;
}

bool ValueGraph::on_unheard(std::uint32_t step, std::uint32_t bad, bool held_back) {
  if (!hit_in_step_.empty()) return true;
  const bool gradients_alone = (bad & kSinkBits) == role_bit(TensorRole::kBoundaryGradient);
  const std::vector<BirthId>& to_answer = streak_.empty() && gradients_alone && held_back ? scaled_ : streak_;
  const std::uint32_t of_scaler = role_bit(TensorRole::kLoss) | role_bit(TensorRole::kBoundaryGradient);
  const bool loss = (bad & role_bit(TensorRole::kLoss)) != 0, only_gradients = (bad & kSinkBits & ~of_scaler) == 0;
  // What has reached the loss before answers for it: that of a scaler's own product is no harm (harmed_only_gradients).
  const bool known = std::any_of(to_answer.begin(), to_answer.end(), [this](BirthId id) {
    const Birth* birth = find_birth(id);
    return birth != nullptr && birth->trial.reached_loss;
  });
  bool answered = false;
  for (BirthId id : to_answer) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || birth->hit_in_step) continue;
    birth->events.add(step);
    birth->unwatched.add(step);
    birth->trial.only_gradients = birth->trial.only_gradients && only_gradients;
    birth->hit_in_step = true;
    hit_in_step_.push_back(id);
    answered = true;
    if (!loss || (known && !birth->trial.reached_loss)) continue;
    birth->trial.reached_loss = true;
    if (!birth->first_bad_loss) birth->first_bad_loss = step;
  }
  if (answered || gradients_alone) return answered;
  // Nothing went bad in a step that was seen, but contents had changed not long before.
  for (const auto& [where, id] : changed_at_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || step < birth->at.step || step > birth->at.step + kSuspectSteps) continue;
    const bool unknown = !birth->change->before.known && birth->change->amax_before < 0;
    if (!birth->change->gross && !unknown) continue;
    if (!birth->harmful && !becomes_origin(*birth, step)) continue;
    birth->events.add(step);
    birth->unwatched.add(step);
    if (!std::exchange(birth->counted, true)) birth->born.add(birth->at.step);
    birth->trial.only_gradients = false;
    birth->watched = false;
    birth->hit_in_step = true;
    hit_in_step_.push_back(id);
    if ((bad & role_bit(TensorRole::kLoss)) != 0) birth->sinks.push_back({TensorRole::kLoss, 0, 0, kNoNode, kBadAny, {}});
    return true;
  }
  return false;
}

}  // namespace nanhunt::analyze
