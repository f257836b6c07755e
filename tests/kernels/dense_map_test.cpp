// SPDX-License-Identifier: Apache-2.0
// Elementwise ops by vectors of 16 bytes, run on the CPU: the bits that the kernel for one element each leaves.
#include "kernels/portable/dense_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace nanhunt::kernels::cuda {
namespace {

constexpr std::size_t kBytes = 4096, kGuard = 64;
constexpr DType kResults[] = {DType::kF16, DType::kBF16, DType::kF32};
constexpr DType kOperands[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kU8, DType::kBool};

struct alignas(16) Memory {
  unsigned char bytes[kBytes + kGuard];
};

// 16-bit words with NaNs, infinities, subnormals and zeros of every format among them.
Memory noise(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Memory memory{};
  for (std::size_t i = 0; i < sizeof memory.bytes; i += 2) {
    const std::uint64_t word = random();
    const std::uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x7c00, 0xfc00, 0x7e01, 0x7f80, 0xff80, 0x7fc1, 0xffff};
    const auto code = word % 5 == 0 ? odd[word / 5 % 10] : static_cast<std::uint16_t>(word >> 32);
    std::memcpy(memory.bytes + i, &code, sizeof code);
  }
  return memory;
}

DeviceArray dense(Memory& memory, DType dtype) {
  DeviceArray array;
  array.data = memory.bytes;
  array.dtype = dtype;
  array.strides[0] = 1;
  return array;
}

template <class F>
MapCall call_of(const F& formula, DType common, std::int64_t count, DeviceArray out, std::vector<DeviceArray> in) {
  MapCall call;
  call.formula.number = formula_number<F>();
  if constexpr (!std::is_empty_v<F>) std::memcpy(call.formula.scalars, &formula, sizeof formula);
  call.common = common;
  call.walk.count = call.walk.sizes[0] = count;
  call.out = out;
  call.inputs = static_cast<int>(in.size());
  for (std::size_t k = 0; k < in.size(); ++k) call.in[k] = in[k];
  return call;
}

template <class Kernel>
void run(const Kernel& kernel) {
  for (std::int64_t i = kernel.count(); i-- > 0;) kernel(i);
}

// Every byte, those past the result too. Which of two NaNs a sum passes on is the compiler's choice on a CPU; a GPU
// makes one of its own.
bool same(const Memory& a, const Memory& b, DType dtype) {
  const auto size = dtype_size(dtype);
  for (std::size_t at = 0; at < sizeof a.bytes; at += size) {
    if (std::memcmp(a.bytes + at, b.bytes + at, size) == 0) continue;
    const auto value = [&](const Memory& m) { return load_element<double>(dtype, m.bytes + at, 0); };
    if (!std::isnan(value(a)) || !std::isnan(value(b))) return false;
  }
  return true;
}

// Runs `call` both ways.
template <class F>
void expect_the_same(MapCall call) {
  Memory one = noise(99), dense_one = one;
  call.out.data = one.bytes;
  run(MapKernel<F, float>{call});
  call.out.data = dense_one.bytes;
  ASSERT_TRUE(is_dense(call));
  run(DenseMapKernel<F>{call});
  ASSERT_TRUE(same(one, dense_one, call.out.dtype));
}

template <class F>
void expect_the_same_for_all_formats(const F& formula) {
  Memory in[3] = {noise(1), noise(2), noise(3)};
  for (const DType result : kResults) {
    for (const DType operand : kOperands) {
      for (const DType common : {DType::kF16, DType::kBF16, DType::kF32}) {
        for (const std::int64_t count : {1, 3, 4, 7, 8, 9, 15, 16, 17, 511, 512}) {
          SCOPED_TRACE(std::string(dtype_name(operand)) + " as " + std::string(dtype_name(common)) + " to " +
                       std::string(dtype_name(result)) + ", " + std::to_string(count));
          std::vector<DeviceArray> operands;
          for (int k = 0; k < F::kInputs; ++k) operands.push_back(dense(in[k], k == 1 ? DType::kF32 : operand));
          expect_the_same<F>(call_of(formula, common, count, dense(in[0], result), operands));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DenseMaps, leave_the_bits_of_the_kernel_for_single_elements_and_nothing_beyond_the_result) {
  expect_the_same_for_all_formats(Identity{});
  expect_the_same_for_all_formats(MultiplyNumber{0.37});
  expect_the_same_for_all_formats(Add{});
  expect_the_same_for_all_formats(ReluGradient{});
  expect_the_same_for_all_formats(GeluGradient{});
  expect_the_same_for_all_formats(AddProduct{-1.5});
}

TEST(DenseMaps, take_numbers_and_single_elements_that_repeat) {
  Memory in[2] = {noise(4), noise(5)};
  DeviceArray number, repeated = dense(in[1], DType::kBF16);
  number.is_number = true;
  number.number = 70000;  // beyond fp16
  repeated.strides[0] = 0;
  for (const DType common : {DType::kF16, DType::kF32}) {
    for (const DeviceArray& other : {number, repeated}) {
      expect_the_same<Multiply>(
          call_of(Multiply{}, common, 77, dense(in[0], DType::kF16), {dense(in[0], DType::kF16), other}));
    }
  }
}

TEST(DenseMaps, may_write_over_their_input) {
  Memory one = noise(6), other = one, addend = noise(7);
  const auto in_place = [&](Memory& self) {
    return call_of(Add{}, DType::kF32, 1001, dense(self, DType::kF32),
                   {dense(self, DType::kF32), dense(addend, DType::kF32)});
  };
  run(MapKernel<Add, float>{in_place(one)});
  run(DenseMapKernel<Add>{in_place(other)});
  EXPECT_TRUE(same(one, other, DType::kF32));
}

TEST(DenseMaps, are_no_others_than_aligned_ones_of_one_stride_in_fp32) {
  Memory in = noise(8);
  const MapCall dense_one = call_of(Negate{}, DType::kF16, 64, dense(in, DType::kF16), {dense(in, DType::kF16)});
  ASSERT_TRUE(is_dense(dense_one));
  const auto with = [&](auto change) {
    MapCall call = dense_one;
    change(call);
    return is_dense(call);
  };
  EXPECT_FALSE(with([](MapCall& c) { c.wide = true; }));
  EXPECT_FALSE(with([](MapCall& c) { c.walk.count = 0; }));
  EXPECT_FALSE(with([](MapCall& c) { c.walk.dims = 2; }));
  EXPECT_FALSE(with([](MapCall& c) { c.out.dtype = DType::kBool; }));
  EXPECT_FALSE(with([](MapCall& c) { c.out.strides[0] = 2; }));
  EXPECT_FALSE(with([](MapCall& c) { c.in[0].strides[0] = 2; }));
  EXPECT_FALSE(with([](MapCall& c) { c.in[0].dtype = DType::kI64; }));
  EXPECT_FALSE(with([](MapCall& c) { c.in[0].data = static_cast<unsigned char*>(c.in[0].data) + 2; }));
  EXPECT_FALSE(with([](MapCall& c) { c.out.data = static_cast<unsigned char*>(c.out.data) + 8; }));
}

}  // namespace
}  // namespace nanhunt::kernels::cuda
