// SPDX-License-Identifier: Apache-2.0
// Rows of typed columns, grown one row at a time and handed out as Arrow arrays.
//
// A row is written by a function that names each cell once; run on an empty row it declares the columns, so that the
// two cannot disagree:
//   row.cell("step", r.step); row.cell("loss", r.loss);
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

struct ArrowSchema;
struct ArrowArray;

namespace nanhunt::c_api {

// One column, and those inside it for lists and structs.
struct Column {
  std::string name;
  const char* format = "";             // of the Arrow C data interface
  std::vector<std::byte> data;         // numbers, bits or text
  std::vector<std::int32_t> offsets;   // text and lists
  std::vector<std::uint8_t> validity;  // one bit for each row
  std::int64_t length = 0, nulls = 0;
  std::vector<Column> children;

  std::size_t bytes() const;
};

class Row {
 public:
  // Text is escaped where it is not plain: what a reader gets is valid UTF-8 and steers no terminal. "" is null.
  struct Text {
    std::string_view text;
  };

  // Declares columns while `declare`, else adds a cell to each in the same order.
  Row(std::vector<Column>& columns, bool declare, std::size_t& text_budget)
      : columns_(columns), declare_(declare), text_budget_(text_budget) {}

  template <typename T>
  void cell(std::string_view name, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (Column* column = next(name, "b")) add_bit(*column, value);
    } else if constexpr (std::is_same_v<T, Text>) {
      if (Column* column = next(name, "u")) add_text(*column, value.text);
    } else {
      if (Column* column = next(name, format_of<T>())) add_raw(*column, &value, sizeof value);
    }
  }
  void cell(std::string_view name, std::string_view text) { cell(name, Text{text}); }
  template <typename T>
  void cell(std::string_view name, const std::optional<T>& value) {
    if (value || declare_) return cell(name, value.value_or(T{}));
    add_null(*next(name, ""));
  }
  template <typename T>
  void integers(std::string_view name, std::span<const T> values) {
    const auto item = [&](Row& row, std::size_t i) { row.cell("item", declare_ ? 0 : std::int64_t{values[i]}); };
    list(name, values.size(), item, false);
  }
  // A list of structs: `item(row, i)` writes the cells of element i; once with i = 0 to declare them.
  template <typename Item>
  void list(std::string_view name, std::size_t count, const Item& item, bool structs = true) {
    Column* column = next(name, "+l");
    if (declare_) {
      Column& made = columns_.back();
      Column& element = made.children.emplace_back();
      element.name = "item";
      element.format = "+s";
      std::vector<Column> inner;
      Row row(inner, true, text_budget_);
      item(row, 0);
      if (structs) {
        made.children.front().children = std::move(inner);
      } else {
        made.children.front() = std::move(inner.front());
      }
      return;
    }
    Column& element = column->children.front();
    for (std::size_t i = 0; i < count; ++i) {
      if (structs) {
        Row row(element.children, false, text_budget_);
        item(row, i);
        end_valid(element);
      } else {
        Row row(column->children, false, text_budget_);
        item(row, i);
      }
    }
    column->offsets.push_back(static_cast<std::int32_t>(element.length));
    end_valid(*column);
  }

 private:
  template <typename T>
  static constexpr const char* format_of() {
    if constexpr (std::is_same_v<T, double>) {
      return "g";
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      return "i";
    } else if constexpr (std::is_same_v<T, std::uint32_t>) {
      return "I";
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return "L";
    } else {
      static_assert(std::is_same_v<T, std::int64_t>);
      return "l";
    }
  }

  Column* next(std::string_view name, const char* format);  // nullptr: it was declared
  void add_raw(Column& column, const void* value, std::size_t size);
  void add_bit(Column& column, bool value);
  void add_text(Column& column, std::string_view text);
  void add_null(Column& column);
  static void end_valid(Column& column);

  std::vector<Column>& columns_;
  const bool declare_;
  std::size_t& text_budget_;
  std::size_t at_ = 0;
};

// Rows of one kind. Text of one row past a budget becomes null: a hostile trace may name a long text very often.
class Table {
 public:
  // Columns are handed out in the order of `cells`, but for those in `first`.
  template <typename Cells>
  void declare(const Cells& cells, std::span<const std::string_view> first = {}) {
    std::size_t budget = 0;
    Row row(columns_, true, budget);
    cells(row);
    put_in_order(first);
  }
  template <typename Cells>
  void add(const Cells& cells) {
    std::size_t budget = kRowTextBytes;
    Row row(columns_, false, budget);
    cells(row);
    ++rows_;
  }

  std::int64_t rows() const { return rows_; }
  std::size_t bytes() const;
  void export_schema(ArrowSchema& out) const;
  void export_rows(ArrowArray& out);  // and starts anew

 private:
  static constexpr std::size_t kRowTextBytes = 16u << 20;
  void put_in_order(std::span<const std::string_view> first);

  std::vector<Column> columns_;
  std::vector<std::size_t> order_;  // in which columns_ are handed out
  std::int64_t rows_ = 0;
};

}  // namespace nanhunt::c_api
