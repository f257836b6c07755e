// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/module.h"

#include <algorithm>
#include <set>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

// Keeps enter and exit paired when a forward throws.
class ScopedModuleCall {
 public:
  explicit ScopedModuleCall(const std::string& path) : path_(path), module_(path) { notify_module_enter(path_); }
  ~ScopedModuleCall() { notify_module_exit(path_); }
  ScopedModuleCall(const ScopedModuleCall&) = delete;
  ScopedModuleCall& operator=(const ScopedModuleCall&) = delete;

 private:
  const std::string& path_;
  ScopedModule module_;
};

template <typename Entries>
bool has_name(const Entries& entries, const std::string& name) {
  return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == name; });
}

Tensor cast_if_floating(const Tensor& value, const std::optional<DType>& dtype) {
  return dtype && value.defined() && is_floating(value.dtype()) ? to(value, *dtype) : value;
}

std::string random_identifier(RandomStream& random) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  std::string name(8, ' ');
  for (char& c : name) c = kLetters[random.below(kLetters.size())];
  return name;
}

}  // namespace

Tensor Module::operator()(const Tensor& input) {
  const ScopedModuleCall call(path_);
  if (!keeps_fp32_) return cast_if_floating(forward(cast_if_floating(input, input_cast_)), output_cast_);
  std::optional<Autocast> off;
  if (autocast_enabled()) off.emplace(AutocastOptions{.enabled = false});
  return cast_if_floating(forward(cast_if_floating(input, DType::kF32)), output_cast_);
}

void Module::expect_new_name(const char* what, const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos) {
    fail(what, "a name without dots", "'" + name + "'");
  }
  if (has_name(parameters_, name) || has_name(buffers_, name) || has_name(children_, name)) {
    fail(what, "a name not used yet in '" + path_ + "'", "'" + name + "'");
  }
}

Tensor& Module::register_parameter(std::string name, Tensor value) {
  expect_new_name("register_parameter", name);
  expect_floating("register_parameter", value, name);
  if (!value.is_contiguous()) fail("register_parameter", "a contiguous tensor", describe(value));
  value.set_requires_grad(true);
  parameters_.emplace_back(std::move(name), std::make_unique<Tensor>(std::move(value)));
  return *parameters_.back().second;
}

Tensor& Module::register_buffer(std::string name, Tensor value) {
  expect_new_name("register_buffer", name);
  expect_defined("register_buffer", value, name);
  buffers_.emplace_back(std::move(name), std::make_unique<Tensor>(std::move(value)));
  return *buffers_.back().second;
}

RandomStream& Module::register_random(RandomStream stream) {
  random_.push_back(std::make_unique<RandomStream>(std::move(stream)));
  return *random_.back();
}

void Module::add_child(std::string name, std::unique_ptr<Module> child) {
  expect_new_name("register_module", name);
  child->set_path(join(path_, name));
  children_.emplace_back(std::move(name), std::move(child));
}

void Module::set_path(std::string path) {
  path_ = std::move(path);
  for (auto& [name, child] : children_) child->set_path(join(path_, name));
}

std::vector<NamedTensor> Module::named_parameters() const {
  std::vector<NamedTensor> out;
  for (const auto& [name, tensor] : parameters_) out.push_back({join(path_, name), *tensor});
  for (const auto& [name, child] : children_) {
    for (NamedTensor& entry : child->named_parameters()) out.push_back(std::move(entry));
  }
  return out;
}

std::vector<NamedTensor> Module::named_buffers() const {
  std::vector<NamedTensor> out;
  for (const auto& [name, tensor] : buffers_) out.push_back({join(path_, name), *tensor});
  for (const auto& [name, child] : children_) {
    for (NamedTensor& entry : child->named_buffers()) out.push_back(std::move(entry));
  }
  return out;
}

std::vector<RandomStream*> Module::random_streams() const {
  std::vector<RandomStream*> out;
  for (const auto& stream : random_) out.push_back(stream.get());
  for (const auto& [name, child] : children_) {
    for (RandomStream* stream : child->random_streams()) out.push_back(stream);
  }
  return out;
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> out = {this};
  for (const auto& [name, child] : children_) {
    for (Module* module : child->modules()) out.push_back(module);
  }
  return out;
}

void Module::to(DType dtype, const std::function<bool(const Module&)>& keeps) {
  const std::vector<Module*> all = modules();
  convert(dtype, keeps, std::any_of(all.begin(), all.end(), [](const Module* one) { return one->keeps_fp32_; }));
}

void Module::convert(DType dtype, const std::function<bool(const Module&)>& keeps, bool beside_fp32) {
  if (keeps_fp32_) return;
  auto convert_tensor = [dtype](Tensor& tensor) {
    if (!is_floating(tensor.dtype()) || tensor.dtype() == dtype) return;
    Tensor converted = Tensor::zeros(tensor.sizes(), dtype);
    converted.copy_from(tensor);
    tensor = std::move(converted.set_requires_grad(tensor.requires_grad()));
  };
  if (!keeps || !keeps(*this)) {
    for (auto& [name, tensor] : parameters_) convert_tensor(*tensor);
    for (auto& [name, tensor] : buffers_) convert_tensor(*tensor);
    if (beside_fp32 && !parameters_.empty()) input_cast_ = dtype;
  }
  for (auto& [name, child] : children_) child->convert(dtype, keeps, beside_fp32);
}

void Module::set_call_casts(std::optional<DType> input, std::optional<DType> output) {
  input_cast_ = input;
  output_cast_ = output;
}

void Module::to(const Device& device) {
  auto move = [&device](Tensor& tensor) {
    if (tensor.device() == device) return;
    Tensor moved = tensor.on(device);
    tensor = std::move(moved.set_requires_grad(tensor.requires_grad()));
  };
  for (auto& [name, tensor] : parameters_) move(*tensor);
  for (auto& [name, tensor] : buffers_) move(*tensor);
  for (auto& [name, child] : children_) child->to(device);
}

void Module::train(bool on) {
  training_ = on;
  for (auto& [name, child] : children_) child->train(on);
}

std::vector<std::pair<std::string, std::string>> Module::randomise_names(std::uint64_t seed) {
  RandomStream random(seed, /*stream=*/0x6e616d65);
  std::vector<std::pair<std::string, std::string>> renamed;
  rename_below(path_, random, renamed);
  return renamed;
}

void Module::rename_below(const std::string& old_path, RandomStream& random,
                          std::vector<std::pair<std::string, std::string>>& renamed) {
  std::set<std::string> used;
  auto rename = [&](std::string& name) {
    const std::string old = join(old_path, name);
    do {
      name = random_identifier(random);
    } while (!used.insert(name).second);
    renamed.emplace_back(old, join(path_, name));
    return old;
  };
  for (auto& [name, tensor] : parameters_) rename(name);
  for (auto& [name, tensor] : buffers_) rename(name);
  for (auto& [name, child] : children_) {
    const std::string old = rename(name);
    child->path_ = join(path_, name);
    child->rename_below(old, random, renamed);
  }
}

}  // namespace nanhunt::engine
