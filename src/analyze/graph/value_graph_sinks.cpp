// SPDX-License-Identifier: Apache-2.0
// The second half of ValueGraph: marks, sinks, steps, and what is thrown away to stay small.
#include <algorithm>
#include <utility>

#include "src/analyze/graph/case.h"
#include "src/analyze/graph/swallow.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {
namespace {

bool lasts(TensorRole role) {
  return role == TensorRole::kParameter || role == TensorRole::kState || role == TensorRole::kBuffer;
}

// What was written into something that lasts has a name now: no sample, where it came from the program.
void name_target(Birth& birth, TensorRole role, StringId path) {
  birth.into_role = role;
  birth.into_name = path;
  if ((birth.kind != BirthKind::kBatch && birth.kind != BirthKind::kUnwatched) || !lasts(role)) return;
  birth.kind = BirthKind::kState;
  birth.role = role;
  birth.at.op = kStateOp;
  birth.at.module = path;
}

}  // namespace

void ValueGraph::note_sizes(TensorRole kind, LayoutId id) {
  constexpr std::size_t kMaxLayouts = 1u << 16;
  const bool batch = kind == TensorRole::kBatch || kind == TensorRole::kLabel;
  if (!batch && kind != TensorRole::kParameter && kind != TensorRole::kBuffer) return;
  if (sized_.size() >= kMaxLayouts || !sized_.emplace(id, batch).second) return;
  const LayoutRecord* layout = names_.layout(id);
  if (layout == nullptr) return;
  for (std::size_t i = batch ? 1 : 0; i < layout->sizes.size(); ++i) other_sizes_.insert(layout->sizes[i]);
}

void ValueGraph::on_mark(const MarkRecord& mark) {
  collect_garbage_if_needed();
  enter_step(mark.step);
  Value* value = values_.find(mark.value);
  if (value == nullptr) return;
  if (mark.path != 0) value->name = mark.path;
  value->add_role(mark.kind);
  if (mark.kind == TensorRole::kLoss) infers_ = false;
  StorageInfo* home = mark.kind == TensorRole::kParameter ? values_.storage(value->storage) : nullptr;
  if (home != nullptr && !home->parameter) home->parameter = mark.path;
  note_sizes(mark.kind, value->layout);
  if (!changed_at_.empty() && (mark.kind == TensorRole::kParameter || mark.kind == TensorRole::kState))
    suspect_unseen(*value);
  if (value->suspect != 0) {
    Birth* birth = find_birth(value->suspect);
    if (birth != nullptr && birth->source.value == value->id && birth->at.op == kUnwatchedOp)
      place_change(*birth, *value);
  }
  // Contents that changed before anything named them, and were written since.
  for (const auto& [where, id] : changed_at_) {
    Birth* birth = where.first == value->storage ? find_birth(id) : nullptr;
    if (birth != nullptr && birth->at.step == mark.step && birth->at.op == kUnwatchedOp) place_change(*birth, *value);
  }
  // What it was before the change that is about to be read: marks of one moment come after changes.
  for (const BirthId id : unread_changes_) {
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->change != nullptr && birth->change->before.value == value->id &&
        birth->at.op == kUnwatchedOp)
      place_change(*birth, *value);
  }
  if (value->bad == 0) return;
  if (mark.kind == TensorRole::kState && value->made_in == Phase::kUpdate) found_updating(*value);

  const bool from_outside = mark.kind == TensorRole::kBatch || mark.kind == TensorRole::kLabel;
  const bool lasting = lasts(mark.kind);
  OpRef at;
  at.step = mark.step;
  at.micro_batch = mark.micro_batch;
  at.phase = Phase::kData;
  BirthKind kind = BirthKind::kUnwatched;
  at.op = kUnwatchedOp;
  if (from_outside) {
    kind = BirthKind::kBatch;
    at.op = kBatchOp;
  } else if (lasting) {
    kind = BirthKind::kState;
    at.op = kStateOp;
    at.module = mark.path;
  }
  if (!value->resolved) {
    resolve(*value, kind, mark.kind, at);
    // All such values had been read when the step before ended.
    const bool was_clean = lasting && mark.step > 0 && clean_step_ + 1 == mark.step &&
                           (clean_kinds_ >> static_cast<unsigned>(mark.kind) & 1u) != 0;
    for (BirthId id : labels_.get(value->labels).births) {
      Birth* birth = find_birth(id);
      if (was_clean && birth != nullptr && birth->kind == kind && birth->source.value == value->id)
        birth->was_clean = true;
    }
  } else if (kind != BirthKind::kUnwatched && labels_.get(value->labels).births.size() == 1) {
    // It was used before it was said to be the batch, or a parameter: now its birth has a name. A parameter may have been
    // stepped since.
    Birth* birth = find_birth(labels_.get(value->labels).births.front());
    const Value* source = birth != nullptr && lasting ? values_.find(birth->source.value) : nullptr;
    const bool its_own = birth != nullptr && (birth->source.value == value->id ||
                                              (source != nullptr && source->storage == value->storage));
    if (its_own && birth->kind == BirthKind::kUnwatched) {
      birth->kind = kind;
      birth->role = mark.kind;
      birth->watched = true;
      birth->at = at;
    }
  }
  for (BirthId id : labels_.get(value->labels).births) {
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->source.value == value->id) birth->source.name = value->name;
    if (birth == nullptr || birth->into_role || (!from_outside && !lasting)) continue;
    // A model that was loaded may be moved to another device before its first forward.
    const bool moved = lasting && mark.step == 0 && value->made_in == Phase::kData;
    if (birth->into != 0 && (birth->into == value->storage || moved)) name_target(*birth, mark.kind, mark.path);
  }
  if (mark.kind == TensorRole::kBoundaryGradient && value->made_in == Phase::kData) value->made_step = mark.step;
  if (mark.kind == TensorRole::kBoundaryGradient && mark.path != 0) bad_gradients_.push_back(mark.path);
  if (is_sink(mark.kind)) hit_sink(*value, mark.kind, mark.path, mark.step);
  if (lasting) leave_standing(*value, mark.kind);
  const bool alone = !trained_ && value->stats.numel == 1 && value->deliberate == Deliberate::kNo;
  // A forward may still turn out to be a training's.
  if (mark.kind == TensorRole::kOutput && ((value->bad & kBadNaN) != 0 || alone))
    (trained_ || value->made_in != Phase::kForward ? last_validated_ : last_given_) = {true, *value};
}

namespace {

// Its badness was of gradients only, held back by a scaler each time, and has been gone since.
bool is_calibrated(const Birth& birth) {
  const ScaleTrial& trial = birth.trial;
  return birth.kind == BirthKind::kOp && trial.ended > 0 && !trial.open && trial.scaled &&
         birth.harmed_only_gradients() && trial.all_held_back;
}

// Another birth at the same place, whose trial is over as well, counts for this one.
void take_trial(Birth& into, const Birth& from) {
  into.events.add(from.events);
  into.unwatched.add(from.unwatched);
  into.born.add(from.born);
  ScaleTrial& trial = into.trial;
  trial.largest = std::max(trial.largest, from.trial.largest);
  trial.least = std::min(trial.least, from.trial.least);
  trial.last = from.trial.last;
  trial.gone_at = from.trial.gone_at;
  trial.lowered = trial.lowered && from.trial.lowered;
  trial.ended += from.trial.ended;
}

}  // namespace

// The first time a birth does harm. False: another one stands for it, or there are too many.
bool ValueGraph::becomes_origin(Birth& birth, std::uint32_t step) {
  if (birth.settled) return false;
  std::vector<BirthId>& there = harmful_at_[{birth.kind, birth.at.op, birth.at.module, birth.at.phase,
                                             birth.call_site, may_be_singular(birth), birth.taken_back}];
  bool repeats = there.size() >= kMaxPerPlace;
  BirthId lead = repeats ? there.front() : 0;
  if (repeats && is_calibrated(*find_birth(lead))) {
    // What is long over may not stand for what begins now: the last one kept makes room.
    Birth& newest = *find_birth(there.back());
    if (is_calibrated(newest) && !newest.hit_in_step) {
      take_trial(*find_birth(lead), newest);
      newest.harmful = false;
      newest.lead = lead;
      newest.context.reset();
      if (!std::exchange(newest.chain, {}).nodes.empty()) --chains_;
      --harmful_;
      there.pop_back();
      repeats = false;
    } else {
      lead = there.back();
    }
  }
  if (repeats || harmful_ >= kMaxOrigins) {
    birth.settled = true;
    birth.context.reset();
    if (repeats) {
      birth.lead = lead;
      Birth* leader = find_birth(lead);
      if (leader->events.first() == step) ++leader->repeats_in_step;
    } else {
      ++counts_.births_forgotten;
    }
    return false;
  }
  there.push_back(birth.id);
  birth.harmful = true;
  ++harmful_;
  pending_.push_back(birth.id);
  return true;
}

// Its inputs hold a singular number, or it made NaN.
bool ValueGraph::may_be_singular(const Birth& birth) const {
  const Case c = make_case(birth, names_, {});
  return c.is_op() && (c.singular != Singular::kNone || (c.output->bad & kBadNaN) != 0);
}

// What came from outside is known by what its copy becomes: a checkpoint is given another format or device when it is
// loaded.
void ValueGraph::note_copied(const OpInView& op) {
  const bool copies = op.record->phase == Phase::kData && op.info->bound == Bound::kCopy &&
                      op.info->zero == ZeroRule::kSame && op.in.size() == 1 && op.out.size() == 1;
  if (!copies || op.in[0] == nullptr || op.out[0] == nullptr || op.in[0]->storage == op.out[0]->storage) return;
  for (const BirthId id : labels_.get(op.out[0]->labels).births) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || birth->into != 0 || birth->source.value != op.in[0]->id) continue;
    if (birth->kind == BirthKind::kBatch || birth->kind == BirthKind::kUnwatched) birth->into = op.out[0]->storage;
  }
}

// What a constant, or what came from outside, is written into, where that is known before it is used; and state that an
// optimizer updates and nothing was seen to have made.
void ValueGraph::note_target(const OpInView& op) {
  note_copied(op);
  for (std::size_t i = 0; i < op.in.size(); ++i) {
    const Value* old = op.in[i];
    if (old == nullptr || op.inputs[i].role != ArgRole::kOverwritten) continue;
    for (const Value* out : op.out) {
      if (out == nullptr || out->bad == 0 || out->storage != old->storage) continue;
      for (const BirthId id : labels_.get(out->labels).births) {
        Birth* birth = find_birth(id);
        if (birth == nullptr || birth->into != 0) continue;
        const bool constant =
            birth->at.seq == op.record->seq && (birth->kind == BirthKind::kGiven || op.info->has(kWritesConstant));
        const bool outside = birth->kind == BirthKind::kBatch || birth->kind == BirthKind::kUnwatched;
        const bool loaded = outside && op.info->has(kOverwritesAll) &&
                            std::any_of(op.inputs.begin(), op.inputs.end(),
                                        [&](const OpArg& arg) { return arg.value == birth->source.value; });
        const StorageInfo* home = values_.storage(old->storage);
        const bool held = birth->at.seq == op.record->seq && birth->kind == BirthKind::kOp && !old->has_stats &&
                          op.record->phase == Phase::kOptimizer && old->producer == kNoSeq && !old->tainted() &&
                          home != nullptr && home->maker == op.record->seq && !home->parameter;
        if (!constant && !loaded && !held) continue;
        birth->into = old->storage;
        const Value* base = values_.find(old->base);
        for (const Value* known : {old, base}) {
          for (const TensorRole role : {TensorRole::kParameter, TensorRole::kState, TensorRole::kBuffer}) {
            if (known != nullptr && !birth->into_role && known->name != 0 && known->has_role(role))
              name_target(*birth, role, known->name);
          }
        }
      }
    }
  }
}

void ValueGraph::hit_sink(const Value& value, TensorRole kind, StringId path, std::uint32_t step) {
  const LabelSets::Set& set = labels_.get(value.labels);
  auto blameless = [&](const Birth& birth) { return birth.deliberate == Deliberate::kYes; };
  const bool others = std::any_of(set.births.begin(), set.births.end(), [&](BirthId id) {
    const Birth* birth = find_birth(id);
    return birth != nullptr && !blameless(*birth);
  });
  const bool as_at_first = lasts(kind) && is_as_at_first(value, kind, path, step);
  for (BirthId id : set.births) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || (others && blameless(*birth))) continue;
    // A buffer of infinities is a mask that was registered, not harm.
    if (kind == TensorRole::kBuffer && (value.bad & kBadNaN) == 0 && birth->deliberate != Deliberate::kNo) continue;
    // What was bad before anything used it harms nobody while it stays where it is: padding, rows that nobody selects.
    // A buffer that an op writes as a whole, as it does running statistics, was used; one of which parts are written, as
    // of a queue that is filled, was not.
    const bool stays = kind == birth->role && path == birth->at.module &&
                       (kind == TensorRole::kParameter || value.id == birth->source.value || value.producer == kNoSeq);
    if (birth->kind == BirthKind::kState && !birth->was_clean && !birth->harmful && stays) continue;
    const bool written = birth->kind == BirthKind::kOp || birth->kind == BirthKind::kGiven ||
                         birth->kind == BirthKind::kGarbage;
    const bool before_forward = written && birth->at.step == 0 && birth->at.phase == Phase::kData;
    const bool unmade =
        birth->kind == BirthKind::kBatch || birth->kind == BirthKind::kUnwatched;  // as of what it was before
    if ((before_forward || (unmade && kind == TensorRole::kBuffer)) && !birth->harmful && as_at_first) continue;
    Birth& itself = *birth;
    if (birth->lead != 0) birth = find_birth(birth->lead);
    if (!birth->harmful && !becomes_origin(*birth, step)) {
      if (birth->lead == 0) continue;  // forgotten
      birth = find_birth(birth->lead);
    }
    birth->events.add(step);
    if (!std::exchange(itself.counted, true)) birth->born.add(itself.at.step);
    const bool loss = kind == TensorRole::kLoss;
    birth->trial.reached_loss = birth->trial.reached_loss || loss;
    birth->trial.only_gradients = birth->trial.only_gradients && (loss || kind == TensorRole::kBoundaryGradient);
    if (!birth->hit_in_step) {
      birth->hit_in_step = true;
      hit_in_step_.push_back(birth->id);
    }
    if (loss && !birth->first_bad_loss) birth->first_bad_loss = step;
    if (birth->settled) continue;
    const bool known = std::any_of(birth->sinks.begin(), birth->sinks.end(),
                                   [&](const SinkHit& sink) { return sink.kind == kind && sink.path == path; });
    if (known) continue;
    if (birth->sinks.size() < kMaxSinks) {
      birth->sinks.push_back({kind, path, value.id, value.node, value.bad, value.stats, value.made_in});
    } else {
      ++birth->more_sinks;
    }
  }
}

// isinf(x).any(), (x == x).all(): what is bad is asked about by numbers that are not floating, and the answer is one.
// An op that makes as many finite numbers of it (a clamp) has got over it.
void ValueGraph::note_question(const OpInView& op) {
  const Phase phase = op.record->phase;
  if (phase > Phase::kLoss && phase != Phase::kBackward && phase != Phase::kValidation) return;
  ValueId asked = 0;
  for (const Value* value : op.in) {
    if (value == nullptr) continue;
    const auto known = questions_.find(value->id);
    if (known != questions_.end()) {
      asked = known->second;
    } else if (value->bad != 0 && value->labels != 0 && value->deliberate == Deliberate::kNo) {
      asked = value->id;
    }
  }
  const Value* about = asked == 0 ? nullptr : values_.find(asked);
  if (about == nullptr) return;
  for (const Value* out : op.out) {
    const LayoutRecord* layout = out == nullptr ? nullptr : names_.layout(out->layout);
    if (layout == nullptr) continue;
    if (is_floating(layout->dtype)) {
      if (out->bad == 0 && out->stats.numel == looked_at_.value.stats.numel) looked_at_.bad = false;
      continue;
    }
    if (questions_.size() < kMaxQuestions) questions_[out->id] = asked;
    const bool one = std::all_of(layout->sizes.begin(), layout->sizes.end(), [](std::int64_t size) { return size == 1; });
    if (one) looked_at_ = {true, *about};
  }
}

bool ValueGraph::judge_unfinished(std::uint32_t step, bool stopped, bool gave_up) {
  const LastNumber& last = stopped && looked_at_.bad ? looked_at_ : last_number_;
  if (!last.bad || (last.cured && !gave_up && !stopped)) return false;
  // A program that unscales or looks at gradients before it gives a step up has made that number of them.
  const Phase made_in = last.value.made_in;
  const bool of_gradients = made_in == Phase::kComm || made_in == Phase::kUnscale || made_in == Phase::kClip;
  hit_sink(last.value, of_gradients ? TensorRole::kBoundaryGradient : TensorRole::kOutput, last.value.name, step);
  return true;
}

bool ValueGraph::judge_forward(std::uint32_t step, bool ends, bool stopped) {
  for (const LastNumber& last : {stopped && looked_at_.bad ? looked_at_ : LastNumber{}, ends ? last_number_ : LastNumber{},
                                 last_given_, last_alone_, last_validated_}) {
    if (!last.bad) continue;
    hit_sink(last.value, TensorRole::kOutput, last.value.name, step);
    return true;
  }
  return false;
}

void ValueGraph::judge_validation() {
  if (last_validated_.bad) hit_sink(last_validated_.value, TensorRole::kOutput, last_validated_.value.name, step_);
  last_validated_.bad = false;
}

void ValueGraph::on_samples(const SampleIdsRecord& record) {
  samples_of_.step = record.step;
  samples_of_.micro_batch = record.micro_batch;
  samples_ = std::make_shared<const std::vector<std::int64_t>>(record.sample_ids);
}

bool ValueGraph::only_backward_went_bad() {
  bool any = false;
  for (BirthId id : born_in_step_) {
    const Birth* birth = find_birth(id);
    if (birth == nullptr || birth->deliberate == Deliberate::kYes) continue;
    const Phase phase = birth->at.phase;
    if (phase != Phase::kScale && phase != Phase::kBackward && phase != Phase::kComm) return false;
    any = true;
  }
  return any;
}

// What is written between steps is known to last once weights go into it: an average is multiplied by its rate before.
void ValueGraph::found_updating(const Value& value) {
  for (BirthId id : born_in_step_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr || birth->at.phase != Phase::kData || birth->context == nullptr) continue;
    for (const ArgSnapshot& out : birth->context->op.outputs) {
      const Value* made = values_.find(out.value);
      if (made != nullptr && made->storage == value.storage) birth->at.phase = Phase::kUpdate;
    }
  }
}

void ValueGraph::on_scaling(std::uint64_t seq) {
  for (BirthId id : born_in_step_) {
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->at.seq == seq) birth->at.phase = Phase::kScale;
  }
}

// The step is over: which births' badness did the scaler hold back, and which is gone?
void ValueGraph::judge_hits(const StepOutcome& outcome, bool bad_unseen) {
  step_was_bad_ = !hit_in_step_.empty() || bad_unseen;
  const bool clean = !step_was_bad_ && !outcome.held_back;
  if (!hit_in_step_.empty()) streak_ = hit_in_step_;
  if (!hit_in_step_.empty() && outcome.held_back) scaled_ = hit_in_step_;
  if (clean) streak_.clear();
  for (BirthId id : hit_in_step_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    birth->hit_in_step = false;
    ScaleTrial& trial = birth->trial;
    trial.scaled = trial.scaled && outcome.scaled;
    trial.all_held_back = trial.all_held_back && outcome.changed_nothing() && !changed_while_bad_;
    trial.largest = trial.ended == 0 ? outcome.scale : std::max(trial.largest, outcome.scale);
    trial.least = trial.ended == 0 ? outcome.scale : std::min(trial.least, outcome.scale);
    trial.last = outcome.scale;
    ++trial.ended;
    if (!trial.open) open_trials_.push_back(id);
    trial.open = true;
  }
  const bool kept = std::any_of(hit_in_step_.begin(), hit_in_step_.end(), [&](BirthId id) {
    const Birth* birth = find_birth(id);
    return birth != nullptr && birth->kind == BirthKind::kKept;
  });
  for (BirthId id : open_trials_) {
    if (Birth* birth = find_birth(id)) birth->trial.kept = birth->trial.kept || kept;
  }
  hit_in_step_.clear();
  bad_gradients_.clear();
  changed_while_bad_ = false;
  if (!clean) return;
  for (BirthId id : open_trials_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    birth->trial.open = false;
    birth->trial.gone_at = outcome.scale;
    birth->trial.lowered = birth->trial.lowered && outcome.scale < birth->trial.last;
  }
  open_trials_.clear();
}

std::uint64_t ValueGraph::on_step_end(const StepRecord& step, const StepOutcome& outcome, bool bad_unseen) {
  last_ended_ = std::max(last_ended_, step.step);
  mark_unscaled();
  judge_validation();
  last_number_.bad = last_given_.bad = last_alone_.bad = looked_at_.bad = backward_is_bad_ = false;
  questions_.clear();
  judge_hits(outcome, bad_unseen);
  if (heard_step_ == step.step && took_back_in_ != step.step) taken_back_.clear();
  step_over_ = true;
  if (outcome.held_back) last_skip_ = step.step;
  for (BirthId id : born_in_step_) {
    Birth* birth = find_birth(id);
    if (birth != nullptr && birth->at.step == step.step) birth->scale = outcome.scale;
  }
  born_in_step_.clear();
  return step.step == step_ ? step_bad_ops_ : 0;
}

void ValueGraph::enter_step(std::uint32_t step) {
  if (step <= step_) return;
  settle();
  // What was only now seen to be harmed belongs to the step before.
  if (step_over_) {
    for (BirthId id : hit_in_step_) {
      if (Birth* birth = find_birth(id)) birth->hit_in_step = false;
    }
    hit_in_step_.clear();
  }
  step_over_ = false;
  step_ = step;
  step_bad_ops_ = 0;
}

// Gradients that an unscale found bad are sinks even where no mark says so.
void ValueGraph::mark_unscaled() {
  for (ValueId id : unscaled_bad_) {
    const Value* value = values_.find(id);
    if (value == nullptr || value->bad == 0 || value->has_role(TensorRole::kBoundaryGradient)) continue;
    hit_sink(*value, TensorRole::kBoundaryGradient, value->name, step_);
  }
  unscaled_bad_.clear();
}

void ValueGraph::settle() {
  mark_unscaled();
  judge_validation();
  hit_bad_homes();
  for (BirthId id : pending_) {
    Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    if (chains_ < kMaxChains) {
      birth->chain = graph_.extract(*birth, names_);
      ++chains_;
    }
    birth->settled = true;
    if (birth->sent != nullptr) birth->sent->node = kNoNode;
  }
  pending_.clear();
  settle_sent();
}

void ValueGraph::finish() {
  settle();
  // The last step has no end: whether its optimizer ran is not known.
  for (BirthId id : hit_in_step_) {
    if (Birth* birth = find_birth(id)) birth->trial.open = true;
  }
  for (const auto& [storage, standing] : standing_) leave_open(standing);
  // The passes of all ranks wait for each other.
  values_ = {};
  graph_ = {};
  ring_.free();
}

std::vector<const Birth*> ValueGraph::origins() const {
  std::vector<const Birth*> out;
  for (const auto& [id, birth] : births_) {
    if (birth->harmful) out.push_back(birth.get());
  }
  return out;
}

void ValueGraph::collect_garbage_if_needed() {
  constexpr std::uint64_t kOpsBetween = 50000;
  const bool graph_full = graph_.size() >= BadGraph::kMaxNodes && counts_.ops > gc_ops_ + kOpsBetween;
  if (births_.size() - harmful_ > max_births_ || labels_.size() > max_sets_ || graph_full) collect_garbage();
}

void ValueGraph::collect_garbage() {
  gc_ops_ = counts_.ops;
  // Roots: every value that can still be read, and what storages remember.
  std::vector<bool> used(labels_.size(), false);
  std::vector<NodeId> roots;
  auto root = [&](LabelSetId labels, NodeId node) {
    used[labels] = true;
    if (node != kNoNode) roots.push_back(node);
  };
  std::vector<BirthId> suspects;
  values_.for_each([&](Value& value) {
    root(value.labels, value.node);
    suspects.insert(suspects.end(), {value.suspect, value.faded});  // 0: no birth's
  });
  values_.for_each_storage([&](StorageInfo& info) { root(info.residual_labels, info.residual_node); });
  for (BirthId id : pending_) {
    const Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    roots.push_back(birth->node);
    for (const SinkHit& sink : birth->sinks) roots.push_back(sink.node);
  }
  for (BirthId id : sent_in_step_) {
    const Birth* birth = find_birth(id);
    if (birth == nullptr) continue;
    roots.push_back(birth->node);
    roots.push_back(birth->sent->node);
  }

  for (LastNumber* last : {&last_number_, &last_validated_, &looked_at_, &last_given_, &last_alone_})
    if (last->bad) root(last->value.labels, last->value.node);

  std::vector<BirthId> alive = pending_;
  alive.insert(alive.end(), suspects.begin(), suspects.end());
  for (LabelSetId id = 1; id < used.size(); ++id) {
    if (used[id]) alive.insert(alive.end(), labels_.get(id).births.begin(), labels_.get(id).births.end());
  }
  std::sort(alive.begin(), alive.end());
  std::erase_if(births_, [&](const auto& entry) {
    const Birth& birth = *entry.second;
    const bool kept = birth.harmful || birth.swallow != nullptr || birth.sent != nullptr ||
                      birth.kind == BirthKind::kUnseenWrite;
    return !kept && !std::binary_search(alive.begin(), alive.end(), entry.first);
  });

  const std::vector<LabelSetId> new_sets = labels_.keep(used);
  const std::vector<NodeId> new_nodes = graph_.keep(roots);
  auto node = [&](NodeId old) { return old == kNoNode ? kNoNode : new_nodes[old]; };
  values_.for_each([&](Value& value) {
    value.labels = new_sets[value.labels];
    value.node = node(value.node);
  });
  for (LastNumber* last : {&last_number_, &last_validated_, &looked_at_, &last_given_, &last_alone_}) {
    if (!last->bad) continue;
    last->value.labels = new_sets[last->value.labels];
    last->value.node = node(last->value.node);
  }
  values_.for_each_storage([&](StorageInfo& info) {
    info.residual_labels = new_sets[info.residual_labels];
    info.residual_node = node(info.residual_node);
  });
  for (auto& [id, birth] : births_) {
    birth->node = node(birth->node);
    if (birth->sent != nullptr) birth->sent->node = node(birth->sent->node);
    for (SinkHit& sink : birth->sinks) sink.node = node(sink.node);
  }
  std::erase_if(born_in_step_, [&](BirthId id) { return !births_.contains(id); });
  max_births_ = std::max<std::size_t>(4096, 2 * (births_.size() - harmful_));
  max_sets_ = std::max<std::size_t>(1u << 16, 2 * labels_.size());
}

}  // namespace nanhunt::analyze
