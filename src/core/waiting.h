// SPDX-License-Identifier: Apache-2.0
// A condition variable's wait without an end. std::condition_variable::wait is a new symbol in GCC 12's C++ library, which
// systems from 2021 lack (RHEL 9): what waits an hour at a time needs none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace nanhunt {

template <typename Predicate>
void wait_until_true(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Predicate is_true) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_true)) {
  }
}

}  // namespace nanhunt
