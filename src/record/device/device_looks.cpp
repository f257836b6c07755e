// SPDX-License-Identifier: Apache-2.0
// The part of DeviceReader for what is looked at apart from events.
#include "src/record/device/device_reader.h"

namespace nanhunt::record {

using kernels::ReadingsState;

namespace {
constexpr std::size_t kTensorsToALook = 4096;  // a copy begins after so many, or with the end of the step
}

// What was not to be read but for the others was read where one of them is not finite.
void DeviceReader::Look::settle(ReadingsState now) {
  state = now;
  if (state != ReadingsState::kReady || made == 0) return;
  for (std::size_t i = made; i < found.size(); ++i)
    if (found[i] && found[i]->level == StatsLevel::kFinite) found[i].reset();
}

std::uint64_t DeviceReader::look(std::size_t stream, std::span<const TensorView> tensors, std::size_t made) {
  Stream& its = streams_[stream];
  if (its.capturing()) {
    captured_ += made;
    return 0;
  }
  const auto ticket = made > 0 ? its.readings->look(tensors, made) : its.readings->enqueue(tensors);
  Look look{.stream = stream, .ticket = ticket, .made = made, .found = {}};
  if (look.ticket == 0) return 0;
  look.found.resize(tensors.size());
  looks_.push_back(std::move(look));
  // A long step asks for more than there are slots: what has come makes room.
  its.tensors_since_copy += tensors.size();
  if (its.tensors_since_copy >= kTensorsToALook) {
    its.readings->hand_over();
    its.tensors_since_copy = 0;
    for (std::uint64_t i = 0; i < looks_.size(); ++i) static_cast<void>(look_state(first_look_ + i));
  }
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
  if (its.state == ReadingsState::kPending) its.settle(streams_[its.stream].readings->poll(its.ticket, its.found));
  return its.state;
}

const std::optional<TensorStats>* DeviceReader::looked_at(std::uint64_t look, std::size_t index) const {
  if (look < first_look_ || look - first_look_ >= looks_.size()) return nullptr;
  const Look& its = looks_[look - first_look_];
  return its.state == ReadingsState::kReady && index < its.found.size() ? &its.found[index] : nullptr;
}

void DeviceReader::forget_look(std::uint64_t look) noexcept {
  if (look < first_look_ || look - first_look_ >= looks_.size()) return;
  Look& its = looks_[look - first_look_];
  if (its.state == ReadingsState::kPending) streams_[its.stream].readings->drop(its.ticket);
  its.state = ReadingsState::kLost;
  its.is_forgotten = true;
  its.found = {};
  for (; !looks_.empty() && looks_.front().is_forgotten; ++first_look_) looks_.pop_front();
}

}  // namespace nanhunt::record
