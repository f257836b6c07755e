// SPDX-License-Identifier: Apache-2.0
// Which runs this process records now: of these a missing end says nothing.
#pragma once

#include <string>

namespace nanhunt::c_api {

void add_open_run(const std::string& attempt_dir);
void remove_open_run(const std::string& attempt_dir) noexcept;
// `path`: of an attempt that this process records, or of any folder that such a one lies in.
bool is_recorded_here(const std::string& path);

}  // namespace nanhunt::c_api
