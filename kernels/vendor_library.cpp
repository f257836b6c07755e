// SPDX-License-Identifier: Apache-2.0
#include "kernels/vendor_library.h"

#include <cstdlib>

namespace nanhunt::kernels {

std::string find_vendor_library(const VendorLibrary& wanted, const BindFunctions& bind, std::string& why) {
  std::string incomplete;
  const auto take = [&](void* library, const std::string& file) {
    if (library == nullptr) return false;
    const char* missing = bind(library);
    if (missing == nullptr) return true;
    incomplete = file + " has no " + missing;
    dlclose(library);
    return false;
  };
  const char* named = std::getenv(wanted.variable);
  if (named != nullptr && *named != '\0') {
    if (take(dlopen(named, RTLD_NOW | RTLD_LOCAL), named)) return named;
    const char* error = incomplete.empty() ? dlerror() : incomplete.c_str();
    why = std::string(wanted.variable) + " names " + named + ", which cannot be used: " +
          (error != nullptr ? error : "it could not be loaded");
    return {};
  }
  for (const char* name : wanted.names) {
    if (take(dlopen(name, RTLD_NOW | RTLD_NOLOAD), name)) return name;
  }
  const char* toolkit = std::getenv("CUDA_PATH");
  for (const char* name : wanted.names) {
    std::vector<std::string> files = {name};
    if (toolkit != nullptr) files.push_back(std::string(toolkit) + "/lib64/" + name);
    files.push_back(std::string("/usr/local/cuda/lib64/") + name);
    for (const std::string& file : files) {
      if (take(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), file)) return file;
    }
  }
  std::string names;
  for (const char* name : wanted.names) names += (names.empty() ? "" : " or ") + std::string(name);
  why = std::string(wanted.title) + " was not found (" + names + (incomplete.empty() ? "" : "; " + incomplete) + "). " +
        wanted.install + ", and put its folder on LD_LIBRARY_PATH or its path into " + wanted.variable;
  return {};
}

}  // namespace nanhunt::kernels
