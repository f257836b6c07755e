// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/device_reader.h"

#include <algorithm>
#include <utility>

#include "hooks/engine/read_group.h"
#include "src/engine/backend.h"

namespace nanhunt::hooks {
namespace {

using kernels::ReadingsState;

constexpr std::size_t kTensorsToACopy = 2048;  // a copy begins after so many, or with the end of the step

}  // namespace

DeviceReader::~DeviceReader() {
  try {
    finish();
  } catch (...) {  // no memory: the recorder gives up what it is not told
  }
}

void DeviceReader::finish() {
  if (readings_ == nullptr) return;
  while (!under_way_.empty()) {
    const PendingReading taken = std::move(under_way_.front());
    under_way_.pop_front();
    results_.resize(taken.readings.size());
    kernels::ReadingExtras found;
    const ReadingsState state = readings_->wait(taken.ticket, results_, &found);
    tell(taken, state, found);
  }
}

void DeviceReader::forget() noexcept {
  views_.clear();
  calls_.clear();
  at_hand_.ticket = 0;
  at_hand_.readings.clear();
  at_hand_.findings.reset();
  references_.clear();
  old_.clear();
  at_hand_.findings.reset();
}

bool DeviceReader::can_read(const engine::Tensor& tensor) {
  if (tensor.device().is_cpu()) return false;
  if (!opened_) {
    opened_ = true;
    device_ = tensor.device();
    std::string why;
    readings_ = kernels::DeviceReadings::open(engine::backend_of(device_), kReadings, why);
    if (readings_ == nullptr) recorder_.on_note({0, "statistics on the device, so contents were copied: " + why, 1});
  }
  return readings_ != nullptr && tensor.device() == device_;
}

void DeviceReader::read(const engine::Tensor& tensor, ValueView& value) {
  value.tensor.data = nullptr;
  const auto contents = contents_.know(value);
  for (const Reading& reading : at_hand_.readings) {  // mul(x, x)
    if (reading.contents != contents) continue;
    value.late = reading.number;
    return;
  }
  views_.push_back(device_view(tensor));
  references_.push_back(record::DeviceContents::tag(*contents));
  at_hand_.readings.push_back({++last_number_, contents, !contents->has_reference});
  value.late = last_number_;
}

bool DeviceReader::was_read(const ValueView& value) { return contents_.find(value) != nullptr; }

void DeviceReader::overwritten(std::size_t input, const ValueView& value) {
  const auto old = contents_.find(value);
  if (old != nullptr && old->reference != 0) old_.emplace_back(input, old->reference);
}

void DeviceReader::release(std::uint64_t storage) noexcept { contents_.release(storage); }

// The event's lists are the call's without what is not defined.
std::uint64_t DeviceReader::read_evidence(const engine::OpCall& call, const OpEvent& event) {
  if (readings_ == nullptr) return 0;
  const auto fill = [&](std::vector<record::DeviceOperand>& operands, auto arguments, auto values) {
    operands.clear();
    for (const engine::OpArgument& argument : arguments) {
      if (argument.tensor == nullptr || !argument.tensor->defined()) continue;
      operands.push_back(operand(argument, values[operands.size()].value));
    }
  };
  fill(inputs_, call.inputs, event.inputs);
  fill(outputs_, call.outputs, event.outputs);
  for (const auto& [input, reference] : old_) inputs_[input].reference = reference;
  const record::DeviceOperands operands = {inputs_, outputs_};
  record::ElementRequest& asked = at_hand_.findings.emplace();
  if (!record::ask_elements(event, operands, calls_, asked)) {
    at_hand_.findings.reset();
    return 0;
  }
  updates_ = record::ask_updates(event, operands);
  asked.counts_updates = updates_.has_value();
  origins_ = record::ask_origins(event, operands, asked);
  asked.number = ++last_number_;
  return last_number_;
}

record::DeviceOperand DeviceReader::operand(const engine::OpArgument& argument, const ValueView& value) const {
  record::DeviceOperand its;
  const engine::Tensor& tensor = *argument.tensor;
  const bool is_gone = argument.role == ArgRole::kOverwritten || tensor.version() != argument.version;
  if (tensor.device() != device_ || is_gone) return its;  // another device cannot read it
  its.address = device_view(tensor).data;
  const auto reading = std::ranges::find(at_hand_.readings, value.late, &Reading::number);
  if (value.late == 0 || reading == at_hand_.readings.end()) return its;
  its.reading = static_cast<std::size_t>(reading - at_hand_.readings.begin());
  its.is_new = reading->is_first;
  its.reference = reading->contents->reference;
  return its;
}

void DeviceReader::take() {
  if (views_.empty() || readings_ == nullptr) return;
  const bool counts_updates = at_hand_.findings && at_hand_.findings->counts_updates;
  const std::span<const kernels::OriginCall> origins(&origins_, at_hand_.findings ? 1 : 0);
  at_hand_.ticket = readings_->enqueue(views_, calls_, counts_updates ? &*updates_ : nullptr,
                                       references_, origins);
  for (const Reading& reading : at_hand_.readings) {
    reading.contents->has_reference = at_hand_.ticket != 0 && reading.contents->reference != 0;
  }
  calls_.clear();
  references_.clear();
  tensors_since_copy_ += views_.size();
  views_.clear();
}

void DeviceReader::report_lost() {
  views_.clear();  // where there was no memory to take them
  calls_.clear();
  references_.clear();
  old_.clear();
  contents_.launched();
  if (at_hand_.readings.empty()) return;
  PendingReading taken = std::exchange(at_hand_, {});
  if (taken.ticket == 0) {
    results_.resize(taken.readings.size());
    tell(taken, ReadingsState::kLost, {});
  } else {
    under_way_.push_back(std::move(taken));
  }
  if (tensors_since_copy_ < kTensorsToACopy) return;
  readings_->hand_over();
  tensors_since_copy_ = 0;
  poll();
}

void DeviceReader::end_step() {
  if (readings_ == nullptr) return;
  readings_->hand_over();
  tensors_since_copy_ = 0;
  poll();
}

void DeviceReader::poll() {
  while (!under_way_.empty()) {
    const PendingReading& taken = under_way_.front();
    results_.resize(taken.readings.size());
    kernels::ReadingExtras found;
    const ReadingsState state = readings_->poll(taken.ticket, results_, &found);
    if (state == ReadingsState::kPending) return;
    tell(taken, state, found);
    under_way_.pop_front();
  }
}

void DeviceReader::tell(const PendingReading& taken, ReadingsState state, const kernels::ReadingExtras& extras) {
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const bool came = state == ReadingsState::kReady && i < extras.checks.size();
    record::DeviceContents::tell(recorder_, taken.readings[i].number, *taken.readings[i].contents,
                                 came ? extras.checks[i] : std::nullopt, came ? results_[i] : std::nullopt);
  }
  if (!taken.findings) return;
  if (state == ReadingsState::kReady) {
    record::report_elements(*taken.findings, extras, recorder_);
  } else {
    recorder_.on_deferred_lost(taken.findings->number);
  }
}

}  // namespace nanhunt::hooks
