// SPDX-License-Identifier: Apache-2.0
// What is wrong in a checkpoint, and what could not be judged. GUIDE.md of the command line has the table of rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/statistics.h"

namespace nanhunt::checkpoint {

enum class Severity : std::uint8_t { kFault, kWarning, kInfo };
std::string_view severity_word(Severity severity);

struct Finding {
  Severity severity = Severity::kInfo;
  std::string id;          // "nonfinite-tensor"
  std::string tensor;      // a name, or the scalar's
  std::string numbers;     // "12 NaN of 4,096, first at [0, 3]"; tensor names never stand in it
  std::string meaning;     // a sentence: what it means and what to do
  std::int64_t count = 0;  // elements, steps or tensors that it speaks of
};

struct DtypeRow {
  std::string dtype;
  std::uint64_t tensors = 0, elements = 0, zeros = 0, subnormals = 0;
  double amax = 0;
  bool floating = false, judged = false;
  int headroom_bits = 0;  // whole powers of two between the largest value and the format's largest
};

struct Judgement {
  std::vector<Finding> findings;  // faults first, then in the order of the tensors
  std::vector<DtypeRow> dtypes;
  // Each tensor is one of them: floating and read, unable to hold a NaN or Inf, neither.
  std::uint64_t judged = 0, always_finite = 0, not_judged = 0;
  std::uint64_t tensors_with_nonfinite = 0;
  bool damaged = false;
  bool partly_judged = false;  // a tensor was not judged, or a file was not read

  std::size_t count(Severity severity) const;
  // Something that could be wrong was judged, or there was only what cannot be.
  bool conclusive() const { return judged > 0 || (always_finite > 0 && not_judged == 0); }
};

Judgement judge(const Checkpoint& checkpoint, const std::vector<TensorResult>& results);

}  // namespace nanhunt::checkpoint
