// SPDX-License-Identifier: Apache-2.0
// Where numbers stopped to be finite, in a step whose rows nobody has read: what the results of an op hold, and whether
// its rows are wanted for that. It is only asked for when to look: what began where the recorder judges by what it reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/held/finite.h"
#include "hooks/torch/tap/held/rows_written.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

class Births {
 public:
  // A tensor that an op has made or written, and what its storage was known to hold before.
  struct Made {
    const at::Tensor* tensor;
    Quad quad;
    Identity* identity = quad.identity;
    bool written = false, had_looked = false;
    std::uint8_t had = 0;

    // What of it is not finite; 0: nothing is, or it cannot be looked at.
    std::uint8_t bits() const {
      if (identity->is_finite() || !Describer::holds(*tensor)) return 0;
      return finite::bits_of(*tensor).value_or(0);
    }
  };

  // Of contents that an op is about to write over; they are gone then.
  static std::uint8_t before_write(const at::Tensor& t, Identity& identity) {
    if (identity.is_looked_at()) return identity.bad;
    if (!t.device().is_cpu()) return 0;
    const finite::Found found = Describer::holds(t) ? finite::look_at(t).value_or(finite::Found{}) : finite::Found{};
    if (finite::covers(t)) identity.note_bad(found.bits, found.amax);
    return found.bits;
  }

  // Whether what is made of finite numbers alone is finite as well, and need not be looked at: of a tensor times a
  // number up to 1, too, and of one to which that is added: it is less than half of a last place of the largest number.
  // `tensors`: arguments that are one, or a list.
  static bool stays_finite(const Plan& plan, int reach, bool inputs_finite, std::size_t tensors,
                           const std::vector<double>& numbers, const std::vector<Made>& made) {
    if (!inputs_finite || !(plan.keeps_finite || (plan.by_number != ByNumber::kNone && tensors == 1 && !numbers.empty())))
      return false;
    int narrowest = 7;
    for (const Made& one : made)
      if (const int its = finite::reach_of(one.tensor->scalar_type()); its > 0) narrowest = std::min(narrowest, its);
    constexpr double kFitsAll = 448, kFitsSingle = 3e38;
    const double largest = plan.by_number != ByNumber::kNone ? 1 : narrowest >= 5 ? kFitsSingle : kFitsAll;
    for (const double number : numbers)
      if (!(plan.by_number == ByNumber::kOver ? std::fabs(number) >= 1 : std::fabs(number) <= largest)) return false;
    return reach <= narrowest;
  }

  // Looks at what was made, in this step. kNan, kInf.
  static std::uint8_t look(const Plan& plan, const std::vector<c10::IValue>& args, const std::vector<Made>& made,
                           bool known_finite, std::int64_t step, bool& single) {
    std::uint8_t all = 0;
    for (const Made& one : made) {
      const at::Tensor& t = *one.tensor;
      Identity& identity = *one.identity;
      if (!one.written && identity.is_finite()) continue;  // shows what it was given
      std::optional<finite::Found> found = finite::Found{};
      if (!known_finite) found = Describer::holds(t) ? look_at(plan, args, one) : std::nullopt;
      if (!found) continue;
      if (!one.written || !identity.by_rows) identity.step = step;  // else it was looked at as a whole before
      if (finite::covers(t)) {
        identity.note_bad(found->bits, found->amax);
      } else if (identity.is_looked_at()) {
        identity.note_bad(identity.bad | found->bits);
      } else if (one.written && one.had_looked) {
        identity.note_bad(one.had | found->bits);
      }
      all |= found->bits;
      single = single || (found->bits != 0 && t.numel() == 1);
    }
    return all;
  }

  // Of a tensor that was finite and of which a few rows were written these are read.
  static std::optional<finite::Found> look_at(const Plan& plan, const std::vector<c10::IValue>& args, const Made& one) {
    const bool knows_rest = one.written && one.had_looked && one.had == 0 && finite::covers(*one.tensor);
    const auto rows = knows_rest ? rows_written(plan, args, *one.tensor) : std::nullopt;
    if (!rows) return finite::look_at(*one.tensor);
    one.identity->by_rows = true;
    std::optional<finite::Found> found = finite::look_at(*rows);
    if (found && found->bits == 0) found->amax = one.identity->amax < 0 ? -1 : std::max(found->amax, one.identity->amax);
    return found;
  }

  // What an op took holds, and which of it is `bad`, but for what it has written over: `old`. Masks and indices are not mixed in.
  static std::uint8_t taken(const Plan& plan, const std::vector<c10::IValue>& args, const std::vector<Made>& made,
                            const Identities& identities, std::uint8_t old, std::vector<const at::Tensor*>& bad) {
    std::uint8_t bits = old;
    for (const Arg& arg : plan.args) {
      if (arg.role == NANHUNT_MASK || arg.role == NANHUNT_INDEX || arg.blind) continue;
      each_tensor(args[static_cast<std::size_t>(arg.index)], [&](const at::Tensor& t) {
        const Identity* const known = identity_of(t, identities);
        if (known == nullptr || known->is_finite()) return;
        for (const Made& one : made)
          if (one.written && one.identity == known) return;
        const std::uint8_t its = Describer::holds(t) ? finite::bits_of(t).value_or(0) : 0;
        bits |= its;
        if (its != 0) bad.push_back(&t);
      });
    }
    return bits;
  }

  // What an op took, or a parameter, that was finite when it was looked at, and is not any more, or is far larger.
  static void changed(const Plan& plan, const std::vector<c10::IValue>& args, const std::vector<Made>& made,
                      const Identities& identities, const std::vector<at::Tensor>& parameters, std::vector<at::Tensor>& found) {
    found.clear();
    const auto look = [&](const at::Tensor& t) {
      const Identity* const known = identity_of(t, identities);
      if (known == nullptr || !known->is_finite() || finite::reach_of(t.scalar_type()) == 0) return;
      for (const Made& one : made)
        if (one.identity == known) return;
      for (const at::Tensor& one : found)
        if (identity_of(one, identities) == known) return;
      const finite::Found now = Describer::holds(t) ? finite::look_at(t).value_or(finite::Found{}) : finite::Found{};
      if (now.bits != 0 || (finite::covers(t) && known->amax >= 0 && is_gross(known->amax, now.amax))) found.push_back(t);
    };
    for (const Arg& arg : plan.args)
      if (!arg.blind) each_tensor(args[static_cast<std::size_t>(arg.index)], look);
    for (const at::Tensor& parameter : parameters) look(parameter);
  }
  // As the analyzer judges it (src/analyze/graph/value_graph_changed.cpp).
  static bool is_gross(double before, double now) { return now >= 16 * std::max(before, 0x1p-10); }

  // Whether rows are wanted, where `bits` were made of what holds `taken`. An infinity is often meant: a mask, or what
  // a later op swallows. `given`: it was among the numbers that the op was given; `lasts`: it was written into what was
  // there before the step.
  bool are_wanted(const Plan& plan, std::int64_t site, std::uint8_t bits, std::uint8_t taken, bool single, bool given,
                  bool lasts) {
    return are_wanted(plan, site, bits, taken, single, given, lasts, met_);
  }
  // Whether no healthy step had the same there. Asking counts.
  bool is_new(const Plan& plan, std::int64_t site) { return is_new(plan, site, met_); }

  struct Place {
    const Plan* plan;
    std::int64_t site;
    bool operator==(const Place&) const = default;
  };
  using Places = std::vector<Place>;

  // The same of a step whose places are kept elsewhere: `met`.
  bool are_wanted(const Plan& plan, std::int64_t site, std::uint8_t bits, std::uint8_t taken, bool single, bool given,
                  bool lasts, Places& met) const {
    if ((bits & finite::kNan) != 0) return true;
    const bool began = taken == 0;
    if (!lasts && (began ? given : !single || plan.keeps_finite)) return false;
    return is_new(plan, site, met);
  }
  void end_healthy_step(Places& met) {
    for (const Place& place : met)
      if (harmless_.size() < kMost) harmless_.push_back(place);
    met.clear();
  }

  void begin_step() {
    met_.clear();
    is_bad_ = false;
  }
  // Something that the step leaves behind is bad.
  void note_bad() { is_bad_ = true; }
  // The step was judged healthy: its infinities were, too.
  void end_healthy_step() {
    if (!is_bad_) end_healthy_step(met_);
    met_.clear();
  }

 private:
  static const Identity* identity_of(const at::Tensor& t, const Identities& identities) {
    if (t.layout() != c10::kStrided || !t.has_storage() || t.key_set().has(c10::DispatchKey::Python)) return nullptr;
    return identities.find(t.storage().unsafeGetStorageImpl());
  }

  bool is_new(const Plan& plan, std::int64_t site, Places& met) const {
    const Place place{&plan, site};
    if (std::find(harmless_.begin(), harmless_.end(), place) != harmless_.end()) return false;
    if (met.size() < kMost) met.push_back(place);
    return true;
  }

  static constexpr std::size_t kMost = 256;

  Places met_;       // in this step
  Places harmless_;  // of healthy ones
  bool is_bad_ = false;
};

}  // namespace nanhunt::tap
