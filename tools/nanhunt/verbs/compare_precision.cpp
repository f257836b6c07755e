// SPDX-License-Identifier: Apache-2.0
// nanhunt compare-precision: the same training in fp32 and in recipes of mixed precision, and which layers must stay in
// fp32.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/engine/precision.h"
#include "reports/json/json_precision.h"
#include "reports/json/json_values.h"
#include "reports/page/html_precision.h"
#include "reports/text/precision_text.h"
#include "src/core/text.h"
#include "tools/nanhunt/progress.h"
#include "tools/nanhunt/scenarios/scenario.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using engine::NamedRecipe;
using engine::Workload;
using nlohmann::json;

constexpr std::string_view kListHint = "`nanhunt compare-precision --list` names models and recipes.";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

std::string list_text() {
  std::string text = "Models:\n";
  for (const Workload& workload : engine::named_workloads()) {
    text += fmt::format("  {:<12} {}\n", workload.name, workload.summary);
  }
  text += "\nScenarios: those of `nanhunt train --list`, their own recipe left out, but for\n";
  for (const scenarios::Scenario& scenario : scenarios::all_scenarios()) {
    const std::string why = scenarios::why_in_its_own_recipe(scenario);
    if (!why.empty()) text += fmt::format("  {:<28} {}\n", scenario.name, why);
  }
  text += "\nRecipes:\n";
  for (const NamedRecipe& recipe : engine::named_recipes()) {
    text += fmt::format("  {:<22} {}\n", recipe.name, recipe.summary);
  }
  return text + "fp16, bf16, O0 to O3, 16-mixed and the like are short for them.\n";
}

std::string list_json() {
  json models = json::array(), scenario_names = json::array(), recipes = json::array();
  for (const Workload& workload : engine::named_workloads()) {
    models.push_back({{"name", workload.name},
                      {"summary", workload.summary},
                      {"steps", workload.steps},
                      {"batch_size", workload.batch_size}});
  }
  for (const scenarios::Scenario& scenario : scenarios::all_scenarios()) {
    if (scenarios::why_in_its_own_recipe(scenario).empty()) scenario_names.push_back(scenario.name);
  }
  for (const NamedRecipe& recipe : engine::named_recipes()) {
    recipes.push_back({{"name", recipe.name}, {"summary", recipe.summary}, {"dtype", dtype_name(recipe.dtype)}});
  }
  const json list = {
      {"models", std::move(models)}, {"scenarios", std::move(scenario_names)}, {"recipes", std::move(recipes)}};
  return reports::dump_json(list) + "\n";
}

class ComparePrecisionVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("WORKLOAD", workload_,
                "A model (mlp, cnn, se-resnext, unet, gpt), or a scenario of `nanhunt train --list`");
    options.add("--recipes", recipes_, "What to compare with fp32, by commas, or all; --list names them")
        .value_name("NAMES")
        .show_default();
    options.add("--steps", steps_, "Steps to train in each (default: the workload's own)").in_range(2u, 100000u);
    options.add("--seed", seed_, "Seed of weights and batches, the same in all").show_default();
    options.add("--batch-size", batch_size_, "Samples of a step (default: the workload's own)").in_range(1u, 100000u);
    options.add("--batches", batches_, "Measure time and memory with these batch sizes too, by commas: 8,16,32")
        .value_name("SIZES");
    options
        .add("--tolerance", tolerance_,
             "How much higher than fp32's a final loss may be, as a share of what fp32 learnt")
        .in_range(0.0, 1.0)
        .show_default();
    options.add("--probes", probes_, "Steps at which layers are compared; 0: none are, and none is tried in fp32")
        .in_range(0u, 1000u)
        .show_default();
    options
        .add("--html", html_,
             "Write the page with curves and tables to FILE as well; '-' is stdout, and then alone there")
        .value_name("FILE");
    const Option list = options.add_flag("--list", list_, "List the models, scenarios and recipes");
    options.add_flag("--json", json_, "Print nanhunt.precision as JSON");
    options.after_parsing([options, list] {
      for (const Option& option : options.given()) {
        if (list.given() && option.name() != list.name() && option.name() != "--json") {
          Options::refuse_together(option, list);
        }
      }
    });
  }

  int run() override {
    if (list_) return print_and_return(json_ ? list_json() : list_text());
    if (json_ && html_ == "-") {
      return fail(usage("--json and --html - both go to stdout. Name a file for the page."));
    }
    Workload workload;
    if (Status found = choose_workload(workload); !found) return fail(found);
    engine::PrecisionOptions options;
    options.seed = seed_;
    options.steps = steps_;
    options.probes = probes_;
    options.tolerance = tolerance_;
    if (Status chosen = choose_recipes(options); !chosen) return fail(chosen);
    if (Status chosen = choose_batch_sizes(workload, options); !chosen) return fail(chosen);
    PrecisionComparison comparison;
    try {
      comparison = compare(workload, options);
    } catch (const std::exception& error) {
      return fail(usage(workload.name + " cannot be trained in fp32: " + printable(error.what()) +
                        ". Choose another workload or batch size."));
    }
    return tell(comparison);
  }

 private:
  static Status usage(const std::string& message) { return {StatusCode::kUsage, "compare-precision: " + message}; }

  Status choose_workload(Workload& workload) const {
    if (workload_.empty()) return usage("say which model or scenario. " + std::string(kListHint));
    if (const Workload* model = engine::find_workload(workload_); model != nullptr) {
      workload = *model;
      return {};
    }
    const scenarios::Scenario* scenario = scenarios::find_scenario(workload_);
    if (scenario == nullptr) {
      return usage("there is no model or scenario '" + printable(workload_) + "'. " + std::string(kListHint));
    }
    if (const std::string why = scenarios::why_in_its_own_recipe(*scenario); !why.empty()) {
      return usage(workload_ + " trains in its own recipe alone: " + why + ". Choose another. " +
                   std::string(kListHint));
    }
    workload = scenarios::workload_of(*scenario);
    return {};
  }

  Status choose_recipes(engine::PrecisionOptions& options) const {
    const auto add = [&](const NamedRecipe* recipe) {
      if (std::ranges::find(options.recipes, recipe) == options.recipes.end()) options.recipes.push_back(recipe);
    };
    for (const std::string& name : split(recipes_)) {
      if (name == "all") {
        for (const NamedRecipe& recipe : engine::named_recipes()) add(&recipe);
        continue;
      }
      const NamedRecipe* recipe = engine::find_recipe(name);
      if (recipe == nullptr) return usage("there is no recipe '" + printable(name) + "'. " + std::string(kListHint));
      add(recipe);
    }
    if (options.recipes.empty()) return usage("--recipes names none. " + std::string(kListHint));
    return {};
  }

  Status choose_batch_sizes(const Workload& workload, engine::PrecisionOptions& options) const {
    options.batch_size = batch_size_;
    if (batch_size_ != 0) {
      if (const std::string why = workload.refuses(batch_size_); !why.empty())
        return usage("--batch-size: " + why + ".");
    }
    for (const std::string& text : split(batches_)) {
      std::int64_t size = 0;
      const auto read = std::from_chars(text.data(), text.data() + text.size(), size);
      if (read.ec != std::errc() || read.ptr != text.data() + text.size() || size < 1) {
        return usage("--batches: '" + printable(text) + "' is no batch size. Say whole numbers by commas: 8,16,32.");
      }
      if (const std::string why = workload.refuses(size); !why.empty()) return usage("--batches: " + why + ".");
      options.batch_sizes.push_back(size);
    }
    return {};
  }

  static PrecisionComparison compare(const Workload& workload, engine::PrecisionOptions& options) {
    std::optional<Progress> progress;
    std::string doing;
    options.progress = [&](std::string_view what, std::uint32_t done, std::uint32_t of) {
      if (doing != what) {
        doing = what;
        progress.reset();
        progress.emplace(doing, of);
      }
      progress->update(done, "");
    };
    return engine::compare_precision(workload, options);
  }

  int tell(const PrecisionComparison& comparison) const {
    if (html_ == "-") return print_and_return(reports::render_precision_html(comparison));
    if (!html_.empty()) {
      if (Status written = write_output(html_, reports::render_precision_html(comparison)); !written)
        return fail(written);
      say("wrote " + html_);
    }
    if (json_) return print_and_return(reports::render_precision_json(comparison));
    TextOptions options;
    options.colour = stdout_has_colour();
    options.width = stdout_width();
    return print_and_return(reports::render_precision_text(comparison, options));
  }

  std::string workload_, recipes_ = "fp16,bf16", batches_, html_;
  std::uint32_t steps_ = 0, batch_size_ = 0, probes_ = engine::PrecisionOptions{}.probes;
  std::uint64_t seed_ = 1;
  double tolerance_ = engine::PrecisionOptions{}.tolerance;
  bool list_ = false, json_ = false;
};

const RegisterVerb<ComparePrecisionVerb> kComparePrecision{
    {.order = 15,
     .name = "compare-precision",
     .summary =
         "A bundled model in fp32 and in mixed precision: loss, time, memory, and the layers that must stay in fp32",
     .exit_statuses = "  0  compared, whatever came of it\n"
                      "  2  wrong usage\n"
                      "  6  the answer or the page could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
