// SPDX-License-Identifier: Apache-2.0
// The watch of a recorder's kernels. Any thread may be in it while the recorder's own takes it away or puts another.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::c_api {

class KernelSlot {
 public:
  // Any thread. `otherwise` where nothing is watched.
  template <typename R, typename F>
  R call(F&& body, R otherwise) noexcept {
    if (live_.load(std::memory_order_relaxed) == nullptr) return otherwise;
    callers_.fetch_add(1);
    // In this order, and put() in the other: who is not counted yet finds the new one.
    hooks::KernelWatch* const watch = live_.load();
    const R result = watch == nullptr ? otherwise : body(*watch);
    callers_.fetch_sub(1);
    return result;
  }

  // The rest is the recorder's thread's. The last one that was put, attached or not.
  hooks::KernelWatch* last() const { return last_.get(); }
  void put(std::unique_ptr<hooks::KernelWatch> watch) {
    before_.reserve(before_.size() + 1);
    live_.store(watch.get());
    if (last_ != nullptr) before_.push_back(std::move(last_));
    last_ = std::move(watch);
    if (callers_.load() == 0) before_.clear();  // else when the next one is put
  }
  bool is_attached() const { return live_.load() != nullptr; }
  // Nobody comes in any more. Counts can be read.
  void take_away() { live_.store(nullptr); }

 private:
  std::atomic<hooks::KernelWatch*> live_{nullptr};
  std::atomic<int> callers_{0};
  std::unique_ptr<hooks::KernelWatch> last_;
  std::vector<std::unique_ptr<hooks::KernelWatch>> before_;  // which a thread may be in
};

}  // namespace nanhunt::c_api
