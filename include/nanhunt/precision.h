// SPDX-License-Identifier: Apache-2.0
// What a comparison of fp32 with recipes of mixed precision has measured: plain numbers, made by the engine
// (nanhunt/engine/precision.h) and shown by the reports. Losses and errors may be NaN or infinite.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanhunt {

// What memory of a training step is for. Add at the end.
enum class MemoryKind : std::uint8_t {
  kParameters,
  kBuffers,
  kMasters,         // fp32 copies that the optimizer steps
  kOptimizerState,  // without masters
  kGradients,       // of parameters and of masters
  kWeightCasts,     // copies of parameters that autocast makes
  kBatch,
  kActivations,  // what forward, loss and backward make besides
  kTemporaries,  // of unscale, clipping and the optimizer
};
inline constexpr std::size_t kMemoryKinds = 9;
std::string_view memory_kind_name(MemoryKind kind);  // "optimizer_state"

using MemoryBytes = std::array<std::uint64_t, kMemoryKinds>;  // by MemoryKind

// Of one step, in bytes of tensors that were allocated, counted as they came and went.
struct StepMemory {
  std::uint64_t peak = 0;
  MemoryBytes at_peak = {};   // adds up to `peak`
  MemoryBytes largest = {};   // of each kind, at whatever moment
  std::uint64_t scratch = 0;  // largest room inside one operation, not in `peak`
};

struct StepTimes {
  std::uint32_t steps = 0;               // that were timed
  double median = 0, low = 0, high = 0;  // seconds; a tenth of the steps took less than `low`, a tenth more than `high`
};

struct PrecisionStep {
  std::uint32_t step = 0;
  double loss = 0;
  bool skipped = false;  // the loss scaler held the optimizer back
  double scale = 1;
};

// A layer in one recipe against fp32, on the same weights and batches.
struct LayerPrecision {
  std::string layer;             // module path
  double output_error = 0;       // 2-norm of the difference over that of fp32, worst probe; infinite: not finite
  double gradient_error = 0;     // of its parameters, all together; NaN: it has none
  std::uint64_t elements = 0;    // of what its operations made, forward and backward, over all probes
  std::uint64_t overflowed = 0;  // of these: not finite, made of finite inputs, where fp32's is finite
  std::uint64_t flushed = 0;     // of these: 0 where fp32's is not
  std::optional<std::uint32_t> first_overflow;  // step
  // Error of the gradient of the whole model where this layer alone computes in the recipe's format, and where it alone
  // is kept in fp32. NaN: not measured.
  double alone_error = 0, kept_error = 0;
};

enum class PrecisionOutcome : std::uint8_t {
  kSame,           // as far as fp32
  kLostSteps,      // as far as fp32, but some steps had a loss that is not finite where fp32's is
  kBadValidation,  // as far as fp32, but in the validation in its own format the loss is higher, or not finite
  kWorse,          // the final loss is higher than fp32's by more than the tolerance
  kNonFinite,      // the final loss is not finite
  kStopped,        // the library ended training
  kRefused,        // the recipe does not take this model, optimizer or loss
  kNoReference,    // fp32 itself did not stay finite, or learnt less than a hundredth of its first loss
};
std::string_view precision_outcome_name(PrecisionOutcome outcome);  // "lost_steps"

// A training in a recipe with some layers kept in fp32, with fp32 masters where the recipe has none, or with both; or
// as it is, from another seed.
struct KeptTrial {
  std::vector<std::string> layers;
  bool all_layers = false;            // the whole model; `layers` is left empty
  bool masters = false;               // the optimizer steps fp32 copies of 16-bit weights
  bool other_seed = false;            // from another seed, held against fp32 from there
  std::optional<double> start_scale;  // the loss scale that the scaler had found at the end, from the start
  double final_loss = 0;
  std::optional<double> validation_loss;     // in the recipe's own format
  std::uint32_t nonfinite = 0, skipped = 0;  // steps
  bool restored = false;  // the outcome is kSame; where it was kWorse, with half of the gap to fp32 closed at least
  std::string refused;    // why it could not be trained
};

struct ValidationResult {
  double loss = 0;
  std::optional<double> accuracy;  // a share of 1
};

struct PrecisionRun {
  std::string recipe, summary, dtype;
  PrecisionOutcome outcome = PrecisionOutcome::kSame;
  std::string why;  // it was refused, or ended
  std::vector<PrecisionStep> steps;
  double final_loss = 0;           // mean of the last fifth of the steps
  std::optional<double> accuracy;  // of the same steps, on their batches
  std::uint32_t nonfinite = 0;     // steps whose loss is not finite where fp32's is
  std::uint32_t skipped = 0;
  std::optional<ValidationResult> validation;          // in the recipe's own format (autocast, or its 16-bit model)
  std::optional<ValidationResult> validation_in_fp32;  // the same weights, without autocast
  StepTimes time;
  std::optional<StepMemory> memory;
  std::vector<std::uint32_t> probed;    // steps of fp32's course at which layers were compared
  std::vector<LayerPrecision> layers;   // worst first; empty for fp32 and where nothing could be compared
  std::uint32_t layers_unmeasured = 0;  // without alone_error and kept_error
  std::vector<KeptTrial> trials;
  std::vector<std::string> keep;      // layers to keep in fp32, as the trials have shown; empty: none, or none found
  bool keep_masters = false;          // fp32 masters are part of what has helped
  std::optional<double> start_scale;  // so is this loss scale from the start
};

struct BatchSizeRow {
  std::int64_t batch_size = 0;
  std::string recipe;
  std::optional<StepMemory> memory;
  StepTimes time;
  std::string why;  // it could not be trained
};

struct PrecisionComparison {
  std::string workload, summary;
  std::uint64_t seed = 0;
  std::uint32_t steps = 0;
  std::int64_t batch_size = 0;
  double tolerance = 0;                           // share of what fp32 learnt by which a final loss may be higher
  double allowed_loss = 0;                        // a final loss up to here is kSame
  std::optional<double> other_seed_loss;          // fp32's final loss from another seed; none: nothing to compare
  std::optional<double> allowed_validation_loss;  // and one of the validation up to here
  std::string machine;                            // where times were taken
  std::vector<PrecisionRun> runs;                 // fp32 first
  std::vector<BatchSizeRow> sweep;
};

}  // namespace nanhunt
