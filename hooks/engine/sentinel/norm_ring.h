// SPDX-License-Identifier: Apache-2.0
// Norms of gradients and parameters over the last steps, in memory until a trigger asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "nanhunt/event.h"

namespace nanhunt::hooks {

class NormRing {
 public:
  explicit NormRing(std::uint32_t steps) : slots_(steps) {}

  void begin_step(std::uint32_t step);
  // `index`: which parameter.
  void add(TensorRole kind, std::uint32_t index, double norm, double amax);
  struct Row {
    TensorRole kind;
    std::uint32_t index;
    double norm, amax;
  };
  // Calls write(step, row) for what was not written yet, oldest step first.
  void write(const std::function<void(std::uint32_t step, const Row& row)>& write);

 private:
  struct Slot {
    std::uint32_t step = 0;
    std::vector<Row> rows;
    std::size_t written = 0;
  };
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // slot of the coming step
};

}  // namespace nanhunt::hooks
