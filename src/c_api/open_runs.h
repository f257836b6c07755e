// SPDX-License-Identifier: Apache-2.0
// Which runs this process records now: of these a missing end says nothing.
#pragma once

#include <string>

namespace nanhunt::c_api {

void add_open_run(const std::string& attempt_dir);
void remove_open_run(const std::string& attempt_dir) noexcept;
bool is_recorded_here(const std::string& attempt_dir);

}  // namespace nanhunt::c_api
