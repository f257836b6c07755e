// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/tables/arrow_table.h"

#include <algorithm>
#include <memory>

#include "src/c_api/tables/arrow_abi.h"
#include "src/core/text.h"

namespace nanhunt::c_api {
namespace {

bool is_text(const Column& column) { return column.format[0] == 'u'; }
bool is_list(const Column& column) { return std::string_view(column.format) == "+l"; }
bool is_struct(const Column& column) { return std::string_view(column.format) == "+s"; }

std::size_t width_of(const Column& column) {
  switch (column.format[0]) {
    case 'g':
    case 'l':
    case 'L':
      return 8;
    case 'i':
    case 'I':
      return 4;
    default:
      return 0;
  }
}

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

void push_bit(std::vector<std::uint8_t>& bits, std::int64_t at, bool value) {
  if (at % 8 == 0) bits.push_back(0);
  if (value) bits.back() = static_cast<std::uint8_t>(bits.back() | 1u << (at % 8));
}

// What an ArrowSchema owns; children are released with it unless a reader took them.
struct SchemaOwner {
  std::string name, format;
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> pointers;
};

void release_schema(ArrowSchema* schema) {
  auto* owner = static_cast<SchemaOwner*>(schema->private_data);
  for (ArrowSchema& child : owner->children) {
    if (child.release != nullptr) child.release(&child);
  }
  delete owner;
  schema->release = nullptr;
}

void export_schema_of(const std::string& name, const char* format, const std::vector<Column>& children,
                      ArrowSchema& out) {
  auto owner = std::make_unique<SchemaOwner>();
  owner->name = name;
  owner->format = format;
  owner->children.resize(children.size());
  out = {};
  for (std::size_t i = 0; i < children.size(); ++i) owner->pointers.push_back(&owner->children[i]);
  try {
    for (std::size_t i = 0; i < children.size(); ++i) {
      export_schema_of(children[i].name, children[i].format, children[i].children, owner->children[i]);
    }
  } catch (...) {  // out of memory: what was made so far goes too
    for (ArrowSchema& child : owner->children) {
      if (child.release != nullptr) child.release(&child);
    }
    throw;
  }
  out.format = owner->format.c_str();
  out.name = owner->name.c_str();
  out.flags = ARROW_FLAG_NULLABLE;
  out.n_children = static_cast<std::int64_t>(children.size());
  out.children = owner->pointers.empty() ? nullptr : owner->pointers.data();
  out.release = release_schema;
  out.private_data = owner.release();
}

// What an ArrowArray owns.
struct ArrayOwner {
  Column column;
  std::vector<const void*> buffers;
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> pointers;
};

void release_array(ArrowArray* array) {
  auto* owner = static_cast<ArrayOwner*>(array->private_data);
  for (ArrowArray& child : owner->children) {
    if (child.release != nullptr) child.release(&child);
  }
  delete owner;
  array->release = nullptr;
}

void export_array(Column&& column, ArrowArray& out) {
  auto owner = std::make_unique<ArrayOwner>();
  owner->column = std::move(column);
  Column& own = owner->column;
  owner->buffers.push_back(own.nulls == 0 ? nullptr : own.validity.data());
  if (is_text(own) || is_list(own)) owner->buffers.push_back(own.offsets.data());
  if (!is_list(own) && !is_struct(own)) owner->buffers.push_back(own.data.data());
  owner->children.resize(own.children.size());
  for (ArrowArray& child : owner->children) owner->pointers.push_back(&child);
  out = {};
  try {
    for (std::size_t i = 0; i < own.children.size(); ++i) {
      export_array(std::move(own.children[i]), owner->children[i]);
    }
  } catch (...) {
    for (ArrowArray& child : owner->children) {
      if (child.release != nullptr) child.release(&child);
    }
    throw;
  }
  out.length = own.length;
  out.null_count = own.nulls;
  out.n_buffers = static_cast<std::int64_t>(owner->buffers.size());
  out.n_children = static_cast<std::int64_t>(owner->children.size());
  out.buffers = owner->buffers.data();
  out.children = owner->pointers.empty() ? nullptr : owner->pointers.data();
  out.release = release_array;
  out.private_data = owner.release();
}

// The same columns without rows.
Column empty_like(const Column& column) {
  Column out;
  out.name = column.name;
  out.format = column.format;
  if (is_text(out) || is_list(out)) out.offsets.push_back(0);
  for (const Column& child : column.children) out.children.push_back(empty_like(child));
  return out;
}

}  // namespace

std::size_t Column::bytes() const {
  std::size_t sum = data.size() + validity.size() + offsets.size() * sizeof(std::int32_t);
  for (const Column& child : children) sum += child.bytes();
  return sum;
}

Column* Row::next(std::string_view name, const char* format) {
  if (!declare_) return &columns_[at_++];
  Column& made = columns_.emplace_back();
  made.name = name;
  made.format = format;
  if (is_text(made) || is_list(made)) made.offsets.push_back(0);
  return nullptr;
}

void Row::end_valid(Column& column) { push_bit(column.validity, column.length++, true); }

void Row::add_raw(Column& column, const void* value, std::size_t size) {
  const std::size_t at = column.data.size();
  column.data.resize(at + size);
  std::memcpy(column.data.data() + at, value, size);
  end_valid(column);
}

void Row::add_bit(Column& column, bool value) {
  if (column.length % 8 == 0) column.data.push_back(std::byte{0});
  if (value) column.data.back() |= std::byte{1} << (column.length % 8);
  end_valid(column);
}

void Row::add_text(Column& column, std::string_view text) {
  const std::string escaped = is_plain(text) ? std::string() : printable(text);
  if (!escaped.empty()) text = escaped;
  if (text.empty() || text.size() > text_budget_) return add_null(column);
  text_budget_ -= text.size();
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  column.data.insert(column.data.end(), bytes, bytes + text.size());
  column.offsets.push_back(static_cast<std::int32_t>(column.data.size()));
  end_valid(column);
}

void Row::add_null(Column& column) {
  column.data.resize(column.data.size() + width_of(column));
  if (column.format[0] == 'b' && column.length % 8 == 0) column.data.push_back(std::byte{0});
  if (is_text(column) || is_list(column)) column.offsets.push_back(column.offsets.back());
  push_bit(column.validity, column.length++, false);
  ++column.nulls;
}

std::size_t Table::bytes() const {
  std::size_t sum = 0;
  for (const Column& column : columns_) sum += column.bytes();
  return sum;
}

void Table::put_in_order(std::span<const std::string_view> first) {
  order_.clear();
  for (const std::string_view name : first) {
    const auto at = std::ranges::find(columns_, name, &Column::name);
    if (at != columns_.end()) order_.push_back(static_cast<std::size_t>(at - columns_.begin()));
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (std::ranges::find(order_, i) == order_.end()) order_.push_back(i);
  }
}

void Table::export_schema(ArrowSchema& out) const {
  std::vector<Column> ordered;
  for (const std::size_t i : order_) ordered.push_back(empty_like(columns_[i]));
  export_schema_of("", "+s", ordered, out);
}

void Table::export_rows(ArrowArray& out) {
  Column whole;
  whole.format = "+s";
  whole.length = rows_;
  std::vector<Column> fresh;
  for (const Column& column : columns_) fresh.push_back(empty_like(column));
  for (const std::size_t i : order_) whole.children.push_back(std::move(columns_[i]));
  columns_ = std::move(fresh);
  rows_ = 0;
  export_array(std::move(whole), out);
}

}  // namespace nanhunt::c_api
