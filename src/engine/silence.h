// SPDX-License-Identifier: Apache-2.0
// Observers of this thread are told nothing while it lives (hooks.cpp): what is captured has not happened.
#pragma once

namespace nanhunt::engine {

class [[nodiscard]] ScopedSilence {
 public:
  ScopedSilence();
  ~ScopedSilence();
  ScopedSilence(const ScopedSilence&) = delete;
  ScopedSilence& operator=(const ScopedSilence&) = delete;

 private:
  bool outer_;
};
bool silenced();

}  // namespace nanhunt::engine
