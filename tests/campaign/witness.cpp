// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/witness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanhunt/tensor_stats.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

bool is_bad(const Tensor& tensor) {
  return tensor.defined() && is_floating(tensor.dtype()) &&
         compute_stats(tensor.view(), StatsLevel::kFinite).any_nonfinite;
}

bool writes_infinities_on_purpose(std::string_view op) {
  return op == "masked_fill" || op == "where" || op == "fill_" || op == "expand" || op == "view";
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (const double v : tensor.to_vector()) sum += v * v;
  return std::sqrt(sum);
}

std::string layer_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(0, dot);
}

std::map<std::string, double> norms_by_layer(const Rig& rig) {
  std::map<std::string, double> out;
  for (const auto& [path, tensor] : rig.parameters()) {
    const double norm = norm_of(tensor);
    double& sum = out[layer_of(path)];
    sum = std::hypot(sum, norm);
  }
  return out;
}

}  // namespace

Witness::Witness(const Rig& rig, const Target* target) : target_(target) {
  if (target != nullptr && target->module) module_ = target->module(rig);
}

bool Witness::matches(const engine::OpCall& call) const {
  if (step_ < target_->from_step || (target_->phase && call.phase != *target_->phase)) return false;
  if (module_ && call.module != *module_) return false;
  return target_->ops.empty() || std::find(target_->ops.begin(), target_->ops.end(), call.op) != target_->ops.end();
}

void Witness::on_op(const engine::OpCall& call) noexcept {
  if (target_ == nullptr || target_->witnessing != Witnessing::kWatched || planted_ || intruder_) return;
  const bool match = matches(call);
  const bool judged = call.phase == Phase::kForward || call.phase == Phase::kLoss || call.phase == Phase::kOptimizer;
  if (!match && (!judged || writes_infinities_on_purpose(call.op))) return;
  if (std::none_of(call.outputs.begin(), call.outputs.end(),
      [](const auto& out) { return is_bad(*out.tensor); })) return;
  (match ? planted_ : intruder_) = Place{step_, call.phase, std::string(call.module), std::string(call.op)};
}

void Witness::on_mark(TensorRole kind, std::string_view, const Tensor& tensor) noexcept {
  if (!first_bad_step_ && is_sink(kind) && is_bad(tensor)) first_bad_step_ = step_;
}

RunLog train(Rig& rig) {
  rig.start_sabotage();
  RunLog log;
  for (const auto& [path, tensor] : rig.parameters()) log.start[path] = tensor.clone();
  std::map<std::string, double> first = norms_by_layer(rig);  // before the step with the smallest loss
  double smallest = HUGE_VAL;
  for (std::uint32_t i = 0; i < rig.settings().steps; ++i) {
    const std::map<std::string, double> before = norms_by_layer(rig);
    const double loss = rig.step().loss;
    log.losses.push_back(loss);
    if (std::fabs(loss) < smallest) {
      smallest = std::fabs(loss);
      first = before;
    }
    for (const auto& [layer, norm] : norms_by_layer(rig)) {
      if (std::isfinite(norm)) log.growth[layer] = norm / std::max(first.at(layer), 1e-30);
    }
  }
  for (const auto& [path, tensor] : rig.parameters()) log.end[path] = tensor.clone();
  for (const auto& [path, tensor] : rig.trainer().optimizer().named_state()) log.rest[path] = tensor.clone();
  for (const auto& [path, tensor] : rig.trainer().model().named_buffers()) log.rest[path] = tensor.clone();
  return log;
}

Harm compare(const RunLog& faulty, const RunLog& clean) {
  for (std::size_t i = 0; i < faulty.losses.size() && i < clean.losses.size(); ++i) {
    if (!std::isfinite(faulty.losses[i]) && std::isfinite(clean.losses[i])) {
      return {true, fmt::format("loss not finite in step {}", i)};
    }
  }
  const auto newly_bad = [](const auto& ours, const auto& theirs) -> std::string {
    for (const auto& [path, tensor] : ours) {
      const auto twin = theirs.find(path);
      if (is_bad(tensor) && (twin == theirs.end() || !is_bad(twin->second))) return path;
    }
    return {};
  };
  for (const auto& path : {newly_bad(faulty.end, clean.end), newly_bad(faulty.rest, clean.rest)}) {
    if (!path.empty()) return {true, path + " not finite at the end"};
  }
  double apart = 0, way = 0;
  for (const auto& [path, tensor] : clean.end) {
    const std::vector<double> a = faulty.end.at(path).to_vector(), b = tensor.to_vector();
    const std::vector<double> c = clean.start.at(path).to_vector();
    for (std::size_t i = 0; i < b.size(); ++i) {
      apart += (a[i] - b[i]) * (a[i] - b[i]);
      way += (b[i] - c[i]) * (b[i] - c[i]);
    }
  }
  const double share = std::sqrt(apart) / std::max(std::sqrt(way), 1e-30);
  if (!(share <= kDiverged)) return {true, fmt::format("parameters end {:.2f} of the clean run's way from its end",
      share)};
  return {false, fmt::format("parameters end {:.2g} of the clean run's way from its end", share)};
}

}  // namespace nanhunt::campaign
