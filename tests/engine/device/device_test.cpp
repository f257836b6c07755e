// SPDX-License-Identifier: Apache-2.0
// Tensors on a device: where they lie, how they come and go, what waits, and what is refused.
#include <gmock/gmock.h>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "nanhunt/engine/trainer.h"
#include "src/engine/backend.h"
#include "tests/engine/device/device_support.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::Order;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(DeviceNames, are_read_and_written) {
  EXPECT_EQ(parse_device("cpu"), Device{});
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::kCuda, 0}));
  EXPECT_EQ(parse_device("cuda:3"), (Device{DeviceKind::kCuda, 3}));
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "emulated"}) {
    EXPECT_EQ(parse_device(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(describe(Device{DeviceKind::kCuda, 3}), "cuda:3");
  EXPECT_EQ(why_unusable({}), "");
}

TEST(DeviceNames, that_cannot_be_used_say_why_and_what_to_do) {
  const Device far{DeviceKind::kCuda, 999};
  const std::string why = why_unusable(far);
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(message_of([&] { Tensor::zeros({1}, DType::kF32, far); }), "cuda:999 cannot be used: " + why);
}

TEST(DeviceNames, say_what_products_may_round_besides) {
  const ScopedEmulatedDevice emulated;
  EXPECT_EQ(device_details(kEmulated), "emulated");
  set_product_math(kEmulated, {.tf32 = true});
  EXPECT_EQ(device_details(kEmulated), "emulated (TF32 on, reduced-precision reduction off)");
  set_product_math({}, {.tf32 = true});  // the CPU has none of it
  EXPECT_EQ(device_details({}), "cpu");
}

TEST(DeviceTensor, goes_there_and_back) {
  ScopedEmulatedDevice emulated;
  const Tensor here = strided_copy(spread_tensor({3, 4}, -2, 2, DType::kF16));
  const Tensor there = here.on(kEmulated);
  EXPECT_EQ(there.device(), kEmulated);
  EXPECT_TRUE(there.is_contiguous());
  EXPECT_EQ(there.to_vector(), here.to_vector());
  EXPECT_EQ(there.at(5), here.at(5));
  EXPECT_EQ(select(select(there, 0, 1), 0, 2).item(), here.at(6));
  EXPECT_EQ(there.on(kEmulated).storage(), there.storage());
  EXPECT_EQ(transpose(there, 0, 1).on(Device{}).to_vector(), transpose(here, 0, 1).to_vector());
  EXPECT_EQ(Tensor::zeros({0, 3}, DType::kF32).on(kEmulated).numel(), 0);
  EXPECT_EQ(Tensor::full({2, 2}, -1.5, DType::kBF16, kEmulated).to_vector(), std::vector<double>(4, -1.5));
  EXPECT_EQ(Tensor::zeros({3}, DType::kI64, kEmulated).to_vector(), std::vector<double>(3, 0.0));
}

TEST(DeviceTensor, keeps_its_contents_from_the_host) {
  ScopedEmulatedDevice emulated;
  const Tensor there = Tensor::zeros({2}, DType::kF32, kEmulated);
  EXPECT_EQ(there.view().data, nullptr);
  EXPECT_EQ(there.view().numel(), 2);
  EXPECT_THAT(message_of([&] { static_cast<void>(there.raw()); }), HasSubstr("got fp32 [2] on emulated"));
}

TEST(DeviceTensor, is_copied_to_and_from_by_assignment) {
  ScopedEmulatedDevice emulated;
  Tensor there = Tensor::zeros({2, 3}, DType::kF16, kEmulated);
  const Tensor here = spread_tensor({2, 3}, -2, 2, DType::kF32);
  there.copy_from(here);
  EXPECT_EQ(there.version(), 1U);
  EXPECT_EQ(there.to_vector(), to(here, DType::kF16).to_vector());
  Tensor back = Tensor::zeros({2, 3}, DType::kF32);
  back.copy_from(there);
  EXPECT_EQ(back.to_vector(), there.to_vector());
  // A window onto itself.
  Tensor row = spread_tensor({6}, -2, 2, DType::kF32).on(kEmulated), same = spread_tensor({6}, -2, 2, DType::kF32);
  narrow(row, 0, 1, 5).copy_from(narrow(row, 0, 0, 5));
  narrow(same, 0, 1, 5).copy_from(narrow(same, 0, 0, 5));
  EXPECT_EQ(row.to_vector(), same.to_vector());
}

TEST(DeviceTensor, meets_only_numbers_from_elsewhere) {
  ScopedEmulatedDevice emulated;
  const Tensor there = spread_tensor({2, 2}, -2, 2, DType::kF32).on(kEmulated),
               here = spread_tensor({2, 2}, -2, 2, DType::kF32);
  const Tensor number = Tensor::full({}, 3, DType::kF32);
  EXPECT_EQ(mul(there, number).device(), kEmulated);
  EXPECT_EQ(mul(number, there).to_vector(), mul(here, number).to_vector());
  EXPECT_THAT(message_of([&] { add(there, here); }), HasSubstr("expected tensors on one device"));
  EXPECT_THAT(message_of([&] { matmul(there, here); }), HasSubstr("[mm] expected tensors on one device"));
  EXPECT_THAT(message_of([&] { layer_norm(there, Tensor::full({2}, 1, DType::kF32), {}); }),
              HasSubstr("[native_layer_norm] expected tensors on one device"));
}

TEST(DeviceTensor, of_indices_from_the_cpu_waits_for_nothing_to_be_read) {
  ScopedEmulatedDevice emulated;
  Tensor there = Tensor::from_indices(std::vector<std::int64_t>{3, 1, 2}, {3}).on(kEmulated);
  const std::uint64_t before = emulated.device.waits;
  EXPECT_EQ(there.to_indices(), (std::vector<std::int64_t>{3, 1, 2}));
  EXPECT_EQ(narrow(there, 0, 1, 2).to_indices(), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(emulated.device.waits, before);
  // Once written to, they are read.
  fill_(there, 7);
  EXPECT_EQ(there.to_indices(), (std::vector<std::int64_t>{7, 7, 7}));
  EXPECT_GT(emulated.device.waits, before);
}

TEST(DeviceIndices, out_of_range_are_refused_by_position) {
  ScopedEmulatedDevice emulated;
  const Tensor table = spread_tensor({4, 2}, -1, 1, DType::kF32).on(kEmulated);
  const Tensor rows = Tensor::from_indices(std::vector<std::int64_t>{1, 4}, {2}).on(kEmulated);
  EXPECT_EQ(message_of([&] { embedding(table, rows); }),
            "[embedding] expected indices from 0 to 3, got 4 at position 1");
}

// Whole runs. `device` is where they train.
using Made = std::unique_ptr<Trainer>;

std::vector<double> everything(Trainer& trainer, int steps) {
  std::vector<double> out;
  for (int i = 0; i < steps; ++i) {
    const StepResult result = trainer.step();
    out.push_back(result.loss);
    out.push_back(result.scale);
    out.push_back(result.skipped ? 1 : 0);
  }
  const auto add = [&](const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& entry : tensors) {
      const std::vector<double> values = entry.tensor.to_vector();
      out.insert(out.end(), values.begin(), values.end());
    }
  };
  add(trainer.model().named_parameters());
  add(trainer.optimizer().named_state());
  return out;
}

BatchSource moved(BatchSource batches, const Device& device) {
  return [batches = std::move(batches), device](std::uint32_t step) {
    Batch batch = batches(step);
    batch.inputs = batch.inputs.on(device);
    batch.targets = batch.targets.on(device);
    return batch;
  };
}

Made make_mlp(const Device& device, const OptimizerOptions& optimizer, const TrainerOptions& options,
              DType dtype = DType::kF32) {
  auto model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 24, 10}, .dtype = dtype});
  model->to(device);
  auto parameters = model->named_parameters();
  return std::make_unique<Trainer>(
      std::move(model), make_optimizer(std::move(parameters), optimizer),
      moved(digits_train_batches(8, 3, dtype), device),
      [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); }, options);
}

TEST(DeviceTraining, of_a_perceptron_gives_the_bits_of_the_cpu) {
  struct Way {
    std::string name;
    OptimizerOptions optimizer;
    TrainerOptions options;
    DType dtype = DType::kF32;
  };
  const TrainerOptions mixed{.autocast = AutocastOptions{},
                             .scaler = GradScalerOptions{.init_scale = 0x1p30, .growth_interval = 3},
                             .clip_norm = 0.5};
  const std::vector<Way> ways = {
      {"sgd", {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}, {}},
      {"fused_sgd", {.algorithm = "sgd", .lr = 0.1, .momentum = 0.9, .impl = OptimizerImpl::kFused}, {}},
      {"mixed_adam", {.algorithm = "adam", .lr = 1e-2}, mixed},
      {"mixed_fused_adamw",
       {.algorithm = "adamw", .lr = 1e-2, .weight_decay = 0.1, .impl = OptimizerImpl::kFused},
       mixed},
      {"fp16_adam_with_masters", {.algorithm = "adam", .lr = 1e-2, .fp32_masters = true}, {}, DType::kF16},
      {"bf16_adam", {.algorithm = "adam", .lr = 1e-2, .eps = 1e-3}, {}, DType::kBF16},
      {"accumulated", {.algorithm = "adam", .lr = 1e-2}, {.micro_batches = 2}},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const std::vector<double> expected = everything(*make_mlp({}, way.optimizer, way.options, way.dtype), 6);
    ScopedEmulatedDevice emulated;
    emulated.device.order = Order::kShuffled;
    const std::vector<double> actual = everything(*make_mlp(kEmulated, way.optimizer, way.options, way.dtype), 6);
    EXPECT_EQ(actual, expected);
  }
}

TEST(DeviceTraining, of_a_transformer_gives_the_bits_of_the_cpu) {
  const auto make = [](const Device& device) {
    GptOptions options{.layers = 1, .block = {}};
    options.block.dims = 16;
    options.block.heads = 2;
    options.block.context = 16;
    options.block.dropout = 0.1;
    auto model = std::make_unique<Gpt>(options);
    model->to(device);
    auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "adamw", .lr = 1e-2});
    return std::make_unique<Trainer>(std::move(model), std::move(optimizer),
                                     moved(text_train_batches(2, 16, 1), device), next_token_loss,
                                     TrainerOptions{.autocast = AutocastOptions{}, .scaler = GradScalerOptions{}});
  };
  const std::vector<double> expected = everything(*make({}), 3);
  ScopedEmulatedDevice emulated;
  EXPECT_EQ(everything(*make(kEmulated), 3), expected);
}

TEST(DeviceTraining, waits_once_for_the_loss_and_once_for_the_scaler) {
  ScopedEmulatedDevice emulated;
  const Made plain = make_mlp(kEmulated, {.algorithm = "adam"}, {});
  const Made scaled =
      make_mlp(kEmulated, {.algorithm = "adam"}, {.autocast = AutocastOptions{}, .scaler = GradScalerOptions{}});
  for (const auto& [trainer, waits] : {std::pair{plain.get(), 1U}, std::pair{scaled.get(), 2U}}) {
    trainer->step();
    const std::uint64_t before = emulated.device.waits;
    trainer->step();
    EXPECT_EQ(emulated.device.waits - before, waits);
  }
}

TEST(DeviceTraining, waits_once_for_a_clipped_norm_however_many_parameters_there_are) {
  ScopedEmulatedDevice emulated;
  const Made clipped = make_mlp(kEmulated, {.algorithm = "adam"}, {.clip_norm = 0.5});
  clipped->step();
  const std::uint64_t before = emulated.device.waits;
  clipped->step();
  EXPECT_EQ(emulated.device.waits - before, 2U);  // and once for the loss
}

TEST(DeviceTraining, reads_its_loss_when_all_work_of_the_step_is_on_its_way) {
  ScopedEmulatedDevice emulated;
  const Made trainer = make_mlp(kEmulated, {.algorithm = "adam"}, {.micro_batches = 2});
  trainer->step();
  const std::uint64_t before = emulated.device.waits;
  std::uint64_t at_boundary = 0;
  trainer->set_boundary_callback([&](Trainer&) { at_boundary = emulated.device.waits; });
  trainer->step();
  EXPECT_EQ(at_boundary, before);
  EXPECT_EQ(emulated.device.waits - before, 2U);  // one for each micro-batch's
}

class Silent : public Observer {};

}  // namespace
}  // namespace nanhunt::engine::testing
