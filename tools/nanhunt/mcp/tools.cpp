// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/mcp/tools.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace nanhunt::cli::mcp {
namespace {

using nlohmann::json;

// What a tool reads is called `path` in each of them, and in what list_runs gives.
constexpr ToolArgument kRun{"path", Argument::kPath, true, "", "A run folder, as list_runs names it"};

std::string_view json_type(Argument kind) { return kind == Argument::kWhole ? "integer" : "string"; }

// "Its arguments are path (required), step."
std::string names_of(const Tool& tool) {
  std::string names;
  for (const ToolArgument& one : tool.arguments)
    names += (names.empty() ? "" : ", ") + std::string(one.name) + (one.required ? " (required)" : "");
  return "Its arguments are " + names + ".";
}

Status wrong(const Tool& tool, std::string_view name, const std::string& why) {
  return {StatusCode::kUsage, std::string(tool.name) + ": '" + std::string(name) + "' " + why};
}

}  // namespace

const std::vector<Tool>& tools() {
  static const std::vector<Tool> all = {
      {"list_runs",
       "Runs that were recorded",
       "Lists the run folders below the roots of this server, the one that changed last first. Begin here when you do "
       "not know where the run is.",
       Writes::kNothing,
       {},
       {{"path", Argument::kPath, false, "", "Only those below this folder"}}},
      {"report",
       "The verdict of a run",
       "Which operation made the first number that did harm, in which layer, phase, step and rank, why, whether it "
       "matters, the line of code, and what to change. "
       "One object of at most 16 KiB (schema nanhunt.brief).",
       Writes::kNothing,
       {"report", "--json", "--brief"},
       {kRun}},
      {"check",
       "Whether a run or a checkpoint is sound",
       "The verdict of a run in one object, or of a checkpoint (safetensors, .pt, sharded and distributed folders, "
       "series): NaN and Inf by tensor, optimizer state that will divide by 0, "
       "and the newest good one of a series. Nothing of a checkpoint is run.",
       Writes::kNothing,
       {"check", "--json"},
       {{"path", Argument::kPath, true, "", "A run folder, a checkpoint file, or a folder of checkpoints"}}},
      {"info",
       "What was recorded",
       "What ran (command, versions, device, level), how many steps and operations were recorded, and whether the "
       "trace is whole.",
       Writes::kNothing,
       {"info", "--json"},
       {kRun}},
      {"live",
       "A run while it goes on",
       "One look at a run that may still go on: steps, loss, scale, skipped steps, faults so far, per group of ranks.",
       Writes::kNothing,
       {"watch", "--once", "--json"},
       {kRun}},
      {"autopsy",
       "What the logs of an unwatched run say",
       "For a run that nanhunt did not watch: reads the logs in a folder (trainer_state.json, TensorBoard, W&B, CSV, "
       "JSON lines, text) and says when the first bad number was logged, what the curves "
       "suggest and how surely, and the exact command that will prove it.",
       Writes::kNothing,
       {"autopsy", "--json"},
       {{"path", Argument::kPath, true, "", "A folder of logs, or one log"}}},
      {"advise",
       "What to change",
       "The smallest set of changes that the evidence of a run supports.",
       Writes::kNothing,
       {"advise", "--json"},
       {kRun}},
      {"dump",
       "Rows of the trace",
       "Records of one kind, one object each: ops, values, steps, scaler, health, evidence, frames, notes and others. "
       "Use it to follow what `report` says.",
       Writes::kNothing,
       {"dump", "--json"},
       {kRun,
        {"kind", Argument::kText, false, "--kind", "Kind of record, such as ops, steps, values, evidence"},
        {"step", Argument::kWhole, false, "--step", "Only rows of this step"},
        {"module", Argument::kText, false, "--module", "Only rows of this module and of what is below it"},
        {"rank", Argument::kWhole, false, "--rank", "Only this rank"},
        {"limit", Argument::kWhole, false, "--limit", "At most so many rows, 50 unasked", 500, "50"}},
       true},
      {"diff",
       "Where two runs part, or what changed between two checkpoints",
       "Of two runs the first place where their health parts: another seed, another version, before and after a "
       "change. Of two checkpoints what changed, tensor by tensor.",
       Writes::kNothing,
       {"diff", "--json"},
       {{"path", Argument::kPath, true, "", "A run folder or a checkpoint"},
        {"other", Argument::kPath, true, "", "The one to compare it with"}}},
      {"repro",
       "A program that shows one bad result",
       "Writes repro.py and the numbers that the operation read into a new folder. Needs a server that was started "
       "with --write.",
       Writes::kNewFolder,
       {"repro", "--json"},
       {kRun,
        {"finding", Argument::kText, false, "--finding", "Id of the finding, such as F1"},
        {"out", Argument::kNewFolder, true, "--out", "A new folder"}}},
  };
  return all;
}

const Tool* find_tool(std::string_view name) {
  const auto found = std::find_if(tools().begin(), tools().end(), [&](const Tool& tool) { return tool.name == name; });
  return found == tools().end() ? nullptr : &*found;
}

json describe(const Tool& tool) {
  json properties = json::object(), required = json::array();
  for (const ToolArgument& argument : tool.arguments) {
    json one = {{"type", json_type(argument.kind)}, {"description", argument.description}};
    if (argument.kind == Argument::kWhole) {
      one["minimum"] = 0;
      one["maximum"] = argument.most != 0 ? argument.most : std::numeric_limits<std::uint32_t>::max();
    }
    properties[std::string(argument.name)] = std::move(one);
    if (argument.required) required.push_back(argument.name);
  }
  const bool reads = tool.writes == Writes::kNothing;
  return {{"name", tool.name},
          {"title", tool.title},
          {"description", tool.description},
          {"inputSchema", {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}, {"additionalProperties", false}}},
          {"annotations", {{"title", tool.title}, {"readOnlyHint", reads}, {"destructiveHint", false}, {"idempotentHint", reads}, {"openWorldHint", false}}}};
}

Result<std::vector<std::string>> words_of(const Tool& tool, const json& given, const Roots& roots) {
  if (!given.is_object()) return wrong(tool, "arguments", "must be an object");
  for (const auto& [name, value] : given.items()) {
    const bool known = std::any_of(tool.arguments.begin(), tool.arguments.end(), [&](const ToolArgument& one) { return one.name == name; });
    if (!known) return wrong(tool, name.substr(0, 60), "is no argument of it. " + names_of(tool));
  }
  std::vector<std::string> words(tool.words.begin(), tool.words.end()), places;
  for (const ToolArgument& argument : tool.arguments) {
    const auto at = given.find(argument.name);
    std::string text(argument.unasked);
    if (at == given.end() || at->is_null()) {
      if (argument.required) return wrong(tool, argument.name, "is missing. " + names_of(tool));
      if (text.empty()) continue;
    } else if (argument.kind == Argument::kWhole) {
      const std::uint64_t most = argument.most != 0 ? argument.most : std::numeric_limits<std::uint32_t>::max();
      if (!at->is_number_unsigned() || at->get<std::uint64_t>() > most)
        return wrong(tool, argument.name, "must be a whole number from 0 to " + std::to_string(most));
      text = std::to_string(at->get<std::uint64_t>());
    } else {
      if (!at->is_string() || at->get_ref<const std::string&>().size() > 4096) return wrong(tool, argument.name, "must be a text of at most 4096 bytes");
      text = at->get<std::string>();
      if (argument.kind != Argument::kText) {
        auto path = argument.kind == Argument::kNewFolder ? roots.fresh(text) : roots.existing(text);
        if (!path) return path.status();
        text = std::move(*path);
      } else if (text.find('\0') != std::string::npos) {
        return wrong(tool, argument.name, "holds a NUL");
      }
    }
    if (argument.option.empty()) {
      places.push_back(std::move(text));
    } else {
      words.push_back(std::string(argument.option) + "=" + text);  // one word: what begins with '-' stays a value
    }
  }
  if (!places.empty()) words.push_back("--");
  words.insert(words.end(), places.begin(), places.end());
  return words;
}

}  // namespace nanhunt::cli::mcp
