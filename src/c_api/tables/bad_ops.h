// SPDX-License-Identifier: Apache-2.0
// Ops that gave a number that is not finite, one flat row each: what queries over many ranks begin with.
#pragma once

#include "src/c_api/tables/record_tables.h"

namespace nanhunt::c_api {

TableKind bad_ops_kind();

}  // namespace nanhunt::c_api
