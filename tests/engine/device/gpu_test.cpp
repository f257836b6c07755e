// SPDX-License-Identifier: Apache-2.0
// The engine on a GPU against the CPU, where there is one: every op, and a whole run twice. Skips and says why
// elsewhere.
#include <algorithm>
#include <cmath>

#include "kernels/nccl.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/ranks.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/device/device_support.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

constexpr Device kCuda{DeviceKind::kCuda, 0};

// Products and the device's own functions differ in the last bits: by a few units of the format, of the largest term.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 4e-3;
    case DType::kBF16:
      return 3e-2;
    case DType::kF32:
      return 1e-5;
    default:
      return 1e-12;
  }
}

void expect_near(const Tensor& expected, const Tensor& actual, double relative) {
  ASSERT_EQ(expected.defined(), actual.defined());
  if (!expected.defined()) return;
  ASSERT_EQ(expected.sizes(), actual.sizes());
  ASSERT_EQ(expected.dtype(), actual.dtype());
  const std::vector<double> a = expected.to_vector(), b = actual.to_vector();
  double scale = 1;
  for (const double x : a) scale = std::isfinite(x) ? std::max(scale, std::fabs(x)) : scale;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i])) {
      EXPECT_NEAR(a[i], b[i], relative * scale) << "element " << i;
    } else {
      EXPECT_TRUE(std::isnan(a[i]) ? std::isnan(b[i]) : a[i] == b[i]) << "element " << i;
    }
  }
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(kCuda); !why.empty()) GTEST_SKIP() << "no GPU to test on: " << why;
  }
};

TEST_F(OnGpu, a_rank_by_itself_sums_by_nccl_what_it_sums_through_the_host) {
  if (std::string missing; kernels::load_nccl(missing) == nullptr) GTEST_SKIP() << missing;
  run_ranks(1, [](const std::shared_ptr<RankGroup>& host) {
    std::string why;
    const std::shared_ptr<RankGroup> ranks = with_nccl(host, kCuda, why);
    ASSERT_EQ(why, "") << "the library is there";
    ASSERT_NE(ranks->communicator(kCuda), nullptr);
    Tensor mine = Tensor::full({1000}, 0.1, DType::kF16).on(kCuda), same = mine.clone();
    all_reduce_(mine, *ranks);
    broadcast_(mine, *ranks);
    all_reduce_(same, *host);
    EXPECT_EQ(mine.to_vector(), same.to_vector());
  });
}

TEST_F(OnGpu, every_op_agrees_with_the_cpu) {
  std::vector<OpCase> cases = op_cases();
  for (OpCase& c : inplace_cases()) cases.push_back(std::move(c));
  int compared = 0;
  for (const OpCase& c : cases) {
    if (c.label.starts_with("scaled_dot_product_attention_")) continue;  // capture masks of the CPU
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
      SCOPED_TRACE(c.label + " in " + std::string(dtype_name(dtype)));
      std::vector<Tensor> here, there;
      for (const Tensor& input : c.inputs) {
        here.push_back(is_floating(input.dtype()) ? same_as(input, dtype) : input);
        there.push_back(same_on(here.back(), kCuda));
      }
      const Tensor expected = c.call(here);
      const Tensor actual = c.call(there);
      ++compared;
      expect_near(expected, actual, tolerance(dtype));
      if (!expected.requires_grad()) continue;
      const Tensor weights = spread_tensor(expected.sizes(), 0.5, 1.5, expected.dtype());
      sum(mul(expected, weights)).backward();
      sum(mul(actual, weights.on(kCuda))).backward();
      for (std::size_t i = 0; i < here.size(); ++i) expect_near(here[i].grad(), there[i].grad(), 4 * tolerance(dtype));
    }
  }
  EXPECT_GT(compared, 500);
}

TEST_F(OnGpu, a_run_gives_the_same_bits_twice_and_learns_as_on_the_cpu) {
  const auto losses = [](const Device& device) {
    auto model = std::make_unique<Mlp>(MlpOptions{.sizes = {64, 32, 10}});
    model->to(device);
    auto parameters = model->named_parameters();
    Trainer trainer(
        std::move(model), make_optimizer(std::move(parameters), {.algorithm = "adam", .lr = 1e-2}),
        [batches = digits_train_batches(32, 3, DType::kF32), device](std::uint32_t step) {
          Batch batch = batches(step);
          return Batch{batch.inputs.on(device), batch.targets.on(device), batch.sample_ids};
        },
        [](const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); },
        {.autocast = AutocastOptions{}, .scaler = GradScalerOptions{}});
    std::vector<double> out;
    for (int i = 0; i < 30; ++i) out.push_back(trainer.step().loss);
    return out;
  };
  const std::vector<double> first = losses(kCuda), second = losses(kCuda), cpu = losses({});
  EXPECT_EQ(first, second);
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(first[i], cpu[i], 0.02) << "step " << i;
}

}  // namespace
}  // namespace nanhunt::engine::testing
