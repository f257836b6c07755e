// SPDX-License-Identifier: Apache-2.0
// The property table of amp.initialize: a level, overrides, and what is refused, in Apex's words.
#include <fmt/format.h>

#include <charconv>

#include "src/engine/amp/recipes/levels.h"
#include "src/engine/amp/recipes/refuse.h"
#include "src/engine/amp/recipes/torch_names.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

std::string as_python(bool value) { return value ? "True" : "False"; }
template <typename T>
std::string as_python(const std::optional<T>& value) {
  return value ? as_python(*value) : "None";
}
std::string as_python(const std::optional<DType>& value) { return value ? torch_dtype(*value) : "None"; }

// What Python's float() makes of a text.
double number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(fmt::format("could not convert string to float: '{}'", text));
  }
  return number;
}

ApexProperties level(const std::string& name) {
  if (name == "O0") return apex_o0();
  if (name == "O1") return apex_o1();
  if (name == "O2") return apex_o2();
  if (name == "O3") return apex_o3();
  refuse(fmt::format("Unexpected optimization level {}. Options are 'O0', 'O1', 'O2', 'O3'.", name));
}

void override_cast(ApexProperties& properties, DType dtype) {
  if (properties.opt_level == "O1" && dtype != DType::kF32) {
    refuse("O1 inserts casts around Torch functions rather than model weights, so with O1, the model weights "
           "themselves should remain FP32. If you wish to cast the model to a different type, use opt_level='O2' or "
           "'O3'. cast_model_type was " + torch_dtype(dtype));
  }
  properties.cast_model_type = dtype;
}

void override_patch(ApexProperties& properties, bool patch) {
  if (properties.opt_level != "O1" && patch) {
    refuse("Currently, patch_torch_functions=True should only be set by selecting opt_level='O1'.");
  }
  properties.patch_torch_functions = patch;
}

void override_batch_norm(ApexProperties& properties, const std::variant<bool, std::string>& keep) {
  const auto* text = std::get_if<std::string>(&keep);
  const std::string given = text ? *text : as_python(std::get<bool>(keep));
  if (properties.opt_level == "O1") {
    refuse("With opt_level O1, batchnorm functions are automatically patched to run in FP32, so keep_batchnorm_fp32 "
           "should be None. keep_batchnorm_fp32 was " + given);
  }
  if (given != "True" && given != "False") {
    refuse("keep_batchnorm_fp32 must be a boolean, the string 'True' or 'False', or None, found keep_batchnorm_fp32=" +
           given);
  }
  properties.keep_batchnorm_fp32 = given == "True";
}

void override_masters(ApexProperties& properties, bool masters) {
  if (properties.opt_level == "O1") {
    refuse("It doesn't make sense to use master_weights with O1. With O1, your model weights themselves should be "
           "FP32.");
  }
  properties.master_weights = masters;
}

void override_scale(ApexProperties& properties, const std::variant<double, std::string>& scale) {
  const auto* text = std::get_if<std::string>(&scale);
  if (text && *text == "dynamic") {
    properties.loss_scale.reset();
  } else {
    properties.loss_scale = text ? number_of(*text) : std::get<double>(scale);
  }
}

}  // namespace

ApexProperties apex_properties(const ApexOptions& options) {
  if (!options.enabled) return {.enabled = false, .opt_level = options.opt_level, .loss_scale = 1.0};
  ApexProperties properties = level(options.opt_level);
  if (options.cast_model_type) override_cast(properties, *options.cast_model_type);
  if (options.patch_torch_functions) override_patch(properties, *options.patch_torch_functions);
  if (options.keep_batchnorm_fp32) override_batch_norm(properties, *options.keep_batchnorm_fp32);
  if (options.master_weights) override_masters(properties, *options.master_weights);
  if (options.loss_scale) override_scale(properties, *options.loss_scale);
  return properties;
}

std::string apex_properties_text(const ApexProperties& properties) {
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += fmt::format("{:22} : {}\n", name, value);
  };
  line("enabled", as_python(properties.enabled));
  line("opt_level", properties.opt_level);
  line("cast_model_type", as_python(properties.cast_model_type));
  line("patch_torch_functions", as_python(properties.patch_torch_functions));
  line("keep_batchnorm_fp32", as_python(properties.keep_batchnorm_fp32));
  line("master_weights", as_python(properties.master_weights));
  line("loss_scale", properties.loss_scale ? python_text(*properties.loss_scale) : "dynamic");
  return text;
}

}  // namespace nanhunt::engine
