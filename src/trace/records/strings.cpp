// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

const char* refuse(const RecordBatch& batch, std::size_t row) {
  return batch.strings[row].id > kMaxTableId ? "its id is above 1048575" : nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  write_field(out, batch.strings, range, Coding::kDelta, [](const StringRecord& row) { return row.id; });
  std::vector<const std::string*> texts;
  texts.reserve(range.size());
  for (std::size_t i = range.begin; i < range.end; ++i) texts.push_back(&batch.strings[i].text);
  out.texts(texts);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* ids = in.column(rows, Coding::kDelta, kMaxTableId);
  std::vector<std::string> texts;
  in.texts(rows, texts);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.strings.push_back({static_cast<StringId>(ids[i]), std::move(texts[i])});
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) {
  return std::min(batch.strings[row].text.size(), kMaxTextBytes);
}

}  // namespace

constinit const RecordKind kStrings = list_kind<&RecordBatch::strings>(
    {.type = 1, .name = "strings", .encode = encode, .decode = decode, .refuse = refuse, .weight = weight});

}  // namespace nanhunt::trace
