// SPDX-License-Identifier: Apache-2.0
// What one run trains with, drawn from its seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/random.h"

namespace nanhunt::campaign {

enum class ModelKind : std::uint8_t { kMlp, kCnn, kUNet, kGpt };
enum class Regime : std::uint8_t {
  kF16,         // parameters, gradients and state in fp16
  kF16Masters,  // fp16 with fp32 master weights and state
  kAutocast,    // fp16 autocast and a dynamic GradScaler
  kBf16,        // bf16 with fp32 master weights and state
  kF32,
};
std::string_view model_name(ModelKind kind);
std::string_view regime_name(Regime regime);

struct Settings {
  std::uint64_t seed = 1;  // of weights, data order and dropout
  ModelKind model = ModelKind::kMlp;
  Regime regime = Regime::kF32;
  engine::OptimizerOptions optimizer;
  std::uint32_t steps = 16, micro_batches = 1;
  double dropout = 0;
  bool regression = false;  // targets are images, not classes; U-Nets always
  std::optional<std::uint64_t> rename_seed;
  std::optional<double> clip_norm;
  bool clip_before_unscale = false, keep_skipped_gradients = false;
  bool scaler = false, dynamic_scale = true;
  double init_scale = 65536;
  double loss_weight = 1;

  bool autocast() const { return regime == Regime::kAutocast; }
  DType dtype() const;        // of parameters
  DType compute_dtype() const;  // of matrix products
  std::string text() const;   // one line for people
};

// Random choices of one run. Every choice takes the next numbers of one stream, so a run can be made again.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, /*stream=*/0x63616d70) {}
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {  // both included
    return low + static_cast<std::uint32_t>(random_.below(high - low + 1));
  }
  bool chance(double p) { return random_.uniform() < p; }
  double uniform(double low, double high) { return random_.uniform(low, high); }
  std::uint64_t seed() { return random_.next_u64(); }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[random_.below(choices.size())];
  }

 private:
  engine::RandomStream random_;
};

Settings draw_settings(Draw& draw);
// Puts the run under a regime, with what belongs to it (scaler, an optimizer that its state's format can bear).
void set_regime(Settings& settings, Regime regime);
// An independent seed for each purpose: splitmix64 over the parts.
std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b, std::uint64_t c);

}  // namespace nanhunt::campaign
