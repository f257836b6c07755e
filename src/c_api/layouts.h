// SPDX-License-Identifier: Apache-2.0
// Layouts by the caller's number, which is the trace's less one: a row's four words become a value without a look-up.
#pragma once

#include <cstdint>
#include <vector>

#include "nanhunt/event.h"
#include "nanhunt/trace.h"
#include "src/record/recorder.h"

namespace nanhunt::c_api {

inline constexpr std::size_t kValueWords = 4;

class LayoutTable {
 public:
  // -1: refused.
  std::int64_t number(record::NumberingRecorder& recorder, const TensorView& like);

  // Misuse where there is no such layout. `what` is for the words.
  const TensorView& of(const char* what, std::int64_t number) const;
  TensorView tensor(const char* what, std::int64_t data, std::int64_t number) const;
  // Data address, identity, offset, layout number with or without a stream's number: whose device has the address is
  // for the caller to ask.
  ValueView value(const char* what, const std::int64_t* words) const;
  // Of the fourth word.
  static std::int64_t number_in(std::int64_t word) { return word < 0 ? word : word & 0xFFFFFFFF; }
  static std::int64_t stream_in(std::int64_t word) { return word >> 32; }
  static LayoutId id_of(std::int64_t word) { return static_cast<LayoutId>(number_in(word) + 1); }

 private:
  std::vector<TensorView> views_;  // without data; a view of no elements has some all the same
};

}  // namespace nanhunt::c_api
