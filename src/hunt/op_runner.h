// SPDX-License-Identifier: Apache-2.0
// An op computed again from given numbers, apart from any run. Implemented above this layer (hooks/engine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/dtype.h"
#include "nanhunt/event.h"
#include "nanhunt/status.h"

namespace nanhunt::hunt {

// Numbers that outlive their tensor.
struct Array {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  std::vector<int> order;        // dimensions from outermost to innermost in memory; empty: row-major. Kernels may
                                 // sum up in another order for another layout
  std::vector<std::byte> bytes;  // row-major, whatever `order` says

  std::int64_t numel() const { return static_cast<std::int64_t>(bytes.size() / dtype_size(dtype)); }
  double at(std::int64_t flat_index) const {
    return load_as_f64(dtype, bytes.data() + static_cast<std::size_t>(flat_index) * dtype_size(dtype));
  }
};

// The same numbers in another floating format, rounded once; what is no floating number stays as it is.
Array converted(const Array& array, DType dtype);

struct RunnerInput {
  std::string_view slot;
  const Array* array = nullptr;
};
struct RunnerOutput {
  std::string_view slot;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
};
// Names are those of the trace. The op computes in the op math of its inputs' formats, or in `arithmetic` where that
// has 16 bits and its inputs too. Everything is borrowed.
struct RunnerCall {
  std::string_view op;
  std::vector<RunnerInput> inputs;
  std::vector<std::pair<std::string_view, double>> scalars;
  std::vector<RunnerOutput> outputs;  // as they were in the run: ops like "view" take their shape from it
  DType arithmetic = DType::kF32;
};

class OpRunner {
 public:
  virtual ~OpRunner() = default;
  virtual bool knows(std::string_view op) const = 0;
  // One entry per output of the call, in its order; none where it is no result of the op alone. kUnsupported: this op,
  // or this use of it, cannot be computed again.
  virtual Result<std::vector<std::optional<Array>>> run(const RunnerCall& call) = 0;
};

}  // namespace nanhunt::hunt
