// SPDX-License-Identifier: Apache-2.0
// A recipe: changes to a run, as `advise` writes them and `train` takes them. JSON, schema "nanhunt.recipe", version 1.
#pragma once

#include <string>
#include <vector>

#include "nanhunt/status.h"
#include "src/analyze/findings/recommend.h"

namespace nanhunt::cli {

// `scenario` is the bundled scenario that the run trained, "" for any other run.
std::string recipe_text(const analyze::Recommendations& recommended, const std::string& scenario);

struct Recipe {
  std::string scenario;
  std::vector<std::string> changes;  // ids
};
// `path` may be "-" for standard input. At most 1 MiB.
Result<Recipe> read_recipe(const std::string& path);

}  // namespace nanhunt::cli
