// SPDX-License-Identifier: Apache-2.0
// Values are most of a trace, so what follows from something else is not stored. Layout: FORMAT.md, "Values (3)".
#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/cells.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {
namespace {

enum Shape : unsigned {
  kLevelMask = 3,
  kNonfinite = 4,
  kZero = 8,
  kSubnormal = 16,
  kAmax = 32,
  kFlushedZero = 64,
  kFlushed = 128,
};
enum Links : unsigned {
  kUnseen = 1,
  kBase = 2,
  kOffset = 4,
  kClassShift = 3,
  kClassMask = 3,
  kVersion = 32,
  kStorage = 64
};
constexpr std::uint64_t kMaxLinks = 127;
constexpr unsigned kStatsCounts = 2, kStatsSums = 3;  // shape & kLevelMask: 0 no statistics, else level + 1
constexpr std::uint64_t kAbs = ~(std::uint64_t{1} << 63);

// By class: how many low zero bits its extrema drop.
constexpr std::array<unsigned, 4> kClassDrop = {64, 42, 29, 0};

unsigned class_of(std::uint64_t any) {
  if (any == 0) return 0;
  const auto zeros = static_cast<unsigned>(std::countr_zero(any));
  return zeros >= kClassDrop[1] ? 1 : zeros >= kClassDrop[2] ? 2 : 3;
}
unsigned class_in(unsigned links) { return (links >> kClassShift) & kClassMask; }
std::size_t sums_group(unsigned extrema_class) { return extrema_class <= 1 ? 0 : extrema_class - 1; }

std::uint64_t implied_amax(std::uint64_t min, std::uint64_t max) { return std::max(min & kAbs, max & kAbs); }

std::uint64_t to_code(std::int64_t value) { return zigzag(static_cast<std::uint64_t>(value)); }
std::int64_t from_code(std::uint64_t code) { return static_cast<std::int64_t>(unzigzag(code)); }

// Finds the last row of the same storage within a chunk, or forgets it: storages whose low bits agree share a slot.
class LastRow {
 public:
  // Returns 1 + that row, 0 if it is not known, and remembers `row` in its place.
  std::uint32_t exchange(const std::uint64_t* storages, std::size_t row) {
    std::uint32_t& slot = slots_[storages[row] % kSlots];
    const std::uint32_t found = std::exchange(slot, static_cast<std::uint32_t>(row + 1));
    return found != 0 && storages[found - 1] == storages[row] ? found : 0;
  }

 private:
  static constexpr std::size_t kSlots = 4096;
  std::array<std::uint32_t, kSlots> slots_{};
};

// A column for some of the rows.
struct Sparse {
  std::uint64_t* data = nullptr;
  std::size_t size = 0;
  void add(std::uint64_t value) { data[size++] = value; }
};

struct ValueColumns {
  std::uint64_t *id, *shape, *links, *storages, *back, *layout;
  Sparse storage, version, offset, producer, base, flushed, numel, any, first, nan, pos_inf, neg_inf, zero, subnormal,
      amax;
  std::array<std::array<Sparse, 3>, 4> extrema;  // by class: amin_nonzero, min, max
  std::array<std::array<Sparse, 2>, 3> sums;     // by group: sum, sum_sq

  ValueColumns(std::size_t n, ColumnWriter& out) {
    for (auto* column : {&id, &shape, &links, &storages, &back, &layout}) *column = out.take(n);
    for (auto* column : {&storage, &version, &offset, &producer, &base, &flushed, &numel, &any, &first, &nan, &pos_inf,
                         &neg_inf, &zero, &subnormal, &amax}) {
      column->data = out.take(n);
    }
    for (std::size_t c = 1; c < extrema.size(); ++c) {
      for (Sparse& column : extrema[c]) column.data = out.take(n);
    }
    for (auto& group : sums) {
      for (Sparse& column : group) column.data = out.take(n);
    }
  }
};

// Returns the shape bits of the statistics and the class of the extrema.
std::pair<unsigned, unsigned> add_stats(const TensorStats& stats, ValueColumns& columns) {
  const auto level = std::min<unsigned>(static_cast<unsigned>(stats.level) + 1, kStatsSums);
  const bool counts = level >= kStatsCounts;
  unsigned shape = level, extrema_class = 0;
  columns.numel.add(to_code(stats.numel));
  const bool bad = counts && (stats.nan | stats.pos_inf | stats.neg_inf) != 0;
  if (bad || stats.any_nonfinite || stats.first_nonfinite != -1) {
    shape |= kNonfinite;
    columns.any.add(stats.any_nonfinite ? 1 : 0);
    columns.first.add(to_code(stats.first_nonfinite));
    columns.nan.add(counts ? to_code(stats.nan) : 0);
    columns.pos_inf.add(counts ? to_code(stats.pos_inf) : 0);
    columns.neg_inf.add(counts ? to_code(stats.neg_inf) : 0);
  }
  if (!counts) return {shape, extrema_class};
  if (stats.zero != 0) {
    shape |= kZero;
    columns.zero.add(to_code(stats.zero));
  }
  if (stats.subnormal != 0) {
    shape |= kSubnormal;
    columns.subnormal.add(to_code(stats.subnormal));
  }
  const std::uint64_t amin = double_bits(stats.amin_nonzero), min = double_bits(stats.min),
                      max = double_bits(stats.max), amax = double_bits(stats.amax);
  if (amax != implied_amax(min, max)) {
    shape |= kAmax;
    columns.amax.add(amax);
  }
  extrema_class = class_of(amin | min | max);
  if (extrema_class != 0) {
    const unsigned drop = kClassDrop[extrema_class];
    auto& extrema = columns.extrema[extrema_class];
    extrema[0].add(amin >> drop);
    extrema[1].add(min >> drop);
    extrema[2].add(max >> drop);
  }
  if (level == kStatsSums) {
    auto& sums = columns.sums[sums_group(extrema_class)];
    sums[0].add(double_bits(stats.sum));
    sums[1].add(double_bits(stats.sum_sq));
  }
  return {shape, extrema_class};
}

void encode(const RecordBatch& batch, RowRange range, ColumnWriter& out) {
  const std::size_t n = range.size();
  const std::span<const ValueRecord> rows(batch.values.data() + range.begin, n);
  ValueColumns columns(n, out);
  LastRow last_row;
  std::uint64_t highest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const ValueRecord& row = rows[i];
    columns.id[i] = row.id;
    columns.layout[i] = row.layout;
    columns.storages[i] = row.storage;
    const std::uint32_t found = last_row.exchange(columns.storages, i);
    unsigned links = 0;
    std::uint64_t version = 0;
    std::int64_t offset = 0;
    columns.back[i] = found != 0 ? i + 1 - found : 0;
    if (found != 0) {
      const ValueRecord& before = rows[found - 1];
      version = std::uint64_t{before.version} + 1;
      offset = before.offset;
    } else if (row.storage != highest + 1) {
      links |= kStorage;
      columns.storage.add(zigzag(row.storage - (highest + 1)));
    }
    highest = std::max(highest, row.storage);
    if (row.version != version) {
      links |= kVersion;
      columns.version.add(zigzag(row.version - version));
    }
    if (row.offset != offset) {
      links |= kOffset;
      columns.offset.add(to_code(row.offset));
    }
    if (row.producer == kNoSeq) {
      links |= kUnseen;
    } else {
      columns.producer.add(row.producer);
    }
    if (row.base != 0) {
      links |= kBase;
      columns.base.add(zigzag(row.id - row.base));
    }
    unsigned shape = 0, extrema_class = 0;
    if (row.has_stats) std::tie(shape, extrema_class) = add_stats(row.stats, columns);
    if (row.flushed == 0) {
      shape |= kFlushedZero;
    } else if (row.flushed != -1) {
      shape |= kFlushed;
      columns.flushed.add(to_code(row.flushed));
    }
    columns.shape[i] = shape;
    columns.links[i] = links | extrema_class << kClassShift;
  }

  out.column(columns.id, n, Coding::kDelta);
  for (const std::uint64_t* column : {columns.shape, columns.links, columns.back}) out.column(column, n);
  out.column(columns.storage.data, columns.storage.size);
  out.column(columns.version.data, columns.version.size);
  out.column(columns.layout, n, Coding::kPlain, kMaxTableId);
  out.column(columns.offset.data, columns.offset.size);
  out.column(columns.producer.data, columns.producer.size, Coding::kDelta);
  for (const Sparse* column :
       {&columns.base, &columns.flushed, &columns.numel, &columns.any, &columns.first, &columns.nan, &columns.pos_inf,
        &columns.neg_inf, &columns.zero, &columns.subnormal, &columns.amax}) {
    out.column(column->data, column->size);
  }
  for (std::size_t c = 1; c < columns.extrema.size(); ++c) {
    for (const Sparse& column : columns.extrema[c]) out.column(column.data, column.size);
  }
  for (const auto& group : columns.sums) {
    for (const Sparse& column : group) out.column(column.data, column.size);
  }
}

// How many rows have what, from shape and links alone.
struct ValueCounts {
  std::size_t storage = 0, version = 0, offset = 0, producer = 0, base = 0, flushed = 0, stats = 0, nonfinite = 0,
              zero = 0, subnormal = 0, amax = 0;
  std::array<std::size_t, 4> extrema{};
  std::array<std::size_t, 3> sums{};

  // False if the bits contradict each other.
  bool add(unsigned shape, unsigned links, bool points_back) {
    const unsigned level = shape & kLevelMask;
    const unsigned extrema_class = class_in(links);
    if (points_back && (links & kStorage) != 0) return false;
    if (level == 0 && (shape & kNonfinite) != 0) return false;
    if (level < kStatsCounts && ((shape & (kZero | kSubnormal | kAmax)) != 0 || extrema_class != 0)) return false;
    if ((shape & kFlushedZero) != 0 && (shape & kFlushed) != 0) return false;
    storage += (links & kStorage) != 0 ? 1 : 0;
    version += (links & kVersion) != 0 ? 1 : 0;
    offset += (links & kOffset) != 0 ? 1 : 0;
    producer += (links & kUnseen) == 0 ? 1 : 0;
    base += (links & kBase) != 0 ? 1 : 0;
    flushed += (shape & kFlushed) != 0 ? 1 : 0;
    stats += level != 0 ? 1 : 0;
    nonfinite += (shape & kNonfinite) != 0 ? 1 : 0;
    zero += (shape & kZero) != 0 ? 1 : 0;
    subnormal += (shape & kSubnormal) != 0 ? 1 : 0;
    amax += (shape & kAmax) != 0 ? 1 : 0;
    ++extrema[extrema_class];
    if (level == kStatsSums) ++sums[sums_group(extrema_class)];
    return true;
  }
};

// The columns as read, each consumed from its front.
struct ValueCursor {
  const std::uint64_t *storage, *version, *layout, *offset, *producer, *base, *flushed, *numel, *any, *first, *nan,
      *pos_inf, *neg_inf, *zero, *subnormal, *amax;
  std::array<std::array<const std::uint64_t*, 3>, 4> extrema{};
  std::array<std::array<const std::uint64_t*, 2>, 3> sums{};

  ValueCursor(ColumnReader& in, std::size_t rows, const ValueCounts& counts) {
    storage = in.column(counts.storage);
    version = in.column(counts.version);
    layout = in.column(rows, Coding::kPlain, kMaxTableId);
    offset = in.column(counts.offset);
    producer = in.column(counts.producer, Coding::kDelta);
    base = in.column(counts.base);
    flushed = in.column(counts.flushed);
    numel = in.column(counts.stats);
    any = in.column(counts.nonfinite, Coding::kPlain, 1);
    first = in.column(counts.nonfinite);
    nan = in.column(counts.nonfinite);
    pos_inf = in.column(counts.nonfinite);
    neg_inf = in.column(counts.nonfinite);
    zero = in.column(counts.zero);
    subnormal = in.column(counts.subnormal);
    amax = in.column(counts.amax);
    for (std::size_t c = 1; c < extrema.size(); ++c) {
      for (auto& column : extrema[c]) column = in.column(counts.extrema[c]);
    }
    for (std::size_t group = 0; group < sums.size(); ++group) {
      for (auto& column : sums[group]) column = in.column(counts.sums[group]);
    }
  }

  void read_stats(unsigned shape, unsigned extrema_class, TensorStats& stats) {
    const unsigned level = shape & kLevelMask;
    stats.level = static_cast<StatsLevel>(level - 1);
    stats.numel = from_code(*numel++);
    if ((shape & kNonfinite) != 0) {
      stats.any_nonfinite = *any++ != 0;
      stats.first_nonfinite = from_code(*first++);
      stats.nan = from_code(*nan++);
      stats.pos_inf = from_code(*pos_inf++);
      stats.neg_inf = from_code(*neg_inf++);
    }
    if (level < kStatsCounts) return;
    if ((shape & kZero) != 0) stats.zero = from_code(*zero++);
    if ((shape & kSubnormal) != 0) stats.subnormal = from_code(*subnormal++);
    std::uint64_t min = 0, max = 0;
    if (extrema_class != 0) {
      const unsigned drop = kClassDrop[extrema_class];
      stats.amin_nonzero = bits_double(*extrema[extrema_class][0]++ << drop);
      min = *extrema[extrema_class][1]++ << drop;
      max = *extrema[extrema_class][2]++ << drop;
      stats.min = bits_double(min);
      stats.max = bits_double(max);
    }
    stats.amax = bits_double((shape & kAmax) != 0 ? *amax++ : implied_amax(min, max));
    if (level != kStatsSums) return;
    auto& group = sums[sums_group(extrema_class)];
    stats.sum = bits_double(*group[0]++);
    stats.sum_sq = bits_double(*group[1]++);
  }
};

const char* decode(ColumnReader& in, std::size_t rows, RecordBatch& batch) {
  const std::uint64_t* id = in.column(rows, Coding::kDelta);
  const std::uint64_t* shape = in.column(rows, Coding::kPlain, 255);
  const std::uint64_t* links = in.column(rows, Coding::kPlain, kMaxLinks);
  const std::uint64_t* back = in.column(rows, Coding::kPlain, kMaxRows);
  if (!in.ok()) return kBadColumns;
  ValueCounts counts;
  for (std::size_t i = 0; i < rows; ++i) {
    if (back[i] > i) return "a value points back before its chunk";
    if (!counts.add(static_cast<unsigned>(shape[i]), static_cast<unsigned>(links[i]), back[i] != 0)) {
      return "a value's shape contradicts itself";
    }
  }
  ValueCursor cursor(in, rows, counts);
  if (!in.finished()) return kBadColumns;

  const std::size_t begin = batch.values.size();
  batch.values.resize(begin + rows);
  std::uint64_t highest = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    ValueRecord& row = batch.values[begin + i];
    std::uint64_t version = 0;
    if (back[i] != 0) {
      const ValueRecord& before = batch.values[begin + i - back[i]];
      row.storage = before.storage;
      row.offset = before.offset;
      version = std::uint64_t{before.version} + 1;
    } else {
      row.storage = highest + 1;
      if ((links[i] & kStorage) != 0) row.storage += unzigzag(*cursor.storage++);
    }
    highest = std::max(highest, row.storage);
    if ((links[i] & kVersion) != 0) version += unzigzag(*cursor.version++);
    if (version > ColumnReader::kU32) return "a value's version is too large";
    row.version = static_cast<std::uint32_t>(version);
    row.id = id[i];
    row.layout = static_cast<LayoutId>(*cursor.layout++);
    if ((links[i] & kOffset) != 0) row.offset = from_code(*cursor.offset++);
    row.producer = (links[i] & kUnseen) != 0 ? kNoSeq : *cursor.producer++;
    if ((links[i] & kBase) != 0) row.base = row.id - unzigzag(*cursor.base++);
    if ((shape[i] & kLevelMask) != 0) {
      row.has_stats = true;
      cursor.read_stats(static_cast<unsigned>(shape[i]), class_in(static_cast<unsigned>(links[i])), row.stats);
    }
    if ((shape[i] & kFlushedZero) != 0) row.flushed = 0;
    if ((shape[i] & kFlushed) != 0) row.flushed = from_code(*cursor.flushed++);
  }
  return nullptr;
}

const char* refuse(const RecordBatch& batch, std::size_t row) {
  return batch.values[row].layout > kMaxTableId ? "its layout id is above 1048575" : nullptr;
}

KeyRange keys(const RecordBatch& batch, RowRange range) {
  KeyRange found{batch.values[range.begin].id, batch.values[range.begin].id};
  for (std::size_t i = range.begin; i < range.end; ++i) {
    found.first = std::min(found.first, batch.values[i].id);
    found.last = std::max(found.last, batch.values[i].id);
  }
  return found;
}

template <typename T>
std::optional<T> if_known(bool is_known, T number) {
  return is_known ? std::optional<T>(number) : std::nullopt;
}

void show(const RecordBatch& batch, std::size_t at, const TraceNames& names, Cells& cells) {
  const ValueRecord& row = batch.values[at];
  const TensorStats& s = row.stats;
  const bool counts = row.has_stats && s.level >= StatsLevel::kCounts;
  const bool sums = row.has_stats && s.level >= StatsLevel::kSums;
  cells.count("id", row.id);
  cells.count("storage", row.storage);
  cells.u32("version", row.version);
  cells.integer("offset", row.offset);
  cells.id("base", row.base);
  cells.seq("producer", row.producer);
  show_op(cells, names, row.producer, /*with_step=*/true);
  show_layout(cells, names, row.layout);
  cells.integer("numel", if_known(row.has_stats, s.numel));
  cells.integer("first_nonfinite", if_known(row.has_stats && s.any_nonfinite, s.first_nonfinite));
  cells.integer("nan", if_known(counts, s.nan));
  cells.integer("pos_inf", if_known(counts, s.pos_inf));
  cells.integer("neg_inf", if_known(counts, s.neg_inf));
  cells.integer("zero", if_known(counts, s.zero));
  cells.integer("subnormal", if_known(counts, s.subnormal));
  cells.number("amin_nonzero", if_known(counts && s.has_nonzero(), s.amin_nonzero));
  cells.number("amax", if_known(counts && s.has_finite(), s.amax));
  cells.number("min", if_known(counts && s.has_finite(), s.min));
  cells.number("max", if_known(counts && s.has_finite(), s.max));
  cells.number("sum", if_known(sums, s.sum));
  cells.number("sum_sq", if_known(sums, s.sum_sq));
  cells.integer("flushed", if_known(row.flushed >= 0, row.flushed));
}

}  // namespace

constinit const RecordKind kValues = list_kind<&RecordBatch::values>(
    {.type = kValuesType, .name = "values", .counted = "values",
     .line_cells = "id producer step op module dtype shape nan pos_inf neg_inf zero subnormal amin_nonzero "
                   "min max flushed storage version",
     .encode = encode, .decode = decode, .refuse = refuse, .keys = keys, .show = show});

}  // namespace nanhunt::trace
