// SPDX-License-Identifier: Apache-2.0
// The tap: hears every op that PyTorch's dispatcher runs, under autograd and over the kernels, and turns it into rows.
// One fallback on a dispatch key that nobody uses, switched on for a thread; without a tap that is on, nothing hears.
//
// No symbol of Python's is linked: Python loads this with ctypes and calls the functions at the end.
#include <torch/library.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "hooks/torch/tap/as_ops.h"
#include "hooks/torch/tap/asked.h"
#include "hooks/torch/tap/calls.h"
#include "hooks/torch/tap/export.h"
#include "hooks/torch/tap/first_op.h"
#include "hooks/torch/tap/gradients.h"
#include "hooks/torch/tap/held/holding.h"
#include "hooks/torch/tap/hush.h"
#include "hooks/torch/tap/listening.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/one_tap.h"
#include "hooks/torch/tap/own_time.h"
#include "hooks/torch/tap/tensor_set.h"

namespace nanhunt::tap {
namespace {

// Whether one of them is traced with symbols for its sizes: nothing is computed, and asking for them is an error.
bool any_symbolic(c10::ArrayRef<c10::IValue> values) {
  bool any = false;
  each_tensor(values, [&](const at::Tensor& t) { any = any || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); });
  return any;
}

// Watches one op. Whatever fails of ours, the op runs once, and what it throws reaches the run.
void watch(Tap& tap, const Below& below, c10::Stack* stack) {
  thread_local std::uint64_t ops = 0;
  OwnTime own_time(ops);
  const c10::OperatorHandle& op = below.op();
  const c10::FunctionSchema& schema = op.schema();
  const auto last = [&](std::size_t count) { return c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count); };
  if (any_symbolic(last(schema.arguments().size()))) return below.pass(stack);
  Plan* plan = nullptr;
  std::optional<BorrowedGiven> borrowed;
  std::optional<Collectives::Call> call;
  std::uint64_t ticket = 0;
  bool ready = false;
  {
    const std::lock_guard lock(tap.mutex);
    try {
      plan = &tap.plans.of(op);
      if (plan->decomposes) {
        plan = nullptr;
      } else if (!plan->skip) {
        bool own = false;
        if (tap.collectives.waiting() && !plan->waits) {
          const auto args = last(plan->args.size());
          own = tap.collectives.is_own(*plan, args);
          if (!own) tap.collectives.report_finished(plan, args);  // before this op can change what a collective brought
        }
        Given& given = *borrowed.emplace().get();
        if (!own) tap.rows.before(*plan, *stack, given);
        if (tap.state->phase == NANHUNT_PHASE_LOSS && tap.state->bad_number == 0)
          tap.state->bad_number = learns_of_bad(*plan, last(plan->args.size()), tap.rows.describer, tap.to);
        if (tap.kept.on() && !plan->garbage && !own) tap.keep_before(*plan, given);
        if (plan->collective) call = tap.collectives.begin(*plan, given.args);
        if (tap.state->kernels != 0 && tap.to.kernels_push != nullptr) {
          tap.rows.held.hand_over();
          ticket = tap.to.kernels_push(tap.to.self);
        }
        ready = !own;
      }
    } catch (const std::exception& error) {
      tap.note_failure(error, op.schema().name());
    }
  }
  own_time.pause();
  if (plan == nullptr) {  // its parts are watched, or nothing is known of it
    below.pass(stack);
    return;
  }
  try {
    plan->of_python ? below.pass(stack) : below.run(stack);
  } catch (...) {
    if (ticket != 0) tap.to.kernels_pop(tap.to.self, ticket, UINT64_MAX, static_cast<std::uint32_t>(tap.state->step));
    throw;
  }
  own_time.go_on();
  if (plan->places_none) return;
  // An op may close the watch, or open another (a hook of the user's does): nothing of it is told then.
  if (g_on.load(std::memory_order_acquire) != &tap || any_symbolic(last(schema.returns().size()))) return;
  std::int64_t site = 0;
  bool began = false;
  try {
    site = tap.rows.site(*plan);
    const std::lock_guard lock(tap.mutex);
    if (g_on.load(std::memory_order_acquire) != &tap) return;
    if (plan->skip) {
      tap.rows.claim_views(site);
    } else if (ready && !(plan->of_python && tap.rows.was_heard_inside(*plan, *borrowed->get(), *stack))) {
      const bool kernels = ticket != 0;
      Given& given = *borrowed->get();
      if (kernels) tap.to.kernels_push_own(tap.to.self);
      tap.rows.held.begin_reported();
      if (plan->collective) {
        tap.collectives.after(*plan, given, *stack, std::move(call), site);
      } else {
        tap.rows.after(*plan, given, *stack, site);
        began = tap.rows.held.began();
        std::vector<at::Tensor> copies;
        if (tap.rows.mark_copies(*plan, given, *stack, tap.kept.on() && began, copies)) tap.state->left_bad = 1;
        if (!copies.empty()) tap.lasting.note(copies, true);
        if (tap.rows.phase() == NANHUNT_PHASE_VALIDATION || (tap.state->infers() && tap.rows.places.is_outside()))
          tap.note_bad_number(BadNumber(given.args), given, *plan, *stack, site);
      }
      if (tap.kept.on() && (tap.rows.held.began() || (!plan->collective && tap.kept.follows(given.args))))
        tap.keep_after(*plan, given, *stack, tap.rows.held.began());
      if (kernels) {
        // The row of a collective comes when it has ended: what came now may be that of another one.
        const std::uint64_t first = tap.rows.held.first_reported();
        const bool has_row = !plan->collective && tap.to.next_seq(tap.to.self) != first;
        tap.to.kernels_pop_own(tap.to.self);
        tap.to.kernels_pop(tap.to.self, ticket, has_row ? first : UINT64_MAX, static_cast<std::uint32_t>(tap.state->step));
      }
    }
  } catch (const std::exception& error) {
    tap.note_failure(error, plan->op);
  }
  if (began && site > 0 && !tap.rows.in_graph()) tap.rows.frames.report_stack(site);
  tap.state->spent_ns += own_time.end();
}

void heard(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  const Below below(op, keys);
  if (g_first_op.load(std::memory_order_relaxed) != nullptr && ran_first_op(below, stack)) return;
  if (g_on.load(std::memory_order_acquire) != nullptr && !below.passes()) {
    const Watching watching;
    Tap* const tap = g_on.load(std::memory_order_acquire);
    if (tap != nullptr && tap->state->compiling == 0 && g_deaf.load(std::memory_order_relaxed) != &t_here &&
        !passes_python_by(*tap, below, *stack)) {
      const FirstOp next = g_next_forward.load(std::memory_order_relaxed);
      if (next != nullptr && begins_forward(*tap->state, below, *stack)) {
        next();
        if (g_on.load(std::memory_order_acquire) != tap) return below.pass(stack);
      }
      return watch(*tap, below, stack);
    }
  }
  below.pass(stack);
}

// A mark's row goes to the end of `words`.
void mark(Tap& tap, const at::Tensor& given, std::int64_t kind, std::int64_t text, Words& words) {
  const at::Tensor& t = unwrapped(given);
  tap.collectives.report_before_reading(t);
  const auto quad = tap.rows.describer.describe(t, true);
  if (!quad) return;
  if (!tap.rows.held.left_bad.is_empty()) tap.rows.report_source(t, *quad->identity);
  if (kind <= NANHUNT_STATE) tap.rows.held.look_at_mark(t, *quad);
  words.insert(words.end(), {NANHUNT_ROW_MARK, kind, tap.state->step, tap.state->micro_batch, text});
  put(words, *quad);
}

c10::StorageImpl* storage_at(std::int64_t address) {
  return reinterpret_cast<c10::StorageImpl*>(static_cast<std::uintptr_t>(address));
}

c10::List<at::Tensor> tensors_at(const std::int64_t* tensors, std::size_t count) {
  c10::List<at::Tensor> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(tensor_at(tensors[i]));
  return all;
}

template <typename F>
void at_places(void* tap, F&& body) noexcept {
  Tap* const t = static_cast<Tap*>(tap);
  guarded(t, 0, "a module's call", [&] {
    body(t->rows.places);
    return 0;
  });
}

}  // namespace
}  // namespace nanhunt::tap

using namespace nanhunt::tap;

// Takes a place to listen at, or the one that is named: "below_autograd", "above_autograd"; "": the first that is free.
// "": done, else why not. Once a process: the library is never unloaded.
NANHUNT_TAP const char* nanhunt_tap_load(const char* only) {
  static const std::string why = [&]() -> std::string {
    try {
      std::string not_taken = listen(only, [] { return torch::CppFunction::makeFromBoxedFunction<&heard>(); });
      if (not_taken.empty()) define_ops();
      return not_taken;
    } catch (const std::exception& error) {
      return std::string(error.what()).substr(0, 300);
    }
  }();
  return why.c_str();
}
// Where it listens, and PyTorch's name of the dispatch key there.
NANHUNT_TAP const char* nanhunt_tap_listens() { return g_listening.name; }
NANHUNT_TAP const char* nanhunt_tap_key() { return c10::toString(listening_key()); }
// Whether it hears what Python runs for a dispatch mode or a tensor subclass.
NANHUNT_TAP std::int32_t nanhunt_tap_hears_python() { return g_listening.is_above_python() ? 0 : 1; }

// `theirs`: starts of file names that are not the user's, with newlines between. `loss`: the text for what runs outside
// of modules.
NANHUNT_TAP void* nanhunt_tap_new(const Recording* to, std::int64_t loss, const char* theirs) {
  try {
    std::vector<std::string> starts;
    for (std::string_view rest = theirs; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      starts.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return new Tap(*to, loss, std::move(starts));
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Nothing hears any more; the calling thread's switch goes off as well.
NANHUNT_TAP void nanhunt_tap_off(void* tap) {
  include_thread(false);
  Tap* expected = static_cast<Tap*>(tap);
  if (expected == nullptr) return;
  const std::lock_guard lock(expected->mutex);
  g_on.compare_exchange_strong(expected, nullptr);
}
// In the calling thread, and those that run its backward. One tap at a time: the one that was on before, or null.
NANHUNT_TAP void* nanhunt_tap_on(void* tap) {
  hear_this_thread();
  Tap* const before = g_on.exchange(static_cast<Tap*>(tap));
  include_thread(true);
  return before;
}
// Called before the calling thread's first op that reads floating-point numbers, or after one that makes some.
NANHUNT_TAP void nanhunt_tap_await_first_op(void (*first)()) { await_first_op(first); }
// Nobody is. 1: the calling thread's was waited for, and no tap is on.
NANHUNT_TAP std::int32_t nanhunt_tap_forget_first_op() { return forget_first_op() ? 1 : 0; }
// Before an op that begins a forward after the program itself has written parameters; null: nobody is called.
NANHUNT_TAP void nanhunt_tap_await_next_forward(void (*next)()) { g_next_forward.store(next); }
// In a forked child, where who holds the mutex is not there to give it back.
NANHUNT_TAP void nanhunt_tap_abandon() {
  include_thread(false);
  calls::g_follow = nullptr;
  g_first_op.store(nullptr);
  g_next_forward.store(nullptr);
  g_on.store(nullptr);
}
NANHUNT_TAP void nanhunt_tap_free(void* tap) {
  if (tap == nullptr) return;
  nanhunt_tap_off(tap);
  guarded(static_cast<Tap*>(tap), 0, "what waits", [&] {
    static_cast<Tap*>(tap)->rows.held.drop();
    return 0;
  });
  static_cast<Tap*>(tap)->rows.frames.forget();
  bury(static_cast<Tap*>(tap));
}
// What the calling thread runs from here on is not heard, nor are its warnings: 1; 0: it is again. What it was before.
NANHUNT_TAP std::int32_t nanhunt_tap_hush(std::int32_t hush) { return hush_thread(hush != 0) ? 1 : 0; }

// Where the run is, from now on; null: the tap's own.
NANHUNT_TAP void nanhunt_tap_use(void* tap, State* state) {
  guarded(static_cast<Tap*>(tap), 0, "the state", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    t.state = state != nullptr ? state : &t.own;
    return 0;
  });
}

NANHUNT_TAP void nanhunt_tap_enter_root(void* tap, std::int64_t path) {
  guarded(static_cast<Tap*>(tap), 0, "a module's call", [&] {
    Rows& rows = static_cast<Tap*>(tap)->rows;
    rows.between.begin_forward();
    rows.places.enter_root(path);
    return 0;
  });
}
NANHUNT_TAP void nanhunt_tap_exit_root(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "a module's call", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    t.rows.places.exit_root(!t.state->infers());
    return 0;
  });
}
NANHUNT_TAP void nanhunt_tap_enter(void* tap, std::int64_t path) {
  at_places(tap, [&](Places& places) { places.enter(path); });
}
NANHUNT_TAP void nanhunt_tap_exit(void* tap) {
  at_places(tap, [](Places& places) { places.exit(); });
}
NANHUNT_TAP void nanhunt_tap_begin_step(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "a step", [&] {
    Rows& rows = static_cast<Tap*>(tap)->rows;
    rows.between.begin_step();
    rows.copies.begin_step();
    rows.forget_bad_number();
    rows.places.begin_step();
    return 0;
  });
}
NANHUNT_TAP void nanhunt_tap_begin_backward(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "a backward", [&] {
    Rows& rows = static_cast<Tap*>(tap)->rows;
    rows.between.begin_backward(static_cast<Tap*>(tap)->state->step);
    rows.places.begin_backward();
    return 0;
  });
}
// Paths of parameters, by tensor, and what a copy of each is called.
NANHUNT_TAP void nanhunt_tap_parameters(void* tap, const std::int64_t* tensors, const std::int64_t* texts,
                                        const std::int64_t* copies, std::size_t count) {
  guarded(static_cast<Tap*>(tap), 0, "names of parameters", [&] {
    Rows& rows = static_cast<Tap*>(tap)->rows;
    rows.places.forget_parameters();
    Copies::Names of_copies;
    std::vector<WeakTensor> all;
    for (std::size_t i = 0; i < count; ++i) {
      rows.places.name_parameter(reinterpret_cast<const void*>(static_cast<std::uintptr_t>(tensors[i])), texts[i]);
      const at::Tensor t = tensor_at(tensors[i]);
      if (t.has_storage()) of_copies[t.storage().unsafeGetStorageImpl()] = copies[i];
      if (t.has_storage()) all.emplace_back(t.getIntrusivePtr());
    }
    rows.held.set_parameters(std::move(all));
    rows.copies.name_parameters(std::move(of_copies));
    return 0;
  });
}
// Whose parameter, gradient or state a tensor's storage is, until the next call; and its gradient's. Null: nobody's.
NANHUNT_TAP void nanhunt_tap_owners(void* tap, const void* set) {
  guarded(static_cast<Tap*>(tap), 0, "owners", [&] {
    static_cast<Tap*>(tap)->rows.held.launch_looks();  // an optimizer may write unheard
    StepRing& ring = static_cast<Tap*>(tap)->rows.held.ring;
    ring.owners.set(set != nullptr ? *static_cast<const SharedTensorSet*>(set) : nullptr, ring.keeps());
    return 0;
  });
}

// The part that each tensor plays (NANHUNT_LOSS, ...), by path. `gradients`: of each its gradient, where it has one.
NANHUNT_TAP void nanhunt_tap_mark(void* tap, const std::int64_t* kinds, const std::int64_t* texts,
                                  const std::int64_t* tensors, std::size_t count, std::int32_t gradients) {
  guarded(static_cast<Tap*>(tap), 0, "marks", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    Words words;
    for (std::size_t i = 0; i < count; ++i) {
      at::Tensor marked = tensor_at(tensors[i]);
      if (gradients != 0) marked = at::Tensor(gradient_of(marked));
      mark(t, marked, kinds[i], texts[i], words);
    }
    if (!words.empty()) t.rows.send(words);
    t.rows.describer.release_hosts();
    return 0;
  });
}
// The same, of a set; where rows stay here, it is told with them.
NANHUNT_TAP void nanhunt_tap_mark_set(void* tap, const void* set, const std::int64_t* kinds, std::size_t count) {
  guarded(static_cast<Tap*>(tap), 0, "marks", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    const SharedTensorSet& all = *static_cast<const SharedTensorSet*>(set);
    if (count == 0) return 0;
    if (t.rows.held.ring.keeps()) {
      t.rows.held.ring.mark_later(all, {kinds, kinds + count}, t.state->step, t.state->micro_batch);
      return 0;
    }
    Words words;
    std::size_t at = 0;
    each_alive(*all, [&](const at::Tensor& one, std::int64_t text) { mark(t, one, kinds[std::min(at++, count - 1)], text, words); });
    if (!words.empty()) t.rows.send(words);
    t.rows.describer.release_hosts();
    return 0;
  });
}

// A compiled graph is about to run, and has run: `written` of what it was given, after what it gives; -1: it has raised.
NANHUNT_TAP void nanhunt_tap_begin_graph(void* tap, const std::int64_t* tensors, std::size_t count, const std::int64_t* kept) {
  guarded(static_cast<Tap*>(tap), 0, "a compiled graph", [&] {
    static_cast<Tap*>(tap)->graphs.begin(tensors_at(tensors, count), std::vector<bool>(kept, kept + count));
    return 0;
  });
}
// A kernel that is launched past the dispatcher is about to run, and has run, or has raised.
NANHUNT_TAP void nanhunt_tap_begin_kernel(void* tap, const char* name, const std::int64_t* tensors, std::size_t count) {
  guarded(static_cast<Tap*>(tap), 0, "a kernel", [&] {
    static_cast<Tap*>(tap)->launched.begin(name, tensors_at(tensors, count));
    return 0;
  });
}
NANHUNT_TAP void nanhunt_tap_end_kernel(void* tap, std::int32_t raised) {
  Tap* const t = static_cast<Tap*>(tap);
  const std::int64_t site = t == nullptr || raised != 0 ? 0 : t->rows.site_of_call();
  guarded(t, 0, "a kernel", [&] {
    raised != 0 ? t->launched.drop() : t->launched.end(site);
    return 0;
  });
}
// CompiledGraphs::Verdict.
NANHUNT_TAP std::int32_t nanhunt_tap_judge_graph(void* tap, const std::int64_t* tensors, std::size_t count,
                                                 std::size_t written, const std::int64_t* inputs, std::size_t given) {
  Tap* const t = static_cast<Tap*>(tap);
  const std::int64_t site = t == nullptr ? 0 : t->rows.site_of_call();
  return guarded(t, 0, "a compiled graph", [&] {
    return static_cast<std::int32_t>(t->graphs.judge(tensors_at(tensors, count), written, tensors_at(inputs, given), site));
  });
}
NANHUNT_TAP std::int64_t nanhunt_tap_end_graph(void* tap, const std::int64_t* tensors, std::size_t count,
                                               std::int64_t written, const std::int64_t* inside, std::size_t bad_inside) {
  Tap* const t = static_cast<Tap*>(tap);
  const std::int64_t site = t == nullptr || written < 0 ? 0 : t->rows.site_of_call();
  return guarded(t, std::int64_t{-1}, "a compiled graph", [&] {
    if (written >= 0)
      return t->graphs.end(tensors_at(tensors, count), static_cast<std::size_t>(written), tensors_at(inside, bad_inside), site);
    t->graphs.drop();
    return std::int64_t{-1};
  });
}
NANHUNT_TAP void nanhunt_tap_silence(std::int32_t on) { silence_thread(on != 0); }
// Where ops run that stand for nodes of a graph, as texts, from here on. A path of 0: of the module that runs; -1: ops run
// where they seem to.
NANHUNT_TAP void nanhunt_tap_place(void* tap, std::int64_t path, std::int64_t site) {
  guarded(static_cast<Tap*>(tap), 0, "a place in a graph", [&] {
    static_cast<Tap*>(tap)->rows.set_place(path < 0 ? std::nullopt : std::optional<Place>(Place{path, site}));
    return 0;
  });
}

// Lasting tensors: 0: what is watched has written them; 1: looked at; 2: looked at, but for those on devices.
NANHUNT_TAP void nanhunt_tap_lasting(void* tap, const std::int64_t* tensors, std::size_t count, std::int32_t look) {
  guarded(static_cast<Tap*>(tap), 0, "what lasts", [&] {
    std::vector<at::Tensor> all;
    all.reserve(count);
    for (std::size_t i = 0; i < count; ++i) all.push_back(tensor_at(tensors[i]));
    Lasting& lasting = static_cast<Tap*>(tap)->lasting;
    if (look == 0) {
      lasting.note(all);
    } else {
      lasting.look(all, look == 1);
    }
    return 0;
  });
}

// What was not heard has written these, and their gradients.
NANHUNT_TAP void nanhunt_tap_were_written(void* tap, const void* set) {
  guarded(static_cast<Tap*>(tap), 0, "what an optimizer has written", [&] {
    Identities& identities = static_cast<Tap*>(tap)->rows.describer.identities;
    const auto bump = [&](const at::Tensor& t) {
      if (!t.defined() || !t.has_storage()) return;
      if (Identity* known = identities.find(t.storage().unsafeGetStorageImpl())) identities.bump(*known);
    };
    each_alive(**static_cast<const SharedTensorSet*>(set), [&](const at::Tensor& t, std::int64_t) {
      bump(t);
      if (t.is_leaf() && t.requires_grad()) bump(t.grad());
    });
    return 0;
  });
}

// Looks at copies of parameters that last, as far as they are known.
NANHUNT_TAP void nanhunt_tap_look_at_copies(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "copies of parameters", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    if (const auto copies = t.rows.copies.alive(); !copies.empty()) t.lasting.look(copies, false, true);
    return 0;
  });
}

// A set of tensors, and the numbers of their names (null: they have none). It holds them weakly: whoever keeps their
// addresses asks whether all of them are still there.
NANHUNT_TAP void* nanhunt_tap_set(const std::int64_t* tensors, const std::int64_t* texts, std::size_t count) {
  try {
    auto set = std::make_shared<TensorSet>();
    for (std::size_t i = 0; i < count; ++i) set->tensors.emplace_back(tensor_at(tensors[i]).getIntrusivePtr());
    if (texts != nullptr) set->texts.assign(texts, texts + count);
    return std::make_unique<SharedTensorSet>(std::move(set)).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}
NANHUNT_TAP std::int32_t nanhunt_tap_set_is_alive(const void* set) {
  if (set == nullptr) return 0;
  const auto& tensors = (*static_cast<const SharedTensorSet*>(set))->tensors;
  return std::none_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.expired(); }) ? 1 : 0;
}
NANHUNT_TAP void nanhunt_tap_set_free(void* set) { delete static_cast<SharedTensorSet*>(set); }
// The four words of a tensor; 0: it cannot be watched, which is noted.
NANHUNT_TAP std::int32_t nanhunt_tap_describe(void* tap, std::int64_t tensor, std::int32_t with_data, std::int64_t* words) {
  return guarded(static_cast<Tap*>(tap), 0, "a tensor", [&] {
    const auto quad = static_cast<Tap*>(tap)->rows.describer.describe(tensor_at(tensor), with_data != 0);
    if (!quad) return 0;
    static_cast<Tap*>(tap)->rows.held.ring.note_reported();  // Python may tell the recorder of it
    words[0] = quad->data, words[1] = quad->word, words[2] = quad->offset, words[3] = quad->layout;
    return 1;
  });
}
NANHUNT_TAP void nanhunt_tap_release_hosts(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "copies", [&] {
    static_cast<Tap*>(tap)->rows.describer.release_hosts();
    return 0;
  });
}
// The word of the contents of a storage (`UntypedStorage._cdata`); 0: not known. `make`: it gets a number.
NANHUNT_TAP std::int64_t nanhunt_tap_word(void* tap, std::int64_t storage, std::int32_t make) {
  return guarded(static_cast<Tap*>(tap), std::int64_t{0}, "a storage", [&]() -> std::int64_t {
    Identities& identities = static_cast<Tap*>(tap)->rows.describer.identities;
    if (make != 0) return identities.of(storage_at(storage)).word;
    const Identity* known = identities.find(storage_at(storage));
    return known == nullptr ? 0 : known->word;
  });
}
// It was written: the word now.
NANHUNT_TAP std::int64_t nanhunt_tap_written(void* tap, std::int64_t storage) {
  return guarded(static_cast<Tap*>(tap), std::int64_t{0}, "a storage", [&] {
    Identities& identities = static_cast<Tap*>(tap)->rows.describer.identities;
    return identities.bump(identities.of(storage_at(storage)));
  });
}
// Torch's count of writes of the contents that the word stands for: -1: not known; with `version` >= -1 it is set.
NANHUNT_TAP std::int64_t nanhunt_tap_as_of(void* tap, std::int64_t storage, std::int64_t version) {
  return guarded(static_cast<Tap*>(tap), std::int64_t{-1}, "a storage", [&]() -> std::int64_t {
    Identity& identity = static_cast<Tap*>(tap)->rows.describer.identities.of(storage_at(storage));
    if (version >= -1) identity.as_of = version;
    return identity.as_of;
  });
}
// What has ended since is told: collectives, storages. `pending`: collectives that have not, and are forgotten.
NANHUNT_TAP std::int64_t nanhunt_tap_settle(void* tap, std::int32_t forget) {
  return guarded(static_cast<Tap*>(tap), std::int64_t{0}, "the end of a step", [&] {
    Tap& t = *static_cast<Tap*>(tap);
    t.collectives.report_finished(nullptr, {});
    const auto pending = static_cast<std::int64_t>(t.collectives.pending());
    if (forget != 0) t.collectives.forget();
    if (forget != 0 || !t.rows.held.ring.keeps() || t.rows.describer.identities.is_sweep_due()) t.rows.report_ended();
    return pending;
  });
}
// "aten::mean at train.py:12": the first op of a validation since this was asked last whose result was a number that is
// not finite; "": none. Until the next call.
NANHUNT_TAP const char* nanhunt_tap_bad_number(void* tap) {
  static thread_local std::string told;
  told.clear();
  guarded(static_cast<Tap*>(tap), 0, "a validation", [&] {
    told = std::exchange(static_cast<Tap*>(tap)->bad_number, {});
    return 0;
  });
  return told.c_str();
}
// The single number of this step's forwards that was not finite first plays this part. 0: there is none.
NANHUNT_TAP std::int32_t nanhunt_tap_mark_bad_number(void* tap, std::int64_t kind, std::int64_t text) {
  return guarded(static_cast<Tap*>(tap), 0, "marks",
                 [&] { return static_cast<Tap*>(tap)->rows.mark_bad_number(kind, text) ? 1 : 0; });
}
// Ops ran unheard since: contents are known by what was heard before no longer.
NANHUNT_TAP void nanhunt_tap_forget(void* tap) {
  guarded(static_cast<Tap*>(tap), 0, "contents", [&] {
    static_cast<Tap*>(tap)->rows.forget();
    return 0;
  });
}
NANHUNT_TAP std::uint64_t nanhunt_tap_refused(const void* tap) {
  return tap == nullptr ? 0 : static_cast<const Tap*>(tap)->rows.refused;
}

// What is not watched since the last call, and how often.
NANHUNT_TAP void nanhunt_tap_notes(void* tap, void (*take)(const char* text, std::int64_t count)) {
  if (tap == nullptr) return;
  Tap& t = *static_cast<Tap*>(tap);
  Notes notes;
  {
    const std::lock_guard lock(t.mutex);
    notes = std::exchange(t.rows.notes, {});
  }
  for (const auto& [text, count] : notes) take(text.c_str(), count);
}

// An op's schema as the rows have it: a line of letters (s: no row, g: memory that nothing has written, e: a row for each
// element, w: writes), then of each argument its slot and 1 where it is written. Bytes needed, at most `room` written.
NANHUNT_TAP std::int64_t nanhunt_tap_schema(const char* op, const char* overload, char* text, std::int64_t room) {
  try {
    const auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
    if (!handle) return 0;
    const Plan plan = plans::read(*handle);
    std::string out;
    if (plan.skip) out += 's';
    if (plan.garbage) out += 'g';
    if (plan.per_element) out += 'e';
    if (plan.writes) out += 'w';
    for (const Arg& arg : plan.args) out += "\n" + arg.name + (arg.written ? " 1" : " 0");
    std::memcpy(text, out.c_str(), std::min<std::size_t>(out.size() + 1, static_cast<std::size_t>(room)));
    return static_cast<std::int64_t>(out.size() + 1);
  } catch (const std::exception&) {
    return 0;
  }
}
