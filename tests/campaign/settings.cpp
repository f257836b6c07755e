// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/settings.h"

#include <fmt/format.h>

namespace nanhunt::campaign {

std::string_view model_name(ModelKind kind) {
  constexpr std::string_view kNames[] = {"mlp", "cnn", "unet", "gpt"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view regime_name(Regime regime) {
  constexpr std::string_view kNames[] = {"fp16", "fp16+masters", "autocast", "bf16+masters", "fp32"};
  return kNames[static_cast<std::size_t>(regime)];
}

DType Settings::dtype() const {
  if (regime == Regime::kF16 || regime == Regime::kF16Masters) return DType::kF16;
  return regime == Regime::kBf16 ? DType::kBF16 : DType::kF32;
}

DType Settings::compute_dtype() const { return autocast() ? DType::kF16 : dtype(); }

std::string Settings::text() const {
  std::string out = fmt::format("{} {} {}{}{} lr {:g}, {} steps", model_name(model), regime_name(regime),
                                optimizer.algorithm, optimizer.momentum != 0 ? "+momentum" : "",
                                optimizer.impl == engine::OptimizerImpl::kFused ? " fused" : "", optimizer.lr, steps);
  if (micro_batches > 1) out += fmt::format(", {} micro-batches", micro_batches);
  if (dropout > 0) out += fmt::format(", dropout {:.2g}", dropout);
  if (scaler) out += fmt::format(", {} scale {:g}", dynamic_scale ? "dynamic" : "static", init_scale);
  if (clip_norm) out += fmt::format(", clip {:g}", *clip_norm);
  if (rename_seed) out += ", random names";
  return out;
}

void set_regime(Settings& s, Regime regime) {
  s.regime = regime;
  s.optimizer.fp32_masters = regime == Regime::kF16Masters || regime == Regime::kBf16;
  s.scaler = regime == Regime::kAutocast;
  // fp16 state cannot hold Adam's eps and most squares: that is a family of faults, not a healthy run.
  if (regime == Regime::kF16 && s.optimizer.algorithm != "sgd") {
    s.optimizer.algorithm = "sgd";
    s.optimizer.momentum = 0.9;
    s.optimizer.weight_decay = 0;
    s.optimizer.lr = 0.02;
  }
}

Settings draw_settings(Draw& draw) {
  Settings s;
  s.seed = draw.seed();
  s.model = static_cast<ModelKind>(draw.below(4));
  s.steps = draw.between(12, 20);
  s.micro_batches = draw.chance(0.2) ? 2 : 1;
  s.dropout = draw.chance(0.3) ? draw.uniform(0.05, 0.3) : 0;
  s.regression = s.model == ModelKind::kUNet || (s.model == ModelKind::kMlp && draw.chance(0.3));
  if (draw.chance(0.4)) s.rename_seed = draw.seed();
  if (draw.chance(0.25)) s.clip_norm = draw.uniform(0.5, 5);
  switch (draw.below(4)) {
    case 0: s.optimizer = {.algorithm = "sgd", .lr = 0.05}; break;
    case 1: s.optimizer = {.algorithm = "sgd", .lr = 0.02, .momentum = 0.9}; break;
    case 2: s.optimizer = {.algorithm = "adam", .lr = 2e-3}; break;
    default: s.optimizer = {.algorithm = "adamw", .lr = 2e-3, .weight_decay = 0.01}; break;
  }
  if (draw.chance(0.4)) s.optimizer.impl = engine::OptimizerImpl::kFused;
  s.init_scale = draw.one_of({1024.0, 4096.0, 16384.0});
  const double regime = draw.uniform(0, 1);
  set_regime(s, regime < 0.2   ? Regime::kF16
                : regime < 0.45 ? Regime::kF16Masters
                : regime < 0.8  ? Regime::kAutocast
                : regime < 0.9  ? Regime::kBf16
                                : Regime::kF32);
  return s;
}

std::uint64_t mix_seeds(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t out = 0;
  for (const std::uint64_t part : {a, b, c}) {
    out += part + 0x9e3779b97f4a7c15ull;
    out = (out ^ (out >> 30)) * 0xbf58476d1ce4e5b9ull;
    out = (out ^ (out >> 27)) * 0x94d049bb133111ebull;
    out ^= out >> 31;
  }
  return out;
}

}  // namespace nanhunt::campaign
