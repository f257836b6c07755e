// SPDX-License-Identifier: Apache-2.0
// A recorder of rows whose contents lie where only a device can read them.
#pragma once

#include "tests/c_api/adapter_fixture.h"
#include "tests/support/emulated_streams.h"

namespace nanhunt::c_api_tests {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr std::uint64_t kStream = 77;

class CDeviceRows : public CAdapter {
 protected:
  void SetUp() override {
    nanhunt_emulated_reset();
    CAdapter::SetUp();
    stream_ = nanhunt_device_stream(recorder_, 0, kStream);
    ASSERT_EQ(stream_, 1) << nanhunt_last_error();
  }
  void TearDown() override {
    CAdapter::TearDown();
    nanhunt_emulated_reset();
  }

  static std::int64_t away(const void* memory) { return address(nanhunt_emulated_address(memory)); }
  Words value_on(const void* memory, std::int64_t storage, std::int64_t version = 0) const {
    return {away(memory), identity(storage, version), 0, NANHUNT_ON_STREAM(layout_, stream_)};
  }
  // y = log(x), both on the device.
  Words log_row_on(const void* x, const void* y, std::int64_t first_storage, std::int64_t step = 0) const {
    Words row = {NANHUNT_ROW_OP, log_, step, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, value_on(x, first_storage));
    append(row, value_on(y, first_storage + 1));
    return row;
  }
  void end_step(std::uint32_t number) {
    nanhunt_step step{};
    step.struct_size = sizeof step;
    step.step = number;
    step.scale = 1;
    ASSERT_EQ(nanhunt_record_step(recorder_, &step), NANHUNT_OK) << nanhunt_last_error();
  }
  nanhunt_device_counts counts() const {
    nanhunt_device_counts all{};
    all.struct_size = sizeof all;
    EXPECT_EQ(nanhunt_device_counters(recorder_, &all), NANHUNT_OK) << nanhunt_last_error();
    return all;
  }
  static std::string note_with(const RecordBatch& all, const std::string& words) {
    for (const NoteRecord& note : all.notes) {
      for (const StringRecord& text : all.strings) {
        if (text.id == note.text && text.text.find(words) != std::string::npos) {
          return std::to_string(note.count) + " " + text.text;
        }
      }
    }
    return "";
  }

  std::array<float, 2> x_ = {0, 4}, y_ = {-kInf, 2};
  std::int64_t stream_ = 0;
};

}  // namespace nanhunt::c_api_tests
