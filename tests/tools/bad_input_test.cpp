// SPDX-License-Identifier: Apache-2.0
// What users hand in by mistake, and what disks do to traces: one clear message and its exit status each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"
#include "src/trace/encoding/crc32c.h"

namespace nanhunt::testing_tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kReaders[] = {"report", "info", "dump", "doctor"};

std::string make_run_with(const std::string& segment_bytes) {
  const std::string run = make_folder();
  fs::create_directories(run + "/rank-00000/attempt-0");
  write_file(run + "/rank-00000/attempt-0/000000.nht", segment_bytes);
  return run;
}

std::string bytes_of_trace(bool bad) {
  const std::string run = make_folder();
  return read_file(write_sample_trace(run, {.steps = 200, .bad = bad}));
}

void expect_unreadable(const std::string& run) {
  for (const char* verb : kReaders) {
    const Outcome outcome = run_nanhunt({verb, run});
    EXPECT_EQ(outcome.status, 3) << verb << ": " << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("nanhunt: ")) << verb;
  }
  EXPECT_EQ(run_nanhunt({"check", run}).status, 3);
}

TEST(BadInput, a_missing_run_is_named) {
  const std::string run = make_folder() + "/gone";
  expect_unreadable(run);
  EXPECT_THAT(run_nanhunt({"report", run}).err, HasSubstr(run));
}

TEST(BadInput, an_empty_folder_holds_nothing_to_report) {
  const std::string run = make_folder();
  for (const char* verb : kReaders) EXPECT_EQ(run_nanhunt({verb, run}).status, 3) << verb;
}

TEST(BadInput, an_empty_file_is_no_trace) { expect_unreadable(make_run_with("")); }

TEST(BadInput, a_foreign_file_is_no_trace) {
  expect_unreadable(make_run_with(std::string(10'000, 'x')));
  const std::string folder = make_folder();
  write_file(folder + "/notes.txt", "not a trace\n");
  expect_unreadable(folder + "/notes.txt");
}

TEST(BadInput, a_trace_of_a_future_version_is_refused_with_that_reason) {
  std::string bytes = bytes_of_trace(true);
  bytes[8] = 9;  // major version, in a header that is sound otherwise (src/trace/FORMAT.md)
  const std::uint32_t crc = trace::crc32c(std::as_bytes(std::span(bytes).first(60)));
  for (std::size_t i = 0; i < 4; ++i) bytes[60 + i] = static_cast<char>(crc >> (8 * i));
  const std::string run = make_run_with(bytes);
  expect_unreadable(run);
  EXPECT_THAT(run_nanhunt({"check", run}).err, HasSubstr("version"));
}

TEST(BadInput, a_cut_trace_is_read_as_far_as_it_goes) {
  const std::string bytes = bytes_of_trace(true);
  const std::string run = make_run_with(bytes.substr(0, bytes.size() * 2 / 3));
  EXPECT_EQ(run_nanhunt({"check", run}).status, 1);  // the fault stands before the cut
  const Outcome report = run_nanhunt({"report", run, "--text"});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("sqrt"));
  EXPECT_EQ(run_nanhunt({"info", run}).status, 0);
  EXPECT_EQ(run_nanhunt({"dump", run}).status, 0);
}

TEST(BadInput, damage_without_a_fault_gives_check_status_4) {
  std::string bytes = bytes_of_trace(false);
  // Half-way, inside a chunk: over more than a chunk's header, so that no luck hides it.
  for (std::size_t i = 0; i < 64; ++i) bytes[bytes.size() / 2 + i] = static_cast<char>(~bytes[bytes.size() / 2 + i]);
  const std::string run = make_run_with(bytes);
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 4) << check.out << check.err;
  EXPECT_THAT(check.err, HasSubstr("doctor"));
  EXPECT_TRUE(nlohmann::json::parse(run_nanhunt({"check", run, "--json"}).out)["damaged"].get<bool>());
  const Outcome doctor = run_nanhunt({"doctor", run});
  EXPECT_EQ(doctor.status, 0);
  EXPECT_THAT(doctor.out, HasSubstr("damaged"));
  EXPECT_THAT(doctor.out, HasSubstr("000000.nht: offset "));
}

TEST(BadInput, a_fault_beats_damage) {
  std::string bytes = bytes_of_trace(true);
  for (std::size_t i = 0; i < 64; ++i) bytes[bytes.size() * 3 / 4 + i] ^= 0x55;
  EXPECT_EQ(run_nanhunt({"check", make_run_with(bytes)}).status, 1);
}

TEST(BadInput, any_flipped_bit_gives_an_answer_never_a_crash) {
  const std::string good = bytes_of_trace(true);
  for (std::size_t at = 0; at < good.size(); at += good.size() / 40 + 1) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    const Outcome check = run_nanhunt({"check", make_run_with(bytes)});
    EXPECT_LE(check.status, 5) << "flipped at " << at;
    EXPECT_NE(check.status, 2) << "flipped at " << at;
  }
}

TEST(BadInput, a_run_json_of_garbage_costs_only_what_it_told) {
  const std::string run = make_folder();
  const std::string segment = write_sample_trace(run);
  write_file(fs::path(segment).parent_path() / "run.json", "{\"command\": [\xff");
  EXPECT_EQ(run_nanhunt({"check", run}).status, 1);
  EXPECT_THAT(run_nanhunt({"info", run}).out, HasSubstr("run.json"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
