// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/evidence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <utility>

#include "src/autopsy/log_bytes.h"
#include "src/core/redact.h"
#include "src/core/text.h"

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kMostPoints = 16'000'000;  // of all series: 256 MB
constexpr std::size_t kMostSeries = 256;
constexpr std::size_t kMostSkipped = 100'000;
constexpr std::size_t kMostSettings = 64;
constexpr std::size_t kMostTracebacks = 64;
constexpr std::size_t kLongestName = 200;

// Lower case words of a name, parted at everything that is no letter or digit.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : name.substr(0, kLongestName)) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool part = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (part) {
      if (!inside) words.emplace_back();
      words.back().push_back(upper ? static_cast<char>(c - 'A' + 'a') : c);
    }
    inside = part;
  }
  return words;
}

bool has_any(const std::vector<std::string>& words, std::initializer_list<std::string_view> wanted) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::find(wanted.begin(), wanted.end(), word) != wanted.end();
  });
}

}  // namespace

bool is_finite(double value) {
  return (std::bit_cast<std::uint64_t>(value) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

std::string number_text(double value) {
  if (!is_finite(value)) return format_number(value);
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string_view quantity_name(Quantity quantity) {
  switch (quantity) {
    case Quantity::kLoss:
      return "loss";
    case Quantity::kEvalLoss:
      return "eval_loss";
    case Quantity::kGradNorm:
      return "grad_norm";
    case Quantity::kLearningRate:
      return "learning_rate";
    case Quantity::kLossScale:
      return "loss_scale";
    case Quantity::kSkipped:
      return "skipped_steps";
    case Quantity::kNanSteps:
      return "nan_steps";
  }
  return "";
}

std::string_view unit_name(Unit unit) {
  return unit == Unit::kStep ? "step" : unit == Unit::kEpoch ? "epoch" : "entry";
}

bool means_evaluation(std::string_view word) {
  static constexpr std::string_view kWords[] = {"val",        "valid",   "validate",   "validation",
                                                "validating", "eval",    "evaluation", "evaluating",
                                                "test",       "testing", "dev"};
  return std::find(std::begin(kWords), std::end(kWords), lower_case(word)) != std::end(kWords);
}

bool names_split(std::string_view key) { return key == "mode" || key == "split" || key == "phase" || key == "stage"; }

std::optional<Quantity> quantity_of(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  if (words.empty()) return std::nullopt;
  // What is compared with, or the best so far: such numbers begin as infinities.
  if (has_any(words, {"best", "min", "minimum", "max", "maximum", "prev", "previous", "target", "threshold", "limit"})) return std::nullopt;
  if (has_any(words, {"skipped", "nan"})) {
    if (!has_any(words, {"iterations", "iteration", "steps", "step"})) return std::nullopt;
    return has_any(words, {"skipped"}) ? Quantity::kSkipped : Quantity::kNanSteps;
  }
  const bool scaled = has_any(words, {"scale", "lossscale"});
  if (scaled) {
    const bool of_losses = has_any(words, {"loss", "grad", "amp", "scaler", "lossscale"}) || words.size() == 1;
    return of_losses ? std::optional(Quantity::kLossScale) : std::nullopt;
  }
  if (words.size() == 1 && words[0] == "scaler") return Quantity::kLossScale;
  const bool gradient = has_any(words, {"grad", "gradient", "gradients", "grads"});
  if ((gradient && has_any(words, {"norm"})) || has_any(words, {"gradnorm", "gnorm"})) return Quantity::kGradNorm;
  if (has_any(words, {"lr"}) || (has_any(words, {"learning"}) && words.back() == "rate"))
    return Quantity::kLearningRate;
  const std::string& last = words.back();
  // "train_loss_step" and "train_loss_epoch" are Lightning's.
  const bool loss =
      last == "loss" || last == "losses" ||
      (words.size() > 1 && last != "count" && has_any(words, {"loss"}) &&
       has_any({last}, {"step", "epoch", "mean", "avg", "total"})) ||
      // "Loss/train", as PyTorch's guide has it; "Loss_D" of two that train against each other.
      (words.size() == 2 && words[0] == "loss" && means_evaluation(last)) ||
      (words.size() == 2 && words[0] == "loss" &&
       has_any({last},
               {"train", "training", "total", "d",   "g",    "disc",  "gen", "discriminator", "generator", "critic",
                "actor", "policy",   "value", "q",   "kl",   "recon", "aux", "cls",           "bbox",      "box",
                "ce",    "mse",      "l1",    "adv", "real", "fake",  "mlm", "main"}));
  if (!loss) return std::nullopt;
  return std::any_of(words.begin(), words.end(), means_evaluation) ? Quantity::kEvalLoss : Quantity::kLoss;
}

bool is_part_of_loss(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  return !std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return (word[0] >= '0' && word[0] <= '9') || means_evaluation(word) ||
           has_any({word}, {"loss", "losses", "train", "training", "lm", "total", "step", "epoch", "batch", "iter",
                            "mean", "avg", "average", "running", "rank", "smoothed", "global", "model", "current"});
  });
}

std::optional<Unit> unit_of(std::string_view name) {
  if (name.starts_with("nanhunt/")) return std::nullopt;  // ours, in a row of the program's
  const std::vector<std::string> words = words_of(name);
  if (words.empty() || words.size() > 3) return std::nullopt;
  if (has_any({words.back()},
              {"step", "steps", "iter", "iters", "iteration", "iterations", "it", "updates", "batch"}) &&
      !has_any(words, {"loss", "per", "skipped", "nan", "total", "max", "num"})) {
    return Unit::kStep;
  }
  if (words.size() == 2 && words[0] == "num" && words[1] == "updates") return Unit::kStep;  // fairseq
  if (words.back() == "epoch" && words.size() < 3 && !has_any(words, {"loss", "num", "max"})) return Unit::kEpoch;
  return std::nullopt;
}

void EvidenceBuilder::note(Statement Evidence::*which, std::string_view line) {
  Statement& first = out_->*which;
  if (first.text.empty()) first = {std::string(line.substr(0, kLongestName)), losses_, source_};
}

Series* EvidenceBuilder::find(Quantity quantity, std::string_view name, Unit unit) {
  name = name.substr(0, kLongestName);
  const std::size_t count = out_->series.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (last_ + i) % count;
    Series& series = out_->series[at];
    if (series.source == source_ && series.quantity == quantity && series.unit == unit && series.name == name) {
      last_ = at;
      return &series;
    }
  }
  if (out_->series.size() >= kMostSeries) {
    out_->cut = true;
    return nullptr;
  }
  Series fresh;
  fresh.name = name;
  fresh.quantity = quantity;
  fresh.unit = unit;
  fresh.source = source_;
  out_->series.push_back(std::move(fresh));
  return &out_->series.back();
}

void EvidenceBuilder::add(std::string_view name, double at, Unit unit, double value) {
  if (const auto quantity = quantity_of(name)) add(*quantity, name, at, unit, value);
}

void EvidenceBuilder::add(Quantity quantity, std::string_view name, double at, Unit unit, double value) {
  if (!is_finite(at)) return;  // a step that is NaN orders nothing
  Series* series = find(quantity, name, unit);
  if (series == nullptr) return;
  if (out_->points >= kMostPoints) {
    out_->cut = true;
    return;
  }
  const bool pending = !series->restarts.empty() && series->restarts.back() == series->points.size();
  if (!series->points.empty() && at < series->points.back().at && !pending)
    series->restarts.push_back(series->points.size());
  series->points.push_back({at, value});
  ++out_->points;
  losses_ += quantity == Quantity::kLoss ? 1u : 0u;
}

void EvidenceBuilder::add_missing(std::string_view name, double at, Unit unit) {
  for (Series& series : out_->series) {
    if (series.source != source_ || series.unit != unit || series.name != name) continue;
    const std::size_t before = series.points.size();
    if (series.last_gap.before != before) {
      if (series.last_gap.rows > series.longest_gap.rows) series.longest_gap = series.last_gap;
      series.last_gap = {at, before, 0};
    }
    ++series.last_gap.rows;
  }
}

void EvidenceBuilder::mark_restart() {
  for (Series& series : out_->series) {
    if (series.source != source_ || series.points.empty()) continue;
    if (series.restarts.empty() || series.restarts.back() != series.points.size()) {
      series.restarts.push_back(series.points.size());
    }
  }
}

void EvidenceBuilder::add_setting(std::string_view key, std::string_view value) {
  // Only what says how numbers are made is kept: precision, learning rate, eps, clipping, warm-up.
  static constexpr std::string_view kNames[] = {"lr",
                                                "learning_rate",
                                                "fp16",
                                                "bf16",
                                                "precision",
                                                "mixed_precision",
                                                "amp",
                                                "dtype",
                                                "torch_dtype",
                                                "eps",
                                                "adam_epsilon",
                                                "max_grad_norm",
                                                "gradient_clip_val",
                                                "clip_grad",
                                                "grad_clip",
                                                "warmup_steps",
                                                "warmup_ratio",
                                                "logging_nan_inf_filter",
                                                "optim",
                                                "optimizer"};
  const std::size_t dot = key.find_last_of("./");
  const std::string_view leaf = dot == std::string_view::npos ? key : key.substr(dot + 1);
  if (std::find(std::begin(kNames), std::end(kNames), leaf) == std::end(kNames)) return;
  if (value.empty() || value.size() > 100 || out_->settings.size() >= kMostSettings) return;
  const bool there = std::any_of(out_->settings.begin(), out_->settings.end(),
                                 [&](const Setting& one) { return one.key == leaf && one.value == value; });
  if (!there) out_->settings.push_back({std::string(leaf), redact_value(value), source_});
}

void EvidenceBuilder::set_command(std::vector<std::string> command) {
  constexpr std::size_t kMostCommands = 1000;
  if (command.empty() || command.size() > 1000 || out_->commands.size() >= kMostCommands) return;
  if (!out_->commands.empty() && out_->commands.back().source == source_) return;
  redact_command(command);
  out_->commands.push_back({std::move(command), source_});
}

void EvidenceBuilder::add_traceback(Traceback traceback) {
  if (out_->tracebacks.size() >= kMostTracebacks) {
    out_->cut = true;
    return;
  }
  traceback.source = source_;
  for (std::string* text : {&traceback.exception, &traceback.message, &traceback.file, &traceback.function}) {
    if (text->size() > 400) text->resize(400);
  }
  out_->tracebacks.push_back(std::move(traceback));
}

void EvidenceBuilder::add_skipped(double scale_after) {
  if (out_->skipped.size() >= kMostSkipped) {
    out_->cut = true;
    return;
  }
  out_->skipped.push_back({scale_after, losses_, source_});
}

void EvidenceBuilder::set_damage(std::string what) {
  std::string& damage = out_->sources[source_].damage;
  if (damage.empty()) damage = std::move(what);
}

}  // namespace nanhunt::autopsy
