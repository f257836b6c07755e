// SPDX-License-Identifier: Apache-2.0
// The raw bytes of tensors, to compare runs bit for bit (NaN included).
#pragma once

#include <cstddef>
#include <vector>

#include "nanhunt/engine/trainer.h"

namespace nanhunt::testing_support {

template <typename NamedTensors>
std::vector<std::byte> bytes_of(const NamedTensors& tensors) {
  std::vector<std::byte> bytes;
  for (const auto& entry : tensors) {
    const engine::Tensor flat = entry.tensor.clone();
    const auto* first = static_cast<const std::byte*>(flat.raw());
    bytes.insert(bytes.end(), first, first + flat.numel() * static_cast<std::int64_t>(dtype_size(flat.dtype())));
  }
  return bytes;
}

// All that a step changes: parameters, buffers, the optimizer's state.
inline std::vector<std::byte> bytes_of(engine::Trainer& trainer) {
  std::vector<std::byte> bytes = bytes_of(trainer.model().named_parameters());
  for (const auto& more : {bytes_of(trainer.model().named_buffers()), bytes_of(trainer.optimizer().named_state())}) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

}  // namespace nanhunt::testing_support
