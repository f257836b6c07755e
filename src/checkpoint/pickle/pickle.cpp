// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/pickle/pickle.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "src/checkpoint/file_bytes.h"
#include "src/core/byte_order.h"

namespace nanhunt::checkpoint {
namespace {

// 56 bytes each at least: a hostile file takes a few hundred MiB and no more.
constexpr std::size_t kMaxValues = 4'000'000;

enum class Step : std::uint8_t { kGoesOn, kDone, kShort, kBad, kTooMany };

// The abstract machine. Its results are references into `values`, so that nothing is copied however often it is shared.
class Machine {
 public:
  explicit Machine(std::string_view bytes) : bytes_(bytes) {}

  Step run() {
    for (;;) {
      if (at_ >= bytes_.size()) return Step::kShort;
      const auto op = static_cast<unsigned char>(bytes_[at_++]);
      const Step step = execute(op);
      if (step != Step::kGoesOn) return step;
      if (values_.size() > kMaxValues || stack_.size() > kMaxValues || memo_.size() > kMaxValues) return Step::kTooMany;
    }
  }

  Pickle take() {
    Pickle out;
    out.values = std::move(values_);
    out.root = stack_.back();
    out.bytes = at_;
    out.globals.assign(globals_.begin(), globals_.end());
    for (PickleValue& value : out.values) {
      if (value.kind != PickleKind::kGlobal) continue;
      const auto found = std::lower_bound(out.globals.begin(), out.globals.end(), value.text);
      value.text = *found;
    }
    return out;
  }

 private:
  PickleRef add(PickleValue value) {
    values_.push_back(std::move(value));
    return static_cast<PickleRef>(values_.size() - 1);
  }
  Step push(PickleValue value) {
    stack_.push_back(add(std::move(value)));
    return Step::kGoesOn;
  }
  Step push_int(std::int64_t value) { return push({.kind = PickleKind::kInt, .integer = value}); }
  Step push_kind(PickleKind kind) { return push({.kind = kind}); }
  Step push_bool(bool value) { return push({.kind = PickleKind::kBool, .integer = value ? 1 : 0}); }

  bool take_bytes(std::uint64_t n, std::string_view& out) {
    if (n > bytes_.size() - at_) return false;
    out = bytes_.substr(at_, static_cast<std::size_t>(n));
    at_ += static_cast<std::size_t>(n);
    return true;
  }
  bool take_number(std::size_t n, std::uint64_t& out) {
    std::string_view raw;
    if (!take_bytes(n, raw)) return false;
    out = load_little_endian(raw.data(), n);
    return true;
  }
  bool take_line(std::string_view& out) {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) return false;
    out = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  // Values above the last mark; false where there is none.
  bool pop_mark(std::vector<PickleRef>& out) {
    if (marks_.empty() || marks_.back() > stack_.size()) return false;
    out.assign(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return true;
  }
  bool pop(PickleRef& out) {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) return false;
    out = stack_.back();
    stack_.pop_back();
    return true;
  }

  Step sized_text(std::size_t length_bytes, PickleKind kind) {
    std::uint64_t n = 0;
    std::string_view text;
    if (!take_number(length_bytes, n) || !take_bytes(n, text)) return Step::kShort;
    return push({.kind = kind, .text = text});
  }
  Step line_text(PickleKind kind) {
    std::string_view text;
    if (!take_line(text)) return Step::kShort;
    if (text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front())
      text = text.substr(1, text.size() - 2);
    return push({.kind = kind, .text = text});
  }
  Step line_int() {
    std::string_view text;
    if (!take_line(text)) return Step::kShort;
    if (text == "00" || text == "01") return push_bool(text == "01");
    if (text.ends_with('L')) text.remove_suffix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) return push({.kind = PickleKind::kInt, .big = true});
    return error == std::errc() && end == text.data() + text.size() ? push_int(value) : Step::kBad;
  }
  Step line_float() {
    std::string_view text;
    if (!take_line(text)) return Step::kShort;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return Step::kBad;
    return push({.kind = PickleKind::kFloat, .real = value});
  }
  Step long_int(std::size_t length_bytes) {
    std::uint64_t n = 0;
    std::string_view raw;
    if (!take_number(length_bytes, n) || !take_bytes(n, raw)) return Step::kShort;
    if (raw.size() > 8) return push({.kind = PickleKind::kInt, .big = true});
    std::uint64_t value = raw.empty() ? 0 : load_little_endian(raw.data(), raw.size());
    if (!raw.empty() && raw.size() < 8 && (static_cast<unsigned char>(raw.back()) & 0x80) != 0)
      value |= ~std::uint64_t{0} << (8 * raw.size());
    return push_int(static_cast<std::int64_t>(value));
  }
  Step binary_float() {
    std::string_view raw;
    if (!take_bytes(8, raw)) return Step::kShort;
    std::uint64_t bits = 0;
    for (const char c : raw) bits = bits << 8 | static_cast<unsigned char>(c);
    return push({.kind = PickleKind::kFloat, .real = std::bit_cast<double>(bits)});
  }

  Step push_global(std::string_view module, std::string_view name) {
    std::string full(module);
    full.append(".").append(name);
    const auto& kept = *globals_.insert(std::move(full)).first;
    return push({.kind = PickleKind::kGlobal, .text = kept});
  }

  Step put(std::uint64_t slot) {
    if (stack_.empty()) return Step::kBad;
    memo_[slot] = stack_.back();
    return Step::kGoesOn;
  }
  Step get(std::uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) return Step::kBad;
    stack_.push_back(found->second);
    return Step::kGoesOn;
  }
  Step put_numbered(std::size_t bytes, bool store) {
    std::uint64_t slot = 0;
    if (!take_number(bytes, slot)) return Step::kShort;
    return store ? put(slot) : get(slot);
  }
  Step line_memo(bool store) {
    std::string_view text;
    if (!take_line(text)) return Step::kShort;
    std::uint64_t slot = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
    if (error != std::errc() || end != text.data() + text.size()) return Step::kBad;
    return store ? put(slot) : get(slot);
  }

  Step collect(PickleKind kind) {
    PickleValue value{.kind = kind};
    if (!pop_mark(value.items)) return Step::kBad;
    if (kind == PickleKind::kDict && value.items.size() % 2 != 0) return Step::kBad;
    return push(std::move(value));
  }
  Step tuple_of(std::size_t n) {
    PickleValue value{.kind = PickleKind::kTuple, .items = std::vector<PickleRef>(n)};
    for (std::size_t i = n; i-- > 0;)
      if (!pop(value.items[i])) return Step::kBad;
    return push(std::move(value));
  }
  // Appends to what is then on top of the stack: a list, a dict, a set or an object.
  Step append(const std::vector<PickleRef>& items) {
    if (stack_.empty()) return Step::kBad;
    PickleValue& into = values_[stack_.back()];
    const bool grows = into.kind == PickleKind::kList || into.kind == PickleKind::kDict ||
                       into.kind == PickleKind::kSet || into.kind == PickleKind::kObject;
    if (!grows || (into.kind == PickleKind::kDict && items.size() % 2 != 0)) return Step::kBad;
    into.items.insert(into.items.end(), items.begin(), items.end());
    return Step::kGoesOn;
  }
  Step append_marked() {
    std::vector<PickleRef> items;
    return pop_mark(items) ? append(items) : Step::kBad;
  }
  Step append_popped(std::size_t n) {
    std::vector<PickleRef> items(n);
    for (std::size_t i = n; i-- > 0;)
      if (!pop(items[i])) return Step::kBad;
    return append(items);
  }

  // A call that is not made: only dicts whose contents follow are built as what they are.
  // Nothing is copied out of the arguments: they may be shared by millions of calls.
  Step call(PickleRef what, PickleRef arguments) {
    const PickleValue& callee = values_[what];
    const PickleValue& given = values_[arguments];
    if (callee.kind == PickleKind::kGlobal && given.kind == PickleKind::kTuple) {
      const std::string_view name = callee.text;
      const bool plain = name == "collections.OrderedDict" || name == "builtins.dict" || name == "__builtin__.dict";
      if ((plain && given.items.empty()) || name == "collections.defaultdict") return push_kind(PickleKind::kDict);
    }
    return push({.kind = PickleKind::kObject, .items = {what, arguments}});
  }
  Step reduce(bool with_keywords) {
    PickleRef keywords = 0, arguments = 0, what = 0;
    if ((with_keywords && !pop(keywords)) || !pop(arguments) || !pop(what)) return Step::kBad;
    return call(what, arguments);
  }
  Step call_marked(bool named) {
    PickleRef what = 0;
    if (named) {
      std::string_view module, name;
      if (!take_line(module) || !take_line(name)) return Step::kShort;
      push_global(module, name);
      if (!pop(what)) return Step::kBad;
    }
    PickleValue arguments{.kind = PickleKind::kTuple};
    if (!pop_mark(arguments.items)) return Step::kBad;
    if (!named) {
      if (arguments.items.empty()) return Step::kBad;
      what = arguments.items.front();
      arguments.items.erase(arguments.items.begin());
    }
    return call(what, add(std::move(arguments)));
  }
  Step build() {
    PickleRef state = 0;
    if (!pop(state) || stack_.empty()) return Step::kBad;
    PickleValue& into = values_[stack_.back()];
    if (into.kind == PickleKind::kObject) into.items.push_back(state);
    return Step::kGoesOn;  // a dict's attributes hold no numbers of the model
  }
  Step persistent(bool line) {
    PickleRef id = 0;
    if (line) {
      std::string_view text;
      if (!take_line(text)) return Step::kShort;
      id = add({.kind = PickleKind::kString, .text = text});
    } else if (!pop(id)) {
      return Step::kBad;
    }
    return push({.kind = PickleKind::kPersistent, .items = {id}});
  }
  Step global_of_stack() {
    PickleRef name = 0, module = 0;
    if (!pop(name) || !pop(module)) return Step::kBad;
    if (values_[name].kind != PickleKind::kString || values_[module].kind != PickleKind::kString) return Step::kBad;
    return push_global(values_[module].text, values_[name].text);
  }
  Step global_of_lines() {
    std::string_view module, name;
    if (!take_line(module) || !take_line(name)) return Step::kShort;
    return push_global(module, name);
  }
  Step skip(std::size_t n) {
    std::string_view ignored;
    return take_bytes(n, ignored) ? Step::kGoesOn : Step::kShort;
  }
  Step number(std::size_t n) {
    std::uint64_t value = 0;
    if (!take_number(n, value)) return Step::kShort;
    return push_int(n == 4 ? static_cast<std::int32_t>(value) : static_cast<std::int64_t>(value));
  }
  Step pop_one() {
    if (!marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
      return Step::kGoesOn;
    }
    PickleRef ignored = 0;
    return pop(ignored) ? Step::kGoesOn : Step::kBad;
  }

  Step execute(unsigned char op) {
    switch (op) {
      case 0x80:
        return skip(1);  // PROTO
      case 0x95:
        return skip(8);  // FRAME: its length is only a hint
      case '.':
        return stack_.empty() ? Step::kBad : Step::kDone;
      case '(':
        marks_.push_back(stack_.size());
        return marks_.size() > kMaxValues ? Step::kTooMany : Step::kGoesOn;
      case '0':
        return pop_one();
      case '1': {
        std::vector<PickleRef> ignored;
        return pop_mark(ignored) ? Step::kGoesOn : Step::kBad;
      }
      case '2':
        if (stack_.empty()) return Step::kBad;
        stack_.push_back(stack_.back());
        return Step::kGoesOn;
      case 'N':
        return push_kind(PickleKind::kNone);
      case 0x88:
        return push_bool(true);
      case 0x89:
        return push_bool(false);
      case 'I':
      case 'L':
        return line_int();
      case 'F':
        return line_float();
      case 'J':
        return number(4);
      case 'K':
        return number(1);
      case 'M':
        return number(2);
      case 0x8a:
        return long_int(1);
      case 0x8b:
        return long_int(4);
      case 'G':
        return binary_float();
      case 'S':
      case 'V':
        return line_text(PickleKind::kString);
      case 'T':
      case 'X':
        return sized_text(4, PickleKind::kString);
      case 'U':
      case 0x8c:
        return sized_text(1, PickleKind::kString);
      case 0x8d:
        return sized_text(8, PickleKind::kString);
      case 'B':
        return sized_text(4, PickleKind::kBytes);
      case 'C':
        return sized_text(1, PickleKind::kBytes);
      case 0x8e:
      case 0x96:
        return sized_text(8, PickleKind::kBytes);
      case ')':
        return push_kind(PickleKind::kTuple);
      case ']':
        return push_kind(PickleKind::kList);
      case '}':
        return push_kind(PickleKind::kDict);
      case 0x8f:
        return push_kind(PickleKind::kSet);
      case 't':
        return collect(PickleKind::kTuple);
      case 'l':
        return collect(PickleKind::kList);
      case 'd':
        return collect(PickleKind::kDict);
      case 0x91:
        return collect(PickleKind::kSet);
      case 0x85:
        return tuple_of(1);
      case 0x86:
        return tuple_of(2);
      case 0x87:
        return tuple_of(3);
      case 'a':
        return append_popped(1);
      case 's':
        return append_popped(2);
      case 'e':
      case 'u':
      case 0x90:
        return append_marked();
      case 'c':
        return global_of_lines();
      case 0x93:
        return global_of_stack();
      case 'R':
      case 0x81:
        return reduce(false);
      case 0x92:
        return reduce(true);
      case 'o':
        return call_marked(false);
      case 'i':
        return call_marked(true);
      case 'b':
        return build();
      case 'P':
        return persistent(true);
      case 'Q':
        return persistent(false);
      case 'p':
        return line_memo(true);
      case 'g':
        return line_memo(false);
      case 'q':
        return put_numbered(1, true);
      case 'r':
        return put_numbered(4, true);
      case 'h':
        return put_numbered(1, false);
      case 'j':
        return put_numbered(4, false);
      case 0x94:
        return put(memo_.size());
      default:
        return Step::kBad;  // extension registry, buffers outside the pickle: nothing that PyTorch writes
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::vector<PickleValue> values_;
  std::vector<PickleRef> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickleRef> memo_;
  std::set<std::string, std::less<>> globals_;
};

}  // namespace

Result<Pickle> parse_pickle(std::string_view bytes) {
  Machine machine(bytes);
  switch (machine.run()) {
    case Step::kDone:
      return machine.take();
    case Step::kShort:
      return Status(StatusCode::kDamaged, "its pickle is cut off");
    case Step::kTooMany:
      return Status(StatusCode::kUnreadable, "its pickle holds more than 4,000,000 objects");
    default:
      return Status(StatusCode::kUnreadable, "its pickle is damaged");
  }
}

}  // namespace nanhunt::checkpoint
