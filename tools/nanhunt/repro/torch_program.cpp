// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/repro/torch_program.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "reports/json/json_values.h"
#include "src/core/ops/op_info.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

constexpr char kCallKey[] = "nanhunt.call";
constexpr std::size_t kMaxArguments = 10000;
constexpr std::array<std::string_view, 8> kDTypes = {"float16", "bfloat16", "float32", "float64",
                                                     "int64",   "int32",    "uint8",   "bool"};

constexpr std::string_view kCase = "CASE_AS_JSON";
constexpr std::string_view kProgram =
    R"py("""Shows the bad result of one operation from the numbers it read in a training run. Needs PyTorch only."""
import json, math, pathlib, struct, sys

import torch

CASE = json.loads(CASE_AS_JSON)
RAW = (pathlib.Path(__file__).parent / "inputs.safetensors").read_bytes()
START = 8 + struct.unpack("<Q", RAW[:8])[0]
HEADER = json.loads(RAW[8:START])
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}

def value(kind, data=None):
    if kind == "tensor":
        about, (begin, end) = HEADER[data], HEADER[data]["data_offsets"]
        kept = torch.frombuffer(bytearray(RAW[START + begin:START + end] or b" "), dtype=torch.uint8)[:end - begin]
        return kept.view(DTYPES[about["dtype"]]).reshape(about["shape"])
    made = {"list": lambda d: [value(*v) for v in d], "float": float, "dtype": lambda d: getattr(torch, d)}
    return made.get(kind, lambda d: d)(data)

args, kwargs = [value(*a) for a in CASE["args"]], {name: value(*a) for name, a in CASE["kwargs"].items()}
result = getattr(getattr(torch.ops.aten, CASE["op"]), CASE["overload"])(*args, **kwargs)
result = args[0] if result is None else result
results = [t for t in (result if isinstance(result, (list, tuple)) else [result]) if t.is_floating_point()]
out = next((t for t in results if not t.isfinite().all()), results[0]).double().flatten()
at = CASE["element"] if CASE["element"] is not None and CASE["element"] < out.numel() else 0
print(f"aten::{CASE['op']}, {ascii(CASE['place'])[1:-1]}: {int(out.isnan().sum())} NaN, {int(out.isinf().sum())} Inf of {out.numel()}")
print(f"element {at} is {out[at].item()}, in the run it was {CASE['recorded']}")
sys.exit(0 if not out.isfinite().all() and (CASE["recorded"] is None or not math.isfinite(out[at])) else 1)
)py";

bool is_name(const json& text, std::size_t longest) {
  if (!text.is_string()) return false;
  const auto& s = text.get_ref<const std::string&>();
  return !s.empty() && s.size() <= longest && std::all_of(s.begin(), s.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Copies an argument if it is data of a known kind; tensors get the names of `arrays`.
bool copy_argument(const json& from, const std::map<std::string, std::string>& arrays, int depth, std::size_t& left,
                   json& to) {
  if (left-- == 0 || depth > 3 || !from.is_array() || from.empty() || from.size() > 2 || !from[0].is_string())
    return false;
  const std::string kind = from[0].get<std::string>();
  if (kind == "none") {
    to = json::array({kind});
    return from.size() == 1;
  }
  if (from.size() != 2) return false;
  const json& data = from[1];
  if (kind == "list") {
    if (!data.is_array()) return false;
    json items = json::array();
    for (const json& item : data) {
      json copied;
      if (!copy_argument(item, arrays, depth + 1, left, copied)) return false;
      items.push_back(std::move(copied));
    }
    to = json::array({kind, std::move(items)});
    return true;
  }
  if (kind == "tensor") {
    const auto array = data.is_string() ? arrays.find(data.get<std::string>()) : arrays.end();
    if (array == arrays.end()) return false;
    to = json::array({kind, array->second});
    return true;
  }
  const bool is_text_number = data.is_string() && (data == "inf" || data == "-inf" || data == "nan");
  const bool is_dtype =
      data.is_string() && std::find(kDTypes.begin(), kDTypes.end(), data.get<std::string>()) != kDTypes.end();
  const bool fits = (kind == "bool" && data.is_boolean()) || (kind == "int" && data.is_number_integer()) ||
                    (kind == "float" && (data.is_number() || is_text_number)) || (kind == "dtype" && is_dtype) ||
                    (kind == "str" && is_name(data, 32));  // a rounding mode, an approximation
  if (fits) to = json::array({kind, data});
  return fits;
}

Status unreadable(const std::string& why) { return {StatusCode::kUnreadable, "repro: the capture " + why + "."}; }

}  // namespace

bool has_torch_call(const trace::Safetensors& captured) { return captured.metadata.contains(kCallKey); }

Result<TorchRepro> torch_repro(const trace::Safetensors& captured, const std::string& place,
                               std::optional<std::int64_t> element, std::optional<double> recorded) {
  const auto text = captured.metadata.find(kCallKey);
  if (text == captured.metadata.end()) return unreadable("does not say how the operation was called");
  const json call = json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (!call.is_object() || !call.contains("args") || !call["args"].is_array() || !call.contains("kwargs") ||
      !call["kwargs"].is_object() || !call.contains("op") || !call.contains("overload") ||
      !is_name(call["op"], 100) || !is_name(call["overload"], 100)) {
    return unreadable("does not say how the operation was called");
  }
  TorchRepro repro;
  const std::string op = call["op"].get<std::string>();
  repro.op = "aten::" + op;
  if (call.value("namespace", "") != "aten" || !op_info(op).known()) {
    return Status(StatusCode::kUsage,
                  "repro: " + op + " is none of the operations that a stand-alone program may call.");
  }
  std::map<std::string, std::string> arrays;
  for (const trace::NamedArray& array : captured.arrays) {
    trace::NamedArray renamed = array;
    renamed.name = "input" + std::to_string(repro.inputs.arrays.size());
    arrays.emplace(array.name, renamed.name);
    repro.inputs.arrays.push_back(std::move(renamed));
  }
  json args = json::array(), kwargs = json::object();
  std::size_t left = kMaxArguments;
  for (const json& argument : call["args"]) {
    if (!copy_argument(argument, arrays, 0, left, args.emplace_back()))
      return unreadable("holds an argument that is no plain data");
  }
  for (const auto& [name, argument] : call["kwargs"].items()) {
    if (!is_name(name, 100) || !copy_argument(argument, arrays, 0, left, kwargs[name]))
      return unreadable("holds an argument that is no plain data");
  }
  const json data = {{"op", op},
                     {"overload", call["overload"]},
                     {"place", reports::json_text(place)},
                     {"args", std::move(args)},
                     {"kwargs", std::move(kwargs)},
                     {"element", element ? json(*element) : json()},
                     {"recorded", recorded ? reports::json_number(*recorded) : json()}};
  // JSON in a string: ASCII, and what JSON escapes in a string Python reads back.
  repro.program = std::string(kProgram);
  repro.program.replace(repro.program.find(kCase), kCase.size(),
                        json(reports::dump_json(data, -1)).dump(-1, ' ', /*ensure_ascii=*/true));
  return repro;
}

}  // namespace nanhunt::cli
