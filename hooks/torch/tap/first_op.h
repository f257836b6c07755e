// SPDX-License-Identifier: Apache-2.0
// The first op of a thread that reads floating-point numbers, or makes them of whole ones, while no tap is on: whoever
// waits for it is called before it runs, or as soon as it has, once, and may put a tap on that hears it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <atomic>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/listening.h"
#include "hooks/torch/tap/one_tap.h"

namespace nanhunt::tap {

using FirstOp = void (*)();

inline std::atomic<FirstOp> g_first_op{nullptr};
inline std::atomic<const char*> g_first_op_thread{nullptr};

// The calling thread's first op, from here on.
inline void await_first_op(FirstOp first) {
  g_first_op_thread.store(&t_here);
  g_first_op.store(first);
  include_thread(true);
}

// Nobody waits any more. Whether the calling thread's was waited for, whose switch is off now.
inline bool forget_first_op() {
  if (g_first_op.exchange(nullptr) == nullptr || g_first_op_thread.load() != &t_here) return false;
  if (g_on.load() == nullptr) include_thread(false);
  return g_on.load() == nullptr;
}

struct Numbers {
  bool floating = false, whole = false;
};

// What is computed with of numbers that are in memory: nothing traced, and no tensor of Python's.
inline Numbers numbers_among(c10::ArrayRef<c10::IValue> values) {
  Numbers among;
  each_tensor(values, [&](const at::Tensor& t) {
    if (!t.has_storage() || t.device().type() == c10::kMeta || t.key_set().has(c10::DispatchKey::Python) ||
        t.layout() != c10::kStrided || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || t.numel() == 0)
      return;
    among.floating = among.floating || t.is_floating_point();
    among.whole = among.whole || c10::isIntegralType(t.scalar_type(), true);
  });
  return among;
}

// Calls whoever waits. Nothing is thrown: that is Python's, through ctypes.
inline void call_first_op() {
  const FirstOp first = g_first_op.exchange(nullptr);
  if (first == nullptr) return;
  first();
  if (g_on.load() == nullptr) include_thread(false);
}

// Called before the op that begins the next forward, where the program is its own optimizer and no module's call shows
// it.
inline std::atomic<FirstOp> g_next_forward{nullptr};

// Whether an op learns of what requires gradients, after the program itself has written parameters.
inline bool begins_forward(const State& state, const Below& below, const c10::Stack& stack) {
  if (state.stepped == 0 || state.phase != NANHUNT_PHASE_LOSS || !at::GradMode::is_enabled()) return false;
  bool learns = false;
  each_tensor(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - below.op().schema().arguments().size()),
              [&](const at::Tensor& t) { learns = learns || t.requires_grad(); });
  return learns;
}

// Tells a tap of an op that ran before it was on.
inline void report_late(Tap& tap, const c10::OperatorHandle& op, const c10::Stack& args, const c10::Stack& stack) {
  try {
    BorrowedGiven borrowed;
    Given& given = *borrowed.get();
    Plan* plan = nullptr;
    {
      const std::lock_guard lock(tap.mutex);
      plan = &tap.plans.of(op);
      tap.rows.before(*plan, args, given);
    }
    const std::int64_t site = tap.rows.site(*plan);
    bool began = false;
    {
      const std::lock_guard lock(tap.mutex);
      if (g_on.load(std::memory_order_acquire) != &tap) return;
      tap.rows.held.begin_reported();
      tap.rows.after(*plan, given, stack, site);
      began = tap.rows.held.began();
      if (tap.kept.on() && began) tap.keep_after(*plan, given, stack, began);
    }
    if (began && site > 0) tap.rows.frames.report_stack(site);
  } catch (const std::exception& error) {
    tap.note_failure(error, op.schema().name());
  }
}

// Whether an op of the thread that is waited for has run here: one of whole numbers alone, of whose results it is known
// only then what they are.
inline bool ran_first_op(const Below& below, c10::Stack* stack) {
  if (g_first_op_thread.load() != &t_here) return false;
  const c10::OperatorHandle& op = below.op();
  const auto last = [&](std::size_t count) { return c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count); };
  const auto given = last(op.schema().arguments().size());
  const Numbers numbers = numbers_among(given);
  if (numbers.floating) call_first_op();
  if (numbers.floating || !numbers.whole) return false;
  static thread_local Plans plans;
  const Plan& plan = plans.of(op);
  if (plan.skip || plan.decomposes || plan.writes || plan.collective || plan.garbage || plan.scalar_read) return false;
  const c10::Stack args = given.vec();
  below.run(stack);
  if (!numbers_among(last(op.schema().returns().size())).floating) return true;
  const Watching watching;
  call_first_op();
  if (Tap* const tap = g_on.load(std::memory_order_acquire)) report_late(*tap, op, args, *stack);
  return true;
}

}  // namespace nanhunt::tap
