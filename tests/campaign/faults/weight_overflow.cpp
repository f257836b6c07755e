// SPDX-License-Identifier: Apache-2.0
// The weights of one layer are grown after each update, as by a weight decay of the wrong sign, until the layer's own
// product (or the cast of the weights) overflows.
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

void grow(Rig& rig, std::size_t layer, double factor, double target_amax) {
  const auto& layers = rig.network().layers;
  const std::vector<engine::NamedTensor> own = layers[layer % layers.size()]->named_parameters();
  const std::string& path = own.front().path;  // the weight
  const engine::NoGradGuard no_grad;
  const engine::ScopedModule module(path);
  const engine::ScopedPhase phase(Phase::kOptimizer);
  std::vector<Tensor> copies = copies_of_parameter(rig, path);
  if (target_amax > 0) factor = target_amax / amax_of(copies.front());
  for (Tensor& copy : copies) engine::mul_(copy, factor);
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  const std::uint32_t step = draw.between(3, settings.steps - 6);
  const std::size_t layer = draw.below(8);
  // Some casts overflow before the product can: autocast stores a weight of 3e5 as Inf.
  const bool beyond_cast = settings.autocast() && draw.chance(0.4);
  const double end = beyond_cast ? 3e5 : 0.4 * format_limits(settings.compute_dtype()).max_finite;
  out.plan.first_step = step - 2;
  out.plan.after_update = [step, layer, end](Rig& rig, std::uint32_t now) {
    if (now + 3 == step || now + 2 == step) grow(rig, layer, 1.5, 0);
    if (now + 1 == step) grow(rig, layer, 1, end);
  };
  out.variant = beyond_cast ? "cast" : "product";
  out.target.cls = FindingClass::kOverflow;
  out.target.phase = Phase::kForward;
  out.target.module = [layer](const Rig& rig) -> std::optional<std::string> {
    const auto& layers = rig.network().layers;
    return layers[layer % layers.size()]->path();
  };
  out.target.ops = {"addmm", "mm", "convolution", "_to_copy"};
  return out;
}

}  // namespace

extern const Family kWeightOverflow{
    "weight-overflow",
    "the weights of one layer are multiplied after each update until its product, or the cast of the weights, "
    "passes the format",
    "`overflow`, forward, that layer, its product or `_to_copy`",
    plant};

}  // namespace nanhunt::campaign
