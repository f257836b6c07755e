// SPDX-License-Identifier: Apache-2.0
// The trigger policy, lent out.
#include "src/hunt/trigger_policy.h"

#include <new>
#include <string>

#include "nanhunt/c_adapter.h"
#include "src/c_api/convert.h"
#include "src/c_api/error.h"

struct nanhunt_trigger_policy {
  nanhunt::hunt::TriggerPolicy policy;
};

static_assert(NANHUNT_TRIP_REPLAY == static_cast<int>(nanhunt::hunt::Trigger::kReplay));
static_assert(NANHUNT_TRIP_SPENT == static_cast<int>(nanhunt::hunt::Trigger::kSpent));

extern "C" {

nanhunt_trigger_policy* nanhunt_trigger_policy_new(uint32_t max_triggers, uint32_t distance) {
  nanhunt::hunt::TriggerOptions options;
  if (max_triggers != 0) options.max_triggers = max_triggers;
  if (distance != 0) options.distance = distance;
  auto* policy = new (std::nothrow) nanhunt_trigger_policy{nanhunt::hunt::TriggerPolicy(options)};
  if (policy == nullptr) nanhunt::c_api::fail(NANHUNT_INTERNAL, "out of memory");
  return policy;
}

int32_t nanhunt_trigger_policy_judge(nanhunt_trigger_policy* policy, uint32_t step, int32_t harm) {
  using namespace nanhunt::c_api;
  std::int32_t trigger = -1;
  guarded([&]() -> nanhunt_status {
    if (policy == nullptr) return fail(NANHUNT_USAGE, "nanhunt_trigger_policy_judge: expected a policy, got NULL");
    if (harm < 0 || harm > static_cast<std::int32_t>(nanhunt::hunt::Harm::kHarm)) {
      return fail(NANHUNT_USAGE, "nanhunt_trigger_policy_judge: harm: expected 0 to 2");
    }
    trigger = static_cast<std::int32_t>(policy->policy.judge(step, static_cast<nanhunt::hunt::Harm>(harm)));
    return NANHUNT_OK;
  });
  return trigger;
}

void nanhunt_trigger_policy_free(nanhunt_trigger_policy* policy) { delete policy; }

}  // extern "C"
