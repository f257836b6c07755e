// SPDX-License-Identifier: Apache-2.0
// Rows not yet handed to the writer, with what is needed to thin them when there is no room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::record {

struct PendingRows {
  RecordBatch batch;
  // Parallel to batch.ops and batch.marks: 1: something non-finite goes in or comes out, never dropped.
  std::vector<std::uint8_t> op_is_essential, mark_is_essential;
  // Parallel to batch.ends_of_life: lowest number of a batch that holds a row of the storage.
  std::vector<std::uint64_t> end_first_batch;
  std::uint64_t number = 1;  // of this batch, 1, 2, 3 ...

  void clear();
  bool names_ops() const;  // drop_ops() would drop some
};

struct Dropped {
  std::uint64_t ops = 0, values = 0, other = 0;
  bool any() const { return ops + values + other != 0; }
  void add(const Dropped& more);
};

// Takes routine rows out, in place: ops without bad inputs or outputs, their values, marks of good values, ends of
// storages of which no row is left. Strings, layouts, steps, sample ids, evidence and everything an essential row
// refers to stay. `dropped_values` gets the values whose rows went.
Dropped thin(PendingRows& rows, std::vector<ValueRecord>& dropped_values);

// Takes values out, in place, and every row that names one.
Dropped drop_value_graph(PendingRows& rows) noexcept;

// Takes out what a step that nobody asks for has left, in place: all that names a value or an op. What says how steps
// went stays, and so do ends of storages of which an older batch has a row. The next op will be `next_seq`.
void drop_ops(PendingRows& rows, std::uint64_t next_seq) noexcept;

// What is lost if the whole batch is. Strings and layouts are not counted: they are kept.
Dropped rows_of(const RecordBatch& batch);

}  // namespace nanhunt::record
