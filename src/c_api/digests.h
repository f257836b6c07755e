// SPDX-License-Identifier: Apache-2.0
// The digest of the rank that records here: written while it trains by a thread of its own, and once it is closed.
#pragma once

#include <memory>

namespace nanhunt::record {
class NumberingRecorder;
}

namespace nanhunt::c_api {

class DigestWriter {
 public:
  DigestWriter();
  ~DigestWriter();  // stop() came before, if anything was written
  DigestWriter(const DigestWriter&) = delete;
  DigestWriter& operator=(const DigestWriter&) = delete;

  // Now, and from here on every few minutes. `recorder` stays until stop().
  void write_soon(record::NumberingRecorder& recorder);
  // Before the recorder is closed: waits for the digest that is being made.
  void stop(const record::NumberingRecorder& recorder) noexcept;
  // Once it is closed. Nothing where none was asked for.
  void write_last(const record::NumberingRecorder& recorder) noexcept;

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
  bool asked_ = false;
};

}  // namespace nanhunt::c_api
