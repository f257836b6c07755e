// SPDX-License-Identifier: Apache-2.0
// What one tap is made of, and which one is on.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/torch/tap/collectives.h"
#include "hooks/torch/tap/graphs.h"
#include "hooks/torch/tap/launched_kernels.h"
#include "hooks/torch/tap/held/finite.h"
#include "hooks/torch/tap/held/kept.h"
#include "hooks/torch/tap/lasting.h"
#include "hooks/torch/tap/listening.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/rows/rows.h"

namespace nanhunt::tap {

struct Tap {
  Tap(const Recording& to, std::int64_t loss, std::vector<std::string> theirs)
      : to(to),
        rows(this->to, state, mutex, loss, std::move(theirs)),
        collectives(rows, this->to, state),
        lasting(rows, this->to, state),
        graphs(rows), launched(rows) {}

  Recording to;
  State own;
  State* state = &own;
  std::recursive_mutex mutex;  // a device's part of a backward runs in a thread of its own
  Plans plans;
  Rows rows;
  Collectives collectives;
  Lasting lasting;
  CompiledGraphs graphs;
  LaunchedKernels launched;
  KeptCalls kept;
  std::string bad_number;  // of validation: the first op whose result was a number that is not finite, and its line

  // Before an op: copies of what it writes over, for whoever computes it again.
  void keep_before(const Plan& plan, Given& given) {
    if (plan.collective) {  // its arguments go to whoever waits for its end
      given.saved.set(given.args);
      return;
    }
    // What a step does that is held is most often not wanted.
    const bool armed = !rows.held.ring.is_held() || (plan.armed >> static_cast<unsigned>(state->phase) & 1u) != 0;
    kept.before(plan, given.args, armed, given.saved);
  }
  // After an op at which badness `began`, or that used what such an op has made.
  void keep_after(Plan& plan, Given& given, const c10::Stack& stack, bool began) {
    const std::uint64_t first = rows.held.first_reported();
    kept.keep(plan, plan.writes || plan.collective ? given.saved.take(plan, given.args) : given.args, stack, first,
              to.next_seq(to.self) - first, state->phase, began);
    if (!began) return;
    plan.armed |= 1u << static_cast<unsigned>(state->phase);
    if (rows.phase() == NANHUNT_PHASE_OPTIMIZER || rows.phase() == NANHUNT_PHASE_UPDATE) state->left_bad = 1;
  }

  // In validation, and outside of modules where nothing is trained: the first one is kept that nothing finite was made of
  // (a mean over those that are there). Where nothing is trained only NaN counts: the logarithm of a noise level that ends
  // at 0 is meant.
  void note_bad_number(const BadNumber& number, const Given& given, const Plan& plan, const c10::Stack& stack,
                       std::int64_t site) {
    const auto results = c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - plan.returns);
    if (!bad_number.empty()) {
      // Who shows a tensor selects its finite numbers: nothing is made of the others.
      if (plan.op != "aten::masked_select" && is_read(given.args)) carry_on(results);
      return;
    }
    if (!number.is_made(plan, stack, state->infers())) return;
    bad_number = plan.op;
    carriers_.clear();
    carry_on(results);
    if (const std::string_view line = rows.frames.name_of(site); !line.empty()) bad_number.append(" at ").append(line);
  }

  // Whether one of them holds the bad number, or what is bad because of it.
  bool is_read(const std::vector<c10::IValue>& args) const {
    bool any = false;
    for (const c10::IValue& value : args)
      each_tensor(value, [&](const at::Tensor& t) {
        const c10::StorageImpl* const its = t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
        for (const WeakStorage& carrier : carriers_) any = any || carrier._unsafe_get_target() == its;
      });
    return any;
  }
  void carry_on(c10::ArrayRef<c10::IValue> results) {
    bool any = false, bad = false;
    each_tensor(results, [&](const at::Tensor& t) {
      if (!t.is_floating_point() || !t.has_storage() || !Describer::holds(t)) return;
      any = any || t.numel() > 0;
      if (finite::bits_of(t).value_or(finite::kNan) == 0) return;
      bad = true;
      if (carriers_.size() < kMostCarriers) carriers_.push_back(t.storage().getWeakStorageImpl());
    });
    if (any && !bad) bad_number.clear();
  }
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;  // its address stays its own
  static constexpr std::size_t kMostCarriers = 64;
  std::vector<WeakStorage> carriers_;  // of the bad number

  void note_failure(const std::exception& error, const std::string& op) noexcept {
    try {
      const std::lock_guard lock(mutex);
      ++rows.notes["errors inside nanhunt, in op " + op + ": " + std::string(error.what()).substr(0, 200)];
    } catch (...) {
    }
  }
};

template <typename F, typename R>
inline R guarded(Tap* tap, R failed, const char* what, F&& body) noexcept {
  if (tap == nullptr) return failed;  // closed: who listened to it may not know yet
  try {
    const std::lock_guard lock(tap->mutex);
    return body();
  } catch (const std::exception& error) {
    tap->note_failure(error, what);
    return failed;
  }
}

inline constexpr const char* kInsideSubclasses = "operations on tensor subclasses: in this PyTorch their parts cannot be heard";
inline constexpr const char* kInsideModes = "what dispatch modes compute inside: in this PyTorch it cannot be heard";

// Whether an op that Python runs, for a mode or for a tensor subclass, is not to be heard as a whole. Where the tap
// listens above Python, nothing of what Python calls for it comes to the tap: an op that a mode is given is heard as it
// was given, and of one on a subclass, which has no numbers of its own, nothing is.
inline bool passes_python_by(Tap& tap, const Below& below, const c10::Stack& stack) {
  if (!g_listening.is_above_python() || !below.keys().has(c10::DispatchKey::Python)) return false;
  bool any = false;
  each_tensor(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - below.op().schema().arguments().size()),
              [&](const at::Tensor& t) { any = any || t.key_set().has(c10::DispatchKey::Python); });
  // PyTorch's own modes trace, and compute nothing.
  if (c10::impl::TorchDispatchModeTLS::any_modes_set(false) && !c10::impl::TorchDispatchModeTLS::any_modes_set(true))
    return any;
  try {
    const std::lock_guard lock(tap.mutex);
    ++tap.rows.notes[any ? kInsideSubclasses : kInsideModes];
  } catch (const std::exception& error) {
    tap.note_failure(error, below.op().schema().name());
  }
  return any;
}

inline std::atomic<Tap*> g_on{nullptr};

// Where a thread stands. The switch of the one in which a tap was on before cannot be turned off from another: it is
// deaf from then on, until it turns a tap on itself.
inline thread_local const char t_here = 0;
inline std::atomic<const char*> g_heard{nullptr}, g_deaf{nullptr};

inline void hear_this_thread() {
  const char* const before = g_heard.exchange(&t_here);
  if (before != &t_here) g_deaf.store(before);
}

// Ops that are being watched, in all threads. A tap that is freed meanwhile is kept until there is none.
inline std::atomic<std::int64_t> g_watching{0};
inline std::mutex g_freed_mutex;
inline std::vector<std::unique_ptr<Tap>> g_freed;

class Watching {
 public:
  Watching() { g_watching.fetch_add(1, std::memory_order_acq_rel); }
  ~Watching() { g_watching.fetch_sub(1, std::memory_order_acq_rel); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
};

inline void bury(Tap* tap) {
  const std::lock_guard lock(g_freed_mutex);
  g_freed.emplace_back(tap);
  if (g_watching.load(std::memory_order_acquire) == 0) g_freed.clear();
}

}  // namespace nanhunt::tap
