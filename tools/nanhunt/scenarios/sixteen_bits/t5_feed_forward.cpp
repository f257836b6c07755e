// SPDX-License-Identifier: Apache-2.0
// The feed-forward block of T5 in fp16 (huggingface/transformers#5651, #9295): on one token the hidden units reach 16,
// and the second projection sums 1024 of them with weights near 6 into one channel. The norm behind it, computed in
// fp32, divides Inf by Inf and is where the first NaN is seen; it is not at fault.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace t5_feed_forward_parts {

using engine::Tensor;

constexpr char kFp32Layer[] = "fp32-compute";
constexpr char kBf16[] = "bf16";

constexpr std::uint32_t kBadStep = 12;
constexpr std::int64_t kBatch = 8, kTokens = 16, kWidth = 64, kHidden = 2048;
// The mark that ends a document: '~', which the text does not hold. It stands in one window of step 12 alone.
constexpr std::int64_t kEndOfText = engine::kTextTokens - 1;
// The mark excites channel 0 and nothing else. Behind the norm that is sqrt(64) = 8, so half of the hidden units are
// 2 * 8 = 16, and the channel is 16 * 6 * 1024 = 98304: half again as much as 65504, far more than twelve steps of
// training or the rounding of a machine move it. The other half has the opposite signs, which keeps common tokens
// small.
constexpr double kInWeight = 2, kOutWeight = 6;

class FeedForward : public engine::Module {
 public:
  FeedForward(engine::RandomStream& random, DType dtype, bool fp32_output)
      : wi_(register_module("wi", std::make_unique<Projection>(kWidth, kHidden, random, dtype, false))),
        wo_(register_module("wo", std::make_unique<Projection>(kHidden, kWidth, random, dtype, fp32_output))) {
    for (std::int64_t unit = 0; unit < kHidden; ++unit) {
      const double sign = unit < kHidden / 2 ? 1 : -1;
      wi_.set(unit * kWidth, sign * kInWeight);
      wo_.set(unit, sign * kOutWeight);
    }
  }

 protected:
  Tensor forward(const Tensor& x) override { return wo_(engine::relu(wi_(x))); }

 private:
  // Without bias, as in T5.
  class Projection : public engine::Module {
   public:
    Projection(std::int64_t in, std::int64_t out, engine::RandomStream& random, DType dtype, bool in_fp32)
        : weight_(register_parameter("weight", engine::normal_tensor({out, in}, 0, kStddev, dtype, random))),
          in_fp32_(in_fp32) {}
    void set(std::int64_t element, double value) {
      auto* bytes = static_cast<std::byte*>(weight_.raw());
      store_from_f64(weight_.dtype(), bytes + static_cast<std::size_t>(element) * dtype_size(weight_.dtype()), value);
    }

   protected:
    Tensor forward(const Tensor& x) override {
      if (!in_fp32_) return engine::linear(x, weight_, {});
      return engine::linear(engine::to(x, DType::kF32), engine::to(weight_, DType::kF32), {});
    }

   private:
    static constexpr double kStddev = 0.01;
    Tensor& weight_;
    bool in_fp32_;
  };
  Projection &wi_, &wo_;
};

class T5 : public engine::Module {
 public:
  T5(std::uint64_t seed, DType dtype, bool fp32_output)
      : random_(seed, /*stream=*/0),
        token_(register_parameter("token", make_tokens(random_, dtype))),
        norm_(register_module("norm", make_fp32_rms_norm(dtype))),
        ffn_(register_module("ffn", std::make_unique<FeedForward>(random_, dtype, fp32_output))),
        final_norm_(register_module("final_norm", make_fp32_rms_norm(dtype))),
        head_(register_module(
            "head", std::make_unique<engine::Linear>(kWidth, engine::kTextTokens, random_, dtype, false))) {}

 protected:
  Tensor forward(const Tensor& tokens) override {
    const Tensor x = engine::reshape(engine::embedding(token_, tokens), {-1, kWidth});
    return head_(final_norm_(engine::add(x, ffn_(norm_(x)))));
  }

 private:
  // Common tokens leave channel 0 free; the mark has nothing else.
  static Tensor make_tokens(engine::RandomStream& random, DType dtype) {
    std::vector<double> rows(static_cast<std::size_t>(engine::kTextTokens * kWidth));
    for (std::int64_t i = 0; i < engine::kTextTokens * kWidth; ++i) {
      const double drawn = random.normal();
      const bool first = i % kWidth == 0, mark = i / kWidth == kEndOfText;
      rows[static_cast<std::size_t>(i)] = mark ? (first ? 1 : 0) : (first ? 0 : drawn);
    }
    return Tensor::from_values(rows, {engine::kTextTokens, kWidth}, dtype);
  }

  engine::RandomStream random_;  // of the initial weights
  Tensor& token_;
  engine::Module& norm_;
  FeedForward& ffn_;
  engine::Module& final_norm_;
  engine::Linear& head_;
};

Tensor loss(const Tensor& logits, const engine::Batch& batch) {
  return engine::cross_entropy(engine::to(logits, DType::kF32), engine::reshape(batch.targets, {-1}));
}

ScenarioRun make(const ScenarioConfig& config) {
  const DType dtype = own_format(config, config.fix == kBf16 ? DType::kBF16 : DType::kF16);
  auto batches = [text = engine::text_train_batches(kBatch, kTokens, config.seed)](std::uint32_t step) {
    engine::Batch batch = text(step);
    if (step == kBadStep) {
      static_cast<std::int64_t*>(batch.inputs.raw())[kBatch / 2 * kTokens + kTokens - 1] = kEndOfText;
    }
    return batch;
  };
  return assemble(std::make_unique<T5>(config.seed, dtype, config.fix == kFp32Layer),
                  {.algorithm = "adam", .lr = 1e-2, .fp32_masters = true}, batches, loss, config);
}

}  // namespace t5_feed_forward_parts

std::vector<Scenario> t5_feed_forward() {
  using namespace t5_feed_forward_parts;
  return with_twin(
      {
          .name = "t5-feed-forward",
          .summary = "The output projection of a T5 feed-forward block passes 65504 on one token; the norm makes NaN",
          .steps = 100,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "ffn.wo",
                       .op = "mm",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kFp32Layer, "the output projection computed and stored in fp32"},
                    {kBf16, "bf16 instead of fp16, which has the range of fp32"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
