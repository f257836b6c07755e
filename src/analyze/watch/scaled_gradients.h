// SPDX-License-Identifier: Apache-2.0
// Which storages hold gradients of a loss that a scaler multiplied and that nothing has unscaled since.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "src/analyze/graph/value_graph.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

class ScaledGradients {
 public:
  explicit ScaledGradients(const Names& names) : names_(names) {}

  // `unscales`: the op divides by the scale.
  void on_op(const OpInView& op, bool unscales);
  void end_step() { storages_.clear(); }
  // Is it an op of an optimizer that updates with such a gradient, as backward left it?
  bool are_used_by(const OpInView& op) const;

 private:
  static constexpr std::size_t kMaxStorages = 1u << 16;

  bool holds(const Value* value) const { return value != nullptr && storages_.contains(value->storage); }

  const Names& names_;
  std::unordered_set<std::uint64_t> storages_;
};

}  // namespace nanhunt::analyze
