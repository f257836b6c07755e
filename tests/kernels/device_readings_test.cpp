// SPDX-License-Identifier: Apache-2.0
// Readings on the emulated device, which is late: nothing may depend on results being there at once, or at all.
#include "kernels/device_readings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <numeric>

#include "kernels/device_ops.h"
#include "tests/kernels/stats_agree.h"
#include "tests/support/emulated_device.h"

namespace nanhunt::kernels {
namespace {

using testing_support::EmulatedDevice;
using Found = std::vector<std::optional<TensorStats>>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// fp32 tensors on the emulated device.
class Rig {
 public:
  explicit Rig(const ReadingsOptions& options = {}) {
    std::string why;
    readings = DeviceReadings::open(device, options, why);
    EXPECT_NE(readings, nullptr) << why;
  }
  ~Rig() {
    for (const Tensor& t : tensors_) device.release(t.memory, t.values.size() * sizeof(float));
  }

  TensorView add(std::vector<float> values) {
    Tensor tensor;
    tensor.values = std::move(values);
    tensor.memory = device.allocate(tensor.values.size() * sizeof(float));
    tensor.sizes = {static_cast<std::int64_t>(tensor.values.size())};
    tensors_.push_back(std::move(tensor));
    write(tensors_.size() - 1, tensors_.back().values);
    const Tensor& kept = tensors_.back();
    return {kept.memory, DType::kF32, kept.sizes, kOne};
  }
  void write(std::size_t i, const std::vector<float>& values) {
    device.to_device(tensors_[i].memory, values.data(), values.size() * sizeof(float));
  }
  std::string disagreement(const TensorStats& got, const std::vector<float>& values, StatsLevel level) const {
    const std::int64_t size = static_cast<std::int64_t>(values.size());
    return testing_support::disagreement(got, compute_stats({values.data(), DType::kF32, {&size, 1}, kOne}, level));
  }

  EmulatedDevice device;
  std::unique_ptr<DeviceReadings> readings;

 private:
  struct Tensor {
    std::vector<float> values;
    void* memory = nullptr;
    std::vector<std::int64_t> sizes;
  };
  static constexpr std::int64_t kStride[1] = {1};
  static constexpr std::span<const std::int64_t> kOne{kStride};
  std::deque<Tensor> tensors_;
};

std::vector<float> ramp(int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), -3.0f);
  return values;
}

TEST(DeviceReadings, are_the_statistics_of_the_cpu_of_what_was_there_when_they_were_asked_for) {
  Rig rig;
  const std::vector<float> first = ramp(100);
  const std::vector<float> second = {1, kInfinity, 3};
  const std::vector<TensorView> tensors = {rig.add(first), rig.add(second), rig.add({})};
  const std::uint64_t launches = rig.device.launches;
  const auto ticket = rig.readings->enqueue(tensors);
  EXPECT_EQ(rig.device.launches, launches + 1);
  rig.write(0, ramp(100));
  rig.write(1, {0, 0, 0});  // too late to be seen
  Found found(3);
  ASSERT_EQ(rig.readings->wait(ticket, found), ReadingsState::kReady);
  EXPECT_EQ(rig.disagreement(*found[0], first, StatsLevel::kSums), "");
  EXPECT_EQ(rig.disagreement(*found[1], second, StatsLevel::kSums), "");
  EXPECT_EQ(found[1]->first_nonfinite, 1);
  EXPECT_EQ(found[2]->numel, 0);
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kLost) << "a ticket is good for once";
}

TEST(DeviceReadings, wait_for_nothing_and_are_there_once_the_run_has_waited_for_its_own_sake) {
  Rig rig;
  const std::vector<TensorView> tensors = {rig.add(ramp(10))};
  Found found(1);
  const auto ticket = rig.readings->enqueue(tensors);
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kPending) << "not handed over";
  rig.device.wait();
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kPending) << "not handed over";
  rig.readings->hand_over();
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kPending);
  EXPECT_EQ(rig.device.waits, 1U);
  rig.device.wait();  // the run's
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kReady);
  EXPECT_FALSE(found[0]->any_nonfinite);
  EXPECT_EQ(rig.device.waits, 2U);
  EXPECT_EQ(rig.readings->counts().waits, 0U);
}

TEST(DeviceReadings, come_late_and_in_order_when_several_steps_are_under_way) {
  Rig rig({.copies = 3});
  rig.device.delivery = {.after_waits = false, .copies_later = 2};
  const std::vector<TensorView> tensors = {rig.add({0})};
  std::vector<DeviceReadings::Ticket> tickets;
  Found found(1);
  std::vector<double> seen;
  for (int step = 0; step < 8; ++step) {
    rig.write(0, {static_cast<float>(step)});
    tickets.push_back(rig.readings->enqueue(tensors));
    rig.readings->hand_over();
    if (rig.readings->poll(tickets[seen.size()], found) == ReadingsState::kReady) seen.push_back(found[0]->sum);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(rig.readings->counts().lost, 0U);
  EXPECT_EQ(rig.device.waits, 0U);
}

TEST(DeviceReadings, that_never_come_are_lost_when_there_is_no_room_for_more_and_nobody_hangs) {
  Rig rig({.tensors = 4, .copies = 2});
  rig.device.delivery = {.never = true};
  const std::vector<TensorView> tensors = {rig.add({1}), rig.add({2})};
  Found found(2);
  std::vector<DeviceReadings::Ticket> tickets;
  for (int step = 0; step < 4; ++step) {
    tickets.push_back(rig.readings->enqueue(tensors));
    rig.readings->hand_over();
  }
  EXPECT_EQ(rig.readings->poll(tickets[0], found), ReadingsState::kPending);
  EXPECT_EQ(rig.readings->poll(tickets[2], found), ReadingsState::kLost);
  EXPECT_EQ(rig.readings->counts().lost, 4U);
  EXPECT_EQ(rig.readings->wait(tickets[0], found), ReadingsState::kLost);
  EXPECT_FALSE(found[0].has_value());
  EXPECT_EQ(rig.readings->counts().lost, 6U);
  EXPECT_FALSE(rig.readings->counts().first_loss.empty());
}

TEST(DeviceReadings, of_a_device_that_fails_are_lost) {
  Rig rig;
  const std::vector<TensorView> tensors = {rig.add({1})};
  Found found(1);
  const auto ticket = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  rig.device.delivery.fails = true;
  EXPECT_EQ(rig.readings->poll(ticket, found), ReadingsState::kLost);
  EXPECT_EQ(rig.readings->enqueue(tensors), 0U);
  EXPECT_EQ(rig.readings->poll(0, found), ReadingsState::kLost);
  EXPECT_EQ(rig.readings->counts().lost, 2U);
}

TEST(DeviceReadings, keep_their_places_when_slots_are_used_again_and_again) {
  Rig rig({.tensors = 7, .copies = 2});
  std::vector<TensorView> tensors;
  for (int i = 0; i < 3; ++i) tensors.push_back(rig.add({static_cast<float>(i), 10}));
  Found found(3);
  for (int step = 0; step < 50; ++step) {
    rig.write(0, {static_cast<float>(step), 10});
    const auto ticket = rig.readings->enqueue(tensors);
    ASSERT_EQ(rig.readings->wait(ticket, found), ReadingsState::kReady) << step;
    EXPECT_EQ(found[0]->sum, step + 10);
    EXPECT_EQ(found[1]->sum, 11);
    EXPECT_EQ(found[2]->sum, 12);
  }
  EXPECT_EQ(rig.readings->counts().delivered, 150U);
  EXPECT_EQ(rig.readings->counts().lost, 0U);
}

TEST(DeviceReadings, that_there_is_no_memory_for_are_had_later_by_who_asks_and_lost_by_who_waits) {
  Rig rig({.tensors = 2});
  const std::vector<TensorView> tensors = {rig.add({1}), rig.add({2})};
  Found found(2);
  const auto asked = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  rig.device.wait();
  rig.device.delivery.no_memory = 1;
  EXPECT_EQ(rig.readings->poll(asked, found), ReadingsState::kPending);
  EXPECT_EQ(rig.readings->poll(asked, found), ReadingsState::kReady);
  EXPECT_EQ(rig.readings->counts().delivered, 2U);
  // Whoever waits has no second chance, and the places are free.
  const auto waited = rig.readings->enqueue(tensors);
  rig.device.delivery.no_memory = 1;
  EXPECT_EQ(rig.readings->wait(waited, found), ReadingsState::kLost);
  EXPECT_EQ(rig.readings->counts().lost, 2U);
  const auto fresh = rig.readings->enqueue(tensors);
  EXPECT_EQ(rig.readings->wait(fresh, found), ReadingsState::kReady);
  EXPECT_EQ(rig.readings->counts().lost, 2U) << "counted once";
  EXPECT_EQ(rig.readings->counts().delivered, 4U);
}

TEST(DeviceReadings, nobody_fetched_give_way_to_new_ones_and_are_counted) {
  Rig rig({.tensors = 4});
  const std::vector<TensorView> tensors = {rig.add({1}), rig.add({2})};
  Found found(2);
  const auto old = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  const auto dropped = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  rig.readings->drop(dropped);
  rig.device.wait();
  const auto fresh = rig.readings->enqueue(tensors);
  EXPECT_EQ(rig.readings->poll(old, found), ReadingsState::kLost);
  EXPECT_EQ(rig.readings->wait(fresh, found), ReadingsState::kReady);
  EXPECT_EQ(rig.readings->counts().lost, 2U);
  EXPECT_EQ(rig.readings->counts().dropped, 2U);
}

TEST(DeviceReadings, put_a_copy_off_when_all_are_under_way_and_lose_nothing) {
  Rig rig({.copies = 1});
  rig.device.delivery = {.after_waits = true, .copies_later = -1};
  const std::vector<TensorView> tensors = {rig.add({5})};
  Found found(1);
  const auto first = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  const auto second = rig.readings->enqueue(tensors);
  rig.readings->hand_over();
  EXPECT_EQ(rig.readings->counts().copies_put_off, 1U);
  EXPECT_EQ(rig.readings->wait(second, found), ReadingsState::kReady) << "its copy waits for the first one's";
  EXPECT_EQ(rig.readings->poll(first, found), ReadingsState::kReady);
  EXPECT_EQ(rig.readings->counts().lost, 0U);
}

TEST(DeviceReadings, take_views_with_gaps_and_broadcasts_and_say_what_cannot_be_read) {
  Rig rig;
  const std::vector<float> values = ramp(100);
  const TensorView whole = rig.add(values);
  const std::int64_t sizes[2] = {5, 4};
  const std::int64_t gaps[2] = {10, 1};
  const std::int64_t repeated[2] = {1, 0};
  const TensorView with_gaps{whole.data, DType::kF32, sizes, gaps};
  const TensorView broadcast{whole.data, DType::kF32, sizes, repeated};
  const TensorView gone{nullptr, DType::kF32, sizes, gaps};
  const std::vector<TensorView> tensors = {with_gaps, gone, whole, broadcast};
  Found found(4);
  const auto ticket = rig.readings->enqueue(tensors);
  ASSERT_EQ(rig.readings->wait(ticket, found), ReadingsState::kReady);
  const auto expected = [&](TensorView view) {
    view.data = values.data();
    return compute_stats(view, StatsLevel::kSums);
  };
  EXPECT_EQ(testing_support::disagreement(*found[0], expected(with_gaps)), "");
  EXPECT_FALSE(found[1].has_value());
  EXPECT_EQ(testing_support::disagreement(*found[2], expected(whole)), "");
  EXPECT_EQ(testing_support::disagreement(*found[3], expected(broadcast)), "");
  EXPECT_EQ(rig.readings->counts().lost, 1U);
  EXPECT_EQ(rig.readings->counts().delivered, 3U);
}

TEST(DeviceReadings, of_more_tensors_than_one_launch_takes_are_cut_into_several) {
  Rig rig({.tensors = 3000});
  std::vector<TensorView> tensors;
  for (int i = 0; i < 2000; ++i) tensors.push_back(rig.add({static_cast<float>(i)}));
  for (int round = 0; round < 3; ++round) {  // slots wrap in the middle of a launch
    Found found(tensors.size());
    const auto ticket = rig.readings->enqueue(tensors);
    ASSERT_EQ(rig.readings->wait(ticket, found), ReadingsState::kReady);
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(found[static_cast<std::size_t>(i)]->sum, i);
  }
}

TEST(DeviceReadings, that_cannot_be_had_say_why) {
  EmulatedDevice device;
  device.delivery.fails = true;
  std::string why;
  EXPECT_EQ(DeviceReadings::open(device, {}, why), nullptr);
  EXPECT_EQ(why, "the emulated device fails");
}

TEST(OnGpuReadings, are_there_once_the_run_has_waited_and_wait_for_nothing_themselves) {
  std::string why;
  DeviceBackend* gpu = cuda_backend(0, why);
  if (gpu == nullptr) GTEST_SKIP() << "no GPU: " << why;
  const auto readings = DeviceReadings::open(*gpu, {.tensors = 64}, why);
  ASSERT_NE(readings, nullptr) << why;
  const std::vector<float> values = ramp(70001);
  const std::size_t bytes = values.size() * sizeof(float);
  void* memory = gpu->allocate(bytes);
  gpu->to_device(memory, values.data(), bytes);
  const std::int64_t size = 70001;
  const std::int64_t stride = 1;
  const TensorView tensor{memory, DType::kF32, {&size, 1}, {&stride, 1}};
  const std::vector<TensorView> tensors(3, tensor);
  Found found(3);
  for (int round = 0; round < 100; ++round) {
    const auto ticket = readings->enqueue(tensors);
    readings->hand_over();
    gpu->wait();
    ASSERT_EQ(readings->poll(ticket, found), ReadingsState::kReady);
    for (const auto& one : found) {
      ASSERT_EQ(testing_support::disagreement(
                    *one, compute_stats({values.data(), DType::kF32, {&size, 1}, {&stride, 1}}, StatsLevel::kSums)),
                "");
    }
  }
  EXPECT_EQ(readings->counts().waits, 0U);
  EXPECT_EQ(readings->counts().lost, 0U);
  gpu->release(memory, bytes);
}

}  // namespace
}  // namespace nanhunt::kernels
