// SPDX-License-Identifier: Apache-2.0
// The libcupti of hooks/cupti/fake, as the library under test will load it, with nothing in it of an earlier test.
#pragma once

#include <dlfcn.h>

#include <string>

#include "hooks/cupti/fake/fake_cupti.h"

namespace nanhunt::c_api_tests {

// nullptr: this build has no CUPTI headers, so there is none; or it could not be loaded, which dlerror() tells.
inline fake::FakeCupti* fresh_fake_cupti() {
  void* library = std::string(NANHUNT_FAKE_CUPTI).empty() ? nullptr : dlopen(NANHUNT_FAKE_CUPTI, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  fake::FakeCupti* cupti = reinterpret_cast<fake::FakeCupti* (*)()>(dlsym(library, "fake_cupti"))();
  cupti->start_over();
  return cupti;
}

}  // namespace nanhunt::c_api_tests
