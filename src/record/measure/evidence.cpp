// SPDX-License-Identifier: Apache-2.0
#include "src/record/measure/evidence.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "src/record/measure/strided_rows.h"

namespace nanhunt::record {
namespace {

// first index in [0, count) whose element is of the kind, or -1. inf: bits of infinity (magnitude); for a format
// without infinities the largest finite magnitude, so that "above" is NaN and nothing is "equal".
template <typename Word>
std::int64_t scan(const std::byte* data, std::int64_t stride, std::int64_t count, Word magnitude, Word inf,
                  BadKind kind) {
  const auto step = static_cast<std::ptrdiff_t>(stride) * static_cast<std::ptrdiff_t>(sizeof(Word));
  for (std::int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * step, sizeof(Word));
    word = static_cast<Word>(word & magnitude);
    if (kind == BadKind::kNan ? word > inf : word == inf) return i;
  }
  return -1;
}

std::int64_t scan_row(DType dtype, const std::byte* data, std::int64_t stride, std::int64_t count, BadKind kind) {
  switch (dtype) {
    case DType::kF16:
      return scan<std::uint16_t>(data, stride, count, 0x7FFF, 0x7C00, kind);
    case DType::kBF16:
      return scan<std::uint16_t>(data, stride, count, 0x7FFF, 0x7F80, kind);
    case DType::kF32:
      return scan<std::uint32_t>(data, stride, count, 0x7FFFFFFF, 0x7F800000, kind);
    case DType::kF64:
      return scan<std::uint64_t>(data, stride, count, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, kind);
    case DType::kE5M2:
      return scan<std::uint8_t>(data, stride, count, 0x7F, 0x7C, kind);
    case DType::kE4M3FN:
      return kind == BadKind::kInf ? -1 : scan<std::uint8_t>(data, stride, count, 0x7F, 0x7E, kind);
    default:
      return -1;
  }
}

std::vector<std::int64_t> coordinates(std::span<const std::int64_t> sizes, std::int64_t flat_index) {
  std::vector<std::int64_t> coords(sizes.size(), 0);
  for (std::size_t d = sizes.size(); d-- > 0;) {
    coords[d] = flat_index % sizes[d];
    flat_index /= sizes[d];
  }
  return coords;
}

double load(const TensorView& tensor, std::int64_t offset) {
  const auto* base = static_cast<const std::byte*>(tensor.data);
  return load_as_f64(tensor.dtype, base + offset * static_cast<std::ptrdiff_t>(dtype_size(tensor.dtype)));
}

}  // namespace

std::int64_t find_first(const TensorView& tensor, BadKind kind) {
  if (tensor.data == nullptr || !is_floating(tensor.dtype)) return -1;
  auto strides = broadcast_strides(tensor, tensor.sizes);
  if (!strides) return -1;
  const std::int64_t inner = strides->empty() ? 0 : strides->back();
  const auto size = static_cast<std::ptrdiff_t>(dtype_size(tensor.dtype));
  const auto* data = static_cast<const std::byte*>(tensor.data);
  std::int64_t found = -1;
  for_each_row(tensor.sizes, std::span(&*strides, 1),
               [&](std::span<const std::int64_t> offsets, std::int64_t start, std::int64_t row) {
                 const std::int64_t at = scan_row(tensor.dtype, data + offsets[0] * size, inner, row, kind);
                 if (at >= 0) found = start + at;
                 return at < 0;
               });
  return found;
}

double element_at(const TensorView& tensor, std::int64_t flat_index) {
  const auto coords = coordinates(tensor.sizes, flat_index);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < coords.size(); ++d) offset += coords[d] * tensor.strides[d];
  return load(tensor, offset);
}

std::vector<OperandNumber> operands_at(ElementMap map, std::span<const OpInput> inputs,
                                       std::span<const std::int64_t> sizes, std::int64_t flat_index) {
  std::vector<OperandNumber> operands;
  if (map == ElementMap::kNone) return operands;
  const auto coords = coordinates(sizes, flat_index);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OpInput& in = inputs[i];
    const TensorView& t = in.value.tensor;
    if (t.data == nullptr || in.role == ArgRole::kMask || in.role == ArgRole::kIndex || t.numel() <= 0) continue;
    const bool same = std::equal(t.sizes.begin(), t.sizes.end(), sizes.begin(), sizes.end());
    if (map == ElementMap::kSameShape && !same && t.numel() != 1) continue;
    const auto strides = broadcast_strides(t, sizes);
    if (!strides) {
      // A single number of higher rank still meets every element.
      if (t.numel() == 1) operands.push_back({i, 0, load(t, 0)});
      continue;
    }
    std::int64_t offset = 0;
    std::int64_t flat = 0;
    const std::size_t lead = sizes.size() - t.sizes.size();
    for (std::size_t d = 0; d < t.sizes.size(); ++d) {
      const std::int64_t c = t.sizes[d] == 1 ? 0 : coords[lead + d];
      offset += c * t.strides[d];
      flat = flat * t.sizes[d] + c;
    }
    operands.push_back({i, flat, load(t, offset)});
  }
  return operands;
}

}  // namespace nanhunt::record
