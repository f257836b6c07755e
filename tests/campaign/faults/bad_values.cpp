// SPDX-License-Identifier: Apache-2.0
// What comes from outside is bad: a sample, a label, a checkpoint, or a state written between two steps.
#include <cmath>

#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::NamedTensor;
using engine::Tensor;

double bad_number(Draw& draw) { return draw.one_of<double>({NAN, HUGE_VAL, -HUGE_VAL}); }

Planted plant_data(Draw& draw, Settings& settings) {
  if (settings.model == ModelKind::kGpt) settings.model = draw.one_of({ModelKind::kMlp,
      ModelKind::kUNet});  // ids cannot be NaN
  const bool label = draw.chance(0.4);
  if (label && settings.model == ModelKind::kCnn) settings.model = ModelKind::kMlp;
  settings.regression = settings.model == ModelKind::kUNet || (label && settings.model == ModelKind::kMlp) ||
                        (settings.regression && settings.model == ModelKind::kMlp);
  Planted out;
  out.plan.first_step = draw.between(0, settings.steps - 6);
  out.plan.last_step = out.plan.first_step;
  out.plan.spoil_batch = [label, value = bad_number(draw), at = draw.seed()](engine::Batch& batch) {
    const Tensor& tensor = label ? batch.targets : batch.inputs;
    set_element(tensor, static_cast<std::int64_t>(at % static_cast<std::uint64_t>(tensor.numel())), value);
  };
  out.variant = label ? "label" : "sample";
  out.target = {.cls = FindingClass::kBadInput,
                .witnessing = Witnessing::kPlanned,
                .phase = Phase::kData,
                .module = [](const Rig&) { return std::optional<std::string>(); },
                .ops = {"<batch>"},
                .from_step = out.plan.first_step};
  return out;
}

enum class Part : std::uint8_t { kWeight, kState, kBuffer };

std::vector<NamedTensor> tensors_of(Rig& rig, Part part) {
  if (part == Part::kWeight) return rig.parameters();
  std::vector<NamedTensor> out = part == Part::kState ? rig.trainer().optimizer().named_state()
                                                      : rig.trainer().model().named_buffers();
  std::erase_if(out, [](const NamedTensor& entry) { return !is_floating(entry.tensor.dtype()); });
  return out;
}

NamedTensor pick(Rig& rig, Part part, std::uint64_t at) {
  const std::vector<NamedTensor> all = tensors_of(rig, part);
  return all[at % all.size()];
}

// Which parts a run of these settings has.
Part draw_part(Draw& draw, const Settings& settings) {
  const bool has_buffers = settings.model == ModelKind::kCnn || settings.model == ModelKind::kUNet;
  const bool has_state = settings.optimizer.algorithm != "sgd" || settings.optimizer.momentum != 0;
  const double u = draw.uniform(0, 1);
  if (u < 0.3 && has_buffers) return Part::kBuffer;
  if (u < 0.65 && has_state) return Part::kState;
  return Part::kWeight;
}

Planted plant_state(Draw& draw, Settings& settings, bool later) {
  Planted out;
  const Part part = draw_part(draw, settings);
  const std::uint64_t which = draw.seed(), element = draw.seed();
  // An infinity alone in a buffer is a mask.
  const double value = part == Part::kBuffer ? NAN : bad_number(draw);
  auto spoil = [part, which, element, value, later](Rig& rig) {
    Tensor tensor = pick(rig, part, which).tensor;
    const auto index = static_cast<std::int64_t>(element % static_cast<std::uint64_t>(tensor.numel()));
    if (!later) return set_element(tensor, index, value);
    Tensor contents = tensor.clone();  // written by the program, as a checkpoint that is loaded again
    set_element(contents, index, value);
    tensor.copy_from(contents);
  };
  out.plan.first_step = later ? draw_step(draw, settings) : 0;
  // It stays bad: the run ends before a dynamic scale has come down so far that it cannot recover.
  if (settings.scaler) {
    settings.init_scale = 16384;
    settings.steps = std::min(settings.steps, out.plan.first_step + 12);
  }
  (later ? out.plan.before_step : out.plan.before_training) = spoil;
  out.variant = part == Part::kWeight ? "weight" : part == Part::kState ? "state" : "buffer";
  out.target = {.cls = FindingClass::kBadState,
                .witnessing = Witnessing::kPlanned,
                .phase = Phase::kData,
                .module = [part, which](const Rig& rig) -> std::optional<std::string> {
                  return pick(const_cast<Rig&>(rig), part, which).path;
                },
                .ops = {"<state>"},
                .from_step = out.plan.first_step};
  return out;
}

}  // namespace

extern const Family kBadData{
    "bad-data",
    "one number of a batch, or of its targets, is NaN or infinite in one step",
    "`bad_input`, data, no module, `<batch>`",
    plant_data};
extern const Family kBadStart{
    "bad-start",
    "a weight, optimizer state or running statistic is not finite before step 0",
    "`bad_state`, data, the tensor's path, `<state>`, step 0",
    [](Draw& draw, Settings& s) { return plant_state(draw, s, /*later=*/false); }};
extern const Family kBadLater{
    "bad-later",
    "the same, written by the program between two steps (a checkpoint loaded again)",
    "`bad_state`, data, the tensor's path, `<state>`, that step",
    [](Draw& draw, Settings& s) { return plant_state(draw, s, /*later=*/true); }};

}  // namespace nanhunt::campaign
