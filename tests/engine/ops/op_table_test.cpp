// SPDX-License-Identifier: Apache-2.0
// The analyzer's op table knows every op that the engine runs: without a row the reason for what an op did stays open.
#include "src/core/ops/op_info.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "nanhunt/engine/hooks.h"
#include "tests/engine/ops/op_cases.h"

namespace nanhunt::engine::testing {
namespace {

struct Names : Observer {
  std::set<std::string> seen;
  void on_op(const OpCall& call) noexcept override { seen.insert(std::string(call.op)); }
};

TEST(OpTable, knows_every_op_of_the_engine_and_its_gradient) {
  // given: the names under which all ops and their gradients are observed
  Names names;
  const HookHandle handle = add_observer(names);
  for (auto cases : {op_cases, inplace_cases}) {
    for (const OpCase& c : cases()) {
      const Tensor out = c.call(c.inputs);
      if (c.differentiable) sum(out).backward();
    }
  }
  ASSERT_GT(names.seen.size(), 60U);
  // then
  for (const std::string& name : names.seen) EXPECT_TRUE(op_info(name).known()) << name;
}

TEST(OpTable, takes_pooling_and_joining_for_handing_values_on_and_sums_for_sums) {
  for (const char* name : {"cat", "max_pool2d_with_indices", "upsample_nearest2d"}) {
    EXPECT_TRUE(op_info(name).has(kSelects)) << name;
    EXPECT_FALSE(op_info(name).has(kArithmetic)) << name;
    EXPECT_EQ(op_info(name).bound, Bound::kCopy) << name;
  }
  for (const char* name : {"convolution", "native_batch_norm", "avg_pool2d", "mse_loss", "convolution_backward"}) {
    EXPECT_TRUE(op_info(name).has(kAccumulates)) << name;
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
