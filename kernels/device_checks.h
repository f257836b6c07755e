// SPDX-License-Identifier: Apache-2.0
// Checksums of tensors on a device, compared there with what they were when they were last looked at. Contract:
// kernels/CONTRACTS.md, checks of the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/checksum_words.h"
#include "kernels/device_stats.h"

namespace nanhunt::kernels {

// A reference is a number of memory of the device, from 1; 0: none, the contents count as new.
inline constexpr std::uint32_t kFirstCheck = std::uint32_t{1} << 31;  // with a reference: nothing was left there yet

// A view as its elements are taken: row-major, broadcasts once, neighbours joined. No dimensions: `count` elements that
// lie one after the other.
inline constexpr int kMaxCheckedDims = 8;
struct CheckedView {
  std::uint64_t data = 0;
  std::uint64_t count = 0;
  std::uint32_t size = 1;  // bytes of an element
  std::uint32_t dims = 0;
  std::uint64_t sizes[kMaxCheckedDims] = {};
  std::int64_t stride_bytes[kMaxCheckedDims] = {};
};
// Fails where there are more dimensions than that. A view without gaps is taken as its memory lies, whatever the order
// of its dimensions: as the recorder does.
Result<CheckedView> plan_check(const TensorView& tensor);

struct CheckedTensor {
  CheckedView view;
  std::uint32_t reference = 0;
};

// A tensor without gaps; its tag is a reference, as above. Where its contents count as new they are read in the same
// pass, where they differ from the reference they are read after all: at level kSums, to a record in slot `slot`.
inline constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};  // not read
struct ChecksumStatsTensor {
  DeviceTensor tensor;
  std::uint32_t slot = kNoSlot;
};

// What a launch leaves of up to kChecksInRecord tensors. As large as a record of statistics, so that both lie in the
// same slots.
inline constexpr std::uint32_t kChecksInRecord = 11;
struct DeviceChecks {
  std::uint64_t checksum[kChecksInRecord] = {};
  std::uint8_t differs[16] = {};  // from the reference; without one, or the first time: 1
};
static_assert(sizeof(DeviceChecks) == sizeof(DeviceStatsRecord));

// Tensors without gaps of one launch: 4 KiB of parameters.
inline constexpr std::size_t kChecksInParameters = 121;
static_assert(kChecksInParameters % kChecksInRecord == 0);

NANHUNT_HOST_DEVICE constexpr std::uint32_t checksum_blocks(std::uint64_t bytes) {
  return bytes == 0 ? 1 : static_cast<std::uint32_t>((bytes + kChecksumBlock - 1) / kChecksumBlock);
}

}  // namespace nanhunt::kernels
