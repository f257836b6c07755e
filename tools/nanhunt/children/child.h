// SPDX-License-Identifier: Apache-2.0
// A command started as a child and waited for, as if this program were not between it and whoever started it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nanhunt::cli {

struct ChildEnd {
  int start_error = 0;  // errno when it could not be started; then nothing else holds
  int signal = 0;       // that ended it; 0: none
  int status = 0;       // as a shell says it: 128 + n for signal n
};

using Environment = std::vector<std::pair<std::string, std::string>>;  // set over our own; an empty value unsets

// Our own environment with changes, as a program is given it: "NAME=value".
std::vector<std::string> environment_with(const Environment& changes);

// `command` has at least one word, and is looked for on PATH. Signals that another process sends to us are passed on.
// Those of the terminal reach the child anyway, for it is in our process group; they do not end us while it lives.
ChildEnd run_child(const std::vector<std::string>& command, const Environment& environment);

}  // namespace nanhunt::cli
