// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/writes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nanhunt::analyze {
namespace {

// Inf over what is trained; -Inf may be a mask that a model keeps among its parameters.
bool ruins_weights(const OpInView& op) {
  const bool trained = std::any_of(op.in.begin(), op.in.end(), [](const Value* value) {
    return value != nullptr && (value->has_role(TensorRole::kParameter) || value->has_role(TensorRole::kState));
  });
  return trained && std::any_of(op.out.begin(), op.out.end(),
                                [](const Value* value) { return value != nullptr && value->stats.pos_inf > 0; });
}

// Infinite by its op's own scalar, and not read: it was written over in place before that.
bool is_written_unread(const Value* value) {
  return value != nullptr && !value->has_stats && value->labels == 0 && value->deliberate == Deliberate::kYes;
}

}  // namespace

// fill_(-inf) and x + -inf, but not fill_(-1e9), which the format made infinite, nor an update with an infinite rate.
bool writes_infinity_on_purpose(const OpInView& op) {
  if (op.info->scratch != 0) {
    bool meant = true;
    for (std::size_t i = 0; i < op.out.size(); ++i) {
      const bool scratch = i < 16 && (op.info->scratch >> i & 1) != 0;
      meant = meant && (op.out[i] == nullptr || op.out[i]->bad == 0 || scratch);
    }
    if (meant) return true;
  }
  const bool infinite =
      std::any_of(op.scalars.begin(), op.scalars.end(), [](const ScalarArg& s) { return std::isinf(s.value); });
  if (op.info->has(kWritesConstant)) return (op.scalars.empty() || infinite) && !ruins_weights(op);
  return infinite && op.info->has(kArithmetic) && op.info->has(kKeepsMask) && op.record->phase != Phase::kOptimizer;
}

bool writes_in_place(const OpInView& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(),
                     [](const OpArg& arg) { return arg.role == ArgRole::kOverwritten; });
}

bool reads_written_unread(const OpInView& op) {
  return !op.info->has(kOverwritesAll) && std::any_of(op.in.begin(), op.in.end(), is_written_unread);
}

void note_written_unread(const OpInView& op) {
  const bool infinite =
      std::any_of(op.scalars.begin(), op.scalars.end(), [](const ScalarArg& s) { return std::isinf(s.value); });
  const bool written = infinite && op.info->has(kWritesConstant) && !ruins_weights(op);
  if (!written && !(writes_in_place(op) && reads_written_unread(op))) return;
  for (Value* value : op.out) {
    if (value != nullptr && !value->has_stats && value->labels == 0) value->deliberate = Deliberate::kYes;
  }
}

// w[0, 0] = x, w.copy_(x), w[mask] = x: a number that no watched op has made.
bool gives_number(const OpInView& op, const Value& value, const LayoutRecord* layout) {
  constexpr std::uint32_t kHandsOn = kOverwritesAll | kSelects | kWritesConstant;
  const Phase phase = op.record->phase;
  return value.producer == kNoSeq && value.roles == 0 && value.name == 0 && layout != nullptr && layout->sizes.empty() &&
         phase != Phase::kOptimizer && phase != Phase::kBackward && (op.info->flags & kHandsOn) != 0 && writes_in_place(op);
}

// A sum over rows of which at least one held nothing but -Inf: log 0.
bool sums_only_masks(const OpInView& op) {
  if (!op.info->has(kSoftmax) || op.in.empty() || op.in[0] == nullptr) return false;
  return std::any_of(op.out.begin(), op.out.end(), [&](const Value* out) {
    return out != nullptr && out->stats.neg_inf > 0 && out->stats.numel < op.in[0]->stats.numel;
  });
}

// Infinities in the output that the infinities that came in cannot have become.
bool makes_new_infinities(const OpInView& op, std::span<const Value* const> bad) {
  std::int64_t pos_in = 0, inf_in = 0, numel_in = std::numeric_limits<std::int64_t>::max();
  for (const Value* value : bad) {
    pos_in += value->stats.pos_inf;
    inf_in += value->stats.inf();
    numel_in = std::min(numel_in, value->stats.numel);
  }
  if (writes_infinity_on_purpose(op)) return false;
  // An op that only selects makes none, but for a constant that the format could not hold.
  if (op.info->has(kSelects) && !op.info->has(kWritesConstant)) return false;
  return std::any_of(op.out.begin(), op.out.end(), [&](const Value* out) {
    if (out == nullptr || out->bad == 0) return false;
    if (op.info->bound == Bound::kExp) return out->stats.pos_inf > 0 && pos_in == 0;  // exp(-Inf) is 0
    // Broadcasting multiplies what came in; without it each element has one to blame.
    return op.info->has(kElementwise) && out->stats.numel == numel_in && out->stats.inf() > inf_in;
  });
}

}  // namespace nanhunt::analyze
