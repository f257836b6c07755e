// SPDX-License-Identifier: Apache-2.0
// A step run again, and everything put back.
#include <fmt/format.h>

#include <cfenv>
#include <cstring>
#include <exception>
#include <utility>

#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/hooks.h"
#include "src/engine/backend.h"
#include "src/engine/ops/op.h"
#include "src/engine/trainer_impl.h"

namespace nanhunt::engine {
namespace {

bool holds(const Storage& storage, const std::vector<std::byte>& contents) {
  if (storage.device().is_cpu()) return std::memcmp(storage.data(), contents.data(), contents.size()) == 0;
  std::vector<std::byte> present(storage.bytes());
  storage.read(present.data());
  return present == contents;
}

void write_bytes(const Tensor& tensor, const std::vector<std::byte>& contents) {
  Storage& storage = *tensor.storage();
  if (holds(storage, contents)) return;
  storage.write(contents.data());
  storage.bump_version();
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  std::vector<std::byte> bytes(storage.bytes());
  storage.read(bytes.data());
  return bytes;
}

// Not every optimizer can be told another.
void set_lr(Optimizer& optimizer, double lr) {
  if (optimizer.options().lr != lr) optimizer.set_lr(lr);
}

// The whole floating-point environment, with its sticky flags.
class ScopedFpEnvironment {
 public:
  ScopedFpEnvironment() { std::fegetenv(&saved_); }
  ~ScopedFpEnvironment() { std::fesetenv(&saved_); }
  ScopedFpEnvironment(const ScopedFpEnvironment&) = delete;
  ScopedFpEnvironment& operator=(const ScopedFpEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// All that a step changes, as it was when this was made; put back when it ends.
class Present {
 public:
  explicit Present(Trainer::Impl& run);
  ~Present();
  Present(const Present&) = delete;
  Present& operator=(const Present&) = delete;

 private:
  struct Contents {
    Tensor tensor;
    std::vector<std::byte> bytes;
  };
  void keep(const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& entry : tensors) contents_.push_back({entry.tensor, bytes_of(entry.tensor)});
  }

  Trainer::Impl& run_;
  std::vector<Contents> contents_;
  std::vector<std::pair<Tensor, Tensor>> gradients_;  // of every parameter, the optimizer's or not
  std::vector<std::int64_t> step_counts_;
  std::vector<RandomStream*> streams_;
  std::vector<std::uint64_t> positions_;
  std::unique_ptr<LossScaler> scaler_;
  double scale_ = 1, lr_;
  std::vector<Tensor> unread_losses_;
  std::string ended_by_;
  bool keep_gradients_, start_marked_, optimizer_ran_;
  std::map<std::string, std::uint32_t> buffer_versions_;
};

Present::Present(Trainer::Impl& run)
    : run_(run),
      step_counts_(run.optimizer->step_counts()),
      streams_(run.model->random_streams()),
      scaler_(run.scaler ? run.scaler->clone() : nullptr),
      lr_(run.optimizer->options().lr),
      unread_losses_(std::exchange(run.unread_losses, {})),
      ended_by_(run.ended_by),
      keep_gradients_(run.keep_gradients),
      start_marked_(run.start_marked),
      optimizer_ran_(run.optimizer_ran),
      buffer_versions_(run.buffer_versions) {
  keep(run.model->named_parameters());
  keep(run.model->named_buffers());
  keep(run.optimizer->parameters());
  keep(run.optimizer->named_state());
  for (const RandomStream* stream : streams_) positions_.push_back(stream->position());
  if (scaler_) scale_ = scaler_->get_scale();
  for (const auto& parameters :
       {run.optimizer->parameters(), run.optimizer->stepped(), run.model->named_parameters()}) {
    for (const NamedTensor& entry : parameters) gradients_.emplace_back(entry.tensor, entry.tensor.grad());
  }
}

Present::~Present() {
  for (const Contents& kept : contents_) write_bytes(kept.tensor, kept.bytes);
  for (auto& [parameter, gradient] : gradients_) parameter.impl()->grad = gradient;
  run_.optimizer->set_step_counts(step_counts_);
  for (std::size_t i = 0; i < streams_.size(); ++i) streams_[i]->seek(positions_[i]);
  if (scaler_) run_.scaler->put_back(*scaler_, scale_);
  set_lr(*run_.optimizer, lr_);
  run_.unread_losses = std::move(unread_losses_);
  run_.ended_by = ended_by_;
  run_.keep_gradients = keep_gradients_;
  run_.start_marked = start_marked_;
  run_.optimizer_ran = optimizer_ran_;
  run_.buffer_versions = std::move(buffer_versions_);
}

// Puts the trainer where the step began. Parameters and state are there, or come from `before`.
void go_to_start(Trainer::Impl& run) {
  const StepStart& start = run.start;
  const std::vector<NamedTensor> buffers = run.model->named_buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) write_bytes(buffers[i].tensor, bytes_of(start.buffers[i]));
  // Those that the optimizer does not own add up from step to step, and no step reads them: the replay starts without.
  for (NamedTensor& entry : run.model->named_parameters()) entry.tensor.set_grad({});
  for (NamedTensor& entry : run.optimizer->stepped()) entry.tensor.set_grad({});
  const std::vector<NamedTensor>& parameters = run.optimizer->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i].tensor;
    parameter.set_grad({});
    if (start.keep_gradients && start.kept_gradients[i].defined()) parameter.set_grad(start.kept_gradients[i].clone());
  }
  const std::vector<RandomStream*> streams = run.model->random_streams();
  for (std::size_t i = 0; i < streams.size(); ++i) streams[i]->seek(start.random_positions[i]);
  if (start.scaler) run.scaler->put_back(*start.scaler, start.scale);
  set_lr(*run.optimizer, start.lr);
  run.keep_gradients = start.keep_gradients;
  run.start_marked = false;
}

}  // namespace

void OptimizerCopy::take(const Optimizer& optimizer) {
  if (parts_.empty()) {
    for (const NamedTensor& entry : optimizer.parameters()) parts_.push_back({entry.tensor, {}, 0});
    parameters_ = parts_.size();
    for (const NamedTensor& entry : optimizer.named_state()) parts_.push_back({entry.tensor, {}, 0});
  }
  for (Part& part : parts_) {
    const Storage& storage = *part.tensor.storage();
    if (storage.device().is_cpu()) {
      part.contents.assign(storage.data(), storage.data() + storage.bytes());
    } else {
      if (!part.shadow)
        part.shadow = std::make_shared<Storage>(storage.bytes(), Storage::Contents::kUndefined, storage.device());
      backend_of(storage.device()).on_device(part.shadow->data(), storage.data(), storage.bytes());
    }
    part.version = storage.version();
  }
  step_counts_ = optimizer.step_counts();
  taken_ = true;
}

void OptimizerCopy::Part::put_back() const {
  if (!shadow) {
    write_bytes(tensor, contents);
    return;
  }
  Storage& storage = *tensor.storage();
  backend_of(storage.device()).on_device(storage.data(), shadow->data(), storage.bytes());
  storage.bump_version();
}

std::size_t OptimizerCopy::bytes() const {
  std::size_t sum = 0;
  for (const Part& part : parts_) sum += part.contents.size() + (part.shadow ? part.shadow->bytes() : 0);
  return sum;
}

OptimizerCopy::Kept OptimizerCopy::kept(const Tensor& tensor) const {
  Kept kept{tensor.view(), 0};
  kept.contents.data = nullptr;
  for (const Part& part : parts_) {
    if (!taken_ || part.tensor.impl() != tensor.impl()) continue;
    const std::byte* first = part.shadow ? part.shadow->data() : part.contents.data();
    kept.contents.data = first + static_cast<std::size_t>(tensor.storage_offset()) * dtype_size(tensor.dtype());
    kept.version = part.version;
  }
  return kept;
}

void Trainer::keep_for_replay(bool on) {
  impl_->keeps_start = on;
  if (!on) impl_->start = {};
}

void Trainer::Impl::keep_start() {
  start.kept = false;
  start.batches.clear();
  if (!keeps_start) return;
  start.step = next_step;
  start.keep_gradients = keep_gradients;
  start.kept_gradients.clear();
  start.parameter_versions.clear();
  for (const NamedTensor& entry : optimizer->parameters()) {
    start.parameter_versions.push_back(entry.tensor.version());
    if (!keep_gradients) continue;
    const Tensor& grad = entry.tensor.grad();
    start.kept_gradients.push_back(grad.defined() ? grad.clone() : Tensor());
  }
  start.streams = model->random_streams();
  start.drew_elsewhere = false;
  start.buffers.clear();
  for (const NamedTensor& entry : model->named_buffers()) start.buffers.push_back(entry.tensor.clone());
  start.random_positions.clear();
  for (const RandomStream* stream : start.streams) start.random_positions.push_back(stream->position());
  start.scaler = scaler ? scaler->clone() : nullptr;
  start.scale = scaler ? scaler->get_scale() : 1;
  start.lr = optimizer->options().lr;
  start.kept = true;
}

std::string Trainer::Impl::why_not_replayable(const OptimizerCopy* before) const {
  if (replaying()) return "a replay is running";
  if (!keeps_start) return "nothing was kept for a replay: call keep_for_replay() before the step";
  if (!start.kept) return "the step began before replays were asked for";
  if (start.batches.size() != options.micro_batches) return "not all of the step's batches are loaded yet";
  for (std::size_t m = 0; m < start.batches.size(); ++m) {
    const StepStart::KeptBatch& held = start.batches[m];
    if (version_of(held.batch.inputs) == held.inputs_version &&
        version_of(held.batch.targets) == held.targets_version) {
      continue;
    }
    return fmt::format("the batch of micro-batch {} was written to after it was loaded", m);
  }
  if (start.drew_elsewhere) {
    return "random numbers were drawn from a stream that is not among the model's random_streams(), so they would not "
           "be the same again: register it (Module::register_random)";
  }
  const bool needs_copy = optimizer_ran;
  if (needs_copy && (before == nullptr || !before->taken())) {
    return "the optimizer has changed parameters and state, and no copy of them was kept";
  }
  const std::vector<NamedTensor>& parameters = optimizer->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::uint32_t version = needs_copy ? before->parts_[i].version : parameters[i].tensor.version();
    if (version == start.parameter_versions[i]) continue;
    return fmt::format("parameter {} was written to in this step before its optimizer", parameters[i].path);
  }
  return {};
}

Replayed Trainer::replay(Observer& observer, const OptimizerCopy* before) {
  Impl& run = *impl_;
  Replayed out;
  try {
    out.refused = run.why_not_replayable(before);
    if (!out.refused.empty()) return out;
    const ScopedFpEnvironment environment;
    const ScopedReplay replay(observer);  // also told of the storages that end when all is put back
    const Present present(run);
    const ScopedPhase phase(Phase::kForward);
    const ScopedModule module("");
    go_to_start(run);
    if (run.optimizer_ran) {
      for (const OptimizerCopy::Part& part : before->parts_) part.put_back();
      run.optimizer->set_step_counts(before->step_counts_);
    }
    out.result.step = run.start.step;
    notify_step_begin(out.result.step);
    bool has_loss = false;
    try {
      has_loss = run.run_to_boundary(out.result, /*replay=*/true);
    } catch (const AnomalyError& stopped) {
      if (!run.stopped_by_anomaly) throw;
      notify_step_given_up(out.result.step, StepEnding::kException, stopped.what());
      out.result.skipped = out.ran = true;
      return out;
    }
    if (run.stopped_by_anomaly) fail("replay", "a NaN in backward, as in the step", "none");
    out.result.skipped = !has_loss || !run.step_optimizer();
    run.read_losses(out.result);
    run.validate(out.result);
    run.mark_changed_buffers();
    notify_step_end(out.result.step, out.result.loss, run.optimizer->options().lr, out.result.scale,
                    out.result.skipped);
    out.ran = true;
  } catch (const std::exception& e) {
    out.refused = fmt::format("it broke off: {}", e.what());
  }
  return out;
}

}  // namespace nanhunt::engine
