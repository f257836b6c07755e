// SPDX-License-Identifier: Apache-2.0
// The stand-alone program that `nanhunt repro` writes: show_op.py with one case as data in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/dtype.h"

namespace nanhunt::cli {

struct ReproCase {
  struct Input {
    std::string slot;   // raw, as the run named it
    std::string array;  // in inputs.safetensors
    DType dtype = DType::kF32;
  };
  std::string_view op;  // from repro_op(): a name of the op table
  std::string place;    // for people, raw
  std::vector<Input> inputs;
  std::vector<std::pair<std::string, double>> scalars;
  std::string output_slot;
  DType output_dtype = DType::kF32, compute_dtype = DType::kF32;
  std::vector<std::int64_t> output_shape;
  std::optional<std::int64_t> element;
  std::optional<double> recorded;  // that element in the run
};

// The name by which the program knows the op of a trace ("add" for "aten::add_.Tensor"); nothing: it does not.
std::optional<std::string_view> repro_op(std::string_view op);
// A format that the program reads and stores.
bool repro_knows(DType dtype);

// Names and numbers of the case stand in it as one ASCII string of JSON, never as code.
std::string repro_program(const ReproCase& what);

}  // namespace nanhunt::cli
