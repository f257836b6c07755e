// SPDX-License-Identifier: Apache-2.0
// What this build was made from and for: the words of `nanhunt --version`.
#pragma once

#include <string>

namespace nanhunt::cli {

// "nanhunt 0.1.0\ncommit 1a2b3c4d · taps for PyTorch 2.4.0 to 2.15.0 (18 releases)". Taps are those of the Python package
// beside this program.
std::string version_text();
// The second half of the second line, from the folder lib of a package. What is damaged or not there is as none.
std::string taps_text(const std::string& folder);

}  // namespace nanhunt::cli
