// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/run.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/recorder.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::campaign {
namespace {

constexpr double kDiverged = 0.25;

void require(const Status& status) {
  if (!status) throw std::runtime_error(status.message());
}

class FirstBadStep : public engine::Observer {
 public:
  explicit FirstBadStep(std::optional<std::uint32_t>& step) : first_(step) {}
  void on_step_begin(std::uint32_t step) noexcept override { now_ = step; }
  void on_mark(TensorRole role, std::string_view, const engine::Tensor& tensor) noexcept override {
    if (first_ || !is_sink(role) || !tensor.defined() || !is_floating(tensor.dtype())) return;
    if (compute_stats(tensor.view(), StatsLevel::kFinite).any_nonfinite) first_ = now_;
  }

 private:
  std::optional<std::uint32_t>& first_;
  std::uint32_t now_ = 0;
};

std::vector<double> parameters_of(const Rig& rig) {
  std::vector<double> out;
  for (const auto& [path, tensor] : rig.parameters()) {
    const std::vector<double> values = tensor.to_vector();
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace

RunLog train_and_judge(const Settings& settings, const Plan& plan, bool faulty, const std::string& folder) {
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = "ops";
  RecorderOptions options;
  options.run_dir = folder;
  auto recorder = Recorder::open(options, info);
  require(recorder.status());
  RunLog log;
  {
    Rig rig(settings, plan, faulty);
    FirstBadStep first_bad_step(log.first_bad_step);
    const engine::HookHandle handle = engine::add_observer(first_bad_step);
    const hooks::TrainerWatch watch(rig.trainer(), **recorder);
    rig.start_sabotage();
    log.start = parameters_of(rig);
    for (std::uint32_t i = 0; i < settings.steps; ++i) log.losses.push_back(rig.step().loss);
    log.end = parameters_of(rig);
  }
  require((*recorder)->close());
  auto analysis = analyze_run(folder);
  require(analysis.status());
  log.answer = headline_of(*analysis);
  return log;
}

bool did_harm(const RunLog& faulty, const RunLog& clean) {
  for (std::size_t i = 0; i < clean.losses.size(); ++i) {
    if (std::isfinite(clean.losses[i]) && !std::isfinite(faulty.losses[i])) return true;
  }
  // Written so that a NaN is harm.
  return !(distance(faulty.end, clean.end) <= kDiverged * distance(clean.start, clean.end));
}

}  // namespace nanhunt::campaign
