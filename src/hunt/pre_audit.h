// SPDX-License-Identifier: Apache-2.0
// What an optimizer is about to do to one parameter, foreseen at the optimizer boundary, before anything changes: how many elements
// would divide by zero, by what is not finite, or store something that is not finite. Knows no engine and changes
// nothing; it carries out the arithmetic that the optimizer will, rounding where the optimizer stores.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "nanhunt/tensor_view.h"

namespace nanhunt::hunt {

struct PreAuditOptions {
  std::string_view algorithm = "adam";  // "sgd", "adam", "adamw"
  double lr = 1e-3;
  double momentum = 0;  // sgd
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // adamw: decoupled, else added to the gradient
  // true: one kernel, which rounds nothing but parameter and state. false: a sequence of ops, each result is stored.
  bool fused = false;
};

// What holds of one parameter before the coming step, so that elements need not be read. A caller keeps one for each
// parameter: new_state() for a new optimizer, then what the last audit gave (the step may have been skipped). Anything
// else that writes parameter or state, such as a checkpoint that is loaded, makes it PreAuditMemory{}: not known.
struct PreAuditMemory {
  double first = std::numeric_limits<double>::quiet_NaN();  // no element of exp_avg or momentum_buffer is larger
  double param = std::numeric_limits<double>::quiet_NaN();  // nor of what is stepped
  bool balanced = false;  // |m| <= R sqrt(v), which Adam keeps once it holds; R depends on the betas alone
  static PreAuditMemory new_state() { return {0, std::numeric_limits<double>::quiet_NaN(), true}; }
};

struct PreAuditInput {
  TensorView grad;    // as the optimizer will read it
  TensorView param;   // what is stepped: the parameter, or its fp32 master; no data: taken for 0
  TensorView first;   // exp_avg or momentum_buffer; no data: sgd without momentum
  TensorView second;  // exp_avg_sq; no data: sgd
  std::optional<DType> copied_to{};  // of a master: the format of the parameter that it is copied to
  std::int64_t step = 1;             // of this parameter, from 1, the coming one included
  double grad_amax = std::numeric_limits<double>::quiet_NaN();  // infinite or NaN where an element is, or not known
  PreAuditMemory memory{};
};

// All counts are exact where elements were read; else they are 0, and that is a proof: see pre_audit().
struct PreAudit {
  std::int64_t zero_over_zero = 0;   // the denominator would be stored as 0, and so is what it divides: NaN
  std::int64_t x_over_zero = 0;      // the denominator alone would be 0: Inf
  std::int64_t bad_denominators = 0; // the denominator would be NaN or Inf (and the update 0 or NaN)
  std::int64_t bad_updates = 0;      // parameter (or its copy) would be NaN or Inf, for whatever reason
  std::int64_t bad_state = 0;        // first or second would be NaN or Inf
  std::int64_t first_index = -1;     // first element with any of these, row-major; -1: none
  bool read_elements = false;        // false: hyperparameters, grad_amax and memory decided it
  PreAuditMemory memory{};             // for the next audit

  bool bad() const { return bad_updates > 0 || bad_state > 0; }  // what is stored would not be finite
  bool triggers() const { return bad() || zero_over_zero > 0 || x_over_zero > 0 || bad_denominators > 0; }
};

// Reads param and state only where they can matter:
// - elements are read when the state is fp16, grad_amax or memory.first is not known or not finite, the square of the
//   gradient may pass the format of the state, eps is 0 or subnormal in the format in which sqrt(v) + eps is stored,
//   the largest possible update is not small against the format, lr * weight_decay is above 1, or a master may have
//   grown past the fp16 that it is copied to;
// - else nothing is read. With state of fp32, bf16 or fp64 that is finite, second >= 0 and |param| <= 2^60, no element
//   can then go bad: v' <= max(v, g^2), the denominator is at least eps, |m'| <= max(|m|, |g|), and the update is at
//   most step_size times min(|m| / eps, R).
// All views have the shape of grad. One that has not, or a format that is none of fp16, bf16, fp32 and fp64, is not
// audited: nothing counted, nothing read.
PreAudit pre_audit(const PreAuditOptions& options, const PreAuditInput& input);
// What pre_audit() gives where it reads nothing; nullopt: it would have to. Views may point where only a device can
// read.
std::optional<PreAudit> prove_safe(const PreAuditOptions& options, const PreAuditInput& input);

}  // namespace nanhunt::hunt
