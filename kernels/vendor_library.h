// SPDX-License-Identifier: Apache-2.0
// Libraries of a GPU's maker that are looked for when they are first needed: a build needs neither their headers nor
// their files.
#pragma once

#include <dlfcn.h>

#include <functional>
#include <string>
#include <vector>

namespace nanhunt::kernels {

struct VendorLibrary {
  const char* title;               // "cuBLAS"
  const char* variable;            // of the environment, which may name its path
  std::vector<const char*> names;  // of its file, the newest first
  const char* install;             // what to do where it is missing
};

// Sets the functions of a loaded library. The name of the first that is not there; nullptr: all are.
using BindFunctions = std::function<const char*(void* library)>;

// The one that the environment names, else a copy that the process already has, else as the loader finds it, else where
// CUDA is usually installed. Its file; "": `why` says what was looked for and what to do. It is never unloaded.
std::string find_vendor_library(const VendorLibrary& wanted, const BindFunctions& bind, std::string& why);

template <class Function>
bool bind_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace nanhunt::kernels
