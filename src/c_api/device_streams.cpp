// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/device_streams.h"

#include <algorithm>

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

using kernels::DeviceReadings;
using kernels::ForeignStream;
using kernels::ReadingsState;

constexpr std::size_t kMaxStreams = 16;  // some 10 MB of the device and 10 MB of pinned memory each
constexpr std::size_t kMostValues = 1344;      // of one op, and read together
constexpr std::size_t kTensorsToACopy = 2048;  // a copy begins after so many, or with the end of the step
constexpr std::string_view kCaptured = "tensors of a device, while a CUDA graph was captured on their stream";
constexpr std::string_view kWaits =
    "what waiting costs: readings of a device that were waited for at a flush or at the end";

}  // namespace

DeviceStreams::~DeviceStreams() {
  for (Stream& stream : streams_) {
    // To wait for a stream that is captured would break the graph: better some memory that nobody frees.
    if (stream.foreign->is_capturing()) static_cast<void>(stream.readings.release());
  }
}

Result<std::int64_t> DeviceStreams::open(int device, std::uint64_t stream) {
  const std::pair key(device, stream);
  if (const auto known = numbers_.find(key); known != numbers_.end()) {
    return static_cast<std::int64_t>(known->second + 1);
  }
  if (const auto no = refused_.find(key); no != refused_.end()) return Status(StatusCode::kUnsupported, no->second);
  std::string why;
  const auto refuse = [&] {
    if (why.empty()) why = "it is not known why";
    if (refused_.size() < 1024) refused_.emplace(key, why);
    return Status(StatusCode::kUnsupported, why);
  };
  if (streams_.size() >= kMaxStreams) {
    why = "tensors of " + std::to_string(kMaxStreams) + " streams are read already";
    return refuse();
  }
  Stream fresh;
  fresh.foreign = ForeignStream::open(device, reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream)), why);
  if (fresh.foreign == nullptr) return refuse();
  if (fresh.foreign->is_capturing()) {  // not for ever
    return Status(StatusCode::kUnsupported, "a CUDA graph is being captured on the stream");
  }
  std::unique_ptr<kernels::ReadingsPort> port = fresh.foreign->open_readings(kReadings, why);
  if (port == nullptr) return refuse();
  fresh.readings = std::make_unique<DeviceReadings>(std::move(port), kReadings);
  streams_.push_back(std::move(fresh));
  numbers_.emplace(key, streams_.size() - 1);
  return static_cast<std::int64_t>(streams_.size());
}

// Nothing is left of a call for which there was no memory: it is soon somebody else's. Its rows wait for nothing.
void DeviceStreams::begin_call(Recorder& recorder) noexcept {
  requests_.clear();
  for (Stream& stream : streams_) {
    for (const Reading& reading : stream.at_hand.readings) {
      record::DeviceContents::tell(recorder, reading.number, *reading.contents, std::nullopt, std::nullopt);
    }
    for (const record::ElementRequest& elements : stream.at_hand.elements) recorder.on_deferred_lost(elements.number);
    clear(stream);
    stream.at_hand = {};
  }
}

void DeviceStreams::clear(Stream& stream) noexcept {
  stream.views.clear();
  stream.references.clear();
  stream.shown.clear();
  stream.places.clear();
  stream.findings.clear();
  stream.origins.clear();
  stream.updates.reset();
}

void DeviceStreams::value(const char* what, std::int64_t layout_word, ValueView& value, Use use) {
  const std::int64_t number = LayoutTable::stream_in(layout_word);
  if (number == 0) return;
  if (number < 0 || static_cast<std::uint64_t>(number) > streams_.size()) {
    throw Misuse(std::string(what) + ": there is no stream number " + std::to_string(number) +
                 "; nanhunt_device_stream() gives them out");
  }
  const void* address = value.tensor.data;
  value.tensor.data = nullptr;
  if (value.tensor.numel() == 0 && use != Use::kOld) {
    value.tensor.data = &kNoElements;
  } else if (address != nullptr || use == Use::kOld) {
    requests_.push_back({static_cast<std::size_t>(number - 1), address, &value, use, {}});
  }
}

void DeviceStreams::take(Recorder& recorder) {
  // Never amid an event: what comes, or is lost, before the recorder has been told to expect it is never heard of.
  for (Stream& stream : streams_) {
    if (stream.views.size() + requests_.size() > kMostValues) launch(stream, recorder);
  }
  for (Request& asked : requests_) read(asked);
}

void DeviceStreams::read(Request& asked) {
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
  if (stream.views.empty()) stream.is_capturing = stream.foreign->is_capturing();
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
  stream.references.push_back(record::DeviceContents::tag(*contents));
  stream.at_hand.readings.push_back({++last_number_, contents});
  stream.places.emplace(contents.get(), asked.operand.reading);
  contents->pending = value.late = last_number_;
}

// Of an op: what goes in, and what comes out as a view of the same elements.
bool DeviceStreams::is_trusted(const Request& asked) const {
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

void DeviceStreams::trust(Request& asked) {
  const record::DeviceContents::Contents& contents = *asked.contents;
  asked.value->late = contents.pending;
  if (contents.pending == 0) asked.value->known = &contents.known;
  std::vector<TensorView>& shown = streams_[asked.stream].shown;
  const auto its = std::ranges::find_if(requests_, [&](const Request& other) {
    return other.contents == asked.contents && other.operand.shown != record::kNoReading;
  });
  if (its != requests_.end()) {
    asked.operand.shown = its->operand.shown;
    return;
  }
  asked.operand.shown = shown.size();
  shown.push_back(asked.value->tensor);
  shown.back().data = asked.address;
}

void DeviceStreams::take(OpEvent& event, Recorder& recorder) {
  event.late = 0;
  if (requests_.empty()) return;
  for (Stream& stream : streams_) {
    if (stream.updates) launch(stream, recorder);  // there is room for those of one op
  }
  take(recorder);
  if (requests_.size() > kMostValues) return;
  // An op's outputs lie on one device.
  for (const OpOutput& output : event.outputs) {
    const auto its = std::ranges::find(requests_, &output.value, &Request::value);
    if (its == requests_.end() || its->operand.reading == record::kNoReading) continue;
    ask(event, its->stream);
    return;
  }
}

void DeviceStreams::ask(OpEvent& event, std::size_t stream) {
  Stream& its = streams_[stream];
  const auto fill = [&](std::vector<record::DeviceOperand>& operands, auto values) {
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
  const record::DeviceOperands operands = {inputs_, outputs_};
  record::ElementRequest elements;
  if (!record::ask_elements(event, operands, its.findings, elements)) return;
  its.updates = record::ask_updates(event, operands);
  elements.counts_updates = its.updates.has_value();
  elements.origins = its.origins.size();
  its.origins.push_back(record::ask_origins(event, operands, elements));
  elements.number = event.late = ++last_number_;
  its.at_hand.elements.push_back(std::move(elements));
}

void DeviceStreams::launch(Recorder& recorder) {
  for (Stream& stream : streams_) launch(stream, recorder);
}

void DeviceStreams::launch(Stream& stream, Recorder& recorder) {
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
    tell(taken, ReadingsState::kLost, recorder);
  } else {
    stream.under_way.push_back(std::move(taken));
  }
  if (stream.tensors_since_copy >= kTensorsToACopy) hand_over(stream, recorder);
}

void DeviceStreams::hand_over(Stream& stream, Recorder& recorder) {
  if (!stream.foreign->is_capturing()) {  // the copy would be part of the graph
    stream.readings->hand_over();
    stream.tensors_since_copy = 0;
  }
  poll(stream, recorder);
}

void DeviceStreams::poll(Stream& stream, Recorder& recorder) {
  while (!stream.under_way.empty()) {
    const PendingReading& taken = stream.under_way.front();
    results_.resize(taken.readings.size());
    const ReadingsState state = stream.readings->poll(taken.ticket, results_, &extras_);
    if (state == ReadingsState::kPending) return;
    tell(taken, state, recorder);
    stream.under_way.pop_front();
  }
}

void DeviceStreams::tell(const PendingReading& taken, ReadingsState state, Recorder& recorder) {
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const bool came = state == ReadingsState::kReady && i < extras_.checks.size();
    record::DeviceContents::tell(recorder, taken.readings[i].number, *taken.readings[i].contents,
                                 came ? extras_.checks[i] : std::nullopt, came ? results_[i] : std::nullopt);
  }
  for (const record::ElementRequest& elements : taken.elements) {
    if (state == ReadingsState::kReady) {
      record::report_elements(elements, extras_, recorder);
    } else {
      recorder.on_deferred_lost(elements.number);
    }
  }
}

void DeviceStreams::end_step(Recorder& recorder) {
  for (Stream& stream : streams_) hand_over(stream, recorder);
}

void DeviceStreams::settle(Recorder& recorder) {
  for (Stream& stream : streams_) {
    const bool capturing = stream.foreign->is_capturing();
    if (capturing) poll(stream, recorder);
    while (!capturing && !stream.under_way.empty()) {
      const PendingReading& taken = stream.under_way.front();
      results_.resize(taken.readings.size());
      tell(taken, stream.readings->wait(taken.ticket, results_, &extras_), recorder);
      stream.under_way.pop_front();
    }
  }
  add_note(std::string(kCaptured), captured_, recorder);
  add_note(std::string(kWaits), counts().waits, recorder);
  std::map<std::string, std::uint64_t> losses;
  for (const Stream& stream : streams_) {
    const kernels::ReadingsCounts& all = stream.readings->counts();
    if (all.lost > 0) losses["readings of a device that were lost: " + all.first_loss] += all.lost;
  }
  for (const auto& [text, count] : losses) add_note(text, count, recorder);
}

void DeviceStreams::close(Recorder& recorder) {
  settle(recorder);
  for (Stream& stream : streams_) {
    for (const PendingReading& taken : stream.under_way) tell(taken, ReadingsState::kLost, recorder);
    stream.under_way.clear();
  }
}

void DeviceStreams::abandon() noexcept {
  for (Stream& stream : streams_) {
    static_cast<void>(stream.readings.release());
    static_cast<void>(stream.foreign.release());
  }
  streams_.clear();
}

void DeviceStreams::add_note(const std::string& text, std::uint64_t count, Recorder& recorder) {
  if (noted_[text] == count) return;
  noted_[text] = count;
  recorder.on_note({0, text, count});
}

DeviceCounts DeviceStreams::counts() const {
  DeviceCounts all;
  all.streams = streams_.size();
  all.captured = captured_;
  for (const Stream& stream : streams_) {
    const kernels::ReadingsCounts& one = stream.readings->counts();
    all.asked += one.tensors;
    all.told += one.delivered;
    all.lost += one.lost;
    all.launches += one.launches;
    all.copies += one.copies;
    all.waits += one.waits;
  }
  return all;
}

}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

int64_t nanhunt_device_stream(nanhunt_recorder* recorder, int32_t device, uint64_t stream) {
  std::int64_t number = -1;
  Status cannot;
  const nanhunt_status right = recording(recorder, [&](nanhunt_recorder& to) {
    if (device < 0) throw Misuse("nanhunt_device_stream: device: expected 0 or more, got " + std::to_string(device));
    const DeviceTurn turn(to);
    Result<std::int64_t> opened = Status(StatusCode::kUnsupported, "this process was forked from the recorder's");
    if (turn) opened = to.devices.open(device, stream);
    if (opened) number = *opened;
    if (!opened) cannot = opened.status();
  });
  if (right == NANHUNT_OK && number < 0) static_cast<void>(result_of(cannot));
  return number;
}

nanhunt_status nanhunt_device_counters(const nanhunt_recorder* recorder, nanhunt_device_counts* counts) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr || counts == nullptr || counts->struct_size < sizeof(counts->struct_size)) {
      return fail(NANHUNT_USAGE, "nanhunt_device_counters: expected a recorder and counts with struct_size set");
    }
    const DeviceTurn turn(*recorder);
    const DeviceCounts from = turn ? recorder->devices.counts() : DeviceCounts{};
    const nanhunt_device_counts all = {
        counts->struct_size, static_cast<std::uint32_t>(from.streams), from.asked, from.told, from.lost, from.captured,
        from.launches, from.copies, from.waits};
    give_back(all, counts);
    return NANHUNT_OK;
  });
}

}  // extern "C"
