// SPDX-License-Identifier: Apache-2.0
// The bundled data sets (src/engine/data/README.md): 1,797 handwritten digits and 49,555 characters of English, and
// batches of them as a pure function of the step.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nanhunt/engine/trainer.h"

namespace nanhunt::engine {

inline constexpr std::int64_t kDigitsCount = 1797;
inline constexpr std::int64_t kDigitsPixels = 64;  // 8 x 8, row-major, 0..16
inline constexpr std::int64_t kDigitsClasses = 10;
inline constexpr std::int64_t kDigitsTrain = 1437;
inline constexpr std::int64_t kDigitsTest = kDigitsCount - kDigitsTrain;
inline constexpr std::uint64_t kDigitsSplitSeed = 1998;

std::string_view digits_csv();                                // the embedded file
std::span<const std::uint8_t> digit_pixels(std::int64_t id);  // id: row of the file, from 0
std::int64_t digit_label(std::int64_t id);

// Ids of the fixed split, in split order.
std::span<const std::int64_t> digits_train_ids();
std::span<const std::int64_t> digits_test_ids();

// inputs (N, 64) in [0, 1], targets int64 (N), sample_ids as given. No ops.
Batch make_digits_batch(std::span<const std::int64_t> ids, DType dtype);

// Which samples a step sees: epoch after epoch, each in its own order, the incomplete last batch left out.
class BatchOrder {
 public:
  BatchOrder(std::vector<std::int64_t> ids, std::int64_t batch_size, std::uint64_t seed);
  std::vector<std::int64_t> ids(std::uint32_t step) const;
  std::uint32_t steps_per_epoch() const { return steps_per_epoch_; }

 private:
  std::vector<std::int64_t> ids_;
  std::size_t batch_size_;
  std::uint64_t seed_;
  std::uint32_t steps_per_epoch_;
};

// Training batches of the digits.
BatchSource digits_train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype);
// Images of half the resolution to sharpen: inputs are means of 2 x 2 pixels, each repeated 2 x 2 times; targets are
// the digits as they are. Both (N, 64) in [0, 1].
Batch make_upscaling_batch(std::span<const std::int64_t> ids, DType dtype);
BatchSource upscaling_train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype);

// Of each batch the rows of one of several ranks: they follow each other, in the order of the ranks. Throws where the
// rows cannot be shared equally.
BatchSource rows_of_rank(BatchSource batches, std::uint32_t rank, std::uint32_t ranks);

inline constexpr std::int64_t kTextCharacters = 49555;
inline constexpr std::int64_t kTextTrain = 44600;  // the rest is for testing
inline constexpr std::int64_t kTextTokens = 96;    // newline is 0, ' ' to '~' are 1 to 95

std::string_view text_file();          // the embedded file
std::int64_t text_token(char letter);  // of a character that the text may hold
double text_unigram_entropy();         // nats per character: the loss of a model that only knows how frequent each is

// Windows of `tokens` characters from each start: inputs int64 (N, tokens), targets the same one character later.
// The sample id is the start.
Batch make_text_batch(std::span<const std::int64_t> starts, std::int64_t tokens);
// Windows of the training part, drawn anew for every step.
BatchSource text_train_batches(std::int64_t batch_size, std::int64_t tokens, std::uint64_t seed);

}  // namespace nanhunt::engine
