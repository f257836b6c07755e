// SPDX-License-Identifier: Apache-2.0
// The tape while it listens, and its interface for Python (nanhunt/_sentinel/tape.py).
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "hooks/torch/tap/asked.h"
#include "hooks/torch/tap/export.h"
#include "hooks/torch/tap/one_tap.h"

namespace nanhunt::tap {

// An op outside of modules, in a step whose ops are not watched: kept, so that it can be run again.
inline void put_on_tape(Tap& tap, const Below& below, c10::Stack* stack) {
  const c10::OperatorHandle& op = below.op();
  Tape& tape = tap.tape;
  std::optional<TapedOp> taped;
  std::optional<BadNumber> number;  // of a validation: the tape keeps what a loss needs
  const Plan* plan = nullptr;
  try {
    {
      const std::lock_guard lock(tap.mutex);
      plan = &tap.plans.of(op);
    }
    const bool validates = tap.state->phase == NANHUNT_PHASE_VALIDATION;
    if (!plan->decomposes) {
      const auto args = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - plan->args.size());
      taped = tape.begin_op(*plan, args);
      if (!tape.bad_number && tap.state->phase == NANHUNT_PHASE_LOSS) {
        const std::lock_guard lock(tap.mutex);
        tape.bad_number = learns_of_bad(*plan, args, tap.rows.describer, tap.to);
      }
      if (validates) number.emplace(args);
    }
    if (taped) {
      // With gradients on it is a loss, be it against what another model gave with gradients off.
      const bool loss = validates && taped->trains && taped->grad;
      taped->phase = loss ? NANHUNT_PHASE_LOSS : tap.state->phase;
      if (loss) number.reset();
      taped->micro_batch = tap.state->micro_batch;
      taped->site = tap.rows.frames.here();
    }
  } catch (const std::exception& error) {
    tap.note_failure(error, op.schema().name());
    tape.refuse("an operation could not be kept");
  }
  if (plan != nullptr && plan->decomposes) return below.pass(stack);  // its parts are kept
  below.run(stack);
  if (g_on.load(std::memory_order_acquire) != &tap) return;
  if (number) tap.look_for_bad_number(*number, *plan, *stack);
  if (!taped) return;
  try {
    tape.end_op(std::move(*taped), c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - plan->returns));
  } catch (const std::exception& error) {
    tap.note_failure(error, op.schema().name());
    tape.refuse("an operation's result could not be named");
  }
}

// A borrowed tensor, from the address that Python calls `_cdata`.
inline at::Tensor tensor_at(std::int64_t address) {
  return at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(
      reinterpret_cast<at::TensorImpl*>(static_cast<std::uintptr_t>(address))));
}

}  // namespace nanhunt::tap

// All of these: of the thread that trains, and Python's lock is held.
// From here on ops of the calling thread are kept; `on` 0: no more.
NANHUNT_TAP void nanhunt_tap_tape(void* tap, std::int32_t on) noexcept {
  using namespace nanhunt::tap;
  Tap* const t = static_cast<Tap*>(tap);
  if (t == nullptr || t->tape.listens == (on != 0)) return;
  t->tape.listens = on != 0;
  if (on != 0) hear_this_thread();
  g_on.store(on != 0 ? t : nullptr);
  include_thread(on != 0);
}
// The tape of a new step. What it held goes here.
NANHUNT_TAP void nanhunt_tap_tape_clear(void* tap) noexcept {
  if (tap == nullptr) return;
  const auto held = static_cast<nanhunt::tap::Tap*>(tap)->tape.clear();
}
// What is on it now, for as long as it is wanted; null: nothing.
NANHUNT_TAP void* nanhunt_tap_taped(const void* tap) noexcept {
  try {
    return tap == nullptr ? nullptr : new nanhunt::tap::Taped(static_cast<const nanhunt::tap::Tap*>(tap)->tape.taped());
  } catch (const std::exception&) {
    return nullptr;
  }
}
NANHUNT_TAP void nanhunt_tap_taped_free(void* taped) noexcept { delete static_cast<nanhunt::tap::Taped*>(taped); }
NANHUNT_TAP void nanhunt_tap_tape_drop(void* tap, std::int64_t ops, std::int64_t micro_batches) noexcept {
  if (tap != nullptr) static_cast<nanhunt::tap::Tap*>(tap)->tape.drop(static_cast<std::size_t>(ops), micro_batches);
}
NANHUNT_TAP void nanhunt_tap_tape_segment(void* tap, std::int64_t segment) noexcept {
  if (tap != nullptr) static_cast<nanhunt::tap::Tap*>(tap)->tape.segment = segment;
}
// The key of a tensor that was made in the step; 0: it comes from outside; -1: the same, and the tape cannot be run
// again.
NANHUNT_TAP std::int64_t nanhunt_tap_tape_name(void* tap, std::int64_t tensor) noexcept {
  try {
    if (tap == nullptr) return 0;
    auto& tape = static_cast<nanhunt::tap::Tap*>(tap)->tape;
    const std::int64_t key = tape.name(nanhunt::tap::tensor_at(tensor));
    return key == 0 && !(tape.refusal.empty() && tape.given_up.empty()) ? -1 : key;
  } catch (const std::exception&) {
    return -1;
  }
}
// The key of a tensor that belongs to the step from now on. `returned`: by a module. -1: it cannot.
NANHUNT_TAP std::int64_t nanhunt_tap_tape_belongs(void* tap, std::int64_t tensor, std::int32_t returned) noexcept {
  try {
    if (tap == nullptr) return -1;
    return static_cast<nanhunt::tap::Tap*>(tap)->tape.belongs(nanhunt::tap::tensor_at(tensor), returned != 0);
  } catch (const std::exception&) {
    return -1;
  }
}
// Nothing of this step is kept any more: it is too much.
NANHUNT_TAP void nanhunt_tap_tape_overflow(void* tap, const char* why) noexcept {
  if (tap != nullptr) static_cast<nanhunt::tap::Tap*>(tap)->tape.overflow(why);
}
// How many ops are on it.
NANHUNT_TAP std::int64_t nanhunt_tap_tape_size(const void* tap) noexcept {
  if (tap == nullptr) return 0;
  return static_cast<std::int64_t>(static_cast<const nanhunt::tap::Tap*>(tap)->tape.taped().ops.size());
}
NANHUNT_TAP std::int32_t nanhunt_tap_tape_bad(const void* tap) noexcept {
  return tap != nullptr && static_cast<const nanhunt::tap::Tap*>(tap)->tape.bad_number ? 1 : 0;
}
// Bytes that are held since this was asked last.
NANHUNT_TAP std::int64_t nanhunt_tap_tape_held(void* tap) noexcept {
  return tap == nullptr ? 0 : static_cast<nanhunt::tap::Tap*>(tap)->tape.take_held();
}
// Why it cannot be run again, or what the program does with gradients cannot; "": it can.
NANHUNT_TAP const char* nanhunt_tap_tape_refusal(const void* tap) noexcept {
  if (tap == nullptr) return "";
  const auto& tape = static_cast<const nanhunt::tap::Tap*>(tap)->tape;
  return (tape.given_up.empty() ? tape.refusal : tape.given_up).c_str();
}
// What the program does with gradients between backward and the optimizer begins; `on` 0: it has ended.
NANHUNT_TAP void nanhunt_tap_tape_after(void* tap, std::int32_t on) noexcept {
  if (tap == nullptr) return;
  auto& tape = static_cast<nanhunt::tap::Tap*>(tap)->tape;
  on != 0 ? tape.begin_after() : tape.end_after();
}
// Nothing of that is kept.
NANHUNT_TAP void nanhunt_tap_tape_give_up(void* tap) noexcept {
  if (tap != nullptr) static_cast<nanhunt::tap::Tap*>(tap)->tape.give_up_after();
}
// The key of a tensor that was made in the step; 0: it was not.
NANHUNT_TAP std::int64_t nanhunt_tap_tape_find(void* tap, std::int64_t tensor) noexcept {
  try {
    return tap == nullptr ? 0 : static_cast<nanhunt::tap::Tap*>(tap)->tape.find_key(nanhunt::tap::tensor_at(tensor));
  } catch (const std::exception&) {
    return 0;
  }
}
