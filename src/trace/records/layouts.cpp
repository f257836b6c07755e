// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

// Consumers multiply sizes: only those whose product fits are stored or delivered.
bool sizes_fit(const std::vector<std::int64_t>& sizes) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || (size > 0 && __builtin_mul_overflow(product, size, &product))) return false;
  }
  return true;
}

template <typename Member>
void write_list(const RecordBatch& batch, RowRange range, Member member, ColumnWriter& out) {
  std::size_t total = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) total += (batch.layouts[i].*member).size();
  std::uint64_t* items = out.take(total);
  std::size_t at = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    for (const std::int64_t item : batch.layouts[i].*member) items[at++] = zigzag(static_cast<std::uint64_t>(item));
  }
  out.column(items, total);
}

void read_list(const std::uint64_t*& items, std::uint64_t count, std::vector<std::int64_t>& out) {
  out.reserve(count);
  for (; count > 0; --count) out.push_back(static_cast<std::int64_t>(unzigzag(*items++)));
}

const char* refuse(const RecordBatch& batch, std::size_t row) {
  const LayoutRecord& layout = batch.layouts[row];
  if (layout.id > kMaxTableId) return "its id is above 1048575";
  if (static_cast<int>(layout.dtype) >= kDTypeCount) return "its dtype is unknown";
  if (layout.sizes.size() > kMaxDims || layout.strides.size() > kMaxDims) return "it has more than 64 dimensions";
  if (!sizes_fit(layout.sizes)) return "its sizes are negative or too large";
  return nullptr;
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  refuse_rows<refuse>(batch, range, out);
  const auto& rows = batch.layouts;
  write_field(out, rows, range, Coding::kDelta, [](const LayoutRecord& row) { return row.id; });
  write_field(out, rows, range, Coding::kPlain, [](const LayoutRecord& row) { return row.dtype; });
  write_field(out, rows, range, Coding::kPlain, [](const LayoutRecord& row) { return row.sizes.size(); });
  write_field(out, rows, range, Coding::kPlain, [](const LayoutRecord& row) { return row.strides.size(); });
  write_list(batch, range, &LayoutRecord::sizes, out);
  write_list(batch, range, &LayoutRecord::strides, out);
}

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* ids = in.column(rows, Coding::kDelta, kMaxTableId);
  const std::uint64_t* dtypes = in.column(rows, Coding::kPlain, kDTypeCount - 1);
  const std::uint64_t* size_counts = in.column(rows, Coding::kPlain, kMaxDims);
  const std::uint64_t* stride_counts = in.column(rows, Coding::kPlain, kMaxDims);
  std::size_t sizes_total = 0, strides_total = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    sizes_total += size_counts[i];
    strides_total += stride_counts[i];
  }
  if (!in.ok() || sizes_total > kMaxItems || strides_total > kMaxItems) return kBadColumns;
  const std::uint64_t* sizes = in.column(sizes_total);
  const std::uint64_t* strides = in.column(strides_total);
  if (!in.finished()) return kBadColumns;
  for (std::size_t i = 0; i < rows; ++i) {
    LayoutRecord row;
    row.id = static_cast<LayoutId>(ids[i]);
    row.dtype = static_cast<DType>(dtypes[i]);
    read_list(sizes, size_counts[i], row.sizes);
    read_list(strides, stride_counts[i], row.strides);
    if (!sizes_fit(row.sizes)) return "a layout's sizes are negative or too large";
    batch.layouts.push_back(std::move(row));
  }
  return nullptr;
}

std::size_t weight(const RecordBatch& batch, std::size_t row) {
  return 8 * (batch.layouts[row].sizes.size() + batch.layouts[row].strides.size());
}

}  // namespace

constinit const RecordKind kLayouts = list_kind<&RecordBatch::layouts>(
    {.type = 2, .name = "layouts", .encode = encode, .decode = decode, .refuse = refuse, .weight = weight});

}  // namespace nanhunt::trace
