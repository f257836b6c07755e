// SPDX-License-Identifier: Apache-2.0
// Which layers a recipe harms, by experiment: one step with a layer alone in the recipe's format or alone in fp32, and
// whole trainings with layers kept in fp32.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/precision/layer_probe.h"

namespace nanhunt::engine {

// What a training came to beside fp32's.
struct Judged {
  PrecisionOutcome outcome = PrecisionOutcome::kSame;
  double final_loss = 0;
  std::uint32_t nonfinite = 0, skipped = 0;
};
// Mean loss of the last fifth of the steps, one at least; NaN without steps.
double final_loss_of(const std::vector<PrecisionStep>& steps);
// fp32's course, and losses up to which a run is as good: those of fp32 and `tolerance` of what it learnt from its
// first loss on, or as much as another seed makes of it, whichever is more.
struct Reference {
  std::vector<PrecisionStep> steps;
  double allowed_loss = 0;
  bool has_learnt = false;  // more than a hundredth of its first loss: else nothing can be said of others
  std::optional<double> allowed_validation_loss;
};
// `other_seed`: fp32's course from another seed; without steps: none.
Reference make_reference(const Course& fp32, double tolerance, const Course& other_seed);
Judged judge(const Course& course, const Reference& reference);

// At most so many layers are measured one by one; no set of more than so many is tried.
inline constexpr std::size_t kMeasuredLayers = 64, kKeptLayers = 4;

// Fills in alone_error and kept_error at one point, of the first kMeasuredLayers, and puts the worst first.
// `formats`: in which each layer's input comes in the recipe. Returns how many were left out. `tell(done, of)` is
// called after each.
std::uint32_t measure_layers(const RecipePlan& plan, const StartingPoint& from, const Probe& fp32,
                             const std::map<std::string, DType>& formats, std::vector<LayerPrecision>& layers,
                             const std::function<void(std::uint32_t, std::uint32_t)>& tell);

// Trains with what may help besides layers: fp32 masters where the optimizer steps 16-bit weights, and the scale that
// the scaler had found, `found_scaler`, where it skipped steps to find it. Then with all layers in fp32; if that
// restores the loss, with each of the worst, with the worst 2, 3, ... together, and then without each of these again.
// What `other_seed`, fp32's course from another seed, does not show as well is chance: nothing is searched for where the
// recipe is as good as fp32 from there, and nothing is advised that does not restore the loss there.
// `run.trials` has them all; `run.keep`, `run.keep_masters` and `run.start_scale` the least that was seen to restore
// it.
void search_layers(const RecipePlan& plan, const Reference& reference, const Reference& other_seed,
                   const LossScaler::Saved& found_scaler, PrecisionRun& run,
                   const std::function<void(std::uint32_t, std::uint32_t)>& tell);

}  // namespace nanhunt::engine
