// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/trainer.h"

#include <stdexcept>

#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"
#include "src/engine/trainer_impl.h"

namespace nanhunt::engine {
namespace {

// Deep copies, and back into the very same tensors: views and optimizers keep their handles.
std::vector<Tensor> clone_all(const std::vector<NamedTensor>& tensors) {
  std::vector<Tensor> copies;
  for (const NamedTensor& entry : tensors) copies.push_back(entry.tensor.clone());
  return copies;
}

void copy_back(std::vector<NamedTensor> tensors, const std::vector<Tensor>& copies) {
  if (tensors.size() != copies.size()) fail("restore", "a snapshot of this model", "one of another model");
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.copy_from(copies[i]);
}

void mark_all(TensorRole kind, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& entry : tensors) notify_mark(kind, entry.path, entry.tensor);
}

// The model as in use after training.
class ScopedEvaluation {
 public:
  explicit ScopedEvaluation(Module& model) : model_(model), was_training_(model.training()) { model_.train(false); }
  ~ScopedEvaluation() { model_.train(was_training_); }
  ScopedEvaluation(const ScopedEvaluation&) = delete;
  ScopedEvaluation& operator=(const ScopedEvaluation&) = delete;

 private:
  Module& model_;
  bool was_training_;
};

void mark_batch(const Batch& batch) {
  if (batch.inputs.defined()) notify_mark(TensorRole::kBatch, "inputs", batch.inputs);
  if (batch.targets.defined()) notify_mark(TensorRole::kLabel, "targets", batch.targets);
}

}  // namespace

struct Trainer::Snapshot {
  std::uint32_t next_step = 0;
  std::vector<Tensor> parameters, buffers;
  std::vector<std::uint64_t> random_positions;
  Optimizer::Snapshot optimizer;
  std::vector<Tensor> kept_gradients;  // in the order of the optimizer's parameters; undefined: none
  LossScaler::Saved scaler;
  double lr = 0;
};

void Trainer::Impl::mark_start() {
  if (!ops_observed()) start_marked = false;  // who comes later has not heard it
  if (start_marked || !ops_observed()) return;
  start_marked = true;
  mark_all(TensorRole::kParameter, model->named_parameters());
  mark_all(TensorRole::kState, optimizer->named_state());
  buffer_versions.clear();
  mark_changed_buffers();
}

void Trainer::Impl::mark_changed_buffers() {
  if (!ops_observed()) return;
  for (const auto& [path, tensor] : model->named_buffers()) {
    const auto [known, is_new] = buffer_versions.try_emplace(path, tensor.version());
    if (!is_new && known->second == tensor.version()) continue;
    known->second = tensor.version();
    notify_mark(TensorRole::kBuffer, path, tensor);
  }
}

Batch Trainer::Impl::load_batch(std::uint32_t step, std::uint32_t micro_batch) {
  const ScopedPhase phase(Phase::kData);
  const ScopedModule no_module("");
  mark_start();
  Batch batch = batches(step * options.micro_batches + micro_batch);
  notify_micro_batch(micro_batch, batch.sample_ids);
  mark_batch(batch);
  for (const auto& callback : callbacks) callback->on_batch_begin(batch);
  return batch;
}

void Trainer::Impl::join_ranks() {
  parallel = std::make_unique<DataParallel>(model->named_parameters(), *options.data_parallel);
  std::vector<Tensor> masters;
  for (std::size_t i = 0; i < optimizer->parameters().size(); ++i) {
    if (Tensor master = optimizer->master(i); master.defined()) masters.push_back(std::move(master));
  }
  broadcast_all(masters, parallel->ranks());
  if (scaler) scaler->agree_over(options.data_parallel->ranks);
}

Tensor Trainer::Impl::compute_loss(const Batch& batch) {
  if (parallel) parallel->begin_forward();
  std::optional<Autocast> region;
  if (options.autocast) region.emplace(*options.autocast);
  Tensor output;
  {
    const ScopedPhase phase(Phase::kForward);
    output = (*model)(batch.inputs);
  }
  const ScopedPhase phase(Phase::kLoss);
  const ScopedModule module("<loss>");
  for (const auto& callback : callbacks) callback->on_loss_begin(output);
  Tensor value = loss(output, batch);
  if (!value.defined()) return value;
  if (options.average_micro_batches && options.micro_batches > 1) value = div(value, options.micro_batches);
  notify_mark(TensorRole::kLoss, "loss", value);
  return value;
}

double Trainer::Impl::validation_loss(const Batch& batch) {
  std::optional<Autocast> region;
  if (options.validation->autocast) region.emplace(*options.validation->autocast);
  Tensor output = (*model)(batch.inputs);
  notify_mark(TensorRole::kOutput, "output", output);
  const ScopedModule module("<loss>");
  for (const auto& callback : callbacks) callback->on_loss_begin(output);
  const Tensor value = loss(output, batch);
  if (!value.defined()) fail("validation", "a loss of every batch", "none");
  notify_mark(TensorRole::kOutput, "loss", value);
  return value.item();
}

void Trainer::Impl::validate(StepResult& result) {
  if (!options.validation || (result.step + 1) % options.validation->every != 0) return;
  const NoGradGuard no_grad;
  const ScopedPhase phase(Phase::kValidation);
  const ScopedEvaluation evaluation(*model);
  double sum = 0;
  for (std::uint32_t b = 0; b < options.validation->count; ++b) {
    Batch batch;
    {
      const ScopedPhase loading(Phase::kData);
      batch = options.validation->batches(b);
      notify_micro_batch(options.micro_batches + b, batch.sample_ids);
      mark_batch(batch);
      for (const auto& callback : callbacks) callback->on_batch_begin(batch);
    }
    sum += validation_loss(batch);
  }
  result.validation_loss = sum / options.validation->count;
}

void Trainer::Impl::run_backward(Tensor value, const LossOfStep& which) {
  std::optional<DetectAnomaly> anomaly;
  if (options.detect_anomaly) anomaly.emplace();
  std::optional<ScopedGradientListener> listener;
  if (parallel) {
    parallel->enable_allreduce(which.last || (scaler && scaler->unscales_each_backward()));
    listener.emplace(*parallel);
  }
  bool has_run = false;
  for (const auto& callback : callbacks) has_run = callback->on_backward_begin(value, which) || has_run;
  if (has_run) return;
  const ScopedPhase phase(Phase::kBackward);
  value.backward();
}

// Gradients as the optimizer is about to use them.
void Trainer::Impl::prepare_gradients() {
  for (const auto& callback : callbacks) callback->on_backward_end();
  const std::vector<NamedTensor> used = optimizer->with_gradients();
  const ScopedPhase phase(Phase::kOptimizer);
  for (const auto& [path, target] : used) {
    if (target.grad().defined()) notify_mark(TensorRole::kBoundaryGradient, path, target.grad());
  }
}

bool Trainer::Impl::step_optimizer() {
  notify_optimizer_begin();
  std::optional<bool> ran;
  for (const auto& callback : callbacks) {
    if (!ran) ran = callback->on_step();
  }
  if (!ran) optimizer->step();
  const bool optimizer_ran = ran.value_or(true);
  notify_optimizer_end(/*skipped=*/!optimizer_ran);
  try {
    for (const auto& callback : callbacks) callback->on_step_end();
  } catch (const std::runtime_error& given_up) {
    ended_by = given_up.what();  // the step is over all the same
  }
  return optimizer_ran;
}

bool Trainer::Impl::run_to_boundary(StepResult& result) {
  bool has_loss = false;
  for (std::uint32_t m = 0; m < options.micro_batches; ++m) {
    const Batch batch = load_batch(result.step, m);
    if (m == 0 && !keep_gradients) optimizer->zero_grad();
    const Tensor value = compute_loss(batch);
    has_loss = value.defined();
    if (!has_loss) continue;
    if (value.device().is_cpu()) result.loss += value.item();
    run_backward(value, {.id = batch.loss_id, .last = m + 1 == options.micro_batches});
    if (!value.device().is_cpu()) unread_losses.push_back(value);
  }
  if (scaler) result.scale = scaler->get_scale();
  if (has_loss) prepare_gradients();
  return has_loss;
}

void Trainer::Impl::read_losses(StepResult& result) {
  for (const Tensor& value : unread_losses) result.loss += value.item();
  unread_losses.clear();
}

Trainer::Trainer(std::unique_ptr<Module> model, std::unique_ptr<Optimizer> optimizer, BatchSource batches,
                 LossFunction loss, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (model == nullptr || optimizer == nullptr || !batches || !loss) {
    fail("trainer", "a model, an optimizer, a batch source and a loss", "an empty one");
  }
  if (options.micro_batches == 0) fail("trainer", "1 or more micro-batches", "0");
  if (options.validation && (!options.validation->batches || options.validation->count == 0 || options.validation->every == 0)) {
    fail("trainer", "a validation of 1 or more batches, every 1 or more steps", "one of none");
  }
  impl_->options = options;
  if (options.scaler) impl_->scaler = options.scaler->make();
  impl_->model = std::move(model);
  impl_->optimizer = std::move(optimizer);
  impl_->batches = std::move(batches);
  impl_->loss = std::move(loss);
  for (const CallbackFactory& make : options.callbacks) impl_->callbacks.push_back(make(*this));
  impl_->callbacks.push_back(make_scaling(*impl_));
  if (options.data_parallel) impl_->join_ranks();
}

Trainer::~Trainer() = default;

StepResult Trainer::step() {
  Impl& run = *impl_;
  if (!run.ended_by.empty()) throw std::runtime_error(run.ended_by);
  StepResult result{.step = run.next_step};
  run.unread_losses.clear();
  notify_step_begin(result.step);
  bool has_loss = false;
  try {
    has_loss = run.run_to_boundary(result);
    if (has_loss) {
      if (run.boundary_callback) run.boundary_callback(*this);
      result.skipped = !run.step_optimizer();
      if (run.scaler) result.message = run.scaler->message();
      result.ended_by = run.ended_by;
    }
    run.read_losses(result);
    run.validate(result);
  } catch (const std::exception& stopped) {
    run.keep_gradients = false;
    ++run.next_step;
    notify_step_given_up(result.step, StepEnding::kException, stopped.what());
    throw;
  }
  run.keep_gradients = result.skipped && run.options.keep_skipped_gradients;
  run.mark_changed_buffers();
  ++run.next_step;
  if (!has_loss) {
    result.skipped = true;
    notify_step_given_up(result.step, StepEnding::kNextForward, "");
    return result;
  }
  notify_step_end(result.step, result.loss, run.optimizer->options().lr, result.scale, result.skipped);
  for (const auto& callback : run.callbacks) callback->on_batch_end(result);
  run.ended_by = result.ended_by;
  return result;
}

std::uint32_t Trainer::next_step() const { return impl_->next_step; }
Module& Trainer::model() { return *impl_->model; }
Optimizer& Trainer::optimizer() { return *impl_->optimizer; }
LossScaler* Trainer::scaler() { return impl_->scaler.get(); }
DataParallel* Trainer::data_parallel() { return impl_->parallel.get(); }
const TrainerOptions& Trainer::options() const { return impl_->options; }
Callback& Trainer::add_callback(std::unique_ptr<Callback> callback) {
  if (callback == nullptr) fail("add_callback", "a callback", "none");
  impl_->callbacks.push_back(std::move(callback));
  return *impl_->callbacks.back();
}

void Trainer::set_boundary_callback(std::function<void(Trainer&)> callback) { impl_->boundary_callback = std::move(callback); }

std::shared_ptr<const Trainer::Snapshot> Trainer::snapshot() const {
  auto out = std::make_shared<Snapshot>();
  out->next_step = impl_->next_step;
  out->parameters = clone_all(impl_->model->named_parameters());
  out->buffers = clone_all(impl_->model->named_buffers());
  for (const RandomStream* stream : impl_->model->random_streams()) out->random_positions.push_back(stream->position());
  out->optimizer = impl_->optimizer->snapshot();
  if (impl_->keep_gradients) {
    for (const auto& [path, parameter] : impl_->optimizer->parameters()) {
      const Tensor& grad = parameter.grad();
      out->kept_gradients.push_back(grad.defined() ? grad.clone() : Tensor());
    }
  }
  if (impl_->scaler) out->scaler = impl_->scaler->saved();
  out->lr = impl_->optimizer->options().lr;
  return out;
}

void Trainer::restore(const Snapshot& snapshot, bool steps_too) {
  copy_back(impl_->model->named_parameters(), snapshot.parameters);
  copy_back(impl_->model->named_buffers(), snapshot.buffers);
  const std::vector<RandomStream*> streams = impl_->model->random_streams();
  for (std::size_t i = 0; i < streams.size(); ++i) streams[i]->seek(snapshot.random_positions[i]);
  impl_->optimizer->restore(snapshot.optimizer);
  impl_->optimizer->zero_grad();
  impl_->keep_gradients = !snapshot.kept_gradients.empty();
  for (std::size_t i = 0; i < snapshot.kept_gradients.size(); ++i) {
    Tensor parameter = impl_->optimizer->parameters()[i].tensor;
    if (snapshot.kept_gradients[i].defined()) parameter.set_grad(snapshot.kept_gradients[i].clone());
  }
  if (impl_->scaler && !snapshot.scaler.empty()) impl_->scaler->load(snapshot.scaler);
  if (impl_->optimizer->options().lr != snapshot.lr) impl_->optimizer->set_lr(snapshot.lr);
  if (steps_too) impl_->next_step = snapshot.next_step;
  impl_->ended_by.clear();
  impl_->start_marked = false;
}

}  // namespace nanhunt::engine
