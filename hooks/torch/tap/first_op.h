// SPDX-License-Identifier: Apache-2.0
// The first op of a thread that reads floating-point numbers, while no tap is on: whoever waits for it is called before
// it runs, once, and may put a tap on that hears it.
#pragma once

#include <ATen/core/Tensor.h>
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

// Whether it computes with numbers that are in memory: nothing traced, and no tensor of Python's.
inline bool reads_numbers(const Below& below, const c10::Stack& stack) {
  bool any = false;
  each_tensor(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - below.op().schema().arguments().size()),
              [&](const at::Tensor& t) {
                any = any || (t.is_floating_point() && t.has_storage() && t.device().type() != c10::kMeta &&
                              !t.key_set().has(c10::DispatchKey::Python) && t.layout() == c10::kStrided &&
                              !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && t.numel() > 0);
              });
  return any;
}

// Before an op of any thread. Nothing is thrown: who is called is Python's, through ctypes.
inline void note_first_op(const Below& below, const c10::Stack& stack) {
  if (g_first_op_thread.load() != &t_here || !reads_numbers(below, stack)) return;
  const FirstOp first = g_first_op.exchange(nullptr);
  if (first == nullptr) return;
  first();
  if (g_on.load() == nullptr) include_thread(false);
}

}  // namespace nanhunt::tap
