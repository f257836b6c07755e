// SPDX-License-Identifier: Apache-2.0
// What takes the rows of an unfinished event back.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <vector>

#include "src/record/rows/row_builder.h"
#include "src/trace/record_kind.h"

namespace nanhunt::record {

// Sizes of what one event may append to. Strings and layouts stay: they are numbered for good.
struct RowBuilder::Checkpoint {
  std::array<std::size_t, std::tuple_size_v<decltype(trace::kEventLists)>> sizes;
  explicit Checkpoint(const RecordBatch& b)
      : sizes(std::apply([&](auto... list) { return decltype(sizes){(b.*list).size()...}; }, trace::kEventLists)) {}
  void restore(RecordBatch& b) const {
    const std::size_t* size = sizes.data();
    std::apply([&](auto... list) { (cut(b.*list, *size++), ...); }, trace::kEventLists);
  }

 private:
  template <typename T>
  static void cut(std::vector<T>& rows, std::size_t size) {
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(size), rows.end());
  }
};

// Takes an unfinished event's rows back. Its values stay in the table without a row, as if dropped.
class RowBuilder::Rollback {
 public:
  explicit Rollback(RowBuilder& builder) : builder_(builder), before_(builder.rows_.batch) {}
  ~Rollback() {
    if (done_) return;
    PendingRows& rows = builder_.rows_;
    RecordBatch& b = rows.batch;
    for (std::size_t i = before_.sizes.front(); i < b.values.size(); ++i) {
      ValueInfo* info = builder_.table_.find_id(b.values[i].storage, b.values[i].id);
      if (info != nullptr) info->row_batch = 0;
    }
    before_.restore(b);
    rows.op_is_essential.resize(b.ops.size());
    rows.mark_is_essential.resize(b.marks.size());
    rows.end_first_batch.resize(b.ends_of_life.size());
    builder_.table_.end_event();
  }
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  void commit() {
    done_ = true;
    builder_.table_.end_event();
  }

 private:
  RowBuilder& builder_;
  Checkpoint before_;
  bool done_ = false;
};

}  // namespace nanhunt::record
