// SPDX-License-Identifier: Apache-2.0
// Batches with every kind of row and with extreme values in every field, from a seed.
#pragma once

#include <cstdint>
#include <random>

#include "nanhunt/trace.h"

namespace nanhunt::trace_testing {

class RandomBatches {
 public:
  explicit RandomBatches(std::uint64_t seed) : random_(seed) {}

  // About `rows` rows of each kind. String and layout ids, value ids and op seqs grow from batch to batch.
  RecordBatch next(std::size_t rows);

 private:
  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  std::uint64_t any_u64();  // often small, sometimes all 64 bits
  std::int64_t any_i64() { return static_cast<std::int64_t>(any_u64()); }
  StringId any_name() { return static_cast<StringId>(below(next_string_)); }
  std::uint32_t any_u32() { return static_cast<std::uint32_t>(any_u64()); }
  double any_double();  // NaNs with payloads, infinities, both zeros, subnormals, rounded and full mantissas
  std::string any_text();
  TensorStats any_stats();
  ValueRecord any_value();
  void add_op(RecordBatch& batch);

  std::mt19937_64 random_;
  std::uint32_t next_string_ = 1, next_layout_ = 1;
  ValueId next_value_ = 1;
  std::uint64_t next_seq_ = 0;
};

}  // namespace nanhunt::trace_testing
