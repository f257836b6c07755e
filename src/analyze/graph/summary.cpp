// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/summary.h"

#include <fmt/format.h>

namespace nanhunt::analyze {

OpPlace place_of(const OpRef& at, const Names& names) {
  OpPlace place;
  place.step = at.step;
  place.micro_batch = at.micro_batch;
  place.phase = at.phase;
  place.seq = at.seq;
  if (const std::string& module = names.text(at.module); !module.empty()) place.module = module;
  if (const std::string& op = names.text(at.op); !op.empty()) place.op = op;
  return place;
}

std::string place_text(const OpRef& at, const Names& names) {
  const std::string& op = names.text(at.op);
  const std::string& module = names.text(at.module);
  if (module.empty()) return op;
  return at.phase == Phase::kOptimizer ? fmt::format("{} in the update of {}", op, module)
                                       : fmt::format("{} in {}", op, module);
}

std::string arg_name(const ArgSnapshot& arg, const Names& names) {
  const std::string& name = names.text(arg.name);
  return arg.is_gradient && !name.empty() ? name + ".grad" : name;
}

TensorSummary summarise(const ArgSnapshot& arg, const char* role, int index, const Names& names) {
  TensorSummary out;
  out.role = role;
  out.slot = names.text(arg.slot);
  out.index = index;
  out.name = arg_name(arg, names);
  if (const LayoutRecord* layout = names.layout(arg.layout)) {
    out.dtype = layout->dtype;
    out.shape = layout->sizes;
  }
  out.arg_role = arg.role;
  out.has_stats = arg.known && arg.stats.counted();
  if (arg.known) out.stats = expand(arg.stats);
  out.flushed = arg.flushed;
  return out;
}

}  // namespace nanhunt::analyze
