// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/reference_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace nanhunt::hunt {

double ReferenceOptimizer::sgd(Moments& moments, std::size_t i, double p, double g) const {
  g += options_.weight_decay * p;
  if (options_.momentum == 0) return -options_.lr * g;
  double& buffer = moments.first[i];  // starts at 0, which gives g at first
  buffer = options_.momentum * buffer + g;
  return -options_.lr * (options_.nesterov ? g + options_.momentum * buffer : buffer);
}

double ReferenceOptimizer::adam(Moments& moments, std::size_t i, double p, double g) const {
  const bool decoupled = options_.algorithm == "adamw";
  if (!decoupled) g += options_.weight_decay * p;
  double& m = moments.first[i];
  double& v = moments.second[i];
  m += (1 - options_.beta1) * (g - m);
  v = options_.beta2 * v + (1 - options_.beta2) * g * g;
  const auto t = static_cast<double>(moments.steps);
  const double step_size = options_.lr / (1 - std::pow(options_.beta1, t));
  const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(options_.beta2, t)) + options_.eps;
  const double decay = decoupled ? options_.lr * options_.weight_decay * p : 0;
  // 0/0 only where eps is 0: nothing was ever seen, nothing moves.
  return -decay - (m == 0 ? 0 : step_size * m / denominator);
}

std::vector<double> ReferenceOptimizer::update(std::size_t parameter, std::span<const double> value,
                                               std::span<const double> gradient) {
  if (value.size() != gradient.size())
    throw std::invalid_argument("[reference] expected one gradient per element, got another number");
  if (moments_.size() <= parameter) moments_.resize(parameter + 1);
  Moments& moments = moments_[parameter];
  if (moments.steps == 0) {
    moments.first.assign(value.size(), 0);
    moments.second.assign(options_.algorithm == "sgd" ? 0 : value.size(), 0);
  } else if (moments.first.size() != value.size()) {
    throw std::invalid_argument("[reference] expected a parameter of constant size, got another number of elements");
  }
  ++moments.steps;
  std::vector<double> change(value.size());
  const bool is_sgd = options_.algorithm == "sgd";
  for (std::size_t i = 0; i < value.size(); ++i) {
    change[i] = is_sgd ? sgd(moments, i, value[i], gradient[i]) : adam(moments, i, value[i], gradient[i]);
  }
  return change;
}

double norm_factor(double norm, double reference_norm) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!std::isfinite(norm) || !std::isfinite(reference_norm)) return kInfinity;
  if (norm == 0 && reference_norm == 0) return 1;
  if (norm == 0 || reference_norm == 0) return kInfinity;
  const double ratio = norm / reference_norm;
  return std::max(ratio, 1 / ratio);
}

double update_factor(std::span<const double> update, std::span<const double> reference) {
  if (update.size() != reference.size())
    throw std::invalid_argument("[update_factor] expected updates of one length, got two");
  double square = 0, reference_square = 0, product = 0;
  for (std::size_t i = 0; i < update.size(); ++i) {
    square += update[i] * update[i];
    reference_square += reference[i] * reference[i];
    product += update[i] * reference[i];
  }
  const double norm = std::sqrt(square), reference_norm = std::sqrt(reference_square);
  const double factor = norm_factor(norm, reference_norm);
  if (!std::isfinite(factor) || norm == 0) return factor;
  if (!(product > 0)) return std::numeric_limits<double>::infinity();
  // Rounding must not give a cosine above 1.
  return std::max({factor, 1.0, norm / product * reference_norm});
}

}  // namespace nanhunt::hunt
