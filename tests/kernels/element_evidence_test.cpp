// SPDX-License-Identifier: Apache-2.0
// What elements say of an op, taken on the emulated device: against a walk over the same elements here.
#include "kernels/element_evidence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device_readings.h"
#include "tests/support/emulated_device.h"

namespace nanhunt::kernels {
namespace {

using testing_support::EmulatedDevice;
using testing_support::Order;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Rig {
  EmulatedDevice device;
  std::unique_ptr<DeviceReadings> readings;
  std::vector<std::pair<void*, std::size_t>> memory;
  std::vector<std::vector<std::int64_t>> shapes;

  Rig() {
    std::string why;
    readings = DeviceReadings::open(device, {}, why);
    EXPECT_NE(readings, nullptr) << why;
    shapes.reserve(64);
  }
  ~Rig() {
    for (const auto& [at, bytes] : memory) device.release(at, bytes);
  }
  void* put(DType dtype, const std::vector<double>& values) {
    std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
      store_from_f64(dtype, bytes.data() + i * dtype_size(dtype), values[i]);
    void* at = device.allocate(bytes.size());
    device.to_device(at, bytes.data(), bytes.size());
    memory.emplace_back(at, bytes.size());
    return at;
  }
  // Six elements in two rows of three.
  EvidenceCall call(DType dtype, const std::vector<double>& out) {
    EvidenceCall call;
    call.walk = {.count = 6, .dims = 2, .sizes = {2, 3}};
    call.out = array(dtype, out, 3, 1);
    return call;
  }
  DeviceArray array(DType dtype, const std::vector<double>& values, std::int64_t row, std::int64_t column) {
    DeviceArray array;
    array.dtype = dtype;
    array.data = put(dtype, values);
    array.strides[0] = row;
    array.strides[1] = column;
    return array;
  }
  DeviceEvidence take(const EvidenceCall& call) {
    shapes.push_back({6});
    shapes.push_back({1});
    const TensorView view = {call.out.data, call.out.dtype, shapes[shapes.size() - 2], shapes.back()};
    const auto ticket = readings->enqueue({&view, 1}, {&call, 1});
    std::optional<TensorStats> stats;
    ReadingExtras found;
    EXPECT_EQ(readings->wait(ticket, {&stats, 1}, &found), ReadingsState::kReady);
    EXPECT_TRUE(stats && found.findings.size() == 1 && found.findings[0] && !found.updates);
    return found.findings.at(0).value_or(DeviceEvidence{});
  }
};

TEST(DeviceEvidence, are_the_first_infinity_and_the_first_nan_and_what_met_there) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const Order order : {Order::kForwards, Order::kBackwards}) {
      SCOPED_TRACE(dtype_name(dtype));
      Rig rig;
      rig.device.order = order;
      EvidenceCall call = rig.call(dtype, {1, 2, kNan, -kInf, kNan, kInf});
      call.inputs = 3;
      call.in[0] = rig.array(dtype, {1, 2, 3, 4, 5, 6}, 1, 2);    // transposed
      call.in[1] = rig.array(DType::kF32, {10, 20, 30}, 0, 1);    // a row for all
      call.in[2] = {.is_number = true, .number = 7};
      const DeviceEvidence found = rig.take(call);
      EXPECT_EQ(found.first_inf, 3U);
      EXPECT_EQ(found.at_inf[0], -kInf);
      EXPECT_EQ(found.at_inf[1], 2);  // row 1, column 0 lies at 1
      EXPECT_EQ(found.at_inf[2], 10);
      EXPECT_EQ(found.at_inf[3], 7);
      EXPECT_EQ(found.first_nan, 2U);
      EXPECT_TRUE(std::isnan(found.at_nan[0]));
      EXPECT_EQ(found.at_nan[1], 5);
      EXPECT_EQ(found.at_nan[2], 30);
    }
  }
}

TEST(DeviceEvidence, of_finite_elements_are_none) {
  Rig rig;
  const DeviceEvidence found = rig.take(rig.call(DType::kF32, {1, 0, 3, -4, 5, 6}));
  EXPECT_EQ(found.first_inf, kNoIndex);
  EXPECT_EQ(found.first_nan, kNoIndex);
  EXPECT_EQ(found.flushed, 0U);
}

TEST(DeviceEvidence, count_zeros_that_no_factor_excuses) {
  Rig rig;
  EvidenceCall call = rig.call(DType::kF16, {0, 0, 0, -0.0, 5, 0});
  call.inputs = 2;
  call.in[0] = rig.array(DType::kF16, {1, 0, 2, 0x1p-24, 1, kNan}, 3, 1);
  call.in[1] = rig.array(DType::kF32, {1, 1, kInf, 2, 1, 0}, 3, 1);
  EXPECT_EQ(rig.take(call).flushed, 0U) << "nobody asked";
  call.counts_flushed = true;
  EXPECT_EQ(rig.take(call).flushed, 5U);
  call.must_be_nonzero = 1;
  EXPECT_EQ(rig.take(call).flushed, 4U);
  call.must_be_nonzero = 3;
  EXPECT_EQ(rig.take(call).flushed, 3U);
  call.must_be_nonzero = 1;
  call.must_not_be_inf = 2;
  EXPECT_EQ(rig.take(call).flushed, 3U);
}

TEST(DeviceEvidence, are_lost_with_the_statistics_that_they_go_by) {
  Rig rig;
  EvidenceCall call = rig.call(DType::kF32, {1, 2, 3, 4, 5, kInf});
  call.of = 5;
  const std::vector<std::int64_t> six = {6}, one = {1};
  const TensorView view = {call.out.data, DType::kF32, six, one};
  const auto ticket = rig.readings->enqueue({&view, 1}, {&call, 1});
  std::optional<TensorStats> stats;
  ReadingExtras found;
  ASSERT_EQ(rig.readings->wait(ticket, {&stats, 1}, &found), ReadingsState::kReady);
  EXPECT_TRUE(stats);
  ASSERT_EQ(found.findings.size(), 1U);
  EXPECT_FALSE(found.findings[0]);
  EXPECT_EQ(rig.readings->counts().lost, 1U);
}

}  // namespace
}  // namespace nanhunt::kernels
