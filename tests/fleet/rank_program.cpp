// SPDX-License-Identifier: Apache-2.0
#include "tests/fleet/rank_program.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "nanhunt/dtype.h"
#include "nanhunt/recorder.h"

namespace nanhunt::fleet_tests {
namespace {

constexpr std::int64_t kSize = 8;
using Halves = std::array<std::uint16_t, kSize>;
const std::int64_t kSizes[] = {kSize}, kStrides[] = {1};

Halves halves(float value) {
  Halves out;
  out.fill(f32_to_f16(value));
  return out;
}

// A tensor that the recorder is shown.
struct Tensor {
  Halves numbers = halves(0);
  std::uint64_t storage = 0;
  std::uint32_t version = 0;

  ValueView view(bool contents = true) const {
    ValueView view;
    view.tensor = {contents ? numbers.data() : nullptr, DType::kF16, kSizes, kStrides};
    view.storage = storage;
    view.version = version;
    return view;
  }
};

class Program {
 public:
  Program(Recorder& recorder, const RankPlan& plan) : recorder_(recorder), plan_(plan) {
    weight_.numbers = halves(2);
    weight_.storage = ++storages_;
    gradient_.storage = ++storages_;
  }

  void train(const RankIdentity& identity) {
    tell_identity(identity);
    if (plan_.calibrates) scaler(ScalerAction::kCreate, 65536);
    mark(TensorRole::kParameter, "block.weight", weight_);
    for (step_ = 0; step_ < plan_.steps; ++step_) train_step();
  }

 private:
  void tell_identity(const RankIdentity& identity) {
    for (const auto& [dimension, place] : identity.coordinates)
      setup(SetupFact::kCoordinate, dimension, static_cast<double>(place), "");
    if (identity.replicas)
      setup(SetupFact::kReplicas, "", identity.replicas->lowest, std::to_string(identity.replicas->count));
    setup(SetupFact::kAccelerator, "card-" + std::to_string(identity.rank), 0, "Simulated");
  }

  void setup(SetupFact fact, const std::string& path, double number, const std::string& text) {
    SetupEvent event;
    event.fact = fact;
    event.path = path;
    event.number = number;
    event.text = text;
    recorder_.on_setup(event);
  }

  void train_step() {
    if (plan_.flips == step_) weight_.numbers[0] = f32_to_f16(std::numeric_limits<float>::quiet_NaN());
    Tensor input;
    input.storage = ++storages_;
    input.numbers = halves(plan_.overflows == step_ ? 60000.0f : 1.0f);
    Tensor product;
    product.storage = ++storages_;
    for (std::size_t i = 0; i < kSize; ++i)
      product.numbers[i] = f32_to_f16(f16_to_f32(input.numbers[i]) * f16_to_f32(weight_.numbers[i]));
    op(Phase::kForward, "mul", {{"self", input.view()}, {"other", weight_.view()}}, product);
    Tensor loss;
    loss.storage = ++storages_;
    for (std::size_t i = 0; i < kSize; ++i) loss.numbers[i] = f32_to_f16(-f16_to_f32(product.numbers[i]));
    op(Phase::kLoss, "neg", {{"self", product.view()}}, loss);
    mark(TensorRole::kLoss, "loss", loss);

    ++gradient_.version;
    Tensor scale;
    scale.storage = ++storages_;
    scale.numbers = halves(plan_.calibrates == step_ ? 60000.0f : 0.001f);
    for (std::size_t i = 0; i < kSize; ++i)
      gradient_.numbers[i] = f32_to_f16(f16_to_f32(product.numbers[i]) * f16_to_f32(scale.numbers[i]));
    op(Phase::kBackward, "mul", {{"self", product.view()}, {"other", scale.view()}}, gradient_);
    reduce();
    mark(TensorRole::kBoundaryGradient, "block.weight", gradient_);

    const bool skipped = plan_.calibrates == step_;
    if (plan_.calibrates) scaler(ScalerAction::kUnscale, 65536, skipped);
    if (!skipped) {
      const ValueView before = weight_.view(false);
      for (std::size_t i = 0; i < kSize; ++i)
        weight_.numbers[i] = f32_to_f16(f16_to_f32(weight_.numbers[i]) - f16_to_f32(gradient_.numbers[i]));
      ++weight_.version;
      op(Phase::kOptimizer, "sub_", {{"self", before, ArgRole::kOverwritten}, {"other", gradient_.view()}}, weight_);
    }
    if (plan_.calibrates) scaler(skipped ? ScalerAction::kSkip : ScalerAction::kStep, 65536, skipped);
    if (plan_.calibrates) scaler(ScalerAction::kUpdate, skipped ? 32768 : 65536, skipped);
    mark(TensorRole::kParameter, "block.weight", weight_);
    HealthEvent health;
    health.step = step_;
    health.gradient_norm = health.weight_norm = std::numeric_limits<double>::quiet_NaN();
    health.weight_checksum = 1000 + step_ + (plan_.parts && step_ >= *plan_.parts ? 7u : 0u);
    recorder_.on_health(health);
    StepEvent end;
    end.step = step_;
    end.skipped = skipped;
    end.loss = f16_to_f32(loss.numbers[0]);
    end.lr = 0.1;
    end.scale = plan_.calibrates ? 65536 : 1;
    recorder_.on_step_end(end);
  }

  void reduce() {
    CollectiveEvent call;
    call.seq = next_seq_;
    call.step = step_;
    call.group = "data";
    call.call = calls_++;
    call.reduction = Reduction::kSum;
    call.ranks = plan_.group;
    const ValueView share = gradient_.view();
    call.shares = {&share, 1};
    recorder_.on_collective(call);
    const ValueView before = gradient_.view(false);
    if (plan_.arrives == step_) gradient_.numbers = halves(std::numeric_limits<float>::quiet_NaN());
    ++gradient_.version;
    op(Phase::kComm, "c10d::allreduce_", {{"tensors", before, ArgRole::kOverwritten}}, gradient_);
  }

  void op(Phase phase, const char* name, const std::vector<OpInput>& inputs, const Tensor& output) {
    const OpOutput out{"out", output.view()};
    OpEvent event;
    event.step = step_;
    event.phase = phase;
    event.module = phase == Phase::kLoss ? "<loss>" : phase == Phase::kComm ? "" : "block";
    event.op = name;
    event.call_site = "train.py:10";
    event.inputs = inputs;
    event.outputs = {&out, 1};
    recorder_.on_op(event);
    ++next_seq_;
  }

  void mark(TensorRole kind, const char* path, const Tensor& tensor) {
    MarkEvent event;
    event.step = step_;
    event.kind = kind;
    event.path = path;
    event.value = tensor.view();
    recorder_.on_mark(event);
  }

  void scaler(ScalerAction action, double scale, bool found_inf = false) {
    ScalerEvent event;
    event.step = step_;
    event.action = action;
    event.scale = scale;
    event.found_inf = found_inf;
    event.growth_factor = 2;
    event.backoff_factor = 0.5;
    event.growth_interval = 2000;
    event.text = action == ScalerAction::kCreate ? "torch.amp" : "";
    recorder_.on_scaler(event);
  }

  Recorder& recorder_;
  const RankPlan& plan_;
  Tensor weight_, gradient_;
  std::uint64_t storages_ = 0, next_seq_ = 0, calls_ = 0;
  std::uint32_t step_ = 0;
};

}  // namespace

std::string train_rank(const std::string& run, const RankIdentity& identity, const RankPlan& plan) {
  RecorderOptions options;
  options.run_dir = run;
  RunInfo info;
  info.rank = identity.rank;
  info.world_size = identity.world_size;
  info.host = identity.host;
  info.framework = "simulated";
  info.level = "ops";
  info.device = "cpu";
  auto recorder = Recorder::open(options, info);
  EXPECT_TRUE(recorder.is_ok()) << recorder.status().message();
  if (!recorder) return "";
  Program((**recorder), plan).train(identity);
  const Status closed = (*recorder)->close();
  EXPECT_TRUE(closed.is_ok()) << closed.message();
  return (*recorder)->attempt_dir();
}

}  // namespace nanhunt::fleet_tests
