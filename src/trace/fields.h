// SPDX-License-Identifier: Apache-2.0
// One declaration of a record kind's fields, in the order of its columns, from which follow how it is encoded, decoded,
// refused, weighed and shown, and its row in FORMAT.md:
//   constexpr auto kFields = fields(delta("seq", &NoteRecord::seq), id("text", &NoteRecord::text), ...);
//   constinit const RecordKind kNotes = field_kind<&RecordBatch::notes, kFields>({.type = 21, .name = "notes", ...});
// Everything goes a column at a time, with the field's coding known to the compiler.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/trace/encoding/bytes.h"
#include "src/trace/cells.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"

namespace nanhunt::trace {

// A sentence put together while compiling.
struct Sentence {
  std::array<char, 96> text{};
  constexpr Sentence(std::string_view a, std::string_view b, std::string_view c) {
    std::size_t at = 0;
    for (const std::string_view part : {a, b, c}) {
      for (const char letter : part) text[at++] = letter;
    }
  }
};

enum class Stored : std::uint8_t { kAsIs, kZigzag, kBits, kPlusOne };

// What a number is to whoever is shown it.
enum class Means : std::uint8_t { kNumber, kSeq, kValue, kName, kParts, kUnknownIfNan, kChecksum };

// One number of every row. Above `limit`, once stored, the row is refused, with `refusal` where the type allows it.
template <Stored kStored, typename Record, typename T>
struct NumberField {
  using Column = const std::uint64_t*;
  std::string_view name;
  T Record::*member;
  Coding coding = Coding::kPlain;
  std::uint64_t limit = kAnyNumber;
  Sentence refusal{"", "", ""};
  std::string_view note = "";
  bool can_refuse = false;
  Means means = Means::kNumber;
  std::string_view shown = "";               // "": as `name`
  std::string_view (*word)(T) = nullptr;     // of an enumeration
  std::optional<T> (*known)(const Record&) = nullptr;  // what is shown instead, if anything

  constexpr NumberField as(std::string_view called) const {
    NumberField field = *this;
    field.shown = called;
    return field;
  }
  constexpr NumberField meaning(Means what) const {
    NumberField field = *this;
    field.means = what;
    return field;
  }
  constexpr NumberField where(std::optional<T> (*is_known)(const Record&)) const {
    NumberField field = *this;
    field.known = is_known;
    return field;
  }

  void show(const Record& row, const TraceNames& names, Cells& cells) const {
    const std::string_view called = shown.empty() ? name : shown;
    const T value = row.*member;
    if constexpr (std::is_enum_v<T>) {
      cells.text(called, word(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      cells.flag(called, value);
    } else if constexpr (std::is_same_v<T, double>) {
      if (means == Means::kUnknownIfNan) cells.number_or_nan(called, value);
      else cells.number(called, known != nullptr ? known(row) : value);
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (means == Means::kSeq) cells.seq(called, value);
      else if (means == Means::kValue) cells.id(called, value);
      else if (means == Means::kChecksum) cells.text(called, value == 0 ? "" : fmt::format("{:016x}", value));
      else cells.count(called, value);
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      cells.integer(called, value);
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      cells.i32(called, kStored == Stored::kPlusOne && value < 0 ? std::nullopt : std::optional(value));
    } else {
      static_assert(std::is_same_v<T, std::uint32_t>);
      if (means == Means::kName) cells.text(called, names.text(value));
      else if (means == Means::kParts) cells.parts(called, value);
      else cells.u32(called, value);
    }
  }

  static std::uint64_t stored(T value) {
    if constexpr (kStored == Stored::kZigzag) return zigzag_signed(value);
    else if constexpr (kStored == Stored::kBits) return double_bits(value);
    else if constexpr (kStored == Stored::kPlusOne) return static_cast<std::uint64_t>(std::int64_t{value} + 1);
    else return static_cast<std::uint64_t>(value);
  }
  static T restored(std::uint64_t number) {
    if constexpr (kStored == Stored::kZigzag) return static_cast<T>(unzigzag_signed(number));
    else if constexpr (kStored == Stored::kBits) return bits_double(number);
    else if constexpr (kStored == Stored::kPlusOne) return static_cast<T>(static_cast<std::int64_t>(number) - 1);
    else return static_cast<T>(number);
  }

  constexpr bool refuses() const { return can_refuse; }
  static constexpr bool kWeighs = false;
  const char* refuse(const Record& row) const {
    return can_refuse && stored(row.*member) > limit ? refusal.text.data() : nullptr;
  }
  std::size_t weight(const Record&) const { return 0; }
  void encode(const std::vector<Record>& rows, RowRange range, ColumnWriter& out) const {
    write_field(out, rows, range, coding, [this](const Record& row) { return stored(row.*member); });
  }
  Column fetch(ColumnReader& in, std::size_t rows) const { return in.column(rows, coding, limit); }
  const char* fill(Record* rows, std::size_t n, Column column) const {
    for (std::size_t i = 0; i < n; ++i) rows[i].*member = restored(column[i]);
    return nullptr;
  }
  std::string notation() const {
    std::string text = coding == Coding::kDelta ? "delta " : "";
    if (kStored == Stored::kZigzag) text += "zigzag ";
    if (kStored == Stored::kBits) text += "f64 ";
    return text.append(name).append(kStored == Stored::kPlusOne ? " + 1" : "").append(note);
  }
};

// Two flags in one column.
template <typename Record>
struct FlagsField {
  using Column = const std::uint64_t*;
  std::string_view first_name, second_name;
  bool Record::*first;
  bool Record::*second;

  constexpr bool refuses() const { return false; }
  static constexpr bool kWeighs = false;
  const char* refuse(const Record&) const { return nullptr; }
  std::size_t weight(const Record&) const { return 0; }
  void encode(const std::vector<Record>& rows, RowRange range, ColumnWriter& out) const {
    write_field(out, rows, range, Coding::kPlain,
                [this](const Record& row) { return (row.*first ? 1 : 0) | (row.*second ? 2 : 0); });
  }
  Column fetch(ColumnReader& in, std::size_t rows) const { return in.column(rows, Coding::kPlain, 3); }
  const char* fill(Record* rows, std::size_t n, Column column) const {
    for (std::size_t i = 0; i < n; ++i) {
      rows[i].*first = (column[i] & 1) != 0;
      rows[i].*second = (column[i] & 2) != 0;
    }
    return nullptr;
  }
  void show(const Record& row, const TraceNames&, Cells& cells) const {
    cells.flag(first_name, row.*first);
    cells.flag(second_name, row.*second);
  }
  std::string notation() const {
    return std::string("bits (1 ").append(first_name).append(", 2 ").append(second_name).append(")");
  }
};

// A text in the row itself. A longer one is cut.
template <typename Record>
struct TextField {
  using Column = std::vector<std::string>;
  std::string_view name;
  std::string Record::*member;

  constexpr bool refuses() const { return false; }
  static constexpr bool kWeighs = true;
  const char* refuse(const Record&) const { return nullptr; }
  std::size_t weight(const Record& row) const { return std::min((row.*member).size(), kMaxTextBytes); }
  void encode(const std::vector<Record>& rows, RowRange range, ColumnWriter& out) const {
    std::vector<const std::string*> texts;
    texts.reserve(range.size());
    for (std::size_t i = range.begin; i < range.end; ++i) texts.push_back(&(rows[i].*member));
    out.texts(texts);
  }
  Column fetch(ColumnReader& in, std::size_t rows) const {
    Column texts;
    in.texts(rows, texts);
    return texts;
  }
  const char* fill(Record* rows, std::size_t n, Column& column) const {
    for (std::size_t i = 0; i < n; ++i) rows[i].*member = std::move(column[i]);
    return nullptr;
  }
  void show(const Record& row, const TraceNames&, Cells& cells) const { cells.own_text(name, row.*member); }
  std::string notation() const { return std::string("text ").append(name); }
};

// Not stored: module and name of the op that the row is about, and its step where the row has none of its own.
template <typename Record>
struct OpField {
  struct Column {};
  std::uint64_t Record::*seq;

  constexpr bool refuses() const { return false; }
  static constexpr bool kWeighs = false;
  const char* refuse(const Record&) const { return nullptr; }
  std::size_t weight(const Record&) const { return 0; }
  void encode(const std::vector<Record>&, RowRange, ColumnWriter&) const {}
  Column fetch(ColumnReader&, std::size_t) const { return {}; }
  const char* fill(Record*, std::size_t, Column) const { return nullptr; }
  void show(const Record& row, const TraceNames& names, Cells& cells) const {
    show_op(cells, names, row.*seq, !requires { row.step; });
  }
  std::string notation() const { return {}; }
};

// A list of numbers in the row: a column of counts, then one of all rows' items.
template <typename Record, typename T>
struct ListField {
  struct Column {
    const std::uint64_t* counts;
    const std::uint64_t* items;
  };
  std::string_view name;  // of an item: "ranks.rank"
  std::vector<T> Record::*member;
  Coding coding;
  std::uint64_t limit;  // of an item
  std::size_t most;     // items of a row
  const char* refusal;  // of a row with more
  std::string_view note = "";
  std::string_view shown = "";  // "": the list's part of `name`

  constexpr ListField as(std::string_view called) const {
    ListField field = *this;
    field.shown = called;
    return field;
  }
  void show(const Record& row, const TraceNames&, Cells& cells) const {
    cells.integers(shown.empty() ? name.substr(0, name.find('.')) : shown, std::span<const T>(row.*member));
  }

  constexpr bool refuses() const { return true; }
  static constexpr bool kWeighs = true;
  const char* refuse(const Record& row) const { return (row.*member).size() > most ? refusal : nullptr; }
  std::size_t weight(const Record& row) const { return sizeof(T) * (row.*member).size(); }
  void encode(const std::vector<Record>& rows, RowRange range, ColumnWriter& out) const {
    write_field(out, rows, range, Coding::kPlain, [this](const Record& row) { return (row.*member).size(); });
    std::size_t total = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) total += (rows[i].*member).size();
    std::uint64_t* items = out.take(total);
    std::size_t at = 0;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      for (const T item : rows[i].*member) items[at++] = static_cast<std::uint64_t>(item);
    }
    out.column(items, total, coding);
  }
  Column fetch(ColumnReader& in, std::size_t rows) const {
    std::size_t total = 0;
    const std::uint64_t* counts = in.counts(rows, total);
    return {counts, in.column(total, coding, limit)};
  }
  const char* fill(Record* rows, std::size_t n, Column column) const {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t count = column.counts[i];
      if (most < kMaxRowItems && count > most) return refusal;  // kMaxRowItems itself binds the writer alone
      auto& list = rows[i].*member;
      list.reserve(count);
      for (std::uint64_t k = 0; k < count; ++k) list.push_back(static_cast<T>(*column.items++));
    }
    return nullptr;
  }
  std::string notation() const {
    return std::string("count").append(note).append(coding == Coding::kDelta ? " · delta " : " · ").append(name);
  }
};

// The largest number that a field of this type is read with, where nothing else is said.
template <typename T>
constexpr std::uint64_t limit_of() {
  if (std::is_same_v<T, bool>) return 1;
  return std::is_same_v<T, std::uint32_t> ? ColumnReader::kU32 : kAnyNumber;
}

template <typename R, typename T>
constexpr auto plain(std::string_view name, T R::*member) {
  return NumberField<Stored::kAsIs, R, T>{name, member, Coding::kPlain, limit_of<T>()};
}
template <typename R, typename T>
constexpr auto delta(std::string_view name, T R::*member, std::string_view note = "") {
  return NumberField<Stored::kAsIs, R, T>{
      .name = name, .member = member, .coding = Coding::kDelta, .limit = limit_of<T>(), .note = note};
}
// Of an op; kNoSeq: none.
template <typename R>
constexpr auto seq(std::string_view name, std::uint64_t R::*member) {
  return delta(name, member).meaning(Means::kSeq);
}
// The id of a value; 0: none.
template <typename R>
constexpr auto value(std::string_view name, ValueId R::*member) {
  return delta(name, member).meaning(Means::kValue);
}
template <typename R>
constexpr auto of_op(std::uint64_t R::*member) {
  return OpField<R>{member};
}
template <typename R, typename T>
constexpr auto zigzag(std::string_view name, T R::*member, std::string_view note = "") {
  return NumberField<Stored::kZigzag, R, T>{.name = name, .member = member, .note = note};
}
// Of a number outside -most to most.
template <typename R, typename T>
constexpr auto zigzag_within(std::string_view name, T R::*member, std::int64_t most, Sentence refusal,
                             std::string_view note) {
  return NumberField<Stored::kZigzag, R, T>{.name = name,
                                            .member = member,
                                            .limit = 2 * static_cast<std::uint64_t>(most),
                                            .refusal = refusal,
                                            .note = note,
                                            .can_refuse = true};
}
template <typename R>
constexpr auto f64(std::string_view name, double R::*member) {
  return NumberField<Stored::kBits, R, double>{name, member};
}
// -1 or more.
template <typename R>
constexpr auto plus_one(std::string_view name, std::int32_t R::*member) {
  return NumberField<Stored::kPlusOne, R, std::int32_t>{.name = name,
                                                        .member = member,
                                                        .limit = std::uint64_t{1} << 31,
                                                        .refusal = Sentence("its ", name, " is below -1"),
                                                        .can_refuse = true};
}
// A value of an enumeration whose last one is `last`.
template <typename R, typename T>
constexpr auto one_of(std::string_view name, T R::*member, T last, std::string_view (*word)(T)) {
  return NumberField<Stored::kAsIs, R, T>{.name = name,
                                          .member = member,
                                          .limit = static_cast<std::uint64_t>(last),
                                          .refusal = Sentence("its ", name, " is unknown"),
                                          .can_refuse = true,
                                          .word = word};
}
// The id of a string.
template <typename R>
constexpr auto id(std::string_view name, StringId R::*member, Coding coding = Coding::kPlain) {
  const bool own = name == "id";
  return NumberField<Stored::kAsIs, R, StringId>{
      .name = name,
      .member = member,
      .coding = coding,
      .limit = kMaxTableId,
      .refusal = Sentence("its ", own ? "" : name, own ? "id is above 1048575" : "'s id is above 1048575"),
      .can_refuse = true,
      .means = Means::kName};
}
template <typename R>
constexpr auto flags(std::string_view first_name, bool R::*first, std::string_view second_name, bool R::*second) {
  return FlagsField<R>{first_name, second_name, first, second};
}
template <typename R>
constexpr auto text(std::string_view name, std::string R::*member) {
  return TextField<R>{name, member};
}
template <typename R, typename T>
constexpr auto list(std::string_view name, std::vector<T> R::*member, Coding coding, const char* refusal,
                    std::size_t most = kMaxRowItems, std::string_view note = "") {
  return ListField<R, T>{name, member, coding, limit_of<T>(), most, refusal, note};
}

template <typename... Fields>
constexpr auto fields(Fields... all) {
  return std::tuple<Fields...>(all...);
}

// A kind whose columns are those of a declaration: adds what follows from it.
template <auto kList, const auto& kFields>
constexpr RecordKind field_kind(RecordKind kind) {
  using Rows = std::remove_cvref_t<decltype(std::declval<RecordBatch>().*kList)>;
  using Row = typename Rows::value_type;
  constexpr bool kRefuses = std::apply([](const auto&... field) { return (field.refuses() || ...); }, kFields);
  constexpr bool kWeighs = std::apply([](const auto&... field) { return (field.kWeighs || ...); }, kFields);
  if (kRefuses) {
    kind.refuse = [](const RecordBatch& batch, std::size_t at) {
      const Row& row = (batch.*kList)[at];
      const char* why = nullptr;
      std::apply([&](const auto&... field) { (void)(((why = field.refuse(row)) != nullptr) || ...); }, kFields);
      return why;
    };
  }
  if (kWeighs) {
    kind.weight = [](const RecordBatch& batch, std::size_t at) {
      const Row& row = (batch.*kList)[at];
      return std::apply([&](const auto&... field) { return (field.weight(row) + ...); }, kFields);
    };
  }
  kind.encode = [](const RecordBatch& batch, RowRange range, ColumnWriter& out) {
    const Rows& rows = batch.*kList;
    std::apply(
        [&](const auto&... field) {
          for (std::size_t i = range.begin; kRefuses && i < range.end; ++i) {
            if (((field.refuse(rows[i]) != nullptr) || ...)) out.refuse();
          }
          (field.encode(rows, range, out), ...);
        },
        kFields);
  };
  kind.decode = [](ColumnReader& in, std::size_t n, RecordBatch& batch) -> const char* {
    return std::apply(
        [&](const auto&... field) -> const char* {
          std::tuple<typename std::remove_cvref_t<decltype(field)>::Column...> columns{field.fetch(in, n)...};
          if (!in.finished()) return kBadColumns;
          Rows& rows = batch.*kList;
          const std::size_t before = rows.size();
          rows.resize(before + n);
          const char* why = nullptr;
          std::apply(
              [&](auto&... column) {
                (void)(((why = field.fill(rows.data() + before, n, column)) != nullptr) || ...);
              },
              columns);
          return why;
        },
        kFields);
  };
  kind.columns = [] {
    std::string text;
    std::apply(
        [&](const auto&... field) {
          const auto add = [&](const std::string& one) {
            if (!one.empty()) text.append(text.empty() ? "" : " · ").append(one);
          };
          (add(field.notation()), ...);
        },
        kFields);
    return text;
  };
  if (!kind.hidden) {
    kind.show = [](const RecordBatch& batch, std::size_t at, const TraceNames& names, Cells& cells) {
      const Row& row = (batch.*kList)[at];
      std::apply([&](const auto&... field) { (field.show(row, names, cells), ...); }, kFields);
    };
  }
  return list_kind<kList>(kind);
}

}  // namespace nanhunt::trace
