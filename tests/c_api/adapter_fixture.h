// SPDX-License-Identifier: Apache-2.0
// A recorder of the adapter's C interface, and its trace.
#pragma once

#include "nanhunt/c_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "nanhunt/trace.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::c_api_tests {

using nanhunt::RecordBatch;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Words = std::vector<std::int64_t>;

inline std::int64_t address(const void* data) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
}
inline std::int64_t identity(std::int64_t storage, std::int64_t version) { return storage << 24 | version; }
inline void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

class CAdapter : public testing::Test {
 protected:
  void SetUp() override { open(); }
  void TearDown() override { nanhunt_recorder_close(recorder_); }

  nanhunt_recorder_options options() const {
    nanhunt_recorder_options options{};
    options.struct_size = sizeof options;
    options.run_dir = run_.c_str();
    return options;
  }
  void open(const nanhunt_recorder_options& how) {
    nanhunt_recorder_close(recorder_);
    recorder_ = nullptr;
    ASSERT_EQ(nanhunt_recorder_open(&how, &recorder_), NANHUNT_OK) << nanhunt_last_error();
    folder_ = nanhunt_recorder_folder(recorder_);
    layout_ = nanhunt_intern_layout(recorder_, NANHUNT_F32, 1, sizes_.data(), nullptr);
    ASSERT_GE(layout_, 0);
    log_ = call("log", {"self"}, {"out"});
  }
  void open() { open(options()); }
  std::int64_t text(const char* words) { return nanhunt_intern_text(recorder_, words); }
  std::int64_t call(const char* op, std::vector<const char*> inputs, std::vector<const char*> outputs,
                    std::vector<const char*> scalars = {}, const std::int32_t* roles = nullptr) {
    nanhunt_call c{};
    c.struct_size = sizeof c;
    c.compute_dtype = NANHUNT_F32;
    c.op = op;
    c.input_slots = inputs.data();
    c.input_roles = roles;
    c.input_count = inputs.size();
    c.output_slots = outputs.data();
    c.output_count = outputs.size();
    c.scalar_names = scalars.data();
    c.scalar_count = scalars.size();
    return nanhunt_intern_call(recorder_, &c);
  }
  Words value(const void* data, std::int64_t storage, std::int64_t version = 0) const {
    return {address(data), identity(storage, version), 0, layout_};
  }
  // y = log(x)
  Words log_row(const void* x, const void* y, std::int64_t first_storage) const {
    Words row = {NANHUNT_ROW_OP, log_, 0, 0, NANHUNT_PHASE_LOSS, 0, 0};
    append(row, value(x, first_storage));
    append(row, value(y, first_storage + 1));
    return row;
  }
  nanhunt_status record(const Words& words) { return nanhunt_record_rows(recorder_, words.data(), words.size()); }
  // Refused, and `why` is said.
  void expect_wrong(const Words& words, const std::string& why) {
    EXPECT_EQ(record(words), NANHUNT_USAGE) << why;
    EXPECT_THAT(nanhunt_last_error(), HasSubstr(why));
  }
  std::uint64_t ops() const {
    nanhunt_counters counters{};
    counters.struct_size = sizeof counters;
    nanhunt_recorder_counters(recorder_, &counters);
    EXPECT_EQ(counters.dropped_ops, 0u);
    return counters.ops;
  }
  RecordBatch close_and_read() {
    EXPECT_EQ(nanhunt_recorder_close(recorder_), NANHUNT_OK) << nanhunt_last_error();
    recorder_ = nullptr;
    return read(folder_);
  }
  static RecordBatch read(const std::string& folder) {
    RecordBatch all;
    const auto attempts = nanhunt::find_attempts(folder);
    EXPECT_TRUE(attempts.is_ok());
    nanhunt::TraceHealth health;
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    const nanhunt::Status status = nanhunt::read_attempt(
        attempts->front(),
        [&](const RecordBatch& batch) {
          const auto input = static_cast<std::uint32_t>(all.inputs.size());
          const auto output = static_cast<std::uint32_t>(all.outputs.size());
          const auto scalar = static_cast<std::uint32_t>(all.scalars.size());
          for (nanhunt::OpRecord op : batch.ops) {
            op.first_input += input;
            op.first_output += output;
            op.first_scalar += scalar;
            all.ops.push_back(op);
          }
          add(all.inputs, batch.inputs);
          add(all.outputs, batch.outputs);
          add(all.scalars, batch.scalars);
          add(all.strings, batch.strings);
          add(all.layouts, batch.layouts);
          add(all.values, batch.values);
          add(all.marks, batch.marks);
          add(all.ends_of_life, batch.ends_of_life);
          add(all.evidence, batch.evidence);
          add(all.histograms, batch.histograms);
          add(all.health, batch.health);
          add(all.norms, batch.norms);
          add(all.unheard, batch.unheard);
          add(all.changed, batch.changed);
          add(all.probes, batch.probes);
          add(all.captures, batch.captures);
          add(all.notes, batch.notes);
          add(all.frames, batch.frames);
          add(all.setup, batch.setup);
          add(all.collectives, batch.collectives);
          add(all.kernels, batch.kernels);
          add(all.drops, batch.drops);
        },
        health);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return all;
  }
  static nanhunt::RunInfo info_of(const std::string& folder) {
    const auto attempts = nanhunt::find_attempts(folder);
    EXPECT_TRUE(attempts.is_ok() && attempts->front().has_info);
    return attempts->front().info;
  }

  nanhunt::testing_support::TempDir dir_;
  const std::string run_ = dir_.path("run");
  std::string folder_;
  std::array<std::int64_t, 1> sizes_ = {2};
  std::array<float, 2> x_ = {1, 2}, y_ = {0, 0.6931472F};
  std::int64_t layout_ = -1, log_ = -1;
  nanhunt_recorder* recorder_ = nullptr;
};

}  // namespace nanhunt::c_api_tests
