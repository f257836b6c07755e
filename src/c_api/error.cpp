// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/error.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "src/core/version.h"

namespace nanhunt::c_api {
namespace {

// Without allocation: a failure for want of memory must be told as well.
thread_local std::array<char, 1024> g_message{};

static_assert(NANHUNT_WRITE_FAILED == static_cast<int>(StatusCode::kWriteFailed));
static_assert(NANHUNT_DAMAGED == static_cast<int>(StatusCode::kDamaged));
static_assert(NANHUNT_USAGE == static_cast<int>(StatusCode::kUsage));

}  // namespace

nanhunt_status fail(nanhunt_status status, std::string_view message) noexcept {
  const std::size_t size = std::min(message.size(), g_message.size() - 1);
  std::copy_n(message.data(), size, g_message.data());
  g_message[size] = '\0';
  return status;
}

nanhunt_status result_of(const Status& status) noexcept {
  return status ? NANHUNT_OK : fail(static_cast<nanhunt_status>(status.code()), status.message());
}

}  // namespace nanhunt::c_api

extern "C" {

uint32_t nanhunt_c_api_version(void) { return NANHUNT_C_API_VERSION; }
const char* nanhunt_version(void) {
  static const std::string text(nanhunt::version());
  return text.c_str();
}
const char* nanhunt_last_error(void) { return nanhunt::c_api::g_message.data(); }

}  // extern "C"
