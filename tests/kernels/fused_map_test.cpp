// SPDX-License-Identifier: Apache-2.0
// Maps that leave statistics, run on the CPU: the bits of the plain map, the record and checksum of a look; and which
// looks they may stand for.
#include "kernels/portable/fused_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/checksum.h"
#include "tests/support/emulated_device.h"
#include "tests/support/emulated_grid.h"

namespace nanhunt::kernels::cuda {
namespace {

using testing_support::EmulatedDevice;
using testing_support::in_order;
using testing_support::Order;
using testing_support::run_grid;

constexpr DType kResults[] = {DType::kF16, DType::kBF16, DType::kF32};
constexpr std::int64_t kGuard = 64;  // elements behind the result

// On a boundary of 16 bytes, with NaNs, infinities, subnormals and zeros of every format among other words.
struct Memory {
  explicit Memory(std::uint64_t seed, std::int64_t elements)
      : vectors(static_cast<std::size_t>(elements + kGuard) / 4 + 1) {
    std::mt19937_64 random(seed);
    for (Vector& v : vectors) {
      for (std::uint32_t& word : v.words) {
        constexpr std::uint32_t kOdd[] = {0x00000000, 0x80008000, 0x00000001, 0x7c00fc00, 0x7e013c00,
                                          0x7f800000, 0xff800000, 0x7fc00001, 0x00010001, 0xffffffff};
        const std::uint64_t drawn = random();
        word = drawn % 5 == 0 ? kOdd[drawn / 5 % 10] : static_cast<std::uint32_t>(drawn >> 32);
      }
    }
  }
  DeviceArray array(DType dtype) {
    DeviceArray out;
    out.data = vectors.data();
    out.dtype = dtype;
    out.strides[0] = 1;
    return out;
  }
  std::vector<Vector> vectors;
};

template <class F>
MapCall call_of(const F& formula, std::int64_t count) {
  MapCall call;
  call.formula.number = formula_number<F>();
  if constexpr (!std::is_empty_v<F>) std::memcpy(call.formula.scalars, &formula, sizeof formula);
  call.walk.count = call.walk.sizes[0] = count;
  call.inputs = F::kInputs;
  return call;
}

struct Fused {
  std::vector<StatsPartial> partials = std::vector<StatsPartial>(64);
  std::uint64_t sum = 0;
  std::uint32_t ticket = 0;
  std::vector<FusedLook> looks = std::vector<FusedLook>(4);
  FusedMemory memory() { return {partials.data(), &sum, &ticket, looks.data()}; }
};

// NaN for NaN: of two of them a sum takes either's payload, as the compiler puts it.
void expect_the_same_contents(const Memory& a, const Memory& b, DType dtype, std::int64_t count) {
  const auto *x = reinterpret_cast<const unsigned char*>(a.vectors.data()),
             *y = reinterpret_cast<const unsigned char*>(b.vectors.data());
  const std::size_t size = dtype_size(dtype), all = a.vectors.size() * sizeof(Vector);
  const auto end = static_cast<std::size_t>(count) * size;
  for (std::size_t at = 0; at < end; at += size) {
    if (std::memcmp(x + at, y + at, size) == 0) continue;
    const float made = load_element<float>(dtype, x + at, 0), expected = load_element<float>(dtype, y + at, 0);
    ASSERT_TRUE(made != made && expected != expected) << made << " not " << expected << " at " << at / size;
  }
  ASSERT_EQ(std::memcmp(x + end, y + end, all - end), 0) << "written past the end";
}

// A look's results, read from memory or told.
struct Looked {
  std::vector<std::uint64_t> sums = std::vector<std::uint64_t>(kChecksInParameters), references{0, 0};
  std::vector<std::uint32_t> tickets = std::vector<std::uint32_t>(kChecksInParameters), gates{0, 0}, known{7, 7};
  DeviceChecks checks;
  std::vector<StatsPartial> partials = std::vector<StatsPartial>(64);
  DeviceStatsRecord record;

  Looked(const MapCall& made, std::uint32_t reference, std::uint64_t before, const FusedLook* fused) {
    references[1] = before;
    const LookedTensor tensor{{made.out.data, made.walk.count, made.out.dtype, reference}, 0};
    LookCall call;
    call.memory = {{sums.data(), tickets.data(), references.data(), gates.data(), &checks},
                   partials.data(), &record, known.data(), fused};
    const std::uint32_t told = fused != nullptr ? 2 : 0;
    const std::uint32_t blocks = fill_looks({&tensor, 1}, call.table, [&](const DeviceTensor&) { return told; });
    EXPECT_EQ(blocks, fused != nullptr ? 1 : stats_items(output_bytes(made)));
    with_look(call, [&](const auto& kernel) { run_grid(kernel, in_order(blocks), kStatsThreads); });
  }
  bool operator==(const Looked& other) const {
    return std::memcmp(&record, &other.record, sizeof record) == 0 && sums == other.sums && known == other.known &&
           references == other.references && gates == other.gates && tickets == other.tickets &&
           std::memcmp(&checks, &other.checks, sizeof checks) == 0;
  }
};

// Runs `call` as a plain map and as one that leaves statistics, and looks at what came of both.
template <class F>
void expect_the_same(MapCall call, const std::vector<std::vector<std::uint32_t>>& orders) {
  Memory plain(99, call.walk.count);
  const Memory before = plain;
  call.out.data = plain.vectors.data();
  const MapKernel<F, float> one{call};
  for (std::int64_t i = 0; i < call.walk.count; ++i) one(i);
  for (const auto& order : orders) {
    for (const bool backwards : {false, true}) {
      Memory made = before;
      call.out.data = made.vectors.data();
      ASSERT_TRUE(is_fused(call));
      Fused fused;
      const auto run_one = [&](auto kernel) {
        kernel.memory = fused.memory();
        kernel.slot = 1;
        kernel.call = call;
        run_grid(kernel, order, kStatsThreads, backwards);
      };
      with_fused_map(call, run_one, FusedFormulas{});
      expect_the_same_contents(made, plain, call.out.dtype, call.walk.count);
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_TRUE(fused.sum == 0 && fused.ticket == 0);
      ASSERT_TRUE(Looked(call, 1 | kFirstCheck, 0, fused.looks.data()) == Looked(call, 1 | kFirstCheck, 0, nullptr));
      const std::uint64_t checksum = fused.looks[1].checksum;
      ASSERT_EQ(checksum, checksum_bytes(made.vectors.data(), output_bytes(call)));
      for (const std::uint64_t known : {checksum, ~checksum}) {
        ASSERT_TRUE(Looked(call, 1, known, fused.looks.data()) == Looked(call, 1, known, nullptr));
      }
      ASSERT_TRUE(Looked(call, 0, 0, fused.looks.data()) == Looked(call, 0, 0, nullptr));
    }
  }
}

template <class F>
void expect_the_same_for_all_formats(const F& formula, std::int64_t elements_of_an_item = 0) {
  const bool large = elements_of_an_item != 0;
  for (const DType result : kResults) {
    const std::int64_t item = (std::int64_t{64} << 10) / static_cast<std::int64_t>(element_bytes(result));
    std::vector<std::int64_t> counts{1, 7, 8, 9, 255, 2047, 4095};
    if (large) counts = {item / 2 - 1, item / 2 + 1, item - 1, item, item + 1, 2 * item + item / 2 + 13};
    for (const std::int64_t count : counts) {
      SCOPED_TRACE(std::to_string(call_of(formula, 1).formula.number) + " to " + std::string(dtype_name(result)) +
                   ", " + std::to_string(count));
      Memory in[3] = {Memory(1, count), Memory(2, count), Memory(3, count)};
      MapCall call = call_of(formula, count);
      call.out.dtype = result;
      call.out.strides[0] = 1;
      for (const DType operand : {DType::kF16, DType::kF32}) {
        if (large && operand != DType::kF16) continue;
        for (int k = 0; k < F::kInputs; ++k) call.in[k] = in[k].array(k == 1 ? DType::kF32 : operand);
        MapCall probe = call;
        probe.out.data = in[0].vectors.data();
        const auto blocks = static_cast<std::uint32_t>(stats_items(output_bytes(probe)));
        expect_the_same<F>(call, large ? testing_support::block_orders(blocks, 1)
                                       : std::vector<std::vector<std::uint32_t>>{in_order(blocks)});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

template <class F>
F with_scalar() {
  F formula{};
  const double scalar = -1.37;
  if constexpr (!std::is_empty_v<F>) std::memcpy(&formula, &scalar, sizeof scalar);
  return formula;
}
template <class... F>
void expect_all_of(Formulas<F...>) {
  (expect_the_same_for_all_formats(with_scalar<F>()), ...);
}

TEST(FusedMaps, of_every_formula_leave_the_plain_maps_bits_and_what_a_look_reads) { expect_all_of(FusedFormulas{}); }

TEST(FusedMaps, fold_work_items_as_a_look_does_in_every_order_of_blocks) {
  expect_the_same_for_all_formats(Add{}, 1);
  expect_the_same_for_all_formats(GeluGradient{}, 1);
}

TEST(FusedMaps, are_those_alone_whose_items_are_whole_blocks_of_the_checksum) {
  Memory memory(1, 64);
  MapCall call = call_of(Identity{}, 1);
  call.in[0] = memory.array(DType::kF32);
  call.out = memory.array(DType::kF32);
  const auto fuses = [&](std::uint64_t bytes) {
    call.walk.count = call.walk.sizes[0] = static_cast<std::int64_t>(bytes / 4);
    return is_fused(call);
  };
  constexpr std::uint64_t kLarge = std::uint64_t{128} << 20;
  EXPECT_TRUE(fuses(kLarge));
  EXPECT_FALSE(fuses(kLarge + 4)) << "items of 80 KiB";
  EXPECT_TRUE(fuses(kLarge / 2 * 3)) << "of 96 KiB";
  call.out.dtype = DType::kI32;
  EXPECT_FALSE(fuses(kLarge));
  call = call_of(Tanh{}, 8);
  call.in[0] = call.out = memory.array(DType::kF32);
  EXPECT_FALSE(is_fused(call));
}

// An emulated device with readings that want statistics of maps, and one tensor of 9000 floats.
class FusedLooksOf : public testing::Test {
 protected:
  static constexpr std::int64_t kCount = 9000;
  static constexpr std::size_t kBytes = kCount * 4;

  FusedLooksOf() {
    device.order = Order::kShuffled;
    std::string why;
    readings = DeviceReadings::open(device, options, why);
    EXPECT_NE(readings, nullptr) << why;
    for (void** each : {&in, &out, &other}) *each = device.allocate(kBytes);
    const Memory contents(5, kCount);
    for (void* each : {in, other}) device.to_device(each, contents.vectors.data(), kBytes);
    device.set_zero(out, kBytes);
  }
  ~FusedLooksOf() override {
    for (void* each : {in, out, other}) device.release(each, kBytes);
  }

  template <class F>
  void map(const F& formula, void* from, void* to, std::int64_t count = kCount) {
    MapCall call = call_of(formula, count);
    for (const auto& [array, data] : {std::pair{&call.in[0], from}, {&call.in[1], from}, {&call.out, to}}) {
      array->data = data;
      array->strides[0] = 1;
    }
    device.run(call);
  }
  // Whether the look at `tensor` told its checksum of now; `by_slot`: without reading it.
  void expect_a_true_look(const void* tensor, bool by_slot, DType dtype = DType::kF32) {
    const std::int64_t size = static_cast<std::int64_t>(kBytes / dtype_size(dtype)), stride = 1;
    TensorView view;
    view.data = tensor;
    view.dtype = dtype;
    view.sizes = {&size, 1};
    view.strides = {&stride, 1};
    const std::uint32_t reference = 1 | kFirstCheck;
    const std::uint64_t told = device.told;
    const auto ticket = readings->enqueue({&view, 1}, StatsLevel::kSums, {}, nullptr, {&reference, 1});
    std::vector<std::optional<TensorStats>> stats(1);
    Besides besides;
    ASSERT_EQ(readings->wait(ticket, stats, &besides), ReadingsState::kReady);
    ASSERT_TRUE(stats[0] && besides.checks[0]);
    EXPECT_EQ(besides.checks[0]->checksum, checksum_bytes(EmulatedDevice::on_host(tensor), kBytes));
    EXPECT_EQ(device.told - told, by_slot ? 1u : 0u);
  }

  EmulatedDevice device;
  ReadingsOptions options{.tensors = 64, .tickets = 16, .references = 4, .fuses = true};
  std::unique_ptr<DeviceReadings> readings;
  void *in = nullptr, *out = nullptr, *other = nullptr;
};

TEST_F(FusedLooksOf, what_was_just_made_are_told_without_reading_it_and_once) {
  map(Add{}, in, out);
  EXPECT_EQ(device.fused, 1u);
  expect_a_true_look(out, true);
  expect_a_true_look(out, false);
}

TEST_F(FusedLooksOf, several_outputs_are_told_up_to_the_slots_there_are) {
  map(Add{}, in, out);
  map(Multiply{}, in, other);
  expect_a_true_look(out, true);
  device.fused = 0;
  for (std::uint32_t i = 0; i < 2 * FusedLooks::kSlots; ++i) map(Add{}, in, other);
  EXPECT_EQ(device.fused, 2 * FusedLooks::kSlots) << "the same memory again takes the slot of what lay there";
  expect_a_true_look(other, true);
  device.fused = 0;
  for (std::uint32_t i = 0; i <= FusedLooks::kSlots; ++i) map(Add{}, in, static_cast<char*>(other) + 64 * i, 8);
  EXPECT_EQ(device.fused, FusedLooks::kSlots);
  expect_a_true_look(other, false);
}

TEST_F(FusedLooksOf, what_was_written_since_read_it) {
  const std::vector<std::pair<const char*, std::function<void()>>> writes = {
      {"a copy on the device", [&] { device.on_device(out, other, kBytes); }},
      {"a copy of a part", [&] { device.on_device(static_cast<char*>(out) + kBytes - 4, other, 4); }},
      {"zeros", [&] { device.set_zero(out, 8); }},
      {"an upload", [&] { device.to_device(out, &device, 8); }},
      {"another map in place", [&] { map(Tanh{}, out, out); }},
      {"a map over its beginning", [&] { map(Add{}, in, out, 100); }},
      {"a product",
       [&] {
         ProductCall call;
         call.m = call.n = call.k = 2;
         call.a = {in, 2};
         call.b = {other, 2};
         call.c = out;
         device.run(call);
       }},
      {"a kernel that might", [&] {
         CopyCall call;
         call.walk.count = call.walk.sizes[0] = 1;
         call.to.data = out;
         call.from.data = other;
         device.run(call);
       }},
      {"a graph", [&] {
         std::string why;
         ASSERT_TRUE(device.begin_capture(why));
         device.set_zero(out, kBytes);
         const auto graph = device.end_capture(why);
         map(Add{}, in, out);
         graph->replay();
       }}};
  for (const auto& [what, write] : writes) {
    SCOPED_TRACE(what);
    map(Multiply{}, in, out);
    write();
    expect_a_true_look(out, false);
  }
}

TEST_F(FusedLooksOf, a_tensor_that_was_made_anew_tell_the_new_contents) {
  map(Add{}, in, out);
  map(Relu{}, out, out);
  expect_a_true_look(out, true);
}

TEST_F(FusedLooksOf, the_same_memory_as_another_format_read_it) {
  map(Add{}, in, out);
  expect_a_true_look(out, false, DType::kF16);
}

TEST_F(FusedLooksOf, memory_that_was_given_back_read_it) {
  map(Add{}, in, out);
  device.release(out, kBytes);
  out = device.allocate(kBytes);
  expect_a_true_look(out, false);
}

TEST_F(FusedLooksOf, work_of_a_graph_are_never_told) {
  std::string why;
  ASSERT_TRUE(device.begin_capture(why));
  map(Add{}, in, out);
  const auto graph = device.end_capture(why);
  EXPECT_EQ(device.fused, 0u);
  graph->replay();
  expect_a_true_look(out, false);
}

TEST_F(FusedLooksOf, maps_are_taken_only_as_long_as_somebody_wants_them) {
  std::string why;
  auto second = DeviceReadings::open(device, options, why);
  second.reset();
  map(Add{}, in, out);
  EXPECT_EQ(device.fused, 1u);
  readings.reset();
  map(Add{}, in, out);
  EXPECT_EQ(device.fused, 1u);
}

// A map, and two looks at what it made: the second one reads it.
template <class F>
void expect_the_same_on(DeviceBackend& device, DType dtype) {
  constexpr std::int64_t kCount = 100'003;
  const std::size_t bytes = static_cast<std::size_t>(kCount) * dtype_size(dtype);
  const Memory contents[2] = {Memory(11, kCount), Memory(12, kCount)};
  MapCall call = call_of(with_scalar<F>(), kCount);
  for (DeviceArray* array : {&call.in[0], &call.in[1], &call.out}) {
    array->dtype = array == &call.in[1] ? DType::kF32 : dtype;
    array->data = device.allocate(kCount * sizeof(float));
    array->strides[0] = 1;
  }
  for (int k = 0; k < 2; ++k) device.to_device(call.in[k].data, contents[k].vectors.data(), kCount * sizeof(float));
  std::vector<unsigned char> plain(bytes), fused(bytes);
  device.run(call);
  device.to_host(plain.data(), call.out.data, bytes);

  const ReadingsOptions options{.tensors = 64, .tickets = 16, .references = 4, .fuses = true};
  std::string why;
  const auto readings = DeviceReadings::open(device, options, why);
  ASSERT_NE(readings, nullptr) << why;
  const std::int64_t stride = 1;
  const TensorView view{call.out.data, dtype, {&kCount, 1}, {&stride, 1}};
  const std::uint32_t reference = 1 | kFirstCheck;
  device.run(call);
  std::optional<TensorStats> told[2];
  for (auto& stats : told) {
    const auto ticket = readings->enqueue({&view, 1}, StatsLevel::kSums, {}, nullptr, {&reference, 1});
    Besides besides;
    ASSERT_EQ(readings->wait(ticket, {&stats, 1}, &besides), ReadingsState::kReady);
    ASSERT_TRUE(stats && besides.checks[0]);
    device.to_host(fused.data(), call.out.data, bytes);
    EXPECT_EQ(besides.checks[0]->checksum, checksum_bytes(fused.data(), bytes));
  }
  for (std::size_t at = 0; at < bytes; at += dtype_size(dtype)) {
    if (std::memcmp(&plain[at], &fused[at], dtype_size(dtype)) == 0) continue;
    const float a = load_element<float>(dtype, &plain[at], 0), b = load_element<float>(dtype, &fused[at], 0);
    ASSERT_TRUE(a != a && b != b) << a << " and " << b << " at byte " << at;
  }
  EXPECT_EQ(told[0]->sum, told[1]->sum);
  EXPECT_EQ(told[0]->sum_sq, told[1]->sum_sq);
  EXPECT_EQ(told[0]->nan, told[1]->nan);
  EXPECT_EQ(told[0]->zero, told[1]->zero);
  for (const DeviceArray& array : {call.in[0], call.in[1], call.out}) {
    device.release(array.data, kCount * sizeof(float));
  }
}
template <class... F>
void expect_all_of_on(DeviceBackend& device, Formulas<F...>) {
  for (const DType dtype : kResults) (expect_the_same_on<F>(device, dtype), ...);
}

TEST(FusedMaps, on_the_emulated_device_are_what_a_gpu_is_held_to) {
  EmulatedDevice device;
  expect_all_of_on(device, FusedFormulas{});
  EXPECT_EQ(device.fused, 3U * FusedFormulas::kCount);
  EXPECT_EQ(device.told, device.fused);
}

TEST(OnGpuFusedMaps, leave_the_plain_maps_bits_and_what_a_look_reads) {
  std::string why;
  DeviceBackend* const device = cuda_backend(0, why);
  if (device == nullptr) GTEST_SKIP() << "no GPU: " << why;
  expect_all_of_on(*device, FusedFormulas{});
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
