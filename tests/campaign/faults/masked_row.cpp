// SPDX-License-Identifier: Apache-2.0
// A mask that hides every key of one row before a softmax: of a hand-written pooling, or of the transformer's
// attention.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

// (rows, width), true: hidden. The first column of each row is seen; with the fault, none of row 1.
Tensor hidden(std::int64_t rows, std::int64_t width, bool bad) {
  Tensor mask = Tensor::zeros({rows, width}, DType::kBool);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      mask.data<std::uint8_t>()[r * width + c] = (bad && r == 1) || c > width / 2 ? 1 : 0;
    }
  }
  return mask;
}

Tensor pooled(const Tensor& x, bool bad) {
  const Tensor scores = engine::mul(x, 0.5 / amax_of(x));
  const std::int64_t rows = x.dim() > 1 ? x.size(-2) : 1;
  const Tensor weights = engine::softmax(
      engine::masked_fill(scores, hidden(rows, x.size(-1), bad), -HUGE_VAL), -1);
  return engine::mul(x, weights);
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  limit_under_scaler(settings, out.plan);
  out.target.cls = FindingClass::kInvalid;
  out.target.phase = Phase::kForward;
  out.target.ops = {"softmax"};
  if (settings.model == ModelKind::kGpt && draw.chance(0.7)) {
    // The mask is set anew for every batch, from the body of the site before: which is where user code can stand.
    out.variant = "attention";
    out.plan.site = 0;
    auto block = std::make_shared<engine::TransformerBlock*>(nullptr);
    out.plan.prepare = [block](Rig& rig) { *block = rig.network().blocks.back(); };
    out.plan.body = [block](const Tensor& x, bool bad) {
      Tensor mask = Tensor::zeros({x.size(0), x.size(1)}, DType::kBool);
      if (bad) {
        for (std::int64_t t = 0; t < x.size(1); ++t) mask.data<std::uint8_t>()[x.size(1) + t] = 1;
      }
      if (*block != nullptr) (*block)->set_key_mask(mask);
      return x;
    };
    // Its attention is a child whose name may be random: the module is the one in which softmax goes bad.
  } else {
    out.variant = "pooling";
    out.plan.site = static_cast<int>(draw.below(2));
    out.plan.body = pooled;
    out.target.module = at_site(out.plan.site);
  }
  return out;
}

}  // namespace

extern const Family kMaskedRow{
    "masked-row",
    "a mask hides every key of a row before a softmax (hand-written, or in attention)",
    "`invalid`, forward, that layer, `softmax`",
    plant};

}  // namespace nanhunt::campaign
