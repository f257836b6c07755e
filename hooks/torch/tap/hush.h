// SPDX-License-Identifier: Apache-2.0
// What a thread computes for us: not heard, in no profile, and what it warns of is not the program's.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <utility>

#include "hooks/torch/tap/describe.h"

namespace nanhunt::tap {

// Takes what PyTorch warns of.
class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// The calling thread, from here on. What it was before.
inline bool hush_thread(bool hush) {
  static Silent silent;
  static thread_local c10::WarningHandler* warns = nullptr;  // while it is hushed
  static thread_local bool records = true;
  const bool was = c10::impl::tls_is_dispatch_key_excluded(listening_key());
  c10::impl::tls_set_dispatch_key_excluded(listening_key(), hush);
  if (hush && !was) {
    warns = c10::WarningUtils::get_warning_handler();
    c10::WarningUtils::set_warning_handler(&silent);
    records = at::isRecordFunctionEnabled();
    at::enableRecordFunction(false);
  } else if (!hush && was && warns != nullptr) {
    c10::WarningUtils::set_warning_handler(std::exchange(warns, nullptr));
    at::enableRecordFunction(records);
  }
  return was;
}

// The calling thread is heard, but what PyTorch warns of in it is not the program's.
inline void silence_thread(bool on) {
  static Silent silent;
  static thread_local c10::WarningHandler* before = nullptr;
  if (on && before == nullptr) {
    before = c10::WarningUtils::get_warning_handler();
    c10::WarningUtils::set_warning_handler(&silent);
  } else if (!on && before != nullptr) {
    c10::WarningUtils::set_warning_handler(std::exchange(before, nullptr));
  }
}

}  // namespace nanhunt::tap
