// SPDX-License-Identifier: Apache-2.0
// A step whose rows stay here (ring.h), as its ops come: what each one made is looked at, and the recorder gets the rows
// where that is not finite (births.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "hooks/torch/tap/copies.h"
#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/births.h"
#include "hooks/torch/tap/held/late_step.h"
#include "hooks/torch/tap/held/left_bad.h"
#include "hooks/torch/tap/held/ring.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/given.h"
#include "hooks/torch/tap/rows/lists.h"

namespace nanhunt::tap {

class HeldStep {
 public:
  using Made = std::vector<Births::Made>;

  HeldStep(const Recording& to, State*& state, Describer& describer, const Copies& copies, Notes& notes,
           std::uint64_t& refused)
      : to_(to), state_(state), describer_(describer), copies_(copies), notes_(notes), refused_(refused) {}

  StepRing ring;
  Births births;
  LeftBad left_bad;  // before training begins, and between its steps

  // A step of which a device tells later: its rows stay here until then.
  void begin_late() {
    late_.begin(to_);
    is_late_ = true;
    ring.note_recorder_holds();
    if (to_.hold != nullptr && to_.hold(to_.self, NANHUNT_HOLD) != NANHUNT_OK) ++refused_;
  }
  bool is_late() const { return is_late_ && ring.keeps(); }
  // It is over; the next one may begin.
  void end_late() {
    launch_looks();
    to_.end_looks(to_.self);
    StepRing next = ring.next();
    late_.ring = std::exchange(ring, std::move(next));
    waiting_.push_back(std::move(late_));
    late_ = LateStep{};
    is_late_ = false;
  }
  // Of the oldest that is over: whether all has come.
  bool is_late_here() { return waiting_.empty() || waiting_.front().is_here(to_); }
  // Its rows, where somebody wants them (`all`: in any case). kDelivered, kLeftBad.
  static constexpr std::int32_t kDelivered = 1, kLeftBad = 2;
  std::int32_t deliver_late(bool all) {
    if (waiting_.empty()) return 0;
    LateStep& step = waiting_.front();
    std::int64_t left_bad = 0;
    step.wanted = step.wanted || all;
    if (!step.judge(births, left_bad, notes_)) return 0;
    const Words marks = step.ring.take_marks(describer_, {});
    if (!step.ring.hand_over_late(describer_.identities, to_, marks, [&](std::int64_t* quad) { step.point(quad); })) ++refused_;
    ring.note_reported();
    return kDelivered | (left_bad != 0 ? kLeftBad : 0);
  }
  void drop_late(bool healthy) {
    if (waiting_.empty()) return;
    waiting_.front().end(births, healthy, to_);
    waiting_.pop_front();
  }
  // Before what was made is written over, or somebody may write it unheard.
  void launch_looks() { late_.launch(to_, notes_); }
  // On a stream; a look on another one would not come before that.
  void launch_before_write(std::int64_t stream) { late_.launch_before_write(stream, to_, notes_); }
  // Before an op writes over what is still to be read.
  void read_what_is_written(const Plan& plan, const std::vector<c10::IValue>& args) {
    for (const Arg& arg : plan.args) {
      if (!arg.written) continue;
      each_tensor(args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        if (is_late_ && late_.is_to_read(t)) launch_before_write(describer_.stream_of(t.device()));
      });
    }
  }
  // Nobody looks at what waits.
  void drop() {
    late_ = LateStep{};
    waiting_.clear();
  }

  // What is compared with what it was, where something is bad.
  void set_parameters(std::vector<WeakTensor> parameters) { parameters_ = std::move(parameters); }

  // From here on rows of the step go to the recorder at once, with those that have come so far.
  void hand_over() {
    if (is_late()) {
      late_.wanted = true;
      return;
    }
    stand_ins_.clear();
    hand_over({});
  }
  // What the step leaves behind is bad: they are wanted. `changed`: contents that are others by now.
  void note_bad(const Words& changed = {}) {
    births.note_bad();
    if (is_late()) return hand_over();
    stand_ins_.clear();
    hand_over(changed);
  }
  void look_at_mark(const at::Tensor& t, const Quad& quad) {
    if (!ring.is_held() || quad.data == 0) return;
    const Identity& identity = *quad.identity;
    const bool bad = identity.is_looked_at() ? identity.bad != 0 : ring.is_handed_over() && finite::bits_of(t).value_or(0) != 0;
    if (bad) note_bad();
  }

  // Contents are others than in step `since`, and nobody was heard to write them.
  void report_changed(const at::Tensor& t, std::int64_t since) {
    const auto quad = describer_.describe(t, true);
    if (!quad) return;
    note_bad(Words{quad->word});
    report_changed(*quad, since);
  }

  // The rows of an op are about to be told.
  void begin_reported() {
    if (ring.keeps()) return;
    first_reported_ = to_.next_seq(to_.self);
    origins_ = to_.origins(to_.self);
  }
  std::uint64_t first_reported() const { return first_reported_; }
  // Badness began in one of them. Where rows stay here nobody has read them.
  bool began() const { return !ring.keeps() && to_.origins(to_.self) != origins_; }

  // What is known of an argument while it still is there: the last one of `given.written`, where it `writes`.
  void look_before(const Plan& plan, const Arg& arg, bool writes, const at::Tensor& t, Identity& identity, Given& given) const {
    const int reach = finite::reach_of(t.scalar_type());
    if (writes) {
      Given::Written& written = given.written.back();
      written.had_looked = identity.is_looked_at();
      written.had = identity.bad;
      if (reach == 0 || (plan.ignores_old && !ring.is_older(identity.word))) return;
      written.had = Births::before_write(t, identity);
      written.had_looked = identity.is_looked_at();
      if (plan.ignores_old) return;
      given.old |= written.had;
      given.inputs_finite = given.inputs_finite && written.had == 0;
    } else if (reach > 0 && !arg.blind) {
      given.inputs_finite = given.inputs_finite && identity.is_finite();
    }
    given.reach = std::max(given.reach, finite::width_of(t.scalar_type()));
  }

  // Where rows go to the recorder at once, which would read all of a large table of which an op writes a few rows: what
  // the others hold.
  void look_before_rows(const at::Tensor& t, Identity& identity, Given::Written& written) const {
    if (!identity.is_looked_at()) identity.step = state_->step;
    written.had = Births::before_write(t, identity);
    written.had_looked = identity.is_looked_at();
  }
  // Whether they were finite, and those that it wrote are.
  bool rows_stay_finite(const Plan& plan, const std::vector<c10::IValue>& args, const Births::Made& made) const {
    if (ring.keeps() || !made.had_looked || made.had != 0 || !finite::covers(*made.tensor)) return false;
    const std::optional<finite::Found> found = Births::look_at(plan, args, made);
    if (!found || found->bits != 0) return false;
    made.identity->note_bad(0, found->amax);
    return true;
  }
  // An op made something bad of a table that was finite: whether it still is, or was written past PyTorch.
  void look_at_tables(const Plan& plan, const Given& given, const Made& made) {
    if (ring.keeps() || std::all_of(made.begin(), made.end(), [](const Births::Made& one) { return one.bits() == 0; })) return;
    std::vector<at::Tensor> found;
    Births::changed(plan, given.args, made, describer_.identities, {}, found);
    for (const at::Tensor& one : found)
      if (const auto quad = describer_.describe(one, true)) report_changed(*quad, quad->identity->step);
  }

  // What an op has made, before its row is told. `site`: asked for where something is not finite.
  template <typename Site>
  void judge(const Plan& plan, Given& given, const Made& made, Site&& site) {
    if (ring.is_handed_over()) note_numbers(made);
    const bool wanted = ring.keeps() && is_wanted(plan, given, count_tensors(plan, given), made, site);
    note_left_bad(plan, given, made);
    if (!wanted || waits()) return;
    stand_ins_.clear();
    for (const Given::Written& one : given.written)
      if (one.at >= 0) stand_in(one.quad, one.tensor, *one.arg, plan, given);
    const Words old = made.empty() || made.front().identity->bad != 0 ? Words{} : old_contents();
    hand_over_at(plan, given, made);
    if (!old.empty() && to_.rows(to_.self, old.data(), old.size()) != NANHUNT_OK) ++refused_;
  }
  template <typename Site>
  void judge(const Plan& plan, Given& given, Columns& columns, const Made& made, Site&& site) {
    if (!ring.keeps()) return note_left_bad(plan, given, made);
    given.numbers.clear();
    given.inputs_finite = true;
    for (const Column& column : columns) {
      given.numbers.insert(given.numbers.end(), column.numbers.begin(), column.numbers.end());
      if (column.writes) continue;
      for (const auto& quad : column.quads) given.inputs_finite = given.inputs_finite && quad && quad->identity->is_finite();
      for (const at::Tensor* t : column.tensors) given.reach = std::max(given.reach, finite::width_of(t->scalar_type()));
    }
    for (const Births::Made& one : made)
      given.inputs_finite = given.inputs_finite && (!one.written || plan.ignores_old || (one.had_looked && one.had == 0));
    const auto of_tensors = [](const Column& column) { return column.numbers.empty(); };
    const auto tensors = static_cast<std::size_t>(std::count_if(columns.begin(), columns.end(), of_tensors));
    const bool wanted = is_wanted(plan, given, tensors, made, site);
    note_left_bad(plan, given, made);
    if (!wanted || waits()) return;
    stand_ins_.clear();
    for (const Column& column : columns) {
      if (!column.writes) continue;
      for (std::size_t i = 0; i < column.quads.size(); ++i)
        if (column.quads[i]) stand_in(*column.quads[i], *column.tensors[i], *column.arg, plan, given);
    }
    hand_over_at(plan, given, made);
  }

 private:
  void report_changed(const Quad& quad, std::int64_t since) {
    Words words;
    put(words, quad);
    quad.identity->looked_at = -1;
    if (to_.changed != nullptr && to_.changed(to_.self, static_cast<std::uint32_t>(state_->step), words.data(), UINT64_MAX,
                                              static_cast<std::uint32_t>(std::max<std::int64_t>(0, since)), 0) != NANHUNT_OK)
      ++refused_;
  }

  template <typename Site>
  bool is_wanted(const Plan& plan, const Given& given, std::size_t tensors, const Made& made, Site&& site) {
    if (made.empty()) return false;
    bool single = false;
    const bool known = Births::stays_finite(plan, given.reach, given.inputs_finite, tensors, given.numbers, made);
    const std::uint8_t bits = Births::look(plan, given.args, made, known, state_->step, single);
    for (const Births::Made& one : made) {
      if (!one.identity->is_finite()) ring.note_not_finite(one.identity->word);
      if (one.tensor->numel() == 1) ring.keep_number(one.quad, one.tensor->itemsize());
    }
    if (is_late()) look_later(plan, given, made, site);
    if (bits == 0) return loses_update(plan, given, made) && births.is_new(plan, site());
    bad_.clear();
    const std::uint8_t taken = Births::taken(plan, given.args, made, describer_.identities, given.old, bad_);
    const bool was_given = std::any_of(given.numbers.begin(), given.numbers.end(), [](double x) { return !std::isfinite(x); });
    const bool lasts = std::any_of(made.begin(), made.end(), [&](const Births::Made& one) {
      return one.written && (ring.is_older(one.identity->word) || copies_.is_weights(*one.tensor));
    });
    if (births.are_wanted(plan, site(), bits, taken, single, was_given, lasts)) return true;
    for (const Births::Made& one : made)
      if (!one.identity->is_finite()) ring.keep_alive(one.tensor->storage());
    for (const at::Tensor* one : bad_) ring.keep_alive(one->storage());
    // An infinity of the op's own, harmless so far: what it was made of is wanted should this one do harm.
    if (taken == 0 && !was_given)
      for (const c10::IValue& value : given.args)
        each_tensor(value, [&](const at::Tensor& t) {
          if (t.layout() == c10::kStrided && t.has_storage()) ring.keep_alive(t.storage());
        });
    return false;
  }

  // Somebody wants the rows, but not before a device has said what it knows.
  bool waits() {
    if (is_late()) late_.wanted = true;
    return is_late();
  }
  template <typename Site>
  void look_later(const Plan& plan, const Given& given, const Made& made, Site&& site) {
    if (state_->reads != kLate) return;  // a CUDA graph came amid the step
    bool any = false;
    for (const Births::Made& one : made) {
      const at::Tensor& t = *one.tensor;
      if (one.quad.layout >> 32 <= 0 || t.numel() == 0 || finite::reach_of(t.scalar_type()) == 0) continue;
      if (one.identity->is_finite()) {
        late_.note_finite(one.identity->word);
        continue;
      }
      LookedAt looked{one.quad, describer_.identities.weak_of(t.storage().unsafeGetStorageImpl()), &plan, site(),
                      state_->phase};
      looked.quad.word = one.identity->word;
      looked.covers = finite::covers(t);
      looked.single = t.numel() == 1;
      looked.copies = plan.op == "aten::_to_copy" || plan.op == "aten::copy_";
      looked.given = std::any_of(given.numbers.begin(), given.numbers.end(), [](double x) { return !std::isfinite(x); });
      looked.lasts = one.written && (ring.is_older(one.identity->word) || copies_.is_weights(t));
      late_.add(t, std::move(looked), to_, notes_);
      any = true;
    }
    if (!any) return;
    for (const Arg& arg : plan.args) {
      if (arg.written || arg.blind) continue;  // what is written over is gone
      each_tensor(given.args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        if (t.device().is_cpu() || t.numel() == 0) return;
        const auto quad = describer_.describe(t, true);
        if (!quad || quad->data == 0 || quad->layout >> 32 <= 0) return;
        for (const Births::Made& one : made)
          if (one.identity == quad->identity) return;
        late_.add_taken(t, *quad);
      });
    }
    late_.launch_if_due(to_, notes_);
  }

  // Marks of what an op has written over, of which there are copies: what it was is compared with what it is now.
  Words old_contents() const {
    Words marks;
    for (const StepRing::StandIn& one : stand_ins_)
      marks.insert(marks.end(), {NANHUNT_ROW_MARK, NANHUNT_STATE, state_->step, state_->micro_batch, 0, one.data, one.word,
                                 one.offset, one.layout});
    return marks;
  }
  // Whether what lasts, in 16 bits, is as it was though something was added to it; or weights were added to by another
  // than their optimizer, as when an adapter is merged into them: most of it may be lost.
  bool loses_update(const Plan& plan, const Given& given, const Made& made) const {
    if (plan.by_number != ByNumber::kPlus || !plan.writes) return false;
    bool weights = state_->phase != NANHUNT_PHASE_OPTIMIZER;
    for (const Births::Made& one : made) {
      if (!one.written || one.tensor->itemsize() != 2 || !ring.is_older(one.identity->word)) return false;
      weights = weights && copies_.is_weights(*one.tensor);
    }
    return weights || (adds(plan, given) && given.saved.is_unchanged(plan, given.args));
  }
  bool adds(const Plan& plan, const Given& given) const {
    for (const double number : given.numbers)
      if (!(std::fabs(number) > 0)) return false;
    for (const Arg& arg : plan.args) {
      if (arg.written) continue;
      bool zero = false;
      each_tensor(given.args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        if (is_wrapped(t)) return;
        const Identity* const known = t.has_storage() ? describer_.identities.find(t.storage().unsafeGetStorageImpl()) : nullptr;
        zero = zero || known == nullptr || !known->is_looked_at() || !(known->amax > 0);
      });
      if (zero) return false;
    }
    return true;
  }

  static std::size_t count_tensors(const Plan& plan, const Given& given) {
    std::size_t count = 0;
    if (plan.by_number != ByNumber::kNone)
      for (const c10::IValue& value : given.args)
        count += value.isTensor() && value.toTensor().defined() && !is_wrapped(value.toTensor());
    return count;
  }

  void note_left_bad(const Plan& plan, const Given& given, const Made& made) {
    if (state_->course != kTrains || state_->phase == NANHUNT_PHASE_DATA)
      left_bad.note(plan, given.args, given.numbers, made);
  }

  // In a step whose rows are with the recorder: a number that is not finite makes it none that was healthy.
  void note_numbers(const Made& made) {
    for (const Births::Made& one : made)
      if (one.tensor->numel() == 1 && finite::bits_of(*one.tensor).value_or(0) != 0) births.note_bad();
  }

  // What an op took and was finite when it was looked at was written past PyTorch where it is no more: that is not what
  // earlier rows showed.
  void hand_over_at(const Plan& plan, const Given& given, const Made& made) {
    state_->wanted = 1;
    std::vector<at::Tensor> parameters, found;
    for (const auto& one : parameters_)
      if (const auto alive = one.lock()) parameters.emplace_back(alive);
    Births::changed(plan, given.args, made, describer_.identities, parameters, found);
    Words changed;
    for (const at::Tensor& one : found)
      changed.push_back(describer_.identities.of(one.storage().unsafeGetStorageImpl()).word);
    hand_over(changed);
    for (const at::Tensor& one : found)
      if (const auto quad = describer_.describe(one, true); quad && quad->identity->step < state_->step)
        report_changed(*quad, quad->identity->step);
  }
  void hand_over(const Words& changed) {
    state_->held = 0;
    if (!ring.keeps()) return;
    if (is_late_) late_.begin(to_);
    is_late_ = false;
    const Words marks = ring.take_marks(describer_, changed);
    if (!ring.hand_over(describer_.identities, to_, marks, stand_ins_, changed)) ++refused_;
    stand_ins_.clear();
    begin_reported();
  }

  // The copy of what was written over, `now` one tensor of the argument.
  void stand_in(const Quad& old, const at::Tensor& now, const Arg& arg, const Plan& plan, Given& given) {
    const auto index = static_cast<std::size_t>(arg.index);
    const Saved::Values& saved = given.saved.take(plan, given.args);
    if (saved.size() <= index) return;
    const c10::IValue &copy = saved[index], &value = given.args[index];
    if (copy.isTensor()) return add_stand_in(old, now, copy.toTensor());
    if (!copy.isTensorList() || !value.isTensorList()) return;
    const auto copies = copy.toListRef(), values = value.toListRef();
    for (std::size_t i = 0; i < copies.size() && i < values.size(); ++i)
      if (values[i].toTensor().is_same(now)) add_stand_in(old, now, copies[i].toTensor());
  }
  void add_stand_in(const Quad& old, const at::Tensor& now, const at::Tensor& copy) {
    if (!copy.defined() || copy.is_same(now) || copy.strides() != now.strides() || !copy.device().is_cpu()) return;
    stand_ins_.push_back({old.word, old.offset, old.layout,
                          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(copy.const_data_ptr()))});
  }

  const Recording& to_;
  State*& state_;
  Describer& describer_;
  const Copies& copies_;
  Notes& notes_;
  std::uint64_t& refused_;
  LateStep late_;  // the step at hand
  bool is_late_ = false;
  std::deque<LateStep> waiting_;  // those that are over, oldest first
  std::vector<WeakTensor> parameters_;
  std::vector<StepRing::StandIn> stand_ins_;
  std::vector<const at::Tensor*> bad_;
  std::uint64_t first_reported_ = 0, origins_ = 0;  // of the recorder, before the rows of the op at hand
};

}  // namespace nanhunt::tap
