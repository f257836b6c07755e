// SPDX-License-Identifier: Apache-2.0
// What comes from outside is bad (a sample, a label, a checkpoint), or one bit of memory flips between two ops.
#include <cmath>

#include "tests/campaign/faults/faults.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

Fault bad_data(bool label) {
  Fault out{.kind = "bad-data", .form = label ? "label" : "sample", .settings = make_settings(Regime::kF16Masters),
            .plan = {}, .expected = {}};
  out.settings.regression = label;
  out.plan.first_step = out.plan.last_step = kFaultStep;
  out.plan.spoil_batch = [label](engine::Batch& batch) {
    set_element(label ? batch.targets : batch.inputs, 100, label ? HUGE_VAL : NAN);
  };
  out.expected = {FindingClass::kBadInput, kFaultStep, Phase::kData, "", "<batch>"};
  return out;
}

// Not finite from step 0 on, or written by the program later, as a checkpoint that is loaded again.
Fault bad_state(const char* path, Regime regime, bool later) {
  Fault out{.kind = later ? "bad-later" : "bad-start", .form = path, .settings = make_settings(regime), .plan = {},
            .expected = {}};
  out.plan.first_step = later ? kFaultStep : 0;
  out.plan.before_step = [path, later](Rig& rig) {
    Tensor tensor = rig.tensor(path);
    if (!later) return set_element(tensor, 7, -HUGE_VAL);
    Tensor contents = tensor.clone();
    set_element(contents, 7, NAN);
    tensor.copy_from(contents);
  };
  out.expected = {FindingClass::kBadState, out.plan.first_step, Phase::kData, path, "<state>"};
  return out;
}

// The highest bit of the exponent of the largest number below 2, which makes it huge or not finite. It goes behind the
// engine's back: no version moves, nobody is told.
void flip(Tensor tensor) {
  const std::vector<double> values = tensor.to_vector();
  std::size_t at = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 2 && (values[i] > values[at] || values[at] >= 2)) at = i;
  }
  const std::size_t size = dtype_size(tensor.dtype());
  static_cast<unsigned char*>(tensor.raw())[(at + 1) * size - 1] ^= 0x40;
}

class Saboteur : public engine::Observer {
 public:
  Saboteur(Rig& rig, Expected place) : rig_(rig), place_(std::move(place)) {}

  void on_step_begin(std::uint32_t step) noexcept override {
    now_ = step;
    if (step == place_.step && place_.op == "<state>") flip(rig_.tensor(*place_.module));
  }
  void on_op(const engine::OpCall& call) noexcept override {
    const bool here = now_ == place_.step && call.phase == place_.phase;
    if (here && call.module == *place_.module && call.op == *place_.op) flip(*call.outputs.front().tensor);
  }

 private:
  Rig& rig_;
  Expected place_;
  std::uint32_t now_ = 0;
};

Fault bit_flip(const char* form, Regime regime, Phase phase, const char* module, const char* op) {
  Fault out{.kind = "bit-flip", .form = form, .settings = make_settings(regime), .plan = {}, .expected = {}};
  out.settings.regression = phase == Phase::kForward;  // squares what flipped: not finite
  out.plan.first_step = kFaultStep;
  out.expected = {FindingClass::kCorruption, kFaultStep, phase, module, op};
  out.plan.make_saboteur = [place = out.expected](Rig& rig) { return std::make_unique<Saboteur>(rig, place); };
  return out;
}

}  // namespace

std::vector<Fault> memory_faults() {
  return {
      bad_data(/*label=*/false),
      bad_data(/*label=*/true),
      bad_state("fc2.weight", Regime::kF32, /*later=*/false),
      bad_state("fc1.weight.momentum_buffer", Regime::kF16, /*later=*/false),
      bad_state("fc1.bias", Regime::kAutocast, /*later=*/true),
      bad_state("fc2.weight.exp_avg", Regime::kF16Masters, /*later=*/true),
      bit_flip("weight", Regime::kF32, Phase::kData, "fc2.weight", "<state>"),
      bit_flip("state", Regime::kF16, Phase::kData, "fc2.weight.momentum_buffer", "<state>"),
      bit_flip("activation", Regime::kF32, Phase::kForward, "fc3", "addmm"),
      bit_flip("gradient", Regime::kF16, Phase::kBackward, "fc3", "addmm_backward"),
  };
}

}  // namespace nanhunt::campaign
