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

namespace {

Tensor rows_of(const Tensor& whole, std::uint32_t rank, std::uint32_t ranks) {
  if (!whole.defined()) return whole;
  const std::int64_t rows = whole.dim() == 0 ? 0 : whole.size(0);
  if (rows == 0 || rows % ranks != 0) {
    fail("batch", "rows that " + std::to_string(ranks) + " ranks can share equally", describe(whole));
  }
  Shape sizes = whole.sizes();
  sizes[0] = rows / ranks;
  return make_view(whole, std::move(sizes), whole.strides(), whole.storage_offset() + rank * (rows / ranks) * whole.strides()[0])
      .clone();
}

}  // namespace

BatchSource rows_of_rank(BatchSource batches, std::uint32_t rank, std::uint32_t ranks) {
  if (rank >= ranks) fail("batch", "a rank below " + std::to_string(ranks), std::to_string(rank));
  return [batches = std::move(batches), rank, ranks](std::uint32_t step) {
    const Batch whole = batches(step);
    Batch part = whole;
    const bool one = whole.inputs.defined() && whole.targets.defined() && whole.inputs.impl() == whole.targets.impl();
    part.inputs = rows_of(whole.inputs, rank, ranks);
    part.targets = one ? part.inputs : rows_of(whole.targets, rank, ranks);
    const std::size_t ids = whole.sample_ids.size() / ranks;
    const auto first = whole.sample_ids.begin() + static_cast<std::ptrdiff_t>(rank * ids);
    part.sample_ids.assign(first, first + static_cast<std::ptrdiff_t>(ids));
    return part;
  };
}

BatchSource upscaling_train_batches(std::int64_t batch_size, std::uint64_t seed, DType dtype) {
  return train_batches(batch_size, seed, dtype, make_upscaling_batch);
}

}  // namespace nanhunt::engine
