// SPDX-License-Identifier: Apache-2.0
// Modules: named parameters, buffers and children. Paths are dotted ("net.fc1.weight").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/random.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct NamedTensor {
  std::string path;
  Tensor tensor;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  // Runs forward with the module's path as current module, between on_module_enter and on_module_exit.
  Tensor operator()(const Tensor& input);

  std::vector<NamedTensor> named_parameters() const;  // depth first, registration order
  std::vector<NamedTensor> named_buffers() const;
  // Streams that forward draws from, depth first: their positions are part of a snapshot.
  std::vector<RandomStream*> random_streams() const;
  // Floating parameters and buffers, in place (before optimizers are made). Those of a module that `keeps` is true of
  // stay as they are.
  void to(DType dtype, const std::function<bool(const Module&)>& keeps = {});
  // A call casts a floating input before forward, and what forward returns.
  void set_call_casts(std::optional<DType> input, std::optional<DType> output);
  // Whatever recipe is applied afterwards, this module and all below stay in fp32: to(dtype) leaves their parameters
  // and buffers, and a call runs outside autocast on its floating input cast to fp32. It hands on fp32: in a model that
  // is converted, layers that have parameters of the new format cast what comes in to it.
  void keep_fp32() { keeps_fp32_ = true; }
  bool keeps_fp32() const { return keeps_fp32_; }
  // Of this module and all below, depth first; a module comes before its children. Valid as long as this one.
  std::vector<Module*> modules();
  void to(const Device& device);  // parameters and buffers, in place (before optimizers are made)
  void train(bool on = true);  // this module and all below; false: as in use after training (running statistics)
  bool training() const { return training_; }
  // Sets the dotted path of this module and of all below. A root starts as "", children follow their parents.
  void set_path(std::string path);
  const std::string& path() const { return path_; }
  // Renames children and parameters at every level to random identifiers (tests: nothing may depend on names).
  // Returns old full path -> new full path for every module, parameter and buffer.
  std::vector<std::pair<std::string, std::string>> randomise_names(std::uint64_t seed);

 protected:
  virtual Tensor forward(const Tensor& input) = 0;
  Tensor& register_parameter(std::string name, Tensor value);
  Tensor& register_buffer(std::string name, Tensor value);
  RandomStream& register_random(RandomStream stream);
  template <typename M>
  M& register_module(std::string name, std::unique_ptr<M> child) {
    M& ref = *child;
    add_child(std::move(name), std::move(child));
    return ref;
  }

 private:
  void add_child(std::string name, std::unique_ptr<Module> child);
  void expect_new_name(const char* what, const std::string& name) const;
  void convert(DType dtype, const std::function<bool(const Module&)>& keeps, bool beside_fp32);
  void rename_below(const std::string& old_path, RandomStream& random,
                    std::vector<std::pair<std::string, std::string>>& renamed);
  std::string path_;
  bool training_ = true;
  std::optional<DType> input_cast_, output_cast_;
  bool keeps_fp32_ = false;
  std::vector<std::pair<std::string, std::unique_ptr<Tensor>>> parameters_, buffers_;
  std::vector<std::unique_ptr<RandomStream>> random_;
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
};

}  // namespace nanhunt::engine
