// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/workloads.h"

#include <algorithm>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine {
namespace {

constexpr std::uint32_t kSteps = 200;
constexpr std::int64_t kImages = 32, kWindows = 8, kTokens = 16;
constexpr std::uint32_t kValidationBatches = 6;
constexpr std::int64_t kValidated = kDigitsTest / kValidationBatches;  // images of a batch
constexpr std::int64_t kLargestBatch = 1024;

Tensor class_loss(const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch.targets); }
// FP16_Optimizer leaves what the model gives in fp16.
Tensor image_loss(const Tensor& images, const Batch& batch) { return l1_loss(to(images, DType::kF32), batch.targets); }

template <typename MakeBatch>
ValidationOptions test_images(const MakeBatch& make_batch) {
  ValidationOptions validation;
  validation.count = kValidationBatches;
  validation.batches = [make_batch](std::uint32_t number) {
    const auto ids = digits_test_ids().subspan(number * kValidated, kValidated);
    return make_batch(ids, DType::kF32);
  };
  return validation;
}

ValidationOptions test_text() {
  ValidationOptions validation;
  validation.count = kValidationBatches;
  validation.batches = [](std::uint32_t number) {
    constexpr std::int64_t kStarts = 32,
                           kEvery = (kTextCharacters - kTextTrain - kTokens - 1) / (kValidationBatches * kStarts);
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i < kStarts; ++i) starts.push_back(kTextTrain + (number * kStarts + i) * kEvery);
    return make_text_batch(starts, kTokens);
  };
  return validation;
}

TrainingSetup with_sgd(std::unique_ptr<Module> model, double lr, ValidationOptions validation) {
  TrainingSetup setup;
  setup.model = std::move(model);
  setup.optimizer = {.algorithm = "sgd", .lr = lr, .momentum = 0.9};
  setup.options.validation = std::move(validation);
  return setup;
}

std::unique_ptr<Module> make_gpt(std::uint64_t seed) {
  GptOptions options{.layers = 2, .block = {}};
  options.block.dims = 32;
  options.block.context = kTokens;
  options.block.seed = seed;
  return std::make_unique<Gpt>(options);
}

// Norms need more than one value of a channel, so no batch is of one image.
std::string refuses(std::int64_t batch_size) {
  if (batch_size >= 2 && batch_size <= kLargestBatch) return "";
  return "batch sizes from 2 to " + std::to_string(kLargestBatch) + " are taken";
}

// On images: `make_model(seed)`.
template <typename MakeModel>
Workload classifier(std::string name, std::string summary, const MakeModel& make_model) {
  return {std::move(name),
          std::move(summary),
          kSteps,
          kImages,
          [make_model](std::uint64_t seed, std::int64_t batch_size) {
            return TrainingParts{with_sgd(make_model(seed), 0.05, test_images(make_digits_batch)),
                                 digits_train_batches(batch_size, seed, DType::kF32), class_loss};
          },
          refuses};
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(TrainingParts parts) {
  return make_trainer(std::move(parts.setup), std::move(parts.batches), std::move(parts.loss));
}

std::span<const Workload> named_workloads() {
  static const std::vector<Workload> kAll = {
      classifier("mlp", "a multilayer perceptron on handwritten digits",
                 [](std::uint64_t seed) { return std::make_unique<Mlp>(MlpOptions{.seed = seed}); }),
      classifier("cnn", "a residual convolutional network with batch norms on handwritten digits",
                 [](std::uint64_t seed) { return std::make_unique<Cnn>(CnnOptions{.channels = 8, .seed = seed}); }),
      classifier("se-resnext", "grouped convolutions with squeeze and excitation on handwritten digits",
                 [](std::uint64_t seed) {
                   return std::make_unique<SeResNeXt>(SeResNeXtOptions{.channels = 8, .seed = seed});
                 }),
      {"unet", "a U-Net that sharpens images of digits, L1 loss", kSteps, kImages,
       [](std::uint64_t seed, std::int64_t batch_size) {
         return TrainingParts{with_sgd(std::make_unique<UNet>(UNetOptions{.channels = 4, .seed = seed}), 0.02,
                                       test_images(make_upscaling_batch)),
                              upscaling_train_batches(batch_size, seed, DType::kF32), image_loss};
       },
       refuses},
      {"gpt", "a transformer of two blocks over the characters of a text", kSteps, kWindows,
       [](std::uint64_t seed, std::int64_t batch_size) {
         return TrainingParts{with_sgd(make_gpt(seed), 0.1, test_text()), text_train_batches(batch_size, kTokens, seed),
                              next_token_loss};
       },
       refuses},
  };
  return kAll;
}

const Workload* find_workload(std::string_view name) {
  const auto all = named_workloads();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Workload& known) { return known.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace nanhunt::engine
