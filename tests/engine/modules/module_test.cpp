// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine {
namespace {

using testing::EventLog;

// One parameter "scale", one buffer "calls", one child "inner".
class Nested : public Module {
 public:
  explicit Nested(RandomStream& random)
      : scale(register_parameter("scale", Tensor::full({1}, 2, DType::kF32))),
        calls(register_buffer("calls", Tensor::zeros({1}, DType::kI64))),
        inner(register_module("inner", std::make_unique<Mlp>(MlpOptions{.sizes = {3, 4, 2}}))) {
    (void)random;
  }
  using Module::register_buffer;
  using Module::register_parameter;
  Tensor& scale;
  Tensor& calls;
  Mlp& inner;

 protected:
  Tensor forward(const Tensor& input) override { return mul(inner(input), scale); }
};

class Throwing : public Module {
 protected:
  Tensor forward(const Tensor&) override { throw std::runtime_error("forward failed"); }
};

std::vector<std::string> paths_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> paths;
  for (const NamedTensor& entry : tensors) paths.push_back(entry.path);
  return paths;
}

TEST(Module, names_parameters_depth_first_in_registration_order) {
  RandomStream random(1, 0);
  Nested net(random);
  EXPECT_EQ(paths_of(net.named_parameters()), (std::vector<std::string>{"scale", "inner.fc1.weight", "inner.fc1.bias",
                                                                        "inner.fc2.weight", "inner.fc2.bias"}));
  EXPECT_EQ(paths_of(net.named_buffers()), std::vector<std::string>{"calls"});
  // and all paths follow the root's
  net.set_path("net.0");
  EXPECT_EQ(net.inner.path(), "net.0.inner");
  EXPECT_EQ(paths_of(net.named_parameters())[1], "net.0.inner.fc1.weight");
}

TEST(Module, runs_forward_under_its_path_and_tells_observers) {
  RandomStream random(1, 0);
  Nested net(random);
  EventLog log;
  const HookHandle handle = add_observer(log);
  net(Tensor::full({1, 3}, 1, DType::kF32));
  EXPECT_EQ(log.lines, (std::vector<std::string>{"enter ", "enter inner", "enter inner.fc1", "op forward inner.fc1 t",
                                                 "op forward inner.fc1 addmm", "exit inner.fc1", "enter inner.relu1",
                                                 "op forward inner.relu1 relu", "exit inner.relu1", "enter inner.fc2",
                                                 "op forward inner.fc2 t", "op forward inner.fc2 addmm",
                                                 "exit inner.fc2", "exit inner", "op forward  mul", "exit "}));
  EXPECT_EQ(current_module(), "");
}

TEST(Module, leaves_its_path_when_forward_throws) {
  Throwing net;
  net.set_path("broken");
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_THROW(net(Tensor()), std::runtime_error);
  EXPECT_EQ(log.lines, (std::vector<std::string>{"enter broken", "exit broken"}));
  EXPECT_EQ(current_module(), "");
}

TEST(Module, converts_floating_tensors_with_one_rounding_and_keeps_the_rest) {
  RandomStream random(1, 0);
  Nested net(random);
  const Tensor before = net.inner.named_parameters()[0].tensor.clone();
  net.to(DType::kF16);
  const Tensor after = net.inner.named_parameters()[0].tensor;
  EXPECT_EQ(after.dtype(), DType::kF16);
  EXPECT_TRUE(after.requires_grad());
  EXPECT_EQ(net.scale.dtype(), DType::kF16);  // the module's own reference sees it
  EXPECT_EQ(net.calls.dtype(), DType::kI64);
  EXPECT_FALSE(net.calls.requires_grad());
  for (std::int64_t i = 0; i < before.numel(); ++i) EXPECT_EQ(after.at(i), round_to(DType::kF16, before.at(i)));
}

TEST(Module, refuses_names_that_would_make_paths_ambiguous) {
  RandomStream random(1, 0);
  Nested net(random);
  const Tensor one = Tensor::zeros({1}, DType::kF32);
  EXPECT_THROW(net.register_parameter("scale", one), std::invalid_argument);
  EXPECT_THROW(net.register_buffer("inner", one), std::invalid_argument);
  EXPECT_THROW(net.register_parameter("a.b", one), std::invalid_argument);
  EXPECT_THROW(net.register_parameter("", one), std::invalid_argument);
  EXPECT_THROW(net.register_parameter("undefined", Tensor()), std::invalid_argument);
  EXPECT_THROW(net.register_parameter("indices", Tensor::zeros({1}, DType::kI64)), std::invalid_argument);
}

TEST(Module, randomised_names_are_new_unique_reproducible_and_change_no_number) {
  // given two equal nets and one with names randomised
  RandomStream random(1, 0);
  Nested plain(random), renamed(random), again(random);
  // when
  const auto pairs = renamed.randomise_names(7);
  // then every module, parameter and buffer has an entry: 3 + 5 below the root (fc1 relu1 fc2), 4 inner tensors
  std::map<std::string, std::string> new_name(pairs.begin(), pairs.end());
  EXPECT_EQ(pairs.size(), new_name.size());
  for (const std::string old : {"scale", "calls", "inner", "inner.fc1", "inner.relu1", "inner.fc2", "inner.fc1.weight",
                                "inner.fc1.bias", "inner.fc2.weight", "inner.fc2.bias"}) {
    ASSERT_TRUE(new_name.contains(old)) << old;
    EXPECT_NE(new_name[old], old);
  }
  EXPECT_EQ(pairs.size(), 10u);
  std::set<std::string> new_paths;
  for (const auto& [from, to] : pairs) new_paths.insert(to);
  EXPECT_EQ(new_paths.size(), pairs.size());
  // and the new paths are the ones in use, in the same order, with the same numbers
  const auto before = plain.named_parameters(), after = renamed.named_parameters();
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].path, new_name[before[i].path]);
  EXPECT_EQ(renamed.inner.path(), new_name["inner"]);
  EXPECT_EQ(testing::bytes_of(before), testing::bytes_of(after));
  // and a seed gives the same names again, another seed others
  EXPECT_EQ(again.randomise_names(7), pairs);
  EXPECT_NE(plain.randomise_names(8), pairs);
}

}  // namespace
}  // namespace nanhunt::engine
