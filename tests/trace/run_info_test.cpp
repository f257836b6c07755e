// SPDX-License-Identifier: Apache-2.0
#include "src/trace/run/run_info.h"

#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "src/trace/encoding/limits.h"
#include "tests/trace/batch_text.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

using trace::parse_run_info;
using trace::run_info_text;

class RunInfoText : public TraceTest {};

TEST_F(RunInfoText, every_field_comes_back) {
  RunInfo before = info();
  before.rank = std::numeric_limits<std::uint32_t>::max();
  before.world_size = 8;
  before.attempt = 3;
  before.pid = std::numeric_limits<std::int64_t>::min();
  before.command.push_back("a \"quoted\"\n\x1b[31m argument");
  before.options.emplace_back("seed", "8");  // twice the same name
  RunInfo after;
  ASSERT_TRUE(parse_run_info(run_info_text(before), after));
  EXPECT_EQ(info_text(after), info_text(before));
}

TEST_F(RunInfoText, it_names_its_schema_and_its_volatile_fields) {
  const auto json = nlohmann::json::parse(run_info_text(info()));
  EXPECT_EQ(json.at("schema"), "nanhunt.run");
  EXPECT_EQ(json.at("schema_version"), 1);
  const auto names = json.at("volatile").get<std::vector<std::string>>();
  EXPECT_EQ(names, (std::vector<std::string>{"host", "pid", "started"}));
  for (const std::string& name : names) EXPECT_TRUE(json.contains(name));
}

TEST_F(RunInfoText, bytes_that_are_not_utf8_give_valid_json) {
  RunInfo before = info();
  before.command = {"caf\xe9", "\xff"};
  RunInfo after;
  ASSERT_TRUE(parse_run_info(run_info_text(before), after));
  EXPECT_EQ(after.command[0], "caf\xef\xbf\xbd");
}

TEST_F(RunInfoText, what_is_no_run_json_leaves_the_info_as_it_was) {
  const std::string deep(200'000, '[');
  for (const std::string& text : {std::string(), std::string("{"), std::string("null"), std::string("[]"),
                                  std::string("{\"schema\": \"other\"}"), std::string("{\"schema\": 7}"), deep}) {
    RunInfo out = info();
    EXPECT_FALSE(parse_run_info(text, out)) << text.substr(0, 40);
    EXPECT_EQ(info_text(out), info_text(info()));
  }
}

TEST_F(RunInfoText, fields_of_the_wrong_type_or_size_keep_their_defaults) {
  RunInfo out;
  ASSERT_TRUE(parse_run_info(R"({"schema": "nanhunt.run", "command": "x", "dtypes": [1, "fp16", null], "rank": -1,
      "world_size": 4294967296, "attempt": 1.5, "pid": 18446744073709551615, "host": {}, "options": [["a"], ["b", 1],
      ["c", "d"], "e"], "device": "cpu", "unknown": [[[]]]})",
                             out));
  EXPECT_TRUE(out.command.empty());
  EXPECT_EQ(out.dtypes, std::vector<std::string>{"fp16"});
  EXPECT_EQ(out.rank, 0u);
  EXPECT_EQ(out.world_size, 1u);
  EXPECT_EQ(out.attempt, 0u);
  EXPECT_EQ(out.pid, 0);
  EXPECT_EQ(out.options, (std::vector<std::pair<std::string, std::string>>{{"c", "d"}}));
  EXPECT_EQ(out.device, "cpu");
}

TEST_F(RunInfoText, a_file_over_the_cap_is_not_read) {
  std::string text = run_info_text(info());
  text.append(trace::kMaxRunInfoBytes, ' ');
  const auto bytes = std::as_bytes(std::span(text));
  save(path("run.json"), {bytes.begin(), bytes.end()});
  RunInfo out;
  EXPECT_FALSE(trace::read_run_info(path("."), out));
}

TEST_F(RunInfoText, a_description_over_the_cap_is_refused_before_anything_is_made) {
  RunInfo large = info();
  large.command.assign(20, std::string(60'000, 'x'));
  const auto writer = TraceWriter::create(path("run"), large);
  EXPECT_EQ(writer.status().code(), StatusCode::kUsage);
  EXPECT_EQ(find_attempts(path("run")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace nanhunt::trace_testing
