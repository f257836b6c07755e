// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <stdexcept>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

struct Digits {
  std::array<std::uint8_t, kDigitsCount * kDigitsPixels> pixels;
  std::array<std::uint8_t, kDigitsCount> labels;
};

// The embedded file is ours and its checksum is tested: anything odd is a broken build.
Digits parse_digits() {
  Digits digits{};
  const std::string_view text = digits_csv();
  const char* at = text.data();
  const char* const end = at + text.size();
  auto number = [&](unsigned max, char separator) {
    unsigned value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value > max || next == end || *next != separator) {
      throw std::logic_error("digits.csv as built into this program is damaged: build again from a clean checkout");
    }
    at = next + 1;
    return static_cast<std::uint8_t>(value);
  };
  for (std::size_t row = 0; row < kDigitsCount; ++row) {
    for (std::size_t p = 0; p < kDigitsPixels; ++p) digits.pixels[row * kDigitsPixels + p] = number(16, ',');
    digits.labels[row] = number(9, '\n');
  }
  return digits;
}

const Digits& digits() {
  static const Digits parsed = parse_digits();
  return parsed;
}

std::size_t checked(std::int64_t id) {
  if (id < 0 || id >= kDigitsCount) fail("digits", "a sample id in [0, 1797)", std::to_string(id));
  return static_cast<std::size_t>(id);
}

const std::vector<std::int64_t>& split_order() {
  static const std::vector<std::int64_t> order = [] {
    RandomStream random(kDigitsSplitSeed, /*stream=*/0);
    return random_permutation(kDigitsCount, random);
  }();
  return order;
}

}  // namespace

std::span<const std::uint8_t> digit_pixels(std::int64_t id) {
  return std::span(digits().pixels).subspan(checked(id) * kDigitsPixels, kDigitsPixels);
}

std::int64_t digit_label(std::int64_t id) { return digits().labels[checked(id)]; }

std::span<const std::int64_t> digits_train_ids() { return std::span(split_order()).first(kDigitsTrain); }

std::span<const std::int64_t> digits_test_ids() { return std::span(split_order()).last(kDigitsTest); }

}  // namespace nanhunt::engine
