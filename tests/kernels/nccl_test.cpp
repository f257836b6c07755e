// SPDX-License-Identifier: Apache-2.0
// How NCCL is looked for. What is asked of it: tests/engine/ranks/nccl_group_test.cpp.
#include "kernels/nccl.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace nanhunt::kernels {
namespace {

using ::testing::HasSubstr;

class Nccl : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("NANHUNT_NCCL"); }
};

TEST_F(Nccl, that_is_named_and_not_there_is_said_with_its_name) {
  setenv("NANHUNT_NCCL", "/nowhere/libnccl.so.2", 1);
  NcclFunctions found;
  std::string why;
  EXPECT_FALSE(find_nccl(found, why));
  EXPECT_THAT(why, HasSubstr("NANHUNT_NCCL names /nowhere/libnccl.so.2, which cannot be used: "));
}

TEST_F(Nccl, that_lacks_a_function_is_refused_by_its_name) {
  setenv("NANHUNT_NCCL", "libm.so.6", 1);
  NcclFunctions found;
  std::string why;
  EXPECT_FALSE(find_nccl(found, why));
  EXPECT_THAT(why, HasSubstr("libm.so.6 has no ncclGetUniqueId"));
}

TEST_F(Nccl, is_taken_whole_or_said_to_be_nowhere_with_what_to_do) {
  NcclFunctions found;
  std::string why;
  if (find_nccl(found, why)) {
    EXPECT_EQ(why, "");
    EXPECT_NE(found.get_error_string, nullptr);  // the last that is looked for
    return;
  }
  EXPECT_THAT(why, HasSubstr("NCCL was not found (libnccl.so.2). Install it"));
  EXPECT_THAT(why, HasSubstr("NANHUNT_NCCL"));
}

}  // namespace
}  // namespace nanhunt::kernels
