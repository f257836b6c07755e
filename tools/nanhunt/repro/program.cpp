// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/repro/program.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "src/core/op_name.h"

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

// The keys of OPS in show_op.py, sorted: a test holds the two to each other.
constexpr std::string_view kOps[] = {
    "_amp_foreach_non_finite_check_and_unscale_",
    "_to_copy",
    "abs",
    "abs_backward",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmm_backward",
    "bmm",
    "bmm_backward",
    "clamp",
    "div",
    "div_backward",
    "exp",
    "exp_backward",
    "gelu",
    "lerp",
    "log",
    "log_backward",
    "log_softmax",
    "log_softmax_backward",
    "masked_fill",
    "mean",
    "mean_backward",
    "mm",
    "mm_backward",
    "mse_loss",
    "mul",
    "mul_backward",
    "native_layer_norm",
    "neg",
    "neg_backward",
    "nll_loss",
    "norm",
    "norm_backward",
    "pow",
    "pow_backward",
    "reciprocal",
    "reciprocal_backward",
    "relu",
    "rsqrt",
    "rsqrt_backward",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmax_backward",
    "sqrt",
    "sqrt_backward",
    "sub",
    "sum",
    "sum_backward",
    "tanh",
    "where",
};
static_assert(std::is_sorted(std::begin(kOps), std::end(kOps)));

constexpr std::string_view kSlot = R"(json.loads("{}"))";

}  // namespace

std::optional<std::string_view> repro_op(std::string_view op) {
  op = plain_op_name(op);
  for (int tries = 0; tries < 2; ++tries) {
    const auto* found = std::lower_bound(std::begin(kOps), std::end(kOps), op);
    if (found != std::end(kOps) && *found == op) return *found;
    if (op.size() < 2 || !op.ends_with('_')) break;
    op.remove_suffix(1);  // in place
  }
  return std::nullopt;
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
