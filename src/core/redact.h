// SPDX-License-Identifier: Apache-2.0
// Secrets out of what is written down of a run: traces and reports are passed on.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanhunt {

inline constexpr std::string_view kRedacted = "<redacted>";

// Whether a thing of this name (an option, a variable, a setting) holds a secret: "--api-key", "WANDB_API_KEY",
// "hfToken"; not "tokenizer" or "max_tokens".
bool names_secret(std::string_view name);

// A value without what looks like a secret whatever it is called: passwords in URLs, tokens with a known beginning.
std::string redact_value(std::string_view value);

// In place. --name=value, NAME=value and "--name value" with such a name, and redact_value() of the rest.
void redact_command(std::vector<std::string>& command);
void redact_options(std::vector<std::pair<std::string, std::string>>& options);

}  // namespace nanhunt
