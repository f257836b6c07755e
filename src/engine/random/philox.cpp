// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "src/engine/ops/op.h"

namespace nanhunt::engine {
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    const auto high0 = static_cast<std::uint32_t>(product0 >> 32), low0 = static_cast<std::uint32_t>(product0);
    const auto high1 = static_cast<std::uint32_t>(product1 >> 32), low1 = static_cast<std::uint32_t>(product1);
    counter = {high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint32_t RandomStream::next_u32() {
  const std::uint64_t index = position_ / 4;
  if (index != block_index_) {
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    block_ = philox4x32_10({low(index), high(index), low(stream_), high(stream_)}, {low(seed_), high(seed_)});
    block_index_ = index;
  }
  return block_[position_++ % 4];
}

void RandomStream::skip(std::uint64_t words) {
  position_ += words;
}

std::uint64_t RandomStream::next_u64() {
  const std::uint64_t low = next_u32();
  return low | static_cast<std::uint64_t>(next_u32()) << 32;
}

double RandomStream::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double RandomStream::uniform(double low, double high) { return low + (high - low) * uniform(); }

double RandomStream::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - u is in (0, 1]
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::uint64_t RandomStream::below(std::uint64_t bound) {
  if (bound == 0) fail("below", "a bound of 1 or more", "0");
  // Words from the incomplete last run of `bound` numbers would favour small results.
  const std::uint64_t rejected = (0 - bound) % bound;
  std::uint64_t word = next_u64();
  while (word < rejected) word = next_u64();
  return word % bound;
}

std::vector<std::int64_t> random_permutation(std::int64_t count, RandomStream& random) {
  if (count < 0) fail("random_permutation", "a count of 0 or more", std::to_string(count));
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

Tensor uniform_tensor(Shape sizes, double low, double high, DType dtype, RandomStream& random) {
  std::vector<double> values(static_cast<std::size_t>(numel_of(sizes)));
  for (double& value : values) value = random.uniform(low, high);
  return Tensor::from_values(values, std::move(sizes), dtype);
}

Tensor normal_tensor(Shape sizes, double mean, double stddev, DType dtype, RandomStream& random) {
  std::vector<double> values(static_cast<std::size_t>(numel_of(sizes)));
  for (double& value : values) value = mean + stddev * random.normal();
  return Tensor::from_values(values, std::move(sizes), dtype);
}

}  // namespace nanhunt::engine
