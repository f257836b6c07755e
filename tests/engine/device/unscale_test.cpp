// SPDX-License-Identifier: Apache-2.0
// A loss scaler's check and unscale of all gradients at once, on the emulated device: the bits of the CPU, and one
// launch.
#include <cmath>
#include <limits>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/optimizer.h"
#include "src/engine/amp/scaler_ops.h"
#include "src/engine/backend.h"
#include "tests/engine/device/device_support.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using testing_support::Order;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every so often something that is not finite, a zero of each sign, a subnormal.
Tensor odd_gradient(std::int64_t count, DType dtype, bool finite) {
  Tensor out = Tensor::zeros({count}, DType::kF32);
  for (std::int64_t i = 0; i < count; ++i) {
    const float plain = std::ldexp(static_cast<float>(i % 251) - 125.0F, static_cast<int>(i % 24) - 16);
    const float odd[] = {-0.0F, 1e-41F, kInfinity, -kInfinity, std::nanf("")};
    const std::int64_t which = i % 97;
    out.data<float>()[i] = which < (finite ? 2 : 5) ? odd[which] : plain;
  }
  return to(out, dtype);
}

// On the device from the second element of a larger tensor on: its first is not a multiple of 16 bytes.
Tensor shifted(const Tensor& tensor) {
  Tensor room = Tensor::zeros({tensor.numel() + 2}, tensor.dtype(), kEmulated);
  Tensor part = narrow(room, 0, 1, tensor.numel());
  part.copy_from(tensor);
  return part;
}

// Unscales copies on the CPU one by one, and says what is found and what becomes of them.
struct Expected {
  bool found = false;
  std::vector<Tensor> grads;
};
Expected unscaled_by_the_cpu(const std::vector<Tensor>& grads, float inv_scale) {
  Expected out;
  for (const Tensor& grad : grads) {
    out.grads.push_back(grad.clone());
    out.found = amp::check_and_unscale_(out.grads.back(), inv_scale) || out.found;
  }
  return out;
}

bool unscale_there(const std::vector<Tensor>& grads, float inv_scale) {
  const Tensor found = Tensor::zeros({1}, DType::kI32, kEmulated);
  std::vector<amp::NamedGradient> named;
  for (const Tensor& grad : grads) named.push_back({"p" + std::to_string(named.size()), grad});
  amp::check_and_unscale_(named, inv_scale, found);
  return found.item() != 0;
}

TEST(UnscaleOfMany, gives_the_bits_and_the_flag_of_the_cpu) {
  for (const Order order : {Order::kForwards, Order::kBackwards, Order::kShuffled}) {
    for (const bool finite : {true, false}) {
      for (const float inv_scale : {0x1p-16F, 1.0F / 3, 1.0F}) {
        ScopedEmulatedDevice emulated;
        emulated.device.order = order;
        // given lengths around those of a vector and of a piece, in all formats, aligned and not
        std::vector<Tensor> here, there;
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kF16}) {
          for (const std::int64_t length : {0, 1, 3, 4, 5, 97, 2047, 2048, 2049, 6150}) {
            for (const bool aligned : {true, false}) {
              here.push_back(odd_gradient(length, dtype, finite));
              there.push_back(aligned ? here.back().on(kEmulated) : shifted(here.back()));
            }
          }
        }
        const Expected expected = unscaled_by_the_cpu(here, inv_scale);
        // when
        const std::uint64_t before = emulated.device.launches;
        const bool found = unscale_there(there, inv_scale);
        // then
        EXPECT_EQ(emulated.device.launches - before, 1U);
        EXPECT_EQ(found, expected.found);
        EXPECT_EQ(found, !finite);
        for (std::size_t i = 0; i < there.size(); ++i) EXPECT_TRUE(same_values(expected.grads[i], there[i])) << i;
      }
    }
  }
}

TEST(UnscaleOfMany, takes_as_few_launches_as_its_table_allows) {
  ScopedEmulatedDevice emulated;
  for (const auto& [count, launches] : {std::pair{1, 1U}, {168, 1U}, {169, 2U}, {1344, 8U}, {1345, 9U}}) {
    std::vector<Tensor> grads;
    for (int i = 0; i < count; ++i) grads.push_back(Tensor::full({i % 3 + 1}, i, DType::kF32, kEmulated));
    grads.back().copy_from(Tensor::full(grads.back().sizes(), kInfinity, DType::kF32));
    const std::uint64_t before = emulated.device.launches;
    const bool found = unscale_there(grads, 0.5F);
    EXPECT_EQ(emulated.device.launches - before, launches) << count;
    EXPECT_TRUE(found) << count;  // the last one was not left out
    for (int i = 0; i + 1 < count; ++i) EXPECT_EQ(grads[static_cast<std::size_t>(i)].at(0), i * 0.5) << count;
  }
}

TEST(UnscaleOfMany, finds_one_bad_element_wherever_it_is) {
  ScopedEmulatedDevice emulated;
  for (const std::int64_t at : {0, 1, 2047, 2048, 4098, 4099}) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      std::vector<Tensor> grads;
      for (int i = 0; i < 5; ++i) grads.push_back(Tensor::full({4100}, 1, DType::kF32));
      grads[3].data<float>()[at] = bad;
      for (Tensor& grad : grads) grad = grad.on(kEmulated);
      EXPECT_TRUE(unscale_there(grads, 0.5F)) << at;
    }
  }
}

TEST(UnscaleOfMany, leaves_alone_what_lies_between_the_elements_of_a_gradient) {
  ScopedEmulatedDevice emulated;
  const Tensor whole = spread_tensor({6, 10}, -4, 4, DType::kF32).on(kEmulated);
  const std::vector<double> before = whole.to_vector();
  const Tensor gapped = narrow(whole, 1, 2, 3);
  const Tensor turned = transpose(spread_tensor({5, 7}, -4, 4, DType::kF32).on(kEmulated), 0, 1);
  const std::vector<double> turned_before = turned.to_vector();
  const std::uint64_t launched = emulated.device.launches;
  EXPECT_FALSE(unscale_there({gapped, turned}, 0.25F));
  EXPECT_EQ(emulated.device.launches - launched, 2U);  // the one with gaps has a launch of its own
  const std::vector<double> after = whole.to_vector(), turned_after = turned.to_vector();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::size_t column = i % 10;
    EXPECT_EQ(after[i], column >= 2 && column < 5 ? before[i] * 0.25 : before[i]) << i;
  }
  for (std::size_t i = 0; i < turned_before.size(); ++i) EXPECT_EQ(turned_after[i], turned_before[i] * 0.25) << i;
}

struct Scaled {
  std::vector<NamedTensor> parameters;  // all but the last one have gradients of 8
  std::unique_ptr<Optimizer> optimizer;
  GradScaler scaler{{.init_scale = 8}};
  Scaled() {
    for (int i = 0; i < 20; ++i) {
      Tensor p = Tensor::zeros({i + 1}, DType::kF32, kEmulated);
      p.set_requires_grad(true);
      parameters.push_back({"layer." + std::to_string(i), p});
    }
    optimizer = make_optimizer(parameters, {.algorithm = "sgd", .lr = 0.1});
    Tensor loss = Tensor::zeros({}, DType::kF32, kEmulated);
    for (int i = 0; i < 19; ++i) loss = add(loss, sum(parameters[static_cast<std::size_t>(i)].tensor));
    scaler.scale(loss).backward();
  }
};

TEST(UnscaleOfMany, is_one_launch_and_one_wait_of_a_scaler) {
  ScopedEmulatedDevice emulated;
  Scaled s;
  const std::uint64_t launches = emulated.device.launches, waits = emulated.device.waits;
  s.scaler.unscale_(*s.optimizer);
  EXPECT_EQ(emulated.device.launches - launches, 1U);
  EXPECT_EQ(emulated.device.waits - waits, 1U);
  for (std::size_t i = 0; i < 19; ++i) EXPECT_EQ(s.parameters[i].tensor.grad().at(0), 1) << i;
}

// Keeps what the gradients held when each op was told.
class Gradients : public Observer {
 public:
  explicit Gradients(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {}
  void on_op(const OpCall& call) noexcept override {
    EXPECT_EQ(call.op, "_amp_foreach_non_finite_check_and_unscale_");
    EXPECT_EQ(call.phase, Phase::kUnscale);
    EXPECT_EQ(call.inputs[0].version + 1, call.outputs[0].version);
    modules.emplace_back(call.module);
    std::vector<double> now;
    for (std::size_t i = 0; i < 19; ++i) now.push_back(parameters_[i].tensor.grad().at(0));
    seen.push_back(now);
  }
  std::vector<std::string> modules;
  std::vector<std::vector<double>> seen;

 private:
  const std::vector<NamedTensor>& parameters_;
};

TEST(UnscaleOfMany, is_told_gradient_by_gradient_each_before_the_next_is_written_over) {
  ScopedEmulatedDevice emulated;
  Scaled s;
  Gradients gradients(s.parameters);
  const HookHandle handle = add_observer(gradients);
  s.scaler.unscale_(*s.optimizer);
  ASSERT_EQ(gradients.modules.size(), 19U);
  for (std::size_t op = 0; op < 19; ++op) {
    EXPECT_EQ(gradients.modules[op], "layer." + std::to_string(op));
    for (std::size_t i = 0; i < 19; ++i) EXPECT_EQ(gradients.seen[op][i], i <= op ? 1 : 8) << op << ", " << i;
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
