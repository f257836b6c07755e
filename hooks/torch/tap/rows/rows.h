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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hooks/torch/tap/asked.h"
#include "hooks/torch/tap/between.h"
#include "hooks/torch/tap/copies.h"
#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/frames.h"
#include "hooks/torch/tap/held/held_step.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/places.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/call_numbers.h"
#include "hooks/torch/tap/rows/given.h"
#include "hooks/torch/tap/rows/lists.h"
#include "hooks/torch/tap/rows/scalars.h"
#include "hooks/torch/tap/rows/unwritten.h"
#include "hooks/torch/tap/setup.h"

namespace nanhunt::tap {

class Rows {
 public:
  Rows(const Recording& to, State*& state, std::recursive_mutex& mutex, std::int64_t loss,
       std::vector<std::string> theirs)
      : describer(to, notes), copies(describer, state), places(loss), frames(to, mutex, std::move(theirs)),
        setup(to, state), held(to, state, describer, copies, notes, refused), to_(to), state_(state) {}

  Notes notes;

  Describer describer;
  Between between;
  Copies copies;
  Places places;
  Frames frames;
  Setup setup;
  std::uint64_t refused = 0;
  HeldStep held;

  void before(const Plan& plan, const c10::Stack& stack, Given& given) {
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.args.size());
    given.args.assign(first, stack.end());
    const bool happens = plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    given.late = is_late(plan, given.args);
    if (plan.writes && held.is_late()) held.read_what_is_written(plan, given.args);
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
        if (!held.left_bad.is_empty() && !writes) report_source(t, *quad->identity);
        if (quad->identity->gaps != nullptr && !writes && !given.gaps.defined()) given.gaps = t;
        given.reads_table = given.reads_table || quad->identity->by_rows;
        if (writes) given.written.push_back({static_cast<std::ptrdiff_t>(given.words.size()), *quad, t, &arg});
        if (held.ring.keeps()) {
          held.look_before(plan, arg, writes, t, *quad->identity, given);
        } else if (writes && writes_few_rows(plan, given.args, t)) {
          held.look_before_rows(t, *quad->identity, given.written.back());
        }
        given.key.push_back(8 * arg.index + (arg.written && !writes ? kAsRead : kAsTensor));
        put(given.words, *quad);
      });
    }
  }

  // After an op whose row is written. Badness `began` in it. Whether weights that last went bad. Copies of parameters
  // that it wrote go to `written`.
  bool mark_copies(const Plan& plan, const Given& given, const c10::Stack& stack, bool began,
                   std::vector<at::Tensor>& written) {
    Words marks;
    const bool bad = copies.look(phase_, plan, given.args, stack, began, marks, written);
    if (!marks.empty()) send(marks);
    return bad;
  }

  // The call site, to be asked for before the tap's mutex is taken: the user's line in forward, and in what Python runs
  // of a backward, else 0.
  std::int64_t site(const Plan& plan) {
    if (in_graph_) return in_graph_->site;
    if (plan.scalar_read) return 0;
    if (in_backward()) return !plan.skip && Places::may_be_python() ? std::max<std::int64_t>(0, frames.here(true)) : 0;
    return plan.skip && (plan.places_none || !places.is_to_claim()) ? 0 : frames.here();
  }

  // The same of a compiled graph, or of a kernel that is launched past the dispatcher.
  std::int64_t site_of_call() { return in_backward() ? std::max<std::int64_t>(0, frames.here(true)) : frames.here(); }

  std::int64_t phase() const { return phase_; }  // of the op that was told last

  // `site`: of the call.
  void after(Plan& plan, Given& given, const c10::Stack& stack, std::int64_t site) {
    site_ = site;
    if (const std::string met = frames.take_new_site(); !met.empty()) setup.look(met);
    phase_ = between.phase_of(
        state_->phase, plan, plan.returns > 0 ? &stack.back() : nullptr, describer.identities, copies,
        [&](auto&& take) {
          for (const c10::IValue& value : given.args) each_tensor(value, take);
        },
        [&](auto&& take) {
          for (const Given::Written& one : given.written) take(one.tensor);
        });
    if (plan.writes && state_->phase == NANHUNT_PHASE_LOSS && phase_ != NANHUNT_PHASE_LOSS) state_->wrote = 1;
    if (plan.writes && between.has_stepped() && phase_ == NANHUNT_PHASE_OPTIMIZER)
      state_->stepped |= between.has_used_gradients() ? kStepped | kUsedGradients : kStepped;
    if (plan.returns == 1 && (phase_ == NANHUNT_PHASE_UNSCALE || phase_ == NANHUNT_PHASE_CLIP)) {
      each_tensor(stack.back(), [&](const at::Tensor& t) {
        if (const auto number = one_number(t); number && !std::isfinite(*number)) between.on_bad_number();
      });
    }
    if (plan.scalar_read) {
      if (between.is_look(state_->step)) state_->looked |= between.has_bad_number() ? 3 : 1;
      scalar_read(given, stack);
    } else if (plan.garbage) {
      garbage(plan, given, stack);
    } else if (plan.per_element) {
      per_element(plan, given, stack);
    } else {
      simple(plan, given, stack);
    }
    if (phase_ == NANHUNT_PHASE_UNSCALE || phase_ == NANHUNT_PHASE_CLIP) {
      between.on_made(describer.identities, [&](auto&& take) {
        for (std::size_t i = stack.size() - plan.returns; i < stack.size(); ++i) each_tensor(stack[i], take);
      });
    }
    describer.release_hosts();
    if (describer.identities.is_sweep_due()) report_ended();
  }

  // Whether what an op has made, and written, was made by ops that it called and that were heard: it has no row then.
  bool was_heard_inside(const Plan& plan, const Given& given, const c10::Stack& stack) {
    bool heard = true;
    for (const Given::Written& one : given.written)
      heard = heard && one.at >= 0 && describer_identity(one.tensor)->word != one.quad.word;
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.returns);
    for (std::size_t i = 0; i < plan.returns; ++i) {
      each_tensor(*(first + static_cast<std::ptrdiff_t>(i)), [&](const at::Tensor& t) {
        const Identity* const known =
            t.has_storage() ? describer.identities.find(t.storage().unsafeGetStorageImpl()) : nullptr;
        heard = heard && known != nullptr && known->made && !known->is_unwritten();
      });
    }
    return heard;
  }

  // One op on tensors of its own. `where`: instead of what runs now.
  void simple(Plan& plan, Given& given, const c10::Stack& stack, const Place* where = nullptr) {
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
          if (t.numel() == 1 && state_->bad_number == 0 && phase_ <= NANHUNT_PHASE_LOSS && requires_grad(given.args))
            note_number(t, *quad);
        });
      }
    }
    if (!given.written.empty()) {
      Words& gone = gone_;
      gone.clear();
      for (const Given::Written& one : given.written) {
        const auto was = one.at < 0 ? describer.describe(one.tensor, false) : one.quad;
        if (!was) continue;
        Identity& identity = *describer_identity(one.tensor);
        const std::int64_t old = one.at < 0 ? identity.word : was->word;
        bool counted = false;
        for (const std::int64_t word : gone) counted = counted || word >> kVersionBits == old >> kVersionBits;
        if (!counted) {
          gone.push_back(old);
          if (identity.word == old) bump_part(identity, one.tensor);
        } else if (identity.gaps != nullptr && !identity.gaps->write(one.tensor)) {
          identity.gaps.reset();
        }
        const auto quad = describer.describe(one.tensor, !(given.late && one.tensor.device().is_cpu()));
        if (!quad) continue;
        if (words.size() == inputs) wide = quad->wide;
        put(words, *quad);
        key.push_back(8 * one.arg->index + kAsWritten);
        if (quad->data == 0) continue;
        made_.push_back({&one.tensor, *quad, quad->identity, true, one.had_looked, one.had});
        if (held.rows_stay_finite(plan, given.args, made_.back())) words[words.size() - kValueWords] = NANHUNT_WAS_FINITE;
      }
      for (std::size_t at = 0; at < inputs; at += kValueWords)  // what was read is no longer there
        for (const std::int64_t word : gone)
          if (words[at + 1] == word) words[at] = 0;
      if (held.ring.is_held())
        for (const Given::Written& one : given.written)
          if (one.at >= 0 && one.had_looked && one.had == 0) words[static_cast<std::size_t>(one.at)] = NANHUNT_WAS_FINITE;
    }
    held.judge(plan, given, made_, [&] { return site_now(); });
    if (given.gaps.defined()) report_unwritten(given, inputs);
    if (given.reads_table) held.look_at_tables(plan, given, made_);
    emit(plan, words, key, given.numbers, inputs, wide, where);
  }

  // A view has no row, but its node in the graph has a place.
  void claim_views(std::int64_t site) {
    if (places.is_to_claim()) places.claim(here(site));
  }

  // What came from elsewhere, and is a part of what was left bad, is told as made of that: a row, once.
  void report_source(const at::Tensor& t, Identity& identity) {
    if (identity.made || std::exchange(identity.sought, true)) return;
    at::Tensor whole = held.left_bad.source_of(t);
    if (!whole.defined()) return;
    if (arrives_ == nullptr) {
      const auto op = c10::Dispatcher::singleton().findSchema({"aten::clone", ""});
      if (!op) return;
      arrives_ = std::make_unique<Plan>(plans::read(*op));
      arrives_->op = "nanhunt::copied_elsewhere";
    }
    const std::int64_t phase = std::exchange(state_->phase, NANHUNT_PHASE_DATA);
    const Place nowhere{0, 0};
    Given given;
    before(*arrives_, {whole, c10::IValue()}, given);
    held.begin_reported();
    simple(*arrives_, given, {t}, &nowhere);
    state_->phase = phase;
  }

  // Rows that are no op's.
  void send(const Words& rows) {
    if (held.ring.keeps()) return held.ring.append(rows, notes);
    if (to_.rows(to_.self, rows.data(), rows.size()) != NANHUNT_OK) ++refused;
    held.ring.note_reported();
  }

  // The single number of the step at hand that was not finite first is marked. False: there is none.
  bool mark_bad_number(std::int64_t kind, std::int64_t text) {
    if (state_->bad_number == 0 || bad_number_.step != state_->step || !bad_number_.storage) return false;
    Words mark{NANHUNT_ROW_MARK, kind, state_->step, state_->micro_batch, text};
    put(mark, bad_number_.quad);
    send(mark);
    return true;
  }

  void forget_bad_number() { bad_number_ = {}; }

  // Ends of storages, told to the recorder.
  void report_ended() {
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
    report_ended();
  }

  // Where ops run that stand for nodes of a compiled graph; none: they run where they seem to.
  void set_place(std::optional<Place> place) { in_graph_ = place; }
  // A compiled graph or a launched kernel wrote it: the program is its own optimizer where that is a parameter.
  void note_written_unheard(const at::Tensor& t) {
    if (state_->phase == NANHUNT_PHASE_LOSS && copies.is_weights(t)) state_->stepped |= kStepped;
  }
  // The number of the row that the recorder got last.
  std::uint64_t last_reported() const { return to_.next_seq(to_.self) - 1; }
  bool is_in_optimizer() const { return state_->phase == NANHUNT_PHASE_OPTIMIZER; }
  bool in_graph() const { return in_graph_.has_value(); }

  bool in_backward() const { return state_->phase == NANHUNT_PHASE_BACKWARD && !places.recomputing(); }
  Place here(std::int64_t site) {
    return in_backward() ? in_backward_at(site) : Place{places.path, std::max<std::int64_t>(0, site)};
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
  std::int64_t site_now() { return in_graph_ ? in_graph_->site : in_backward() ? in_backward_at(site_).site : site_; }

  // That of its forward; the line of its own where Python runs it.
  Place in_backward_at(std::int64_t site) {
    Place place = places.backward();
    if (site > 0) place.site = site;
    return place;
  }

  // Whether it is a single number on the host that is not finite: most often the loss.
  void note_number(const at::Tensor& t, const Quad& quad) {
    const auto number = one_number(t);
    if (!number || std::isfinite(*number)) return;
    state_->bad_number = 1;
    bad_number_ = {quad, state_->step, t.storage()};
  }

  // A number that was read out of a tensor stands for that tensor as well.
  void take_number(const Arg& arg, double number, Words& words, Key& key, std::vector<double>& numbers) {
    const bool negated = state_->phase == NANHUNT_PHASE_OPTIMIZER;
    scalars_.each(number, state_->step, negated, [&](const Quad& quad) {
      key.push_back(8 * arg.index + kAsScalarRead);
      put(words, quad);
    });
    key.push_back(8 * arg.index + kAsNumber);
    numbers.push_back(number);
  }

  void scalar_read(const Given& given, const c10::Stack& stack) {
    if (given.args.empty() || !given.args[0].isTensor() || !stack.back().isDouble()) return;
    const double number = stack.back().toDouble();
    if (!Scalars::tells(number)) return;
    const at::Tensor& t = given.args[0].toTensor();
    if (const auto quad = describer.describe(t, false)) scalars_.note(number, t, *quad, state_->step);
  }

  // The version after a write to `t`, keeping what of the storage is still unwritten.
  void bump_part(Identity& identity, const at::Tensor& t) {
    std::shared_ptr<Unwritten> gaps = std::move(identity.gaps);
    describer.identities.bump(identity);
    if (gaps != nullptr && gaps->write(t)) identity.gaps = std::move(gaps);
  }

  // A bad result is traced to unwritten memory that the op read: a row of the op that gave that memory out.
  void report_unwritten(Given& given, std::size_t inputs) {
    Identity& identity = *describer_identity(given.gaps);
    const std::shared_ptr<Unwritten> gaps = identity.gaps;
    const bool bad = std::any_of(made_.begin(), made_.end(), [](const Births::Made& one) { return one.bits() != 0; });
    if (gaps == nullptr || !bad || (identity.is_unwritten() && gaps->step == state_->step) || !gaps->is_bad_in(given.gaps))
      return;
    const std::int64_t read = identity.word;
    identity.unwritten = describer.identities.renumber(identity);
    gaps->step = state_->step;
    Words words;
    Key key{kAsResult};
    if (const auto quad = describer.describe(whole_of(given.gaps), false)) put(words, *quad);
    emit(*gaps->giver, words, key, {}, 0, false, &gaps->place);
    for (std::size_t at = 0; at < inputs; at += kValueWords)
      if (given.words[at + 1] == read) given.words[at + 1] = identity.word;
  }

  // Memory that nothing has written: a row without contents, so that whoever reads it can be told.
  void garbage(Plan& plan, const Given& given, const c10::Stack& stack) {
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.returns);
    for (auto value = first; value != stack.end(); ++value) {
      each_tensor(*value, [&](const at::Tensor& t) {
        if (plan.writes && t.has_storage() && t.storage().nbytes() <= given.memory) return;  // a view of what was there
        if (plan.writes && t.has_storage()) describer.identities.bump(*describer_identity(t));
        const auto quad = describer.describe(t, false);
        if (!quad) return;
        quad->identity->made = true;
        quad->identity->unwritten = quad->identity->word;
        if (t.device().is_cpu())
          quad->identity->gaps = std::make_shared<Unwritten>(plan, here(site_), state_->step, given.memory, t.storage().nbytes());
        Words words;
        Key key{kAsResult};
        put(words, *quad);
        emit(plan, words, key, {}, 0, quad->wide, nullptr);
      });
    }
  }

  // One row for each element of lists.
  void per_element(Plan& plan, Given& given, const c10::Stack& stack) {
    const bool happens =
        plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    columns_.take(plan, given.args, happens, given.late, describer,
                  [&](const Arg& arg) { return is_default(plan, given.args, arg); });
    const std::size_t n = columns_.elements();
    const std::vector<double> steps = steps_of(plan, given.args, n);
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
    held.judge(plan, given, columns_, made_, [&] { return site_now(); });

    const std::int64_t at = site_now();
    if (at == Frames::kImporting) return;
    const bool owned = is_owned(phase_);
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
        old.data = held.ring.is_held() && quad->identity->was_finite(quad->word) ? NANHUNT_WAS_FINITE : 0;
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
      add_row(plan, key, phase_, owned ? owner(words, inputs) : places.path, at, words, inputs, numbers);
    }
    send_rows();
  }

  void emit(Plan& plan, const Words& words, Key& key, const std::vector<double>& numbers, std::size_t inputs, bool wide,
            const Place* where) {
    if (inputs == words.size() && !plan.sends) return;  // what is sent to another rank is made of nothing here
    if (wide) key.push_back(kWide);
    Place place;
    const std::int64_t phase = where != nullptr ? state_->phase : phase_;
    if (where != nullptr) {
      place = *where;
    } else if (in_graph_) {
      place = *in_graph_;
      if (place.path == 0)
        place.path = in_backward() || Places::is_backward_running() ? places.backward().path
                     : is_owned(phase)                              ? owner(words, inputs) : places.path;
    } else if (in_backward()) {
      place = in_backward_at(site_);
      if (place.path == 0 && place.site == 0) place.path = places.loss();
    } else {
      place = {places.path, site_};
      if (place.site == Frames::kImporting) return;
      if (is_owned(phase)) place.path = owner(words, inputs);
    }
    if (place.site < 0) place.site = 0;
    // What a backward computes of it later is told by itself.
    if (!in_graph_) places.claim(Owners::is_later(place.path) ? Place{0, place.site} : place);
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
    Words& rows = held.ring.keeps() ? held.ring.words() : rows_;
    const std::size_t at = rows.size();
    rows.resize(at + kOpHeader + words.size() + numbers.size());
    std::int64_t* word = rows.data() + at;
    for (const std::int64_t one : {std::int64_t{NANHUNT_ROW_OP}, call, state_->step, state_->micro_batch, phase, path, site})
      *word++ = one;
    word = std::copy(words.begin(), words.end(), word);
    for (const double number : numbers) *word++ = std::bit_cast<std::int64_t>(number);
    if (held.ring.keeps()) held.ring.end_row(at, inputs / kValueWords, (words.size() - inputs) / kValueWords, notes);
  }
  void send_rows() {
    if (rows_.empty()) return;
    send(rows_);
    rows_.clear();
  }

  // What runs there belongs to no module, but to the parameter that it is about; data may be a model's.
  bool is_owned(std::int64_t phase) const {
    return (phase >= NANHUNT_PHASE_COMM && phase <= NANHUNT_PHASE_UPDATE) ||
           (phase == NANHUNT_PHASE_DATA && places.is_outside());
  }

  std::int64_t owner(const Words& words, std::size_t inputs) {
    Owners& owners = held.ring.owners;
    if (owners.is_empty()) return 0;
    return held.ring.keeps() ? owners.later() : owners.of(words, inputs, describer.identities);
  }

  const Recording& to_;
  State*& state_;
  Scalars scalars_;
  // Memory that is kept from op to op.
  Words rows_, gone_, outputs_;
  Key output_key_;
  std::vector<Births::Made> made_;
  std::vector<std::optional<Quad>> results_;
  Columns columns_;
  struct {
    Quad quad;
    std::int64_t step = -1;
    c10::Storage storage;  // so that it is known still when the step ends
  } bad_number_;
  std::unique_ptr<Plan> arrives_;      // of what is told as made of what was left bad
  std::int64_t site_ = 0, phase_ = 0;  // of the op at hand
  std::optional<Place> in_graph_;
};

}  // namespace nanhunt::tap
