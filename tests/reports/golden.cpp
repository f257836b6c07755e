// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nanhunt::testing_reports {

void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = NANHUNT_SOURCE_DIR "/tests/golden/reports/" + name;
  if (std::getenv("NANHUNT_REGENERATE") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path << " is missing: run with NANHUNT_REGENERATE=1 and read the difference";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(expected.str(), actual) << path << ": if the change is wanted, run with NANHUNT_REGENERATE=1";
}

}  // namespace nanhunt::testing_reports
