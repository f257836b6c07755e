// SPDX-License-Identifier: Apache-2.0
// A libcupti and libcuda in one for the tests: it keeps the ids that are pushed, makes the records that a launch would
// make, and hands them over in an order of the test's choosing. Loaded by path.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nanhunt::fake {

struct FakeKernel {
  std::string name;  // empty: none is given
  std::uint64_t start = 0, end = 0;
};

struct FakeCupti {
  // What it plays.
  std::uint32_t version = 130001;
  int subscribe_result = 0;
  std::string incumbent;
  int refused_kind = 0;
  int push_result = 0;
  bool context_active = false;
  bool driver_calls_back = true;
  std::uint64_t dropped = 0;       // told with the next buffer
  bool hold_kernels = false;       // kernel records stay inside until they are let go
  unsigned shuffle = 0;            // 0: in the order in which they were made
  std::function<void()> on_flush;  // before a flush does anything
  std::function<void()> on_push;   // inside of a push

  // What was asked of it, in order: "subscribe nanhunt", "enable 10", "disable 10", "unsubscribe", "finalize" ...
  std::vector<std::string> calls;
  int buffers_out = 0;  // asked for and not handed back
  std::vector<std::size_t> dirty;  // offsets of bytes that were not 0 in a buffer it was given

  // As it was when it was loaded, whatever an earlier test of the process made of it. Nothing may be attached.
  void (*start_over)() = nullptr;
  // A launch on the calling thread: one kernel, or those of a graph.
  void (*launch)(const std::vector<FakeKernel>& kernels, bool graph) = nullptr;
  // A driver call that launches nothing.
  void (*other_call)() = nullptr;
  // As CUPTI's worker does: asks for a buffer and keeps it. False: it was refused.
  bool (*take_buffer)() = nullptr;
  // Hands over what was kept, as if full of launches; `incomplete`: with a record without a kind at its end.
  void (*return_buffers)(bool incomplete) = nullptr;
};

}  // namespace nanhunt::fake

extern "C" {
nanhunt::fake::FakeCupti* fake_cupti();
// For tests that are no C++.
void fake_cupti_start_over();
void fake_cupti_refuse(int result, const char* incumbent);  // every subscription; 0: none
void fake_cupti_launch(const char* name, std::uint64_t start, std::uint64_t end);
const char* fake_cupti_calls();  // what was asked of it, a line each; valid until the next call of this
}
