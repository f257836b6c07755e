// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/layouts.h"

#include <algorithm>
#include <string>

#include "nanhunt/c_adapter.h"
#include "src/c_api/convert.h"

namespace nanhunt::c_api {

namespace {

const KnownContents kWasFinite{.stats = {}, .has_stats = false, .checksum = {}, .were_finite = true};

}  // namespace

std::int64_t LayoutTable::number(record::NumberingRecorder& recorder, const TensorView& like) {
  const LayoutId id = recorder.number_layout(like);
  if (id == 0) return -1;
  // Events told by structs number layouts as well.
  while (views_.size() < recorder.layouts()) {
    const record::KnownLayout& layout = recorder.layout(static_cast<LayoutId>(views_.size() + 1));
    const bool is_empty = std::find(layout.sizes.begin(), layout.sizes.end(), 0) != layout.sizes.end();
    views_.push_back({is_empty ? &kNoElements : nullptr, layout.dtype, layout.sizes, layout.strides});
  }
  return static_cast<std::int64_t>(id) - 1;
}

const TensorView& LayoutTable::of(const char* what, std::int64_t number) const {
  if (number < 0 || static_cast<std::uint64_t>(number) >= views_.size()) {
    throw Misuse(std::string(what) + ": there is no layout number " + std::to_string(number) +
                 "; nanhunt_intern_layout() gives them out");
  }
  return views_[static_cast<std::size_t>(number)];
}

TensorView LayoutTable::tensor(const char* what, std::int64_t data, std::int64_t number) const {
  TensorView view = of(what, number);
  if (data != 0) view.data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(data));
  return view;
}

ValueView LayoutTable::value(const char* what, const std::int64_t* words) const {
  const auto identity = static_cast<std::uint64_t>(words[1]);
  ValueView view;
  const bool was_finite = words[0] == NANHUNT_WAS_FINITE;
  view.tensor = tensor(what, was_finite ? 0 : words[0], number_in(words[3]));
  if (was_finite) view.known = &kWasFinite;
  view.storage = identity >> 24;
  view.version = static_cast<std::uint32_t>(identity & 0xFFFFFFu);
  view.offset = words[2];
  if (view.storage == 0 && view.version != 0) {
    throw Misuse(std::string(what) + ": identity " + std::to_string(words[1]) + " has a version and no storage");
  }
  return view;
}

}  // namespace nanhunt::c_api
