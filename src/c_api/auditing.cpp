// SPDX-License-Identifier: Apache-2.0
// The optimizer pre-audit, lent out.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"
#include "src/hunt/pre_audit.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::c_api {
namespace {

hunt::PreAuditOptions options_of(const nanhunt_audit_options& given) {
  hunt::PreAuditOptions options;
  options.algorithm = text_of(given.algorithm);
  if (options.algorithm != "sgd" && options.algorithm != "adam" && options.algorithm != "adamw") {
    throw Misuse("nanhunt_pre_audit: algorithm: expected sgd, adam or adamw, got '" +
                 std::string(options.algorithm.substr(0, 100)) + "'");
  }
  options.lr = given.lr;
  options.momentum = given.momentum;
  options.nesterov = given.nesterov != 0;
  options.beta1 = given.beta1;
  options.beta2 = given.beta2;
  options.eps = given.eps;
  options.weight_decay = given.weight_decay;
  options.fused = given.fused != 0;
  return options;
}

nanhunt_audit audit_of(const hunt::PreAudit& audit, std::uint32_t struct_size) {
  nanhunt_audit result{};
  result.struct_size = struct_size;
  result.read_elements = audit.read_elements ? 1 : 0;
  result.triggers = audit.triggers() ? 1 : 0;
  result.zero_over_zero = audit.zero_over_zero;
  result.x_over_zero = audit.x_over_zero;
  result.bad_denominators = audit.bad_denominators;
  result.bad_updates = audit.bad_updates;
  result.bad_state = audit.bad_state;
  result.first_index = audit.first_index;
  return result;
}

void read_memory(const nanhunt_audit_memory& given, hunt::PreAuditMemory& memory) {
  if (given.known != 0) memory = {given.first, given.param, given.balanced != 0};
}

void renew_memory(const hunt::PreAuditMemory& from, nanhunt_audit_memory& memory) {
  const bool known = !std::isnan(from.first) || !std::isnan(from.param) || from.balanced;
  memory = {from.first, from.param, from.balanced ? 1 : 0, known ? 1 : 0};
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

nanhunt_status nanhunt_pre_audit(nanhunt_recorder* recorder, const nanhunt_audit_options* options,
                                 const int64_t* values, int64_t step, double grad_amax, nanhunt_audit_memory* memory,
                                 nanhunt_audit* result) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    nanhunt_audit_options defaults{};
    const hunt::PreAuditOptions how = options_of(sized_copy("nanhunt_pre_audit", options, defaults));
    const nanhunt_audit given = sized_copy("nanhunt_pre_audit", result);
    if (values == nullptr) throw Misuse("nanhunt_pre_audit: expected four values, got NULL");
    if (step < 1) throw Misuse("nanhunt_pre_audit: step: expected 1 or more, got " + std::to_string(step));
    hunt::PreAuditInput input;
    std::array<TensorView*, 4> views = {&input.grad, &input.param, &input.first, &input.second};
    constexpr std::array<const char*, 4> kNames = {"gradient", "parameter", "first moment", "second moment"};
    for (std::size_t i = 0; i < views.size(); ++i) {
      // The format of a parameter is needed also where it cannot be read.
      if (i < 2 || values[2 * i] != 0) *views[i] = to.layouts.tensor(kNames[i], values[2 * i], values[2 * i + 1]);
    }
    if (input.grad.data == nullptr) throw Misuse("nanhunt_pre_audit: the gradient has no data");
    input.step = step;
    input.grad_amax = grad_amax;
    if (memory != nullptr) read_memory(*memory, input.memory);
    const record::ScopedDefaultFpEnvironment environment;
    const hunt::PreAudit audit = hunt::pre_audit(how, input);
    if (memory != nullptr) renew_memory(audit.memory, *memory);
    give_back(audit_of(audit, given.struct_size), result);
  });
}

}  // extern "C"
