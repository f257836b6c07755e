// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/checksum.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/tensor_walk.h"

namespace nanhunt::kernels {
namespace {

constexpr std::size_t kStripe = 64;
static_assert(kBlockBytes == kChecksumBlock && kStripe == 8 * kChecksumLaneCount);

void stripes_scalar(const unsigned char* data, std::size_t stripes, ChecksumLanes& lanes) {
  std::uint64_t shift = 0;
  for (std::size_t s = 0; s < stripes; ++s, data += kStripe, shift += kChecksumStep) {
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + 8 * i, 8);
      lanes.sum[i] += word;
      lanes.product[i] += checksum_product(word, kChecksumKeys[i] + shift);
    }
  }
}

std::uint64_t block(const unsigned char* data, std::size_t bytes, std::uint64_t number) {
  static const ChecksumStripes kStripes = checksum_stripes(active_simd());
  std::uint64_t out = checksum_begin(number, bytes);
  const std::size_t whole = bytes / kStripe, left = bytes % kStripe;
  if (whole > 0) {
    ChecksumLanes lanes;
    kStripes(data, whole, lanes);
    for (std::size_t i = 0; i < 8; ++i) out = checksum_lane(out, lanes.sum[i], lanes.product[i]);
  }
  for (std::size_t at = whole * kStripe; at < whole * kStripe + left; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, bytes - at));
    out = checksum_left_over(out, word);
  }
  return checksum_end(out);
}

}  // namespace

ChecksumStripes checksum_stripes(Simd simd) {
  ChecksumStripes path = nullptr;
  if (simd == Simd::kAvx2) path = checksum_stripes_avx2();
  if (simd == Simd::kAvx512) path = checksum_stripes_avx512();
  return path != nullptr ? path : stripes_scalar;
}

std::uint64_t checksum_bytes(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(data);
  std::uint64_t out = 0, number = 0;
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    out += block(first + at, std::min(kBlockBytes, bytes - at), number++);
  }
  return out;
}

std::uint64_t checksum_elements(const TensorView& tensor) {
  const std::size_t size = dtype_size(tensor.dtype);
  if (tensor.data != nullptr && tensor.is_contiguous())
    return checksum_bytes(tensor.data, static_cast<std::size_t>(tensor.numel()) * size);
  const TensorWalk walk(tensor);
  std::uint64_t out = 0, number = 0;
  walk.for_each_block([&](const Block& part, std::int64_t) {
    out += block(static_cast<const unsigned char*>(part.data), part.count * size, number++);
    return true;
  });
  return out;
}

}  // namespace nanhunt::kernels
