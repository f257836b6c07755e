// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace nanhunt::record {

// While it lives, new threads of this one start with every signal blocked that is not raised by a fault of their own:
// the run's handlers run in the run's threads, and SIGXFSZ (file size limit) becomes an error code of write().
class ScopedBlockedSignals {
 public:
  ScopedBlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~ScopedBlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  ScopedBlockedSignals(const ScopedBlockedSignals&) = delete;
  ScopedBlockedSignals& operator=(const ScopedBlockedSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace nanhunt::record
