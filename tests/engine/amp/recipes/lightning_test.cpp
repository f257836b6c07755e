// SPDX-License-Identifier: Apache-2.0
// Lightning's precisions: what becomes of model, casts and scaler, the order of a step, a closure that returns nothing, and
// what is refused.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

std::string refusal_of(const LightningOptions& options, const OptimizerOptions& optimizer = {}) {
  TrainingSetup setup = fp32_setup();
  setup.optimizer = optimizer;
  try {
    lightning_trainer(std::move(setup), options);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "";
}

TEST(Lightning, a_precision_chooses_the_models_format_autocast_and_scaler) {
  struct Case {
    const char* precision;
    DType weights;
    std::optional<DType> autocast;
    bool scales;
  };
  for (const Case& c : {Case{"16-mixed", DType::kF32, DType::kF16, true}, Case{"16", DType::kF32, DType::kF16, true},
                        Case{"bf16-mixed", DType::kF32, DType::kBF16, false},
                        Case{"bf16", DType::kF32, DType::kBF16, false}, Case{"16-true", DType::kF16, {}, false},
                        Case{"bf16-true", DType::kBF16, {}, false}, Case{"32-true", DType::kF32, {}, false},
                        Case{"32", DType::kF32, {}, false}, Case{"64-true", DType::kF64, {}, false},
                        Case{"64", DType::kF64, {}, false}}) {
    const TrainingSetup setup = lightning_trainer(fp32_setup(), {.precision = c.precision});
    for (const char* path : {"conv1.weight", "bn1.weight", "bn1.running_var"}) {
      EXPECT_EQ(dtype_of(*setup.model, path), c.weights) << c.precision << " " << path;
    }
    ASSERT_EQ(setup.options.autocast.has_value(), c.autocast.has_value()) << c.precision;
    if (c.autocast) {
      EXPECT_EQ(setup.options.autocast->dtype, *c.autocast) << c.precision;
    }
    EXPECT_EQ(setup.options.scaler.has_value(), c.scales) << c.precision;
    EXPECT_FALSE(setup.optimizer.fp32_masters) << c.precision;
  }
}

TEST(Lightning, a_true_precision_converts_inputs_and_leaves_outputs) {
  for (const auto& [precision, dtype] : {std::pair{"16-true", DType::kF16}, std::pair{"64-true", DType::kF64}}) {
    TrainingSetup setup = lightning_trainer(fp32_setup(), {.precision = precision});
    const Batch batch = digits_train_batches(4, 3, DType::kF32)(0);
    EXPECT_EQ((*setup.model)(batch.inputs).dtype(), dtype);
  }
}

TEST(Lightning, takes_a_scaler_of_the_users_own_with_16_mixed) {
  const auto trainer = train_on_digits(
      lightning_trainer(fp32_setup(), {.precision = "16-mixed", .scaler = GradScalerOptions{.init_scale = 256}}));
  EXPECT_EQ(trainer->scaler()->get_scale(), 256);
}

TEST(Lightning, a_step_is_closure_unscale_clip_step_update) {
  const auto trainer =
      train_on_digits(lightning_trainer(fp32_setup(), {.precision = "16-mixed", .gradient_clip_val = 0.5}));
  EventLog log;
  const HookHandle handle = add_observer(log);
  trainer->step();
  std::vector<std::string> order;
  for (const std::string& line : log.lines) {
    std::string what;
    if (line.starts_with("op forward ")) what = "forward";
    if (line.starts_with("op backward ")) what = "backward";
    if (line.starts_with("op optimizer ")) what = "step";
    for (const char* action : {"scale", "unscale", "clip", "update"}) {
      if (line == std::string("scaler ") + action) what = action;
    }
    if (!what.empty() && (order.empty() || order.back() != what)) order.push_back(what);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"forward", "scale", "backward", "unscale", "clip", "step", "update"}));
}

// training_step returns None for every third batch.
Tensor now_and_then(const Tensor& logits, const Batch& batch, int& calls) {
  return ++calls % 3 == 0 ? Tensor() : digits_loss(logits, batch);
}

TEST(Lightning, a_closure_that_returns_nothing_skips_all_of_it) {
  for (const char* precision : {"16-mixed", "bf16-mixed", "16-true"}) {
    int calls = 0;
    const auto trainer = make_trainer(
        lightning_trainer(fp32_setup(), {.precision = precision, .gradient_clip_val = 0.5}),
        digits_train_batches(32, 3, DType::kF32),
        [&calls](const Tensor& logits, const Batch& batch) { return now_and_then(logits, batch, calls); });
    EXPECT_FALSE(trainer->step().skipped);
    EXPECT_FALSE(trainer->step().skipped);
    std::vector<std::vector<double>> before;
    for (const NamedTensor& entry : trainer->optimizer().parameters()) before.push_back(entry.tensor.to_vector());
    const LossScaler::Saved scale = trainer->scaler() ? trainer->scaler()->saved() : LossScaler::Saved{};
    EventLog log;
    const HookHandle handle = add_observer(log);
    const StepResult result = trainer->step();
    EXPECT_TRUE(result.skipped) << precision;
    EXPECT_EQ(result.loss, 0);
    for (const char* prefix : {"op scale", "op backward", "op unscale", "op clip", "op optimizer", "op update", "scaler",
                               "boundary", "end "}) {
      EXPECT_TRUE(log.starting_with(prefix).empty()) << precision << " " << prefix;
    }
    EXPECT_EQ(log.lines.back(), "gave up 2 next_forward ");
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(trainer->optimizer().parameters()[i].tensor.to_vector(), before[i]);
      EXPECT_FALSE(trainer->optimizer().parameters()[i].tensor.grad().defined());
    }
    if (trainer->scaler()) {
      EXPECT_EQ(trainer->scaler()->saved(), scale);
    }
    EXPECT_EQ(trainer->next_step(), 3U);
    EXPECT_FALSE(trainer->step().skipped);
    EXPECT_EQ(log.lines.back(), "end 3");
  }
}

TEST(Lightning, of_several_micro_batches_the_last_one_decides) {
  for (const int without : {0, 1}) {
    int calls = 0;
    TrainingSetup setup = lightning_trainer(fp32_setup(), {.precision = "16-mixed"});
    setup.options.micro_batches = 2;
    const auto trainer = make_trainer(std::move(setup), digits_train_batches(16, 3, DType::kF32),
                                      [&](const Tensor& logits, const Batch& batch) {
                                        return calls++ == without ? Tensor() : digits_loss(logits, batch);
                                      });
    EXPECT_EQ(trainer->step().skipped, without == 1);
    EXPECT_FALSE(trainer->step().skipped);
  }
}

TEST(Lightning, refuses_in_its_own_words) {
  EXPECT_EQ(refusal_of({.precision = "32-mix"}),
            "Precision '32-mix' is invalid. Allowed precision values: ('transformer-engine', 'transformer-engine-float16', "
            "'16-true', '16-mixed', 'bf16-true', 'bf16-mixed', '32-true', '64-true', 64, 32, 16, '64', '32', '16', 'bf16')");
  EXPECT_EQ(refusal_of({.precision = "bf16-mixed", .scaler = GradScalerOptions{}}),
            "`precision='bf16-mixed'` does not use a scaler, found <torch.amp.grad_scaler.GradScaler object>.");
  EXPECT_EQ(refusal_of({.precision = "16-true", .scaler = GradScalerOptions{}}),
            "`Passed `MixedPrecision(precision='16-true')`. Precision must be '16-mixed' or 'bf16-mixed'.");
  EXPECT_EQ(refusal_of({.precision = "16-mixed"}, {.algorithm = "lbfgs"}),
            "AMP and the LBFGS optimizer are not compatible.");
  for (const char* mixed : {"16-mixed", "bf16-mixed"}) {
    EXPECT_EQ(refusal_of({.precision = mixed, .gradient_clip_val = 1}, {.algorithm = "adamw", .impl = OptimizerImpl::kFused}),
              "The current optimizer, AdamW, does not allow for gradient clipping because it performs unscaling of gradients "
              "internally. HINT: Are you using a 'fused' optimizer?");
  }
  const OptimizerOptions fused{.algorithm = "sgd", .impl = OptimizerImpl::kFused};
  EXPECT_EQ(refusal_of({.precision = "16-mixed"}, fused), "");
  EXPECT_EQ(refusal_of({.precision = "16-true", .gradient_clip_val = 1}, fused), "");
  TrainingSetup scaled = fp32_setup();
  scaled.options.scaler = GradScalerOptions{};
  EXPECT_THROW(lightning_trainer(std::move(scaled)), std::invalid_argument);
}

TEST(Lightning, warns_of_names_of_old) {
  EXPECT_EQ(lightning_warning("16"),
            "`precision=16` is supported for historical reasons but its usage is discouraged. Please set your precision to "
            "16-mixed instead!");
  EXPECT_EQ(lightning_warning("32"), "");
  EXPECT_EQ(lightning_warning("bf16-true"), "");
}

}  // namespace
}  // namespace nanhunt::engine::testing
