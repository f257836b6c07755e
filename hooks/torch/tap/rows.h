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
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/torch/tap/between.h"
#include "hooks/torch/tap/copies.h"
#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/frames.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/places.h"
#include "hooks/torch/tap/plan.h"
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
    };
    std::vector<Written> written;
    std::size_t memory = 0;  // of what is resized
    bool late = false;  // what it leaves in host memory is not there yet: nobody may read it, and nothing says when
  };

  Before before(const Plan& plan, const c10::Stack& stack) {
    Before given;
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(plan.args.size());
    given.args.assign(first, stack.end());
    const bool happens = plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    given.late = is_late(plan, given.args);
    if (plan.garbage && plan.writes && given.args[0].isTensor()) given.memory = given.args[0].toTensor().storage().nbytes();
    if (plan.per_element || plan.garbage || plan.scalar_read || plan.collective) return given;
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
        if (!quad) return;
        if (writes) given.written.push_back({static_cast<std::ptrdiff_t>(given.words.size()), *quad, t, &arg});
        given.key.push_back(8 * arg.index + (arg.written && !writes ? kAsRead : kAsTensor));
        put(given.words, *quad);
      });
    }
    return given;
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
          if (state_->bad_number == 0 && phase_ <= NANHUNT_PHASE_LOSS && requires_grad(given.args)) note_number(t);
        });
      }
    }
    if (!given.written.empty()) {
      Words gone;
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
      }
      for (std::size_t at = 0; at < inputs; at += kValueWords)  // what was read is no longer there
        for (const std::int64_t word : gone)
          if (words[at + 1] == word) words[at] = 0;
    }
    emit(plan, words, key, given.numbers, inputs, wide, where);
  }

  // A view has no row, but its node in the graph has a place.
  void claim_views(std::int64_t site) {
    if (places.is_to_claim()) places.claim(here(site));
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

  static bool is_given(const c10::IValue& value) {
    if (value.isNone()) return false;
    return !value.isBool() || value.toBool();
  }

  // As Python's modes are not given it: keywords that are defaults, and defaults at the end of what is positional.
  static bool is_default(const Plan& plan, const std::vector<c10::IValue>& args, const Arg& arg) {
    const auto same = [&](const Arg& one) {
      return one.fallback != nullptr && equal(args[static_cast<std::size_t>(one.index)], *one.fallback);
    };
    if (!same(arg)) return false;
    if (arg.keyword) return true;
    for (std::size_t i = static_cast<std::size_t>(arg.index) + 1; i < plan.args.size() && !plan.args[i].keyword; ++i)
      if (!same(plan.args[i])) return false;
    return true;
  }
  static bool equal(const c10::IValue& a, const c10::IValue& b) {
    double x = 0, y = 0;
    if (number_of(a, x) && number_of(b, y)) return x == y;
    if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
    if (a.isTensor() || b.isTensor()) return false;
    return a == b;
  }

  // A number that was read out of a tensor stands for that tensor as well.
  void take_number(const Arg& arg, double number, Words& words, Key& key, std::vector<double>& numbers) {
    if (!scalars_.empty() && !(std::fmod(number, 1.0) == 0.0)) {
      for (const Scalar& known : scalars_) {
        if (!(known.number == number || (std::isnan(number) && std::isnan(known.number)))) continue;
        if (known.alive.expired()) continue;
        key.push_back(8 * arg.index + kAsScalarRead);
        put(words, known.quad);
      }
    }
    key.push_back(8 * arg.index + kAsNumber);
    numbers.push_back(number);
  }

  void scalar_read(const Before& given, const c10::Stack& stack) {
    double number = 0;
    if (given.args.empty() || !given.args[0].isTensor() || !stack.back().isDouble()) return;
    number = stack.back().toDouble();
    if (std::isfinite(number) && std::fmod(number, 1.0) == 0.0) return;  // too common to say where they come from
    const at::Tensor& t = given.args[0].toTensor();
    const auto quad = describer.describe(t, false);
    if (!quad) return;
    std::erase_if(scalars_, [&](const Scalar& known) {
      return known.number == number || (std::isnan(number) && std::isnan(known.number));
    });
    if (scalars_.size() >= kMaxScalars) scalars_.erase(scalars_.begin());
    const c10::Storage& storage = t.storage();
    Scalar scalar{number, *quad, Identities::weak(storage.unsafeGetStorageImpl()), {}};
    if (storage.nbytes() <= kMaxScalarBytes) scalar.storage = storage;
    scalars_.push_back(std::move(scalar));
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
        put(words, *quad);
        emit(plan, words, {kAsResult}, {}, 0, quad->wide, nullptr);
      });
    }
  }

  // One row for each element of lists (foreach and fused optimizers): with one row for all, every parameter would seem
  // to be made from every other. Single tensors are among the inputs of each.
  void per_element(Plan& plan, Before& given, const c10::Stack& stack) {
    const bool happens =
        plan.written_if == nullptr || is_given(given.args[static_cast<std::size_t>(plan.written_if->index)]);
    struct Column {
      const Arg* arg;
      std::vector<std::optional<Quad>> quads;  // of a list, or one of a single tensor
      std::vector<double> numbers;
      bool of_list, writes;
    };
    std::vector<Column> columns;
    std::size_t n = 0;
    for (const Arg& arg : plan.args) {
      const c10::IValue& value = given.args[static_cast<std::size_t>(arg.index)];
      if (value.isNone() || arg.kind == ArgKind::kOther) continue;
      const bool writes = arg.written && (happens || arg.name != "grad");
      Column column{&arg, {}, {}, arg.kind == ArgKind::kTensors || arg.kind == ArgKind::kNumbers, writes};
      double number = 0;
      if (arg.kind == ArgKind::kTensors) {
        each_tensor(value, [&](const at::Tensor& t) {
          column.quads.push_back(describer.describe(t, !(given.late && arg.written && t.device().is_cpu())));
        });
        n = std::max(n, column.quads.size());
        if (column.quads.empty()) continue;
      } else if (arg.kind == ArgKind::kNumbers) {
        if (value.isDoubleList()) {
          for (const double x : value.toDoubleVector()) column.numbers.push_back(x);
        } else if (value.isList()) {
          for (const c10::IValue& x : value.toListRef()) {
            if (!number_of(x, number)) number = std::nan("");
            column.numbers.push_back(number);
          }
        }
        column.writes = false;
      } else if (number_of(value, number)) {
        if (is_default(plan, given.args, arg)) continue;
        column.numbers.push_back(number);
        column.writes = false;
      } else if (value.isTensor() && value.toTensor().defined()) {
        column.quads.push_back(describer.describe(value.toTensor(), true));
      } else {
        continue;
      }
      columns.push_back(std::move(column));
    }
    Words gone;
    for (const Column& column : columns)
      if (column.writes)
        for (const auto& quad : column.quads)
          if (quad) gone.push_back(quad->word);
    std::sort(gone.begin(), gone.end());
    for (Column& column : columns) {
      if (column.writes || !column.of_list) continue;
      for (auto& quad : column.quads)
        if (quad && std::binary_search(gone.begin(), gone.end(), quad->word)) quad->data = 0;
    }
    const std::vector<double> steps = steps_of(plan, given, n);
    std::vector<std::optional<Quad>> results;
    if (!plan.writes && plan.returns == 1)
      each_tensor(stack.back(), [&](const at::Tensor& t) {
        results.push_back(describer.describe(t, true));
        if (results.back()) results.back()->identity->made = true;
      });

    const std::int64_t at = in_backward() ? places.backward().site : site_;
    if (at == Frames::kImporting) return;
    const bool owned = is_owned(phase_);
    const std::int64_t elsewhere = owned ? 0 : places.path;
    Words rows, words, outputs;
    Key key, output_key;
    std::vector<double> numbers;
    for (std::size_t i = 0; i < n; ++i) {
      words.clear(), outputs.clear(), key.clear(), output_key.clear(), numbers.clear();
      bool wide = false;
      for (Column& column : columns) {
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
        old.data = 0;
        put(words, old);
        if (!column.of_list && i + 1 != n) continue;
        if (quad->identity->word == quad->word) describer.identities.bump(*quad->identity);
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
      add_row(rows, plan, key, phase_, path, at, words, numbers);
    }
    if (!rows.empty()) send(rows);
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

  void emit(Plan& plan, const Words& words, const Key& given_key, const std::vector<double>& numbers,
            std::size_t inputs, bool wide, const Place* where) {
    if (inputs == words.size()) return;
    Key key = given_key;
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
    Words row;
    row.reserve(kOpHeader + words.size() + numbers.size());
    add_row(row, plan, key, plan.collective ? std::int64_t{NANHUNT_PHASE_COMM} : phase, place.path, place.site, words, numbers);
    if (!row.empty()) send(row);
  }

  void add_row(Words& rows, Plan& plan, const Key& key, std::int64_t phase, std::int64_t path, std::int64_t site,
               const Words& words, const std::vector<double>& numbers) {
    const std::int64_t call = call_of(plan, key);
    if (call < 0) {
      ++refused;
      return;
    }
    rows.insert(rows.end(), {NANHUNT_ROW_OP, call, state_->step, state_->micro_batch, phase, path, site});
    rows.insert(rows.end(), words.begin(), words.end());
    for (const double number : numbers) rows.push_back(std::bit_cast<std::int64_t>(number));
  }

  void send(const Words& rows) {
    if (to_.rows(to_.self, rows.data(), rows.size()) != NANHUNT_OK) ++refused;
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

  std::int64_t call_of(Plan& plan, const Key& key) {
    for (const Plan::Known& known : plan.calls)
      if (known.key == key) return known.call;
    std::vector<const char*> inputs, outputs, scalars;
    std::vector<std::int32_t> roles;
    bool wide = false;
    for (const std::int32_t item : key) {
      if (item == kWide) {
        wide = true;
        continue;
      }
      const std::size_t index = static_cast<std::size_t>(item / 8);
      const std::int32_t how = item % 8;
      if (how == kAsResult) {
        outputs.push_back(plan.outputs.empty() ? "out" : plan.outputs[std::min(index, plan.outputs.size() - 1)].c_str());
        continue;
      }
      const Arg& arg = plan.args[index];
      if (how == kAsNumber) {
        scalars.push_back(arg.name == "state_step" ? "step" : arg.name.c_str());
      } else if (how == kAsWritten) {
        outputs.push_back(arg.name.c_str());
      } else {
        inputs.push_back(arg.name.c_str());
        roles.push_back(how == kAsTensor ? arg.role : NANHUNT_READ);
      }
    }
    nanhunt_call call{};
    call.struct_size = sizeof call;
    call.compute_dtype = wide ? NANHUNT_F64 : NANHUNT_F32;
    call.op = plan.op.c_str();
    call.input_slots = inputs.data();
    call.input_roles = roles.data();
    call.input_count = inputs.size();
    call.output_slots = outputs.data();
    call.output_count = outputs.size();
    call.scalar_names = scalars.data();
    call.scalar_count = scalars.size();
    const std::int64_t number = to_.call(to_.self, &call);
    if (number >= 0) plan.calls.push_back({key, number});
    return number;
  }

  // The recorder forgets contents that end. What is small lives on for as long as its number is known; the rest belongs
  // to the run, which may need the memory.
  static constexpr std::size_t kMaxScalars = 16, kMaxScalarBytes = std::size_t{1} << 16;
  struct Scalar {
    double number;
    Quad quad;
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    c10::Storage storage;
  };
  const Recording& to_;
  State*& state_;
  std::vector<Scalar> scalars_;  // numbers that were read out of tensors, oldest first
  std::int64_t site_ = 0, phase_ = 0;  // of the op at hand
};

}  // namespace nanhunt::tap
