// SPDX-License-Identifier: Apache-2.0
// Every op of ops.h behaves under autocast as its row in the table says; one without a row as if there were no region.
#include "src/engine/amp/policy.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "tests/engine/ops/op_cases.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

using amp::Policy;

// Not intercepted, but made of ops that are.
bool is_composite(const OpCase& c) { return c.op == "cross_entropy" || c.label.starts_with("div_number_over"); }

// The inputs of a case in another format; only those that wanted a gradient still do.
std::vector<Tensor> inputs_as(const OpCase& c, DType dtype) {
  std::vector<Tensor> out;
  for (const Tensor& input : c.inputs) {
    if (!is_floating(input.dtype())) {
      out.push_back(input);
      continue;
    }
    Tensor copy = Tensor::zeros(input.sizes(), dtype);
    copy.copy_from(input);
    out.push_back(copy.set_requires_grad(input.requires_grad()));
  }
  return out;
}

struct Seen {
  DType out = DType::kBool;
  std::ptrdiff_t casts = 0;
};

Seen run(const OpCase& c, const std::vector<Tensor>& inputs, bool autocast, CastLists lists = CastLists::kTorch) {
  const Autocast region({.enabled = autocast, .lists = lists});
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  Seen seen;
  seen.out = c.call(inputs).dtype();
  seen.casts = std::count_if(recorder.lines.begin(), recorder.lines.end(),
                             [](const std::string& line) { return line.find("_to_copy") != std::string::npos; });
  return seen;
}

std::ptrdiff_t floating(const OpCase& c) {
  return std::count_if(c.inputs.begin(), c.inputs.end(), [](const Tensor& x) { return is_floating(x.dtype()); });
}

// What the policy makes of inputs that are all of `dtype`.
Seen expected(Policy policy, const OpCase& c, DType dtype) {
  if (dtype == DType::kF64) return {DType::kF64, 0};
  const auto all_to = [&](DType to) { return Seen{to, dtype == to ? 0 : floating(c)}; };
  switch (policy) {
    case Policy::kLow:
      return all_to(DType::kF16);
    case Policy::kFp32:
      return all_to(DType::kF32);
    case Policy::kFp32Output:
    case Policy::kAppendDtype:
      return {DType::kF32, 0};
    case Policy::kPromote:
      return {dtype, 0};  // of one dtype: nothing to promote
  }
  return {};
}

TEST(AutocastPolicy, every_op_behaves_as_its_row_says) {
  for (const OpCase& c : op_cases()) {
    if (is_composite(c)) continue;
    const std::optional<Policy> policy = amp::policy_of(c.op);
    for (DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
      // given an op on inputs of one format
      const std::vector<Tensor> inputs = inputs_as(c, dtype);
      // when it runs in a region
      const Seen seen = run(c, inputs, /*autocast=*/true);
      // then its row decides, and without one it runs as it does outside
      const Seen wanted = policy ? expected(*policy, c, dtype) : run(c, inputs, /*autocast=*/false);
      EXPECT_EQ(seen.out, wanted.out) << c.label << " of " << dtype_name(dtype);
      EXPECT_EQ(seen.casts, wanted.casts) << c.label << " of " << dtype_name(dtype);
    }
  }
}

TEST(AutocastPolicy, every_op_behaves_as_its_row_of_apex_says) {
  for (const OpCase& c : op_cases()) {
    // Attention has no row: its parts do.
    if (c.label.starts_with("div_number_over") || c.op == "scaled_dot_product_attention") continue;
    const std::optional<Policy> policy = amp::policy_of(c.op, CastLists::kApex);
    for (DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
      const std::vector<Tensor> inputs = inputs_as(c, dtype);
      const Seen seen = run(c, inputs, /*autocast=*/true, CastLists::kApex);
      const Seen wanted = policy ? expected(*policy, c, dtype) : run(c, inputs, /*autocast=*/false);
      EXPECT_EQ(seen.out, wanted.out) << c.label << " of " << dtype_name(dtype);
      EXPECT_EQ(seen.casts, wanted.casts) << c.label << " of " << dtype_name(dtype);
    }
  }
}

TEST(AutocastPolicy, gradients_arrive_in_the_format_of_the_inputs) {
  for (const OpCase& c : op_cases()) {
    if (!c.differentiable) continue;
    for (const auto& [dtype, lists] :
         {std::pair(DType::kF16, CastLists::kTorch), std::pair(DType::kBF16, CastLists::kTorch),
          std::pair(DType::kF32, CastLists::kTorch), std::pair(DType::kF16, CastLists::kApex),
          std::pair(DType::kF32, CastLists::kApex)}) {
      const std::vector<Tensor> inputs = inputs_as(c, dtype);
      Tensor out;
      {
        const Autocast region({.dtype = dtype == DType::kBF16 ? DType::kBF16 : DType::kF16, .lists = lists});
        out = c.call(inputs);
      }
      sum(out).backward();
      for (const Tensor& input : inputs) {
        if (!input.requires_grad()) continue;
        ASSERT_TRUE(input.grad().defined()) << c.label;
        EXPECT_EQ(input.grad().dtype(), dtype) << c.label;
      }
    }
  }
}

TEST(AutocastPolicy, a_composite_casts_through_its_parts) {
  const std::vector<OpCase> cases = op_cases();
  for (const OpCase& c : cases) {
    if (!is_composite(c)) continue;
    EXPECT_FALSE(amp::policy_of(c.op)) << c.op;
    EXPECT_EQ(run(c, inputs_as(c, DType::kF16), true).out, DType::kF32) << c.label;
  }
}

TEST(AutocastPolicy, the_table_names_each_op_once_and_only_ops_that_exist) {
  std::set<std::string> ops;
  for (const OpCase& c : op_cases()) ops.insert(c.op);
  for (const CastLists lists : {CastLists::kTorch, CastLists::kApex}) {
    std::set<std::string> named;
    for (const amp::PolicyRow& row : amp::policy_table(lists)) {
      EXPECT_TRUE(named.insert(std::string(row.op)).second) << row.op;
      EXPECT_EQ(ops.count(std::string(row.op)), 1U) << row.op;
    }
  }
}

TEST(AutocastPolicy, a_promoting_op_takes_the_widest_but_fp64_and_refuses_the_other_16_bit_format) {
  const auto of = [](DType dtype) { return Tensor::full({2}, 2, dtype); };
  const Autocast region;
  EXPECT_EQ(addcmul(of(DType::kF16), of(DType::kF32), of(DType::kF16)).dtype(), DType::kF32);
  EXPECT_EQ(addcdiv(of(DType::kF16), of(DType::kF16), of(DType::kF16)).dtype(), DType::kF16);
  EXPECT_THROW(addcmul(of(DType::kBF16), of(DType::kF32), of(DType::kF32)), std::invalid_argument);
  EXPECT_THROW(addcmul(of(DType::kF64), of(DType::kF32), of(DType::kF32)), std::invalid_argument);  // stays fp64
}

TEST(AutocastPolicy, ops_that_write_in_place_never_cast) {
  for (const OpCase& c : inplace_cases()) {
    for (DType dtype : {DType::kF16, DType::kF32}) {
      const Seen seen = run(c, inputs_as(c, dtype), /*autocast=*/true);
      EXPECT_EQ(seen.out, dtype) << c.label;
      EXPECT_EQ(seen.casts, 0) << c.label;
      EXPECT_FALSE(amp::policy_of(c.op)) << c.op;
    }
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
