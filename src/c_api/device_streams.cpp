// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/device_streams.h"

#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"

namespace nanhunt::c_api {
namespace {

using kernels::DeviceReadings;
using kernels::ForeignStream;

// Tensors, checks, elements and origins each take a result. Histograms are as many as a recorder takes.
constexpr kernels::ReadingsOptions kReadings = {
    .tensors = 1 << 16, .tickets = 1 << 14, .references = 1 << 16, .arena_words = 1 << 19};
constexpr std::size_t kMaxStreams = 16;  // some 10 MB of the device and 10 MB of pinned memory each
constexpr std::string_view kCaptured = "tensors of a device, while a CUDA graph was captured on their stream";
constexpr std::string_view kWaits =
    "what waiting costs: readings of a device that were waited for (in steps that are held, at a flush, at the end)";

}  // namespace

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
  if (streams() >= kMaxStreams) {
    why = "tensors of " + std::to_string(kMaxStreams) + " streams are read already";
    return refuse();
  }
  auto foreign = ForeignStream::open(device, reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream)), why);
  if (foreign == nullptr) return refuse();
  if (foreign->is_capturing()) {  // not for ever
    return Status(StatusCode::kUnsupported, "a CUDA graph is being captured on the stream");
  }
  std::unique_ptr<kernels::ReadingsPort> port = foreign->open_readings(kReadings, why);
  if (port == nullptr) return refuse();
  auto readings = std::make_unique<DeviceReadings>(std::move(port), kReadings);
  numbers_.emplace(key, add(std::move(readings), kReadings.references, std::move(foreign)));
  return static_cast<std::int64_t>(streams());
}

void DeviceStreams::value(const char* what, const std::int64_t* words, ValueView& value, Use use) {
  const std::int64_t number = LayoutTable::stream_in(words[3]);
  if (number == 0) return;
  if (number == NANHUNT_LOOKS) {
    value.tensor.data = nullptr;
    const std::optional<TensorStats>* const found =
        looked_at(static_cast<std::uint64_t>(words[0]) >> 16, static_cast<std::size_t>(words[0] & 0xffff));
    if (found == nullptr || !*found) return;
    const bool counted = (*found)->level >= StatsLevel::kCounts;
    value.known = &told_.emplace_back(KnownContents{
        .stats = **found, .has_stats = counted, .checksum = {}, .were_finite = !counted && !(*found)->any_nonfinite});
    if (!value.tensor.is_contiguous()) told_.back().stats.first_nonfinite = -1;  // in the order of memory
    return;
  }
  if (number < 0 || static_cast<std::uint64_t>(number) > streams()) {
    throw Misuse(std::string(what) + ": there is no stream number " + std::to_string(number) +
                 "; nanhunt_device_stream() gives them out");
  }
  DeviceReader::value(static_cast<std::size_t>(number - 1), value, use);
}

void DeviceStreams::settle(Recorder& recorder) {
  DeviceReader::settle(recorder);
  add_notes(recorder);
}

void DeviceStreams::close(Recorder& recorder) {
  DeviceReader::close(recorder);
  add_notes(recorder);
}

void DeviceStreams::abandon() noexcept {
  DeviceReader::abandon();
  numbers_.clear();
}

void DeviceStreams::add_notes(Recorder& recorder) {
  add_note(std::string(kCaptured), captured(), recorder);
  add_note(std::string(kWaits), counts().waits, recorder);
  std::map<std::string, std::uint64_t> losses;
  for (std::size_t stream = 0; stream < streams(); ++stream) {
    const kernels::ReadingsCounts& all = counts_of(stream);
    if (all.lost > 0) losses["unread values: readings of a device that were lost: " + all.first_loss] += all.lost;
  }
  for (const auto& [text, count] : losses) add_note(text, count, recorder);
}

void DeviceStreams::add_note(const std::string& text, std::uint64_t count, Recorder& recorder) {
  if (noted_[text] == count) return;
  noted_[text] = count;
  recorder.on_note({0, text, count});
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

nanhunt_status nanhunt_device_read_elements(nanhunt_recorder* recorder, int32_t on) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    const DeviceTurn turn(to);
    if (turn) to.devices.read_elements(on != 0);
  });
}

nanhunt_status nanhunt_device_settle(nanhunt_recorder* recorder) {
  return recording(recorder, [](nanhunt_recorder& to) {
    const DeviceTurn turn(to);
    if (turn) to.devices.settle(*to.recorder);
  });
}

nanhunt_status nanhunt_device_counters(const nanhunt_recorder* recorder, nanhunt_device_counts* counts) {
  return guarded([&]() -> nanhunt_status {
    if (recorder == nullptr || counts == nullptr || counts->struct_size < sizeof(counts->struct_size)) {
      return fail(NANHUNT_USAGE, "nanhunt_device_counters: expected a recorder and counts with struct_size set");
    }
    const DeviceTurn turn(*recorder);
    const kernels::ReadingsCounts from = turn ? recorder->devices.counts() : kernels::ReadingsCounts{};
    const nanhunt_device_counts all = {
        counts->struct_size, turn ? static_cast<std::uint32_t>(recorder->devices.streams()) : 0, from.tensors,
        from.delivered, from.lost, turn ? recorder->devices.captured() : 0, from.launches, from.copies, from.waits};
    give_back(all, counts);
    return NANHUNT_OK;
  });
}

}  // extern "C"
