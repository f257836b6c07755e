// SPDX-License-Identifier: Apache-2.0
// Gradients that nobody clears: backward adds to what an optimizer has used in the step before.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "src/analyze/graph/value_graph.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

class KeptGradients {
 public:
  explicit KeptGradients(const Names& names) : names_(names) {}

  void on_op(const OpInView& op);
  void on_gradient(const Value& value);  // as an optimizer is about to use it
  void on_step_end(std::uint32_t step);

  // Training that diverged did so of them: they lead.
  void conclude(std::vector<Finding>& findings) const;

 private:
  static constexpr std::size_t kMaxStorages = 1u << 16;
  using Storages = std::unordered_set<std::uint64_t>;

  const Names& names_;
  Storages used_, added_, using_;  // in the step before and not written since; added to in this step; used in this step
  std::uint32_t used_in_ = 0;
  std::uint64_t kept_ = 0, others_ = 0;  // gradients of the step at hand
  std::uint64_t steps_ = 0;              // in which most were kept
  std::uint32_t first_step_ = 0;
  StringId call_site_ = 0, first_site_ = 0;  // of the optimizer
};

}  // namespace nanhunt::analyze
