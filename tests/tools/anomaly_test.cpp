// SPDX-License-Identifier: Apache-2.0
// train --anomaly prints PyTorch's words and the origin beside them; train --device falls back and says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nanhunt/engine/device.h"
#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(TrainAnomaly, prints_what_pytorch_says_and_the_origin_beside_it) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "sqrt-backward", "--anomaly", "--out", run});
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("Anomaly mode ended training: Function 'MulBackward0' returned nan values in its 0th "
                                     "output.\n"));
  EXPECT_THAT(trained.out, HasSubstr("\nWhere that came from: sqrt_backward in <loss>"));
  EXPECT_EQ(run_nanhunt({"check", run}).status, 1);
  const json report = json::parse(run_nanhunt({"report", run, "--json"}).out);
  EXPECT_EQ(report["findings"][0]["op"], "sqrt_backward");
  EXPECT_THAT(report["findings"][0]["explanation"].get<std::string>(), HasSubstr("Function 'MulBackward0' returned nan"));
}

TEST(TrainAnomaly, leaves_a_healthy_run_alone) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "sqrt-backward-fixed", "--anomaly", "--out", run});
  EXPECT_EQ(trained.out.find("Anomaly"), std::string::npos) << trained.out;
  EXPECT_EQ(run_nanhunt({"check", run}).status, 0);
}

TEST(TrainDevice, that_is_missing_is_told_once_and_the_cpu_gives_its_results) {
  if (engine::why_unusable(*engine::parse_device("cuda")).empty()) GTEST_SKIP() << "there is a GPU";
  const auto train = [](const char* device) {
    return run_nanhunt({"train", "adam-eps-fixed", "--level", "off", "--steps", "5", "--device", device, "--json"});
  };
  const Outcome fallen_back = train("cuda"), cpu = train("cpu");
  EXPECT_EQ(fallen_back.status, 0);
  EXPECT_EQ(fallen_back.out, cpu.out);
  const std::string words = "Training runs on the CPU instead";
  const std::size_t told = fallen_back.err.find(words);
  ASSERT_NE(told, std::string::npos) << fallen_back.err;
  EXPECT_EQ(fallen_back.err.find(words, told + 1), std::string::npos) << fallen_back.err;
  EXPECT_EQ(cpu.err.find(words), std::string::npos);
}

}  // namespace
}  // namespace nanhunt::testing_tools
