// SPDX-License-Identifier: Apache-2.0
// The part of DeviceReader for what is looked at apart from events.
#include "src/record/device/device_reader.h"

namespace nanhunt::record {

using kernels::ReadingsState;

std::uint64_t DeviceReader::look(std::size_t stream, std::span<const TensorView> tensors) {
  Stream& its = streams_[stream];
  if (its.capturing()) {
    captured_ += tensors.size();
    return 0;
  }
  Look look{.stream = stream, .ticket = its.readings->enqueue(tensors), .found = {}};
  if (look.ticket == 0) return 0;
  look.found.resize(tensors.size());
  looks_.push_back(std::move(look));
  return first_look_ + looks_.size() - 1;
}

void DeviceReader::end_looks() noexcept {
  for (Stream& stream : streams_) {
    if (!stream.capturing()) stream.readings->hand_over();  // else the copy would be part of the graph
  }
}

ReadingsState DeviceReader::look_state(std::uint64_t look) {
  if (look < first_look_ || look - first_look_ >= looks_.size()) return ReadingsState::kLost;
  Look& its = looks_[look - first_look_];
  if (its.state == ReadingsState::kPending) its.state = streams_[its.stream].readings->poll(its.ticket, its.found);
  return its.state;
}

const std::optional<TensorStats>* DeviceReader::looked_at(std::uint64_t look, std::size_t index) const {
  if (look < first_look_ || look - first_look_ >= looks_.size()) return nullptr;
  const Look& its = looks_[look - first_look_];
  return its.state == ReadingsState::kReady && index < its.found.size() ? &its.found[index] : nullptr;
}

void DeviceReader::forget_looks(std::uint64_t up_to) noexcept {
  for (; !looks_.empty() && first_look_ <= up_to; ++first_look_) {
    const Look& oldest = looks_.front();
    if (oldest.state == ReadingsState::kPending) streams_[oldest.stream].readings->drop(oldest.ticket);
    looks_.pop_front();
  }
}

}  // namespace nanhunt::record
