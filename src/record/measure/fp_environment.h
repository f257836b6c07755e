// SPDX-License-Identifier: Apache-2.0
// Keeps the recorder's arithmetic and the run's apart. Statistics raise status flags (NaN compares, rounding), and a
// run may flush subnormals, round another way or trap. Inside the scope the default environment holds; leaving it
// puts back every bit the run had, sticky flags included.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace nanhunt::record {

class [[nodiscard]] ScopedDefaultFpEnvironment {
 public:
#if defined(__SSE2__)
  // MXCSR alone: about 10 ns. Nothing here uses the x87 unit.
  ScopedDefaultFpEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultMxcsr); }
  ~ScopedDefaultFpEnvironment() { _mm_setcsr(saved_); }
#else
  ScopedDefaultFpEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~ScopedDefaultFpEnvironment() { std::fesetenv(&saved_); }
#endif
  ScopedDefaultFpEnvironment(const ScopedDefaultFpEnvironment&) = delete;
  ScopedDefaultFpEnvironment& operator=(const ScopedDefaultFpEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kDefaultMxcsr = 0x1F80;  // all traps masked, round to nearest, subnormals kept
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace nanhunt::record
