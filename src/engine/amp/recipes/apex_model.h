// SPDX-License-Identifier: Apache-2.0
// Of the engine's layers those that Apex and fastai keep in fp32. It has no batch norm without weight and bias, which
// they would convert.
#pragma once

#include "nanhunt/engine/modules.h"

namespace nanhunt::engine {

inline bool is_batch_norm(const Module& module) { return dynamic_cast<const BatchNorm2d*>(&module) != nullptr; }

}  // namespace nanhunt::engine
