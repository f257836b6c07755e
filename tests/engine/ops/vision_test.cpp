// SPDX-License-Identifier: Apache-2.0
// Numbers of image ops and pair losses: those of eager PyTorch (expected values computed with 2.13), 16-bit results as
// fp32 results rounded once, NaN and infinities, misuse.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor values(const std::vector<double>& list, Shape sizes, DType dtype = DType::kF32) {
  return Tensor::from_values(list, std::move(sizes), dtype);
}

// f(step * i), as the script that computed the expected values made its tensors.
template <typename F>
Tensor wave(F f, double step, Shape sizes, DType dtype = DType::kF32) {
  std::int64_t n = 1;
  for (std::int64_t size : sizes) n *= size;
  std::vector<double> list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(f(static_cast<double>(i) * step));
  return values(list, std::move(sizes), dtype);
}
const auto kSin = [](double x) { return std::sin(x); };
const auto kCos = [](double x) { return std::cos(x); };

void expect_near(const Tensor& got, const std::vector<double>& expected, double tolerance = 2e-6) {
  ASSERT_EQ(got.numel(), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double limit = tolerance * std::max(1.0, std::fabs(expected[i]));
    EXPECT_NEAR(got.at(static_cast<std::int64_t>(i)), expected[i], limit) << "element " << i;
  }
}

void expect_same(const Tensor& got, const Tensor& expected) {
  ASSERT_EQ(got.dtype(), expected.dtype());
  EXPECT_THAT(got.to_vector(), ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), expected.to_vector()));
}

template <typename F>
void expect_throws(F f, const std::string& text) {
  EXPECT_THAT(f, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
}

struct Norm {
  Tensor weight, bias, mean, var;
  Tensor operator()(const Tensor& x, bool training = true, double eps = 1e-5) {
    return batch_norm(x, weight, bias, mean, var, training, 0.1, eps);
  }
};
Norm plain_norm(std::int64_t channels, DType dtype = DType::kF32) {
  return {Tensor::full({channels}, 1, dtype), Tensor::zeros({channels}, dtype), Tensor::zeros({channels}, dtype),
          Tensor::full({channels}, 1, dtype)};
}

TEST(Vision, convolution_has_the_values_and_gradients_of_eager) {
  Tensor x = wave(kSin, 0.7, {2, 2, 3, 3}).set_requires_grad(true);
  Tensor w = wave(kCos, 0.4, {2, 2, 2, 2}).set_requires_grad(true);
  Tensor b = values({0.25, -0.5}, {2}).set_requires_grad(true);
  const Tensor y = conv2d(x, w, b, 2, 1);
  ASSERT_EQ(y.sizes(), (Shape{2, 2, 2, 2}));
  sum(mul(y, wave(kCos, 0.3, y.sizes()))).backward();
  expect_near(y, {0.23415783, -0.359615922, 1.20247674, 0.796324015, -0.483856082, 0.234396279, -1.45049012,
                  -1.18038118, 0.214674339, -0.362834513, 1.20266199, 0.733164191, -0.461919278, 0.240026355,
                  -1.45319748, -1.11902094});
  expect_near(x.grad(),
              {0.250993311,  0.6193524,    0.324433684,  0.963929832,   1.12559521,   1.02526569,    0.368893385,
               0.763069332,  0.380400926,  -0.59429729,  -0.649597824,  -0.83221966,  -0.449908882,  -0.0623243526,
               -0.495209992, -0.995802462, -0.849912763, -1.07043314,   0.00840292778, -0.155372187, -0.10449475,
               -0.472198218, -0.777043402, -0.720496178, -0.208058268,  -0.550198436, -0.293036431,  -0.166251794,
               0.10364899,   0.154818431,  0.182286903,  0.0103895031,  0.312175184,  0.462059468,   0.56467545,
               0.728025615});
  expect_near(w.grad(), {-0.0910916179, 0.0343921781, 0.362813771, 0.38526386, -0.0851047039, 0.0418189764,
                         0.362063557, 0.38603121, -0.23301369, -0.353128701, 0.261153102, 0.399794698, -0.221605614,
                         -0.335527331, 0.250599086, 0.385559082});
  expect_near(b.grad(), {-0.21665597, -2.62270069});
}

TEST(Vision, grouped_convolution_has_the_values_and_gradients_of_eager) {
  Tensor x = wave(kSin, 0.7, {1, 4, 3, 3}).set_requires_grad(true);
  Tensor w = wave(kCos, 0.4, {4, 2, 2, 2}).set_requires_grad(true);
  Tensor b = values({0.25, -0.5, 0.125, 1}, {4}).set_requires_grad(true);
  const Tensor y = conv2d(x, w, b, 2, 1, /*groups=*/2);
  ASSERT_EQ(y.sizes(), (Shape{1, 4, 2, 2}));
  sum(mul(y, wave(kCos, 0.3, y.sizes()))).backward();
  expect_near(y, {0.234157562, -0.359615803, 1.20247662, 0.796323419, -0.483855784, 0.234396279, -1.45049036,
                  -1.1803807, 0.084293887, -0.739694357, 1.07548213, 0.877767146, 1.04319251, 1.98641348,
                  0.0554746389, 0.116054356});
  expect_near(x.grad(),
              {0.250993311,   0.6193524,     0.324433744,   0.963929772,   1.12559521,   1.02526569,   0.368893445,
               0.763069272,   0.380401015,   -0.594297171,  -0.649597764,  -0.83221966,  -0.449908793, -0.0623242334,
               -0.495209843,  -0.995802402,  -0.849912703,  -1.07043302,   -0.0110104531, -0.142756879,
               -0.0860866755, -0.449333102,  -0.773181975,  -0.681639671,  -0.15347302,  -0.48248148,  -0.207150057,
               -0.165532649,  0.120705783,   0.165420175,   0.235481709,   0.100885764,  0.392993987,  0.48159647,
               0.623057067,   0.754753113});
  expect_near(w.grad(),
              {0.208231971,   0.49438709,    0.00474226475, -0.170308053, 0.198354721,   0.477523804,   0.0189766288,
               -0.149437368,  -0.169117466,  -0.0190314353, 0.54155755,   0.586424291,   -0.16109556,   -0.00915108621,
               0.540807426,   0.587925732,   -0.299323231,  -0.45999524,  0.358071506,   0.555570841,   -0.28345868,
               -0.435704589,  0.343086958,   0.535468519,   -0.0638960749, -0.334097475, -0.280404478,  -0.18663007,
               -0.0605094954, -0.326376379,  -0.290208399,  -0.202367216});
  expect_near(b.grad(), {3.40228224, -0.298953176, -3.61893821, -2.32374716});
}

TEST(Vision, a_grouped_convolution_is_one_of_each_share_of_the_channels) {
  // given: more images than fit a chunk
  const NoGradGuard no_grad;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const Tensor x = wave(kSin, 0.7, {70, 12, 8, 8}, dtype), w = wave(kCos, 0.4, {6, 4, 3, 3}, dtype);
    const Tensor b = wave(kSin, 0.3, {6}, dtype);
    std::vector<Tensor> parts;
    for (std::int64_t g = 0; g < 3; ++g) {
      parts.push_back(conv2d(narrow(x, 1, 4 * g, 4), narrow(w, 0, 2 * g, 2), narrow(b, 0, 2 * g, 2), 1, 1));
    }
    expect_near(conv2d(x, w, b, 1, 1, 3), cat(parts, 1).to_vector(), dtype == DType::kF16 ? 1e-3 : 2e-6);
  }
}

// The sum a convolution is, one term after the other in double.
std::vector<double> convolve(const Tensor& x, const Tensor& w, std::int64_t stride, std::int64_t padding) {
  const std::int64_t out_h = (x.size(2) + 2 * padding - w.size(2)) / stride + 1;
  const std::int64_t out_w = (x.size(3) + 2 * padding - w.size(3)) / stride + 1;
  std::vector<double> out;
  for (std::int64_t n = 0; n < x.size(0); ++n) {
    for (std::int64_t o = 0; o < w.size(0); ++o) {
      for (std::int64_t p = 0; p < out_h * out_w; ++p) {
        double sum = 0;
        for (std::int64_t k = 0; k < w.size(1) * w.size(2) * w.size(3); ++k) {
          const std::int64_t c = k / (w.size(2) * w.size(3)), kh = k / w.size(3) % w.size(2), kw = k % w.size(3);
          const std::int64_t h = p / out_w * stride + kh - padding, v = p % out_w * stride + kw - padding;
          if (h < 0 || h >= x.size(2) || v < 0 || v >= x.size(3)) continue;
          sum += x.at(((n * x.size(1) + c) * x.size(2) + h) * x.size(3) + v) *
                 w.at(((o * w.size(1) + c) * w.size(2) + kh) * w.size(3) + kw);
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

TEST(Vision, convolution_of_more_images_than_fit_a_chunk_is_the_sum_it_should_be) {
  const Tensor x = wave(kSin, 0.7, {70, 8, 8, 8}), w = wave(kCos, 0.4, {5, 8, 3, 3});
  expect_near(conv2d(x, w, Tensor(), 1, 1), convolve(x, w, 1, 1), 1e-5);
  expect_near(conv2d(x, w, Tensor(), 2, 0), convolve(x, w, 2, 0), 1e-5);
}

TEST(Vision, sixteen_bit_image_ops_are_fp32_ops_rounded_once) {
  const auto no_grad = NoGradGuard();
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor x = wave(kSin, 0.7, {3, 4, 6, 6}, dtype), w = wave(kCos, 0.4, {5, 4, 3, 3}, dtype);
    const Tensor b = wave(kSin, 0.3, {5}, dtype), wide = to(x, DType::kF32);
    expect_same(conv2d(x, w, b, 1, 1), to(conv2d(wide, to(w, DType::kF32), to(b, DType::kF32), 1, 1), dtype));
    expect_same(max_pool2d(x, 3, 2, 1), to(max_pool2d(wide, 3, 2, 1), dtype));
    expect_same(avg_pool2d(x, 3, 2, 1), to(avg_pool2d(wide, 3, 2, 1), dtype));
    expect_same(upsample_nearest2d(x, 2), to(upsample_nearest2d(wide, 2), dtype));
    // Statistics and affine parameters in fp32: the mix that autocast makes.
    Norm mixed = plain_norm(4), all = plain_norm(4);
    expect_same(mixed(x), to(all(wide), dtype));
    expect_same(mixed.mean, all.mean);
    expect_same(mixed.var, all.var);
  }
}

TEST(Vision, batch_norm_has_the_values_gradients_and_running_statistics_of_eager) {
  Tensor x = wave(kSin, 0.7, {2, 3, 2, 2}).set_requires_grad(true);
  Norm norm{values({1.5, 0.5, -1.0}, {3}).set_requires_grad(true),
            values({0.1, -0.2, 0.3}, {3}).set_requires_grad(true), values({0.5, 0, -0.5}, {3}),
            values({1, 2, 0.5}, {3})};
  const Tensor y = norm(x);
  sum(mul(y, wave(kCos, 0.3, y.sizes()))).backward();
  expect_near(y, {-0.624454796, 0.918122113, 1.73520112, 1.44249713, 0.375562608, -0.204474345, -0.644969285,
                  -0.738750875, 1.96515524, 0.863729596, -0.22425735, -0.78710717, 1.42187977, 0.139626428,
                  -1.50198817, -2.73088312, -0.735980988, -0.430606991, 0.120662428, 0.658557415, -0.791252613,
                  -0.545059383, 0.377148241, 1.54164338});
  expect_near(norm.mean, {0.480254978, -0.0345493257, -0.415148705});
  expect_near(norm.var, {0.944847167, 1.83993614, 0.489566416});
  expect_near(x.grad(), {2.30385685, 1.70253325, 1.12938261, 0.735370219, -0.199321851, -0.110543855, -0.107807629,
                         -0.28840971, 0.939332724, 1.44526792, 1.8112365, 1.92075062, -2.89374948, -2.07376051,
                         -0.983327985, 0.079695344, 0.211004108, 0.28009817, 0.178432688, 0.0365481265, -1.38848209,
                         -1.50570309, -1.60779417, -1.61460793},
              1e-5);
  expect_near(norm.weight.grad(), {1.60612226, 2.73487258, 0.951600134});
  expect_near(norm.bias.grad(), {1.07853484, 1.63592958, 0.107048512});
}

TEST(Vision, batch_norm_in_evaluation_uses_the_running_statistics_and_leaves_them_alone) {
  Norm norm{values({2}, {1}), values({1}, {1}), values({3}, {1}), values({4}, {1})};
  expect_near(norm(values({3, 5}, {2, 1}), false, 0), {1, 3});
  EXPECT_EQ(norm.mean.version() + norm.var.version(), 0U);
  norm(values({3, 5}, {2, 1}), true);
  EXPECT_EQ(norm.mean.version(), 1U);
  EXPECT_EQ(norm.var.version(), 1U);
}

TEST(Vision, batch_norm_keeps_its_eps_in_fp32_and_needs_it_where_nothing_varies) {
  // given: a channel of one value in fp16, whose variance is 0; and its broken twin, without eps
  const Tensor x = Tensor::full({4, 1, 2, 2}, 300, DType::kF16);
  Norm norm = plain_norm(1), broken = plain_norm(1);
  // then: squares of fp16 values do not overflow on the way either
  EXPECT_EQ(norm(x, true, 1e-8).to_vector(), std::vector<double>(16, 0.0));
  EXPECT_TRUE(std::isnan(broken(x, true, 0).at(0)));
  Norm spread = plain_norm(1);
  expect_near(spread(values({-60000, 60000}, {2, 1}, DType::kF16)), {-1, 1});
}

TEST(Vision, a_nan_or_infinity_in_one_channel_reaches_that_channel_and_its_running_statistics) {
  for (double bad : {kNan, kInf}) {
    Norm norm = plain_norm(2);
    const Tensor y = norm(values({1, bad, 2, 4, 3, 6}, {3, 2}));
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(y.at(i)), i % 2 == 1) << i;
    EXPECT_TRUE(std::isfinite(norm.mean.at(0)) && std::isfinite(norm.var.at(0)));
    EXPECT_FALSE(std::isfinite(norm.mean.at(1)));
    EXPECT_TRUE(std::isnan(norm.var.at(1)));
  }
}

TEST(Vision, max_pool_takes_the_first_largest_and_the_last_nan_as_eager_does) {
  struct Indices : Observer {
    std::vector<double> list;
    void on_op(const OpCall& call) noexcept override { list = call.outputs[1].tensor->to_vector(); }
  } seen;
  const HookHandle handle = add_observer(seen);
  const Tensor x = values({1, kNan, -kInf, -kInf, 2, 3, -kInf, -kInf, kNan, 1, 5, 5, kNan, 7, 5, 5}, {1, 1, 4, 4});
  EXPECT_THAT(max_pool2d(x, 2).to_vector(),
              ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), {kNan, -kInf, kNan, 5.0}));
  EXPECT_THAT(seen.list, ElementsAre(1, 2, 12, 10));
}

TEST(Vision, pair_losses_have_the_values_of_eager) {
  const Tensor x = values({-3, 0.5, 2, 80, -90}, {5}), y = values({0, 1, 1, 0, 1}, {5});
  EXPECT_NEAR(smooth_l1_loss(x, y).item(), 34.625, 1e-5);
  EXPECT_NEAR(mse_loss(x, y).item(), 2938.25, 1e-3);
  EXPECT_NEAR(l1_loss(x, y).item(), 35.1, 1e-5);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, y).item(), 34.12992, 1e-5);
}

TEST(Vision, a_squared_difference_of_fp16_overflows_from_256_and_its_gradient_does_not) {
  Tensor x = values({300, 1}, {2}, DType::kF16).set_requires_grad(true);
  const Tensor loss = mse_loss(x, values({0, 1}, {2}, DType::kF16));
  EXPECT_EQ(loss.item(), kInf);
  loss.backward();
  EXPECT_THAT(x.grad().to_vector(), ElementsAre(300, 0));
  EXPECT_EQ(mse_loss(values({255, 1}, {2}, DType::kF16), values({0, 1}, {2}, DType::kF16)).item(), 32512);
}

TEST(Vision, the_mean_loss_of_nothing_is_nan) {
  EXPECT_TRUE(std::isnan(mse_loss(Tensor::zeros({0}, DType::kF32), Tensor::zeros({0}, DType::kF32)).item()));
}

TEST(Vision, cat_promotes_and_gives_each_part_its_gradient_back) {
  Tensor half = values({1, 2}, {2}, DType::kF16).set_requires_grad(true);
  Tensor wide = values({3}, {1}).set_requires_grad(true);
  const Tensor joined = cat({half, wide});
  EXPECT_EQ(joined.dtype(), DType::kF32);
  EXPECT_THAT(joined.to_vector(), ElementsAre(1, 2, 3));
  sum(mul(joined, values({5, 6, 7}, {3}))).backward();
  EXPECT_EQ(half.grad().dtype(), DType::kF16);
  EXPECT_THAT(half.grad().to_vector(), ElementsAre(5, 6));
  EXPECT_THAT(wide.grad().to_vector(), ElementsAre(7));
}

TEST(Vision, misuse_is_named) {
  const Tensor x = Tensor::zeros({2, 3, 4, 4}, DType::kF32), w = Tensor::zeros({5, 3, 3, 3}, DType::kF32);
  expect_throws([&] { conv2d(x, Tensor::zeros({5, 2, 3, 3}, DType::kF32), Tensor()); },
                "[convolution] expected as many channels in the input as in the weight, got fp32 [2, 3, 4, 4] and");
  expect_throws([&] { conv2d(x, w, Tensor(), 1, 0, 2); },
                "[convolution] expected groups that divide the channels of input and output, got 2 of fp32");
  expect_throws([&] { conv2d(x, w, Tensor(), 1, 0, 0); }, "[convolution] expected groups that divide");
  expect_throws([&] { conv2d(x, w, Tensor::zeros({4}, DType::kF32)); }, "[convolution] expected bias of [5], got");
  expect_throws([&] { conv2d(x, to(w, DType::kF16), Tensor()); }, "[convolution] expected operands of one dtype");
  expect_throws([&] { conv2d(x, w, Tensor(), 0); }, "[convolution] expected a stride of 1 or more, got 0");
  expect_throws([&] { conv2d(x, w, Tensor(), 1, -1); }, "[convolution] expected a padding of 0 or more, got -1");
  expect_throws([&] { conv2d(x, w, Tensor(), 1, std::numeric_limits<std::int64_t>::max()); }, "expected a padding of");
  expect_throws([&] { upsample_nearest2d(x, std::numeric_limits<std::int64_t>::max()); }, "expected a scale from");
  expect_throws([&] { conv2d(x, Tensor::zeros({5, 3, 7, 3}, DType::kF32), Tensor(), 1, 1); },
                "[convolution] expected an image at least as large as the window [7, 3]");
  expect_throws([&] { conv2d(select(x, 0, 0), w, Tensor()); }, "[convolution] expected input with 4 dimension(s)");
  expect_throws([&] { max_pool2d(x, 2, 2, 2); }, "expected a padding of at most half the window, got 2");
  expect_throws([&] { avg_pool2d(x, 0); }, "[avg_pool2d] expected a window of 1 or more, got [0, 0]");
  expect_throws([&] { upsample_nearest2d(x, 0); }, "[upsample_nearest2d] expected a scale from 1 to 2^20, got 0");
  expect_throws([&] { plain_norm(2)(x); }, "[native_batch_norm] expected weight of [3], got fp32 [2]");
  expect_throws([&] { plain_norm(3, DType::kF16)(x); }, "expected parameters of the input's dtype or of fp32");
  expect_throws([&] { plain_norm(3)(Tensor::zeros({1, 3}, DType::kF32)); },
                "expected more than one value per channel in training");
  expect_throws([&] { cat({}); }, "[cat] expected 1 to 16 tensors, got 0");
  expect_throws([&] { cat({x, w}, 1); }, "[cat] expected shapes that differ only in dimension 1");
  expect_throws([&] { mse_loss(x, w); }, "[mse_loss] expected target of [2, 3, 4, 4], got fp32 [5, 3, 3, 3]");
  expect_throws([&] { smooth_l1_loss(x, x, 0); }, "[smooth_l1_loss] expected a beta above 0");
}

}  // namespace
}  // namespace nanhunt::engine::testing
