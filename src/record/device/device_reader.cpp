// SPDX-License-Identifier: Apache-2.0
#include "src/record/device/device_reader.h"

#include <algorithm>
#include <utility>

namespace nanhunt::record {
namespace {

using kernels::ReadingsState;

constexpr std::size_t kMostValues = 1344;      // of one op, and read together
constexpr std::size_t kTensorsToACopy = 2048;  // a copy begins after so many, or with the end of the step
// The address of contents without elements: there is nothing to read, and nothing is missing.
constexpr std::int64_t kNoElements = 0;

}  // namespace

DeviceReader::~DeviceReader() {
  for (Stream& stream : streams_) {
    // To wait for a stream that is captured would break the graph: better some memory that nobody frees.
    if (stream.capturing()) static_cast<void>(stream.readings.release());
  }
}

std::size_t DeviceReader::add(std::unique_ptr<kernels::DeviceReadings> readings, std::size_t references,
                              std::unique_ptr<kernels::ForeignStream> foreign) {
  Stream& stream = streams_.emplace_back(references);
  stream.foreign = std::move(foreign);
  stream.readings = std::move(readings);
  return streams_.size() - 1;
}

// Nothing is left of a call for which there was no memory: it is soon somebody else's. Its rows wait for nothing.
void DeviceReader::begin_call(Recorder& recorder) noexcept {
  requests_.clear();
  for (Stream& stream : streams_) {
    for (const Reading& reading : stream.at_hand.readings) {
      DeviceContents::tell(recorder, reading.number, *reading.contents, std::nullopt, std::nullopt);
    }
    for (const ElementRequest& elements : stream.at_hand.elements) recorder.on_deferred_lost(elements.number);
    clear(stream);
    stream.at_hand = {};
  }
}

void DeviceReader::clear(Stream& stream) noexcept {
  stream.views.clear();
  stream.references.clear();
  stream.shown.clear();
  stream.places.clear();
  stream.findings.clear();
  stream.origins.clear();
  stream.updates.reset();
}

void DeviceReader::value(std::size_t stream, ValueView& value, Use use) {
  const void* address = value.tensor.data;
  value.tensor.data = nullptr;
  if (value.tensor.numel() == 0 && use != Use::kOld) {
    value.tensor.data = &kNoElements;
  } else if (address != nullptr || use == Use::kOld) {
    requests_.push_back({stream, address, &value, use});
  }
}

void DeviceReader::take(Recorder& recorder) {
  // Never amid an event: what comes, or is lost, before the recorder has been told to expect it is never heard of.
  for (Stream& stream : streams_) {
    if (stream.views.size() + requests_.size() > kMostValues) launch(stream, recorder);
  }
  for (Request& asked : requests_) read(asked);
}

void DeviceReader::read(Request& asked) {
  Stream& stream = streams_[asked.stream];
  ValueView& value = *asked.value;
  if (asked.use == Use::kOld || asked.use == Use::kKnown) {
    const auto known = stream.contents.find(value);
    if (known == nullptr) return;
    if (asked.use == Use::kOld) {
      asked.operand.reference = known->reference;
      return;
    }
  }
  if (stream.views.empty()) stream.is_capturing = stream.capturing();
  if (stream.is_capturing) {
    ++captured_;
    return;
  }
  asked.operand.address = asked.address;
  asked.contents = stream.contents.know(value);
  const auto& contents = asked.contents;
  asked.operand.reference = contents->reference;
  // What is looked at for a change may have one that its views share.
  if (asked.use == Use::kKnown || asked.use == Use::kChanged) doubt(value.storage);
  if (const auto at_hand = stream.places.find(contents.get()); at_hand != stream.places.end()) {
    asked.operand.reading = at_hand->second;
    value.late = stream.at_hand.readings[at_hand->second].number;
    return;
  }
  if (is_trusted(asked)) return trust(asked);
  if (asked.use == Use::kMade || asked.use == Use::kChanged) contents->has_reference = false;
  contents->doubted = false;
  asked.operand.reading = stream.views.size();
  asked.operand.is_new = !contents->has_reference;
  TensorView there = value.tensor;
  there.data = asked.address;
  stream.views.push_back(there);
  stream.references.push_back(DeviceContents::tag(*contents));
  stream.at_hand.readings.push_back({++last_number_, contents});
  stream.places.emplace(contents.get(), asked.operand.reading);
  contents->pending = value.late = last_number_;
}

// Of an op: what goes in, and what comes out as a view of the same elements.
bool DeviceReader::is_trusted(const Request& asked) const {
  if (!trusts_ || !asked.contents->has_reference || asked.contents->doubted) return false;
  if (asked.use == Use::kInput) return true;
  if (asked.use != Use::kMade || asked.value->storage == 0) return false;
  return std::ranges::any_of(requests_, [&](const Request& in) {
    return in.use == Use::kInput && in.stream == asked.stream && in.value->storage == asked.value->storage &&
           in.value->version == asked.value->version && in.value->offset == asked.value->offset &&
           in.value->tensor.dtype == asked.value->tensor.dtype &&
           in.value->tensor.numel() == asked.value->tensor.numel();
  });
}

void DeviceReader::trust(Request& asked) {
  const DeviceContents::Contents& contents = *asked.contents;
  asked.value->late = contents.pending;
  if (contents.pending == 0) asked.value->known = &contents.known;
  std::vector<TensorView>& shown = streams_[asked.stream].shown;
  const auto its = std::ranges::find_if(requests_, [&](const Request& other) {
    return other.contents == asked.contents && other.operand.shown != kNoReading;
  });
  if (its != requests_.end()) {
    asked.operand.shown = its->operand.shown;
    return;
  }
  asked.operand.shown = shown.size();
  shown.push_back(asked.value->tensor);
  shown.back().data = asked.address;
}

void DeviceReader::take(OpEvent& event, Recorder& recorder) {
  event.late = 0;
  if (requests_.empty()) return;
  for (Stream& stream : streams_) {
    if (stream.updates) launch(stream, recorder);  // there is room for those of one op
  }
  take(recorder);
  if (requests_.size() > kMostValues || !reads_elements_) return;
  // An op's outputs lie on one device.
  for (const OpOutput& output : event.outputs) {
    const auto its = std::ranges::find(requests_, &output.value, &Request::value);
    if (its == requests_.end() || its->operand.reading == kNoReading) continue;
    ask(event, its->stream);
    return;
  }
}

void DeviceReader::ask(OpEvent& event, std::size_t stream) {
  Stream& its = streams_[stream];
  const auto fill = [&](std::vector<DeviceOperand>& operands, auto values) {
    operands.assign(values.size(), {});
    for (const Request& asked : requests_) {
      if (asked.stream != stream) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (asked.value != &values[i].value) continue;
        operands[i] = asked.operand;
      }
    }
  };
  fill(inputs_, event.inputs);
  fill(outputs_, event.outputs);
  const DeviceOperands operands = {inputs_, outputs_};
  ElementRequest elements;
  if (!ask_elements(event, operands, its.findings, elements)) return;
  its.updates = ask_updates(event, operands);
  elements.counts_updates = its.updates.has_value();
  elements.origins = its.origins.size();
  its.origins.push_back(ask_origins(event, operands, elements));
  elements.number = event.late = ++last_number_;
  its.at_hand.elements.push_back(std::move(elements));
}

void DeviceReader::launch(Recorder& recorder) {
  for (Stream& stream : streams_) launch(stream, recorder);
}

void DeviceReader::launch(Stream& stream, Recorder& recorder) {
  if (stream.views.empty()) {
    stream.contents.launched();
    stream.shown.clear();
    return;
  }
  PendingReading taken = std::exchange(stream.at_hand, {});
  taken.ticket = stream.readings->enqueue(stream.views, stream.findings,
                                          stream.updates ? &*stream.updates : nullptr, stream.references,
                                          stream.origins, stream.shown);
  for (const Reading& reading : taken.readings) {
    reading.contents->has_reference = taken.ticket != 0 && reading.contents->reference != 0;
  }
  stream.contents.launched();
  stream.tensors_since_copy += stream.views.size();
  clear(stream);
  if (taken.ticket == 0) {
    report(taken, ReadingsState::kLost, recorder);
  } else {
    stream.under_way.push_back(std::move(taken));
  }
  if (stream.tensors_since_copy >= kTensorsToACopy) hand_over(stream, recorder);
}

void DeviceReader::hand_over(Stream& stream, Recorder& recorder) {
  if (!stream.capturing()) {  // the copy would be part of the graph
    stream.readings->hand_over();
    stream.tensors_since_copy = 0;
  }
  poll(stream, recorder);
}

void DeviceReader::poll(Stream& stream, Recorder& recorder) {
  while (!stream.under_way.empty()) {
    const PendingReading& taken = stream.under_way.front();
    results_.resize(taken.readings.size());
    const ReadingsState state = stream.readings->poll(taken.ticket, results_, &extras_);
    if (state == ReadingsState::kPending) return;
    report(taken, state, recorder);
    stream.under_way.pop_front();
  }
}

void DeviceReader::report(const PendingReading& taken, ReadingsState state, Recorder& recorder) {
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const bool came = state == ReadingsState::kReady && i < extras_.checks.size();
    DeviceContents::tell(recorder, taken.readings[i].number, *taken.readings[i].contents,
                                 came ? extras_.checks[i] : std::nullopt, came ? results_[i] : std::nullopt);
  }
  for (const ElementRequest& elements : taken.elements) {
    if (state == ReadingsState::kReady) {
      report_elements(elements, extras_, recorder);
    } else {
      recorder.on_deferred_lost(elements.number);
    }
  }
}

void DeviceReader::end_step(Recorder& recorder) {
  for (Stream& stream : streams_) hand_over(stream, recorder);
}

void DeviceReader::poll(Recorder& recorder) {
  for (Stream& stream : streams_) poll(stream, recorder);
}

void DeviceReader::settle(Recorder& recorder) {
  for (Stream& stream : streams_) {
    const bool capturing = stream.capturing();
    if (capturing) poll(stream, recorder);
    while (!capturing && !stream.under_way.empty()) {
      const PendingReading& taken = stream.under_way.front();
      results_.resize(taken.readings.size());
      report(taken, stream.readings->wait(taken.ticket, results_, &extras_), recorder);
      stream.under_way.pop_front();
    }
  }
  for (Look& look : looks_) {
    Stream& its = streams_[look.stream];
    if (look.state == ReadingsState::kPending && !its.capturing()) look.settle(its.readings->wait(look.ticket, look.found));
  }
}

void DeviceReader::close(Recorder& recorder) {
  settle(recorder);
  for (Stream& stream : streams_) {
    for (const PendingReading& taken : stream.under_way) report(taken, ReadingsState::kLost, recorder);
    stream.under_way.clear();
  }
}

void DeviceReader::abandon() noexcept {
  for (Stream& stream : streams_) {
    static_cast<void>(stream.readings.release());
    static_cast<void>(stream.foreign.release());
  }
  streams_.clear();
  looks_.clear();
}

kernels::ReadingsCounts DeviceReader::counts() const {
  kernels::ReadingsCounts all;
  for (const Stream& stream : streams_) {
    const kernels::ReadingsCounts& one = stream.readings->counts();
    all.launches += one.launches;
    all.tensors += one.tensors;
    all.delivered += one.delivered;
    all.lost += one.lost;
    all.dropped += one.dropped;
    all.copies += one.copies;
    all.copies_put_off += one.copies_put_off;
    all.waits += one.waits;
    if (all.first_loss.empty()) all.first_loss = one.first_loss;
  }
  return all;
}

}  // namespace nanhunt::record
