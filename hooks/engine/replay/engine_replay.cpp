// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/host_contents.h"
#include "hooks/engine/replay/engine_ops.h"
#include "hooks/engine/replay/origin_watch.h"
#include "nanhunt/tensor_stats.h"
#include "src/hunt/reference_optimizer.h"

namespace nanhunt::hooks {
namespace {

// Updates are compared this far past the failing step: rounding shows at once, while paths that differ lead to
// gradients that differ, and later steps would compare the same thing again.
constexpr std::uint32_t kComparedFurtherSteps = 10;

// Steps that the loss scaler skips are no training. More than this many past the failing step, and the gradients did
// not become finite.
constexpr std::uint32_t kAllowedSkips = 40;

bool is_finite(const engine::Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  const ScopedHostContents contents;
  return !compute_stats(host_view(tensor), StatsLevel::kFinite).any_nonfinite;
}

bool all_finite(const std::vector<engine::NamedTensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& entry) { return is_finite(entry.tensor); });
}

hunt::ReferenceOptions reference_options(const engine::OptimizerOptions& options) {
  return {.algorithm = options.algorithm,
          .lr = options.lr,
          .momentum = options.momentum,
          .nesterov = options.nesterov,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay};
}

// Trains one trainer and holds each of its updates against the reference.
class ReplayRun {
 public:
  ReplayRun(std::unique_ptr<engine::Trainer> trainer, hunt::ReferenceOptions options)
      : trainer_(std::move(trainer)), reference_(std::move(options)) {
    trainer_->set_boundary_callback([this](engine::Trainer& at) { at_boundary(at); });
    trainer_->add_callback(std::make_unique<AfterOptimizer>(*this));
  }

  enum class Outcome : std::uint8_t { kTrained, kSkipped, kNotFinite };

  // One step. Gradients that are not finite are no failure where the loss scaler kept them from doing harm.
  Outcome step(bool compare) {
    compare_ = compare;
    gradients_finite_ = true;
    expected_.clear();
    step_factor_ = 0;
    const engine::StepResult result = trainer_->step();
    last_loss_ = result.loss;
    const engine::Optimizer& optimizer = trainer_->optimizer();
    const bool finite = (gradients_finite_ || result.skipped) && std::isfinite(last_loss_) &&
                        std::isfinite(result.validation_loss.value_or(0)) &&
                        all_finite(optimizer.parameters()) && all_finite(trainer_->model().named_buffers()) &&
                        all_finite(optimizer.named_state());
    if (!finite) return Outcome::kNotFinite;
    if (result.skipped) return Outcome::kSkipped;
    update_factor_ = std::max(update_factor_, step_factor_);
    return Outcome::kTrained;
  }

  engine::Trainer& trainer() { return *trainer_; }
  double last_loss() const { return last_loss_; }
  double update_factor() const { return update_factor_; }

 private:
  struct Expected {
    engine::Tensor stepped;  // what the optimizer changes: the fp32 master, or the parameter itself
    std::vector<double> before;
    std::vector<double> update;  // the reference's
  };

  // Before anything that is plugged in puts weights back at the end of the step.
  class AfterOptimizer final : public engine::Callback {
   public:
    explicit AfterOptimizer(ReplayRun& run) : run_(run) {}
    void on_step_end() override { run_.compare_updates(); }

   private:
    ReplayRun& run_;
  };

  // Gradients are final and nothing has changed yet.
  void at_boundary(engine::Trainer& trainer) {
    const engine::Optimizer& optimizer = trainer.optimizer();
    std::map<std::string, engine::Tensor> masters;
    for (const auto& [path, tensor] : optimizer.named_state()) {
      if (path.ends_with(kMaster)) masters.emplace(path.substr(0, path.size() - kMaster.size()), tensor);
    }
    const auto& parameters = optimizer.parameters();
    const std::vector<engine::NamedTensor> used = optimizer.with_gradients();
    gradients_finite_ = std::all_of(used.begin(), used.end(), [](const engine::NamedTensor& entry) {
      return !entry.tensor.grad().defined() || is_finite(entry.tensor.grad());
    });
    // A step that is skipped has no update to compare, and must leave the reference where it is.
    if (!compare_ || !gradients_finite_) return;
    reference_.set_lr(optimizer.options().lr);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [path, parameter] = parameters[i];
      const engine::Tensor gradient = optimizer.gradient(i);
      if (!gradient.defined()) continue;
      const auto master = masters.find(path);
      Expected expected;
      expected.stepped = master == masters.end() ? parameter : master->second;
      expected.before = expected.stepped.to_vector();
      expected.update = reference_.update(i, expected.before, gradient.to_vector());
      expected_.push_back(std::move(expected));
    }
  }

  void compare_updates() {
    for (const Expected& expected : expected_) {
      std::vector<double> change = expected.stepped.to_vector();
      for (std::size_t i = 0; i < change.size(); ++i) change[i] -= expected.before[i];
      step_factor_ = std::max(step_factor_, hunt::update_factor(change, expected.update));
    }
  }

  static constexpr std::string_view kMaster = ".master";

  std::unique_ptr<engine::Trainer> trainer_;
  hunt::ReferenceOptimizer reference_;
  bool compare_ = false, gradients_finite_ = true;
  std::vector<Expected> expected_;  // of the step at hand
  double last_loss_ = 0;
  double update_factor_ = 0;  // nothing compared yet
  double step_factor_ = 0;    // of the step at hand
};

class EngineReplay final : public hunt::Replay {
 public:
  EngineReplay(TrainerFactory make_trainer, std::vector<hunt::Fix> fixes)
      : make_trainer_(std::move(make_trainer)), fixes_(std::move(fixes)) {}

  std::vector<hunt::Fix> fixes() const override { return fixes_; }

  ExperimentRecord try_fix(const hunt::Fix& fix, std::uint32_t step, std::uint32_t further_steps) override {
    ExperimentRecord record;
    apart([&] { record = train(fix, step, further_steps); });
    return record;
  }

  Result<hunt::Reenactment> reenact(std::uint32_t step, const hunt::OriginPlan* plan) override {
    hunt::Reenactment seen;
    apart([&] { seen = train_unchanged(step, plan); });
    return seen;
  }

  hunt::OpRunner* op_runner() override { return runner_.get(); }

 private:
  // Observers are per thread: in a thread of its own nobody sees the replay, whoever watches this one.
  template <typename F>
  static void apart(const F& work) {
    std::exception_ptr failure;
    std::thread replay([&] {
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    replay.join();
    if (failure) std::rethrow_exception(failure);
  }

  hunt::Reenactment train_unchanged(std::uint32_t step, const hunt::OriginPlan* plan) const {
    hunt::Reenactment seen;
    std::unique_ptr<engine::Trainer> trainer = make_trainer_("");
    hunt::ReferenceOptions reference = reference_options(trainer->optimizer().options());
    ReplayRun run(std::move(trainer), std::move(reference));
    std::optional<OriginWatch> watch;
    engine::HookHandle handle;
    if (plan != nullptr) handle = engine::add_observer(watch.emplace(*plan));
    // What the plan is about may come after the first failure.
    for (std::uint64_t s = 0; s <= step && (!seen.failed_at || (plan != nullptr && s <= plan->step)); ++s) {
      if (watch && s == plan->step && watch->needs_start()) {
        watch->hold(run.trainer().model().named_parameters());
        watch->hold(run.trainer().model().named_buffers());
        watch->hold(run.trainer().optimizer().named_state());
      }
      const bool failed = run.step(/*compare=*/false) == ReplayRun::Outcome::kNotFinite;
      if (failed && !seen.failed_at) seen.failed_at = static_cast<std::uint32_t>(s);
    }
    if (watch) seen.ops = watch->take();
    return seen;
  }

  ExperimentRecord train(const hunt::Fix& fix, std::uint32_t step, std::uint32_t further_steps) const {
    ExperimentRecord record;
    record.fix = fix.id;
    record.description = fix.description;
    record.step = step;
    std::unique_ptr<engine::Trainer> fixed = make_trainer_(fix.id);
    // A fix may mean to train with another learning rate. A larger eps it must answer for: that is what shrinks
    // updates.
    hunt::ReferenceOptions reference = reference_options(fixed->optimizer().options());
    reference.eps = make_trainer_("")->optimizer().options().eps;
    ReplayRun run(std::move(fixed), std::move(reference));
    record.finite = true;
    const std::uint32_t compared = std::min(further_steps, kComparedFurtherSteps);
    std::uint32_t skips = 0;
    for (std::uint64_t s = 0; record.finite && (s <= step || record.further_steps < further_steps); ++s) {
      using Outcome = ReplayRun::Outcome;
      const Outcome outcome = run.step(/*compare=*/s <= step || record.further_steps < compared);
      if (s == step) record.loss_before = run.last_loss();
      record.loss_after = run.last_loss();
      if (s > step && outcome == Outcome::kTrained) ++record.further_steps;
      if (s > step && outcome == Outcome::kSkipped) ++skips;
      record.finite = outcome != Outcome::kNotFinite && skips <= kAllowedSkips;
    }
    record.update_factor = run.update_factor();
    return record;
  }

  TrainerFactory make_trainer_;
  std::vector<hunt::Fix> fixes_;
  std::unique_ptr<hunt::OpRunner> runner_ = make_engine_op_runner();
};

}  // namespace

std::unique_ptr<hunt::Replay> make_engine_replay(TrainerFactory make_trainer, std::vector<hunt::Fix> fixes) {
  return std::make_unique<EngineReplay>(std::move(make_trainer), std::move(fixes));
}

}  // namespace nanhunt::hooks
