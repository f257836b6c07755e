// SPDX-License-Identifier: Apache-2.0
// What an optimizer ought to do: SGD, Adam and AdamW in fp64, fed with the gradients a run really had. Never
// touches the run; it only says how far each parameter should have moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nanhunt::hunt {

struct ReferenceOptions {
  std::string algorithm = "adam";  // "sgd", "adam", "adamw"
  double lr = 1e-3;
  double momentum = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // adamw: decoupled, else added to the gradient
};

class ReferenceOptimizer {
 public:
  explicit ReferenceOptimizer(ReferenceOptions options) : options_(std::move(options)) {}

  void set_lr(double lr) { options_.lr = lr; }
  // One step of one parameter: what has to be added to `value`, given its gradient. Keeps the parameter's moments;
  // parameters count from 0 and keep their number of elements.
  std::vector<double> update(std::size_t parameter, std::span<const double> value, std::span<const double> gradient);

 private:
  struct Moments {
    std::vector<double> first, second;  // m and v; first alone is sgd's momentum buffer
    std::int64_t steps = 0;
  };
  double sgd(Moments& moments, std::size_t i, double p, double g) const;
  double adam(Moments& moments, std::size_t i, double p, double g) const;

  ReferenceOptions options_;
  std::vector<Moments> moments_;
};

// How far two update norms are apart: max(r, 1/r); 1 if both are 0, infinite if only one is or either is not finite.
double norm_factor(double norm, double reference_norm);

// How far an update is from the reference's: the larger of norm_factor() and 1 / the cosine of the angle between them;
// infinite at a right angle and beyond. Both must have one length.
double update_factor(std::span<const double> update, std::span<const double> reference);

}  // namespace nanhunt::hunt
