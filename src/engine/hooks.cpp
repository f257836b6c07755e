// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/hooks.h"

#include <algorithm>
#include <utility>

namespace nanhunt::engine {
namespace {

struct ObserverList {
  std::vector<Observer*> observers;  // null: removed while observers were being told
  int telling = 0;
};

// Null before the first observer and again once the thread's list is gone: a storage may be released by
// a destructor that runs later than the list's.
thread_local ObserverList* current_list = nullptr;

struct ListOwner {
  ObserverList list;
  ListOwner() { current_list = &list; }
  ~ListOwner() { current_list = nullptr; }
};

void add_to_list(Observer* observer) {
  thread_local ListOwner owner;
  owner.list.observers.push_back(observer);
}

void remove_from_list(Observer* observer) {
  if (current_list == nullptr) return;
  auto& observers = current_list->observers;
  const auto found = std::find(observers.begin(), observers.end(), observer);
  if (found == observers.end()) return;
  if (current_list->telling > 0) {
    *found = nullptr;
  } else {
    observers.erase(found);
  }
}

// Observers may come and go, and release storages, while they are being told.
template <typename F>
void tell(const F& call) noexcept {
  ObserverList* list = current_list;
  if (list == nullptr || list->observers.empty()) return;
  ++list->telling;
  const std::size_t count = list->observers.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (Observer* observer = list->observers[i]) call(*observer);
  }
  if (--list->telling == 0) std::erase(list->observers, nullptr);
}

thread_local Phase phase_now = Phase::kForward;

std::string& module_now() {
  thread_local std::string path;
  return path;
}

}  // namespace

HookHandle::HookHandle(Observer* observer) : observer_(observer) {
  if (observer_ != nullptr) add_to_list(observer_);
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

bool has_observers() { return current_list != nullptr && !current_list->observers.empty(); }

Phase current_phase() { return phase_now; }
const std::string& current_module() { return module_now(); }

ScopedPhase::ScopedPhase(Phase phase) : previous_(std::exchange(phase_now, phase)) {}
ScopedPhase::~ScopedPhase() { phase_now = previous_; }

ScopedModule::ScopedModule(std::string path) : previous_(std::exchange(module_now(), std::move(path))) {}
ScopedModule::~ScopedModule() { module_now() = std::move(previous_); }

void notify_op(const OpCall& call) {
  tell([&](Observer& observer) { observer.on_op(call); });
}
void notify_mark(MarkKind kind, std::string_view path, const Tensor& tensor) {
  tell([&](Observer& observer) { observer.on_mark(kind, path, tensor); });
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
void notify_storage_released(std::uint64_t generation) noexcept {
  tell([&](Observer& observer) { observer.on_storage_released(generation); });
}

}  // namespace nanhunt::engine
