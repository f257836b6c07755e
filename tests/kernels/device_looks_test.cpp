// SPDX-License-Identifier: Apache-2.0
// Whether tensors of a device are finite, and what else is read where one is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include "kernels/device_ops.h"
#include "kernels/device_readings.h"
#include "kernels/portable/finite_kernel.h"
#include "nanhunt/dtype.h"
#include "tests/support/emulated_device.h"

namespace nanhunt::kernels {
namespace {

using testing_support::EmulatedDevice;
using Found = std::vector<std::optional<TensorStats>>;

class DeviceLooks : public ::testing::Test {
 protected:
  void open(const ReadingsOptions& options = {}) {
    std::string why;
    readings_ = DeviceReadings::open(device_, options, why);
    ASSERT_NE(readings_, nullptr) << why;
  }
  ~DeviceLooks() override {
    for (const Tensor& t : tensors_) device_.release(t.memory, t.bytes);
  }
  TensorView add(const std::vector<float>& values, std::int64_t stride = 1) {
    Tensor& t = tensors_.emplace_back();
    t.bytes = values.size() * sizeof(float);
    t.memory = device_.allocate(t.bytes);
    t.sizes = {static_cast<std::int64_t>(values.size()) / stride};
    t.strides = {stride};
    device_.to_device(t.memory, values.data(), t.bytes);
    return {t.memory, DType::kF32, t.sizes, t.strides};
  }
  Found look(const std::vector<TensorView>& tensors, std::size_t made) {
    const auto ticket = readings_->look(tensors, made);
    Found found(tensors.size());
    EXPECT_EQ(readings_->wait(ticket, found), ReadingsState::kReady);
    return found;
  }

  struct Tensor {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::vector<std::int64_t> sizes, strides;
  };
  EmulatedDevice device_;
  std::unique_ptr<DeviceReadings> readings_;
  std::deque<Tensor> tensors_;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(DeviceLooks, at_finite_tensors_say_that_and_no_more) {
  open();
  const Found found = look({add({1, 2}), add(std::vector<float>(70'000, 3)), add({5})}, 2);
  for (const std::size_t i : {0u, 1u}) {
    ASSERT_TRUE(found[i]);
    EXPECT_EQ(found[i]->level, StatsLevel::kFinite);
    EXPECT_FALSE(found[i]->any_nonfinite);
  }
  EXPECT_EQ(found[1]->numel, 70'000);
}

TEST_F(DeviceLooks, at_one_that_is_not_finite_bring_statistics_of_all) {
  open();
  std::vector<float> late(70'001, 3);
  late.back() = -kInfinity;
  const Found found = look({add({1, 2}), add(late), add({0, 7})}, 2);
  EXPECT_EQ(found[0]->sum, 3);
  EXPECT_EQ(found[1]->neg_inf, 1);
  EXPECT_EQ(found[1]->first_nonfinite, 70'000);
  EXPECT_EQ(found[2]->zero, 1) << "what was taken says why";
}

TEST_F(DeviceLooks, say_of_each_launch_alone_what_it_holds_however_many_there_were) {
  open();
  const TensorView good = add({1}), bad = add({std::numeric_limits<float>::quiet_NaN()});
  for (std::uint32_t i = 0; i < 3 * cuda::kFiniteGates; ++i) {
    const bool is_bad = i % 7 == 3;
    const Found found = look({is_bad ? bad : good}, 1);
    EXPECT_EQ(found[0]->any_nonfinite, is_bad) << i;
    EXPECT_EQ(found[0]->nan, is_bad ? 1 : 0) << i;
  }
}

TEST_F(DeviceLooks, read_views_with_gaps_alone_and_keep_records_together_at_the_end_of_the_slots) {
  open({.tensors = 8});
  const TensorView gaps = add({1, kInfinity, 2, kInfinity}, 2), good = add({4});
  for (int i = 0; i < 9; ++i) {
    const Found found = look({good, gaps, good}, 3);
    EXPECT_EQ(found[0]->level, StatsLevel::kFinite);
    EXPECT_EQ(found[1]->sum, 3) << "an infinity lies in the gaps";
    EXPECT_FALSE(found[1]->any_nonfinite);
    EXPECT_TRUE(found[2]);
  }
  EXPECT_EQ(readings_->counts().lost, 0U);
}

TEST_F(DeviceLooks, claim_nothing_of_what_was_not_read) {
  open();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TensorView good = add({1}), bad = add({nan}), gaps = add({nan, 1, 2, 1}, 2);
  static_cast<void>(look({bad, bad, bad}, 1));  // records of all three
  const Found found = look({good, gaps, good}, 2);
  EXPECT_EQ(found[1]->nan, 1);
  EXPECT_EQ(found[0]->level, StatsLevel::kFinite);
  // A record that says so little says nothing of what was read for the others' sake.
  EXPECT_EQ(found[2]->level, StatsLevel::kFinite);
  EXPECT_EQ(found[2]->numel, 0);
}

TEST_F(DeviceLooks, without_room_are_counted_as_lost) {
  open({.tensors = 2});
  const TensorView one = add({1});
  const std::vector<TensorView> three = {one, one, one};
  EXPECT_EQ(readings_->look(three, 3), 0U);
  EXPECT_EQ(readings_->look(three, 0), 0U) << "nothing was made";
  EXPECT_EQ(readings_->counts().lost, 3U);
}

// Every code of formats of 8 and 16 bits, in each place of a vector; of wider ones the edges.
TEST(FiniteKernel, takes_for_not_finite_what_the_format_does) {
  const auto is_bad = [](DType dtype, std::uint64_t code, std::size_t bytes, std::size_t at) {
    cuda::Vector v = {};
    std::memcpy(reinterpret_cast<unsigned char*>(&v) + at * bytes, &code, bytes);
    return cuda::not_finite(v, dtype) != 0;
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::size_t bytes = dtype_size(dtype);
    for (std::uint64_t code = 0; code < (1u << 8 * bytes); ++code) {
      const bool expected = !std::isfinite(load_as_f64(dtype, &code));
      for (std::size_t at = 0; at < 16 / bytes; at += bytes == 1 ? 3 : 1) {
        ASSERT_EQ(is_bad(dtype, code, bytes, at), expected) << dtype_name(dtype) << " " << code << " at " << at;
      }
    }
  }
  for (const std::uint64_t code : {0ull, 0x7f7fffffull, 0x7f800000ull, 0xff800000ull, 0x7fc00000ull, 0x00800000ull, 0x80000001ull})
    for (std::size_t at = 0; at < 4; ++at)
      EXPECT_EQ(is_bad(DType::kF32, code, 4, at), (code & 0x7f800000u) == 0x7f800000u) << code;
  for (const std::uint64_t code : {0ull, 0x7fefffffffffffffull, 0x7ff0000000000000ull, 0xfff8000000000000ull, 0x000fffff7ff00000ull})
    for (std::size_t at = 0; at < 2; ++at)
      EXPECT_EQ(is_bad(DType::kF64, code, 8, at), (code >> 52 & 0x7ff) == 0x7ff) << code;
}

}  // namespace
}  // namespace nanhunt::kernels
