// SPDX-License-Identifier: Apache-2.0
// Functions of Python's, found in the process: no symbol of them is linked, so that one tap serves every Python.
#pragma once

#include <dlfcn.h>

namespace nanhunt::tap {

// Whether this Python has it.
template <typename F>
bool find_python(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace nanhunt::tap
