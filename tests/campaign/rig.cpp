// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/rig.h"

#include <stdexcept>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/transformer.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

constexpr std::int64_t kBatch = 16;
constexpr std::uint64_t kSeed = 1, kDropoutStream = std::uint64_t{1} << 40;

// A layer that a user wrote: whatever `body` computes, nothing without one.
class HandWritten : public engine::Module {
 public:
  explicit HandWritten(std::function<Tensor(const Tensor&)> body) : body_(std::move(body)) {}

 protected:
  Tensor forward(const Tensor& input) override { return body_ ? body_(input) : input; }

 private:
  std::function<Tensor(const Tensor&)> body_;
};

std::unique_ptr<engine::Module> make_network(const Settings& s, const Plan& plan,
                                             const std::function<Tensor(const Tensor&)>& body) {
  engine::RandomStream random(kSeed, /*stream=*/0);
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return std::make_unique<engine::Linear>(in, out, random, s.dtype);
  };
  const auto extra = [&](Site site) { return std::make_unique<HandWritten>(plan.site == site ? body : nullptr); };
  auto out = std::make_unique<engine::Sequential>();
  out->append("fc1", linear(64, 32));
  out->append("extra1", extra(Site::kExtra1));
  out->append("relu1", std::make_unique<engine::Relu>());
  out->append("drop", std::make_unique<engine::Dropout>(s.dropout, engine::RandomStream(kSeed, kDropoutStream)));
  out->append("fc2", linear(32, 32));
  out->append("extra2", extra(Site::kExtra2));
  out->append("relu2", std::make_unique<engine::Relu>());
  out->append("fc3", linear(32, s.regression ? 64 : 10));
  return out;
}

// An optimizer after whose update something else is done to the parameters, as user code would.
class MeddledOptimizer : public engine::Optimizer {
 public:
  MeddledOptimizer(std::unique_ptr<Optimizer> inner, std::function<void()> after)
      : inner_(std::move(inner)), after_(std::move(after)) {
    parameters_ = inner_->parameters();
  }
  void step() override {
    inner_->step();
    after_();
  }
  const engine::OptimizerOptions& options() const override { return inner_->options(); }
  std::vector<engine::NamedTensor> named_state() const override { return inner_->named_state(); }
  Snapshot snapshot() const override { return inner_->snapshot(); }
  void restore(const Snapshot& snapshot) override { inner_->restore(snapshot); }

 private:
  std::unique_ptr<Optimizer> inner_;
  std::function<void()> after_;
};

}  // namespace

Settings make_settings(Regime regime) {
  Settings s;
  if (regime == Regime::kF16 || regime == Regime::kF16Masters) s.dtype = DType::kF16;
  if (regime == Regime::kBf16) s.dtype = DType::kBF16;
  s.optimizer.fp32_masters = regime == Regime::kF16Masters || regime == Regime::kBf16;
  // fp16 state cannot hold Adam's eps and most squares: that is a kind of fault, not a healthy run.
  if (regime == Regime::kF16) s.optimizer = {.algorithm = "sgd", .lr = 0.02, .momentum = 0.9};
  s.autocast = regime == Regime::kAutocast;
  if (s.autocast) s.scaler = engine::GradScalerOptions{.init_scale = 16384};
  return s;
}

Rig::Rig(const Settings& settings, const Plan& plan, bool faulty) : settings_(settings), plan_(plan), faulty_(faulty) {
  if (faulty && plan.spoil_settings) plan.spoil_settings(settings_);
  const auto body = [this](const Tensor& x) { return plan_.body(x, acts(now_)); };
  std::unique_ptr<engine::Module> model = make_network(settings_, plan, body);
  parameters_ = model->named_parameters();

  auto source = settings_.regression ? engine::upscaling_train_batches(kBatch, kSeed, settings_.dtype)
                                     : engine::digits_train_batches(kBatch, kSeed, settings_.dtype);
  auto batches = [this, source](std::uint32_t number) {
    now_ = number / settings_.micro_batches;
    engine::Batch batch = source(number);
    if (acts(now_) && plan_.spoil_batch) plan_.spoil_batch(batch);
    return batch;
  };
  auto loss = [this, body](const Tensor& output, const engine::Batch& batch) {
    const Tensor wide = engine::to(plan_.site == Site::kLoss ? body(output) : output, DType::kF32);
    const auto squared_error = [&] {
      const Tensor error = engine::sub(wide, engine::to(batch.targets, DType::kF32));
      return engine::mean(engine::mul(error, error));
    };
    const Tensor value = settings_.regression ? squared_error() : engine::cross_entropy(wide, batch.targets);
    return settings_.loss_weight == 1 ? value : engine::mul(value, settings_.loss_weight);
  };
  std::unique_ptr<engine::Optimizer> optimizer = engine::make_optimizer(parameters_, settings_.optimizer);
  if (faulty && plan.after_update) {
    optimizer = std::make_unique<MeddledOptimizer>(std::move(optimizer), [this] { plan_.after_update(*this, now_); });
  }

  engine::TrainerOptions options;
  if (settings_.autocast) options.autocast = engine::AutocastOptions{};
  options.scaler = settings_.scaler;
  options.micro_batches = settings_.micro_batches;
  options.clip_norm = settings_.clip_norm;
  options.clip_before_unscale = settings_.clip_before_unscale;
  options.keep_skipped_gradients = settings_.keep_skipped_gradients;
  trainer_ = std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer), std::move(batches),
                                               std::move(loss), options);
}

Rig::~Rig() = default;

void Rig::start_sabotage() {
  if (!faulty_ || !plan_.make_saboteur || saboteur_) return;
  saboteur_ = plan_.make_saboteur(*this);
  sabotage_ = engine::add_observer(*saboteur_);
}

engine::StepResult Rig::step() {
  now_ = trainer_->next_step();
  if (faulty_ && plan_.before_step && now_ == plan_.first_step) plan_.before_step(*this);
  return trainer_->step();
}

Tensor Rig::tensor(const std::string& path) const {
  for (const auto& all : {parameters_, trainer_->optimizer().named_state()}) {
    for (const auto& [name, tensor] : all) {
      if (name == path) return tensor;
    }
  }
  throw std::invalid_argument("no parameter or state is called '" + path + "'");
}

}  // namespace nanhunt::campaign
