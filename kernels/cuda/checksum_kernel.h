// SPDX-License-Identifier: Apache-2.0
// Checksums of tensors (checksum_words.h) as one kernel (block.h), the CPU's bit for bit: a block of threads for each
// block of 32 KiB. The last one of a tensor compares the sum with the reference that an earlier launch left, leaves it
// there in its place, and says whether it differed. Tickets and sums are left as they were found, all zero.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/checksum_words.h"
#include "kernels/cuda/block.h"
#include "kernels/device_checks.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kChecksumThreads = 256;
static_assert(kChecksumThreads % kChecksumLaneCount == 0);

struct ChecksumEntry {
  std::uint64_t data;
  std::uint64_t bytes;
  std::uint32_t first_block;  // of all tensors before this one
  std::uint32_t reference;    // as CheckedTensor has it
};

// Tensors without gaps, by value.
struct ChecksumTable {
  std::uint32_t tensors = 0;
  ChecksumEntry entries[kChecksInParameters];

  NANHUNT_HOST_DEVICE std::uint32_t find(std::uint32_t block) const {
    std::uint32_t low = 0;  // the last tensor that begins at or before this block
    std::uint32_t high = tensors;
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (entries[middle].first_block <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  NANHUNT_HOST_DEVICE ChecksumEntry entry(std::uint32_t tensor) const { return entries[tensor]; }
  // Word `word` of a block that begins at byte `from`, of which `bytes` are left.
  NANHUNT_HOST_DEVICE std::uint64_t word(std::uint32_t tensor, std::uint64_t from, std::uint64_t bytes,
                                         std::uint64_t word) const {
    const auto* at = reinterpret_cast<const unsigned char*>(entries[tensor].data) + from + 8 * word;
    const std::uint64_t left = bytes - 8 * word;
    if (left >= 8 && (reinterpret_cast<std::uint64_t>(at) & 7) == 0) return *reinterpret_cast<const std::uint64_t*>(at);
    std::uint64_t out = 0;
    for (std::uint32_t i = 0; i < 8 && i < left; ++i) out |= std::uint64_t{at[i]} << (8 * i);
    return out;
  }
};

// Gives the blocks of the launch.
inline std::uint32_t fill_checks(std::span<const CheckedTensor> tensors, ChecksumTable& table) {
  std::uint32_t blocks = 0;
  for (std::size_t i = 0; i < tensors.size() && i < kChecksInParameters; ++i) {
    const CheckedView& view = tensors[i].view;
    table.entries[i] = {view.data, view.count * view.size, blocks, tensors[i].reference};
    blocks += checksum_blocks(view.count * view.size);
    table.tensors = static_cast<std::uint32_t>(i + 1);
  }
  return blocks;
}

// One view with gaps, its elements in row-major order; broadcasts once. Right before fast.
struct ChecksumWalk {
  CheckedView view;
  std::uint32_t reference = 0;

  NANHUNT_HOST_DEVICE std::uint32_t find(std::uint32_t) const { return 0; }
  NANHUNT_HOST_DEVICE ChecksumEntry entry(std::uint32_t) const {
    return {view.data, view.count * view.size, 0, reference};
  }
  NANHUNT_HOST_DEVICE std::uint64_t word(std::uint32_t, std::uint64_t from, std::uint64_t bytes,
                                         std::uint64_t word) const {
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
  std::uint64_t* sums = nullptr;        // kChecksInParameters, 0
  std::uint32_t* tickets = nullptr;     // kChecksInParameters, 0
  std::uint64_t* references = nullptr;  // checksums, by number
  std::uint32_t* gates = nullptr;       // by the same number: 1 where contents are not the reference's
  DeviceChecks* checks = nullptr;       // of the launch's tensors, kChecksInRecord to a record
};

template <class Table>
struct ChecksumKernel {
  struct Shared {
    std::uint64_t sums[kChecksumThreads], products[kChecksumThreads];
    std::uint64_t lane_sums[kChecksumLaneCount], lane_products[kChecksumLaneCount];
  };

  ChecksumMemory memory;
  Table table;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared();
    const std::uint32_t tensor = table.find(block.index());
    const ChecksumEntry entry = table.entry(tensor);
    const std::uint32_t number = block.index() - entry.first_block;
    const std::uint64_t from = std::uint64_t{number} * kChecksumBlock;
    const std::uint64_t bytes = lesser(entry.bytes - from, kChecksumBlock);
    const std::uint64_t whole = bytes / (8 * kChecksumLaneCount) * kChecksumLaneCount;  // words of whole stripes

    block.phase([&](const Thread& thread) {
      const std::uint64_t key = checksum_key(thread.index % kChecksumLaneCount);
      std::uint64_t sum = 0, product = 0;
      for (std::uint64_t w = thread.index; w < whole; w += kChecksumThreads) {
        const std::uint64_t word = table.word(tensor, from, bytes, w);
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
      if (entry.bytes != 0) {
        out = checksum_begin(number, bytes);
        for (std::uint32_t lane = 0; lane < kChecksumLaneCount && whole != 0; ++lane) {
          out = checksum_lane(out, shared.lane_sums[lane], shared.lane_products[lane]);
        }
        for (std::uint64_t w = whole; 8 * w < bytes; ++w)
          out = checksum_left_over(out, table.word(tensor, from, bytes, w));
        out = checksum_end(out);
      }
      const std::uint32_t blocks = checksum_blocks(entry.bytes);
      if (blocks > 1) {
        atomic_add(memory.sums + tensor, out);
        if (draw_ticket(memory.tickets + tensor, blocks) != blocks - 1) return;
        out = atomic_add(memory.sums + tensor, std::uint64_t{0});
        memory.sums[tensor] = 0;
      }
      leave(tensor, entry.reference, out);
    });
  }

 private:
  NANHUNT_HOST_DEVICE void leave(std::uint32_t tensor, std::uint32_t reference, std::uint64_t checksum) const {
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
  }
};

static_assert(sizeof(ChecksumKernel<ChecksumTable>) <= 4096);

}  // namespace nanhunt::kernels::cuda
