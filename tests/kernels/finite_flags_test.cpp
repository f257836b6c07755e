// SPDX-License-Identifier: Apache-2.0
// Flags of the device, level kFinite of its tensor_stats: whether there are NaNs and infinities, and else the largest
// magnitude, against the CPU's counts. Where the first one stands is compared by device_stats_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "kernels/device_ops.h"
#include "kernels/device_readings.h"
#include "tests/kernels/device_stats_support.h"
#include "tests/support/emulated_device.h"

namespace nanhunt {
namespace {

using kernels::DeviceFlags;
using kernels::DeviceReadings;
using kernels::ReadingExtras;
using kernels::ReadingsState;
using testing_support::EmulatedDevice;
using testing_support::EmulatedStats;
using testing_support::kFloats;
using testing_support::OwnedTensor;

DeviceFlags flags_on_the_cpu(const TensorView& tensor) {
  const TensorStats stats = compute_stats(tensor, StatsLevel::kCounts);
  return {stats.nan != 0, stats.inf() != 0, stats.nonfinite() != 0 ? -1 : stats.amax};
}

DeviceFlags flags_of(const TensorView& tensor) {
  std::int64_t repeats = 1;
  const Result<kernels::DeviceStatsView> view = kernels::plan_device_view(tensor, repeats);
  EXPECT_TRUE(view.is_ok()) << view.status().message();
  if (!view) return {true, true};
  const std::uint32_t items = testing_support::items_of(*view);
  DeviceFlags forwards;
  for (const bool backwards : {false, true}) {  // threads
    EmulatedStats stats(1, items);
    stats.run(StatsLevel::kFinite, testing_support::table_of(*view, 0), testing_support::in_order(items), backwards);
    EXPECT_TRUE(stats.is_clean());
    const DeviceFlags found = kernels::flags_of_record(stats.record(0));
    if (!backwards) forwards = found;
    EXPECT_EQ(found, forwards) << "threads the other way round";
  }
  return forwards;
}

std::ostream& print(std::ostream& out, const DeviceFlags& flags) {
  return out << (flags.nan ? "NaN " : "") << (flags.inf ? "infinity " : "") << flags.amax;
}

testing::AssertionResult agrees(const DeviceFlags& got, const DeviceFlags& want) {
  if (got == want) return testing::AssertionSuccess();
  testing::AssertionResult failure = testing::AssertionFailure();
  std::ostringstream text;
  print(text << "got ", got);
  print(text << ", want ", want);
  return failure << text.str();
}

TEST(FiniteFlags, every_code_of_the_short_formats_is_what_the_cpu_says) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::size_t codes = std::size_t{1} << (8 * dtype_size(dtype));
    for (std::size_t code = 0; code < codes; ++code) {
      OwnedTensor one(dtype, std::size_t{1});
      one.set_code(0, code);
      ASSERT_TRUE(agrees(flags_of(one.view()), flags_on_the_cpu(one.view()))) << dtype_name(dtype) << " code " << code;
    }
  }
}

TEST(FiniteFlags, the_edges_of_the_long_formats_are_what_the_cpu_says) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const kernels::FormatCodes& f = kernels::format_codes(dtype);
    for (const std::uint64_t edge : {std::uint64_t{0}, std::uint64_t{f.min_normal}, std::uint64_t{f.first_nonfinite},
                                     std::uint64_t{f.first_nan}, std::uint64_t{f.sign - 1}}) {
      for (const std::uint64_t code : {edge - 1, edge, edge + 1, edge | f.sign, (edge - 1) | f.sign}) {
        OwnedTensor one(dtype, std::size_t{1});
        one.set_code(0, code);
        ASSERT_TRUE(agrees(flags_of(one.view()), flags_on_the_cpu(one.view()))) << dtype_name(dtype) << " code " << code;
      }
    }
  }
}

TEST(FiniteFlags, one_bad_number_is_found_at_every_place_and_the_largest_one_too) {
  for (const DType dtype : kFloats) {
    for (const std::size_t at : {0u, 1u, 15u, 16u, 255u, 4095u, 40000u, 79999u}) {
      for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL, 6.0, -6.0}) {
        OwnedTensor tensor(dtype, std::size_t{80000}, at % 3);  // several work items
        for (std::size_t i = 0; i < tensor.count(); ++i) tensor.set(i, i % 2 == 0 ? 1.5 : -0.75);
        tensor.set(at, value);
        ASSERT_TRUE(agrees(flags_of(tensor.view()), flags_on_the_cpu(tensor.view())))
            << dtype_name(dtype) << " " << value << " at " << at;
      }
    }
  }
}

struct Layout {
  const char* name;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;
};

TEST(FiniteFlags, views_show_what_is_seen_through_them_and_nothing_else) {
  const Layout layouts[] = {{"empty", {0}, {1}, 0},
                            {"empty in one of its dimensions", {3, 0, 2}, {2, 2, 1}, 0},
                            {"a single number", {}, {}, 5},
                            {"every third", {20}, {3}, 1},
                            {"transposed", {8, 5}, {1, 8}, 0},
                            {"broadcast", {7, 4, 6}, {0, 6, 1}, 2},
                            {"all broadcast", {5, 5}, {0, 0}, 3},
                            {"reversed", {10}, {-2}, 40},
                            {"overlapping windows", {9, 4}, {2, 1}, 4},
                            {"a slice of columns", {6, 3}, {9, 1}, 3}};
  for (const DType dtype : kFloats) {
    for (const Layout& layout : layouts) {
      for (std::size_t bad = 0; bad < 60; ++bad) {
        OwnedTensor memory(dtype, std::size_t{60});
        for (std::size_t i = 0; i < 60; ++i) memory.set(i, static_cast<double>(i % 8) / 4 - 1);
        memory.set(bad, bad % 2 == 0 ? std::nan("") : -HUGE_VAL);
        const TensorView view{memory.at(static_cast<std::size_t>(layout.offset)), dtype, layout.sizes, layout.strides};
        ASSERT_TRUE(agrees(flags_of(view), flags_on_the_cpu(view)))
            << dtype_name(dtype) << " " << layout.name << ", bad number at " << bad;
      }
    }
  }
}

TEST(FiniteFlags, integers_have_none) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8, DType::kBool}) {
    OwnedTensor tensor(dtype, std::size_t{100});
    for (std::size_t i = 0; i < 100; ++i) tensor.set_code(i, 0x7f);
    EXPECT_EQ(flags_of(tensor.view()), DeviceFlags{});
  }
}

// Tensors on the emulated device, of any dtype.
class Flags : public testing::Test {
 protected:
  ~Flags() override {
    for (const auto& [memory, bytes] : all_) device_.release(memory, bytes);
  }
  DeviceReadings& readings() {
    std::string why;
    if (readings_ == nullptr) readings_ = DeviceReadings::open(device_, {}, why);
    EXPECT_NE(readings_, nullptr) << why;
    return *readings_;
  }
  TensorView on_device(OwnedTensor& tensor) {
    TensorView view = tensor.view();
    const std::size_t bytes = tensor.count() * dtype_size(view.dtype);
    void* memory = device_.allocate(bytes);
    all_.emplace_back(memory, bytes);
    device_.to_device(memory, view.data, bytes);
    view.data = memory;
    return view;
  }
  EmulatedDevice device_;

 private:
  std::unique_ptr<DeviceReadings> readings_;
  std::vector<std::pair<void*, std::size_t>> all_;
};

TEST_F(Flags, of_many_tensors_come_by_one_launch_and_in_their_order) {
  DeviceReadings& readings = this->readings();
  std::vector<OwnedTensor> tensors;
  for (std::size_t i = 0; i < 64; ++i) {
    tensors.emplace_back(kFloats[i % std::size(kFloats)], 1 + 37 * i);
    for (std::size_t k = 0; k < tensors[i].count(); ++k) tensors[i].set(k, static_cast<double>(k % 5) - 2);
    if (i % 7 == 0) tensors[i].set(tensors[i].count() / 2, std::nan(""));
    if (i % 11 == 0) tensors[i].set_code(0, kernels::format_codes(tensors[i].view().dtype).first_nonfinite);
  }
  std::vector<TensorView> views;
  for (OwnedTensor& tensor : tensors) views.push_back(on_device(tensor));
  const std::uint64_t launches = device_.launches;
  const DeviceReadings::Ticket ticket = readings.enqueue_flags(views);
  EXPECT_EQ(device_.launches, launches + 1);
  ReadingExtras found;
  ASSERT_EQ(readings.wait(ticket, {}, &found), ReadingsState::kReady);
  ASSERT_EQ(found.flags.size(), 64u);
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(found.flags[i].has_value()) << i;
    EXPECT_TRUE(agrees(*found.flags[i], flags_on_the_cpu(tensors[i].view()))) << i;
  }
  EXPECT_EQ(readings.counts().lost, 0u);
}

TEST_F(Flags, come_without_a_wait_of_the_host) {
  device_.delivery.copies_later = 0;
  OwnedTensor good(DType::kF32, {1, -3}), bad(DType::kF16, {1, HUGE_VAL});
  const TensorView views[] = {on_device(good), on_device(bad)};
  const std::uint64_t waits = device_.waits;
  const DeviceReadings::Ticket ticket = readings().enqueue_flags(views);
  ReadingExtras found;
  EXPECT_EQ(readings().poll(ticket, {}, &found), ReadingsState::kPending) << "they are not on their way";
  readings().hand_over();
  ASSERT_EQ(readings().poll(ticket, {}, &found), ReadingsState::kReady);
  EXPECT_EQ(device_.waits, waits);
  ASSERT_EQ(found.flags.size(), 2u);
  EXPECT_EQ(found.flags[0], (DeviceFlags{false, false, 3}));
  EXPECT_EQ(found.flags[1], (DeviceFlags{false, true, -1}));
}

TEST_F(Flags, stand_beside_statistics_that_were_asked_for_before_and_after) {
  OwnedTensor numbers(DType::kF32, {1, 2, -4, std::nan("")});
  const TensorView view = on_device(numbers);
  const DeviceReadings::Ticket before = readings().enqueue(std::span(&view, 1)),
                               flags = readings().enqueue_flags(std::span(&view, 1)),
                               after = readings().enqueue(std::span(&view, 1));
  for (const DeviceReadings::Ticket ticket : {before, after}) {
    std::optional<TensorStats> stats;
    ReadingExtras extras;
    ASSERT_EQ(readings().wait(ticket, std::span(&stats, 1), &extras), ReadingsState::kReady);
    EXPECT_EQ(stats->sum, -1);
    EXPECT_TRUE(extras.flags.empty());
  }
  ReadingExtras found;
  ASSERT_EQ(readings().wait(flags, {}, &found), ReadingsState::kReady);
  EXPECT_EQ(found.flags.at(0), (DeviceFlags{true, false, -1}));
}

TEST_F(Flags, of_a_device_that_fails_are_lost_and_counted) {
  OwnedTensor numbers(DType::kF32, {1, 2});
  const TensorView view = on_device(numbers);
  const DeviceReadings::Ticket ticket = readings().enqueue_flags(std::span(&view, 1));
  readings().hand_over();
  device_.delivery.fails = true;
  ReadingExtras found;
  EXPECT_EQ(readings().poll(ticket, {}, &found), ReadingsState::kLost);
  EXPECT_EQ(readings().counts().lost, 1u);
  EXPECT_EQ(readings().enqueue_flags(std::span(&view, 1)), 0u);
  EXPECT_EQ(readings().counts().lost, 2u);
}

TEST_F(Flags, of_views_with_gaps_take_a_launch_each) {
  OwnedTensor numbers(DType::kBF16, {1, HUGE_VAL, 3, HUGE_VAL});
  const TensorView whole = on_device(numbers);
  const std::int64_t two[] = {2}, gap[] = {2}, rows[] = {3, 2}, broadcast[] = {0, 2};
  const TensorView views[] = {{whole.data, DType::kBF16, two, gap}, whole, {whole.data, DType::kBF16, rows, broadcast}};
  const std::uint64_t launches = device_.launches;
  const DeviceReadings::Ticket ticket = readings().enqueue_flags(views);
  EXPECT_EQ(device_.launches, launches + 3);
  ReadingExtras found;
  ASSERT_EQ(readings().wait(ticket, {}, &found), ReadingsState::kReady);
  ASSERT_EQ(found.flags.size(), 3u);
  EXPECT_EQ(found.flags[0], (DeviceFlags{false, false, 3}));
  EXPECT_EQ(found.flags[1], (DeviceFlags{false, true, -1}));
  EXPECT_EQ(found.flags[2], (DeviceFlags{false, false, 3}));
}

}  // namespace
}  // namespace nanhunt
