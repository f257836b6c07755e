// SPDX-License-Identifier: Apache-2.0
// Ops that lose digits where a wider format was at hand: numbers rounded by hand under autocast, losses whose parts
// have different formats, logarithms of probabilities in 16 bits. Needs no failure.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

class PrecisionAudit {
 public:
  PrecisionAudit(Names& names, ValueGraph& graph) : names_(names), graph_(graph) {}
  void on_op(const OpInView& op);
  // `autocast_fp16`: a model ran under autocast to fp16.
  std::vector<Finding> findings(bool autocast_fp16) const;

 private:
  enum Kind : std::size_t { kRounded, kMixed, kLogOfSoftmax, kNarrowLogSoftmax, kKinds };
  struct Seen {
    OpRef at;
    StringId site = 0;
    std::vector<ArgSnapshot> inputs;
    std::optional<ArgSnapshot> output;
    DType from = DType::kF32, to = DType::kF32;
    std::uint64_t steps = 0;
    std::uint32_t last_step = 0;
  };
  struct Cast {  // fp32 to fp16
    OpRef at;
    StringId site = 0;
  };
  DType dtype_of_value(const Value& value) const;
  void take(Kind kind, const OpInView& op, DType from, DType to, const OpRef* at = nullptr, StringId site = 0);

  static constexpr std::size_t kMaxCasts = 4096;  // of a step
  Names& names_;
  ValueGraph& graph_;
  std::array<std::optional<Seen>, kKinds> seen_;
  std::map<ValueId, Cast> casts_;  // of the step at hand
  std::uint32_t step_ = 0;
};

}  // namespace nanhunt::analyze
