// SPDX-License-Identifier: Apache-2.0
// An observer that writes down each op as one line:
// "forward fc1 add/fp32 self:0 other:2 -> out:0 {alpha=1}", with ":version" and "(role)" unless plainly read.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "nanhunt/engine/hooks.h"

namespace nanhunt::engine::testing {

class OpRecorder : public Observer {
 public:
  std::vector<std::string> lines;

  void on_op(const OpCall& call) noexcept override {
    std::string line = fmt::format("{} {}{}{}/{}", phase_name(call.phase), call.module, call.module.empty() ? "" : " ",
                                   call.op, dtype_name(call.compute_dtype));
    for (const OpArgument& in : call.inputs) line += fmt::format(" {}:{}{}", in.slot, in.version, role(in.role));
    line += " ->";
    for (const OpArgument& out : call.outputs) line += fmt::format(" {}:{}", out.slot, out.version);
    std::string scalars;
    for (const OpScalar& s : call.scalars)
      scalars += fmt::format("{}{}={}", scalars.empty() ? "" : " ", s.name, s.value);
    if (!scalars.empty()) line += " {" + scalars + "}";
    lines.push_back(std::move(line));
  }

 private:
  static std::string role(ArgRole role) {
    switch (role) {
      case ArgRole::kRead:
        return "";
      case ArgRole::kSaved:
        return "(saved)";
      case ArgRole::kOverwritten:
        return "(overwritten)";
      case ArgRole::kMask:
        return "(mask)";
      case ArgRole::kIndex:
        return "(index)";
    }
    return "(?)";
  }
};

}  // namespace nanhunt::engine::testing
