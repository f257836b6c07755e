// SPDX-License-Identifier: Apache-2.0
// Where the health of two runs parts. Ops of a step are aligned module by module, so that runs may differ in how many
// ops they have; what the same op gave is then compared up to rounding.
//
// Two numbers are the same when |a - b| <= tolerance * max(|a|, |b|) + the smallest number of the coarser format, with
//   tolerance = factor * 8 * (u_stored + u_computed * sqrt(terms)) * sqrt(1 + ops compared so far), at most 0.5.
// u is half a unit in the last place (fp16 4.9e-4, bf16 3.9e-3, fp32 6e-8) of the coarser of the two formats, and no
// finer than the coarsest format in which the runs differed before: what was rounded away there is missing from there
// on. `terms` is how many numbers the op sums up for one result. Rounding errors of independent ops add up like the
// root of their number; 8 covers what one op makes of errors it is given.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/analyze/diff/diff_stream.h"

namespace nanhunt::analyze {

enum class DiffKind : std::uint8_t {
  kBadness,       // NaN, Inf or -Inf in one run and not in the other
  kStatistics,    // largest magnitude, root mean square or share of zeros differ beyond rounding
  kLoss,          // the step's loss, or the norm of its gradients
  kSkip,          // the loss scaler held one of them back
  kScale,         // loss scale
  kLearningRate,
  kShape,         // the same op gave another number of results or elements
  kOnlyInA,
  kOnlyInB,
};
inline constexpr std::size_t kDiffKinds = 9;
std::string_view diff_kind_name(DiffKind kind);  // "badness", ... "only_in_a"
constexpr bool is_health(DiffKind kind) { return kind <= DiffKind::kLearningRate; }

struct Difference {
  DiffKind kind = DiffKind::kBadness;
  std::uint32_t step = 0, micro_batch = 0;
  Phase phase = Phase::kForward;
  std::string module, op;         // of A, or of B where A has none; "" for a whole step
  std::uint64_t seq_a = kNoSeq, seq_b = kNoSeq;
  std::uint32_t output = 0;       // which result of the op
  std::optional<DiffValue> value_a, value_b;
  std::string what;               // "amax", "rms", "zero_share", "loss", "scale", ...
  double number_a = 0, number_b = 0;  // of `what`
  double tolerance = 0;           // relative; 0: compared exactly
  std::uint64_t order = 0;        // in which the first ones of each kind were found
};

struct DiffSide {
  RunInfo info;
  Status status;  // kOk or kDamaged
  TraceHealth health;
  std::uint64_t steps = 0, ops = 0;
  std::optional<std::uint32_t> last_step;
  std::string why_no_tap;  // as in OpsInTrace
};

struct DiffResult {
  DiffSide a, b;
  std::array<std::optional<Difference>, kDiffKinds> first;  // of each kind
  std::array<std::uint64_t, kDiffKinds> counts{};
  std::uint64_t steps_compared = 0, ops_compared = 0;
  std::uint64_t steps_only_a = 0, steps_only_b = 0;  // the other trace lacks them
  // The runs were watched at different levels: an op counts as one run's only where both hold ops of its phase in the
  // step.
  bool levels_differ = false;
  std::uint64_t steps_with_ops = 0;                  // of steps_compared: both hold ops of them
  std::uint64_t ops_unshared_a = 0, ops_unshared_b = 0;  // left out for that
  std::uint64_t loosely_aligned = 0;                 // modules and phases of a step that differ too much to be sure

  const Difference* first_health() const;  // the earliest of those that are_health, nullptr: none
};

struct DiffOptions {
  double tolerance = 1;  // factor
};

// Fails when one of the two cannot be read at all.
Result<DiffResult> diff_attempts(const AttemptTrace& a, const AttemptTrace& b, const DiffOptions& options = {});

}  // namespace nanhunt::analyze
