// SPDX-License-Identifier: Apache-2.0
#include "src/engine/precision/layer_probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "nanhunt/engine/hooks.h"

namespace nanhunt::engine {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int kMostTries = 40;  // halvings from 2^24 to 2^-16
constexpr std::string_view kLoss = "<loss>";
constexpr std::string_view kCast = "_to_copy", kCastBackward = "_to_copy_backward";

// Of "a.b": "a". Of a parameter's path: its layer.
std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

bool is_finite(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector();
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

class StepCapture final : public Observer {
 public:
  // `of_validation`: of that alone, instead of training.
  StepCapture(Probe& probe, bool with_ops, bool of_validation = false)
      : probe_(probe), with_ops_(with_ops), of_validation_(of_validation) {}
  bool wants_ops() const noexcept override { return with_ops_; }

  void on_mark(TensorRole role, std::string_view path, const Tensor& tensor) noexcept override {
    if (role == TensorRole::kBoundaryGradient && !of_validation_)
      probe_.gradients.insert_or_assign(std::string(path), tensor.clone());
  }

  void on_op(const OpCall& call) noexcept override {
    const bool backward = call.phase == Phase::kBackward;
    const bool forward = call.phase == (of_validation_ ? Phase::kValidation : Phase::kForward);
    if (!forward && (of_validation_ || (!backward && call.phase != Phase::kLoss))) return;
    const bool is_cast = call.op == kCast || call.op == kCastBackward;
    if (forward) note_formats(call);
    for (const OpArgument& output : call.outputs) {
      if (!output.tensor->defined() || !is_floating(output.tensor->dtype()) || output.tensor->numel() == 0) continue;
      MadeBy by{std::string(call.module), std::string(call.op) + "." + std::string(output.slot), backward, 0};
      by.number = numbers_[by]++;
      Made made{output.tensor->clone(), has_clean_inputs(call)};
      if (is_cast) made.cast_from = call.inputs.front().tensor->clone();
      probe_.made.insert_or_assign(by, std::move(made));
      if (!forward || by.module.empty() || by.module == kLoss) continue;
      if (seen_.insert(by.module).second) probe_.layers.push_back(by.module);
      if (!is_cast) probe_.results.insert_or_assign(by.module, by);
    }
  }

 private:
  static bool has_clean_inputs(const OpCall& call) {
    return std::all_of(call.inputs.begin(), call.inputs.end(), [](const OpArgument& input) {
      const bool is_read = input.role == ArgRole::kRead || input.role == ArgRole::kSaved;
      const Tensor& tensor = *input.tensor;
      if (!is_read || !tensor.defined() || !is_floating(tensor.dtype()) || input.version < tensor.version())
        return true;
      return is_finite(tensor);
    });
  }

  // An input that an operation outside of the layer has made comes into the layer, and into those that hold it but not
  // its maker.
  void note_formats(const OpCall& call) {
    const std::string module(call.module);
    for (const OpArgument& input : call.inputs) {
      if (!input.tensor->defined() || !is_floating(input.tensor->dtype())) continue;
      const auto maker = makers_.find(input.tensor->storage()->generation());
      if (maker == makers_.end()) continue;  // a parameter, or the batch
      for (std::string layer = module; !layer.empty(); layer = parent_of(layer)) {
        if (is_within(maker->second, layer)) break;
        probe_.input_formats.emplace(layer, input.tensor->dtype());
      }
    }
    for (const OpArgument& output : call.outputs) {
      if (output.tensor->defined()) makers_.insert_or_assign(output.tensor->storage()->generation(), module);
    }
  }

  Probe& probe_;
  bool with_ops_, of_validation_;
  std::map<std::uint64_t, std::string> makers_;  // module, by generation
  std::map<MadeBy, std::uint32_t> numbers_;
  std::set<std::string> seen_;
};

// Sums of squares of a difference and of what it is measured by.
struct Distance {
  double difference = 0, size = 0;
  bool lost = false;  // not finite where fp32 is

  void add(const Tensor& fp32, const Tensor& other) {
    if (fp32.numel() != other.numel()) return;
    const std::vector<double> a = fp32.to_vector(), b = other.to_vector();
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!std::isfinite(a[i])) continue;
      lost = lost || !std::isfinite(b[i]);
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      size += a[i] * a[i];
    }
  }
  double relative() const {
    if (lost || !std::isfinite(difference)) return kInfinite;
    if (size > 0) return std::sqrt(difference / size);
    return difference > 0 ? kInfinite : 0;
  }
};

void count_lost(const Tensor& fp32, const Made& made, std::uint32_t step, LayerPrecision& layer) {
  if (fp32.numel() != made.value.numel()) return;
  const std::vector<double> a = fp32.to_vector(), b = made.value.to_vector();
  std::uint64_t overflowed = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) continue;
    if (!std::isfinite(b[i])) ++overflowed;
    if (b[i] == 0 && a[i] != 0) ++layer.flushed;
  }
  layer.elements += a.size();
  if (overflowed == 0 || !made.clean_inputs) return;  // else it only lived on
  layer.overflowed += overflowed;
  if (!layer.first_overflow) layer.first_overflow = step;
  layer.first_overflow = std::min(*layer.first_overflow, step);
}

}  // namespace

bool is_within(const std::string& path, const std::string& module) {
  return path == module || (path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.');
}

Probe probe_step(const RecipePlan& plan, const StartingPoint& from, bool with_ops) {
  RecipePlan one_step = plan;
  one_step.steps = 0;
  StartingPoint start = from;
  for (int tries = 1;; ++tries) {
    Probe probe;
    StepCapture capture(probe, with_ops);
    const auto trainer = make_in_recipe(one_step, &start);
    const HookHandle handle = add_observer(capture);
    const StepResult result = trainer->step();
    probe.loss = result.loss;
    probe.scale = result.scale;
    const bool searches = result.skipped && std::isfinite(result.loss) && trainer->scaler() != nullptr;
    if (!searches || tries == kMostTries || !result.ended_by.empty()) return probe;
    start.scaler = trainer->scaler()->saved();
  }
}

Probe probe_validation(const RecipePlan& plan, const StartingPoint& weights) {
  RecipePlan one_step = plan;
  one_step.steps = 1;
  Probe probe;
  StepCapture capture(probe, /*with_ops=*/true, /*of_validation=*/true);
  const auto trainer = make_in_recipe(one_step, &weights);
  trainer->optimizer().set_lr(0);  // the step before the validation leaves the weights
  const HookHandle handle = add_observer(capture);
  probe.loss = trainer->step().validation_loss.value_or(0);
  return probe;
}

double gradient_error(const Probe& fp32, const Probe& other) {
  Distance distance;
  for (const auto& [path, gradient] : fp32.gradients) {
    const auto found = other.gradients.find(path);
    if (found != other.gradients.end()) distance.add(gradient, found->second);
  }
  return distance.relative();
}

void add_errors(const Probe& fp32, const Probe& other, std::uint32_t step, std::vector<LayerPrecision>& layers) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < layers.size(); ++i) places.emplace(layers[i].layer, i);
  for (const std::string& name : fp32.layers) {
    if (!places.emplace(name, layers.size()).second) continue;
    layers.push_back({.layer = name,
                      .gradient_error = std::nan(""),
                      .first_overflow = {},
                      .alone_error = std::nan(""),
                      .kept_error = std::nan("")});
  }
  for (const auto& [by, made] : other.made) {
    const auto place = places.find(by.module);
    if (place == places.end()) continue;
    if (made.cast_from.defined()) {
      count_lost(made.cast_from, made, step, layers[place->second]);
    } else if (const auto in_fp32 = fp32.made.find(by); in_fp32 != fp32.made.end()) {
      count_lost(in_fp32->second.value, made, step, layers[place->second]);
    }
  }
  for (const auto& [name, by] : fp32.results) {
    const auto made = other.made.find(by);
    if (made == other.made.end()) continue;
    Distance distance;
    distance.add(fp32.made.at(by).value, made->second.value);
    double& worst = layers[places.at(name)].output_error;
    worst = std::max(worst, distance.relative());
  }
  std::map<std::string, Distance> gradients;
  for (const auto& [path, gradient] : fp32.gradients) {
    const auto found = other.gradients.find(path);
    if (found != other.gradients.end()) gradients[parent_of(path)].add(gradient, found->second);
  }
  for (const auto& [name, distance] : gradients) {
    const auto place = places.find(name);
    if (place == places.end()) continue;
    double& worst = layers[place->second].gradient_error;
    worst = std::isnan(worst) ? distance.relative() : std::max(worst, distance.relative());
  }
}

}  // namespace nanhunt::engine
