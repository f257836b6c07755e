// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/norm_watch.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace nanhunt::analyze {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double sum_of_squares(const Value& value) {
  if (!value.has_stats) return std::numeric_limits<double>::quiet_NaN();
  if (value.bad != 0) return kInf;
  const bool summed = value.stats.level >= StatsLevel::kSums && value.stats.sum_sq >= 0;
  return summed ? value.stats.sum_sq : std::numeric_limits<double>::quiet_NaN();
}

bool positive(double x) { return std::isfinite(x) && x > 0; }

// "fc1" of "fc1.weight"; a name without a dot is a layer of its own.
std::string layer_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos || dot == 0 ? path : path.substr(0, dot);
}

}  // namespace

NormWatch::Parameter* NormWatch::parameter(StringId path) {
  if (path == 0) return nullptr;
  std::uint32_t* slot = index_.insert(path);
  if (slot == nullptr) return nullptr;
  if (*slot == 0) {
    if (parameters_.size() >= kMaxParameters) {
      too_many_ = true;
      return nullptr;
    }
    parameters_.emplace_back();
    parameters_.back().path = path;
    parameters_.back().history.assign(kGrowthWindow, kUnseen);
    *slot = static_cast<std::uint32_t>(parameters_.size());
  }
  return &parameters_[*slot - 1];
}

void NormWatch::on_setup(const SetupRecord& record) {
  if (record.fact != SetupFact::kWideColumn || !(record.number > column_ratio_)) return;
  wide_column_ = names_.text(record.text);
  column_ratio_ = record.number;
}

void NormWatch::on_mark(const MarkRecord& mark, const Value& value, double divisor) {
  if (mark.kind != TensorRole::kParameter && mark.kind != TensorRole::kBoundaryGradient) return;
  Parameter* p = parameter(mark.path);
  if (p == nullptr) return;
  if (mark.kind == TensorRole::kParameter) {
    p->weight_sq = sum_of_squares(value);
    if (std::isnan(p->first_sq)) p->first_sq = p->weight_sq;
    p->weight_now = true;
  } else {
    p->gradient_sq = sum_of_squares(value) / (divisor * divisor);
    p->gradient_now = true;
  }
}

void NormWatch::note_write(StringId path, std::uint32_t step) {
  if (Parameter* p = parameter(path)) p->written_in = step;
}

double NormWatch::weight_sq(const Parameter& p, std::size_t back) const {
  return p.history[(steps_ - 1 - back) % kGrowthWindow];
}

void NormWatch::on_norm(const NormRecord& record) {
  if (record.kind != TensorRole::kParameter) return;  // the sum over gradients is in every HealthRecord
  Parameter* p = parameter(record.path);
  if (p == nullptr) return;
  const double squared = std::isfinite(record.norm) ? record.norm * record.norm : kInf;
  for (std::size_t back = 0; back < entries_.size(); ++back) {
    if (entries_[entries_.size() - 1 - back].step != record.step) continue;
    p->history[(steps_ - 1 - back) % kGrowthWindow] = squared;
    return;
  }
  if (entries_.empty() || record.step > entries_.back().step) {  // of the step at hand
    p->weight_sq = squared;
    p->weight_now = true;
  }
}

NormWatch::Norms NormWatch::on_step_end(std::uint32_t step, double loss, bool bad, const double* gradient_norm,
                                        double lr) {
  double gradient = 0, weight = 0;
  bool any_gradient = false, any_weight = false;
  for (Parameter& p : parameters_) {
    // Weights are read in every step and few are written: an older norm is not that of this step.
    if (gradient_norm != nullptr && !p.weight_now) p.weight_sq = kUnseen;
    p.weight_now = false;
    p.history[steps_ % kGrowthWindow] = p.weight_sq;
    if (!std::isnan(p.weight_sq)) {
      weight += p.weight_sq;
      any_weight = true;
    }
    if (p.gradient_now) {
      gradient += p.gradient_sq;
      any_gradient = true;
    }
    p.gradient_now = false;
  }
  ++steps_;
  Norms norms;
  if (any_gradient && !too_many_) norms.gradient = std::sqrt(gradient);
  if (any_weight && !too_many_) norms.weight = std::sqrt(weight);
  if (gradient_norm != nullptr && !std::isnan(*gradient_norm)) norms.gradient = *gradient_norm;
  entries_.push_back({step, loss, norms.gradient, lr});
  if (entries_.size() > kGrowthWindow) entries_.pop_front();
  if (steps_ <= kCalmSteps && !positive(first_.gradient)) first_ = entries_.back();
  if (steps_ <= kCalmSteps && std::isfinite(loss)) calm_loss_ = std::max(calm_loss_, std::fabs(loss));
  if (!growths_.empty() && growths_.back().lasts()) {
    // It is over where the loss is that of before, or has been finite for long: other weights, another loss.
    const bool sound = !bad && std::isfinite(loss);
    sound_ = sound ? sound_ + 1 : 0;
    if (sound_ >= kSoundSteps ||
        (sound && std::fabs(loss) > 0 && std::fabs(loss) < kEarlyGrowth * growths_.back().loss_from))
      growths_.back().until = step;
  }
  const bool grown = !growths_.empty() && growths_.back().lasts();  // one divergence, however many steps it takes
  if (bad && !grown && growths_.size() < kMaxGrowths && judged_++ < kMaxJudged) {
    auto growth = judge(step);
    if (!growth) growth = judge_updates(step);
    if (!growth) growth = judge_run(step);
    if (!growth) return norms;
    add_updates(*growth);
    sound_ = 0;
    growth->wide_column = wide_column_;
    growth->column_ratio = column_ratio_;
    growths_.push_back(std::move(*growth));
  }
  return norms;
}

// How much each of the last updates changed the layer that grew most.
void NormWatch::add_updates(Growth& g) const {
  std::vector<double> norms, lrs;  // newest first
  std::size_t back = 0;
  for (; back < entries_.size() && norms.size() <= kUpdatesShown; ++back) {
    double sq = 0;
    for (const Parameter& p : parameters_) sq += layer_of(names_.text(p.path)) == g.fastest ? weight_sq(p, back) : 0;
    if (std::isfinite(sq) && sq > 0) {
      if (norms.empty()) g.updates_to = entries_[entries_.size() - 1 - back].step;
      norms.push_back(std::sqrt(sq));
      lrs.push_back(entries_[entries_.size() - 1 - back].lr);
    } else if (!norms.empty()) {
      break;
    }
  }
  if (back == entries_.size() && !norms.empty() && norms.size() <= kUpdatesShown && steps_ <= kGrowthWindow) {
    double sq = 0;
    for (const Parameter& p : parameters_) sq += layer_of(names_.text(p.path)) == g.fastest ? p.first_sq : 0;
    if (std::isfinite(sq) && sq > 0) norms.push_back(std::sqrt(sq));
  }
  for (std::size_t i = norms.size(); i-- > 1;) {
    g.updates.push_back(std::fabs(norms[i - 1] - norms[i]) / norms[i]);
    g.update_lrs.push_back(lrs[i - 1]);
  }
}

// One past the newest step with a finite loss, where it comes right before `step`; 0: none does.
std::size_t NormWatch::end_of_finite(std::uint32_t step) const {
  std::size_t newest = entries_.size();
  while (newest > 0 && !std::isfinite(entries_[newest - 1].loss)) --newest;
  return newest > 0 && newest + 1 >= entries_.size() && step <= entries_[newest - 1].step + std::uint64_t{1} ? newest : 0;
}

std::optional<Growth> NormWatch::judge(std::uint32_t step) const {
  // The newest steps whose loss is finite, and of them those from the smallest loss on.
  const std::size_t newest = end_of_finite(step);
  if (newest == 0) return std::nullopt;
  std::size_t oldest = newest;
  // Where steps are missing, what happened in one of them cannot be told from what happened in many.
  const auto adjoins = [&](std::size_t i) { return i == newest || entries_[i - 1].step + 1 == entries_[i].step; };
  while (oldest > 0 && adjoins(oldest) && std::isfinite(entries_[oldest - 1].loss)) --oldest;
  if (newest - oldest < kGrowthSteps) return std::nullopt;
  std::size_t from = oldest;
  for (std::size_t i = oldest; i + kGrowthSteps <= newest; ++i) {
    if (std::fabs(entries_[i].loss) < std::fabs(entries_[from].loss)) from = i;
  }
  Growth g;
  g.step = step;
  g.lr = entries_[from].lr;
  g.from_step = entries_[from].step;
  g.to_step = entries_[newest - 1].step;
  g.loss_from = std::fabs(entries_[from].loss);
  g.loss_to = std::fabs(entries_[newest - 1].loss);
  g.gradient_from = entries_[from].gradient;
  std::size_t to = newest;  // one past the newest finite gradient
  while (to > from && !std::isfinite(entries_[to - 1].gradient)) --to;
  if (to <= from + 1) return std::nullopt;
  g.gradient_to = entries_[to - 1].gradient;
  if (!positive(g.loss_from) || g.loss_to < kLossGrowth * g.loss_from) return std::nullopt;
  // One jump from calm is one accident: of a layer, or of a batch.
  if (std::fabs(entries_[newest - 2].loss) < kEarlyGrowth * g.loss_from) return std::nullopt;
  if (!positive(g.gradient_from) || g.gradient_to < kGradientGrowth * g.gradient_from) return std::nullopt;

  struct Layer {
    std::vector<double> sq;  // from `from` on
  };
  std::map<std::string, Layer> layers;
  const std::size_t steps = entries_.size() - from;
  for (const Parameter& p : parameters_) {
    Layer& layer = layers[layer_of(names_.text(p.path))];
    layer.sq.resize(steps, 0);
    for (std::size_t i = 0; i < steps; ++i) layer.sq[i] += weight_sq(p, entries_.size() - 1 - (from + i));
  }
  std::size_t driven = 0;
  double fastest = 0;
  for (const auto& [name, layer] : layers) {
    std::size_t last = steps;
    while (last > 0 && !std::isfinite(layer.sq[last - 1])) --last;
    if (last < 2 || !positive(layer.sq[0])) continue;
    ++g.layers;
    double update = 0;
    for (std::size_t i = 0; i + 1 < last; ++i) {
      const double before = std::sqrt(layer.sq[i]);
      update = std::max(update, std::fabs(std::sqrt(layer.sq[i + 1]) - before) / before);
    }
    const double ratio = std::sqrt(layer.sq[last - 1] / layer.sq[0]);
    if (ratio >= kWeightGrowth) ++g.grown;
    if (update >= kUpdateRatio) ++driven;
    if (ratio > fastest) {
      fastest = ratio;
      g.fastest = name;
      g.fastest_from = std::sqrt(layer.sq[0]);
      g.fastest_to = std::sqrt(layer.sq[last - 1]);
      g.update_ratio = update;
    }
  }
  if (g.layers == 0 || g.grown * 2 <= g.layers || driven * 2 <= g.layers) return std::nullopt;
  const auto negative = std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(from), entries_.end(),
                                     [](const Entry& entry) { return entry.lr < 0; });
  if (negative != entries_.end()) {
    g.negative_lr = negative->lr;
    g.negative_from = negative->step;
  }
  return g;
}

// Growth so slow that no window shows it, as by a decay of weights with the wrong sign.
std::optional<Growth> NormWatch::judge_run(std::uint32_t step) const {
  const std::size_t newest = end_of_finite(step);
  if (steps_ <= 2 * kCalmSteps || newest < kGrowthSteps) return std::nullopt;
  if (!positive(calm_loss_) || !positive(first_.gradient)) return std::nullopt;
  for (std::size_t i = newest - kGrowthSteps; i < newest; ++i)
    if (!(std::fabs(entries_[i].loss) >= kRunGrowth * calm_loss_)) return std::nullopt;
  Growth g;
  g.kind = GrowthKind::kOverRun;
  g.step = step;
  g.lr = first_.lr;
  g.from_step = first_.step;
  g.to_step = entries_[newest - 1].step;
  g.loss_from = calm_loss_;
  g.loss_to = std::fabs(entries_[newest - 1].loss);
  g.gradient_from = first_.gradient;
  for (std::size_t i = newest; i-- > 0 && g.gradient_to == 0;)
    if (positive(entries_[i].gradient)) g.gradient_to = entries_[i].gradient;
  std::map<std::string, std::pair<double, double>> layers;  // before and after
  for (const Parameter& p : parameters_) {
    std::size_t back = 0;
    while (back + 1 < entries_.size() && !std::isfinite(weight_sq(p, back))) ++back;
    auto& [before, after] = layers[layer_of(names_.text(p.path))];
    before += p.first_sq;
    after += weight_sq(p, back);
  }
  double fastest = 0;
  for (const auto& [name, norms] : layers) {
    if (!positive(norms.first) || !positive(norms.second)) continue;
    ++g.layers;
    const double ratio = std::sqrt(norms.second / norms.first);
    if (ratio >= kWeightGrowth) ++g.grown;
    if (ratio <= fastest) continue;
    fastest = ratio;
    g.fastest = name;
    g.fastest_from = std::sqrt(norms.first);
    g.fastest_to = std::sqrt(norms.second);
  }
  return g.grown * 2 > g.layers ? std::optional(g) : std::nullopt;
}

// One update that made most layers many times as large, of a loss that was calm: where the loss had jumped first, the
// batch is as likely.
std::optional<Growth> NormWatch::judge_updates(std::uint32_t step) const {
  const std::size_t newest = end_of_finite(step);
  if (newest == 0) return std::nullopt;
  std::size_t first = newest;
  while (first > 0 && newest - first < kUpdatesBefore && std::isfinite(entries_[first - 1].loss) &&
         (first == newest || entries_[first - 1].step + 1 == entries_[first].step))
    --first;
  for (std::size_t i = first; i < newest; ++i) {
    const double before = i > 0 ? std::fabs(entries_[i - 1].loss) : kInf;
    if (std::isfinite(before) && std::fabs(entries_[i].loss) >= kEarlyGrowth * before) continue;
    Growth g;
    g.step = step;
    if (!judge_update(i, g)) continue;
    g.kind = GrowthKind::kInOneUpdate;
    g.lr = entries_[i].lr;
    g.from_step = g.to_step = entries_[i].step;
    g.loss_from = std::fabs(entries_[i].loss);
    g.loss_to = i + 1 < newest ? std::fabs(entries_[i + 1].loss) : kInf;
    g.gradient_from = g.gradient_to = entries_[i].gradient;
    return g;
  }
  return std::nullopt;
}

// Whether the update of that step made most layers so much larger.
bool NormWatch::judge_update(std::size_t entry, Growth& g) const {
  if (!positive(entries_[entry].gradient)) return false;
  const bool is_first = entry == 0 && steps_ <= kGrowthWindow;
  if (!is_first && (entry == 0 || entries_[entry - 1].step + 1 != entries_[entry].step)) return false;
  struct Layer {
    double before = 0, after = 0;
  };
  std::map<std::string, Layer> layers;
  const std::size_t back = entries_.size() - 1 - entry;
  for (const Parameter& p : parameters_) {
    if (p.written_in == entries_[entry].step + 1) continue;
    Layer& layer = layers[layer_of(names_.text(p.path))];
    layer.before += is_first ? p.first_sq : weight_sq(p, back + 1);
    layer.after += weight_sq(p, back);
  }
  double fastest = 0;
  for (const auto& [name, layer] : layers) {
    if (!positive(layer.before) || !positive(layer.after)) continue;
    ++g.layers;
    const double ratio = std::sqrt(layer.after / layer.before);
    if (ratio >= kOneUpdate) ++g.grown;
    if (ratio <= fastest) continue;
    fastest = ratio;
    g.fastest = name;
    g.fastest_from = std::sqrt(layer.before);
    g.fastest_to = std::sqrt(layer.after);
    g.update_ratio = ratio;
  }
  return g.grown * 2 > g.layers;
}

}  // namespace nanhunt::analyze
