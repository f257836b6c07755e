// SPDX-License-Identifier: Apache-2.0
// Every op of real training, computed again from what it read, gives the same bits.
#include "hooks/engine/replay/engine_ops.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;

// Ops that depend on more than their inputs: where they read, what random words they draw, the scaler's own count.
const std::set<std::string> kCannot = {"permute", "permute_backward", "native_dropout", "_amp_update_scale_", "stack"};

// Holds on to all contents, runs each op again and compares.
class Repeater final : public engine::Observer {
 public:
  void hold(const std::vector<engine::NamedTensor>& tensors) {
    for (const auto& [path, tensor] : tensors) hold(tensor, tensor.version());
  }
  void on_op(const engine::OpCall& call) noexcept override {
    repeat(call);
    for (const engine::OpArgument& out : call.outputs) hold(*out.tensor, out.version);
  }
  std::set<std::string> repeated, cannot, differ;

 private:
  using Contents = std::pair<std::uint64_t, std::uint32_t>;
  void hold(const Tensor& tensor, std::uint32_t version) {
    held_.try_emplace({tensor.storage()->generation(), version}, array_of(tensor));  // views of it come later
  }

  void repeat(const engine::OpCall& call) {
    std::vector<hunt::Array> arrays;
    arrays.reserve(call.inputs.size());
    hunt::RunnerCall again{call.op, {}, {}, {}};
    again.arithmetic = call.compute_dtype;
    for (const engine::OpArgument& in : call.inputs) {
      if (in.tensor == nullptr || !in.tensor->defined()) continue;
      if (in.tensor->version() == in.version) {
        arrays.push_back(array_of(*in.tensor));
      } else {
        const auto held = held_.find({in.tensor->storage()->generation(), in.version});
        if (held == held_.end() && kCannot.contains(std::string(call.op))) return;
        ASSERT_NE(held, held_.end()) << call.op << " " << in.slot;
        arrays.push_back(held->second);
      }
      again.inputs.push_back({in.slot, &arrays.back()});
    }
    for (const OpScalar& scalar : call.scalars) again.scalars.emplace_back(scalar.name, scalar.value);
    for (const engine::OpArgument& out : call.outputs)
      again.outputs.push_back({out.slot, out.tensor->dtype(), out.tensor->sizes()});
    const std::string name(call.op);
    const auto results = runner_->run(again);
    if (!results) {
      cannot.insert(name);
      EXPECT_TRUE(kCannot.contains(name)) << results.status().message();
      return;
    }
    repeated.insert(name);
    const auto& first = results->at(0);
    if (!first || first->bytes != array_of(*call.outputs[0].tensor).bytes) differ.insert(name);
  }

  std::map<Contents, hunt::Array> held_;
  std::unique_ptr<hunt::OpRunner> runner_ = make_engine_op_runner();
};

Repeater repeat_training(engine::Trainer& trainer, int steps) {
  Repeater repeater;
  repeater.hold(trainer.model().named_parameters());
  repeater.hold(trainer.model().named_buffers());
  repeater.hold(trainer.optimizer().named_state());
  const engine::HookHandle handle = engine::add_observer(repeater);
  for (int i = 0; i < steps; ++i) trainer.step();
  return repeater;
}

Tensor classify(const Tensor& output, const engine::Batch& batch) {
  return engine::cross_entropy(output, batch.targets);
}

std::unique_ptr<engine::Trainer> trainer_of(std::unique_ptr<engine::Module> model,
                                            const engine::OptimizerOptions& optimizer, engine::BatchSource batches,
                                            engine::LossFunction loss, const engine::TrainerOptions& options = {}) {
  auto parameters = model->named_parameters();
  return std::make_unique<engine::Trainer>(std::move(model), engine::make_optimizer(std::move(parameters), optimizer),
                                           std::move(batches), std::move(loss), options);
}

void expect_all_repeat(const Repeater& repeater, const std::set<std::string>& among) {
  EXPECT_TRUE(repeater.differ.empty()) << testing::PrintToString(repeater.differ);
  for (const std::string& op : among) EXPECT_TRUE(repeater.repeated.contains(op)) << op;
}

TEST(EngineOps, of_an_mlp_in_fp16_with_adam_repeat_bit_for_bit) {
  const auto trainer = trainer_of(std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = DType::kF16}),
                                  {.algorithm = "adam"}, engine::digits_train_batches(16, 1, DType::kF16), classify);
  expect_all_repeat(repeat_training(*trainer, 2), {"addmm", "addmm_backward", "relu_backward", "addcdiv_", "addcmul_",
                                                   "lerp_", "mul_", "sqrt", "div", "add_"});
}

TEST(EngineOps, of_fused_optimizers_repeat_bit_for_bit) {
  for (const char* algorithm : {"adam", "adamw", "sgd"}) {
    engine::OptimizerOptions options{.algorithm = algorithm, .weight_decay = 0.01};
    options.impl = engine::OptimizerImpl::kFused;
    options.momentum = std::string(algorithm) == "sgd" ? 0.9 : 0;
    const auto trainer = trainer_of(std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = DType::kBF16}), options,
                                    engine::digits_train_batches(16, 1, DType::kBF16), classify);
    expect_all_repeat(repeat_training(*trainer, 2), {"_fused_" + std::string(algorithm) + "_"});
  }
}

TEST(EngineOps, of_a_cnn_under_autocast_with_a_scaler_and_clipping_repeat_bit_for_bit) {
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{};
  options.clip_norm = 0.1;
  options.micro_batches = 2;
  engine::OptimizerOptions sgd{.algorithm = "sgd", .lr = 0.01, .momentum = 0.9, .nesterov = true};
  const auto trainer = trainer_of(std::make_unique<engine::Cnn>(engine::CnnOptions{.channels = 4}), sgd,
                                  engine::digits_train_batches(8, 1, DType::kF32), classify, options);
  expect_all_repeat(
      repeat_training(*trainer, 2),
      {"convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "_to_copy",
       "_to_copy_backward", "max_pool2d_with_indices_backward", "nll_loss_backward", "log_softmax_backward"});
}

TEST(EngineOps, of_a_unet_repeat_bit_for_bit) {
  const auto loss = [](const Tensor& output, const engine::Batch& batch) {
    return engine::mse_loss(output, batch.targets);
  };
  const auto trainer = trainer_of(std::make_unique<engine::UNet>(engine::UNetOptions{.channels = 2}),
                                  {.algorithm = "adamw"}, engine::upscaling_train_batches(4, 1, DType::kF32), loss);
  expect_all_repeat(repeat_training(*trainer, 1),
                    {"cat", "cat_backward", "upsample_nearest2d_backward", "mse_loss_backward"});
}

TEST(EngineOps, of_a_transformer_repeat_bit_for_bit) {
  engine::GptOptions options{.layers = 1, .block = {}};
  options.block.dims = 16;
  options.block.context = 8;
  options.block.dropout = 0.1;
  engine::TrainerOptions autocast;
  autocast.autocast = engine::AutocastOptions{};
  const auto trainer = trainer_of(std::make_unique<engine::Gpt>(options), {.algorithm = "adamw"},
                                  engine::text_train_batches(2, 8, 1), engine::next_token_loss, autocast);
  expect_all_repeat(repeat_training(*trainer, 2),
                    {"bmm_backward", "softmax_backward", "native_layer_norm_backward", "gelu_backward",
                     "native_dropout_backward", "embedding_backward", "masked_fill_backward"});
}

TEST(EngineOps, of_norms_with_statistics_in_fp16_repeat_bit_for_bit) {
  auto model = std::make_unique<engine::Sequential>();
  constexpr auto kInput = engine::NormStatistics::kInput;
  engine::RandomStream random(1, 0);
  model->append(std::make_unique<engine::Linear>(64, 10, random, DType::kF16));
  model->append(std::make_unique<engine::BatchNorm2d>(10, DType::kF16, 0.1, 1e-5, kInput));
  model->append(std::make_unique<engine::LayerNorm>(10, DType::kF16, 1e-5, kInput));
  const auto trainer = trainer_of(std::move(model), {.algorithm = "sgd"},
                                  engine::digits_train_batches(64, 1, DType::kF16), classify);
  expect_all_repeat(repeat_training(*trainer, 2), {"native_batch_norm", "native_batch_norm_backward",
                                                   "native_layer_norm", "native_layer_norm_backward"});
}

TEST(EngineOps, that_do_not_fit_their_arguments_are_refused_and_named) {
  const auto runner = make_engine_op_runner();
  const hunt::Array pair{DType::kF32, {2}, {}, std::vector<std::byte>(8)};
  EXPECT_FALSE(runner->knows("permute"));
  EXPECT_FALSE(runner->knows("rm -rf"));
  EXPECT_TRUE(runner->knows("sqrt_backward"));
  const hunt::RunnerOutput out{"out", DType::kF32, {2}};
  for (const hunt::RunnerCall& bad :
       {hunt::RunnerCall{"permute", {{"self", &pair}}, {}, {out}}, hunt::RunnerCall{"mul", {}, {}, {out}},
        hunt::RunnerCall{"mm", {{"self", &pair}, {"mat2", &pair}}, {}, {out}},
        hunt::RunnerCall{"softmax", {{"self", &pair}}, {{"dim", 7.0}}, {out}},
        hunt::RunnerCall{"sqrt_backward", {{"self", &pair}}, {}, {{"grad_self", DType::kF32, {2}}}}}) {
    const auto result = runner->run(bad);
    ASSERT_FALSE(result.is_ok()) << bad.op;
    EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(result.status().message().find(std::string(bad.op)), std::string::npos) << result.status().message();
  }
}

}  // namespace
}  // namespace nanhunt::hooks
