// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and base64, to check the page's content security policy from the outside.
#pragma once

#include <string>
#include <string_view>

namespace nanhunt::testing_reports {

std::string sha256_base64(std::string_view text);

}  // namespace nanhunt::testing_reports
