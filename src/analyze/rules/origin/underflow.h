// SPDX-License-Identifier: Apache-2.0
// The half of rule `underflow` that needs no failure: second moments that are stored as 0 although the gradient is not.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kFlushedShare = 0.01;  // of the elements with a non-zero gradient

class StateUnderflow {
 public:
  explicit StateUnderflow(Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  std::optional<Finding> finding() const;

 private:
  struct Loss {  // of one parameter
    OpRef at;
    StringId state_name = 0;
    ArgSnapshot output;
    std::vector<ArgSnapshot> inputs;
    DType stored = DType::kF32;
    std::int64_t flushed = 0, nonzero = 0;
    double worst_share = 0;
    std::uint32_t last_step = 0;
  };
  const Value* gradient_of(const OpInView& op) const;  // whose square goes into a second moment

  Names& names_;
  std::vector<Loss> losses_;  // in order of first sight
  std::map<StringId, std::size_t> by_module_;
  std::uint64_t steps_ = 0;  // with any loss
  std::uint32_t last_step_ = 0;
};

}  // namespace nanhunt::analyze
