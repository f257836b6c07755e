// SPDX-License-Identifier: Apache-2.0
// Reads the segments of one attempt in order, skipping and counting what is damaged.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/trace.h"
#include "src/trace/encoding/chunk.h"
#include "src/trace/segments/files.h"
#include "src/trace/record_kind.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::trace {

class AttemptReader {
 public:
  AttemptReader(const std::function<void(const RecordBatch&)>& on_batch, TraceHealth& health)
      : on_batch_(on_batch), health_(health) {}

  // `alone`: the only segment that will be read, so what came before it is not missed.
  void read_segment(InputFile& file, const std::string& name, bool alone);
  void skip_segment(const std::string& name, const Status& why);  // could not be opened
  void miss_vanished_segment(const std::string& name);            // retention took it away after it was listed
  Status finish(const std::string& what);                         // after the last segment

 private:
  // Why a segment gave nothing at all.
  enum class Verdict { kNone, kEmpty, kNotTrace, kCut, kForeign, kOtherVersion, kUnreadable };

  bool start_segment(InputFile& file, bool alone);
  void read_chunks(InputFile& file);
  bool read_chunk(const ChunkHeader& header, std::span<const std::byte> stored);
  bool decode_chunk(const ChunkHeader& header, std::span<const std::byte> stored);
  void resynchronise(InputFile& file, bool say);
  bool next_header(InputFile& file, std::uint64_t from, std::uint64_t& found);
  bool in_gap(std::uint64_t sequence) const;
  void bad_chunk(const ChunkHeader& header, const char* what);
  void missed(std::uint64_t from, std::uint64_t to);
  void reject(Verdict verdict, std::string message);
  void deliver();
  void problem(std::string text);
  void skip(std::uint64_t bytes);

  const std::function<void(const RecordBatch&)>& on_batch_;
  TraceHealth& health_;
  ChunkUnpacker unpacker_;
  Scratch scratch_;
  RecordBatch batch_;  // the frame being put together
  std::uint16_t last_type_ = 0;

  std::string name_;  // of the segment being read
  std::uint64_t at_ = 0, cells_ = 0, bad_bytes_ = 0;
  bool header_good_ = false, first_segment_ = true, alone_ = false;
  bool have_identity_ = false;
  std::uint64_t identity_ = 0;

  std::uint64_t expected_ = 0;                                 // sequence of the next chunk
  std::uint64_t bad_floor_ = 0;                                // rows of bad chunks below are counted
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps_;  // lost sequences, begin and end

  std::uint64_t next_sequence_ = 0;  // FileHeader::next_sequence of the segment being read
  std::uint64_t covered_ = 0;  // a rewritten segment stands for every chunk below
  bool superseded_ = false;    // the segment being read is one of them
  bool ended_ = false;         // the last chunk was an end chunk
  bool vanished_ = false;      // the segment before was taken away

  bool readable_ = false;  // a good file header or chunk was seen
  Verdict verdict_ = Verdict::kNone;
  std::string verdict_message_;
};

}  // namespace nanhunt::trace
