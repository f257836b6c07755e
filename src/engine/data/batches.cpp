// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

Batch make_digits_batch(std::span<const std::int64_t> ids, DType dtype) {
  std::vector<double> inputs;
  std::vector<std::int64_t> targets;
  inputs.reserve(ids.size() * kDigitsPixels);
  targets.reserve(ids.size());
  for (std::int64_t id : ids) {
    for (std::uint8_t pixel : digit_pixels(id)) inputs.push_back(pixel / 16.0);
    targets.push_back(digit_label(id));
  }
  const auto rows = static_cast<std::int64_t>(ids.size());
  return {.inputs = Tensor::from_values(inputs, {rows, kDigitsPixels}, dtype),
          .targets = Tensor::from_indices(targets, {rows}),
          .sample_ids = {ids.begin(), ids.end()}};
}

Batch make_upscaling_batch(std::span<const std::int64_t> ids, DType dtype) {
  Batch batch = make_digits_batch(ids, dtype);
  batch.targets = batch.inputs;
  std::vector<double> coarse;
  coarse.reserve(ids.size() * kDigitsPixels);
  for (std::int64_t id : ids) {
    const auto pixels = digit_pixels(id);
    for (std::size_t p = 0; p < kDigitsPixels; ++p) {
      const std::size_t corner = p / 16 * 16 + p % 8 / 2 * 2;
      coarse.push_back((pixels[corner] + pixels[corner + 1] + pixels[corner + 8] + pixels[corner + 9]) / 64.0);
    }
  }
  batch.inputs = Tensor::from_values(coarse, batch.targets.sizes(), dtype);
  return batch;
}

namespace {
// Streams of an epoch each, apart from those that models draw their weights from.
constexpr std::uint64_t kOrderStreams = std::uint64_t{1} << 32;
}  // namespace

BatchOrder::BatchOrder(std::vector<std::int64_t> ids, std::int64_t batch_size, std::uint64_t seed)
    : ids_(std::move(ids)), batch_size_(static_cast<std::size_t>(batch_size)), seed_(seed) {
  if (batch_size < 1 || batch_size_ > ids_.size()) {
    fail("batch_order", "a batch size between 1 and the number of samples", std::to_string(batch_size));
  }
  steps_per_epoch_ = static_cast<std::uint32_t>(ids_.size() / batch_size_);
}

std::vector<std::int64_t> BatchOrder::ids(std::uint32_t step) const {
  RandomStream random(seed_, kOrderStreams + step / steps_per_epoch_);
  const std::vector<std::int64_t> order = random_permutation(static_cast<std::int64_t>(ids_.size()), random);
  const std::size_t first = step % steps_per_epoch_ * batch_size_;
  std::vector<std::int64_t> batch(batch_size_);
  for (std::size_t i = 0; i < batch_size_; ++i) batch[i] = ids_[static_cast<std::size_t>(order[first + i])];
  return batch;
}

namespace {

template <typename MakeBatch>
BatchSource train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype, MakeBatch make_batch) {
  const auto ids = digits_train_ids();
  return [order = BatchOrder({ids.begin(), ids.end()}, batch_size, seed), dtype, make_batch](std::uint32_t step) {
    return make_batch(order.ids(step), dtype);
  };
}

}  // namespace

BatchSource digits_train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype) {
  return train_batches(batch_size, seed, dtype, make_digits_batch);
}

BatchSource upscaling_train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype) {
  return train_batches(batch_size, seed, dtype, make_upscaling_batch);
}

}  // namespace nanhunt::engine
