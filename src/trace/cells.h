// SPDX-License-Identifier: Apache-2.0
// What a row of a record kind shows, cell by cell and with names resolved. Each kind says it once (RecordKind::show).
// Whoever shows rows is a Cells: `nanhunt dump` and `export` as JSON and CSV, the C interface as Arrow columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/trace/record_kind.h"
#include "src/trace/trace_names.h"

namespace nanhunt::trace {

// A kind names the same cells in the same order for every row, an empty one too.
class Cells {
 public:
  virtual ~Cells() = default;
  virtual void u32(std::string_view name, std::optional<std::uint32_t> value) = 0;
  virtual void i32(std::string_view name, std::optional<std::int32_t> value) = 0;
  virtual void integer(std::string_view name, std::optional<std::int64_t> value) = 0;
  virtual void count(std::string_view name, std::optional<std::uint64_t> value) = 0;
  virtual void seq(std::string_view name, std::uint64_t value) = 0;  // kNoSeq: none
  virtual void number(std::string_view name, std::optional<double> value) = 0;
  virtual void number_or_nan(std::string_view name, double value) = 0;  // NaN: not known
  virtual void flag(std::string_view name, bool value) = 0;
  virtual void text(std::string_view name, std::string_view value) = 0;      // "": none
  virtual void own_text(std::string_view name, std::string_view value) = 0;  // "": that it is empty
  virtual void parts(std::string_view name, std::uint32_t bad) = 0;          // HealthRecord::bad
  virtual void integers(std::string_view name, std::span<const std::int64_t> values) = 0;
  virtual void integers(std::string_view name, std::span<const std::uint32_t> values) = 0;
  virtual void shape(std::string_view name, const std::vector<std::int64_t>* sizes) = 0;  // nullptr: not known
  // `item(cells, i)` shows element i; also called for an i that is not there, where a list is only declared.
  using ShowItem = std::function<void(Cells& cells, std::size_t i)>;
  virtual void list(std::string_view name, std::size_t count, const ShowItem& item) = 0;

  void id(std::string_view name, std::uint64_t value) {  // 0: none
    count(name, value == 0 ? std::nullopt : std::optional(value));
  }
};

// Element i, or an empty one where a list is only declared.
template <typename T>
T at_or_empty(std::span<const T> list, std::size_t i) {
  return i < list.size() ? list[i] : T{};
}

std::string_view arg_role_name(ArgRole role);  // "read", "saved", ...

// Step, module and name of the op that a row is about, where the trace still holds it.
void show_op(Cells& cells, const TraceNames& names, std::uint64_t seq, bool with_step);
void show_layout(Cells& cells, const TraceNames& names, LayoutId id);

// The kinds whose rows are shown, in the order in which people are told of them: all but strings and layouts.
std::span<const RecordKind* const> shown_kinds();
const RecordKind* find_shown_kind(std::string_view name);  // nullptr: none

std::vector<std::string_view> words_of(std::string_view text);  // split at spaces

// With one empty row of each kind, to learn which cells a kind shows.
const RecordBatch& one_row_of_each();

}  // namespace nanhunt::trace
