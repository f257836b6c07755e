// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "hooks/cupti/kernel_watch.h"

namespace nanhunt::hooks {
namespace {

constexpr std::size_t kMaxNameBytes = 1024;

}  // namespace

std::string readable_kernel_name(std::string_view name) {
  std::string text(name);
  if (text.starts_with("_Z")) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> readable(
        abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), &std::free);
    if (status == 0 && readable != nullptr) text = readable.get();
  }
  if (text.size() > kMaxNameBytes) text.resize(kMaxNameBytes);
  return text;
}

}  // namespace nanhunt::hooks
