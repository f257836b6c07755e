// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/norm_ring.h"

namespace nanhunt::hooks {

void NormRing::begin_step(std::uint32_t step) {
  if (slots_.empty()) return;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  slot.step = step;
  slot.rows.clear();
  slot.written = 0;
}

void NormRing::add(TensorRole kind, std::uint32_t index, double norm, double amax) {
  if (slots_.empty()) return;
  slots_[(next_ + slots_.size() - 1) % slots_.size()].rows.push_back({kind, index, norm, amax});
}

void NormRing::write(const std::function<void(std::uint32_t step, const Row& row)>& write) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    for (; slot.written < slot.rows.size(); ++slot.written) write(slot.step, slot.rows[slot.written]);
  }
}

}  // namespace nanhunt::hooks
