// SPDX-License-Identifier: Apache-2.0
// Calls by number: what stays the same each time an op runs, and room for what does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "nanhunt/event.h"
#include "src/record/recorder.h"

namespace nanhunt::c_api {

// Filled in for one op row at a time.
struct Call {
  OpEvent event;
  record::OpNumbers numbers;
  std::vector<OpInput> inputs;
  std::vector<OpOutput> outputs;
  std::vector<OpScalar> scalars;
  std::vector<StringId> slots;  // of inputs, outputs, scalars
  std::vector<LayoutId> layouts;  // of inputs, outputs
};

class CallTable {
 public:
  // -1: no more can be told. Misuse where it is wrong.
  std::int64_t number(record::NumberingRecorder& recorder, const nanhunt_call& given);
  Call& of(std::int64_t number);  // Misuse where there is none

 private:
  std::deque<Call> calls_;
  std::map<std::vector<std::uint32_t>, std::int64_t> numbers_;  // by everything that tells two calls apart
  std::size_t words_ = 0;                                       // in its keys
};

}  // namespace nanhunt::c_api
