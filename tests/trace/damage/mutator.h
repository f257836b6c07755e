// SPDX-License-Identifier: Apache-2.0
// Damage on purpose, from a seed: of bytes, of columns behind right checksums, of whole segments chunk by chunk.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "nanhunt/trace.h"
#include "tests/trace/damage/forge.h"

namespace nanhunt::trace_testing {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  // 1 to 4 changes: flipped bits, other bytes, runs of 00 or ff, pieces taken out or doubled, the end cut off.
  void mutate(Bytes& bytes);

  // A segment that reads like one: chunks lost, doubled, swapped, taken from `other`, with columns mutated before they
  // were packed or headers that lie, all checksums right; in the end perhaps some plain damage as well.
  Bytes mutated_segment(const Bytes& segment, const Bytes& other, const RecordBatch& rows);

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

 private:
  Bytes mutated_columns(const trace::ChunkHeader& like, const RecordBatch& rows);

  std::mt19937_64 random_;
};

}  // namespace nanhunt::trace_testing
