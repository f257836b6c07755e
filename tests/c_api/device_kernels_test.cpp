// SPDX-License-Identifier: Apache-2.0
// Kernels of ops whose results are known only later, against the libcupti of hooks/cupti/fake.
#include <dlfcn.h>

#include "tests/c_api/device_rows_fixture.h"
#include "tests/c_api/fresh_cupti.h"

namespace nanhunt::c_api_tests {
namespace {

using nanhunt::fake::FakeCupti;

class CDeviceKernels : public CDeviceRows {
 protected:
  void SetUp() override {
    if (std::string(NANHUNT_FAKE_CUPTI).empty()) GTEST_SKIP() << "this build has no CUPTI headers";
    cupti_ = fresh_fake_cupti();
    ASSERT_NE(cupti_, nullptr) << dlerror();
    CDeviceRows::SetUp();
    nanhunt_kernel_options how{};
    how.struct_size = sizeof how;
    how.flush_ms = 1;
    how.library = how.driver = NANHUNT_FAKE_CUPTI;
    ASSERT_EQ(nanhunt_kernels_attach(recorder_, &how), NANHUNT_OK) << nanhunt_last_error();
  }
  // One kernel for ops of all these rows; the first one's number.
  std::uint64_t launch_for(const std::vector<Words>& rows) {
    const std::uint64_t ticket = nanhunt_kernels_push(recorder_);
    cupti_->launch({{"foreach", 1, 2}}, false);
    const std::uint64_t seq = nanhunt_recorder_next_seq(recorder_);
    Words all;
    for (const Words& row : rows) append(all, row);
    EXPECT_EQ(record(all), NANHUNT_OK) << nanhunt_last_error();
    nanhunt_kernels_pop(recorder_, ticket, seq, 0);
    return seq;
  }
  static std::vector<std::uint64_t> ops_with_kernels(const RecordBatch& all) {
    std::vector<std::uint64_t> seqs;
    for (const KernelRecord& it : all.kernels) seqs.push_back(it.seq);
    return seqs;
  }

  const std::array<float, 2> good_ = {1, 1}, bad_ = {1, std::nanf("")};
  FakeCupti* cupti_ = nullptr;
};

TEST_F(CDeviceKernels, of_a_launch_for_many_rows_the_first_bad_one_has_them_also_where_that_is_learnt_later) {
  // Given lists of tensors on a device, whose results come with a step's end after the next.
  nanhunt_emulated_set("copies_later", 2);
  const std::uint64_t one = launch_for({log_row_on(good_.data(), good_.data(), 1),
                                        log_row_on(good_.data(), bad_.data(), 3),
                                        log_row_on(good_.data(), bad_.data(), 5)});
  const std::uint64_t other = launch_for({log_row_on(good_.data(), good_.data(), 11),
                                          log_row_on(good_.data(), good_.data(), 13)});
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, 0), 0u) << "nothing is known yet";
  ASSERT_EQ(nanhunt_recorder_flush(recorder_), NANHUNT_OK);
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, one), 2u);
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, one + 2), 1u);
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, other), 0u);

  const RecordBatch all = close_and_read();

  EXPECT_THAT(ops_with_kernels(all), testing::ElementsAre(one + 1, other));
}

TEST_F(CDeviceKernels, an_earlier_row_that_turns_out_to_be_bad_meanwhile_takes_none_of_them) {
  // Given a row that waits for what never comes, and behind it a bad one of the host.
  nanhunt_emulated_set("never", 1);
  ASSERT_EQ(record(log_row_on(x_.data(), good_.data(), 1)), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(record(log_row(good_.data(), bad_.data(), 3)), NANHUNT_OK) << nanhunt_last_error();
  // When so much comes after them that they are told, amid one of many lists of good tensors.
  const std::vector<float> large(1 << 18, 1.0f);
  const std::int64_t size = std::ssize(large);
  layout_ = nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, &size, nullptr);
  std::vector<std::uint64_t> firsts;
  for (std::int64_t i = 0; i < 24; ++i) {
    const std::int64_t storage = 11 + 8 * i;
    // Of two, so that it is not the first one during which the bound (32 MiB, of 2 MiB an op) is passed.
    firsts.push_back(launch_for({log_row(large.data(), large.data(), storage),
                                 log_row(large.data(), large.data(), storage + 2)}));
  }
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, 0), 1u) << "it was told";

  const RecordBatch all = close_and_read();

  EXPECT_EQ(ops_with_kernels(all), firsts);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
