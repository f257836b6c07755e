// SPDX-License-Identifier: Apache-2.0
// What of the device's side can be asked without a GPU, and a short look at a real one where there is one. The long
// look is tools/gpu_check.
#include "kernels/device_query.h"
#include "kernels/device_session.h"
#include "tests/gpu/device_tensors.h"

namespace nanhunt {
namespace {

std::string why_no_gpu() {
  std::string why;
  static_cast<void>(kernels::query_devices(why));
  return why;
}

TEST(DeviceGpu, what_needs_a_gpu_says_why_there_is_none) {
  const std::string why = why_no_gpu();
  if (why.empty()) GTEST_SKIP() << "there is a GPU";
  const auto session = kernels::DeviceSession::open(0);
  EXPECT_EQ(session.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(session.status().message(), why);
  for (int twice = 0; twice < 2; ++twice) {
    const auto stats = kernels::DeviceStats::create({});
    EXPECT_EQ(stats.status().code(), StatusCode::kUnsupported);
    EXPECT_FALSE(stats.status().message().empty());
  }
}

TEST(OnGpu, statistics_are_those_of_the_cpu) {
  const std::string why = why_no_gpu();
  if (!why.empty()) GTEST_SKIP() << "no GPU: " << why;
  auto bench = gpu::Bench::open(1, std::uint64_t{1} << 12);
  ASSERT_TRUE(bench.is_ok()) << bench.status().message();
  for (const DType dtype : gpu::kAllTypes) {
    testing_support::OwnedTensor tensor = gpu::make_tensor(dtype, 70001, gpu::Content::kOdd, 3);
    unsigned char* memory = (*bench)->upload(tensor);
    ASSERT_NE(memory, nullptr);
    const TensorView host = tensor.view();
    const TensorStats got = (*bench)->run({memory, dtype, host.sizes, host.strides});
    ASSERT_TRUE((*bench)->last_error.is_ok()) << (*bench)->last_error.message();
    EXPECT_EQ(testing_support::disagreement(got, compute_stats(host, StatsLevel::kSums)), "") << dtype_name(dtype);
    (*bench)->session->release(memory);
  }
}

}  // namespace
}  // namespace nanhunt
