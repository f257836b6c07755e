// SPDX-License-Identifier: Apache-2.0
// The values of a pickle that PyTorch wrote, walked: tensors and scalars under dotted names, and what stays unread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/pickle/pickle.h"

namespace nanhunt::checkpoint {

struct StorageRange {
  std::size_t file = 0;
  std::uint64_t at = 0, size = 0;
  std::string problem;  // why its bytes cannot be read
};

// Where the bytes of a storage are, by its key in the pickle.
using FindStorage = std::function<StorageRange(std::string_view key)>;

// Adds what `pickle` holds to `out`, each name behind `prefix`. `what` names the file in notes.
void add_torch_values(const Pickle& pickle, const std::string& prefix, const FindStorage& storage,
                      const std::string& what, Checkpoint& out);

}  // namespace nanhunt::checkpoint
