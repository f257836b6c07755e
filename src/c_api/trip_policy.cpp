// SPDX-License-Identifier: Apache-2.0
// The trip policy, lent out.
#include "src/hunt/trip_policy.h"

#include <new>
#include <string>

#include "nanhunt/c_adapter.h"
#include "src/c_api/convert.h"
#include "src/c_api/error.h"

struct nanhunt_trip_policy {
  nanhunt::hunt::TripPolicy policy;
};

static_assert(NANHUNT_TRIP_REPLAY == static_cast<int>(nanhunt::hunt::Trip::kReplay));
static_assert(NANHUNT_TRIP_SPENT == static_cast<int>(nanhunt::hunt::Trip::kSpent));

extern "C" {

nanhunt_trip_policy* nanhunt_trip_policy_new(uint32_t max_trips, uint32_t distance) {
  nanhunt::hunt::TripOptions options;
  if (max_trips != 0) options.max_trips = max_trips;
  if (distance != 0) options.distance = distance;
  auto* policy = new (std::nothrow) nanhunt_trip_policy{nanhunt::hunt::TripPolicy(options)};
  if (policy == nullptr) nanhunt::c_api::fail(NANHUNT_INTERNAL, "out of memory");
  return policy;
}

int32_t nanhunt_trip_policy_judge(nanhunt_trip_policy* policy, uint32_t step, int32_t harm) {
  using namespace nanhunt::c_api;
  std::int32_t trip = -1;
  guarded([&]() -> nanhunt_status {
    if (policy == nullptr) return fail(NANHUNT_USAGE, "nanhunt_trip_policy_judge: expected a policy, got NULL");
    if (harm < 0 || harm > static_cast<std::int32_t>(nanhunt::hunt::Harm::kHarm)) {
      return fail(NANHUNT_USAGE, "nanhunt_trip_policy_judge: harm: expected 0 to 2");
    }
    trip = static_cast<std::int32_t>(policy->policy.judge(step, static_cast<nanhunt::hunt::Harm>(harm)));
    return NANHUNT_OK;
  });
  return trip;
}

void nanhunt_trip_policy_free(nanhunt_trip_policy* policy) { delete policy; }

}  // extern "C"
