// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/hooks.h"

#include <algorithm>
#include <utility>


namespace nanhunt::engine {
namespace {

struct Entry {
  Observer* observer;  // null: removed while observers were being told
  bool wants_ops;
};

struct ObserverList {
  std::vector<Entry> entries;
  int reporting = 0;
};

// Null before the first observer and again once the thread's list is gone: a storage may be released by
// a destructor that runs later than the list's.
thread_local ObserverList* current_list = nullptr;
thread_local int unobserved = 0;  // scopes
thread_local int reported_now = 0, reported_ops_now = 0;  // observers, and those of them that want ops

void recount() {
  reported_now = reported_ops_now = 0;
  if (current_list == nullptr) return;
  for (const Entry& entry : current_list->entries) {
    if (entry.observer == nullptr) continue;
    ++reported_now;
    if (entry.wants_ops) ++reported_ops_now;
  }
}

struct ListOwner {
  ObserverList list;
  ListOwner() { current_list = &list; }
  ~ListOwner() {
    current_list = nullptr;
    recount();
  }
};

void add_to_list(const Entry& entry) {
  thread_local ListOwner owner;
  owner.list.entries.push_back(entry);
  recount();
}

void remove_from_list(Observer* observer) {
  if (current_list == nullptr) return;
  auto& entries = current_list->entries;
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.observer == observer; });
  if (found == entries.end()) return;
  if (current_list->reporting > 0) {
    found->observer = nullptr;
  } else {
    entries.erase(found);
  }
  recount();
}

// Observers may come and go, and release storages, while they are being told.
template <typename F>
void tell(const F& call, bool of_ops = false) noexcept {
  if ((of_ops ? reported_ops_now : reported_now) == 0) return;
  ObserverList* list = current_list;
  ++list->reporting;
  const std::size_t count = list->entries.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Entry entry = list->entries[i];
    if (entry.observer != nullptr && (!of_ops || entry.wants_ops)) call(*entry.observer);
  }
  if (--list->reporting == 0) std::erase_if(list->entries, [](const Entry& entry) { return entry.observer == nullptr; });
}

constexpr bool is_of_ops(TensorRole kind) {
  return kind == TensorRole::kParameter || kind == TensorRole::kState || kind == TensorRole::kBuffer;
}

thread_local Phase phase_now = Phase::kForward;

std::string& module_now() {
  thread_local std::string path;
  return path;
}

}  // namespace

HookHandle::HookHandle(Observer* observer) : observer_(observer) {
  if (observer_ != nullptr) add_to_list({observer_, observer_->wants_ops()});
}

HookHandle::~HookHandle() { remove(); }

HookHandle::HookHandle(HookHandle&& other) noexcept : observer_(std::exchange(other.observer_, nullptr)) {}

HookHandle& HookHandle::operator=(HookHandle&& other) noexcept {
  if (this != &other) {
    remove();
    observer_ = std::exchange(other.observer_, nullptr);
  }
  return *this;
}

void HookHandle::remove() {
  if (observer_ != nullptr) remove_from_list(std::exchange(observer_, nullptr));
}

HookHandle add_observer(Observer& observer) { return HookHandle(&observer); }

bool has_observers() { return reported_now > 0; }
bool ops_observed() { return reported_ops_now > 0 && unobserved == 0; }

ScopedUnobserved::ScopedUnobserved() { ++unobserved; }
ScopedUnobserved::~ScopedUnobserved() { --unobserved; }

Phase current_phase() { return phase_now; }
const std::string& current_module() { return module_now(); }

ScopedPhase::ScopedPhase(Phase phase) : previous_(std::exchange(phase_now, phase)) {}
ScopedPhase::~ScopedPhase() { phase_now = previous_; }

ScopedModule::ScopedModule(std::string path) : previous_(std::exchange(module_now(), std::move(path))) {}
ScopedModule::~ScopedModule() { module_now() = std::move(previous_); }

void notify_op(const OpCall& call) {
  if (unobserved > 0) return;
  tell([&](Observer& observer) { observer.on_op(call); }, /*of_ops=*/true);
}
void notify_collective(const CollectiveCall& call) {
  if (unobserved > 0) return;
  tell([&](Observer& observer) { observer.on_collective(call); }, /*of_ops=*/true);
}
void notify_mark(TensorRole kind, std::string_view path, const Tensor& tensor) {
  tell([&](Observer& observer) { observer.on_mark(kind, path, tensor); }, is_of_ops(kind));
}
void notify_module_enter(std::string_view path) {
  tell([&](Observer& observer) { observer.on_module_enter(path); });
}
void notify_module_exit(std::string_view path) {
  tell([&](Observer& observer) { observer.on_module_exit(path); });
}
void notify_step_begin(std::uint32_t step) {
  tell([&](Observer& observer) { observer.on_step_begin(step); });
}
void notify_micro_batch(std::uint32_t micro_batch, std::span<const std::int64_t> sample_ids) {
  tell([&](Observer& observer) { observer.on_micro_batch(micro_batch, sample_ids); });
}
void notify_scaler(const ScalerEvent& event) {
  tell([&](Observer& observer) { observer.on_scaler(event); });
}
void notify_optimizer_begin() {
  tell([](Observer& observer) { observer.on_optimizer_begin(); });
}
void notify_optimizer_end(bool skipped) {
  tell([&](Observer& observer) { observer.on_optimizer_end(skipped); });
}
void notify_step_end(std::uint32_t step, double loss, double lr, double scale, bool skipped) {
  tell([&](Observer& observer) { observer.on_step_end(step, loss, lr, scale, skipped); });
}
void notify_step_given_up(std::uint32_t step, StepEnding ending, std::string_view message) {
  tell([&](Observer& observer) { observer.on_step_given_up(step, ending, message); });
}
void notify_storage_allocated(std::uint64_t generation, std::size_t bytes) noexcept {
  tell([&](Observer& observer) { observer.on_storage_allocated(generation, bytes); }, /*of_ops=*/true);
}
void notify_storage_released(std::uint64_t generation) noexcept {
  tell([&](Observer& observer) { observer.on_storage_released(generation); }, /*of_ops=*/true);
}

}  // namespace nanhunt::engine
