// SPDX-License-Identifier: Apache-2.0
// Rows of ops: what each read and wrote, as words for nanhunt_record_rows.
//
//   Before before(...);      // what is given, as it is before the kernel runs
//   op.redispatchBoxed(...); // the kernel
//   rows.after(before, ...); // what was made, and the row
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/between.h"
#include "hooks/torch/tap/births.h"
#include "hooks/torch/tap/call_numbers.h"
#include "hooks/torch/tap/copies.h"
#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/frames.h"
#include "hooks/torch/tap/lists.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/places.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/ring.h"
#include "hooks/torch/tap/scalars.h"
#include "hooks/torch/tap/setup.h"

namespace nanhunt::tap {

class Rows {
 public:
  Rows(const Recording& to, State*& state, std::recursive_mutex& mutex, std::int64_t loss,
       std::vector<std::string> theirs)
      : describer(to, state, notes), copies(describer, state), places(loss), frames(to, mutex, std::move(theirs)), setup(to, state), to_(to), state_(state) {}

  Notes notes;

  Describer describer;
  Between between;
  Copies copies;
  Places places;
  Frames frames;
  Setup setup;
  StepRing ring;
  Births births;
  std::unordered_map<std::int64_t, std::int64_t> owners;  // storage -> text, while an optimizer runs
  std::uint64_t refused = 0;

  // What an op is given, before its kernel runs. The tensors live until the row is written.
  struct Before {
    std::vector<c10::IValue> args;
    Words words;
    Key key;
    std::vector<double> numbers;
    struct Written {
      std::ptrdiff_t at;  // of its old contents among the words; -1: not among them
      Quad quad;
      at::Tensor tensor;
      const Arg* arg;
      bool had_looked = false;  // whether it was known what its storage holds, and that
      std::uint8_t had = 0;
    };
    std::vector<Written> written;
    std::vector<c10::IValue> saved;  // arguments with copies of what is written over, where there are any
    bool inputs_finite = true;       // as far as the step's rows stay here
    std::uint8_t old = 0;            // what is written over held
    int reach = 0;                   // of the widest input
    std::size_t memory = 0;  // of what is resized
    bool late = false;  // what it leaves in host memory is not there yet: nobody may read it, and nothing says when

    // As new, but for the memory.
    void clear() {
      args.clear(), words.clear(), key.clear(), numbers.clear(), written.clear(), saved.clear();
      inputs_finite = true, late = false;
      old = 0, reach = 0, memory = 0;
    }
  };

  // One of them, whose memory is kept for the next op. Ops nest, and run in several threads.
  class Borrowed {
   public:
    explicit Borrowed(Rows& rows) : rows_(rows) {
      const std::lock_guard lock(rows_.spare_mutex_);
      if (rows_.spare_.empty()) rows_.spare_.push_back(std::make_unique<Before>());
      given_ = std::move(rows_.spare_.back());
      rows_.spare_.pop_back();
    }
    ~Borrowed() {
      given_->clear();
      const std::lock_guard lock(rows_.spare_mutex_);
      if (rows_.spare_.size() < kSpare) rows_.spare_.push_back(std::move(given_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Before& operator*() const { return *given_; }

   private:
    static constexpr std::size_t kSpare = 16;
    Rows& rows_;
    std::unique_ptr<Before> given_;
  };

  void before(const Plan& plan, const c10::Stack& stack, Before& given) {
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.args.size());
    given.args.assign(first, stack.end());
    const bool happens = plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    given.late = is_late(plan, given.args);
    if (plan.garbage && plan.writes && given.args[0].isTensor()) given.memory = given.args[0].toTensor().storage().nbytes();
    if (plan.per_element || plan.garbage || plan.scalar_read || plan.collective) return;
    for (const Arg& arg : plan.args) {
      const c10::IValue& value = given.args[static_cast<std::size_t>(arg.index)];
      if (arg.kind == ArgKind::kTensor || arg.kind == ArgKind::kNumber) {
        double number = 0;
        if (number_of(value, number)) {
          if (!is_default(plan, given.args, arg)) take_number(arg, number, given.words, given.key, given.numbers);
          continue;
        }
      }
      if (arg.kind != ArgKind::kTensor && arg.kind != ArgKind::kTensors) continue;
      each_tensor(value, [&](const at::Tensor& t) {
        const bool writes = arg.written && happens;
        if (writes && arg.only_written) {
          given.written.push_back({-1, {}, t, &arg});
          return;
        }
        const auto quad = describer.describe(t, !arg.blind && !writes);
        if (!quad) {
          given.inputs_finite = false;
          return;
        }
        if (writes) given.written.push_back({static_cast<std::ptrdiff_t>(given.words.size()), *quad, t, &arg});
        if (ring.keeps()) look_before(plan, arg, writes, t, *quad->identity, given);
        given.key.push_back(8 * arg.index + (arg.written && !writes ? kAsRead : kAsTensor));
        put(given.words, *quad);
      });
    }
  }

  // After an op whose row is written. Badness `began` in it. Whether weights that last went bad. Copies of parameters
  // that it wrote go to `written`.
  bool mark_copies(const Plan& plan, const Before& given, const c10::Stack& stack, bool began,
                   std::vector<at::Tensor>& written) {
    Words marks;
    const bool bad = copies.look(phase_, plan, given.args, stack, began, marks, written);
    if (!marks.empty()) send(marks);
    return bad;
  }

  // The call site, to be asked for before the tap's mutex is taken: the user's line in forward, else 0.
  std::int64_t site(const Plan& plan) {
    if (in_backward() || plan.scalar_read || (plan.skip && !places.is_to_claim())) return 0;
    return state_->site >= 0 ? state_->site : frames.here(state_->caller);
  }

  std::int64_t phase() const { return phase_; }  // of the op that was told last

  // `site`: of the call.
  void after(Plan& plan, Before& given, const c10::Stack& stack, std::int64_t site) {
    site_ = site;
    if (const std::string met = frames.take_new_site(); !met.empty()) setup.look(met);
    phase_ = between.phase_of(state_->phase, plan, plan.returns > 0 ? &stack.back() : nullptr, describer.identities,
                              copies, [&](auto&& take) {
                                for (const c10::IValue& value : given.args) each_tensor(value, take);
                              });
    if (plan.writes && state_->phase == NANHUNT_PHASE_LOSS && phase_ != NANHUNT_PHASE_LOSS) state_->wrote = 1;
    if (plan.scalar_read) {
      if (between.is_look()) state_->looked = 1;
      scalar_read(given, stack);
    } else if (plan.garbage) {
      garbage(plan, given, stack);
    } else if (plan.per_element) {
      per_element(plan, given, stack);
    } else {
      simple(plan, given, stack);
    }
    describer.release_hosts();
    if (describer.identities.is_sweep_due()) tell_dead();
  }

  // One op on tensors of its own. `where`: instead of what runs now.
  void simple(Plan& plan, Before& given, const c10::Stack& stack, const Place* where = nullptr) {
    Words& words = given.words;
    Key& key = given.key;
    const std::size_t inputs = words.size();
    bool wide = false;
    made_.clear();
    if (plan.into_part != nullptr) {
      const c10::IValue& memory = given.args[static_cast<std::size_t>(plan.into_part->index)];
      if (memory.isTensor() && memory.toTensor().has_storage())
        describer.identities.bump(*describer_identity(memory.toTensor()));
    }
    // What is returned beside what was written; then what was written.
    if (plan.fresh && !(plan.collective && plan.writes)) {
      const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.returns);
      for (std::size_t i = 0; i < plan.returns; ++i) {
        if (plan.outputs[i].empty()) continue;
        each_tensor(*(first + static_cast<std::ptrdiff_t>(i)), [&](const at::Tensor& t) {
          const auto quad = describer.describe(t, !(given.late && t.device().is_cpu()));
          if (!quad) return;
          quad->identity->made = true;
          if (words.size() == inputs) wide = quad->wide;
          put(words, *quad);
          key.push_back(8 * static_cast<std::int32_t>(i) + kAsResult);
          if (quad->data != 0) made_.push_back({&t, *quad});
          if (state_->bad_number == 0 && phase_ <= NANHUNT_PHASE_LOSS && requires_grad(given.args)) note_number(t);
        });
      }
    }
    if (!given.written.empty()) {
      Words& gone = gone_;
      gone.clear();
      for (const Before::Written& one : given.written) {
        const auto was = one.at < 0 ? describer.describe(one.tensor, false) : one.quad;
        if (!was) continue;
        Identity& identity = *describer_identity(one.tensor);
        const std::int64_t old = one.at < 0 ? identity.word : was->word;
        bool counted = false;
        for (const std::int64_t word : gone) counted = counted || word >> kVersionBits == old >> kVersionBits;
        if (!counted) {
          gone.push_back(old);
          if (identity.word == old) describer.identities.bump(identity);
        }
        const auto quad = describer.describe(one.tensor, !(given.late && one.tensor.device().is_cpu()));
        if (!quad) continue;
        if (words.size() == inputs) wide = quad->wide;
        put(words, *quad);
        key.push_back(8 * one.arg->index + kAsWritten);
        if (quad->data != 0) made_.push_back({&one.tensor, *quad, quad->identity, true, one.had_looked, one.had});
      }
      for (std::size_t at = 0; at < inputs; at += kValueWords)  // what was read is no longer there
        for (const std::int64_t word : gone)
          if (words[at + 1] == word) words[at] = 0;
      if (ring.is_held())
        for (const Before::Written& one : given.written)
          if (one.at >= 0 && one.had_looked && one.had == 0) words[static_cast<std::size_t>(one.at)] = NANHUNT_WAS_FINITE;
    }
    if (ring.keeps())
      judge(plan, given, given.numbers);
    else if (ring.is_handed_over())
      note_numbers();
    emit(plan, words, key, given.numbers, inputs, wide, where);
  }

  // A view has no row, but its node in the graph has a place.
  void claim_views(std::int64_t site) {
    if (places.is_to_claim()) places.claim(here(site));
  }

  // From here on rows of the step go to the recorder at once, with those that have come so far.
  void hand_over(const Words& changed = {}) {
    if (!ring.keeps()) return;
    if (!ring.hand_over(describer.identities, to_, stand_ins_, changed)) ++refused;
    begin_told();
  }

  // What is left behind by a step whose rows stay here is bad: they are wanted.
  void note_bad(const Words& changed = {}) {
    births.note_bad();
    hand_over(changed);
  }

  // Of what a step leaves behind.
  void look_at_mark(const at::Tensor& t, const Quad& quad) {
    if (!ring.is_held() || quad.data == 0) return;
    const Identity& identity = *quad.identity;
    if (identity.is_looked_at() ? identity.bad != 0 : ring.is_handed_over() && finite::bits_of(t).value_or(0) != 0) note_bad();
  }

  // Contents are others than in step `since`, and nobody was heard to write them.
  void tell_changed(const at::Tensor& t, std::int64_t since) {
    const auto quad = describer.describe(t, true);
    if (!quad) return;
    Words words;
    put(words, *quad);
    note_bad(Words{quad->word});
    quad->identity->looked_at = -1;
    if (to_.changed != nullptr && to_.changed(to_.self, static_cast<std::uint32_t>(state_->step), words.data(), UINT64_MAX,
                                              static_cast<std::uint32_t>(since), 0) != NANHUNT_OK)
      ++refused;
  }

  // The rows of an op are about to be told.
  void begin_told() {
    if (ring.keeps()) return;
    first_told_ = to_.next_seq(to_.self);
    origins_ = to_.origins(to_.self);
  }
  std::uint64_t first_told() const { return first_told_; }
  // Badness began in one of them. Where rows stay here nobody has read them.
  bool began() const { return !ring.keeps() && to_.origins(to_.self) != origins_; }

  // Rows that are no op's.
  void send(const Words& rows) {
    if (ring.keeps()) return ring.append(rows, notes);
    if (to_.rows(to_.self, rows.data(), rows.size()) != NANHUNT_OK) ++refused;
    ring.note_told();
  }

  // Ends of storages, told to the recorder.
  void tell_dead() {
    Words words;
    for (const std::int64_t storage : describer.identities.take_dead()) {
      words.push_back(NANHUNT_ROW_RELEASE);
      words.push_back(storage);
    }
    if (!words.empty()) send(words);
  }

  // Ops ran unheard: nothing is known of any contents.
  void forget() {
    describer.identities.forget();
    scalars_.clear();
    tell_dead();
  }

  bool in_backward() const { return state_->phase == NANHUNT_PHASE_BACKWARD && !places.recomputing(); }
  Place here(std::int64_t site) {
    return in_backward() ? places.backward() : Place{places.path, std::max<std::int64_t>(0, site)};
  }

  bool is_late(const Plan& plan, const std::vector<c10::IValue>& args) const {
    if (plan.non_blocking == nullptr || !is_given(args[static_cast<std::size_t>(plan.non_blocking->index)])) return false;
    bool away = false;
    for (const c10::IValue& value : args) each_tensor(value, [&](const at::Tensor& t) { away = away || !t.device().is_cpu(); });
    return away;
  }

  Identity* describer_identity(const at::Tensor& t) {
    return &describer.identities.of(t.storage().unsafeGetStorageImpl());
  }

 private:
  // Whether it is a single number on the host that is not finite: most often the loss.
  void note_number(const at::Tensor& t) {
    if (const auto number = one_number(t); number && !std::isfinite(*number)) state_->bad_number = 1;
  }

  // A loss does; a constant of a mask does not.
  static bool requires_grad(const std::vector<c10::IValue>& args) {
    bool found = false;
    for (const c10::IValue& value : args) each_tensor(value, [&](const at::Tensor& t) { found = found || t.requires_grad(); });
    return found;
  }

  // A number that was read out of a tensor stands for that tensor as well.
  void take_number(const Arg& arg, double number, Words& words, Key& key, std::vector<double>& numbers) {
    scalars_.each(number, [&](const Quad& quad) {
      key.push_back(8 * arg.index + kAsScalarRead);
      put(words, quad);
    });
    key.push_back(8 * arg.index + kAsNumber);
    numbers.push_back(number);
  }

  void scalar_read(const Before& given, const c10::Stack& stack) {
    if (given.args.empty() || !given.args[0].isTensor() || !stack.back().isDouble()) return;
    const double number = stack.back().toDouble();
    if (!Scalars::tells(number)) return;
    const at::Tensor& t = given.args[0].toTensor();
    if (const auto quad = describer.describe(t, false)) scalars_.note(number, t, *quad);
  }

  // What is known of an argument while it still is there. Rows of the step stay here.
  void look_before(const Plan& plan, const Arg& arg, bool writes, const at::Tensor& t, Identity& identity,
                          Before& given) {
    const int reach = finite::reach_of(t.scalar_type());
    if (writes) {
      Before::Written& written = given.written.back();
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
    given.reach = std::max(given.reach, reach);
  }

  // What an op made, in a step whose rows stay here: whether they are wanted now. `made_`: that.
  bool is_wanted(const Plan& plan, const Before& given, const std::vector<double>& numbers) {
    if (made_.empty()) return false;
    bool single = false;
    const bool known = Births::stays_finite(plan, given.reach, given.inputs_finite, numbers, made_);
    const std::uint8_t bits = Births::look(made_, known, single);
    for (const Births::Made& one : made_) {
      if (!one.identity->is_finite()) ring.note_not_finite(one.identity->word);
      if (one.tensor->numel() == 1) ring.keep_number(one.quad, one.tensor->itemsize());
    }
    if (bits == 0) return false;
    bad_.clear();
    const std::uint8_t taken = Births::taken(plan, given.args, made_, describer.identities, given.old, bad_);
    const bool was_given = std::any_of(numbers.begin(), numbers.end(), [](double x) { return !std::isfinite(x); });
    const std::int64_t at = in_backward() ? places.backward().site : site_;
    const bool lasts = std::any_of(made_.begin(), made_.end(), [&](const Births::Made& one) {
      return one.written && (ring.is_older(one.identity->word) || copies.is_weights(*one.tensor));
    });
    if (births.are_wanted(plan, at, bits, taken, single, was_given, lasts)) return true;
    for (const Births::Made& one : made_)
      if (!one.identity->is_finite()) ring.keep_alive(one.tensor->storage());
    for (const at::Tensor* one : bad_) ring.keep_alive(one->storage());
    return false;
  }
  void judge(const Plan& plan, const Before& given, const std::vector<double>& numbers) {
    if (!is_wanted(plan, given, numbers)) return;
    stand_ins_.clear();
    for (const Before::Written& one : given.written)
      if (one.at >= 0) stand_in(one.quad, one.tensor, *one.arg, given);
    hand_over_at(plan, given);
  }

  // At an op whose row is about to be told. What it took and was finite when it was looked at was written past PyTorch
  // where it is no more: that is not what earlier rows showed.
  void hand_over_at(const Plan& plan, const Before& given) {
    Births::changed(plan, given.args, made_, describer.identities, bad_);
    Words changed;
    for (const at::Tensor* one : bad_) changed.push_back(describer_identity(*one)->word);
    hand_over(changed);
    stand_ins_.clear();
  }

  // In a step whose rows are with the recorder: a number that is not finite makes it none that was healthy.
  void note_numbers() {
    for (const Births::Made& one : made_)
      if (one.tensor->numel() == 1 && finite::bits_of(*one.tensor).value_or(0) != 0) births.note_bad();
  }

  // The copy of what was written over, where the op was given one tensor.
  void stand_in(const Quad& old, const at::Tensor& now, const Arg& arg, const Before& given) {
    const auto index = static_cast<std::size_t>(arg.index);
    if (given.saved.size() <= index) return;
    const c10::IValue &copy = given.saved[index], &value = given.args[index];
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

  // Memory that nothing has written: a row without contents, so that whoever reads it can be told.
  void garbage(Plan& plan, const Before& given, const c10::Stack& stack) {
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.returns);
    for (auto value = first; value != stack.end(); ++value) {
      each_tensor(*value, [&](const at::Tensor& t) {
        if (plan.writes && t.has_storage() && t.storage().nbytes() <= given.memory) return;  // a view of what was there
        if (plan.writes && t.has_storage()) describer.identities.bump(*describer_identity(t));
        const auto quad = describer.describe(t, false);
        if (!quad) return;
        quad->identity->made = true;
        Words words;
        Key key{kAsResult};
        put(words, *quad);
        emit(plan, words, key, {}, 0, quad->wide, nullptr);
      });
    }
  }

  // One row for each element of lists.
  void per_element(Plan& plan, Before& given, const c10::Stack& stack) {
    const bool happens =
        plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    columns_.take(plan, given.args, happens, given.late, describer,
                  [&](const Arg& arg) { return is_default(plan, given.args, arg); });
    const std::size_t n = columns_.elements();
    const std::vector<double> steps = steps_of(plan, given, n);
    std::vector<std::optional<Quad>>& results = results_;
    results.clear();
    made_.clear();
    if (!plan.writes && plan.returns == 1)
      each_tensor(stack.back(), [&](const at::Tensor& t) {
        results.push_back(describer.describe(t, true));
        if (!results.back()) return;
        results.back()->identity->made = true;
        if (results.back()->data != 0) made_.push_back({&t, *results.back()});
      });

    // All that is written is written by now: what follows looks at it as one.
    for (const Column& column : columns_) {
      if (!column.writes) continue;
      for (std::size_t i = 0; i < column.quads.size(); ++i) {
        const auto& quad = column.quads[i];
        if (!quad) continue;
        Identity& identity = *quad->identity;
        const bool had_looked = identity.is_looked_at();
        const std::uint8_t had = had_looked ? identity.bad : 0;
        if (identity.word == quad->word) describer.identities.bump(identity);
        if (quad->data == 0) continue;
        made_.push_back({column.tensors[i], *quad, &identity, true, had_looked, had});
        made_.back().quad.word = identity.word;
        given.old |= had;
      }
    }
    if (ring.keeps()) judge_lists(plan, given);

    const std::int64_t at = in_backward() ? places.backward().site : site_;
    if (at == Frames::kImporting) return;
    const bool owned = is_owned(phase_);
    const std::int64_t elsewhere = owned ? 0 : places.path;
    Words &words = given.words, &outputs = outputs_;
    Key &key = given.key, &output_key = output_key_;
    std::vector<double>& numbers = given.numbers;
    for (std::size_t i = 0; i < n; ++i) {
      words.clear(), outputs.clear(), key.clear(), output_key.clear(), numbers.clear();
      bool wide = false;
      for (const Column& column : columns_) {
        const Arg& arg = *column.arg;
        if (!column.numbers.empty()) {
          if (column.of_list && i >= column.numbers.size()) continue;
          numbers.push_back(column.numbers[column.of_list ? i : 0]);
          key.push_back(8 * arg.index + kAsNumber);
          continue;
        }
        if (column.of_list && i >= column.quads.size()) continue;
        if (column.quads.empty()) continue;
        const auto& quad = column.quads[column.of_list ? i : 0];
        if (!quad) continue;
        if (!column.writes) {
          key.push_back(8 * arg.index + (arg.written ? kAsRead : kAsTensor));
          put(words, *quad);
          if (&arg == plan.state_steps && !steps.empty()) {
            numbers.push_back(steps[i]);
            key.push_back(8 * arg.index + kAsNumber);
          }
          continue;
        }
        key.push_back(8 * arg.index + kAsTensor);
        Quad old = *quad;
        old.data = ring.is_held() && quad->identity->was_finite(quad->word) ? NANHUNT_WAS_FINITE : 0;
        put(words, old);
        if (!column.of_list && i + 1 != n) continue;
        Quad now = *quad;
        now.word = quad->identity->word;
        if (outputs.empty()) wide = now.wide;
        put(outputs, now);
        output_key.push_back(8 * arg.index + kAsWritten);
      }
      if (!plan.writes && i < results.size() && results[i]) {
        if (outputs.empty()) wide = results[i]->wide;
        put(outputs, *results[i]);
        output_key.push_back(kAsResult);
      }
      if (outputs.empty()) continue;
      key.insert(key.end(), output_key.begin(), output_key.end());
      if (wide) key.push_back(kWide);
      const std::size_t inputs = words.size();
      words.insert(words.end(), outputs.begin(), outputs.end());
      const std::int64_t path = owners.empty() || !owned ? elsewhere : owner(words, inputs);
      add_row(plan, key, phase_, path, at, words, inputs, numbers);
    }
    send_rows();
  }

  void judge_lists(const Plan& plan, Before& given) {
    given.numbers.clear();
    given.inputs_finite = true;
    for (const Column& column : columns_) {
      given.numbers.insert(given.numbers.end(), column.numbers.begin(), column.numbers.end());
      if (column.writes) continue;
      for (const auto& quad : column.quads)
        given.inputs_finite = given.inputs_finite && quad && quad->identity->is_finite();
      for (const at::Tensor* t : column.tensors) given.reach = std::max(given.reach, finite::reach_of(t->scalar_type()));
    }
    for (const Births::Made& one : made_)
      given.inputs_finite = given.inputs_finite && (!one.written || plan.ignores_old || (one.had_looked && one.had == 0));
    if (!is_wanted(plan, given, given.numbers)) return;
    stand_ins_.clear();
    for (const Column& column : columns_) {
      if (!column.writes) continue;
      for (std::size_t i = 0; i < column.quads.size(); ++i)
        if (column.quads[i]) stand_in(*column.quads[i], *column.tensors[i], *column.arg, given);
    }
    hand_over_at(plan, given);
  }

  std::vector<double> steps_of(const Plan& plan, const Before& given, std::size_t n) const {
    std::vector<double> steps;
    if (plan.state_steps == nullptr || plan.op.rfind("aten::_fused_adam", 0) != 0) return steps;
    each_tensor(given.args[static_cast<std::size_t>(plan.state_steps->index)], [&](const at::Tensor& t) {
      if (t.device().is_cpu() && t.numel() == 1 && t.scalar_type() == at::kFloat)
        steps.push_back(*static_cast<const float*>(t.const_data_ptr()));
    });
    if (steps.size() != n) steps.clear();
    return steps;
  }

  void emit(Plan& plan, const Words& words, Key& key, const std::vector<double>& numbers, std::size_t inputs, bool wide,
            const Place* where) {
    if (inputs == words.size()) return;
    if (wide) key.push_back(kWide);
    Place place;
    const std::int64_t phase = where != nullptr ? state_->phase : phase_;
    if (where != nullptr) {
      place = *where;
    } else if (in_backward()) {
      place = places.backward();
      if (place.path == 0 && place.site == 0) place.path = places.loss();
    } else {
      place = {places.path, site_};
      if (place.site == Frames::kImporting) return;
      if (is_owned(phase)) place.path = owners.empty() ? 0 : owner(words, inputs);
    }
    if (place.site < 0) place.site = 0;
    places.claim(place);
    add_row(plan, key, plan.collective ? std::int64_t{NANHUNT_PHASE_COMM} : phase, place.path, place.site, words, inputs,
            numbers);
    send_rows();
  }

  // Goes to the other rows of the step where these stay here, else to those that send_rows() sends.
  void add_row(Plan& plan, const Key& key, std::int64_t phase, std::int64_t path, std::int64_t site, const Words& words,
               std::size_t inputs, const std::vector<double>& numbers) {
    const std::int64_t call = call_of(plan, key, to_);
    if (call < 0) {
      ++refused;
      return;
    }
    Words& rows = ring.keeps() ? ring.words() : rows_;
    const std::size_t at = rows.size();
    rows.resize(at + kOpHeader + words.size() + numbers.size());
    std::int64_t* word = rows.data() + at;
    for (const std::int64_t one : {std::int64_t{NANHUNT_ROW_OP}, call, state_->step, state_->micro_batch, phase, path, site})
      *word++ = one;
    word = std::copy(words.begin(), words.end(), word);
    for (const double number : numbers) *word++ = std::bit_cast<std::int64_t>(number);
    if (ring.keeps()) ring.end_row(at, inputs / kValueWords, (words.size() - inputs) / kValueWords, notes);
  }
  void send_rows() {
    if (rows_.empty()) return;
    send(rows_);
    rows_.clear();
  }

  // What runs there belongs to no module, but to the parameter that it is about.
  static bool is_owned(std::int64_t phase) { return phase >= NANHUNT_PHASE_COMM || phase == NANHUNT_PHASE_DATA; }

  // The parameter to which what an optimizer computes belongs; 0: to none, or to several.
  std::int64_t owner(const Words& words, std::size_t inputs) {
    std::int64_t owner = 0;
    for (std::size_t at = 1; at < inputs; at += kValueWords) {
      const auto other = owners.find(words[at] >> kVersionBits);
      if (other == owners.end() || other->second == 0 || other->second == owner) continue;
      if (owner != 0) return 0;
      owner = other->second;
    }
    if (owner != 0)
      for (std::size_t at = inputs + 1; at < words.size(); at += kValueWords)
        owners.try_emplace(words[at] >> kVersionBits, owner);
    return owner;
  }

  const Recording& to_;
  State*& state_;
  Scalars scalars_;
  std::uint64_t first_told_ = 0, origins_ = 0;  // of the recorder, before the rows of the op at hand
  // Memory that is kept from op to op.
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<Before>> spare_;
  Words rows_, gone_, outputs_;
  Key output_key_;
  std::vector<Births::Made> made_;
  std::vector<std::optional<Quad>> results_;
  std::vector<StepRing::StandIn> stand_ins_;
  std::vector<const at::Tensor*> bad_;
  Columns columns_;
  std::int64_t site_ = 0, phase_ = 0;  // of the op at hand
};

}  // namespace nanhunt::tap
