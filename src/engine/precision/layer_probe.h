// SPDX-License-Identifier: Apache-2.0
// One step of a recipe from given weights: what each layer made and the gradients that came of it, and how far that is
// from fp32's.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "nanhunt/precision.h"
#include "src/engine/precision/recipe_run.h"

namespace nanhunt::engine {

// What the operations of one step made: by module, phase, name and how often it came before.
struct MadeBy {
  std::string module, op;
  bool backward = false;
  std::uint32_t number = 0;
  auto operator<=>(const MadeBy&) const = default;
};
struct Made {
  Tensor value;              // a copy
  bool clean_inputs = true;  // none of them held NaN or infinity
  Tensor cast_from = {};     // of a cast: what it was given. It has no counterpart in fp32
};

struct Probe {
  double loss = 0, scale = 1;
  std::map<std::string, Tensor> gradients;  // by parameter: copies, as the optimizer would use them
  std::map<MadeBy, Made> made;              // floating ones; empty unless asked for
  std::vector<std::string> layers;          // modules that computed in forward, in the order of their first operation
  std::map<std::string, MadeBy> results;    // by layer: the last that it made in forward
  std::map<std::string, DType> input_formats;  // by layer: of the first that it read in forward and others made
};

// Whether `path` is the module or below it.
bool is_within(const std::string& path, const std::string& module);

// A scaler that finds its scale gets as many tries as it needs: the gradients are those of a scale that fits.
// Throws std::invalid_argument where the recipe does not take the workload.
Probe probe_step(const RecipePlan& plan, const StartingPoint& from, bool with_ops);

// What the operations of a validation make with these weights, in the recipe's own format. No gradients.
Probe probe_validation(const RecipePlan& plan, const StartingPoint& weights);

// 2-norm of all differences over that of fp32's gradients. Infinite where one is not finite and fp32's are.
double gradient_error(const Probe& fp32, const Probe& other);

// Adds to `layers`, in the order of the probe of fp32, what this probe shows.
void add_errors(const Probe& fp32, const Probe& other, std::uint32_t step, std::vector<LayerPrecision>& layers);

}  // namespace nanhunt::engine
