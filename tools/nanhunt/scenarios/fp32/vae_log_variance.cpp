// SPDX-License-Identifier: Apache-2.0
// A variational autoencoder whose encoder gives a log-variance without a limit (vanderschaarlab/synthcity#331, subject
// 4 of the GRIST benchmark): exp of half of it is Inf for one image, and NaN comes of it in the decoder and the KL
// term.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace vae_log_variance_parts {

using engine::Tensor;

constexpr char kClamp[] = "clamp-log-variance";

// One image comes with 12-bit intensities among normalised ones. exp(x / 2) is Inf in fp32 from 177.5.
constexpr std::uint32_t kBadStep = 10;
constexpr double kIntensity = 4095;
// Weights of the log-variance are large, as trained ones can be, and of either sign.
constexpr double kVarianceStddev = 1;
constexpr std::int64_t kHidden = 32, kLatent = 32, kPixels = engine::kDigitsPixels;
constexpr double kKlWeight = 1e-3;

// mean and log-variance, side by side -> a sample of that normal distribution.
class Reparametrise : public engine::Module {
 public:
  explicit Reparametrise(std::uint64_t seed)
      : random_(register_random(engine::RandomStream(seed, /*stream=*/1))) {}

 protected:
  Tensor forward(const Tensor& moments) override {
    const Tensor mean = engine::narrow(moments, 1, 0, kLatent);
    const Tensor log_variance = engine::narrow(moments, 1, kLatent, kLatent);
    const Tensor noise = engine::normal_tensor(mean.sizes(), 0, 1, DType::kF32, random_).on(mean.device());
    return engine::add(mean, engine::mul(engine::exp(engine::mul(log_variance, 0.5)), noise));
  }

 private:
  engine::RandomStream& random_;
};

class VarianceHead : public engine::Module {
 public:
  VarianceHead(std::int64_t in, engine::RandomStream& random)
      : weight_(register_parameter("weight",
                                   engine::normal_tensor({kLatent, in}, 0, kVarianceStddev, DType::kF32, random))),
        bias_(register_parameter("bias", Tensor::zeros({kLatent}, DType::kF32))) {}

 protected:
  Tensor forward(const Tensor& hidden) override { return engine::linear(hidden, weight_, bias_); }

 private:
  Tensor &weight_, &bias_;
};

// images -> reconstructions, means and log-variances, side by side.
class Vae : public engine::Module {
 public:
  Vae(std::uint64_t seed, bool clamped)
      : weights_(seed, /*stream=*/0),
        encoder_(register_module("encoder", std::make_unique<engine::Linear>(kPixels, kHidden, weights_))),
        mean_(register_module("mean", std::make_unique<engine::Linear>(kHidden, kLatent, weights_))),
        log_variance_(register_module("log_variance", std::make_unique<VarianceHead>(kHidden, weights_))),
        sampler_(register_module("sampler", std::make_unique<Reparametrise>(seed))),
        decoder_(register_module("decoder", std::make_unique<engine::Linear>(kLatent, kPixels, weights_))),
        clamped_(clamped) {}

 protected:
  Tensor forward(const Tensor& images) override {
    const Tensor hidden = encoder_(images);
    const Tensor mean = mean_(hidden);
    Tensor log_variance = log_variance_(hidden);
    if (clamped_) log_variance = engine::clamp(log_variance, -30, 20);
    const Tensor moments = engine::cat({mean, log_variance}, 1);
    return engine::cat({decoder_(sampler_(moments)), moments}, 1);
  }

 private:
  engine::RandomStream weights_;
  engine::Linear &encoder_, &mean_;
  VarianceHead& log_variance_;
  Reparametrise& sampler_;
  engine::Linear& decoder_;
  bool clamped_;
};

Tensor loss(const Tensor& output, const engine::Batch& batch) {
  const Tensor mean = engine::narrow(output, 1, kPixels, kLatent);
  const Tensor log_variance = engine::narrow(output, 1, kPixels + kLatent, kLatent);
  const Tensor spread = engine::sub(engine::add(engine::mul(mean, mean), engine::exp(log_variance)), log_variance);
  const Tensor kl = engine::mul(engine::mean(engine::sub(spread, 1.0)), 0.5 * kKlWeight);
  return engine::add(engine::mse_loss(engine::narrow(output, 1, 0, kPixels), batch.targets), kl);
}

ScenarioRun make(const ScenarioConfig& config) {
  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t odd_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, odd_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    batch.targets = batch.inputs.clone();
    if (step == kBadStep) scale_sample(batch, odd_id, kIntensity);
    return batch;
  };
  engine::TrainerOptions options;
  options.clip_norm = 1;
  return assemble(std::make_unique<Vae>(config.seed, config.fix == kClamp), {.algorithm = "adam", .lr = 3e-3}, batches,
                  loss, config, options);
}

}  // namespace vae_log_variance_parts

std::vector<Scenario> vae_log_variance() {
  using namespace vae_log_variance_parts;
  return with_twin(
      {
          .name = "vae-log-variance",
          .summary =
              "The log-variance of a VAE has no limit: exp of it overflows, the KL term and the decoder make NaN",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "sampler",
                       .op = "exp",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kClamp, "the log-variance clamped to the range from -30 to 20"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
