// SPDX-License-Identifier: Apache-2.0
// amp.initialize: what comes in, and what becomes of model, inputs, outputs, optimizer and scaler under overrides.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/autograd.h"
#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

std::string refusal_of(TrainingSetup setup, const ApexOptions& options = {}) {
  try {
    apex_initialize(std::move(setup), options);
  } catch (const std::invalid_argument& refused) {
    return refused.what();
  }
  return "";
}

TEST(ApexInitialize, refuses_a_model_that_is_halved_already) {
  TrainingSetup halved = fp32_setup();
  halved.model->to(DType::kF16);
  EXPECT_EQ(refusal_of(std::move(halved), {.opt_level = "O2"}),
            "Found param conv1.weight with type torch.cuda.HalfTensor, expected torch.cuda.FloatTensor.\n"
            "When using amp.initialize, you do not need to call .half() on your model\n"
            "before passing it, no matter what optimization level you choose.");
}

TEST(ApexInitialize, refuses_a_halved_buffer) {
  class Buffered : public Mlp {
   public:
    Buffered() { register_buffer("shift", Tensor::zeros({1}, DType::kF16)); }
  };
  TrainingSetup setup = fp32_setup();
  setup.model = std::make_unique<Buffered>();
  EXPECT_TRUE(refusal_of(std::move(setup)).starts_with("Found buffer shift with type torch.cuda.HalfTensor"));
}

TEST(ApexInitialize, refuses_an_optimizer_that_is_wrapped_already) {
  TrainingSetup wrapped = fp32_setup();
  wrapped.optimizer.fp32_masters = true;
  EXPECT_TRUE(refusal_of(std::move(wrapped))
                  .starts_with("An incoming optimizer is an instance of apex.fp16_utils.FP16_Optimizer. "));
  TrainingSetup scaled = fp32_setup();
  scaled.options.scaler = GradScalerOptions{};
  EXPECT_NE(refusal_of(std::move(scaled)), "");
}

TEST(ApexInitialize, refuses_formats_that_apex_does_not_optimize) {
  EXPECT_EQ(refusal_of(fp32_setup(), {.opt_level = "O2", .cast_model_type = DType::kBF16}),
            "Optimizer's parameters must be either torch.cuda.FloatTensor or torch.cuda.HalfTensor. Received "
            "torch.cuda.BFloat16Tensor");
}

TEST(ApexInitialize, leaves_everything_alone_where_it_is_not_enabled) {
  const TrainingSetup setup = apex_initialize(fp32_setup(), {.enabled = false, .opt_level = "O2"});
  EXPECT_EQ(dtype_of(*setup.model, "conv1.weight"), DType::kF32);
  EXPECT_FALSE(setup.optimizer.fp32_masters);
  EXPECT_FALSE(setup.options.scaler);
  EXPECT_FALSE(setup.options.autocast);
}

TEST(ApexInitialize, gives_a_scaler_unless_there_is_nothing_to_multiply_or_check) {
  struct Case {
    ApexOptions options;
    double scale;  // 0: none
  };
  for (const Case& c : {Case{{.opt_level = "O0"}, 0}, Case{{.opt_level = "O0", .loss_scale = 128.0}, 128},
                        Case{{.opt_level = "O0", .loss_scale = "dynamic"}, 65536}, Case{{}, 65536},
                        Case{{.loss_scale = 1.0}, 0}, Case{{.max_loss_scale = 1024}, 1024},
                        Case{{.opt_level = "O2"}, 65536}, Case{{.opt_level = "O2", .loss_scale = 1.0}, 1},
                        Case{{.opt_level = "O3"}, 0}, Case{{.opt_level = "O3", .loss_scale = "64"}, 64}}) {
    const auto trainer = train_by(c.options);
    ASSERT_EQ(trainer->scaler() != nullptr, c.scale != 0) << c.options.opt_level;
    if (c.scale == 0) continue;
    EXPECT_EQ(trainer->scaler()->get_scale(), c.scale) << c.options.opt_level;
  }
}

TEST(ApexInitialize, does_not_let_a_dynamic_scale_fall_below_its_minimum) {
  const auto loss = [](const Tensor& logits, const Batch& batch) { return mul(digits_loss(logits, batch), 1024); };
  const auto trainer = make_trainer(apex_initialize(fp32_setup(), {.opt_level = "O2", .min_loss_scale = 65536}),
                                    digits_train_batches(32, 3, DType::kF32), loss);
  EXPECT_TRUE(trainer->step().skipped);
  EXPECT_EQ(trainer->scaler()->get_scale(), 65536);
}

TEST(ApexInitialize, casts_floating_inputs_and_outputs_within_the_call_of_the_model) {
  const NoGradGuard no_grad;
  const TrainingSetup setup = apex_initialize(fp32_setup(), {.opt_level = "O3"});
  const Tensor images = make_digits_batch(digits_test_ids(), DType::kF32).inputs;
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_EQ((*setup.model)(images).dtype(), DType::kF32);
  EXPECT_EQ(log.lines[0], "enter ");
  EXPECT_EQ(log.lines[1], "op forward  _to_copy");
  EXPECT_EQ(log.lines[log.lines.size() - 2], "op forward  _to_copy");
  EXPECT_EQ(log.lines.back(), "exit ");
}

TEST(ApexInitialize, leaves_integer_inputs_as_they_are) {
  const NoGradGuard no_grad;
  TrainingSetup setup;
  setup.model = std::make_unique<Gpt>(GptOptions{.layers = 1, .block = {}});
  setup = apex_initialize(std::move(setup), {.opt_level = "O2"});
  EXPECT_EQ((*setup.model)(Tensor::zeros({1, 4}, DType::kI64)).dtype(), DType::kF32);
}

TEST(ApexInitialize, gives_outputs_of_the_format_that_is_asked_for_at_every_level) {
  const NoGradGuard no_grad;
  const Tensor images = make_digits_batch(digits_test_ids(), DType::kF32).inputs;
  for (const char* level : {"O0", "O1", "O2", "O3"}) {
    const TrainingSetup setup =
        apex_initialize(fp32_setup(), {.opt_level = level, .cast_model_outputs = DType::kF16});
    EXPECT_EQ((*setup.model)(images).dtype(), DType::kF16) << level;
  }
}

TEST(ApexInitialize, keeps_batch_norms_as_it_is_told) {
  for (const bool keep : {true, false}) {
    const TrainingSetup setup = apex_initialize(fp32_setup(), {.opt_level = "O2", .keep_batchnorm_fp32 = keep});
    for (const char* path : {"bn1.weight", "bn1.running_var", "block.bn2.bias", "bn2.running_mean"}) {
      EXPECT_EQ(dtype_of(*setup.model, path), keep ? DType::kF32 : DType::kF16) << path;
    }
    EXPECT_EQ(dtype_of(*setup.model, "block.conv2.weight"), DType::kF16);
  }
}

TEST(ApexInitialize, saves_a_cast_model_in_fp32) {
  const TrainingSetup setup = apex_initialize(fp32_setup(), {.opt_level = "O3"});
  const std::vector<NamedTensor> saved = apex_saved_model(*setup.model);
  ASSERT_EQ(saved.size(), setup.model->named_parameters().size() + setup.model->named_buffers().size());
  for (const auto& [path, tensor] : saved) EXPECT_EQ(tensor.dtype(), DType::kF32) << path;
  const Tensor weight = setup.model->named_parameters()[0].tensor;
  EXPECT_EQ(saved[0].tensor.to_vector(), weight.to_vector());
  EXPECT_NE(saved[0].tensor.storage(), weight.storage());
}

}  // namespace
}  // namespace nanhunt::engine::testing
