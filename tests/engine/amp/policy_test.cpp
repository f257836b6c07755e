// SPDX-License-Identifier: Apache-2.0
// Every op of ops.h behaves under autocast as its row on the region's list says; one without a row as if there were no
// region.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "src/core/ops/autocast/cast_policy.h"
#include "tests/engine/ops/op_cases.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

struct List {
  CastList list;
  AutocastOptions region;
};
constexpr List kLists[] = {
    {CastList::kTorchCuda, {.dtype = DType::kF16}},
    {CastList::kTorchCpu, {.dtype = DType::kF16, .device = AutocastDevice::kCpu}},
    {CastList::kApex, {.dtype = DType::kF16, .lists = CastLists::kApex}},
};

std::string_view name_on_lists(std::string_view op) { return op == "cross_entropy" ? "cross_entropy_loss" : op; }

std::optional<CastPolicy> policy_of(const OpCase& c, CastList list) { return cast_policy(name_on_lists(c.op), list); }

// Not on the list, but made of ops that are.
bool is_composite(const OpCase& c, CastList list) {
  if (policy_of(c, list) || list == CastList::kTorchCpu) return false;
  return c.op == "cross_entropy" || c.op == "scaled_dot_product_attention" || c.label.starts_with("div_number_over");
}

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

Seen run(const OpCase& c, const std::vector<Tensor>& inputs, AutocastOptions options, bool autocast = true) {
  options.enabled = autocast;
  const Autocast region(options);
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
Seen expected(CastPolicy policy, const OpCase& c, DType dtype) {
  if (dtype == DType::kF64) return {DType::kF64, 0};
  const auto all_to = [&](DType to) { return Seen{to, dtype == to ? 0 : floating(c)}; };
  switch (policy) {
    case CastPolicy::kLow:
      return all_to(DType::kF16);
    case CastPolicy::kFp32:
      return all_to(DType::kF32);
    case CastPolicy::kFp32Output:
    case CastPolicy::kAppendDtype:
      return {DType::kF32, 0};
    case CastPolicy::kPromote:
      return {dtype, 0};  // of one dtype: nothing to promote
    case CastPolicy::kBanned:
      break;
  }
  return {};
}

TEST(AutocastPolicy, every_op_behaves_as_its_row_says) {
  for (const auto& [list, region] : kLists) {
    std::size_t listed = 0;
    for (const OpCase& c : op_cases()) {
      const std::optional<CastPolicy> policy = policy_of(c, list);
      if (is_composite(c, list) || policy == CastPolicy::kBanned) continue;
      if (policy) ++listed;
      for (DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
        // given an op on inputs of one format
        const std::vector<Tensor> inputs = inputs_as(c, dtype);
        // when it runs in a region
        const Seen seen = run(c, inputs, region);
        // then its row decides, and without one it runs as it does outside
        const Seen wanted = policy ? expected(*policy, c, dtype) : run(c, inputs, region, /*autocast=*/false);
        EXPECT_EQ(seen.out, wanted.out) << c.label << " of " << dtype_name(dtype) << " on list " << int(list);
        EXPECT_EQ(seen.casts, wanted.casts) << c.label << " of " << dtype_name(dtype) << " on list " << int(list);
      }
    }
    EXPECT_GT(listed, 30U) << int(list);
  }
}

TEST(AutocastPolicy, gradients_arrive_in_the_format_of_the_inputs) {
  for (const OpCase& c : op_cases()) {
    if (!c.differentiable) continue;
    for (const auto& [list, region] : kLists) {
      if (policy_of(c, list) == CastPolicy::kBanned) continue;
      for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
        const std::vector<Tensor> inputs = inputs_as(c, dtype);
        Tensor out;
        {
          AutocastOptions options = region;
          if (dtype == DType::kBF16) options.dtype = DType::kBF16;
          const Autocast autocast(options);
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
}

TEST(AutocastPolicy, a_composite_casts_through_its_parts) {
  for (const OpCase& c : op_cases()) {
    if (c.op != "cross_entropy" && !c.label.starts_with("div_number_over")) continue;
    EXPECT_FALSE(policy_of(c, CastList::kTorchCuda)) << c.op;
    EXPECT_EQ(run(c, inputs_as(c, DType::kF16), kLists[0].region).out, DType::kF32) << c.label;
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

TEST(AutocastPolicy, on_the_cpu_tensors_that_are_joined_promote) {
  const auto of = [](DType dtype) { return Tensor::full({2}, 2, dtype); };
  const Autocast region({.device = AutocastDevice::kCpu});
  EXPECT_EQ(cat({of(DType::kBF16), of(DType::kF32)}).dtype(), DType::kF32);
  EXPECT_EQ(cat({of(DType::kBF16), of(DType::kBF16)}).dtype(), DType::kBF16);
  EXPECT_EQ(cat({of(DType::kF64), of(DType::kF32)}).dtype(), DType::kF64) << "fp64 is left alone";
  EXPECT_THROW(cat({of(DType::kF16), of(DType::kF32)}), std::invalid_argument) << "the other 16-bit format";
  const Autocast off({.enabled = false, .device = AutocastDevice::kCpu});
  EXPECT_EQ(cat({of(DType::kF16), of(DType::kF32)}).dtype(), DType::kF32);
}

TEST(AutocastPolicy, ops_that_write_in_place_never_cast) {
  for (const OpCase& c : inplace_cases()) {
    for (DType dtype : {DType::kF16, DType::kF32}) {
      for (const auto& [list, region] : kLists) {
        const Seen seen = run(c, inputs_as(c, dtype), region);
        EXPECT_EQ(seen.out, dtype) << c.label;
        EXPECT_EQ(seen.casts, 0) << c.label;
        EXPECT_FALSE(policy_of(c, list)) << c.op;
      }
    }
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
