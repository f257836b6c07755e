// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/device_reader.h"

#include <algorithm>
#include <utility>

#include "hooks/engine/late_group.h"
#include "src/engine/backend.h"

namespace nanhunt::hooks {
namespace {

using kernels::ReadingsState;

// Every tensor that an op names takes a result: a step of a large model some ten thousand.
constexpr kernels::ReadingsOptions kReadings = {
    .tensors = 1 << 17, .tickets = 1 << 15, .references = 1 << 17, .arena_words = 1 << 19};
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
    const Taken taken = std::move(under_way_.front());
    under_way_.pop_front();
    results_.resize(taken.readings.size());
    kernels::Besides found;
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
  Part& part = know(value);
  for (const Reading& reading : at_hand_.readings) {  // mul(x, x)
    if (reading.contents != part.contents) continue;
    value.late = reading.number;
    return;
  }
  const Contents& contents = *part.contents;
  views_.push_back(device_view(tensor));
  references_.push_back(contents.reference == 0   ? 0
                        : contents.has_reference ? contents.reference
                                                 : contents.reference | kernels::kFirstCheck);
  at_hand_.readings.push_back({++last_number_, part.contents, !contents.has_reference});
  value.late = last_number_;
}

DeviceReader::Part* DeviceReader::find(const ValueView& value) {
  const auto storage = parts_.find(value.storage);
  if (storage == parts_.end()) return nullptr;
  const TensorView& tensor = value.tensor;
  const std::int64_t numel = tensor.numel();
  const bool plain = tensor.is_contiguous();
  for (Part& part : storage->second) {
    if (part.version != value.version || part.offset != value.offset || part.dtype != tensor.dtype) continue;
    if (plain ? part.layout.size() == 1 && part.layout[0] == numel
              : part.layout.size() == 2 * tensor.sizes.size() &&
                    std::equal(tensor.sizes.begin(), tensor.sizes.end(), part.layout.begin()) &&
                    std::equal(tensor.strides.begin(), tensor.strides.end(),
                               part.layout.begin() + std::ssize(tensor.sizes))) {
      return &part;
    }
  }
  return nullptr;
}

bool DeviceReader::was_read(const ValueView& value) { return find(value) != nullptr; }

DeviceReader::Part& DeviceReader::know(const ValueView& value) {
  if (Part* part = find(value)) return *part;
  const auto known = parts_.find(value.storage);
  if (known != parts_.end() && !known->second.empty() && known->second.front().version != value.version)
    release(value.storage);
  Part part;
  part.version = value.version;
  part.offset = value.offset;
  part.dtype = value.tensor.dtype;
  if (value.tensor.is_contiguous()) {
    part.layout = {value.tensor.numel()};
  } else {
    part.layout.assign(value.tensor.sizes.begin(), value.tensor.sizes.end());
    part.layout.insert(part.layout.end(), value.tensor.strides.begin(), value.tensor.strides.end());
  }
  part.contents = std::make_shared<Contents>();
  std::vector<Part>& parts = parts_[value.storage];
  if (parts.size() >= kMostParts) {  // a new window of one tensor at every step
    const auto forgotten = parts.begin() + kMostParts / 2;
    for (auto its = parts.begin(); its != forgotten; ++its) retire(*its);
    parts.erase(parts.begin(), forgotten);
  }
  parts.push_back(std::move(part));
  Contents& contents = *parts.back().contents;
  if (!free_references_.empty()) {
    contents.reference = free_references_.back();
    free_references_.pop_back();
  } else if (last_reference_ < kReadings.references) {
    free_references_.reserve(last_reference_ + 1);  // giving one back needs no memory
    retired_.reserve(last_reference_ + 1);
    contents.reference = ++last_reference_;
  }
  return parts.back();
}

void DeviceReader::overwritten(std::size_t input, const ValueView& value) {
  const Part* part = find(value);
  if (part != nullptr && part->contents->reference != 0) old_.emplace_back(input, part->contents->reference);
}

// References are used again by launches that come after those which use them now.
void DeviceReader::release(std::uint64_t storage) noexcept {
  const auto known = parts_.find(storage);
  if (known == parts_.end()) return;
  for (const Part& part : known->second) retire(part);
  parts_.erase(known);
}

void DeviceReader::retire(const Part& part) noexcept {
  if (part.contents->reference != 0) retired_.push_back(part.contents->reference);
}

// The event's lists are the call's without what is not defined.
std::uint64_t DeviceReader::read_findings(const engine::OpCall& call, const OpEvent& event) {
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
  record::AskedElements& asked = at_hand_.findings.emplace();
  if (!record::ask_elements(event, operands, calls_, asked)) {
    at_hand_.findings.reset();
    return 0;
  }
  updates_ = record::ask_updates(event, operands);
  asked.counts_updates = updates_.has_value();
  births_ = record::ask_births(event, operands, asked);
  asked.number = ++last_number_;
  return last_number_;
}

record::DeviceOperand DeviceReader::operand(const engine::OpArgument& argument, const ValueView& value) const {
  record::DeviceOperand its;
  const engine::Tensor& tensor = *argument.tensor;
  const bool is_gone = argument.role == ArgRole::kOverwritten || tensor.version() != argument.version;
  if (tensor.device().is_cpu() || is_gone) return its;
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
  at_hand_.ticket = readings_->enqueue(views_, StatsLevel::kSums, calls_, counts_updates ? &*updates_ : nullptr,
                                       references_, at_hand_.findings ? &births_ : nullptr);
  for (const Reading& reading : at_hand_.readings) {
    reading.contents->has_reference = at_hand_.ticket != 0 && reading.contents->reference != 0;
  }
  calls_.clear();
  references_.clear();
  tensors_since_copy_ += views_.size();
  views_.clear();
}

void DeviceReader::tell_lost() {
  views_.clear();  // where there was no memory to take them
  calls_.clear();
  references_.clear();
  old_.clear();
  free_references_.insert(free_references_.end(), retired_.begin(), retired_.end());
  retired_.clear();
  if (at_hand_.readings.empty()) return;
  Taken taken = std::exchange(at_hand_, {});
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
    const Taken& taken = under_way_.front();
    results_.resize(taken.readings.size());
    kernels::Besides found;
    const ReadingsState state = readings_->poll(taken.ticket, results_, &found);
    if (state == ReadingsState::kPending) return;
    tell(taken, state, found);
    under_way_.pop_front();
  }
}

void DeviceReader::tell(const Taken& taken, ReadingsState state, const kernels::Besides& besides) {
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const bool came = state == ReadingsState::kReady && i < besides.checks.size();
    tell(taken.readings[i], came ? besides.checks[i] : std::nullopt, came ? results_[i] : std::nullopt);
  }
  if (!taken.findings) return;
  if (state == ReadingsState::kReady) {
    record::tell_elements(*taken.findings, besides, recorder_);
  } else {
    recorder_.on_late_lost(taken.findings->number);
  }
}

// Readings are told in the order in which they were taken.
void DeviceReader::tell(const Reading& reading, const std::optional<kernels::Checked>& check,
                        const std::optional<TensorStats>& stats) {
  Contents& contents = *reading.contents;
  if (!check) {
    contents.has_reference = false;  // read whole the next time
    return recorder_.on_late_lost(reading.number);
  }
  KnownContents& known = contents.known;
  // The same as at the last look: as what is known of them, unless that look was lost.
  const bool still = !check->differs && known.checksum == check->checksum;
  if (!still) known.has_stats = stats.has_value();
  if (stats) {
    known.stats = *stats;
    known.has_stats = true;
  }
  known.checksum = check->checksum;
  if (!known.has_stats) contents.has_reference = false;
  recorder_.on_late_contents(reading.number, known);
}

}  // namespace nanhunt::hooks
