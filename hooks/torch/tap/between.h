// SPDX-License-Identifier: Apache-2.0
// The phase of an op of the program's own, outside of modules: what is done with gradients between backward and the
// optimizer, and with what lasts between two steps.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/torch/tap/copies.h"
#include "hooks/torch/tap/identity.h"
#include "hooks/torch/tap/plan.h"

namespace nanhunt::tap {

class Between {
 public:
  // A forward begins: what comes after it computes a loss.
  void begin_forward() {
    end_backward();
    stage_ = Stage::kNone;
    loss_ = true;
  }
  // Between backward and the optimizer a tensor went between the ranks.
  void on_exchange(const at::Tensor& t, const Identities& identities) {
    if (stage_ != Stage::kNone) exchanged_.insert(identities.number_of(t));
  }
  void begin_backward(std::int64_t step) {
    stage_ = Stage::kUnscale;
    step_ = step;
    loss_ = of_gradients_ = bad_number_ = uses_gradients_ = false;
    exchanged_.clear();
    of_them_.clear();
    end_backward();
    if (backwards_.size() == kMostBackwards) backwards_.erase(backwards_.begin());
    backwards_.push_back({last_storage_number() + 1, kOpen});
  }
  // Storages that are known by now last into the step that begins.
  void begin_step() {
    stage_ = Stage::kNone;
    loss_ = false;
    exchanged_.clear();
    added_to_.clear();
    backwards_.clear();
    first_new_ = last_storage_number() + 1;
  }

  // The program itself has written parameters since backward: it is its own optimizer.
  bool has_stepped() const { return stage_ == Stage::kStepped; }
  // ... with what it made of this step's gradients.
  bool has_used_gradients() const { return has_stepped() && uses_gradients_; }

  // A number is read in step `step`: whether gradients of that step were made into one since backward.
  bool is_look(std::int64_t step) const {
    return step == step_ && stage_ != Stage::kNone && stage_ != Stage::kStepped && of_gradients_;
  }

  // The op whose phase was asked for last has made a number that is not finite.
  void on_bad_number() { bad_number_ = bad_number_ || (stage_ != Stage::kNone && is_of_gradients_); }
  bool has_bad_number() const { return bad_number_; }
  // What the op whose phase was asked for last has made: it is of gradients where that read some.
  template <typename Results>
  void on_made(const Identities& identities, Results&& results) {
    if (!is_of_gradients_ || of_them_.size() >= kMostOfThem) return;
    results([&](const at::Tensor& t) { of_them_.insert(identities.number_of(t)); });
  }

  // `phase`: of the run. `each`: calls what it is given with each tensor of the op, `each_written` with those that it
  // writes.
  template <typename Each, typename EachWritten>
  std::int64_t phase_of(std::int64_t phase, const Plan& plan, const c10::IValue* result, Identities& identities,
                        const Copies& copies, Each&& each, EachWritten&& each_written) {
    is_of_gradients_ = false;
    if (plan.scalar_read) return phase;
    if (phase == NANHUNT_PHASE_BACKWARD && plan.writes) on_written_in_backward(identities, each_written);
    if (phase == NANHUNT_PHASE_CLIP && stage_ != Stage::kNone) of_gradients_ = is_of_gradients_ = true;  // their norm
    if (phase == NANHUNT_PHASE_OPTIMIZER) of_gradients_ = false;  // who reads a number from here on gives nothing up
    if (phase == NANHUNT_PHASE_LOSS && stage_ != Stage::kNone) {
      if (!learns(each) && steps(plan, identities, copies, each)) return NANHUNT_PHASE_OPTIMIZER;
      return has_stepped() ? after_update(identities, each) : after_backward(plan, result, identities, each);
    }
    // Another model was called with gradients off; the loss is against what it gave.
    if (phase == NANHUNT_PHASE_VALIDATION) return loss_ && learns(each) ? NANHUNT_PHASE_LOSS : phase;
    if (phase != NANHUNT_PHASE_DATA || plan.draws || plan.garbage || is_fill(plan)) return phase;
    if (learns(each)) return NANHUNT_PHASE_LOSS;  // of parameters, where no model is called
    return updates(plan, identities, copies, each) ? NANHUNT_PHASE_UPDATE : phase;
  }

 private:
  enum class Stage : std::uint8_t { kNone, kUnscale, kClip, kStepped };

  // Whether a parameter is changed, be it by the first op that does so.
  template <typename Each>
  bool steps(const Plan& plan, const Identities& identities, const Copies& copies, Each&& each) {
    if (!plan.writes || is_fill(plan)) return false;
    bool first = true, weights = false;
    each([&](const at::Tensor& t) {
      if (std::exchange(first, false)) weights = copies.is_parameter(t);
    });
    uses_gradients_ = uses_gradients_ || (weights && is_of_backward(identities, each, false));
    if (weights && !has_stepped()) {
      stage_ = Stage::kStepped;
      first_after_ = last_storage_number() + 1;
    }
    return weights;
  }
  // What is made of what this step made before its first parameter was written belongs to the update.
  template <typename Each>
  std::int64_t after_update(Identities& identities, Each&& each) const {
    bool of_step = false;
    each([&](const at::Tensor& t) {
      const std::int64_t number = identities.number_of(t);
      of_step = of_step || (number >= first_new_ && number < first_after_);
    });
    return of_step ? NANHUNT_PHASE_OPTIMIZER : NANHUNT_PHASE_DATA;
  }

  // Between two steps: whether what lasts is written, or something is made of weights that may be written into them.
  template <typename Each>
  bool updates(const Plan& plan, Identities& identities, const Copies& copies, Each&& each) const {
    bool lasts = true, is_there = true, any = false, weights = false, first = true, on_weights = false;
    each([&](const at::Tensor& t) {
      const bool of_weights = copies.is_of_weights(t);
      weights = weights || of_weights;
      if (std::exchange(first, false)) on_weights = copies.is_weights(t);
      if (t.numel() == 1) return;  // counts and running sums of a loop
      const Identity* known = t.has_storage() ? identities.find(t.storage().unsafeGetStorageImpl()) : nullptr;
      lasts = lasts && known != nullptr && (known->word >> kVersionBits < first_new_ || of_weights);
      is_there = is_there && (of_weights || (known != nullptr && !known->made));  // met for the first time
      any = true;
    });
    on_weights = on_weights && bare(plan) != "copy";  // what is loaded is data
    const bool stays = any && (lasts || (is_there && weights));
    return plan.writes ? stays || on_weights : plan.fresh && weights && (stays || !any);
  }

  static std::string_view bare(const Plan& plan) {
    std::string_view name = plan.op;
    name.remove_prefix(name.find("::") + 2);
    if (plans::starts(name, "_foreach_")) name.remove_prefix(9);
    return plans::without_underscores(name);
  }
  static bool is_fill(const Plan& plan) {
    static constexpr std::string_view kFills[] = {"zero", "fill"};
    return plans::among(bare(plan), kFills);
  }

  // Gradients require none themselves, a further loss does. Unscaling multiplies and looks for what is not finite;
  // clipping begins where a number is made of many.
  template <typename Each>
  std::int64_t after_backward(const Plan& plan, const c10::IValue* result, Identities& identities, Each&& each) {
    static constexpr std::string_view kScaling[] = {"mul", "div", "reciprocal", "_to_copy", "copy", "isfinite", "isnan", "isinf",
                                                    "isposinf", "isneginf", "eq", "ne", "all", "any", "logical_and",
                                                    "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not",
                                                    "clone", "zero", "fill", "abs", "_amp_foreach_non_finite_check_and_unscale"};
    if (learns(each)) return NANHUNT_PHASE_LOSS;
    const void* first = nullptr;
    bool squares = false;
    each([&](const at::Tensor& t) {
      squares = squares || first == t.unsafeGetTensorImpl();
      if (first == nullptr) first = t.unsafeGetTensorImpl();
    });
    end_backward();
    is_of_gradients_ = is_of_backward(identities, each);
    // The next batch, or a metric. A single number may be a scale.
    if (!is_of_gradients_ && !plan.writes && (plan.draws || !all_numbers(each))) return NANHUNT_PHASE_DATA;
    of_gradients_ = of_gradients_ || (is_of_gradients_ && !all_numbers(each));
    const bool number = result != nullptr && result->isTensor() && result->toTensor().defined() &&
                        result->toTensor().is_floating_point() && result->toTensor().numel() == 1 && bare(plan) != "copy";
    if (!number && is_of_exchange(plan, result, identities, each)) return NANHUNT_PHASE_COMM;
    const bool only_numbers = number && all_numbers(each);
    squares = squares && bare(plan) == "mul";
    if (!only_numbers && (number || squares || !plans::among(bare(plan), kScaling))) stage_ = Stage::kClip;
    return stage_ == Stage::kClip ? NANHUNT_PHASE_CLIP : NANHUNT_PHASE_UNSCALE;
  }
  // Gradients that are added up lie where they lay before.
  template <typename Each>
  void on_written_in_backward(const Identities& identities, Each&& each) {
    each([&](const at::Tensor& t) {
      const std::int64_t number = identities.number_of(t);
      if (!backwards_.empty() && number < backwards_.back().first) added_to_.insert(number);
    });
  }
  void end_backward() {
    if (!backwards_.empty() && backwards_.back().second == kOpen) backwards_.back().second = last_storage_number();
  }
  // Whether any of what the op is given was made or written by a backward of this step, or is not known, where that
  // counts. What the program computes of its outputs then is a metric.
  template <typename Each>
  bool is_of_backward(const Identities& identities, Each&& each, bool unknown = true) const {
    bool any = false;
    each([&](const at::Tensor& t) {
      if (t.unsafeGetTensorImpl()->is_wrapped_number()) return;  // Python's
      const std::int64_t number = identities.number_of(t);
      const auto holds = [&](const auto& made) { return number >= made.first && number <= made.second; };
      any = any || (number == 0 && unknown) || std::any_of(backwards_.begin(), backwards_.end(), holds) ||
            added_to_.contains(number) || exchanged_.contains(number) || of_them_.contains(number);
    });
    return any;
  }
  // What came from other ranks is put together, cast back and divided by their number: that ends the exchange.
  template <typename Each>
  bool is_of_exchange(const Plan& plan, const c10::IValue* result, Identities& identities, Each&& each) {
    static constexpr std::string_view kAdding[] = {"copy", "_to_copy", "clone", "add", "sum", "stack", "cat"};
    static constexpr std::string_view kAveraging[] = {"mul", "div", "mean"};
    const bool averages = plans::among(bare(plan), kAveraging);
    if (exchanged_.empty() || (!averages && !plans::among(bare(plan), kAdding))) return false;
    bool any = false;
    each([&](const at::Tensor& t) { any = any || exchanged_.contains(identities.number_of(t)); });
    if (!any) return false;
    each([&](const at::Tensor& t) {
      if (averages)
        exchanged_.erase(identities.number_of(t));
      else if (plan.writes)
        exchanged_.insert(identities.number_of(t));
    });
    if (!averages && result != nullptr && result->isTensor() && result->toTensor().has_storage())
      exchanged_.insert(identities.of(result->toTensor().storage().unsafeGetStorageImpl()).word >> kVersionBits);
    return true;
  }
  // Whether the op is part of what a backward will go through.
  template <typename Each>
  static bool learns(Each&& each) {
    bool any = false;
    if (at::GradMode::is_enabled()) each([&](const at::Tensor& t) { any = any || t.requires_grad(); });
    return any;
  }
  template <typename Each>
  static bool all_numbers(Each&& each) {
    bool all = true;
    each([&](const at::Tensor& t) { all = all && t.numel() == 1; });
    return all;
  }

  Stage stage_ = Stage::kNone;
  std::int64_t step_ = -1;     // of the last backward
  bool loss_ = false;          // a forward has come, and no backward since
  bool of_gradients_ = false;  // something was computed of gradients that are more than numbers since backward
  bool bad_number_ = false;    // ... and a number that is not finite was
  bool uses_gradients_ = false;  // a parameter was written with such since backward
  std::set<std::int64_t> exchanged_;  // storages of what came from other ranks and is not averaged yet
  std::set<std::int64_t> added_to_;   // storages of before the last backward that one of this step wrote
  static constexpr std::size_t kMostBackwards = 64;
  static constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
  // Of this step: numbers of the storages that each made, first and last.
  std::vector<std::pair<std::int64_t, std::int64_t>> backwards_;
  bool is_of_gradients_ = false;  // the op at hand
  static constexpr std::size_t kMostOfThem = 4096;
  std::set<std::int64_t> of_them_;                // storages of what was made of gradients since backward
  std::int64_t first_new_ = 0, first_after_ = 0;  // numbers of storages: in this step, after the program's own update
};

}  // namespace nanhunt::tap
