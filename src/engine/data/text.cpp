// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// Streams of a step each, apart from those of weights and of the order of samples.
constexpr std::uint64_t kWindowStreams = std::uint64_t{1} << 33;

}  // namespace

std::int64_t text_token(char letter) {
  if (letter == '\n') return 0;
  if (letter < ' ' || letter > '~') fail("text", "a newline or a printable ASCII character", std::to_string(letter));
  return letter - ' ' + 1;
}

double text_unigram_entropy() {
  std::array<double, kTextTokens> counts{};
  for (char letter : text_file()) ++counts[static_cast<std::size_t>(text_token(letter))];
  double entropy = 0;
  for (double count : counts) {
    const double frequency = count / static_cast<double>(kTextCharacters);
    if (count > 0) entropy -= frequency * std::log(frequency);
  }
  return entropy;
}

Batch make_text_batch(std::span<const std::int64_t> starts, std::int64_t tokens) {
  if (tokens < 1) fail("text", "windows of 1 character or more", std::to_string(tokens));
  const std::string_view text = text_file();
  std::vector<std::int64_t> inputs, targets;
  for (std::int64_t start : starts) {
    if (start < 0 || start > kTextCharacters - tokens - 1) {
      fail("text", "a window and its next character within the text", "start " + std::to_string(start));
    }
    for (std::int64_t at = start; at < start + tokens; ++at) {
      inputs.push_back(text_token(text[static_cast<std::size_t>(at)]));
      targets.push_back(text_token(text[static_cast<std::size_t>(at + 1)]));
    }
  }
  const auto rows = static_cast<std::int64_t>(starts.size());
  return {.inputs = Tensor::from_indices(inputs, {rows, tokens}),
          .targets = Tensor::from_indices(targets, {rows, tokens}),
          .sample_ids = {starts.begin(), starts.end()}};
}

BatchSource text_train_batches(std::int64_t batch_size, std::int64_t tokens, std::uint64_t seed) {
  if (batch_size < 1) fail("text", "a batch size of 1 or more", std::to_string(batch_size));
  if (tokens < 1 || tokens >= kTextTrain) fail("text", "windows within the training part", std::to_string(tokens));
  return [=](std::uint32_t step) {
    RandomStream random(seed, kWindowStreams + step);
    std::vector<std::int64_t> starts(static_cast<std::size_t>(batch_size));
    for (std::int64_t& start : starts) {
      start = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(kTextTrain - tokens)));
    }
    return make_text_batch(starts, tokens);
  };
}

}  // namespace nanhunt::engine
