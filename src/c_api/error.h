// SPDX-License-Identifier: Apache-2.0
// How a call across the C border fails: a status, its words kept for this thread, and no exception.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "nanhunt/c_api.h"
#include "nanhunt/status.h"

namespace nanhunt::c_api {

nanhunt_status fail(nanhunt_status status, std::string_view message) noexcept;
nanhunt_status result_of(const Status& status) noexcept;

// Runs `body`, which returns a nanhunt_status; nothing gets past it.
template <typename F>
nanhunt_status guarded(F&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(NANHUNT_INTERNAL, "out of memory");
  } catch (const std::exception& error) {
    return fail(NANHUNT_INTERNAL, error.what());
  } catch (...) {
    return fail(NANHUNT_INTERNAL, "an unknown error");
  }
}

}  // namespace nanhunt::c_api
