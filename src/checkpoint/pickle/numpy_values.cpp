// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/pickle/numpy_values.h"

#include <algorithm>

namespace nanhunt::checkpoint {
namespace {

constexpr std::size_t kMaxArrayDimensions = 64;

const PickleValue* item(const Pickle& pickle, const PickleValue& tuple, std::size_t i) {
  return tuple.kind == PickleKind::kTuple && i < tuple.items.size() ? &pickle.at(tuple.items[i]) : nullptr;
}

bool read_shape(const Pickle& pickle, const PickleValue* shape, std::vector<std::int64_t>& out) {
  if (shape == nullptr || shape->kind != PickleKind::kTuple || shape->items.size() > kMaxArrayDimensions) return false;
  for (const PickleRef ref : shape->items) {
    const PickleValue& one = pickle.at(ref);
    if (one.kind != PickleKind::kInt || one.big || one.integer < 0) return false;
    out.push_back(one.integer);
  }
  return true;
}

// numpy.dtype('f4', False, True), of which the state says (version, '<', ...).
void read_dtype(const Pickle& pickle, const PickleValue* dtype, NumpyValue& out) {
  if (dtype == nullptr || dtype->kind != PickleKind::kObject) return;
  const PickleValue& called = pickle.at(dtype->items[0]);
  const PickleValue* name = item(pickle, pickle.at(dtype->items[1]), 0);
  if (called.kind != PickleKind::kGlobal || called.text != "numpy.dtype" || name == nullptr ||
      name->kind != PickleKind::kString)
    return;
  out.dtype = name->text.substr(0, 32);
  const PickleValue* order = dtype->items.size() > 2 ? item(pickle, pickle.at(dtype->items[2]), 1) : nullptr;
  out.swapped = order != nullptr && order->kind == PickleKind::kString && order->text == ">";
  out.format = find_numpy_format(out.dtype);
}

// Text of which each character is a byte.
bool decode_latin1(std::string_view utf8, std::string& out) {
  out.reserve(utf8.size());
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      out.push_back(utf8[i]);
      continue;
    }
    if ((lead != 0xc2 && lead != 0xc3) || i + 1 == utf8.size()) return false;
    const auto next = static_cast<unsigned char>(utf8[++i]);
    if ((next & 0xc0) != 0x80) return false;
    out.push_back(static_cast<char>((lead & 0x03) << 6 | (next & 0x3f)));
  }
  return true;
}

}  // namespace

std::optional<NumpyValue> parse_numpy_value(const Pickle& pickle, const PickleValue& object) {
  if (object.kind != PickleKind::kObject) return std::nullopt;
  const PickleValue &called = pickle.at(object.items[0]), &given = pickle.at(object.items[1]);
  if (called.kind != PickleKind::kGlobal || !called.text.starts_with("numpy.")) return std::nullopt;
  const std::string_view word = last_word(called.text);
  NumpyValue out;
  if (word == "scalar") {  // (dtype, bytes)
    out.kind = NumpyValue::Kind::kScalar;
    read_dtype(pickle, item(pickle, given, 0), out);
    out.known = given.kind == PickleKind::kTuple && given.items.size() >= 2;
    if (out.known) out.bytes = given.items[1];
    return out;
  }
  if (word == "_frombuffer") {  // (bytes, dtype, shape, order)
    read_dtype(pickle, item(pickle, given, 1), out);
    const PickleValue* order = item(pickle, given, 3);
    out.first_index_fastest = order != nullptr && order->text == "F";
    out.known = read_shape(pickle, item(pickle, given, 2), out.sizes);
    if (out.known) out.bytes = given.items[0];
    return out;
  }
  if (word != "_reconstruct") return std::nullopt;
  // Its state: ([version,] shape, dtype, whether in Fortran's order, bytes or a list of objects).
  const PickleValue* state = object.items.size() > 2 ? &pickle.at(object.items[2]) : nullptr;
  if (state == nullptr || state->kind != PickleKind::kTuple || state->items.size() < 4) return out;
  const std::size_t first = state->items.size() == 4 ? 0 : 1;
  read_dtype(pickle, item(pickle, *state, first + 1), out);
  const PickleValue* fortran = item(pickle, *state, first + 2);
  out.first_index_fastest = fortran != nullptr && fortran->integer != 0;
  out.known = read_shape(pickle, item(pickle, *state, first), out.sizes);
  if (out.known) out.bytes = state->items[first + 3];
  return out;
}

NumpyText numpy_text(const Pickle& pickle, const NumpyValue& value) {
  const PickleValue& raw = pickle.at(value.bytes);
  if (raw.kind == PickleKind::kBytes || raw.kind == PickleKind::kString) return {raw.text.data()};
  if (raw.kind == PickleKind::kObject) {
    const PickleValue& called = pickle.at(raw.items[0]);
    const PickleValue* text = item(pickle, pickle.at(raw.items[1]), 0);
    if (called.kind == PickleKind::kGlobal && called.text == "_codecs.encode" && text != nullptr &&
        text->kind == PickleKind::kString)
      return {text->text.data(), true};
  }
  return {nullptr, false, value.bytes};
}

bool decode_numpy_bytes(const Pickle& pickle, const NumpyValue& value, std::size_t most, std::string& out) {
  const PickleValue& raw = pickle.at(value.bytes);
  out.clear();
  if (raw.kind == PickleKind::kBytes || raw.kind == PickleKind::kString) {
    if (raw.text.size() > most) return false;
    out = raw.text;
  } else if (raw.kind == PickleKind::kObject && pickle.at(raw.items[0]).kind == PickleKind::kGlobal) {
    const std::string_view called = pickle.at(raw.items[0]).text;
    const PickleValue& given = pickle.at(raw.items[1]);
    const PickleValue* text = item(pickle, given, 0);
    if (called == "_codecs.encode") {  // bytes as pickles before protocol 3 have them
      if (text == nullptr || text->kind != PickleKind::kString || text->text.size() / 2 > most ||
          !decode_latin1(text->text, out))
        return false;
    } else if (last_word(called) != "bytes" || text != nullptr) {
      return false;
    }
  } else {
    return false;
  }
  if (out.size() > most) return false;
  if (value.format == nullptr || !value.swapped) return true;
  const std::size_t width = value.format->pair ? value.format->bytes / 2 : value.format->bytes;
  for (std::size_t at = 0; width > 1 && at + width <= out.size(); at += width)
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(at), out.begin() + static_cast<std::ptrdiff_t>(at + width));
  return true;
}

}  // namespace nanhunt::checkpoint
