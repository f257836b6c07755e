// SPDX-License-Identifier: Apache-2.0
// What each kind of record offers to writer and reader. One file per kind in records/, one table here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "nanhunt/trace.h"
#include "src/trace/encoding/columns.h"

namespace nanhunt::trace {

struct RowRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

struct KeyRange {
  std::uint64_t first = 0, last = 0;
};

class Cells;
class TraceNames;

// What goes when a writer at its limit thins out steps (segments/segment_rewriter).
enum class Retires : std::uint8_t {
  kByHand,    // the rewriter knows more of this kind
  kNever,     // few, and what a finding rests on
  kWithStep,  // with the row's step
  kWithOp,    // with the op that it is about
};

struct RecordKind {
  std::uint16_t type;
  std::string_view name;  // as RecordBatch calls the list
  Retires retires = Retires::kByHand;
  // What it is called where rows are shown, and where `nanhunt info --json` counts them. "": as `name`; not counted.
  std::string_view shown = "", counted = "";
  // Cells that come first in tables, where that is not the order of the columns that are stored.
  std::string_view first_cells = "";
  // Cells of a line for people. "": all, the step first and the op before its module.
  std::string_view line_cells = "";
  // A cell that tables alone have.
  std::string_view table_cell = "";
  void (*encode)(const RecordBatch&, RowRange, ColumnWriter&) = nullptr;
  // Appends `rows` rows and returns nullptr, or says why it cannot (the caller then clears the kind).
  const char* (*decode)(ColumnReader&, std::size_t rows, RecordBatch&) = nullptr;
  // Why the row cannot be stored, or nullptr. `encode` looks too, and says refused() if there is such a row.
  const char* (*refuse)(const RecordBatch&, std::size_t row) = nullptr;
  // About how many payload bytes the row's lists and texts take; nullptr: none.
  std::size_t (*weight)(const RecordBatch&, std::size_t row) = nullptr;
  // Whether the row must be read before this op; nullptr: it has no place in time.
  bool (*before)(const RecordBatch&, std::size_t row, const OpRecord& op) = nullptr;
  // For the index of the end chunk; nullptr: no key.
  KeyRange (*keys)(const RecordBatch&, RowRange) = nullptr;
  // Its columns as FORMAT.md notes them; nullptr: described there by hand. field_kind() fills it in.
  std::string (*columns)() = nullptr;
  // Names what it shows of a row; nullptr: nothing. field_kind() fills it in where the kind is not `hidden`.
  void (*show)(const RecordBatch&, std::size_t row, const TraceNames&, Cells&) = nullptr;
  bool hidden = false;
  // list_kind() fills these in; the step and the op of a row where it has them.
  std::uint32_t (*step)(const RecordBatch&, std::size_t row) = nullptr;
  std::uint64_t (*seq)(const RecordBatch&, std::size_t row) = nullptr;
  std::size_t (*count)(const RecordBatch&) = nullptr;
  void (*clear)(RecordBatch&) = nullptr;
  void (*copy)(const RecordBatch& from, std::size_t row, RecordBatch& to) = nullptr;

  constexpr std::string_view shown_name() const { return shown.empty() ? name : shown; }
};

// All kinds in the order of RecordBatch's fields, which is that of their type numbers and of chunks in a frame.
std::span<const RecordKind> record_kinds();
inline constexpr std::uint16_t kStringsType = 1, kLayoutsType = 2, kValuesType = 3, kOpsType = 4, kMarksType = 5,
                               kSamplesType = 6, kStepsType = 7, kEvidenceType = 8, kHistogramsType = 13,
                               kEndType = 255;

const RecordKind* find_record_kind(std::uint16_t type);  // nullptr: unknown
std::string_view record_kind_name(std::uint16_t type);   // "ops", "end", "unknown"

// Every kind with its list in RecordBatch, by type number: first those that are numbered for good, then those whose rows
// an event may add, whatever its kind.
#define NANHUNT_TABLE_KINDS(KIND) KIND(kStrings, strings) KIND(kLayouts, layouts)
#define NANHUNT_EVENT_KINDS(KIND)                                                                                     \
  KIND(kValues, values) KIND(kOps, ops) KIND(kMarks, marks) KIND(kSampleIds, sample_ids) KIND(kSteps, steps)           \
  KIND(kEvidence, evidence) KIND(kEndsOfLife, ends_of_life) KIND(kExperiments, experiments) KIND(kDrops, drops)        \
  KIND(kScaler, scaler) KIND(kHistograms, histograms) KIND(kRetired, retired) KIND(kHealth, health)                    \
  KIND(kNorms, norms) KIND(kUnheard, unheard) KIND(kChanged, changed) KIND(kProbes, probes)                            \
  KIND(kCaptures, captures) KIND(kNotes, notes) KIND(kCollectives, collectives) KIND(kKernels, kernels)    \
  KIND(kFrames, frames) KIND(kSetup, setup)

#define NANHUNT_DECLARE_KIND(kind, list) extern const RecordKind kind;
NANHUNT_TABLE_KINDS(NANHUNT_DECLARE_KIND)
NANHUNT_EVENT_KINDS(NANHUNT_DECLARE_KIND)
#undef NANHUNT_DECLARE_KIND

// Values first.
#define NANHUNT_LIST_OF_KIND(kind, list) &RecordBatch::list,
inline constexpr std::tuple kEventLists{
    NANHUNT_EVENT_KINDS(NANHUNT_LIST_OF_KIND) &RecordBatch::inputs, &RecordBatch::outputs, &RecordBatch::scalars};
#undef NANHUNT_LIST_OF_KIND

#define NANHUNT_COUNT_KIND(kind, list) +1
inline constexpr std::size_t kKindCount = 0 NANHUNT_TABLE_KINDS(NANHUNT_COUNT_KIND)
    NANHUNT_EVENT_KINDS(NANHUNT_COUNT_KIND);
#undef NANHUNT_COUNT_KIND

// A kind whose rows are one list of RecordBatch: every kind but ops.
template <auto kList>
constexpr RecordKind list_kind(RecordKind kind) {
  kind.count = [](const RecordBatch& batch) { return (batch.*kList).size(); };
  kind.clear = [](RecordBatch& batch) { (batch.*kList).clear(); };
  kind.copy = [](const RecordBatch& from, std::size_t row, RecordBatch& to) {
    (to.*kList).push_back((from.*kList)[row]);
  };
  using Row = typename std::remove_cvref_t<decltype(std::declval<RecordBatch>().*kList)>::value_type;
  if constexpr (requires(Row row) { row.step; }) {
    kind.step = [](const RecordBatch& batch, std::size_t row) { return (batch.*kList)[row].step; };
  }
  if constexpr (requires(Row row) { row.seq; }) {
    kind.seq = [](const RecordBatch& batch, std::size_t row) { return (batch.*kList)[row].seq; };
  }
  return kind;
}

// For RecordKind::before: rows with a place of their own in the sequence, and rows about an op, which follow it.
template <auto kList>
bool up_to_op(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return (batch.*kList)[row].seq <= op.seq;
}
template <auto kList>
bool after_its_op(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  return (batch.*kList)[row].seq < op.seq;
}

// For an `encode` that does not find out on its way.
template <auto kRefuse>
void refuse_rows(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  for (std::size_t row = range.begin; row < range.end; ++row) {
    if (kRefuse(batch, row) != nullptr) out.refuse();
  }
}

// A column made from one field of every row.
template <typename Rows, typename Field>
void write_field(ColumnWriter& out, const Rows& rows, RowRange range, Coding coding, Field field) {
  std::uint64_t* values = out.take(range.size());
  for (std::size_t i = 0; i < range.size(); ++i) values[i] = static_cast<std::uint64_t>(field(rows[range.begin + i]));
  out.column(values, range.size(), coding);
}

inline constexpr const char* kBadColumns = "columns do not fit";

}  // namespace nanhunt::trace
