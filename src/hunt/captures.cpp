// SPDX-License-Identifier: Apache-2.0
// Captured numbers on their way into files.
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "src/core/text.h"
#include "src/hunt/counterfactual.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::hunt {
namespace {

std::string numbered(const char* kind, std::uint64_t seq) {
  return std::string(kind).append("-").append(std::to_string(seq)).append(".safetensors");
}

void add(trace::Safetensors& file, std::string name, const Array& array) {
  for (const trace::NamedArray& known : file.arrays) {
    if (known.name == name) return add(file, name.append("'"), array);  // a slot that is named twice
  }
  file.arrays.push_back({std::move(name), array.dtype, array.sizes, array.bytes});
}

}  // namespace

Status write_captures(const OriginPlan& plan, const Reenactment& seen, Recorder& recorder) {
  if (plan.ops.empty() || seen.ops.empty() || !seen.ops[0].seen) return {};
  const std::string folder = recorder.attempt_dir() + "/captures";
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return {StatusCode::kWriteFailed, "could not make the folder '" + folder + "'."};
  const PlannedOp& origin = plan.ops[0];
  trace::Safetensors op, slice;
  for (std::size_t i = 0; i < origin.inputs.size(); ++i) {
    if (seen.ops[0].inputs[i]) add(op, printable(origin.inputs[i].slot), *seen.ops[0].inputs[i]);
  }
  for (std::size_t at = 0; at < plan.ops.size(); ++at) {
    for (std::size_t i = 0; seen.ops[at].seen && i < plan.ops[at].inputs.size(); ++i) {
      const PlannedValue& input = plan.ops[at].inputs[i];
      if (input.producer < 0 && seen.ops[at].inputs[i])
        add(slice, std::to_string(plan.ops[at].seq).append(".").append(printable(input.slot)), *seen.ops[at].inputs[i]);
    }
  }
  for (trace::Safetensors* file : {&op, &slice}) {
    file->metadata = {{"format", "nanhunt.capture"}, {"version", "1"}, {"seq", std::to_string(origin.seq)},
                      {"step", std::to_string(plan.step)}};
  }
  for (const auto& [kind, file] : {std::pair("op", &op), std::pair("slice", &slice)}) {
    if (file == &slice && plan.ops.size() < 2) continue;  // nothing beyond the op itself
    const std::string name = numbered(kind, origin.seq);
    if (Status written = trace::write_safetensors(folder + "/" + name, *file); !written) return written;
    std::uint64_t bytes = 0;
    for (const trace::NamedArray& array : file->arrays) bytes += array.bytes.size();
    recorder.on_capture({origin.seq, plan.step, name, bytes});
  }
  return {};
}

}  // namespace nanhunt::hunt
