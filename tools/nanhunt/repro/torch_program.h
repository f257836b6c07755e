// SPDX-License-Identifier: Apache-2.0
// The stand-alone program that `nanhunt repro` writes for a PyTorch run: one call of the dispatcher, whose arguments
// stand beside the captured inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nanhunt/status.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::cli {

struct TorchRepro {
  std::string op;      // "aten::addcdiv_"
  std::string program;
  trace::Safetensors inputs;  // by names of our own
};

// Whether the capture says how PyTorch called the op.
bool has_torch_call(const trace::Safetensors& captured);

// Refuses what is no op of the analyzer's table in PyTorch's own namespace, and arguments that are no plain data: what
// a trace says is never code. `place` is for people.
Result<TorchRepro> torch_repro(const trace::Safetensors& captured, const std::string& place,
                               std::optional<std::int64_t> element, std::optional<double> recorded);

}  // namespace nanhunt::cli
