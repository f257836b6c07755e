// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace nanhunt::testing_support {

// Waits for a state, however long a slow machine takes to come to it; false after minutes, when something hangs.
template <typename State>
bool eventually(State&& is_reached) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!is_reached()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace nanhunt::testing_support
