// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/pickle/torch_values.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "src/checkpoint/pickle/element_format.h"
#include "src/checkpoint/pickle/numpy_values.h"
#include "src/trace/run/safetensors.h"

namespace nanhunt::checkpoint {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMostBytesOfNames = 1024;
constexpr std::size_t kMaxShownGlobals = 6;
constexpr std::size_t kNotHeld = SIZE_MAX;
constexpr std::size_t kMaxArguments = 16;  // of a call that makes a tensor
// What names and descriptions may take: some multiple of what the pickle itself has, as values may be shared.
constexpr std::size_t kMemoryFactor = 64, kMinMemory = std::size_t{1} << 24, kMaxMemory = std::size_t{1} << 29;
constexpr std::size_t kUnreachedMemory = std::size_t{1} << 28;

// What loading would call that no checkpoint needs.
bool runs_code(std::string_view global) {
  static constexpr std::string_view kModules[] = {"os.",     "posix.", "nt.",  "subprocess.", "sys.",    "shutil.",
                                                  "socket.", "runpy.", "pty.", "importlib.",  "ctypes.", "webbrowser."};
  static constexpr std::string_view kBuiltins[] = {"eval", "exec",    "compile", "__import__",
                                                   "open", "getattr", "setattr"};
  if (global.starts_with("builtins.") || global.starts_with("__builtin__."))
    return std::find(std::begin(kBuiltins), std::end(kBuiltins), last_word(global)) != std::end(kBuiltins);
  return std::any_of(std::begin(kModules), std::end(kModules), [&](auto m) { return global.starts_with(m); });
}

// Containers, tensors and their parts: known, whatever is not.
bool is_understood(std::string_view global) {
  return global.starts_with("torch.") || global.starts_with("collections.") || global.starts_with("_codecs.") ||
         global.starts_with("numpy") || global == "builtins.set" || global == "__builtin__.set" ||
         global == "builtins.dict";
}

class Walk {
 public:
  Walk(const Pickle& pickle, const FindStorage& storage, Checkpoint& out)
      : pickle_(pickle),
        storage_(storage),
        out_(out),
        budget_(4 * pickle.values.size() + 1000),
        memory_(std::clamp(kMemoryFactor * pickle.bytes, kMinMemory, kMaxMemory)),
        reached_(pickle.values.size()) {}

  // Tensors that no name leads to (in an object's own structures, or nested too deeply) are judged all the same.
  void visit_unreached(const std::string& prefix) {
    std::size_t count = 0;
    budget_ += pickle_.values.size();
    memory_ += kUnreachedMemory;
    for (PickleRef ref = 0; ref < pickle_.values.size(); ++ref) {
      if (!reached_[ref] && makes_tensor(pickle_.at(ref)))
        visit(ref, join(prefix, "unnamed." + std::to_string(count++)), 0);
    }
    for (PickleRef ref = 0; ref < pickle_.values.size(); ++ref) {
      if (!reached_[ref] && pickle_.at(ref).kind == PickleKind::kPersistent)
        add_storage(ref, join(prefix, "unnamed." + std::to_string(count++)));
    }
  }

  // Storages of plain bytes are what tensors that share them say; without such a tensor nobody knows.
  void finish() {
    for (const auto& [number, ref] : plain_storages_) {
      Tensor& tensor = out_.tensors[number];
      const auto known = format_of_key_.find(storage_key(ref));
      if (known == format_of_key_.end()) continue;
      const std::int64_t bytes = tensor.sizes[0];
      tensor.problem =
          describe_storage(ref, *known->second, bytes / static_cast<std::int64_t>(known->second->bytes), tensor);
    }
  }

  void visit(PickleRef ref, const std::string& name, int depth) {
    if (spent()) return;
    --budget_;
    if (depth > kMaxDepth || name.size() > kMostBytesOfNames) {
      complete_ = false;
      return;
    }
    reached_[ref] = true;
    const PickleValue& value = pickle_.at(ref);
    switch (value.kind) {
      case PickleKind::kBool:
      case PickleKind::kInt:
        if (!value.big) add_scalar(name, static_cast<double>(value.integer));
        break;
      case PickleKind::kFloat:
        add_scalar(name, value.real);
        break;
      case PickleKind::kDict:
        visit_dict(value, name, depth);
        break;
      case PickleKind::kTuple:
      case PickleKind::kList:
      case PickleKind::kSet:
        for (std::size_t i = 0; i < value.items.size() && !spent(); ++i)
          visit(value.items[i], join(name, std::to_string(i)), depth + 1);
        break;
      case PickleKind::kObject:
        visit_object(value, name, depth);
        break;
      case PickleKind::kPersistent:
        add_storage(ref, name);
        break;
      default:
        break;
    }
  }
  bool complete() const { return complete_; }

 private:
  // Whether as much was done as the pickle's own size allows.
  bool spent() {
    if (budget_ > 0 && memory_ > 0) return false;
    complete_ = false;
    return true;
  }
  void take_memory(std::size_t bytes) { memory_ -= std::min(memory_, bytes); }
  void add_scalar(const std::string& name, double value) {
    take_memory(sizeof(Scalar) + name.size());
    out_.scalars.push_back({name, value});
  }
  void add(Tensor tensor) {
    take_memory(sizeof(Tensor) + tensor.name.size() + tensor.problem.size() + sizeof(Piece) +
                3 * sizeof(std::int64_t) * tensor.sizes.size());
    out_.tensors.push_back(std::move(tensor));
  }

  static std::string join(const std::string& name, std::string_view key) {
    key = key.substr(0, kMostBytesOfNames + 1);                                           // a longer one is no name
    if (key == "_parameters" || key == "_buffers" || key == "_modules") return name;  // of a module saved whole
    if (name.empty() || name.ends_with(':')) return name + std::string(key);
    return name + "." + std::string(key);
  }
  std::string key_text(PickleRef ref) const {
    const PickleValue& key = pickle_.at(ref);
    if (key.kind == PickleKind::kString) return std::string(key.text.substr(0, kMostBytesOfNames + 1));
    if (key.kind == PickleKind::kInt || key.kind == PickleKind::kBool) return std::to_string(key.integer);
    return "?";
  }
  void visit_dict(const PickleValue& dict, const std::string& name, int depth) {
    for (std::size_t i = 0; i + 1 < dict.items.size() && !spent(); i += 2)
      visit(dict.items[i + 1], join(name, key_text(dict.items[i])), depth + 1);
  }

  bool makes_tensor(const PickleValue& value) const {
    if (value.kind != PickleKind::kObject) return false;
    const PickleValue& callee = pickle_.at(value.items[0]);
    if (callee.kind == PickleKind::kGlobal && callee.text.starts_with("numpy."))
      return parse_numpy_value(pickle_, value).has_value();
    return callee.kind == PickleKind::kGlobal &&
           (callee.text.starts_with("torch._utils._rebuild_") || callee.text.starts_with("torch._tensor._rebuild_"));
  }

  const PickleValue* argument(const PickleValue& tuple, std::size_t i) const {
    return i < tuple.items.size() ? &pickle_.at(tuple.items[i]) : nullptr;
  }
  void visit_object(const PickleValue& object, const std::string& name, int depth) {
    const PickleValue& callee = pickle_.at(object.items[0]);
    const PickleValue& given = pickle_.at(object.items[1]);
    const std::string_view called = callee.kind == PickleKind::kGlobal ? callee.text : std::string_view();
    if (given.kind == PickleKind::kTuple && called.starts_with("torch.")) {
      if (called == "torch._utils._rebuild_tensor_v2" || called == "torch._utils._rebuild_tensor" ||
          called == "torch._utils._rebuild_tensor_v3")
        return add_tensor(given, called.ends_with("_v3"), name);
      if (called == "torch._utils._rebuild_parameter" || called == "torch._utils._rebuild_parameter_with_state") {
        if (!given.items.empty()) visit(given.items[0], name, depth + 1);
        return;
      }
      if (called == "torch._tensor._rebuild_from_type_v2") return visit_typed(given, name, depth);
      if (called == "torch._utils._rebuild_sparse_tensor") return visit_sparse(given, name, depth);
      if (called == "torch._utils._rebuild_qtensor") return visit_quantised(given, name, depth);
      if (called.starts_with("torch._utils._rebuild_") || called.starts_with("torch._tensor._rebuild_"))
        return add_unread(name, std::string(last_word(called)), &given);
    }
    if (const auto array = parse_numpy_value(pickle_, object)) return add_numpy(*array, name, depth);
    if (called.starts_with("numpy") && called.find("reconstruct") != std::string_view::npos)
      return add_unread(name, "a NumPy array");
    // What any other object was made of: a named tuple, a class with a way of its own to be saved.
    if (given.kind == PickleKind::kTuple && !called.starts_with("torch.")) visit(object.items[1], name, depth + 1);
    // State that was set on it, and what was added to it: a module saved whole, a class derived from dict or list.
    for (std::size_t i = 2; i < object.items.size() && !spent(); ++i) {
      const PickleValue& part = pickle_.at(object.items[i]);
      if (part.kind == PickleKind::kString && i + 1 < object.items.size()) {
        visit(object.items[i + 1], join(name, part.text), depth + 1);
        ++i;
      } else if (part.kind == PickleKind::kDict) {
        visit(object.items[i], name, depth + 1);
      } else if (part.kind == PickleKind::kTuple && part.items.size() == 2) {  // (dict, slots)
        --budget_;
        for (const PickleRef one : part.items)
          if (pickle_.at(one).kind == PickleKind::kDict || makes_tensor(pickle_.at(one))) visit(one, name, depth + 1);
      } else {
        visit(object.items[i], join(name, std::to_string(i - 2)), depth + 1);
      }
    }
  }
  // (function, type, arguments, state): a subclass of Tensor around what another function would make.
  void visit_typed(const PickleValue& given, const std::string& name, int depth) {
    const PickleValue* function = argument(given, 0);
    const PickleValue* arguments = argument(given, 2);
    if (function == nullptr || arguments == nullptr || function->kind != PickleKind::kGlobal ||
        arguments->kind != PickleKind::kTuple || depth > kMaxDepth)
      return add_unread(name, "a tensor of an unknown class");
    if (function->text == "torch._utils._rebuild_tensor_v2" || function->text == "torch._utils._rebuild_tensor_v3")
      return add_tensor(*arguments, function->text.ends_with("_v3"), name);
    if (function->text.starts_with("torch._utils._rebuild_parameter") && !arguments->items.empty())
      return visit(arguments->items[0], name, depth + 1);
    // A class around tensors that stand in its state.
    if (const PickleValue* state = argument(given, 3); last_word(function->text) == "_rebuild_wrapper_subclass" &&
                                                       state != nullptr && state->kind == PickleKind::kDict)
      return visit(given.items[3], name, depth + 1);
    add_unread(name, std::string(last_word(function->text)), arguments);
  }
  // (storage, offset, size, stride, (scheme, scale or scales, zero point or points[, axis]), ...)
  void visit_quantised(const PickleValue& given, const std::string& name, int depth) {
    add_tensor(given, false, name);
    const PickleValue* scheme = argument(given, 4);
    for (std::size_t i = 1;
         scheme != nullptr && scheme->kind == PickleKind::kTuple && i < std::min<std::size_t>(scheme->items.size(), 3);
         ++i)
      visit(scheme->items[i], name + (i == 1 ? std::string(kQuantiserScale) : ".q_zero_point"), depth + 1);
  }
  void visit_sparse(const PickleValue& given, const std::string& name, int depth) {
    const PickleValue* parts = argument(given, 1);
    const PickleValue* layout = argument(given, 0);
    const bool coo =
        layout != nullptr && parts != nullptr && parts->kind == PickleKind::kTuple && parts->items.size() >= 2;
    if (!coo) return add_unread(name, "a sparse tensor");
    // COO: indices, values, size. Compressed: compressed indices, plain indices, values, size.
    std::vector<PickleRef> tensors;
    for (std::size_t i = 0; i < std::min(parts->items.size(), kMaxArguments); ++i)
      if (makes_tensor(pickle_.at(parts->items[i]))) tensors.push_back(parts->items[i]);
    if (tensors.empty()) return add_unread(name, "a sparse tensor");
    for (std::size_t i = 0; i < tensors.size(); ++i)
      visit(tensors[i], join(name, i + 1 == tensors.size() ? "values" : "indices" + std::to_string(i)), depth + 1);
  }

  // `made_of`: the arguments, whose storages belong to it.
  void add_unread(const std::string& name, const std::string& what, const PickleValue* made_of = nullptr) {
    for (std::size_t i = 0; made_of != nullptr && i < std::min(made_of->items.size(), kMaxArguments); ++i)
      if (pickle_.at(made_of->items[i]).kind == PickleKind::kPersistent) reached_[made_of->items[i]] = true;
    Tensor tensor;
    tensor.name = name;
    tensor.dtype_name = what;
    tensor.problem = "a format that is not read";
    add(std::move(tensor));
  }

  bool integers(const PickleValue* tuple, std::vector<std::int64_t>& out) const {
    if (tuple == nullptr) return false;
    if (tuple->kind == PickleKind::kObject && pickle_.at(tuple->items[1]).kind == PickleKind::kTuple) {  // torch.Size
      const PickleValue* inner = argument(pickle_.at(tuple->items[1]), 0);
      return inner != nullptr && inner->kind == PickleKind::kTuple && integers(inner, out);
    }
    if (tuple->kind != PickleKind::kTuple && tuple->kind != PickleKind::kList) return false;
    if (tuple->items.size() > kMaxDimensions) return false;
    for (const PickleRef ref : tuple->items) {
      const PickleValue& one = pickle_.at(ref);
      if (one.kind != PickleKind::kInt || one.big || one.integer < 0) return false;
      out.push_back(one.integer);
    }
    return true;
  }

  // A NumPy array is judged as a tensor, a scalar is one as Python has it.
  void add_numpy(const NumpyValue& array, const std::string& name, int depth) {
    if (array.is_text()) return;
    if (array.kind == NumpyValue::Kind::kScalar) return add_numpy_scalar(array, name);
    if (array.known && array.is_of_objects()) return visit(array.bytes, name, depth + 1);
    Tensor tensor;
    tensor.name = name;
    tensor.dtype_name = array.format != nullptr ? std::string(array.format->shown)
                                                : "NumPy " + (array.dtype.empty() ? std::string("array") : array.dtype);
    tensor.sizes = array.sizes;
    tensor.problem = describe_numpy(array, tensor);
    if (!tensor.problem.empty()) tensor.pieces.clear();
    add(std::move(tensor));
  }
  void add_numpy_scalar(const NumpyValue& scalar, const std::string& name) {
    std::string bytes;
    const ElementFormat* format = scalar.format;
    if (!scalar.known || format == nullptr || !format->read_as || format->pair ||
        !decode_numpy_bytes(pickle_, scalar, format->bytes, bytes) || bytes.size() != format->bytes)
      return;
    add_scalar(name, load_as_f64(*format->read_as, bytes.data()));
  }
  std::string describe_numpy(const NumpyValue& array, Tensor& tensor) {
    if (array.format == nullptr || !array.known) return "a format that is not read";
    tensor.always_finite = array.format->always_finite;
    const std::int64_t numel = trace::numel_of(array.sizes);
    if (numel < 0) {
      tensor.damaged = true;
      return "its description is damaged";
    }
    if (!array.format->read_as) return "";
    const std::size_t width = !array.swapped ? 1 : array.format->bytes / (array.format->pair ? 2 : 1);
    // Arrays may share a text that fails to be decoded at its end: each text is tried once.
    const auto [known, fresh] =
        held_at_.emplace(std::pair(numpy_text(pickle_, array), width), std::pair(std::size_t{0}, kNotHeld));
    // The same bytes may be read in several widths, but no more is held than twice what the pickle has.
    std::string bytes;
    if (fresh && held_bytes_ <= pickle_.bytes && decode_numpy_bytes(pickle_, array, pickle_.bytes, bytes)) {
      if (!held_) {
        held_ = std::make_shared<std::string>();
        held_number_ = out_.add_source({"", held_});
      }
      known->second = {held_->size(), bytes.size()};
      held_->append(bytes);
      held_bytes_ += bytes.size();
    }
    const auto [at, size] = known->second;
    if (size == kNotHeld) return "its bytes are written in a way that is not read";
    if (static_cast<std::uint64_t>(numel) * array.format->bytes != size) {
      tensor.damaged = true;
      return "its shape does not fit its bytes";
    }
    Piece piece{held_number_, at, at + size, array.sizes, contiguous_strides(array.sizes)};
    if (array.first_index_fastest) {
      const std::vector<std::int64_t> reversed(array.sizes.rbegin(), array.sizes.rend());
      piece.strides = contiguous_strides(reversed);
      std::reverse(piece.strides.begin(), piece.strides.end());
    }
    set_elements(*array.format, piece, tensor);
    return "";
  }

  // A complex number is a pair, in a dimension of its own.
  static void set_elements(const ElementFormat& format, Piece& piece, Tensor& tensor) {
    if (format.pair) {
      for (std::int64_t& stride : piece.strides) stride *= 2;
      piece.sizes.push_back(2);
      piece.strides.push_back(1);
    }
    tensor.dtype = format.read_as;
    tensor.byte_format = format.byte_format();
    tensor.pieces.push_back(std::move(piece));
  }

  // A storage that no tensor is made of.
  void add_storage(PickleRef ref, const std::string& name) {
    reached_[ref] = true;
    const PickleValue& id = pickle_.at(pickle_.at(ref).items[0]);
    const PickleValue *type = argument(id, 1), *numel = argument(id, 4);
    const ElementFormat* format = id.kind == PickleKind::kTuple && type != nullptr && type->kind == PickleKind::kGlobal
                                      ? find_torch_format(type->text)
                                      : nullptr;
    if (format == nullptr || numel == nullptr || numel->kind != PickleKind::kInt || numel->big || numel->integer < 0)
      return add_unread(name, "a storage without a tensor");
    Tensor tensor;
    tensor.name = name;
    const bool plain = format->shown.empty();
    if (plain) {
      tensor.sizes = {numel->integer};
      tensor.dtype_name = "a storage of bytes";
      tensor.problem = "no tensor says what its bytes are";
      plain_storages_.emplace_back(out_.tensors.size(), ref);
    } else {
      tensor.problem = describe_storage(ref, *format, numel->integer, tensor);
    }
    add(std::move(tensor));
  }
  std::string describe_storage(PickleRef ref, const ElementFormat& format, std::int64_t numel, Tensor& tensor) {
    Piece piece;
    piece.sizes = {numel};
    piece.strides = {1};
    tensor.sizes = piece.sizes;
    tensor.dtype_name = format.shown;
    if (!format.read_as && !format.always_finite) return "a format that is not read";
    return place(pickle_.at(pickle_.at(ref).items[0]), 0, format, piece, tensor);
  }
  std::string_view storage_key(PickleRef ref) const {
    const PickleValue& id = pickle_.at(pickle_.at(ref).items[0]);
    const PickleValue* key = argument(id, 2);
    return id.kind == PickleKind::kTuple && key != nullptr && key->kind == PickleKind::kString ? key->text
                                                                                               : std::string_view();
  }

  // (storage, offset, size, stride, requires_grad, hooks[, dtype of v3][, metadata])
  void add_tensor(const PickleValue& given, bool with_dtype, const std::string& name) {
    Tensor tensor;
    tensor.name = name;
    tensor.problem = describe(given, with_dtype, tensor);
    if (!tensor.problem.empty()) tensor.pieces.clear();
    add(std::move(tensor));
  }

  std::string describe(const PickleValue& given, bool with_dtype, Tensor& tensor) {
    const PickleValue* persistent = argument(given, 0);
    const PickleValue* offset = argument(given, 1);
    Piece piece;
    const auto odd = [&tensor] {
      tensor.damaged = true;
      return std::string("its description is damaged");
    };
    if (persistent == nullptr || persistent->kind != PickleKind::kPersistent || offset == nullptr ||
        offset->kind != PickleKind::kInt || offset->big || offset->integer < 0 ||
        !integers(argument(given, 2), piece.sizes) || !integers(argument(given, 3), piece.strides) ||
        piece.sizes.size() != piece.strides.size())
      return odd();
    tensor.sizes = piece.sizes;
    reached_[given.items[0]] = true;
    const PickleValue& id = pickle_.at(persistent->items[0]);
    const PickleValue* type = argument(id, 1);
    const PickleValue* key = argument(id, 2);
    if (id.kind != PickleKind::kTuple || type == nullptr || type->kind != PickleKind::kGlobal || key == nullptr ||
        key->kind != PickleKind::kString)
      return odd();
    const PickleValue* dtype = with_dtype ? argument(given, 6) : type;
    if (dtype == nullptr || dtype->kind != PickleKind::kGlobal) return odd();
    const ElementFormat* format = find_torch_format(dtype->text);
    tensor.dtype_name = format != nullptr ? std::string(format->shown) : std::string(last_word(dtype->text));
    if (format == nullptr || (!format->read_as && !format->always_finite)) return "a format that is not read";
    tensor.always_finite = format->always_finite;
    format_of_key_.emplace(key->text, format);
    return place(id, offset->integer, *format, piece, tensor);
  }

  // Where the elements of a view lie in the storage that `id` names; "" or what is wrong.
  std::string place(const PickleValue& id, std::int64_t offset, const ElementFormat& format, Piece& piece,
                    Tensor& tensor) {
    const auto odd = [&tensor] {
      tensor.damaged = true;
      return std::string("its description is damaged");
    };
    tensor.always_finite = format.always_finite;
    const PickleValue* key = argument(id, 2);
    if (key == nullptr || key->kind != PickleKind::kString) return odd();
    const std::int64_t numel = trace::numel_of(piece.sizes);
    if (numel < 0) return odd();
    // A view of two storages: the legacy format's (root key, offset, size).
    if (const PickleValue* view = argument(id, 5); view != nullptr && view->kind != PickleKind::kNone)
      return "a view of a storage, which is not read";
    const StorageRange range = storage_(key->text);
    if (!range.problem.empty()) {
      tensor.damaged = !range.problem.ends_with("compressed");
      return range.problem;
    }
    // The last element that the view reaches. Numbers are bounded first: none of these can overflow.
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    std::uint64_t reach = static_cast<std::uint64_t>(offset);
    if (offset > kMost) return odd();
    for (std::size_t d = 0; d < piece.sizes.size() && numel > 0; ++d) {
      if (piece.strides[d] > kMost) return odd();
      if (piece.sizes[d] > 1 && piece.strides[d] > kMost / piece.sizes[d]) return odd();
      reach += static_cast<std::uint64_t>((piece.sizes[d] - 1) * piece.strides[d]);
    }
    if (numel > 0 && reach >= range.size / format.bytes) {
      tensor.damaged = true;
      return "it reaches beyond its storage";
    }
    piece.file = range.file;
    piece.at = range.at + static_cast<std::uint64_t>(offset) * format.bytes;
    piece.end = range.at + range.size;
    set_elements(format, piece, tensor);
    return "";
  }

  const Pickle& pickle_;
  const FindStorage& storage_;
  Checkpoint& out_;
  std::size_t budget_, memory_;  // a shared value may be met often: names are bounded by the pickle's own size
  bool complete_ = true;
  std::vector<bool> reached_;
  std::map<std::string_view, const ElementFormat*> format_of_key_;  // of storages that tensors are made of
  std::vector<std::pair<std::size_t, PickleRef>> plain_storages_;   // numbers of tensors
  std::shared_ptr<std::string> held_;                               // bytes of NumPy arrays
  std::size_t held_number_ = 0, held_bytes_ = 0;
  std::map<std::pair<NumpyText, std::size_t>, std::pair<std::size_t, std::size_t>> held_at_;
};

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxShownGlobals); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMaxShownGlobals) text += " and " + std::to_string(names.size() - kMaxShownGlobals) + " more";
  return text;
}

}  // namespace

void add_torch_values(const Pickle& pickle, const std::string& prefix, const FindStorage& storage,
                      const std::string& what, Checkpoint& out) {
  std::vector<std::string> dangerous, opaque;
  for (const std::string& name : pickle.globals) {
    if (runs_code(name))
      dangerous.push_back(name);
    else if (!is_understood(name))
      opaque.push_back(name);
  }
  if (!dangerous.empty())
    out.note(NoteKind::kNotRun,
             what + " holds " + listed(dangerous) +
                 ": loading it with pickle would run that. It was not run. Load with weights_only=True.");
  if (!opaque.empty()) out.note(NoteKind::kNotRun, what + " holds objects of " + listed(opaque) + ": not run.");
  Walk walk(pickle, storage, out);
  walk.visit(pickle.root, prefix, 0);
  walk.visit_unreached(prefix);
  walk.finish();
  if (!walk.complete())
    out.note(NoteKind::kNotRead,
             what +
                 " is nested too deeply or holds values in too many places; their tensors are judged, without their "
                 "names.");
}

}  // namespace nanhunt::checkpoint
