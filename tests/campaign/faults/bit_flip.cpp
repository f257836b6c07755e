// SPDX-License-Identifier: Apache-2.0
// One bit of a number flips between two ops: of an activation, a gradient, a weight or optimizer state. The pointer
// goes
// behind the engine's back: no version moves, nobody is told.
#include <algorithm>
#include <cstring>

#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

enum class Home : std::uint8_t { kWeight, kState, kActivation, kGradient };

struct Flip {
  Home home = Home::kWeight;
  std::uint32_t step = 0;
  std::uint64_t which = 0, element = 0;
  unsigned bit = 0;       // from the top of the exponent
  double share = 0;       // activations and gradients: how far through the ops of the phase
};

// The `bit`-th bit of the exponent, from its top: 0 makes small numbers huge and large ones small.
void flip(const Tensor& tensor, std::uint64_t element, unsigned bit) {
  const std::size_t size = dtype_size(tensor.dtype());
  const auto at = element % static_cast<std::uint64_t>(tensor.numel());
  auto* place = static_cast<std::byte*>(const_cast<Tensor&>(tensor).raw()) + at * size;
  std::uint64_t bits = 0;
  std::memcpy(&bits, place, size);
  bits ^= std::uint64_t{1} << (8 * size - 2 - bit);
  std::memcpy(place, &bits, size);
}

// A view's results are the contents of the op before it, and so are those of the backward of the first four.
bool makes_contents(const engine::OpCall& call) {
  constexpr std::string_view kViews[] = {"t",          "view",          "transpose",          "permute",
                                         "t_backward", "view_backward", "transpose_backward", "permute_backward",
                                         "expand",     "narrow",        "select"};
  if (std::find(std::begin(kViews), std::end(kViews), call.op) != std::end(kViews)) return false;
  const Tensor& out = *call.outputs.front().tensor;
  return is_floating(out.dtype()) && out.numel() > 1 && out.is_contiguous();
}

class Saboteur : public engine::Observer {
 public:
  Saboteur(Rig& rig, const Flip& flip, std::shared_ptr<Place> place) : rig_(rig), flip_(flip),
      place_(std::move(place)) {}

  void on_step_begin(std::uint32_t step) noexcept override {
    now_ = step;
    if (step != flip_.step || done_ || (flip_.home != Home::kWeight && flip_.home != Home::kState)) return;
    done_ = true;
    const std::vector<engine::NamedTensor> all =
        flip_.home == Home::kWeight ? rig_.parameters() : rig_.trainer().optimizer().named_state();
    const engine::NamedTensor& target = all[flip_.which % all.size()];
    flip(target.tensor, flip_.element, flip_.bit);
    *place_ = {step, Phase::kData, target.path, "<state>"};
  }

  void on_op(const engine::OpCall& call) noexcept override {
    const Phase phase = flip_.home == Home::kActivation ? Phase::kForward : Phase::kBackward;
    if (done_ || call.phase != phase || flip_.home == Home::kWeight || flip_.home == Home::kState) return;
    if (call.outputs.empty() || !makes_contents(call)) return;
    // Ops are counted in the step before, so that the place is drawn evenly from those there are.
    if (now_ + 1 == flip_.step) ++seen_before_;
    if (now_ != flip_.step) return;
    if (seen_++ < static_cast<std::uint64_t>(flip_.share * static_cast<double>(seen_before_))) return;
    done_ = true;
    flip(*call.outputs.front().tensor, flip_.element, flip_.bit);
    *place_ = {now_, phase, std::string(call.module), std::string(call.op)};
  }

 private:
  Rig& rig_;
  Flip flip_;
  std::shared_ptr<Place> place_;
  std::uint32_t now_ = 0;
  std::uint64_t seen_ = 0, seen_before_ = 0;
  bool done_ = false;
};

Planted plant(Draw& draw, Settings& settings) {
  const bool has_state = settings.optimizer.algorithm != "sgd" || settings.optimizer.momentum != 0;
  Flip flip;
  flip.home = static_cast<Home>(draw.below(4));
  if (flip.home == Home::kState && !has_state) flip.home = Home::kWeight;
  flip.step = draw_step(draw, settings);
  flip.which = draw.seed();
  flip.element = draw.seed();
  flip.bit = draw.chance(0.7) ? 0 : 1;
  flip.share = draw.uniform(0, 0.95);
  // A weight that stays bad under a dynamic scale would end in its collapse.
  if (settings.scaler) {
    settings.init_scale = 16384;
    settings.steps = std::min(settings.steps, flip.step + 12);
  }
  Planted out;
  constexpr std::string_view kHomes[] = {"weight", "state", "activation", "gradient"};
  out.variant = kHomes[static_cast<std::size_t>(flip.home)];
  out.plan.first_step = flip.step;
  const auto place = std::make_shared<Place>();
  out.plan.make_saboteur = [flip, place](Rig& rig) { return std::make_unique<Saboteur>(rig, flip, place); };
  out.target.cls = FindingClass::kCorruption;
  out.target.witnessing = Witnessing::kSabotaged;
  out.target.phase = Phase::kData;
  out.target.sabotaged = place;
  return out;
}

}  // namespace

extern const Family kBitFlip{
    "bit-flip",
    "a high bit of the exponent of one weight, optimizer state, activation or gradient flips between two ops",
    "`corruption`, that step; weights and state: data, the tensor's path, `<state>`; else the op that had made "
    "the contents",
    plant};

}  // namespace nanhunt::campaign
