// SPDX-License-Identifier: Apache-2.0
// The number of a call: an op, and which arguments were given how. The recorder gives it out when it is met first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/recording.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

// -1: it was refused.
inline std::int64_t call_of(Plan& plan, const Key& key, const Recording& to) {
  for (const Plan::Known& known : plan.calls)
    if (known.key == key) return known.call;
  std::vector<const char*> inputs, outputs, scalars;
  std::vector<std::int32_t> roles;
  bool wide = false;
  for (const std::int32_t item : key) {
    if (item == kWide) {
      wide = true;
      continue;
    }
    const std::size_t index = static_cast<std::size_t>(item / 8);
    const std::int32_t how = item % 8;
    if (how == kAsResult) {
      outputs.push_back(plan.outputs.empty() ? "out" : plan.outputs[std::min(index, plan.outputs.size() - 1)].c_str());
      continue;
    }
    const Arg& arg = plan.args[index];
    if (how == kAsNumber) {
      scalars.push_back(arg.name == "state_step" ? "step" : arg.name.c_str());
    } else if (how == kAsWritten) {
      outputs.push_back(arg.name.c_str());
    } else {
      inputs.push_back(arg.name.c_str());
      roles.push_back(how == kAsTensor ? arg.role : NANHUNT_READ);
    }
  }
  nanhunt_call call{};
  call.struct_size = sizeof call;
  call.compute_dtype = wide ? NANHUNT_F64 : NANHUNT_F32;
  call.op = plan.op.c_str();
  call.input_slots = inputs.data();
  call.input_roles = roles.data();
  call.input_count = inputs.size();
  call.output_slots = outputs.data();
  call.output_count = outputs.size();
  call.scalar_names = scalars.data();
  call.scalar_count = scalars.size();
  const std::int64_t number = to.call(to.self, &call);
  if (number >= 0) plan.calls.push_back({key, number});
  return number;
}

// Counts of an optimizer's steps that a fused op is given, one for each element; empty: they are not numbers of the host.
inline std::vector<double> steps_of(const Plan& plan, const std::vector<c10::IValue>& args, std::size_t n) {
  std::vector<double> steps;
  if (plan.state_steps == nullptr || plan.op.rfind("aten::_fused_adam", 0) != 0) return steps;
  each_tensor(args[static_cast<std::size_t>(plan.state_steps->index)], [&](const at::Tensor& t) {
    if (t.device().is_cpu() && t.numel() == 1 && t.scalar_type() == at::kFloat)
      steps.push_back(*static_cast<const float*>(t.const_data_ptr()));
  });
  if (steps.size() != n) steps.clear();
  return steps;
}

}  // namespace nanhunt::tap
