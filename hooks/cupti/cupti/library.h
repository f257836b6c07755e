// SPDX-License-Identifier: Apache-2.0
// libcupti, opened at run time: nothing links it, so that a machine without it runs the same programs.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <string>

#include "nanhunt/status.h"

namespace nanhunt::hooks {

// Pointers with the types of the toolkit's headers.
struct CuptiCalls {
  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiEnableCallback) enable_callback = nullptr;
  decltype(&::cuptiFinalize) finalize = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivitySetAttribute) set_attribute = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) get_dropped = nullptr;
  decltype(&::cuptiActivityPushExternalCorrelationId) push_id = nullptr;
  decltype(&::cuptiActivityPopExternalCorrelationId) pop_id = nullptr;
  // Older releases lack these.
  decltype(&::cuptiSubscribe_v2) subscribe_v2 = nullptr;
  decltype(&::cuptiGetResultString) get_result_string = nullptr;
};

struct CuptiLibrary {
  CuptiCalls calls;
  std::string path;
  bool loaded_before = false;
  std::uint32_t version = 0;

  // `wanted`: a path or soname, or empty for a search that takes a copy the process has already. A failed Status says
  // what was looked for, what is missing in it, or why its version is not used; path and version are filled in as far
  // as they are known. Never unloaded again.
  Status open(const std::string& wanted);
  std::string describe(CUptiResult result) const;  // "CUPTI_ERROR_UNKNOWN (999)"
};

}  // namespace nanhunt::hooks
