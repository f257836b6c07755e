// SPDX-License-Identifier: Apache-2.0
// One subscription to CUPTI, from the first call to the last: what is switched on here is switched off here.
#pragma once

#include <cupti.h>

#include <atomic>
#include <string>

#include "hooks/cupti/cupti/library.h"
#include "nanhunt/status.h"

namespace nanhunt::hooks {

// Not thread-safe.
class CuptiSession {
 public:
  explicit CuptiSession(const CuptiLibrary& library) : library_(library) {}
  ~CuptiSession() { end(""); }
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  // A failed Status names the incumbent, or what was refused; nothing is left of it then.
  Status subscribe();
  // Limits, then buffers, then kinds. After a failure: end().
  Status start();
  // Turns everything off and takes it down from the exit of a call into `driver`. True: to the last bit.
  bool end(const std::string& driver);

  // In a forked child: all of it stayed behind.
  void abandon() { subscriber_ = nullptr; }


 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId call, const void* data);
  Status enable(CUpti_ActivityKind kind);
  bool finalize_from(const std::string& driver);

  const CuptiLibrary library_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  bool kernels_ = false, ids_ = false, driver_ = false, runtime_ = false;
  std::atomic<bool> leaving_{false}, left_{false};
};

// Whether a CUDA context is there already, asked without making one.
bool has_context(const std::string& driver);

}  // namespace nanhunt::hooks
