// SPDX-License-Identifier: Apache-2.0
#include "src/engine/optim/stepped_optimizer.h"

#include <cmath>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

bool needs_master(const Tensor& parameter) {
  return parameter.dtype() == DType::kF16 || parameter.dtype() == DType::kBF16;
}

}  // namespace

SteppedOptimizer::SteppedOptimizer(std::vector<NamedTensor> parameters, OptimizerOptions options,
                                   const std::vector<std::string_view>& state_names)
    : options_(std::move(options)), state_names_(state_names.begin(), state_names.end()) {
  parameters_ = std::move(parameters);
  slots_.resize(parameters_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto& [path, tensor] = parameters_[i];
    expect_floating("optimizer", tensor, path);
    if (!tensor.is_contiguous()) fail("optimizer", "contiguous parameters", path + " with gaps");
    Slot& slot = slots_[i];
    if (options_.fp32_masters && needs_master(tensor)) {
      slot.master = Tensor::zeros(tensor.sizes(), DType::kF32, tensor.device());
      slot.master.copy_from(tensor);
    }
    const DType dtype = slot.master.defined() ? DType::kF32 : tensor.dtype();
    for (std::size_t s = 0; s < state_names_.size(); ++s) {
      slot.state.push_back(Tensor::zeros(tensor.sizes(), dtype, tensor.device()));
    }
  }
}

void SteppedOptimizer::step() {
  const ScopedPhase phase(Phase::kOptimizer);
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& [path, parameter] = parameters_[i];
    Slot& slot = slots_[i];
    const Tensor grad = gradient(i);
    if (!grad.defined()) continue;
    const ScopedModule module(path);
    ++slot.step_count;
    if (slot.master.defined()) {
      update(slot, slot.master, to(grad, DType::kF32));
      copy_(parameter, slot.master);
    } else {
      update(slot, parameter, grad);
    }
    if (!ops_observed()) continue;
    notify_mark(TensorRole::kParameter, path, parameter);
    for (const auto& [name, tensor] : state_of(i)) notify_mark(TensorRole::kState, name, tensor);
  }
}

void SteppedOptimizer::set_lr(double lr) {
  if (!std::isfinite(lr) || lr < 0) fail("set_lr", "a learning rate of 0 or more", std::to_string(lr));
  options_.lr = lr;
}

std::vector<NamedTensor> SteppedOptimizer::state_of(std::size_t index) const {
  const Slot& slot = slots_[index];
  const std::string& path = parameters_[index].path;
  std::vector<NamedTensor> out;
  for (std::size_t s = 0; s < slot.state.size(); ++s) out.push_back({path + "." + state_names_[s], slot.state[s]});
  if (slot.master.defined()) out.push_back({path + ".master", slot.master});
  return out;
}

std::vector<NamedTensor> SteppedOptimizer::named_state() const {
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    for (NamedTensor& entry : state_of(i)) out.push_back(std::move(entry));
  }
  return out;
}

Optimizer::Snapshot SteppedOptimizer::snapshot() const {
  Snapshot out;
  for (const NamedTensor& entry : named_state()) out.tensors.push_back(entry.tensor.clone());
  for (const Slot& slot : slots_) out.counters.push_back(slot.step_count);
  return out;
}

void SteppedOptimizer::restore(const Snapshot& snapshot) {
  std::vector<NamedTensor> state = named_state();
  if (snapshot.tensors.size() != state.size() || snapshot.counters.size() != slots_.size()) {
    fail("restore", "a snapshot of this optimizer", "one with other parameters or options");
  }
  for (std::size_t i = 0; i < state.size(); ++i) state[i].tensor.copy_from(snapshot.tensors[i]);
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].step_count = snapshot.counters[i];
}

}  // namespace nanhunt::engine
