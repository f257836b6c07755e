// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/recipe.h"

#include <fstream>
#include <iostream>
#include <istream>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "src/core/text.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "nanhunt.recipe";
constexpr int kSchemaVersion = 1;
constexpr std::size_t kMaxRecipeBytes = 1u << 20;
constexpr std::size_t kMaxChanges = 64;

std::string read_at_most(std::istream& in, std::size_t limit) {
  std::string text(limit + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

Status no_recipe(const std::string& path, const std::string& why) {
  return {StatusCode::kUsage,
          "'" + path + "' is no recipe that can be used: " + why + ". `nanhunt advise RUN --recipe FILE` writes one."};
}

}  // namespace

std::string recipe_text(const analyze::Recommendations& recommended, const std::string& scenario) {
  json changes = json::array();
  for (const analyze::Recommendation& change : recommended.changes) {
    changes.push_back({{"id", reports::json_text(change.advice.id)},
                       {"text", reports::json_text(change.advice.text)},
                       {"why", reports::json_text_or_null(change.advice.why)},
                       {"verified", change.advice.verified ? json(*change.advice.verified) : json()},
                       {"evidence", reports::json_text_or_null(change.advice.evidence)},
                       {"answers", reports::json_texts(change.findings)}});
  }
  return reports::dump_json({{"schema", kSchema},
                             {"schema_version", kSchemaVersion},
                             {"scenario", reports::json_text_or_null(scenario)},
                             {"changes", std::move(changes)}}) +
         "\n";
}

Result<Recipe> read_recipe(const std::string& path) {
  std::string text;
  if (path == "-") {
    text = read_at_most(std::cin, kMaxRecipeBytes);
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file)
      return Status(StatusCode::kUsage,
                    "there is no readable recipe '" + path + "'. `nanhunt advise RUN --recipe FILE` writes one.");
    text = read_at_most(file, kMaxRecipeBytes);
  }
  if (text.size() > kMaxRecipeBytes) return no_recipe(path, "it is larger than 1 MiB");
  bool too_deep = false;
  const auto limit = [&too_deep](int depth, json::parse_event_t, json&) {
    if (depth > 8) too_deep = true;
    return depth <= 8;
  };
  const json recipe = json::parse(text, limit, /*allow_exceptions=*/false);
  if (too_deep || !recipe.is_object()) return no_recipe(path, "it is no JSON object");
  if (recipe.value("schema", json()) != kSchema) return no_recipe(path, "its schema is not nanhunt.recipe");
  if (recipe.value("schema_version", json()) != kSchemaVersion) return no_recipe(path, "this build reads version 1");
  const json changes = recipe.value("changes", json());
  if (!changes.is_array() || changes.size() > kMaxChanges) return no_recipe(path, "it lists no changes");
  Recipe out;
  if (const json scenario = recipe.value("scenario", json()); scenario.is_string())
    out.scenario = scenario.get<std::string>();
  for (const json& change : changes) {
    const json id = change.is_object() ? change.value("id", json()) : change;
    if (!id.is_string()) return no_recipe(path, "a change has no id");
    out.changes.push_back(id.get<std::string>());
  }
  return out;
}

}  // namespace nanhunt::cli
