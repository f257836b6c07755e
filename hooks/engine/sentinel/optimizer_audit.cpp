// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/optimizer_audit.h"

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "hooks/engine/host_contents.h"
#include "hooks/engine/read_group.h"
#include "src/engine/backend.h"

namespace nanhunt::hooks {
namespace {

// Versions only grow: a sum that is the same means that all are.
std::uint64_t versions_of(const OptimizerAudit::Audited& audited) {
  std::uint64_t sum = 0;
  for (const engine::Tensor* tensor : {&audited.parameter, &audited.master, &audited.first, &audited.second}) {
    if (tensor->defined()) sum += tensor->version();
  }
  return sum;
}

// `view` gives contents of a tensor.
template <class View>
hunt::PreAuditInput input_of(const OptimizerAudit::Audited& audited, const View& view) {
  hunt::PreAuditInput input;
  input.param = view(audited.master.defined() ? audited.master : audited.parameter);
  if (audited.first.defined()) input.first = view(audited.first);
  if (audited.second.defined()) input.second = view(audited.second);
  if (audited.master.defined()) input.copied_to = audited.parameter.dtype();
  return input;
}

}  // namespace

OptimizerAudit::OptimizerAudit(const engine::Optimizer& optimizer) : optimizer_(optimizer) {
  std::map<std::string, std::size_t> index;
  for (const auto& [path, tensor] : optimizer.parameters()) {
    index.emplace(path, audited_.size());
    audited_.push_back({.parameter = tensor, .master = {}, .first = {}, .second = {}});
  }
  for (const auto& [path, tensor] : optimizer.named_state()) {
    const std::size_t dot = path.rfind('.');
    const auto found = index.find(path.substr(0, dot));
    if (dot == std::string::npos || found == index.end()) continue;
    Audited& audited = audited_[found->second];
    const std::string_view name = std::string_view(path).substr(dot + 1);
    if (name == "master") audited.master = tensor;
    if (name == "exp_avg" || name == "momentum_buffer") audited.first = tensor;
    if (name == "exp_avg_sq") audited.second = tensor;
  }
}

void OptimizerAudit::start() {
  const std::vector<std::int64_t> counts = optimizer_.step_counts();
  for (std::size_t i = 0; i < audited_.size(); ++i) {
    const bool is_new = i < counts.size() && counts[i] == 0;
    audited_[i].memory = is_new ? hunt::PreAuditMemory::new_state() : hunt::PreAuditMemory{};
  }
  for (Audited& audited : audited_) audited.versions = versions_of(audited);
}

void OptimizerAudit::settle() {
  for (Audited& audited : audited_) {
    const std::uint64_t now = versions_of(audited);
    // An update that nobody foresaw: what was proved before it holds no more.
    if (!std::exchange(audited.foreseen, false) && now != audited.versions) audited.memory = {};
    audited.versions = now;
  }
}

hunt::PreAuditOptions OptimizerAudit::options() const {
  const engine::OptimizerOptions& o = optimizer_.options();
  return {.algorithm = o.algorithm,
          .lr = o.lr,
          .momentum = o.momentum,
          .nesterov = o.nesterov,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .fused = o.impl == engine::OptimizerImpl::kFused};
}

std::size_t OptimizerAudit::foresee(std::uint32_t step, const std::function<Gradient(std::size_t)>& gradient,
                                    bool may_read, const std::function<void(std::size_t)>& triggers) {
  const hunt::PreAuditOptions how = options();
  const std::vector<std::int64_t> counts = optimizer_.step_counts();
  std::size_t unread = 0;
  for (std::size_t i = 0; i < audited_.size() && i < counts.size(); ++i) {
    const Gradient given = gradient(i);
    if (!given.known) continue;
    Audited& audited = audited_[i];
    if (versions_of(audited) != audited.versions || given.changed) audited.memory = {};
    const auto complete = [&](hunt::PreAuditInput input, const TensorView& of_gradient) {
      input.grad = of_gradient;
      input.step = counts[i] + 1;
      input.grad_amax = given.amax;
      input.memory = audited.memory;
      return input;
    };
    // Addresses of a device will do here: no element is read.
    std::optional<hunt::PreAudit> result =
        hunt::prove_safe(how, complete(input_of(audited, device_view), device_view(optimizer_.gradient(i))));
    if (!result && may_read) {
      const ScopedHostContents contents;
      result = hunt::pre_audit(how, complete(input_of(audited, host_view), host_view(optimizer_.gradient(i))));
    }
    audited.proved_in.reset();
    if (!result) {
      audited.memory = {};
      ++unread;
      continue;
    }
    audited.memory = result->memory;
    audited.foreseen = true;
    if (result->triggers()) {
      triggers(i);
    } else {
      audited.proved_in = step;
    }
  }
  return unread;
}

std::optional<hunt::PreAudit> OptimizerAudit::in_hindsight(std::size_t index,
                                                           const engine::OptimizerCopy& at_boundary) const {
  const Audited& audited = audited_.at(index);
  const std::vector<std::int64_t> counts = optimizer_.step_counts();
  if (index >= counts.size() || !optimizer_.gradient(index).defined()) return std::nullopt;
  const ScopedHostContents contents;
  std::vector<std::vector<std::byte>> copies;
  bool all = true;
  const auto kept = [&](const engine::Tensor& tensor) {
    TensorView view = at_boundary.kept(tensor).contents;
    if (view.data == nullptr || !view.is_contiguous()) {
      all = false;
    } else if (!tensor.device().is_cpu()) {
      copies.emplace_back(static_cast<std::size_t>(view.numel()) * dtype_size(view.dtype) + 1);  // never null
      engine::backend_of(tensor.device()).to_host(copies.back().data(), view.data, copies.back().size() - 1);
      view.data = copies.back().data();
    }
    return view;
  };
  hunt::PreAuditInput input = input_of(audited, kept);
  if (!all) return std::nullopt;
  input.grad = host_view(optimizer_.gradient(index));
  input.step = counts[index];
  return hunt::pre_audit(options(), input);
}

}  // namespace nanhunt::hooks
