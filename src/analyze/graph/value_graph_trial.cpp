// SPDX-License-Identifier: Apache-2.0
// The part of ValueGraph that tells weights that the program tries and takes back (a line search, a step that is halved)
// from those that it evaluates: averages that are copied in are what it wants to know about, a sum that is undone is not.
// And what an op leaves bad in weights.
#include <algorithm>
#include <utility>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxCopies = 1u << 14;

}  // namespace

bool takes_step(const OpInView& op, const Names& names) {
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    if (op.in[i] == nullptr || !names.is(op.inputs[i].slot, "found_inf")) continue;
    return op.in[i]->stats.counted() && op.in[i]->stats.zero > 0;
  }
  return true;
}

void ValueGraph::note_update(const OpInView& op, const Value& parameter) {
  if (parameter.name == 0 || !takes_step(op, names_)) return;
  const auto bad = std::find(bad_gradients_.begin(), bad_gradients_.end(), parameter.name);
  changed_while_bad_ = changed_while_bad_ || bad != bad_gradients_.end();
}

bool ValueGraph::is_parameter_home(std::uint64_t storage) {
  const StorageInfo* info = values_.storage(storage);
  return info != nullptr && info->parameter;
}

std::optional<StringId> ValueGraph::written_parameter(const OpInView& op) {
  if (op.record->phase != Phase::kData) return std::nullopt;
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    if (op.in[i] != nullptr && op.inputs[i].role == ArgRole::kOverwritten && is_parameter_home(op.in[i]->storage))
      return values_.storage(op.in[i]->storage)->parameter;
  }
  return std::nullopt;
}

TensorRole ValueGraph::kind_of_home(const Value& value) const {
  if (value.has_role(TensorRole::kParameter)) return TensorRole::kParameter;
  if (value.has_role(TensorRole::kState)) return TensorRole::kState;
  return value.has_role(TensorRole::kBuffer) ? TensorRole::kBuffer : TensorRole::kParameter;
}

void ValueGraph::leave_standing(const Value& value, TensorRole kind) {
  constexpr std::size_t kMost = 1u << 12;
  const std::uint32_t found_clean = clean_step_ > step_ ? clean_kinds_ & ~unread_kinds_ : 0;
  if ((found_clean >> static_cast<unsigned>(kind) & 1u) != 0) return;  // in a step since, of which no op was heard
  const std::vector<BirthId>& births = labels_.get(value.labels).births;
  const auto before = standing_.find(value.storage);
  if (before != standing_.end() && step_ > 0) fill_gap(before->second, births, step_ - 1);
  if (standing_.size() < kMost || before != standing_.end()) standing_[value.storage] = {kind, step_, births};
}

// What stood there bad, and still does in step `last`, was bad in the steps between, of which nothing was kept.
void ValueGraph::fill_gap(const Standing& before, const std::vector<BirthId>& births, std::uint32_t last) {
  if (before.step >= last) return;
  for (const BirthId id : births) {
    if (std::find(before.births.begin(), before.births.end(), id) == before.births.end()) continue;
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->lead != 0) birth = find_birth(birth->lead);
    if (birth == nullptr || !birth->harmful || !birth->events.contains(before.step)) continue;
    birth->unwatched.add(birth->events.fill(before.step + 1, last));
  }
}

// No step has shown it finite. It was bad at least until its births were last seen to do harm.
void ValueGraph::leave_open(const Standing& standing) {
  for (const BirthId id : standing.births) {
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->lead != 0) birth = find_birth(birth->lead);
    if (birth == nullptr || !birth->harmful) continue;
    fill_gap(standing, {id}, birth->events.last());
    birth->open_end = birth->open_end || birth->events.last() < last_ended_;
  }
}

void ValueGraph::end_standing(std::uint64_t storage) {
  const auto standing = standing_.find(storage);
  if (standing == standing_.end()) return;
  leave_open(standing->second);
  standing_.erase(standing);
}

void ValueGraph::hit_bad_homes() {
  for (const auto& [storage, id] : bad_homes_) {
    const Value* value = values_.find(id);
    if (value == nullptr) continue;
    const TensorRole kind = kind_of_home(*value);
    const StorageInfo* home = value->name == 0 ? values_.storage(storage) : nullptr;  // of several, as one buffer
    hit_sink(*value, kind, home == nullptr ? value->name : home->parameter.value_or(0), step_);
    leave_standing(*value, kind);
  }
  bad_homes_.clear();
}

void ValueGraph::on_clean_parts(std::uint32_t step, std::uint32_t kinds) {
  clean_step_ = step;
  clean_kinds_ = kinds;
  const auto is_clean = [&](TensorRole kind) { return (kinds >> static_cast<unsigned>(kind) & 1u) != 0; };
  // What is bad in this very step and is not found so is not read.
  const auto is_read = [&](TensorRole kind) { return (unread_kinds_ >> static_cast<unsigned>(kind) & 1u) == 0; };
  const auto note_unread = [&](TensorRole kind) {
    if (is_clean(kind)) unread_kinds_ |= 1u << static_cast<unsigned>(kind);
  };
  for (const auto& [storage, id] : bad_homes_) {
    if (const Value* value = step == step_ ? values_.find(id) : nullptr) note_unread(kind_of_home(*value));
  }
  for (const auto& [storage, standing] : standing_) {
    if (standing.step == step) note_unread(standing.kind);
  }
  std::erase_if(standing_,
                [&](const auto& entry) { return is_clean(entry.second.kind) && is_read(entry.second.kind); });
}

void ValueGraph::note_trial(const OpInView& op) {
  heard_step_ = op.record->step;
  const bool copies = op.info->name == "clone" || op.info->name == "copy";
  for (const Value* out : op.out) {
    if (out == nullptr) continue;
    bool in_place = false;
    std::uint64_t of = 0;  // the parameter that it copies
    for (const Value* in : op.in) {
      if (in == nullptr) continue;
      in_place = in_place || in->storage == out->storage;
      if (copies && in->storage != out->storage && is_parameter_home(in->storage)) of = in->storage;
    }
    if (!is_parameter_home(out->storage)) {
      copied_.erase(out->storage);
      if (of != 0 && !tried_.contains(of) && copied_.size() < kMaxCopies) copied_[out->storage] = of;
    } else if (op.record->phase == Phase::kOptimizer) {  // what was copied before it is no way back
      copied_.clear();
      tried_.clear();
      swapped_in_ = false;
      return;
    } else if (in_place) {
      note_tried(op, *out, copies);
    }
  }
}

// A parameter was written between steps: with numbers of its own, or with those that it had.
void ValueGraph::note_tried(const OpInView& op, const Value& parameter, bool copies) {
  const bool back = copies && std::any_of(op.in.begin(), op.in.end(), [&](const Value* in) {
    const auto copy = in == nullptr ? copied_.end() : copied_.find(in->storage);
    return copy != copied_.end() && copy->second == parameter.storage;
  });
  const auto tried = tried_.find(parameter.storage);
  if (!back) {
    if (tried_.empty()) judge_validation();  // of the weights as they were
    const bool computed = !op.info->has(kOverwritesAll);
    if (tried == tried_.end()) {
      tried_.emplace(parameter.storage, computed);
    } else {
      tried->second = tried->second && computed;
    }
  } else if (tried != tried_.end()) {
    swapped_in_ = swapped_in_ || !tried->second;
    tried_.erase(tried);
    if (tried_.empty() && !std::exchange(swapped_in_, false)) take_back();
  }
}

// What was computed with them harms nobody: told, and no more.
void ValueGraph::take_back() {
  if (!std::exchange(last_validated_.bad, false)) return;
  const Value& value = last_validated_.value;
  taken_back_.clear();
  took_back_in_ = step_;
  for (const BirthId id : labels_.get(value.labels).births) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || birth->deliberate == Deliberate::kYes || birth->harmful) continue;
    birth->taken_back = true;
    if (birth->lead == 0 && !becomes_origin(*birth, step_) && birth->lead == 0) continue;
    Birth& told = birth->lead == 0 ? *birth : *find_birth(birth->lead);
    taken_back_.push_back(told.id);
    told.trial.only_gradients = false;
    told.events.add(step_);
    told.born.add(birth->at.step);
    if (told.sinks.empty())
      told.sinks.push_back({TensorRole::kOutput, value.name, value.id, value.node, value.bad, value.stats, value.made_in});
  }
}

bool ValueGraph::take_back_again(std::uint32_t step) {
  for (const BirthId id : taken_back_) {
    if (Birth* birth = find_birth(id)) {
      birth->events.add(step);
      birth->unwatched.add(step);
    }
  }
  return !taken_back_.empty();
}

}  // namespace nanhunt::analyze
