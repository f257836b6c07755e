// SPDX-License-Identifier: Apache-2.0
// The pre-audit of src/hunt for all parameters of an optimizer: what holds of each is kept from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nanhunt/engine/trainer.h"
#include "src/hunt/pre_audit.h"

namespace nanhunt::hooks {

class OptimizerAudit {
 public:
  // What is stepped with one parameter.
  struct Audited {
    engine::Tensor parameter, master, first, second;  // undefined: none
    hunt::PreAuditMemory memory = {};
    std::uint64_t versions = 0;                   // of all of them, added up, after the last step
    bool foreseen = false;                        // the update of the step at hand
    std::optional<std::uint32_t> proved_in = {};  // the step whose update was last proved to be finite
  };
  struct Gradient {
    bool known = false;  // false: the parameter is not stepped
    double amax = 0;
    bool changed = false;  // the parameter, unseen: nothing is known of it
  };

  explicit OptimizerAudit(const engine::Optimizer& optimizer);
  const std::vector<Audited>& audited() const { return audited_; }

  void start();   // before the first step
  void settle();  // a step has ended: what was written until now is known of

  // What the optimizer is about to do. `triggers` is told of parameters by number. What cannot be proved to be safe
  // without reading elements is read (on a device by a copy, which waits) if `may_read`. Gives how many were not.
  std::size_t foresee(std::uint32_t step, const std::function<Gradient(std::size_t)>& gradient, bool may_read,
                      const std::function<void(std::size_t)>& triggers);
  // What it did in the step that ended last, from the contents at its optimizer boundary. Waits for a device. nullopt: they, or the
  // gradient, cannot be had.
  std::optional<hunt::PreAudit> in_hindsight(std::size_t index, const engine::OptimizerCopy& at_boundary) const;

 private:
  hunt::PreAuditOptions options() const;

  const engine::Optimizer& optimizer_;
  std::vector<Audited> audited_;
};

}  // namespace nanhunt::hooks
