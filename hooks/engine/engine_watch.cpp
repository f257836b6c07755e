// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/engine_hooks.h"
#include "hooks/engine/op_adapter.h"
#include "hooks/engine/tensor_reader.h"

namespace nanhunt::hooks {

EngineWatch::EngineWatch(Recorder& recorder, DeviceStats stats)
    : reader_(stats == DeviceStats::kDeferred ? std::make_unique<TensorReader>(recorder) : nullptr),
      adapter_(std::make_unique<OpAdapter>(recorder, reader_.get())),
      handle_(engine::add_observer(*adapter_)) {}

kernels::ReadingsCounts EngineWatch::readings() const {
  return reader_ ? reader_->counts() : kernels::ReadingsCounts{};
}

EngineWatch::~EngineWatch() = default;

}  // namespace nanhunt::hooks
