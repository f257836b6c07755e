// SPDX-License-Identifier: Apache-2.0
// A program that is started and left to itself, lent out.
#include <cstring>
#include <string>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "src/c_api/error.h"
#include "src/core/detached_process.h"

namespace nanhunt::c_api {
namespace {

std::vector<std::string> words_until_null(const char* const* words) {
  std::vector<std::string> out;
  for (; *words != nullptr; ++words) out.emplace_back(*words);
  return out;
}

}  // namespace
}  // namespace nanhunt::c_api

nanhunt_status nanhunt_start_detached(const char* const* command, const char* const* environment, const char* input,
                                      size_t input_bytes) {
  using namespace nanhunt::c_api;
  return guarded([&]() -> nanhunt_status {
    if (command == nullptr || command[0] == nullptr || environment == nullptr || (input == nullptr && input_bytes > 0)) {
      return fail(NANHUNT_USAGE, "nanhunt_start_detached: expected a command, an environment and an input, got NULL");
    }
    nanhunt::DetachedProgram program;
    program.command = words_until_null(command);
    program.environment = words_until_null(environment);
    if (input_bytes > 0) program.input.assign(input, input_bytes);
    const int error = nanhunt::start_detached(program);
    if (error == 0) return NANHUNT_OK;
    return fail(NANHUNT_NOT_FOUND, "nanhunt_start_detached: '" + program.command[0] + "' could not be started: " + std::strerror(error));
  });
}
