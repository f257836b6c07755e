// SPDX-License-Identifier: Apache-2.0
// Every vector of data/scaler-vectors.json.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
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

GradScalerOptions options_of(const Json& params) {
  return {.init_scale = params.value("init_scale", 65536.0),
          .growth_factor = params.value("growth_factor", 2.0),
          .backoff_factor = params.value("backoff_factor", 0.5),
          .growth_interval = params.value("growth_interval", std::int64_t{2000}),
          .enabled = params.value("enabled", true)};
}

// A scaler with one optimizer, driven flag by flag.
struct Driven {
  explicit Driven(const Json& params) : scaler(options_of(params)) {}

  bool update(bool found_inf) {
    scaler.scale(Tensor::full({}, 1, DType::kF32));
    optimizer.set_gradient(0, found_inf ? kInf : 1);
    const bool ran = scaler.step(optimizer);
    scaler.update();
    return ran;
  }

  // "update", "set_scale:4096.0", "set_interval:3" or "reload".
  void control(const std::string& op) {
    const std::string value = op.substr(op.find(':') + 1);
    if (op.starts_with("set_scale:")) {
      scaler.update(std::stod(value));
    } else if (op.starts_with("set_interval:")) {
      scaler.set_growth_interval(std::stoll(value));
    } else {
      ASSERT_EQ(op, "reload");
      GradScaler fresh;
      fresh.load_state(scaler.state());
      scaler = std::move(fresh);
    }
  }

  void expect(const Json& row, const Json& columns) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] == "scale_f32_bits") {
        EXPECT_EQ(bits_of(scaler.get_scale()), hex(row[i])) << row;
      } else if (columns[i] == "growth_tracker") {
        EXPECT_EQ(scaler.growth_tracker(), row[i].get<std::int64_t>()) << row;
      } else if (columns[i] == "inv_scale_f32_bits") {
        const double scale = static_cast<double>(static_cast<float>(scaler.get_scale()));
        EXPECT_EQ(bits_of(1 / scale), hex(row[i])) << row;
      }
    }
  }

  GradScaler scaler;
  CountingOptimizer optimizer{"p"};
};

TEST(ScalerVectors, every_sequence_of_flags_gives_the_scales_of_torch) {
  int rows = 0;
  for (const Json& vector : vectors("scaler_vectors")) {
    SCOPED_TRACE(vector.at("id").get<std::string>());
    Driven run(vector.at("params"));
    run.expect(vector.at("initial"), vector.at("columns"));
    const auto check = [&](const Json& row, bool ran) {
      EXPECT_EQ(ran, row[3].get<bool>()) << row;
      run.expect(row, vector.at("columns"));
      ++rows;
    };
    if (vector.at("dense")) {
      for (const Json& row : vector.at("rows")) {
        if (row[1] == "update") {
          check(row, run.update(row[2].get<int>() != 0));
        } else {
          run.control(row[1]);
          run.expect(row, vector.at("columns"));
        }
      }
      continue;
    }
    std::map<std::int64_t, Json> checkpoints;
    for (const Json& row : vector.at("rows")) checkpoints[row[0]] = row;
    std::int64_t i = 0;
    for (const Json& run_of : vector.at("input_rle")) {
      for (int k = 0; k < run_of[1].get<int>(); ++k, ++i) {
        const bool ran = run.update(run_of[0].get<int>() != 0);
        if (checkpoints.count(i) != 0) check(checkpoints.at(i), ran);
      }
    }
  }
  EXPECT_GT(rows, 300);
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
