// SPDX-License-Identifier: Apache-2.0
// What the elements of tensors, storages and NumPy arrays are, by the names that a pickle has for them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "nanhunt/dtype.h"
#include "src/checkpoint/byte_format.h"

namespace nanhunt::checkpoint {

struct ElementFormat {
  std::string_view dtype, storage;  // "bfloat16", "BFloat16Storage"
  std::string_view shown;
  std::size_t bytes;
  std::optional<DType> read_as;
  bool pair = false;           // complex: two numbers of `read_as`
  bool always_finite = false;  // no bit pattern is a NaN or an Inf
  const ByteFormat* byte_format() const { return dtype.empty() ? nullptr : find_byte_format(dtype); }
};

// By a storage's class or a dtype ("torch.FloatStorage", "torch.bfloat16"); null: not known.
const ElementFormat* find_torch_format(std::string_view global);
// By a NumPy dtype without its byte order ("f4", "c8", "b1"); null: not known.
const ElementFormat* find_numpy_format(std::string_view dtype);

// "storage" of "torch.storage".
std::string_view last_word(std::string_view dotted);

}  // namespace nanhunt::checkpoint
