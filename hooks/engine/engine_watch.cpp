// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/op_adapter.h"

namespace nanhunt::hooks {

EngineWatch::EngineWatch(Recorder& recorder)
    : adapter_(std::make_unique<OpAdapter>(recorder)), handle_(engine::add_observer(*adapter_)) {}

EngineWatch::~EngineWatch() = default;

}  // namespace nanhunt::hooks
