// SPDX-License-Identifier: Apache-2.0
// Which contents were read on a device before, by which reference the device knows them again, and what has come of
// them: so that what is read again is compared there with what it was. For whoever reads contents on a device
// (hooks/engine, src/c_api).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/device_readings.h"
#include "nanhunt/event.h"
#include "nanhunt/recorder.h"

namespace nanhunt::record {

// Of one DeviceReadings.
class DeviceContents {
 public:
  // What is known of contents, as far as results have come; the same for all readings of them.
  struct Contents {
    std::uint32_t reference = 0;  // on the device; 0: none was free, so they are read whole each time
    bool has_reference = false;   // it was left there
    std::uint64_t pending = 0;    // number of the newest reading that has not been told; 0: all have
    bool doubted = false;         // other parts of the storage were looked at since: they may have changed unseen
    KnownContents known;
  };
  // As DeviceReadings::enqueue() takes it.
  static std::uint32_t tag(const Contents& contents) {
    if (contents.reference == 0 || contents.has_reference) return contents.reference;
    return contents.reference | kernels::kFirstCheck;
  }
  // Readings of the same contents are told in the order in which they were taken.
  static void tell(Recorder& recorder, std::uint64_t number, Contents& contents,
                   const std::optional<kernels::Checked>& check, const std::optional<TensorStats>& stats);

  // references: of ReadingsOptions.
  explicit DeviceContents(std::uint32_t references) : references_(references) {}

  // Of (storage, version, offset, layout); new ones where they are not known, and always of storage 0, which nobody
  // knows. Of a storage those of the newest version alone are kept.
  std::shared_ptr<Contents> know(const ValueView& value);
  std::shared_ptr<Contents> find(const ValueView& value) const;  // nullptr: not known
  // All parts of the storage, until they are read again.
  void doubt(std::uint64_t storage) noexcept;
  void release(std::uint64_t storage) noexcept;
  // All that was asked for so far is launched: references of what was forgotten can be used by what comes after it.
  void launched() noexcept;

 private:
  // A part of a storage. Views that have its elements in the same order share it.
  struct Part {
    std::uint32_t version = 0;
    std::int64_t offset = 0;
    DType dtype = DType::kF32;
    std::vector<std::int64_t> layout;  // sizes and strides; without gaps: the number of elements
    std::shared_ptr<Contents> contents;
  };
  // Of a storage, and storages; past them older ones are forgotten, as by the recorder.
  static constexpr std::size_t kMostParts = 256, kMostStorages = std::size_t{1} << 17;

  void retire(const Part& part) noexcept;

  const std::uint32_t references_;
  std::unordered_map<std::uint64_t, std::vector<Part>> parts_;  // newest last
  std::vector<std::uint32_t> free_, retired_;  // retired: free once what is asked for is launched
  std::uint32_t last_reference_ = 0;
};

}  // namespace nanhunt::record
