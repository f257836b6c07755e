// SPDX-License-Identifier: Apache-2.0
#include "src/record/device/device_contents.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nanhunt::record {

std::shared_ptr<DeviceContents::Contents> DeviceContents::find(const ValueView& value) const {
  const auto storage = parts_.find(value.storage);
  if (storage == parts_.end()) return nullptr;
  const TensorView& tensor = value.tensor;
  const std::int64_t numel = tensor.numel();
  const bool plain = tensor.is_contiguous();
  for (const Part& part : storage->second) {
    if (part.version != value.version || part.offset != value.offset || part.dtype != tensor.dtype) continue;
    if (plain ? part.layout.size() == 1 && part.layout[0] == numel
              : part.layout.size() == 2 * tensor.sizes.size() &&
                    std::equal(tensor.sizes.begin(), tensor.sizes.end(), part.layout.begin()) &&
                    std::equal(tensor.strides.begin(), tensor.strides.end(),
                               part.layout.begin() + std::ssize(tensor.sizes))) {
      return part.contents;
    }
  }
  return nullptr;
}

std::shared_ptr<DeviceContents::Contents> DeviceContents::know(const ValueView& value) {
  if (value.storage == 0) return std::make_shared<Contents>();
  if (auto contents = find(value)) return contents;
  const auto known = parts_.find(value.storage);
  if (known != parts_.end() && !known->second.empty() && known->second.front().version != value.version)
    release(value.storage);
  if (parts_.size() >= kMostStorages && !parts_.contains(value.storage)) {
    for (const auto& [storage, parts] : parts_) {
      for (const Part& part : parts) retire(part);
    }
    parts_.clear();
  }
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
  if (!free_.empty()) {
    contents.reference = free_.back();
    free_.pop_back();
  } else if (last_reference_ < references_) {
    free_.reserve(last_reference_ + 1);  // giving one back needs no memory
    retired_.reserve(last_reference_ + 1);
    contents.reference = ++last_reference_;
  }
  return parts.back().contents;
}

void DeviceContents::doubt(std::uint64_t storage) noexcept {
  const auto known = parts_.find(storage);
  if (known == parts_.end()) return;
  for (const Part& part : known->second) part.contents->doubted = true;
}

void DeviceContents::release(std::uint64_t storage) noexcept {
  const auto known = parts_.find(storage);
  if (known == parts_.end()) return;
  for (const Part& part : known->second) retire(part);
  parts_.erase(known);
}

void DeviceContents::retire(const Part& part) noexcept {
  if (part.contents->reference != 0) retired_.push_back(part.contents->reference);
}

void DeviceContents::launched() noexcept {
  free_.insert(free_.end(), retired_.begin(), retired_.end());
  retired_.clear();
}

void DeviceContents::tell(Recorder& recorder, std::uint64_t number, Contents& contents,
                          const std::optional<kernels::Checked>& check, const std::optional<TensorStats>& stats) {
  if (contents.pending == number) contents.pending = 0;
  if (!check) {
    contents.has_reference = false;  // read whole the next time
    return recorder.on_deferred_lost(number);
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
  recorder.on_deferred_contents(number, known);
}

}  // namespace nanhunt::record

namespace nanhunt {

void Recorder::on_deferred_stats(std::uint64_t number, const TensorStats& stats) noexcept {
  try {
    KnownContents contents;
    contents.stats = stats;
    contents.has_stats = true;
    on_deferred_contents(number, contents);
  } catch (...) {  // no memory for a copy
    on_deferred_lost(number);
  }
}

}  // namespace nanhunt
