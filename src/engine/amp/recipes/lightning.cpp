// SPDX-License-Identifier: Apache-2.0
// Lightning's precisions: what each makes of model, casts and scaler, and what it refuses, in Lightning's words. The order
// of a step is Trainer's: the closure (forward, scaled backward), unscale, clip, step, update.
#include <fmt/format.h>

#include <array>

#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/refuse.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

struct Precision {
  std::string_view name;
  bool mixed = false;
  DType dtype = DType::kF32;  // of casts, or of the model
};
constexpr std::array kPrecisions = {
    Precision{"16-mixed", true, DType::kF16},   Precision{"bf16-mixed", true, DType::kBF16},
    Precision{"16-true", false, DType::kF16},   Precision{"bf16-true", false, DType::kBF16},
    Precision{"32-true", false, DType::kF32},   Precision{"64-true", false, DType::kF64},
};

struct Alias {
  std::string_view name, precision;
};
constexpr std::array kAliases = {Alias{"64", "64-true"}, Alias{"32", "32-true"}, Alias{"16", "16-mixed"},
                                 Alias{"bf16", "bf16-mixed"}};

std::string_view unified(const std::string& precision) {
  for (const Alias& alias : kAliases) {
    if (alias.name == precision) return alias.precision;
  }
  return precision;
}

const Precision& precision_of(const std::string& given) {
  const std::string_view name = unified(given);
  for (const Precision& precision : kPrecisions) {
    if (precision.name == name) return precision;
  }
  refuse(fmt::format("Precision '{}' is invalid. Allowed precision values: ('transformer-engine', "
                     "'transformer-engine-float16', '16-true', '16-mixed', 'bf16-true', 'bf16-mixed', '32-true', "
                     "'64-true', 64, 32, 16, '64', '32', '16', 'bf16')",
                     given));
}

std::string_view torch_class(const std::string& algorithm) {
  if (algorithm == "sgd") return "SGD";
  if (algorithm == "adamw") return "AdamW";
  return "Adam";
}

void expect_scaler_fits(const Precision& precision, bool given) {
  if (!given || precision.name == "16-mixed") return;
  if (precision.mixed) {
    refuse(fmt::format("`precision='{}'` does not use a scaler, found <torch.amp.grad_scaler.GradScaler object>.",
                       precision.name));
  }
  refuse(fmt::format("`Passed `MixedPrecision(precision='{}')`. Precision must be '16-mixed' or 'bf16-mixed'.",
                     precision.name));
}

// A fused optimizer of torch says that it unscales by itself, with a scaler or without.
void expect_optimizer_fits(const Precision& precision, const OptimizerOptions& optimizer, double clip) {
  if (precision.name == "16-mixed" && optimizer.algorithm == "lbfgs") {
    refuse("AMP and the LBFGS optimizer are not compatible.");
  }
  if (!precision.mixed || optimizer.impl != OptimizerImpl::kFused || !(clip > 0)) return;
  refuse(fmt::format("The current optimizer, {}, does not allow for gradient clipping because it performs unscaling of "
                     "gradients internally. HINT: Are you using a 'fused' optimizer?",
                     torch_class(optimizer.algorithm)));
}

void expect_plain(const TrainingSetup& setup) {
  if (setup.model == nullptr) fail("lightning_trainer", "a model", "none");
  if (setup.optimizer.fp32_masters || setup.options.autocast || setup.options.scaler || setup.options.clip_norm) {
    fail("lightning_trainer", "a setup without masters, autocast, scaler and clipping, which its options choose",
         "one with them");
  }
}

}  // namespace

std::string lightning_warning(const std::string& precision) {
  if (precision != "16" && precision != "bf16") return "";
  return fmt::format("`precision={}` is supported for historical reasons but its usage is discouraged. Please set your "
                     "precision to {} instead!",
                     precision, unified(precision));
}

TrainingSetup lightning_trainer(TrainingSetup setup, const LightningOptions& options) {
  expect_plain(setup);
  const Precision& precision = precision_of(options.precision);
  expect_scaler_fits(precision, options.scaler.has_value());
  expect_optimizer_fits(precision, setup.optimizer, options.gradient_clip_val);
  if (options.gradient_clip_val > 0) setup.options.clip_norm = options.gradient_clip_val;
  if (precision.mixed) {
    setup.options.autocast = AutocastOptions{.dtype = precision.dtype};
    if (options.scaler) {
      setup.options.scaler = *options.scaler;
    } else if (precision.dtype == DType::kF16) {
      setup.options.scaler = LightningScalerOptions{};
    }
    return setup;
  }
  setup.model->to(precision.dtype);
  setup.model->set_call_casts(precision.dtype, {});
  return setup;
}

}  // namespace nanhunt::engine
