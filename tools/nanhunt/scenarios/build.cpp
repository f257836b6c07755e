// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/scenarios/build.h"

#include <algorithm>
#include <stdexcept>

#include "nanhunt/engine/ops.h"

namespace nanhunt::scenarios {
namespace {

// Calls change(element) for every pixel of every row that is sample `id`.
template <typename F>
void for_each_pixel(engine::Batch& batch, std::int64_t id, const F& change) {
  const std::int64_t width = batch.inputs.size(1);
  const std::size_t size = dtype_size(batch.inputs.dtype());
  auto* first = static_cast<std::byte*>(batch.inputs.raw());
  for (std::size_t row = 0; row < batch.sample_ids.size(); ++row) {
    if (batch.sample_ids[row] != id) continue;
    for (std::int64_t p = 0; p < width; ++p) {
      change(p, first + (row * static_cast<std::size_t>(width) + static_cast<std::size_t>(p)) * size);
    }
  }
}

bool is_same(const engine::Tensor& a, const engine::Tensor& b) {
  return a.storage() == b.storage() && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

engine::BatchSource on_device(engine::BatchSource batches, const engine::Device& device) {
  return [batches = std::move(batches), device](std::uint32_t step) {
    engine::Batch batch = batches(step);
    const bool targets_are_inputs =
        batch.inputs.defined() && batch.targets.defined() && is_same(batch.targets, batch.inputs);
    if (batch.inputs.defined()) batch.inputs = batch.inputs.on(device);
    if (targets_are_inputs) {
      batch.targets = batch.inputs;  // one tensor stays one
    } else if (batch.targets.defined()) {
      batch.targets = batch.targets.on(device);
    }
    return batch;
  };
}

class Fp32RmsNorm : public engine::Module {
 public:
  explicit Fp32RmsNorm(DType dtype) : dtype_(dtype) {}

 protected:
  engine::Tensor forward(const engine::Tensor& input) override {
    const engine::Tensor x = engine::to(input, DType::kF32);
    const engine::Tensor mean_square = engine::mean(engine::mul(x, x), -1, /*keepdim=*/true);
    // A model that was made in fp32 and converted hands on what it was converted to.
    const DType out = dtype_ == DType::kF32 && !engine::autocast_enabled() ? input.dtype() : dtype_;
    return engine::to(engine::mul(x, engine::rsqrt(engine::add(mean_square, 1e-6))), out);
  }

 private:
  DType dtype_;
};

class LargeProjection : public engine::Module {
 public:
  LargeProjection(std::int64_t in, std::int64_t out, engine::RandomStream& random, bool in_fp32)
      : weight_(register_parameter("weight", engine::normal_tensor({out, in}, 0, kStddev, DType::kF32, random))),
        in_fp32_(in_fp32) {}

 protected:
  engine::Tensor forward(const engine::Tensor& input) override {
    if (!in_fp32_) return engine::linear(input, weight_, engine::Tensor());
    const engine::Autocast off({.enabled = false});
    return engine::linear(engine::to(input, DType::kF32), weight_, engine::Tensor());
  }

 private:
  static constexpr double kStddev = 32;
  engine::Tensor& weight_;
  bool in_fp32_;
};

// Formats, casts and scaler are the recipe's business; what else is wrong in the scenario stays.
engine::TrainingSetup bare(engine::TrainingSetup setup) {
  setup.optimizer.fp32_masters = false;
  setup.options.autocast.reset();
  setup.options.scaler.reset();
  if (setup.options.validation) setup.options.validation->autocast.reset();
  return setup;
}

}  // namespace

DType own_format(const ScenarioConfig& config, DType own) { return config.bare() ? DType::kF32 : own; }

engine::TrainingSetup in_own_recipe(const ScenarioConfig& config, engine::TrainingSetup setup,
                                    const std::function<engine::TrainingSetup(engine::TrainingSetup)>& own) {
  return config.bare() ? std::move(setup) : own(std::move(setup));
}

ScenarioRun assemble(std::unique_ptr<engine::Module> model, const engine::OptimizerOptions& optimizer,
                     engine::BatchSource batches, engine::LossFunction loss, const ScenarioConfig& config,
                     const engine::TrainerOptions& options) {
  engine::TrainingSetup setup{std::move(model), optimizer, options};
  return assemble(std::move(setup), std::move(batches), std::move(loss), config);
}

ScenarioRun assemble(engine::TrainingSetup setup, engine::BatchSource batches, engine::LossFunction loss,
                     const ScenarioConfig& config) {
  ScenarioRun run;
  if (config.bare()) setup = bare(std::move(setup));
  if (config.rename_seed) run.renamed = setup.model->randomise_names(*config.rename_seed);
  if (config.parts != nullptr) {
    *config.parts = {std::move(setup), std::move(batches), std::move(loss)};
    return run;
  }
  if (config.recipe != nullptr) setup = engine::apply_recipe(*config.recipe, std::move(setup));
  auto& [model, optimizer, options] = setup;
  model->to(config.device);
  auto parameters = model->named_parameters();
  if (!config.device.is_cpu()) batches = on_device(std::move(batches), config.device);
  engine::TrainerOptions chosen = options;
  chosen.detect_anomaly = chosen.detect_anomaly || config.anomaly;
  if (chosen.validation && !config.device.is_cpu()) {
    chosen.validation->batches = on_device(std::move(chosen.validation->batches), config.device);
  }
  if (config.ranks != nullptr) {
    batches = engine::rows_of_rank(std::move(batches), config.ranks->rank(), config.ranks->size());
    if (!chosen.data_parallel) chosen.data_parallel.emplace();
    chosen.data_parallel->ranks = config.ranks;
  }
  for (const engine::NamedScaler& scaler : engine::named_scalers()) {
    if (scaler.name == config.scaler) chosen.scaler = scaler.choice;
  }
  run.trainer = std::make_unique<engine::Trainer>(
      std::move(model), engine::make_optimizer(std::move(parameters), optimizer), std::move(batches), std::move(loss),
      chosen);
  return run;
}

std::string why_in_its_own_recipe(const Scenario& scenario) {
  if (scenario.ranks > 1) return "it is about several ranks";
  return scenario.only_own_recipe ? "what is wrong in it stands in its recipe" : "";
}

engine::Workload workload_of(const Scenario& scenario) {
  engine::Workload workload;
  workload.name = scenario.name;
  workload.summary = scenario.summary;
  workload.steps = scenario.steps;
  const auto whole = [make = scenario.make](std::uint64_t seed) {
    engine::TrainingParts parts;
    ScenarioConfig config;
    config.seed = seed;
    config.parts = &parts;
    make(config);
    return parts;
  };
  const engine::Batch first = whole(ScenarioConfig{}.seed).batches(0);
  workload.batch_size = first.inputs.size(0);
  workload.make = [whole, own = workload.batch_size](std::uint64_t seed, std::int64_t batch_size) {
    engine::TrainingParts parts = whole(seed);
    if (batch_size == own) return parts;
    parts.batches = engine::rows_of_rank(std::move(parts.batches), 0, static_cast<std::uint32_t>(own / batch_size));
    return parts;
  };
  workload.refuses = [name = scenario.name, own = workload.batch_size](std::int64_t batch_size) -> std::string {
    if (batch_size >= 1 && batch_size <= own && own % batch_size == 0) return "";
    return name + " has batches of " + std::to_string(own) + ", which can be cut to a size that divides that";
  };
  return workload;
}

ScenarioConfig with_others(const std::function<ScenarioRun(const ScenarioConfig&)>& make, ScenarioConfig config,
                           std::uint32_t rank, std::uint32_t ranks) {
  config.ranks = engine::with_companions(ranks, rank, [make, config](const std::shared_ptr<engine::RankGroup>& group) {
    ScenarioConfig its = config;
    its.ranks = group;
    const ScenarioRun run = make(its);
    while (run.trainer->step().ended_by.empty()) {
    }
  });
  return config;
}

void expect_known_fix(const std::vector<hunt::Fix>& fixes, const std::string& fix) {
  if (fix.empty()) return;
  std::string known;
  for (const hunt::Fix& f : fixes) {
    if (f.id == fix) return;
    known += (known.empty() ? "" : ", ") + f.id;
  }
  throw std::invalid_argument("[scenario] expected a fix among " + known + ", got '" + fix + "'");
}

std::vector<Scenario> with_twin(Scenario scenario, std::vector<std::string> twin_dtypes) {
  scenario.make = [inner = scenario.make, fixes = scenario.fixes, ranks = scenario.ranks,
                   rank = scenario.expected.rank](const ScenarioConfig& config) {
    expect_known_fix(fixes, config.fix);
    if (ranks == 1 || config.ranks != nullptr) return inner(config);
    return inner(with_others(inner, config, rank, ranks));
  };
  const hunt::Fix& fix = scenario.fixes.front();
  Scenario twin = scenario;
  twin.name += "-fixed";
  twin.summary = scenario.name + " repaired: " + fix.description;
  twin.dtypes = std::move(twin_dtypes);
  twin.expected = {};
  twin.expected.rank = scenario.expected.rank;
  twin.fixes = {};
  twin.make = [make = scenario.make, id = fix.id](const ScenarioConfig& config) {
    expect_known_fix({}, config.fix);
    ScenarioConfig fixed = config;
    fixed.fix = id;
    return make(fixed);
  };
  return {std::move(scenario), std::move(twin)};
}

engine::BatchOrder training_order(std::uint64_t seed, std::int64_t batch_size) {
  const auto ids = engine::digits_train_ids();
  return {{ids.begin(), ids.end()}, batch_size, seed};
}

std::int64_t sample_first_met_at(const engine::BatchOrder& order, std::uint32_t step) {
  const std::vector<std::int64_t> ids = order.ids(step);
  return ids[ids.size() / 2];
}

void scale_sample(engine::Batch& batch, std::int64_t id, double factor) {
  const DType dtype = batch.inputs.dtype();
  for_each_pixel(batch, id,
                 [&](std::int64_t, std::byte* at) { store_from_f64(dtype, at, load_as_f64(dtype, at) * factor); });
}

void set_pixel(engine::Batch& batch, std::int64_t id, std::int64_t pixel, double value) {
  const DType dtype = batch.inputs.dtype();
  for_each_pixel(batch, id, [&](std::int64_t p, std::byte* at) {
    if (p == pixel) store_from_f64(dtype, at, value);
  });
}

engine::BatchSource digits_with_odd_sample(engine::BatchOrder order, std::int64_t id, double factor, DType dtype) {
  return [order = std::move(order), id, factor, dtype](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), dtype);
    scale_sample(batch, id, factor);
    return batch;
  };
}

std::unique_ptr<engine::Module> digits_model_around(std::string name, std::unique_ptr<engine::Module> middle,
                                                    std::uint64_t seed, DType dtype) {
  constexpr std::int64_t kWidth = 64;
  engine::RandomStream random(seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc1", std::make_unique<engine::Linear>(engine::kDigitsPixels, kWidth, random, dtype));
  model->append(std::move(name), std::move(middle));
  model->append("fc2", std::make_unique<engine::Linear>(kWidth, engine::kDigitsClasses, random, dtype));
  return model;
}

std::unique_ptr<engine::Module> make_fp32_rms_norm(DType dtype) { return std::make_unique<Fp32RmsNorm>(dtype); }

std::unique_ptr<engine::Module> make_large_projection(std::int64_t in, std::int64_t out, engine::RandomStream& random,
                                                      bool in_fp32) {
  return std::make_unique<LargeProjection>(in, out, random, in_fp32);
}

engine::Tensor classification_loss(const engine::Tensor& logits, const engine::Batch& batch) {
  return engine::cross_entropy(engine::to(logits, DType::kF32), batch.targets);
}

}  // namespace nanhunt::scenarios
