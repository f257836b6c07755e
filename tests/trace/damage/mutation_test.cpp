// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets in tests/fuzz do, a few thousand times and always the same way: mutated payloads behind right
// checksums, mutated files, mutated run.json. Nothing may crash, overrun (sanitizers) or break a range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "src/trace/encoding/crc32c.h"
#include "src/trace/record_kind.h"
#include "src/trace/run/run_info.h"
#include "tests/trace/damage/decode_target.h"
#include "tests/trace/damage/forge.h"
#include "tests/trace/damage/mutator.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

TEST(Mutation, decoders_of_every_kind_survive_mutated_columns) {
  Mutator mutator(1);
  for (std::uint64_t round = 0; round < 250; ++round) {
    const RecordBatch batch = RandomBatches(round % 20).next(round % 3 == 0 ? 600 : 6);
    for (const trace::RecordKind& kind : trace::record_kinds()) {
      trace::ColumnWriter columns;
      kind.encode(batch, {0, kind.count(batch)}, columns);
      Bytes packed = columns.packed(), plain = columns.plain();
      mutator.mutate(packed);
      if (mutator.below(4) == 0) mutator.mutate(plain);
      const std::size_t rows = mutator.below(8) == 0 ? mutator.below(65537) : kind.count(batch);
      decode_columns(kind.type, rows, packed, plain);
    }
  }
}

class FileMutation : public TraceTest {};

TEST_F(FileMutation, reading_survives_mutated_files_with_checksums_made_right_again) {
  Mutator mutator(2);
  RandomBatches random(51);
  const Bytes good = load(write_trace("run", {random.next(8), random.next(8)}) + "/000000.nht");
  for (int round = 0; round < 1500; ++round) {
    Bytes bytes = good;
    mutator.mutate(bytes);
    for (const ChunkPlace& place : chunks_of(good)) {
      if (mutator.below(2) == 0 || place.offset + trace::kChunkHeaderBytes > bytes.size()) continue;
      std::byte* header = bytes.data() + place.offset;
      if (mutator.below(3) == 0) header[4 + mutator.below(28)] = static_cast<std::byte>(mutator.below(256));
      const auto left = std::span(bytes).subspan(place.offset + trace::kChunkHeaderBytes);
      std::uint32_t stored = 0;
      std::memcpy(&stored, header + 16, 4);
      const std::uint32_t payload = trace::crc32c(left.first(std::min<std::size_t>(stored, left.size())));
      std::memcpy(header + 32, &payload, 4);
      const std::uint32_t own = trace::crc32c({header, 36});
      std::memcpy(header + 36, &own, 4);
    }
    save(path("mutated.nht"), bytes);
    read_and_check(path("mutated.nht"));
  }
}

TEST(Mutation, run_json_survives_mutation) {
  Mutator mutator(3);
  RunInfo info;
  info.command = {"train", "--lr", "0.1"};
  info.options = {{"seed", "7"}};
  const std::string good = trace::run_info_text(info);
  for (int round = 0; round < 2000; ++round) {
    const auto view = std::as_bytes(std::span(good));
    Bytes bytes(view.begin(), view.end());
    mutator.mutate(bytes);
    RunInfo out;
    trace::parse_run_info({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, out);
  }
}

}  // namespace
}  // namespace nanhunt::trace_testing
