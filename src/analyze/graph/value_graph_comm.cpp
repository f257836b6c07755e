// SPDX-License-Identifier: Apache-2.0
// The part of ValueGraph that knows what this rank gave to others.
#include <algorithm>
#include <utility>

#include "src/analyze/graph/lifecycle.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Whether harm was done elsewhere is known only once the ranks are put together: until then what was given is kept.
void ValueGraph::note_given(const OpInView& op, const OpRef& at) {
  NodeId node = kNoNode;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* value = op.in[i];
    if (value == nullptr || value->bad == 0 || !is_share(op, i)) continue;
    for (BirthId id : labels_.get(value->labels).births) {
      Birth* made = find_birth(id);
      const bool for_this = made != nullptr && made->at.seq == value->producer;  // a cast to what goes over the wire
      if (for_this && (made->at.phase == Phase::kUnscale || made->at.phase == Phase::kClip))
        made->at.phase = Phase::kComm;
      if (std::find(given_.begin(), given_.end(), id) == given_.end()) given_.push_back(id);
    }
    if (node == kNoNode) node = value->node;
  }
  for (const Value* value : op.out) {
    if (value != nullptr && value->bad != 0 && value->node != kNoNode) node = value->node;
  }
  for (BirthId id : given_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || birth->sent != nullptr || birth->settled || birth->deliberate == Deliberate::kYes) continue;
    if (sent_ >= kMaxSent) break;
    ++sent_;
    birth->sent = std::make_unique<Outgoing>();
    birth->sent->step = at.step;
    birth->sent->node = node;
    sent_in_step_.push_back(id);
  }
}

// Bad results of a call between ranks are kept by their number: garbage is collected within a step.
void ValueGraph::note_exchanged(const OpInView& op) {
  constexpr std::size_t kMost = 64;
  const Value* first = exchanged_.empty() ? nullptr : values_.find(exchanged_.front());
  if (first == nullptr || first->made_step != op.record->step) exchanged_.clear();
  for (const Value* value : op.out) {
    if (value != nullptr && value->bad != 0 && value->labels != 0 && exchanged_.size() < kMost)
      exchanged_.push_back(value->id);
  }
}

// What appears in a step after a call between ranks gave as bad a result, which another thread may hand on: PyTorch
// calls a hook of DistributedDataParallel there that casts gradients back.
const Value* ValueGraph::exchanged_as(const Value& value) {
  if (value.bad == 0) return nullptr;
  for (auto id = exchanged_.rbegin(); id != exchanged_.rend(); ++id) {
    const Value* result = values_.find(*id);
    if (result != nullptr && result->made_step == step_ && result->stats.numel >= value.stats.numel &&
        (value.bad & ~result->bad) == 0)
      return result;
  }
  return nullptr;
}

// ... which a copy hands on whose source was finite when it was read last.
const Value* ValueGraph::exchanged_behind(const OpInView& op) {
  const Value* out = op.out.empty() ? nullptr : op.out[0];
  if (out == nullptr || op.info->bound != Bound::kCopy) return nullptr;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const bool read = op.in[i] != nullptr && op.inputs[i].role != ArgRole::kOverwritten;
    const LayoutRecord* from = read ? names_.layout(op.in[i]->layout) : nullptr;
    const LayoutRecord* to = names_.layout(out->layout);
    if (from != nullptr && to != nullptr && from->dtype == to->dtype) return exchanged_as(*out);
  }
  return nullptr;
}

void ValueGraph::settle_sent() {
  for (BirthId id : sent_in_step_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    if (!birth->harmful) birth->sent->chain = graph_.extract(*birth, names_);
    birth->sent->node = kNoNode;
  }
  sent_in_step_.clear();
}

const RecentOp* ValueGraph::call_behind(const Value& value) const {
  if (value.has_stats || value.tainted() || value.producer == kNoSeq) return nullptr;
  const RecentOp* op = ring_.find(value.producer);
  return op != nullptr && names_.is_exchange(op->phase, op->op) ? op : nullptr;
}

// A result may be read long after the call was made, and through a view: the base, or another value of the same
// version.
const RecentOp* ValueGraph::unread_call_of(const Value& value) {
  if (const Value* base = values_.find(value.base); base != nullptr && base->version == value.version) {
    if (const RecentOp* call = call_behind(*base)) return call;
  }
  if (value.dead) return nullptr;
  constexpr int kMaxLooks = 64;
  int looks = 0;
  for (std::int32_t slot = value.older; slot >= 0 && looks < kMaxLooks; slot = values_.at(slot).older, ++looks) {
    const Value& other = values_.at(slot);
    if (other.version != value.version) continue;
    if (const RecentOp* call = call_behind(other)) return call;
  }
  return nullptr;
}

Birth& ValueGraph::deferred_birth(const RecentOp& call, const Value& result) {
  Birth& birth = new_birth(BirthKind::kOp, {call.seq, call.step, 0, call.phase, call.module, call.op});
  birth.context = std::make_unique<OriginContext>();
  OpSnapshot& op = birth.context->op;
  op = snapshot(call, values_, ring_);
  bool found = false;
  for (std::size_t i = 0; i < op.outputs.size() && !found; ++i) {
    const Value* out = values_.find(op.outputs[i].value);
    if (out == nullptr || out->has_stats || (out->id != result.base && out->storage != result.storage)) continue;
    birth.context->bad_output = i;
    found = true;
  }
  if (!op.outputs.empty()) {
    const std::size_t i = found ? birth.context->bad_output : 0;
    const StringId slot = op.outputs[i].slot;
    op.outputs[i] = snapshot(&result, OpArg{result.id, slot, ArgRole::kRead});
    birth.context->bad_output = i;
  }
  birth.watched = std::all_of(op.inputs.begin(), op.inputs.end(), [](const ArgSnapshot& arg) {
    return arg.known || arg.role == ArgRole::kMask || arg.role == ArgRole::kIndex;
  });
  birth.lifecycle = birth.watched ? Lifecycle::kAppear : Lifecycle::kUnknown;
  if ((result.bad & kBadNaN) == 0 && names_.op(call.op).has(kSelects)) birth.deliberate = Deliberate::kLikely;
  deferred_results_.push_back({call.seq, birth.id, result.bad});
  return birth;
}

const Birth* ValueGraph::birth(BirthId id) {
  Birth* birth = find_birth(id);
  if (birth != nullptr && birth->lead != 0) birth = find_birth(birth->lead);
  return birth;
}

void ValueGraph::add_harm_elsewhere(BirthId id, const Birth& there, bool came_back) {
  Birth* birth = find_birth(id);
  if (birth != nullptr && birth->lead != 0) birth = find_birth(birth->lead);
  if (birth == nullptr) return;
  if (!birth->harmful) {
    birth->harmful = birth->settled = true;
    ++harmful_;
    if (birth->sent != nullptr) birth->chain = std::exchange(birth->sent->chain, {});
    birth->trial = there.trial;
  } else {
    ScaleTrial& trial = birth->trial;
    trial.scaled = trial.scaled && there.trial.scaled;
    trial.only_gradients = trial.only_gradients && there.trial.only_gradients;
    trial.reached_loss = trial.reached_loss || there.trial.reached_loss;
    trial.all_held_back = trial.all_held_back && there.trial.all_held_back;
    trial.open = trial.open || there.trial.open;
    trial.lowered = trial.lowered && there.trial.lowered;
  }
  birth->events.add(there.events);
  birth->unwatched.add(there.unwatched);
  birth->born.add(there.born);
  if (came_back && &there != birth) {
    for (const SinkHit& sink : there.sinks) {
      if (birth->sinks.size() < kMaxSinks) birth->sinks.push_back(sink);
    }
  }
  if (there.first_bad_loss && (!birth->first_bad_loss || *there.first_bad_loss < *birth->first_bad_loss))
    birth->first_bad_loss = there.first_bad_loss;
}

}  // namespace nanhunt::analyze
