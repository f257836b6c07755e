// SPDX-License-Identifier: Apache-2.0
// Histograms of ops in which bad numbers began, taken on the emulated device: those of the CPU, there and nowhere
// else.
#include "kernels/origin_histograms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
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

struct Tensor {
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> sizes, strides;
  TensorView on_device, on_host;
};

using Histograms = std::vector<std::optional<TensorStats>>;

struct Rig {
  EmulatedDevice device;
  std::unique_ptr<DeviceReadings> readings;
  std::deque<Tensor> tensors;
  std::vector<std::optional<DeviceEvidence>> found;  // of the last run

  explicit Rig(std::size_t words = 20'000) {
    std::string why;
    readings = DeviceReadings::open(device, {.tensors = 256, .references = 20, .arena_words = words}, why);
    EXPECT_NE(readings, nullptr) << why;
  }
  ~Rig() {
    for (const Tensor& t : tensors) device.release(const_cast<void*>(t.on_device.data), t.bytes.size());
  }
  const Tensor& add(DType dtype, const std::vector<double>& values, std::vector<std::int64_t> sizes = {},
                    std::vector<std::int64_t> strides = {1}) {
    Tensor& t = tensors.emplace_back();
    t.bytes.resize(values.size() * dtype_size(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
      store_from_f64(dtype, t.bytes.data() + i * dtype_size(dtype), values[i]);
    t.sizes = sizes.empty() ? std::vector<std::int64_t>{static_cast<std::int64_t>(values.size())} : std::move(sizes);
    t.strides = std::move(strides);
    void* at = device.allocate(t.bytes.size());
    device.to_device(at, t.bytes.data(), t.bytes.size());
    t.on_device = {at, dtype, t.sizes, t.strides};
    t.on_host = {t.bytes.data(), dtype, t.sizes, t.strides};
    return t;
  }
  // An op with these inputs, known under references 1, 2, ..., and an output.
  Histograms run(const std::vector<const Tensor*>& inputs, const Tensor& out,
                 std::span<const EvidenceCall> findings = {}) {
    std::vector<TensorView> views;
    std::vector<std::uint32_t> references;
    OriginCall call;
    if (!findings.empty()) call.decided_by = static_cast<std::uint32_t>(findings.size() - 1);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      views.push_back(inputs[i]->on_device);
      references.push_back(static_cast<std::uint32_t>(i + 1) | kFirstCheck);
      call.tensor[call.tensors++] = static_cast<std::uint32_t>(i);
      call.reference[call.inputs++] = static_cast<std::uint32_t>(i + 1);
    }
    views.push_back(out.on_device);
    references.push_back(10 | kFirstCheck);
    call.tensor[call.tensors++] = call.output[call.outputs++] = static_cast<std::uint32_t>(inputs.size());
    std::vector<std::optional<TensorStats>> stats(views.size());
    ReadingExtras extras;
    const auto ticket = readings->enqueue(views, findings, nullptr, references, {&call, 1});
    EXPECT_EQ(readings->wait(ticket, stats, &extras), ReadingsState::kReady);
    found = extras.findings;
    return extras.histograms.empty() ? Histograms() : extras.histograms[0];
  }
};

void expect_histogram(const std::optional<TensorStats>& got, const Tensor& tensor) {
  ASSERT_TRUE(got);
  const TensorStats want = compute_stats(tensor.on_host, StatsLevel::kHistogram);
  EXPECT_EQ(got->histogram, want.histogram);
  EXPECT_EQ(got->histogram_min_exponent, want.histogram_min_exponent);
}

TEST(DeviceOrigins, have_the_histograms_of_the_cpu) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const Order order : {Order::kForwards, Order::kBackwards, Order::kShuffled}) {
      SCOPED_TRACE(dtype_name(dtype));
      Rig rig;
      rig.device.order = order;
      std::vector<double> many(70'000);
      for (std::size_t i = 0; i < many.size(); ++i) many[i] = std::ldexp(1.0, static_cast<int>(i % 9) - 4);
      many[69'999] = 0;
      const Tensor& x = rig.add(dtype, many);
      const Tensor& gaps = rig.add(DType::kF32, {1, 99, 2, 99, 4, 99}, {3, 4}, {2, 0});  // and broadcast
      many[3] = kInf;
      const Tensor& out = rig.add(dtype, many);
      const Histograms histograms = rig.run({&x, &gaps}, out);
      ASSERT_EQ(histograms.size(), 3U);
      expect_histogram(histograms[0], x);
      expect_histogram(histograms[1], gaps);
      expect_histogram(histograms[2], out);
    }
  }
}

TEST(DeviceOrigins, are_told_by_the_rule_of_the_recorder) {
  struct Case {
    double in, out;
    bool born;
  };
  const Case cases[] = {{1, 2, false},       {1, kInf, true},    {1, kNan, true},
                        {kInf, kInf, false}, {kInf, kNan, true}, {kNan, kNan, false},
                        {kNan, kInf, false}, {kNan, 1, false},   {1, -kInf, true}};
  for (const Case& c : cases) {
    Rig rig;
    const Histograms histograms = rig.run({&rig.add(DType::kF32, {1, c.in})}, rig.add(DType::kF32, {c.out, 1}));
    EXPECT_EQ(!histograms.empty(), c.born) << c.in << " to " << c.out;
  }
}

TEST(DeviceOrigins, of_several_ops_in_one_reading_are_told_apart) {
  Rig rig;
  const Tensor &good = rig.add(DType::kF32, {1, 2}), &bad = rig.add(DType::kF32, {1, kInf});
  const std::vector<TensorView> views = {good.on_device, bad.on_device, good.on_device, bad.on_device};
  const std::vector<std::uint32_t> references = {1 | kFirstCheck, 2 | kFirstCheck, 3 | kFirstCheck, 4 | kFirstCheck};
  const auto op = [](std::uint32_t input, std::uint32_t output) {
    OriginCall call;
    call.tensors = 2;
    call.tensor[0] = input;
    call.tensor[1] = output;
    call.inputs = call.outputs = 1;
    call.reference[0] = input + 1;
    call.output[0] = output;
    return call;
  };
  const OriginCall calls[] = {op(0, 2), op(0, 3), op(1, 3)};
  Histograms stats(views.size());
  ReadingExtras extras;
  const auto ticket = rig.readings->enqueue(views, {}, nullptr, references, calls);
  ASSERT_EQ(rig.readings->wait(ticket, stats, &extras), ReadingsState::kReady);
  ASSERT_EQ(extras.histograms.size(), 2U);
  EXPECT_TRUE(extras.histograms[0].empty());
  ASSERT_EQ(extras.histograms[1].size(), 2U);
  expect_histogram(extras.histograms[1][0], good);
  expect_histogram(extras.histograms[1][1], bad);
}

TEST(DeviceOrigins, of_a_list_of_ops_are_each_decided_on_with_the_elements_of_its_own) {
  Rig rig;
  const Tensor &good = rig.add(DType::kF32, {1, 2}), &bad = rig.add(DType::kF32, {1, kInf});
  const std::vector<TensorView> views = {good.on_device, bad.on_device, good.on_device, bad.on_device};
  const std::vector<std::uint32_t> references = {1 | kFirstCheck, 2 | kFirstCheck, 3 | kFirstCheck, 4 | kFirstCheck};
  std::vector<EvidenceCall> findings;
  std::vector<OriginCall> origins;
  const auto op = [&](std::uint32_t input, std::uint32_t output, bool decides) {
    EvidenceCall call;
    call.of = output;
    call.walk = {.count = 2, .dims = 1, .sizes = {2}};
    call.out.data = const_cast<void*>(views[output].data);
    call.out.strides[0] = 1;
    findings.push_back(call);
    OriginCall its;
    its.tensors = its.inputs = its.outputs = 1;
    its.tensor[0] = its.output[0] = output;
    its.reference[0] = input + 1;
    if (decides) its.decided_by = static_cast<std::uint32_t>(findings.size() - 1);
    origins.push_back(its);
  };
  op(0, 2, true);   // nothing begins
  op(0, 3, true);   // an infinity is
  op(1, 3, true);   // it was there before
  op(0, 1, false);  // decided on by a launch of its own
  Histograms stats(views.size());
  ReadingExtras extras;
  const std::uint64_t launches = rig.device.launches;
  const auto ticket = rig.readings->enqueue(views, findings, nullptr, references, origins);
  EXPECT_EQ(rig.device.launches - launches, 1U + 3 * 2 + 3);
  ASSERT_EQ(rig.readings->wait(ticket, stats, &extras), ReadingsState::kReady);
  ASSERT_EQ(extras.histograms.size(), 4U);
  EXPECT_TRUE(extras.histograms[0].empty() && extras.histograms[2].empty());
  for (const std::size_t i : {1u, 3u}) {
    ASSERT_EQ(extras.histograms[i].size(), 1U);
    expect_histogram(extras.histograms[i][0], bad);
  }
  for (const std::size_t i : {1u, 2u, 3u}) EXPECT_EQ(extras.findings[i]->first_inf, 1U);
}

TEST(DeviceOrigins, of_tensors_that_are_not_read_show_them) {
  Rig rig;
  const Tensor &good = rig.add(DType::kF32, {1, 2}), &bad = rig.add(DType::kF32, {1, kInf});
  const std::uint32_t first[] = {1 | kFirstCheck};
  const TensorView in[] = {good.on_device}, out[] = {bad.on_device};
  Histograms stats(1);
  ASSERT_EQ(rig.readings->wait(rig.readings->enqueue(in, {}, nullptr, first), stats),
            ReadingsState::kReady);
  OriginCall call;
  call.tensors = 2;
  call.tensor[0] = 0 | kShownOnly;
  call.inputs = call.outputs = 1;
  call.reference[0] = 1;
  const std::uint32_t second[] = {2 | kFirstCheck};
  ReadingExtras extras;
  const auto ticket = rig.readings->enqueue(out, {}, nullptr, second, {&call, 1}, in);
  ASSERT_EQ(rig.readings->wait(ticket, stats, &extras), ReadingsState::kReady);
  ASSERT_EQ(extras.checks.size(), 1U) << "what is shown is not checked";
  ASSERT_EQ(extras.histograms.size(), 1U);
  expect_histogram(extras.histograms[0][0], good);
  expect_histogram(extras.histograms[0][1], bad);
}

TEST(DeviceOrigins, are_decided_on_with_the_elements_of_an_op_where_these_are_looked_at) {
  for (const bool born : {false, true}) {
    for (const Order order : {Order::kForwards, Order::kBackwards}) {
      Rig rig;
      rig.device.order = order;
      std::vector<double> many(3000, 1.5);
      const Tensor& in = rig.add(DType::kF32, many);
      if (born) many[2999] = kInf;
      const Tensor& out = rig.add(DType::kF32, many);
      EvidenceCall call;
      call.of = 1;
      call.walk = {.count = 3000, .dims = 1, .sizes = {3000}};
      call.out.data = const_cast<void*>(out.on_device.data);
      call.out.strides[0] = 1;
      const EvidenceCall twice[] = {call, call};
      const std::uint64_t launches = rig.device.launches;
      const Histograms histograms = rig.run({&in}, out, twice);
      EXPECT_EQ(rig.device.launches - launches, 4U) << "a look, two for elements, one for histograms";
      ASSERT_EQ(rig.found.size(), 2U);
      ASSERT_TRUE(rig.found[0] && rig.found[1]);
      for (const auto& one : rig.found) EXPECT_EQ(one->first_inf, born ? 2999U : kNoIndex);
      ASSERT_EQ(histograms.size(), born ? 2U : 0U);
      if (!born) continue;
      expect_histogram(histograms[0], in);
      expect_histogram(histograms[1], out);
    }
  }
}

TEST(DeviceOrigins, that_do_not_happen_read_nothing_and_take_no_room) {
  Rig rig(2 * (kStatsRecordWords + kDetailThresholds + 277));
  const Tensor &good = rig.add(DType::kF32, {1, 2}), &bad = rig.add(DType::kF32, {1, kInf});
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(rig.run({&bad}, bad).empty());
  const Histograms first = rig.run({&good}, bad);
  ASSERT_EQ(first.size(), 2U);
  expect_histogram(first[0], good);
  expect_histogram(first[1], bad);
  const Histograms second = rig.run({&good}, bad);
  ASSERT_EQ(second.size(), 2U) << "what began without room for it is known to be missing";
  EXPECT_FALSE(second[0]);
  EXPECT_FALSE(second[1]);
}

}  // namespace
}  // namespace nanhunt::kernels
