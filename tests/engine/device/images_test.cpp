// SPDX-License-Identifier: Apache-2.0
// What image models are made of, on a device against the CPU engine, bit for bit: every way windows can lie, sizes that
// do not come out even, several chunks of columns, numbers that went wrong, running statistics, and whole runs.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/device/device_support.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::Order;

constexpr DType kFormats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
constexpr Order kOrders[] = {Order::kForwards, Order::kBackwards, Order::kShuffled};

using Call = std::function<Tensor(const std::vector<Tensor>&)>;

// The result, then the gradients of all inputs; on the CPU.
std::vector<Tensor> results_of(const Call& call, const std::vector<Tensor>& inputs, const Device& device) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.on(device).detach().set_requires_grad(true));
  const Tensor out = call(leaves);
  EXPECT_EQ(out.device(), device);
  sum(mul(out, spread_tensor(out.sizes(), 0.5, 1.5, out.dtype()).on(device))).backward();
  std::vector<Tensor> results{out.detach().on(Device{})};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad().defined() ? leaf.grad().on(Device{}) : Tensor());
  return results;
}

void expect_bits_of_the_cpu(const Call& call, const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> expected = results_of(call, inputs, Device{});
  for (const Order order : kOrders) {
    ScopedEmulatedDevice emulated;
    emulated.device.order = order;
    const std::vector<Tensor> actual = results_of(call, inputs, kEmulated);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_values(expected[i], actual[i])) << (i == 0 ? "the result" : "a gradient, input ") << i;
    }
  }
}

struct Sizes {
  Shape images, filters;
  std::int64_t stride, padding;
};
const Sizes kConvolutions[] = {
    {{3, 2, 5, 5}, {4, 2, 3, 3}, 1, 1},     // the image's own size
    {{2, 3, 7, 4}, {5, 3, 2, 4}, 1, 0},     // a window that is not square
    {{2, 1, 9, 6}, {1, 1, 3, 3}, 2, 1},     // steps
    {{2, 2, 7, 8}, {3, 2, 2, 2}, 3, 0},     // steps over pixels, and a rest
    {{1, 2, 2, 3}, {2, 2, 3, 3}, 1, 3},     // windows that see nothing but padding
    {{1, 2, 3, 3}, {2, 2, 1, 1}, 2, 2},     // a step that meets some pixels alone
    {{4, 3, 1, 1}, {2, 3, 1, 1}, 1, 0},     // one pixel
    {{40, 8, 8, 8}, {6, 8, 3, 3}, 1, 1},    // several chunks of columns
    {{9, 16, 12, 11}, {3, 16, 3, 3}, 2, 1}, // several, and the last one smaller
    {{0, 2, 4, 4}, {3, 2, 3, 3}, 1, 1},     // no images
    {{2, 0, 4, 4}, {3, 0, 3, 3}, 1, 1},     // no channels
    {{2, 2, 4, 4}, {0, 2, 3, 3}, 1, 1},     // no filters
};

TEST(OnDeviceConvolution, of_every_shape_gives_the_bits_of_the_cpu) {
  for (const Sizes& s : kConvolutions) {
    for (const DType dtype : kFormats) {
      SCOPED_TRACE(::testing::PrintToString(s.images) + " with " + ::testing::PrintToString(s.filters) + " in " +
                   std::string(dtype_name(dtype)));
      const std::vector<Tensor> inputs = {spread_tensor(s.images, -2, 3, dtype), spread_tensor(s.filters, -1, 2, dtype),
                                          spread_tensor({s.filters[0]}, -1, 1, dtype)};
      expect_bits_of_the_cpu([&](const auto& in) { return conv2d(in[0], in[1], in[2], s.stride, s.padding); }, inputs);
      expect_bits_of_the_cpu([&](const auto& in) { return conv2d(in[0], in[1], {}, s.stride, s.padding); },
                             {inputs[0], inputs[1]});
    }
  }
}

TEST(OnDeviceConvolution, in_groups_gives_the_bits_of_the_cpu) {
  for (const std::int64_t groups : {1, 2, 3, 6}) {
    for (const DType dtype : kFormats) {
      SCOPED_TRACE(std::to_string(groups) + " groups in " + std::string(dtype_name(dtype)));
      const std::vector<Tensor> inputs = {spread_tensor({21, 6, 7, 8}, -2, 3, dtype),
                                          spread_tensor({12, 6 / groups, 3, 3}, -1, 2, dtype),
                                          spread_tensor({12}, -1, 1, dtype)};
      expect_bits_of_the_cpu([&](const auto& in) { return conv2d(in[0], in[1], in[2], 2, 1, groups); }, inputs);
      expect_bits_of_the_cpu([&](const auto& in) { return conv2d(in[0], in[1], {}, 1, 1, groups); },
                             {inputs[0], inputs[1]});
    }
  }
}

TEST(OnDeviceConvolution, gives_the_same_however_many_images_are_unfolded_at_a_time) {
  // Whole numbers: every order of a sum gives the same bits.
  std::vector<double> values;
  for (int i = 0; i < 7 * 3 * 6 * 5; ++i) values.push_back(i * 37 % 11 - 5);
  const Tensor images = Tensor::from_values(values, {7, 3, 6, 5}, DType::kF32);
  values.resize(4 * 3 * 3 * 3);
  const Tensor filters = Tensor::from_values(values, {4, 3, 3, 3}, DType::kF32);
  const Tensor bias = Tensor::from_values(std::vector<double>{1, -2, 3, 0}, {4}, DType::kF32);
  const auto run = [&](const Device& device) {
    std::vector<Tensor> in;
    for (const Tensor& input : {images, filters, bias}) in.push_back(input.on(device).detach().set_requires_grad(true));
    const Tensor out = conv2d(in[0], in[1], in[2], 1, 1);
    sum(mul(out, out.detach())).backward();
    return std::vector<Tensor>{out.detach().on(Device{}), in[0].grad().on(Device{}), in[1].grad().on(Device{}),
                               in[2].grad().on(Device{})};
  };
  const std::vector<Tensor> expected = run(Device{});
  for (const std::int64_t bytes : {1, 3 * 27 * 30 * 4, 1 << 20}) {  // one image, three, all
    ScopedEmulatedDevice emulated;
    emulated.device.columns = bytes;
    const std::vector<Tensor> actual = run(kEmulated);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_values(expected[i], actual[i])) << bytes << ", " << i;
  }
}

TEST(OnDeviceConvolution, of_16_bits_rounds_once) {
  // given a product that rounds down to 2048 in fp16, and a bias that then would not count
  const Tensor image = Tensor::from_values(std::vector<double>{2048, 1}, {1, 2, 1, 1}, DType::kF16);
  const Tensor filter = Tensor::full({1, 2, 1, 1}, 1, DType::kF16), bias = Tensor::full({1}, 1, DType::kF16);
  ScopedEmulatedDevice emulated;
  EXPECT_EQ(conv2d(image.on(kEmulated), filter.on(kEmulated), bias.on(kEmulated)).item(), 2050);
}

TEST(OnDeviceConvolution, computes_no_gradient_that_nobody_wants) {
  ScopedEmulatedDevice emulated;
  const Tensor image = spread_tensor({2, 2, 4, 4}, -2, 2, DType::kF32).on(kEmulated);
  Tensor filter = spread_tensor({3, 2, 3, 3}, -2, 2, DType::kF32).on(kEmulated).set_requires_grad(true);
  const Tensor out = conv2d(image, filter, {}, 1, 1);
  const Tensor weights = spread_tensor(out.sizes(), 0.5, 1.5, DType::kF32).on(kEmulated);
  const Tensor loss = sum(mul(out, weights));
  const std::uint64_t before = emulated.device.launches;
  loss.backward();
  EXPECT_TRUE(filter.grad().defined());
  EXPECT_FALSE(image.grad().defined());
  // Of the sum and the product, then: planes by channel, columns, product.
  EXPECT_LE(emulated.device.launches - before, 6U);
}

TEST(OnDeviceConvolution, under_autocast_computes_in_fp16_as_on_the_cpu) {
  const Tensor image = spread_tensor({2, 3, 6, 6}, -2, 2, DType::kF32),
               filter = spread_tensor({4, 3, 3, 3}, -1, 1, DType::kF32);
  const Tensor bias = spread_tensor({4}, -1, 1, DType::kF32);
  const auto call = [](const std::vector<Tensor>& in) {
    const Autocast autocast;
    const Tensor out = conv2d(in[0], in[1], in[2], 1, 1);
    EXPECT_EQ(out.dtype(), DType::kF16);
    return out;
  };
  expect_bits_of_the_cpu(call, {image, filter, bias});
}

TEST(OnDevicePooling, of_every_shape_gives_the_bits_of_the_cpu) {
  struct Pool {
    Shape images;
    std::int64_t kernel, stride, padding;
  };
  for (const Pool& p : {Pool{{2, 3, 6, 8}, 2, 0, 0}, Pool{{2, 2, 7, 5}, 3, 1, 1}, Pool{{1, 2, 9, 9}, 3, 2, 1},
                        Pool{{3, 1, 5, 7}, 2, 3, 1}, Pool{{1, 1, 4, 4}, 4, 1, 2}, Pool{{2, 2, 5, 5}, 5, 0, 0},
                        Pool{{1, 2, 3, 4}, 1, 2, 0}, Pool{{0, 2, 4, 4}, 2, 0, 0}, Pool{{2, 0, 4, 4}, 2, 0, 0}}) {
    for (const DType dtype : kFormats) {
      SCOPED_TRACE(::testing::PrintToString(p.images) + " by " + std::to_string(p.kernel) + " in " +
                   std::string(dtype_name(dtype)));
      const std::vector<Tensor> inputs = {spread_tensor(p.images, -2, 3, dtype)};
      expect_bits_of_the_cpu([&](const auto& in) { return max_pool2d(in[0], p.kernel, p.stride, p.padding); }, inputs);
      expect_bits_of_the_cpu([&](const auto& in) { return avg_pool2d(in[0], p.kernel, p.stride, p.padding); }, inputs);
    }
  }
}

TEST(OnDevicePooling, of_ties_and_of_what_is_not_finite_chooses_as_on_the_cpu) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::vector<double>> windows = {
      {1, 1, 1, 1}, {-0.0, 0.0, 0.0, -0.0}, {kNaN, 1, kNaN, 2}, {kInf, kNaN, kInf, 1}, {-kInf, -kInf, -kInf, -kInf},
      {-kInf, 3, 3, -kInf}, {1, kInf, kInf, 2}, {65504, 65504, -65504, 1}};
  for (const DType dtype : kFormats) {
    for (const std::vector<double>& values : windows) {
      const Tensor image = Tensor::from_values(values, {1, 1, 2, 2}, dtype);
      expect_bits_of_the_cpu([](const auto& in) { return max_pool2d(in[0], 2); }, {image});
      expect_bits_of_the_cpu([](const auto& in) { return max_pool2d(in[0], 2, 1, 1); }, {image});
      expect_bits_of_the_cpu([](const auto& in) { return avg_pool2d(in[0], 2, 1, 1); }, {image});
    }
  }
}

TEST(OnDeviceUpsampling, of_every_shape_gives_the_bits_of_the_cpu) {
  for (const Shape& images : {Shape{2, 3, 2, 5}, Shape{1, 1, 1, 1}, Shape{0, 2, 3, 3}, Shape{2, 2, 3, 0}}) {
    for (const std::int64_t scale : {1, 2, 5}) {
      for (const DType dtype : kFormats) {
        SCOPED_TRACE(::testing::PrintToString(images) + " by " + std::to_string(scale));
        expect_bits_of_the_cpu([&](const auto& in) { return upsample_nearest2d(in[0], scale); },
                               {spread_tensor(images, -2, 3, dtype)});
      }
    }
  }
}

// Input and parameters; the running statistics are part of the result.
struct Normalised {
  Shape input;
  DType dtype, parameters;
  bool training;
  NormStatistics statistics = NormStatistics::kOpMath;
};

std::vector<Tensor> normalise(const Normalised& n, const Device& device, bool strided) {
  const std::int64_t channels = n.input[1];
  const auto make = [&](const Shape& sizes, double low, double high, DType dtype) {
    const Tensor dense = spread_tensor(sizes, low, high, dtype);
    return same_on(strided ? strided_copy(dense) : dense, device);
  };
  Tensor mean = make({channels}, -1, 1, n.parameters), var = make({channels}, 0.5, 2, n.parameters);
  const std::uint32_t version = mean.version();
  const Tensor input = make(n.input, -2, 3, n.dtype).set_requires_grad(true);
  const Tensor weight = make({channels}, 0.5, 2, n.parameters).set_requires_grad(true);
  const Tensor bias = make({channels}, -1, 1, n.parameters).set_requires_grad(true);
  const Tensor out = batch_norm(input, weight, bias, mean, var, n.training, 0.3, 1e-3, n.statistics);
  EXPECT_EQ(mean.version() - version, n.training ? 1U : 0U);
  sum(mul(out, spread_tensor(out.sizes(), 0.5, 1.5, out.dtype()).on(device))).backward();
  std::vector<Tensor> results;
  for (const Tensor& t : {out.detach(), mean, var, input.grad(), weight.grad(), bias.grad()})
    results.push_back(t.on(Device{}));
  return results;
}

TEST(OnDeviceBatchNorm, of_every_shape_gives_the_bits_of_the_cpu_and_its_running_statistics) {
  std::vector<Normalised> list;
  for (const bool training : {true, false}) {
    for (const Shape& input : {Shape{3, 2, 5, 4}, Shape{40, 3, 8, 8}, Shape{7, 5}, Shape{2, 3, 4}, Shape{2, 1, 1, 1}}) {
      for (const DType dtype : kFormats) {
        list.push_back({input, dtype, dtype, training});
        if (dtype != DType::kF16 && dtype != DType::kBF16) continue;
        list.push_back({input, dtype, DType::kF32, training});
        list.push_back({input, dtype, dtype, training, NormStatistics::kInput});
        list.push_back({input, dtype, DType::kF32, training, NormStatistics::kInput});
      }
    }
  }
  for (const Shape& empty : {Shape{0, 2, 3, 3}, Shape{3, 0, 2, 2}}) {
    list.push_back({empty, DType::kF32, DType::kF32, /*training=*/false});
  }
  for (const Normalised& n : list) {
    for (const bool strided : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(n.input) + " in " + std::string(dtype_name(n.dtype)) +
                   (n.training ? ", training" : "") +
                   (n.statistics == NormStatistics::kInput ? ", statistics in that" : "") +
                   (strided ? ", strided" : ""));
      const std::vector<Tensor> expected = normalise(n, Device{}, strided);
      for (const Order order : kOrders) {
        ScopedEmulatedDevice emulated;
        emulated.device.order = order;
        const std::vector<Tensor> actual = normalise(n, kEmulated, strided);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(same_values(expected[i], actual[i])) << "result " << i;
      }
    }
  }
}

TEST(OnDeviceBatchNorm, of_a_channel_that_overflows_gives_what_the_cpu_gives) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const double most = dtype == DType::kF16 ? 65504 : 3e38;
    const Tensor input = Tensor::from_values(std::vector<double>{most, -most, 1, 1, most, most, 2, 2}, {4, 2}, dtype);
    const auto run = [&](const Device& device) {
      Tensor mean = Tensor::full({2}, 0, DType::kF32, device), var = Tensor::full({2}, 1, DType::kF32, device);
      const Tensor one = Tensor::full({2}, 1, DType::kF32, device);
      const Tensor out = batch_norm(input.on(device), one, one, mean, var, true, 0.1, 1e-5);
      return std::vector<Tensor>{out.on(Device{}), mean.on(Device{}), var.on(Device{})};
    };
    const std::vector<Tensor> expected = run(Device{});
    ScopedEmulatedDevice emulated;
    const std::vector<Tensor> actual = run(kEmulated);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_values(expected[i], actual[i])) << "result " << i;
  }
}

TEST(OnDeviceImages, meet_nothing_of_another_device) {
  ScopedEmulatedDevice emulated;
  const Tensor image = spread_tensor({1, 1, 2, 2}, -2, 2, DType::kF32), there = image.on(kEmulated);
  Tensor mean = Tensor::zeros({1}, DType::kF32), var = Tensor::full({1}, 1, DType::kF32);
  const auto message_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of([&] { conv2d(there, image, {}); }),
              HasSubstr("[convolution] expected tensors on one device, got one on emulated and one on cpu"));
  EXPECT_THAT(message_of([&] { batch_norm(there, mean, mean, mean, var, false); }),
              HasSubstr("[native_batch_norm] expected tensors on one device"));
}

// Loss and scale of some steps, then every parameter and buffer.
template <typename Model, typename Options>
std::vector<double> trained(const Device& device, const Options& options, bool mixed) {
  auto model = std::make_unique<Model>(options);
  model->to(device);
  auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "adam", .lr = 3e-3});
  TrainerOptions how;
  if (mixed) {
    how.autocast = AutocastOptions{};
    how.scaler = GradScalerOptions{.init_scale = 0x1p24, .growth_interval = 2};
  }
  Trainer trainer(
      std::move(model), std::move(optimizer),
      [batches = digits_train_batches(32, 1, DType::kF32), device](std::uint32_t step) {
        const Batch batch = batches(step);
        return Batch{batch.inputs.on(device), batch.targets.on(device), batch.sample_ids};
      },
      [](const Tensor& output, const Batch& batch) {
        if (output.size(1) == kDigitsClasses) return cross_entropy(output, batch.targets);
        return mse_loss(output, to(batch.inputs, output.dtype()));
      },
      how);
  std::vector<double> out;
  for (int i = 0; i < 4; ++i) {
    const StepResult step = trainer.step();
    out.push_back(step.loss);
    out.push_back(step.scale);
  }
  for (const auto& named : {trainer.model().named_parameters(), trainer.model().named_buffers()}) {
    for (const NamedTensor& entry : named) {
      const std::vector<double> values = entry.tensor.to_vector();
      out.insert(out.end(), values.begin(), values.end());
    }
  }
  return out;
}

TEST(DeviceTraining, of_image_models_gives_the_bits_of_the_cpu) {
  for (const bool mixed : {false, true}) {
    SCOPED_TRACE(mixed ? "autocast" : "fp32");
    const std::vector<double> cnn = trained<Cnn>({}, CnnOptions{}, mixed);
    const std::vector<double> unet = trained<UNet>({}, UNetOptions{.channels = 4}, mixed);
    ScopedEmulatedDevice emulated;
    EXPECT_EQ(trained<Cnn>(kEmulated, CnnOptions{}, mixed), cnn);
    EXPECT_EQ(trained<UNet>(kEmulated, UNetOptions{.channels = 4}, mixed), unet);
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
