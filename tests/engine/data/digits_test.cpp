// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/data.h"

namespace nanhunt::engine {
namespace {

// FIPS 180-4, for short inputs.
std::string sha256(std::string_view text) {
  constexpr std::array<std::uint32_t, 64> kRound = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<unsigned char> message(text.begin(), text.end());
  message.push_back(0x80);
  while (message.size() % 64 != 56) message.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) {
    message.push_back(static_cast<unsigned char>((std::uint64_t{text.size()} * 8) >> shift));
  }
  for (std::size_t start = 0; start < message.size(); start += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | message[start + i];
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
  }
  std::string hex;
  for (std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

TEST(Sha256, of_abc_is_the_published_one) {
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digits, are_the_file_whose_checksum_the_readme_states) {
  EXPECT_EQ(sha256(digits_csv()), "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8");
}

TEST(Digits, have_the_published_class_counts_and_known_first_and_last_rows) {
  // given the class distribution of the data set's own description
  const std::array<int, 10> published = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  std::array<int, 10> counts{};
  for (std::int64_t id = 0; id < kDigitsCount; ++id) ++counts[static_cast<std::size_t>(digit_label(id))];
  EXPECT_EQ(counts, published);
  // and two images read by eye from the file
  EXPECT_EQ(digit_label(0), 0);
  const auto first = digit_pixels(0).first(8);
  EXPECT_EQ(std::vector<int>(first.begin(), first.end()), (std::vector<int>{0, 0, 5, 13, 9, 1, 0, 0}));
  EXPECT_EQ(digit_label(1796), 8);
  const auto last = digit_pixels(1796).last(8);
  EXPECT_EQ(std::vector<int>(last.begin(), last.end()), (std::vector<int>{0, 1, 8, 12, 14, 12, 1, 0}));
}

TEST(Digits, refuse_ids_they_do_not_have) {
  EXPECT_THROW(digit_label(-1), std::invalid_argument);
  EXPECT_THROW(digit_label(1797), std::invalid_argument);
  EXPECT_THROW(digit_pixels(1797), std::invalid_argument);
}

TEST(DigitsSplit, holds_every_sample_once_and_never_changes) {
  const auto train = digits_train_ids(), test = digits_test_ids();
  EXPECT_EQ(train.size(), 1437u);
  EXPECT_EQ(test.size(), 360u);
  std::set<std::int64_t> ids(train.begin(), train.end());
  ids.insert(test.begin(), test.end());
  EXPECT_EQ(ids.size(), 1797u);
  // the first ids as stated in src/engine/data/README.md
  EXPECT_EQ(std::vector(train.begin(), train.begin() + 4), (std::vector<std::int64_t>{408, 459, 569, 1117}));
  EXPECT_EQ(std::vector(test.begin(), test.begin() + 4), (std::vector<std::int64_t>{122, 446, 393, 1356}));
}

TEST(DigitsBatch, has_pixels_in_0_to_1_labels_and_ids_row_by_row) {
  const std::vector<std::int64_t> ids = {5, 0, 1796};
  const Batch batch = make_digits_batch(ids, DType::kF16);
  EXPECT_EQ(batch.inputs.sizes(), (Shape{3, 64}));
  EXPECT_EQ(batch.inputs.dtype(), DType::kF16);
  EXPECT_EQ(batch.targets.dtype(), DType::kI64);
  EXPECT_EQ(batch.sample_ids, ids);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    EXPECT_EQ(batch.targets.at(static_cast<std::int64_t>(row)), static_cast<double>(digit_label(ids[row])));
    for (std::size_t p = 0; p < 64; ++p) {
      const auto at = static_cast<std::int64_t>(row * 64 + p);
      EXPECT_EQ(batch.inputs.at(at), digit_pixels(ids[row])[p] / 16.0);  // sixteenths are exact in fp16
    }
  }
  EXPECT_EQ(make_digits_batch({}, DType::kF32).inputs.sizes(), (Shape{0, 64}));
}

TEST(BatchOrder, shows_each_sample_once_an_epoch_and_another_order_in_the_next) {
  // given 10 samples in batches of 3: 3 steps an epoch, one sample left out
  std::vector<std::int64_t> samples = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  const BatchOrder order(samples, 3, /*seed=*/4);
  ASSERT_EQ(order.steps_per_epoch(), 3u);
  // when two epochs are drawn
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::uint32_t step = 0; step < 6; ++step) {
    for (std::int64_t id : order.ids(step)) epochs[step / 3].push_back(id);
  }
  // then no sample comes twice, and the orders differ
  for (const auto& epoch : epochs) EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), 9u);
  EXPECT_NE(epochs[0], epochs[1]);
  // and a step asked for again, or alone, is the same
  EXPECT_EQ(order.ids(4), BatchOrder(samples, 3, 4).ids(4));
  EXPECT_NE(order.ids(4), BatchOrder(samples, 3, 5).ids(4));
  EXPECT_EQ(order.ids(4'000'000'000u).size(), 3u);
}

TEST(BatchOrder, refuses_batches_larger_than_the_data) {
  EXPECT_THROW(BatchOrder({1, 2}, 3, 0), std::invalid_argument);
  EXPECT_THROW(BatchOrder({1, 2}, 0, 0), std::invalid_argument);
  EXPECT_THROW(BatchOrder({1, 2}, -1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
