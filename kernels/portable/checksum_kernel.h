// SPDX-License-Identifier: Apache-2.0
// The checksum (checksum_words.h) of a view with gaps as one kernel (block.h), the CPU's bit for bit: a block of
// threads for each block of 32 KiB. The last one compares the sum with the reference that an earlier launch left,
// leaves it there in its place, and says whether it differed; the ticket and the sum are left as they were found, zero.
// Tensors without gaps: checksum_stats_kernel.h.
#pragma once

#include <cstdint>

#include "kernels/checksum_words.h"
#include "kernels/portable/block.h"
#include "kernels/device_checks.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kChecksumThreads = 256;
static_assert(kChecksumThreads % kChecksumLaneCount == 0);

// One view with gaps, its elements in row-major order; broadcasts once. Right before fast.
struct ChecksumWalk {
  CheckedView view;
  std::uint32_t reference = 0;

  // Word `word` of a block that begins at byte `from`, of which `bytes` are left.
  NANHUNT_HOST_DEVICE std::uint64_t word(std::uint64_t from, std::uint64_t bytes, std::uint64_t word) const {
    std::uint64_t out = 0;
    for (std::uint32_t i = 0; i < 8 && 8 * word + i < bytes; i += view.size) {
      std::uint64_t element = (from + 8 * word + i) / view.size;
      std::uint64_t at = view.data;
      for (std::uint32_t d = view.dims; d-- > 0;) {
        at += element % view.sizes[d] * static_cast<std::uint64_t>(view.stride_bytes[d]);
        element /= view.sizes[d];
      }
      const auto* first = reinterpret_cast<const unsigned char*>(at);
      for (std::uint32_t k = 0; k < view.size; ++k) out |= std::uint64_t{first[k]} << (8 * (i + k));
    }
    return out;
  }
};

// Memory of the device.
struct ChecksumMemory {
  std::uint64_t* sums = nullptr;        // one for each of the launch's tensors, 0
  std::uint32_t* tickets = nullptr;     // the same
  std::uint64_t* references = nullptr;  // checksums, by number
  std::uint32_t* gates = nullptr;       // by the same number: 1 where contents are not the reference's
  DeviceChecks* checks = nullptr;       // of the launch's tensors, kChecksInRecord to a record
};

// What is left of a tensor's check, number `tensor` of a launch. True: its contents are not the reference's.
NANHUNT_HOST_DEVICE inline bool leave_check(const ChecksumMemory& memory, std::uint32_t tensor, std::uint32_t reference,
                                            std::uint64_t checksum) {
  DeviceChecks& record = memory.checks[tensor / kChecksInRecord];
  const std::uint32_t place = tensor % kChecksInRecord;
  const std::uint32_t at = reference & ~kFirstCheck;
  bool differs = true;
  if (at != 0) {
    differs = (reference & kFirstCheck) != 0 || memory.references[at] != checksum;
    memory.references[at] = checksum;
    memory.gates[at] = differs ? 1 : 0;
  }
  record.checksum[place] = checksum;
  record.differs[place] = differs ? 1 : 0;
  return differs;
}

struct ChecksumKernel {
  struct Shared {
    std::uint64_t sums[kChecksumThreads], products[kChecksumThreads];
    std::uint64_t lane_sums[kChecksumLaneCount], lane_products[kChecksumLaneCount];
  };

  ChecksumMemory memory;
  ChecksumWalk walk;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared();
    const std::uint64_t all = walk.view.count * walk.view.size;
    const std::uint32_t number = block.index();
    const std::uint64_t from = std::uint64_t{number} * kChecksumBlock;
    const std::uint64_t bytes = lesser(all - from, kChecksumBlock);
    const std::uint64_t whole = bytes / (8 * kChecksumLaneCount) * kChecksumLaneCount;  // words of whole stripes

    block.phase([&](const Thread& thread) {
      const std::uint64_t key = checksum_key(thread.index % kChecksumLaneCount);
      std::uint64_t sum = 0, product = 0;
      for (std::uint64_t w = thread.index; w < whole; w += kChecksumThreads) {
        const std::uint64_t word = walk.word(from, bytes, w);
        sum += word;
        product += checksum_product(word, key + w / kChecksumLaneCount * kChecksumStep);
      }
      shared.sums[thread.index] = sum;
      shared.products[thread.index] = product;
    });
    block.phase([&](const Thread& thread) {
      if (thread.index >= 2 * kChecksumLaneCount) return;
      const std::uint32_t lane = thread.index % kChecksumLaneCount;
      const bool products = thread.index >= kChecksumLaneCount;
      std::uint64_t sum = 0;
      for (std::uint32_t i = lane; i < kChecksumThreads; i += kChecksumLaneCount) {
        sum += products ? shared.products[i] : shared.sums[i];
      }
      (products ? shared.lane_products : shared.lane_sums)[lane] = sum;
    });
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      std::uint64_t out = 0;
      if (all != 0) {
        out = checksum_begin(number, bytes);
        for (std::uint32_t lane = 0; lane < kChecksumLaneCount && whole != 0; ++lane) {
          out = checksum_lane(out, shared.lane_sums[lane], shared.lane_products[lane]);
        }
        for (std::uint64_t w = whole; 8 * w < bytes; ++w)
          out = checksum_left_over(out, walk.word(from, bytes, w));
        out = checksum_end(out);
      }
      const std::uint32_t blocks = checksum_blocks(all);
      if (blocks > 1) {
        atomic_add(memory.sums, out);
        if (draw_ticket(memory.tickets, blocks) != blocks - 1) return;
        out = atomic_add(memory.sums, std::uint64_t{0});
        *memory.sums = 0;
      }
      leave_check(memory, 0, walk.reference, out);
    });
  }
};

}  // namespace nanhunt::kernels::cuda
