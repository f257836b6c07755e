// SPDX-License-Identifier: Apache-2.0
#include "src/record/writer_thread.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/record/support.h"
#include "tests/support/eventually.h"

namespace nanhunt::record {
namespace {

using std::chrono::milliseconds;
using testing::ScriptedWriter;
using testing::WriterScript;

TEST(WriterThread, does_not_tick_before_its_owner_is_ready) {
  // given a thread whose owner takes its time
  BatchQueue queue(1 << 20);
  std::atomic<int> ticks{0};
  WriterThread thread(queue, std::make_unique<ScriptedWriter>(std::make_shared<WriterScript>()), milliseconds(1),
                      [&] { ++ticks; });
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(ticks, 0);
  // when the owner is ready
  thread.start();
  // then it ticks
  EXPECT_TRUE(testing_support::eventually([&] { return ticks > 0; }));
}

}  // namespace
}  // namespace nanhunt::record
