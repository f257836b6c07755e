// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/rig.h"

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

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

Rig::Rig(const Settings& settings, const Plan& plan, bool faulty) : settings_(settings), plan_(plan), faulty_(faulty) {
  if (faulty && plan.spoil_settings) plan.spoil_settings(settings_);
  network_ = make_network(settings_);
  parameters_ = network_.model->named_parameters();

  const auto body = [this](const Tensor& x) { return plan_.body(x, acts(now_)); };
  if (plan.site >= 0) network_.sites[static_cast<std::size_t>(plan.site) % network_.sites.size()]->body = body;

  auto batches = [this, source = make_batches(settings_)](std::uint32_t number) {
    now_ = number / settings_.micro_batches;
    engine::Batch batch = source(number);
    if (acts(now_) && plan_.spoil_batch) plan_.spoil_batch(batch);
    return batch;
  };
  auto loss = [this, body](const Tensor& output, const engine::Batch& batch) {
    const Tensor value = base_loss(settings_, plan_.site == kInLoss ? body(output) : output, batch);
    return settings_.loss_weight == 1 ? value : engine::mul(value, settings_.loss_weight);
  };
  std::unique_ptr<engine::Optimizer> optimizer = engine::make_optimizer(parameters_, settings_.optimizer);
  if (faulty && plan.after_update) {
    optimizer =
        std::make_unique<MeddledOptimizer>(std::move(optimizer), [this] { plan_.after_update(*this, now_); });
  }

  engine::TrainerOptions options;
  if (settings_.autocast()) options.autocast = engine::AutocastOptions{};
  if (settings_.scaler) {
    options.scaler = engine::GradScalerOptions{.init_scale = settings_.init_scale, .dynamic = settings_.dynamic_scale};
  }
  options.micro_batches = settings_.micro_batches;
  options.clip_norm = settings_.clip_norm;
  options.clip_before_unscale = settings_.clip_before_unscale;
  options.keep_skipped_gradients = settings_.keep_skipped_gradients;
  trainer_ = std::make_unique<engine::Trainer>(std::move(network_.model), std::move(optimizer), std::move(batches),
                                               std::move(loss), options);
  if (plan.prepare) plan.prepare(*this);
  if (faulty && plan.before_training) plan.before_training(*this);
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

std::string Rig::site_path(int site) const {
  if (site == kInLoss) return "<loss>";
  return network_.sites[static_cast<std::size_t>(site) % network_.sites.size()]->path();
}

std::vector<Tensor> copies_of_parameter(Rig& rig, const std::string& path) {
  std::vector<Tensor> out;
  for (const auto& [name, tensor] : rig.trainer().optimizer().named_state()) {
    if (name == path + ".master") out.push_back(tensor);
  }
  for (const auto& [name, tensor] : rig.parameters()) {
    if (name == path) out.push_back(tensor);
  }
  return out;
}

}  // namespace nanhunt::campaign
