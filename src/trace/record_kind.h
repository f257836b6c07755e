// SPDX-License-Identifier: Apache-2.0
// What each kind of record offers to writer and reader. One file per kind in records/, one table here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

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

struct RecordKind {
  std::uint16_t type;
  std::string_view name;  // as RecordBatch calls the list
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
  // list_kind() fills these in.
  std::size_t (*count)(const RecordBatch&) = nullptr;
  void (*clear)(RecordBatch&) = nullptr;
  void (*copy)(const RecordBatch& from, std::size_t row, RecordBatch& to) = nullptr;
};

// All kinds in the order of RecordBatch's fields, which is that of their type numbers and of chunks in a frame.
std::span<const RecordKind> record_kinds();
inline constexpr std::size_t kKindCount = 23;
inline constexpr std::uint16_t kStringsType = 1, kLayoutsType = 2, kValuesType = 3, kOpsType = 4, kMarksType = 5,
                               kEvidenceType = 8, kHistogramsType = 13, kEndType = 255;

const RecordKind* find_record_kind(std::uint16_t type);  // nullptr: unknown
std::string_view record_kind_name(std::uint16_t type);   // "ops", "end", "unknown"

extern const RecordKind kStrings, kLayouts, kValues, kOps, kMarks, kSampleIds, kSteps, kEvidence, kEndsOfLife,
    kExperiments, kDrops, kScaler, kHistograms, kRetired, kHealth, kNorms, kReplays, kChanged, kProbes, kCaptures,
    kNotes, kCollectives, kKernels;

// The lists of RecordBatch whose rows one event may add, whatever its kind: all but strings and layouts, which are
// numbered for good. Values first.
inline constexpr std::tuple kEventLists{
    &RecordBatch::values,   &RecordBatch::ops,      &RecordBatch::inputs,       &RecordBatch::outputs,
    &RecordBatch::scalars,  &RecordBatch::marks,    &RecordBatch::sample_ids,   &RecordBatch::steps,
    &RecordBatch::evidence, &RecordBatch::scaler,   &RecordBatch::ends_of_life, &RecordBatch::experiments,
    &RecordBatch::drops,    &RecordBatch::retired,  &RecordBatch::histograms,   &RecordBatch::health,
    &RecordBatch::norms,    &RecordBatch::replays,  &RecordBatch::changed,      &RecordBatch::probes,
    &RecordBatch::captures, &RecordBatch::notes,    &RecordBatch::collectives,  &RecordBatch::kernels};
static_assert(std::tuple_size_v<decltype(kEventLists)> == kKindCount - 2 + 3, "ops have three more lists");

// A kind whose rows are one list of RecordBatch: every kind but ops.
template <auto kList>
constexpr RecordKind list_kind(RecordKind kind) {
  kind.count = [](const RecordBatch& batch) { return (batch.*kList).size(); };
  kind.clear = [](RecordBatch& batch) { (batch.*kList).clear(); };
  kind.copy = [](const RecordBatch& from, std::size_t row, RecordBatch& to) {
    (to.*kList).push_back((from.*kList)[row]);
  };
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
