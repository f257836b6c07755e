// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/repro/program.h"

#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "src/core/op_name.h"
#include "src/core/ops/op_info.h"

// show_op.py as bytes of the binary; the build says where it is (CMakeLists.txt).
__asm__(
    ".section .rodata.nanhunt_show_op,\"a\",@progbits\n"
    ".global nanhunt_show_op_begin\n"
    ".global nanhunt_show_op_end\n"
    "nanhunt_show_op_begin:\n"
    ".incbin \"" NANHUNT_SHOW_OP
    "\"\n"
    "nanhunt_show_op_end:\n"
    ".byte 0\n"
    ".text\n");

extern "C" {
extern const char nanhunt_show_op_begin[];
extern const char nanhunt_show_op_end[];
}

namespace nanhunt::cli {
namespace {

using nlohmann::json;

constexpr std::string_view kSlot = R"(json.loads("{}"))";

}  // namespace

std::optional<std::string_view> repro_op(std::string_view op) {
  op = table_name(op);
  const std::string_view forward = forward_op_name(op);
  const std::string_view listed = forward.empty() ? op : forward;
  const OpInfo& info = op_info(listed);
  if (info.name != listed || !info.has(forward.empty() ? kNumpy : kNumpyGradient)) return std::nullopt;
  return op;
}

bool repro_knows(DType dtype) { return dtype != DType::kE4M3FN && dtype != DType::kE5M2; }

std::string repro_program(const ReproCase& what) {
  json inputs = json::array(), scalars = json::object();
  for (const ReproCase::Input& input : what.inputs) {
    inputs.push_back(
        {{"slot", reports::json_text(input.slot)}, {"array", input.array}, {"dtype", dtype_name(input.dtype)}});
  }
  for (const auto& [name, value] : what.scalars)
    scalars[reports::json_text(name).get<std::string>()] = reports::json_number(value);
  const json data = {{"op", what.op},
                     {"place", reports::json_text(what.place)},
                     {"inputs", std::move(inputs)},
                     {"scalars", std::move(scalars)},
                     {"compute", dtype_name(what.compute_dtype)},
                     {"output",
                      {{"slot", reports::json_text(what.output_slot)},
                       {"dtype", dtype_name(what.output_dtype)},
                       {"shape", what.output_shape}}},
                     {"element", what.element ? json(*what.element) : json()},
                     {"recorded", what.recorded ? reports::json_number(*what.recorded) : json()}};
  // JSON in a string: dump_json gives ASCII, and what JSON escapes in a string Python reads back.
  std::string literal = "json.loads(";
  literal.append(json(reports::dump_json(data, -1)).dump(-1, ' ', /*ensure_ascii=*/true)).append(")");
  std::string program(nanhunt_show_op_begin, nanhunt_show_op_end);
  program.replace(program.find(kSlot), kSlot.size(), literal);
  return program;
}

}  // namespace nanhunt::cli
