// SPDX-License-Identifier: Apache-2.0
// The tools that `nanhunt mcp` offers: each is one verb of this program and the words that it is given.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/status.h"
#include "tools/nanhunt/mcp/roots.h"

namespace nanhunt::cli::mcp {

enum class Writes { kNothing, kNewFolder };

enum class Argument { kPath, kNewFolder, kText, kWhole };

struct ToolArgument {
  std::string_view name;
  Argument kind = Argument::kText;
  bool required = false;
  std::string_view option;  // "--step"; empty: given by its place
  std::string_view description;
  std::uint32_t most = 0;   // of kWhole; 0: 2^32 - 1
  std::string_view unasked = {};  // what the option is given where nobody asked
};

struct Tool {
  std::string_view name, title, description;
  Writes writes = Writes::kNothing;
  std::vector<std::string_view> words;  // the verb and the options that are always given
  std::vector<ToolArgument> arguments;
  bool gives_lines = false;  // its output is one JSON object a line
};

const std::vector<Tool>& tools();
const Tool* find_tool(std::string_view name);

// As `tools/list` has it.
nlohmann::json describe(const Tool& tool);

// The words of the command line that does it, without the program's name. What was given is checked first: names, kinds,
// and that each path lies below a root.
Result<std::vector<std::string>> words_of(const Tool& tool, const nlohmann::json& given, const Roots& roots);

}  // namespace nanhunt::cli::mcp
