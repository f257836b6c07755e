// SPDX-License-Identifier: Apache-2.0
// Every vector of data/scaler-vectors.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scaler_ops.h"
#include "tests/engine/amp/scaler_fixture.h"

namespace nanhunt::engine::testing {
namespace {

using Json = nlohmann::json;

const double kInf = std::numeric_limits<double>::infinity();

const Json& vectors(const std::string& family) {
  static const Json kAll = [] {
    std::ifstream file(NANHUNT_SOURCE_DIR "/tests/engine/amp/data/scaler-vectors.json");
    return Json::parse(file);
  }();
  return kAll.at(family);
}

std::uint32_t hex(const Json& text) {
  return static_cast<std::uint32_t>(std::stoul(text.get<std::string>(), nullptr, 16));
}

// A number that may be null, or the word for infinity.
double number(const Json& value) { return value == "inf" ? kInf : value.get<double>(); }

GradScalerOptions options_of(const Json& params) {
  return {.init_scale = params.value("init_scale", 65536.0),
          .growth_factor = params.value("growth_factor", 2.0),
          .backoff_factor = params.value("backoff_factor", 0.5),
          .growth_interval = params.value("growth_interval", std::int64_t{2000}),
          .enabled = params.value("enabled", true)};
}

std::optional<double> optional_number(const Json& params, const char* name) {
  const Json value = params.value(name, Json());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

// How each family of the file is made of a vector's parameters. A family that is not here fails its vectors.
const std::map<std::string, std::function<std::unique_ptr<LossScaler>(const Json&)>> kFamilies = {
    {"torch_grad_scaler", [](const Json& params) { return make_scaler(options_of(params)); }},
    {"apex_amp_loss_scaler",
     [](const Json& params) {
       return make_scaler(ApexScalerOptions{.loss_scale = optional_number(params, "loss_scale"),
                                            .init_scale = params.value("init_scale", 65536.0),
                                            .scale_window = params.value("scale_window", std::int64_t{2000}),
                                            .min_loss_scale = optional_number(params, "min_loss_scale"),
                                            .max_loss_scale = params.value("max_loss_scale", 0x1p24)});
     }},
    {"apex_legacy_dynamic_loss_scaler",
     [](const Json& params) {
       return make_scaler(ApexLegacyScalerOptions{
           .init_scale = params.at("init_scale"),
           .scale_factor = params.at("scale_factor"),
           .scale_window = params.at("scale_window"),
       });
     }},
    {"deepspeed_dynamic_loss_scaler",
     [](const Json& params) {
       return make_scaler(DeepSpeedScalerOptions{.init_scale = params.at("init_scale"),
                                                 .scale_factor = params.at("scale_factor"),
                                                 .scale_window = params.at("scale_window"),
                                                 .min_scale = params.at("min_scale"),
                                                 .hysteresis = params.at("hysteresis"),
                                                 .consecutive_hysteresis = params.at("consecutive_hysteresis"),
                                                 .raise_error_at_min_scale = params.at("raise_error_at_min_scale")});
     }},
    {"deepspeed_fused_fp16_optimizer",
     [](const Json& params) {
       return make_scaler(DeepSpeedFusedScalerOptions{.init_scale = params.at("init_scale"),
                                                      .scale_factor = params.at("scale_factor"),
                                                      .scale_window = params.at("scale_window"),
                                                      .min_scale = params.at("min_scale")});
     }},
    {"megatron_dynamic_grad_scaler",
     [](const Json& params) {
       return make_scaler(MegatronScalerOptions{.initial_scale = params.at("initial_scale"),
                                                .min_scale = params.at("min_scale"),
                                                .growth_factor = params.at("growth_factor"),
                                                .backoff_factor = params.at("backoff_factor"),
                                                .growth_interval = params.at("growth_interval"),
                                                .hysteresis = params.at("hysteresis")});
     }},
    {"apex_update_scale_hysteresis",
     [](const Json& params) {
       return make_scaler(ApexHysteresisScalerOptions{.init_scale = params.at("init_scale"),
                                                      .growth_factor = params.at("growth_factor"),
                                                      .backoff_factor = params.at("backoff_factor"),
                                                      .growth_interval = params.at("growth_interval"),
                                                      .hysteresis = params.at("hysteresis")});
     }},
    {"fastai_v1_mixed_precision",
     [](const Json& params) {
       return make_scaler(FastaiScalerOptions{.loss_scale = optional_number(params, "loss_scale"),
                                              .dynamic = params.at("dynamic"),
                                              .max_noskip = params.at("max_noskip"),
                                              .max_scale = params.at("max_scale")});
     }},
};

// Whether the gradients of a step reached the optimizer, as its events say.
class Outcome : public Observer {
 public:
  std::optional<bool> taken;
  void on_scaler(const ScalerEvent& event) noexcept override {
    if (event.action == ScalerAction::kStep) taken = true;
    if (event.action == ScalerAction::kSkip) taken = false;
  }
};

// A scaler with one optimizer, driven flag by flag.
struct Driven {
  explicit Driven(const Json& vector) : vector_(vector) {
    scaler = kFamilies.at(vector.at("family"))(vector.at("params"));
  }

  // What the step was: "true", "false", or "error: ..." where the family gives training up.
  std::string update(bool found_inf) {
    scaler->scale(Tensor::full({}, 1, DType::kF32));
    optimizer.set_gradient(0, found_inf ? kInf : 1);
    Outcome outcome;
    const HookHandle handle = add_observer(outcome);
    const int before = optimizer.steps;
    scaler->step(optimizer);
    const bool taken = outcome.taken.value_or(optimizer.steps > before);  // a disabled scaler tells nothing
    try {
      scaler->update();
    } catch (const std::runtime_error& given_up) {
      return std::string("error: ") + given_up.what();
    }
    return taken ? "true" : "false";
  }

  // "update", "set_scale:4096.0", "set_interval:3" or "reload".
  void control(const std::string& op) {
    const std::string value = op.substr(op.find(':') + 1);
    auto* torch = dynamic_cast<GradScaler*>(scaler.get());
    if (op.starts_with("set_scale:")) {
      ASSERT_NE(torch, nullptr);
      torch->update(std::stod(value));
    } else if (op.starts_with("set_interval:")) {
      ASSERT_NE(torch, nullptr);
      torch->set_growth_interval(std::stoll(value));
    } else {
      ASSERT_EQ(op, "reload");
      reload();
    }
  }

  void reload() {
    auto fresh = kFamilies.at(vector_.at("family"))(vector_.at("params"));
    fresh->load(scaler->saved());
    fresh->scale(Tensor::full({}, 1, DType::kF32));
    scaler = std::move(fresh);
  }

  void expect(const Json& row) {
    const Json& columns = vector_.at("columns");
    const LossScaler::Saved saved = scaler->saved();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string column = columns[i];
      if (column == "scale" && columns[i + 1] != "scale_f32_bits") {
        EXPECT_EQ(scaler->get_scale(), number(row[i])) << row;
      } else if (column == "scale_f32_bits") {
        EXPECT_EQ(bits_of(scaler->get_scale()), hex(row[i])) << row;
      } else if (column == "inv_scale_f32_bits") {
        const double scale = static_cast<double>(static_cast<float>(scaler->get_scale()));
        EXPECT_EQ(bits_of(1 / scale), hex(row[i])) << row;
      } else if (i >= 4 && column != "scale" && !saved.empty()) {  // behind number, op, flag and outcome: the family's own
        const auto at = std::find_if(saved.begin(), saved.end(), [&](const auto& entry) { return entry.first == column; });
        ASSERT_NE(at, saved.end()) << column;
        EXPECT_EQ(at->second, number(row[i])) << column << " in " << row;
      }
    }
  }

  void expect_outcome(const std::string& outcome, const Json& row) {
    if (row[3].is_boolean()) {
      EXPECT_EQ(outcome, row[3].get<bool>() ? "true" : "false") << row;
    } else {
      EXPECT_TRUE(outcome.starts_with("error: ")) << outcome << " in " << row;
    }
    expect(row);
  }

  const Json& vector_;
  std::unique_ptr<LossScaler> scaler;
  CountingOptimizer optimizer{"p"};
};

// Every row of a vector; `reloads`: the scaler is saved and loaded anew after each.
int run_vector(const Json& vector, bool reloads) {
  Driven run(vector);
  run.expect(vector.at("initial"));
  int rows = 0;
  if (vector.at("dense")) {
    for (const Json& row : vector.at("rows")) {
      if (row[1] == "update") {
        run.expect_outcome(run.update(row[2].get<int>() != 0), row);
        ++rows;
      } else {
        run.control(row[1]);
        run.expect(row);
      }
      if (reloads) run.reload();
    }
    return rows;
  }
  std::map<std::int64_t, Json> checkpoints;
  for (const Json& row : vector.at("rows")) checkpoints[row[0]] = row;
  std::int64_t i = 0;
  for (const Json& run_of : vector.at("input_rle")) {
    for (int k = 0; k < run_of[1].get<int>(); ++k, ++i) {
      const std::string outcome = run.update(run_of[0].get<int>() != 0);
      if (checkpoints.count(i) == 0) continue;
      run.expect_outcome(outcome, checkpoints.at(i));
      if (reloads) run.reload();
      ++rows;
    }
  }
  return rows;
}

TEST(ScalerVectors, every_sequence_of_flags_gives_the_scales_of_its_library) {
  int rows = 0;
  std::size_t number = 0;
  std::set<std::string> families;
  for (const Json& vector : vectors("scaler_vectors")) {
    SCOPED_TRACE(vector.at("id").get<std::string>());
    ASSERT_EQ(kFamilies.count(vector.at("family")), 1U) << vector.at("family");
    rows += run_vector(vector, /*reloads=*/false);
    families.insert(vector.at("family"));
    ++number;
  }
  EXPECT_EQ(number, 49U);
  EXPECT_EQ(families.size(), kFamilies.size());
  EXPECT_GT(rows, 900);
}

TEST(ScalerVectors, a_scaler_that_is_saved_and_loaded_after_every_update_gives_the_same_scales) {
  for (const Json& vector : vectors("scaler_vectors")) {
    SCOPED_TRACE(vector.at("id").get<std::string>());
    run_vector(vector, /*reloads=*/true);
  }
}

TEST(ScalerVectors, several_optimizers_skip_for_themselves_and_back_off_together) {
  for (const Json& vector : vectors("multi_optimizer_vectors")) {
    SCOPED_TRACE(vector.at("id").get<std::string>());
    GradScaler scaler(options_of(vector.at("params")));
    std::map<std::string, std::unique_ptr<CountingOptimizer>> optimizers;
    for (const Json& row : vector.at("rows")) {
      scaler.scale(Tensor::full({}, 1, DType::kF32));
      for (const auto& [name, flags] : row.at("found_inf_per_optimizer_per_device").items()) {
        auto& optimizer = optimizers[name];
        if (!optimizer) optimizer = std::make_unique<CountingOptimizer>(name, flags.size());
        for (std::size_t i = 0; i < flags.size(); ++i) optimizer->set_gradient(i, flags[i].get<int>() != 0 ? kInf : 1);
        EXPECT_EQ(scaler.step(*optimizer), row.at("step_taken").at(name).get<bool>()) << row;
      }
      scaler.update();
      EXPECT_EQ(bits_of(scaler.get_scale()), hex(row.at("scale_f32_bits"))) << row;
      EXPECT_EQ(scaler.growth_tracker(), row.at("growth_tracker").get<std::int64_t>()) << row;
    }
  }
}

// One call of a call-order vector, by its text.
class CallOrder {
 public:
  void call(std::string text) {
    GradScaler* scaler = &scaler_;
    if (text.starts_with("disabled:")) {
      text = text.substr(9);
      scaler = &disabled_;
    }
    if (text == "scale") {
      scaler->scale(Tensor::full({}, 1, DType::kF32));
    } else if (text.starts_with("backward")) {
      for (CountingOptimizer* optimizer : {&a_, &b_}) optimizer->set_gradient(0, text == "backward" ? 1 : kInf);
    } else if (text == "unscale A(fp16 grads)") {
      a_.set_gradient(0, 1, DType::kF16);
      scaler->unscale_(a_);
    } else if (text == "unscale A") {
      scaler->unscale_(a_);
    } else if (text == "step A(no grads)") {
      CountingOptimizer without("c");
      scaler->step(without);
    } else if (text == "step A" || text == "step B") {
      scaler->step(text == "step A" ? a_ : b_);
    } else if (text == "update") {
      scaler->update();
    } else if (text == "update(new_scale=8)") {
      scaler->update(8);
      EXPECT_EQ(scaler->get_scale(), 8);
    } else if (text == "load_state(empty)") {
      scaler->load_state({});
    } else if (text == "construct(growth_factor=1.0)") {
      GradScaler({.growth_factor = 1});
    } else if (text == "construct(backoff_factor=1.0)") {
      GradScaler({.backoff_factor = 1});
    } else if (text == "construct(enabled=false,growth_factor=0.5)") {
      GradScaler({.growth_factor = 0.5, .enabled = false});
    } else {
      FAIL() << "no way to make the call '" << text << "'";
    }
  }

 private:
  GradScaler scaler_, disabled_{{.enabled = false}};
  CountingOptimizer a_{"a"}, b_{"b"};
};

TEST(ScalerVectors, every_order_of_calls_passes_or_fails_as_in_torch) {
  for (const Json& vector : vectors("call_order_vectors")) {
    SCOPED_TRACE(vector.dump());
    if (vector.at("id") == "C12") continue;  // closures: an optimizer of the engine takes none
    CallOrder order;
    std::int64_t failed_at = -1, i = 0;
    std::string message;
    for (const Json& text : vector.at("calls")) {
      try {
        order.call(text);
      } catch (const std::invalid_argument& refused) {
        failed_at = i;
        message = refused.what();
        break;
      }
      ++i;
    }
    EXPECT_EQ(failed_at, vector.value("at", -1)) << message;
    if (vector.contains("message")) {
      EXPECT_EQ(message, vector.at("message"));
    }
  }
}

DType dtype_of(const std::string& name) {
  return name == "fp16" ? DType::kF16 : name == "bf16" ? DType::kBF16 : DType::kF32;
}

TEST(ScalerVectors, check_and_unscale_gives_the_bits_and_the_flag_of_torch) {
  int elements = 0;
  for (const Json& vector : vectors("check_and_unscale_vectors")) {
    SCOPED_TRACE(vector.at("id").get<std::string>());
    // given
    const DType dtype = dtype_of(vector.at("dtype"));
    const Json &in = vector.at("in"), &out = vector.at("out");
    Tensor grad = Tensor::zeros({static_cast<std::int64_t>(in.size())}, dtype);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::uint32_t bits = hex(in[i]);
      std::memcpy(grad.data<std::byte>() + i * dtype_size(dtype), &bits, dtype_size(dtype));
    }
    // when
    const bool found = amp::check_and_unscale_(grad, std::bit_cast<float>(hex(vector.at("inv_scale_f32_bits"))));
    // then
    EXPECT_EQ(found, vector.at("found_inf").get<int>() != 0);
    for (std::size_t i = 0; i < out.size(); ++i, ++elements) {
      if (out[i] == "nan") {
        EXPECT_TRUE(std::isnan(grad.at(static_cast<std::int64_t>(i))));
        continue;
      }
      std::uint32_t bits = 0;
      std::memcpy(&bits, grad.data<std::byte>() + i * dtype_size(dtype), dtype_size(dtype));
      EXPECT_EQ(bits, hex(out[i])) << "element " << i;
    }
  }
  EXPECT_GT(elements, 30);
}

}  // namespace
}  // namespace nanhunt::engine::testing
