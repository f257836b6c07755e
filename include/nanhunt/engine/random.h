// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// A number is a pure function of (seed, stream, index), so a stream can be left or jumped into at no cost.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

// One block: four 32-bit words from a counter and a key.
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// Words of one stream in order. The key is the seed; the counter is (block index, stream). `position` counts the
// words drawn and is the whole state.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream, std::uint64_t position = 0)
      : seed_(seed), stream_(stream), position_(position) {}

  std::uint32_t next_u32();
  std::uint64_t next_u64();                  // two words, the first one low
  double uniform();                          // [0, 1), 53 bits, two words
  double uniform(double low, double high);   // [low, high)
  double normal();                           // Box-Muller in double, four words
  std::uint64_t below(std::uint64_t bound);  // [0, bound), unbiased; bound > 0
  std::uint64_t seed() const { return seed_; }
  std::uint64_t stream() const { return stream_; }
  std::uint64_t position() const { return position_; }
  void skip(std::uint64_t words);  // as if so many had been drawn
  void seek(std::uint64_t position) { position_ = position; }

 private:
  std::uint64_t seed_, stream_, position_;
  std::uint64_t block_index_ = ~std::uint64_t{0};  // of `block_`; no block has this index
  std::array<std::uint32_t, 4> block_{};
};

// 0 .. count-1 in random order (Fisher-Yates).
std::vector<std::int64_t> random_permutation(std::int64_t count, RandomStream& random);
// Filled in row-major order, each element rounded once. Not ops.
Tensor uniform_tensor(Shape sizes, double low, double high, DType dtype, RandomStream& random);
Tensor normal_tensor(Shape sizes, double mean, double stddev, DType dtype, RandomStream& random);

}  // namespace nanhunt::engine
