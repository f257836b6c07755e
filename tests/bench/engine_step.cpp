// SPDX-License-Identifier: Apache-2.0
// Times training steps (forward, loss, backward, optimizer) of one model on one batch:
//   engine_step cnn|gpt fp32|fp16|bf16
// Says "ready PARAMETERS LOSS" after a first step; then, for each line with a count N on its input, runs N steps and
// prints the milliseconds that one took, by the clock and of the processor. engine_vs_torch.py drives it.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace {

using namespace nanhunt;
using namespace nanhunt::engine;

constexpr std::int64_t kCnnBatch = 64;
constexpr std::int64_t kGptBatch = 8, kGptTokens = 128;

Batch cnn_batch(DType dtype) { return make_digits_batch(digits_train_ids().first(kCnnBatch), dtype); }

Batch gpt_batch() {
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < kGptBatch; ++i) starts.push_back(i * 1000);
  return make_text_batch(starts, kGptTokens);
}

std::unique_ptr<Trainer> make_trainer(const std::string& name, DType dtype) {
  std::unique_ptr<Module> model;
  Batch batch;
  LossFunction loss;
  if (name == "cnn") {
    model = std::make_unique<Cnn>(CnnOptions{.dtype = dtype});
    batch = cnn_batch(dtype);
    loss = [](const Tensor& output, const Batch& b) { return cross_entropy(output, b.targets); };
  } else {
    GptOptions options{.block = {}};
    options.block.dims = 128;
    options.block.heads = 4;
    options.block.context = kGptTokens;
    options.block.dtype = dtype;
    model = std::make_unique<Gpt>(options);
    batch = gpt_batch();
    loss = next_token_loss;
  }
  auto optimizer = make_optimizer(model->named_parameters(), {.algorithm = "adamw",
                                                              .weight_decay = 0.01,
                                                              .impl = OptimizerImpl::kFused,
                                                              .fp32_masters = dtype != DType::kF32});
  return std::make_unique<Trainer>(
      std::move(model), std::move(optimizer), [batch](std::uint32_t) { return batch; }, loss);
}

std::int64_t parameter_count(Module& model) {
  std::int64_t count = 0;
  for (const NamedTensor& entry : model.named_parameters()) count += entry.tensor.numel();
  return count;
}

int run(const std::string& name, const std::string& format) {
  const std::optional<DType> dtype = parse_dtype(format);
  if ((name != "cnn" && name != "gpt") || !dtype) {
    std::fputs("usage: engine_step cnn|gpt fp32|fp16|bf16\n", stderr);
    return 2;
  }
  const auto trainer = make_trainer(name, *dtype);
  const double loss = trainer->step().loss;
  std::printf("ready %lld %.6f\n", static_cast<long long>(parameter_count(trainer->model())), loss);
  std::fflush(stdout);
  for (int steps = 0; std::cin >> steps;) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t processor_start = std::clock();
    for (int i = 0; i < steps; ++i) trainer->step();
    const double processor = 1e3 * static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    std::printf("%.6f %.6f\n", took.count() / steps, processor / steps);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""); }
