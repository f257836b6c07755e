// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/options.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/c_api/convert.h"
#include "src/core/redact.h"
#include "src/trace/run/process_run_info.h"

namespace nanhunt::c_api {
namespace {

using Json = nlohmann::ordered_json;  // options stay in the caller's order

// run.json must stay readable, escapes and all.
constexpr std::size_t kMaxDetailsBytes = 128u << 10;
constexpr int kMaxDepth = 8;

std::string text_in(const char* what, const Json& item) {
  if (!item.is_string()) throw Misuse(std::string("details: ") + what + ": expected texts");
  return item.get<std::string>();
}

std::vector<std::string> texts_in(const char* what, const Json& list) {
  if (!list.is_array()) throw Misuse(std::string("details: ") + what + ": expected a list of texts");
  std::vector<std::string> texts;
  for (const Json& item : list) texts.push_back(text_in(what, item));
  return texts;
}

// Nesting is what a parser's memory, and a destructor's stack, go into.
bool is_deep(std::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

void add_details(std::string_view json, RunInfo& info) {
  if (json.size() > kMaxDetailsBytes) {
    throw Misuse("details: expected at most 131072 bytes, got " + std::to_string(json.size()));
  }
  if (is_deep(json)) throw Misuse("details: nested too deep: expected an object of lists and texts");
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw Misuse("details: expected a JSON object");
  if (const auto at = object.find("command"); at != object.end()) info.command = texts_in("command", *at);
  if (const auto at = object.find("dtypes"); at != object.end()) info.dtypes = texts_in("dtypes", *at);
  if (const auto at = object.find("options"); at != object.end()) {
    if (!at->is_object()) throw Misuse("details: options: expected an object of texts");
    for (const auto& [name, value] : at->items()) info.options.emplace_back(name, text_in("options", value));
  }
  if (const auto at = object.find("packages"); at != object.end()) {
    if (!at->is_object()) throw Misuse("details: packages: expected an object of texts");
    for (const auto& [name, value] : at->items()) info.packages.emplace_back(name, text_in("packages", value));
  }
  if (const auto at = object.find("commit"); at != object.end()) info.commit = text_in("commit", *at);
  if (const auto at = object.find("tree"); at != object.end()) info.tree = text_in("tree", *at);
  if (const auto at = object.find("run"); at != object.end()) info.run = text_in("run", *at);
  redact_command(info.command);
  redact_options(info.options);
}

OpenOptions open_options(const nanhunt_recorder_options& given) {
  OpenOptions to;
  RecorderOptions& recorder = to.recorder;
  recorder.run_dir = text_of(given.run_dir);
  if (recorder.run_dir.empty()) throw Misuse("run_dir: expected a folder");
  if (given.drop_on_full != 0) recorder.on_full = OnFull::kDrop;
  if (given.flush_ms < 0) throw Misuse("flush_ms: expected 0 or more");
  if (given.flush_ms > 0) recorder.flush_ms = given.flush_ms;
  if (given.queue_bytes > 0) recorder.queue_bytes = given.queue_bytes;
  recorder.check_inputs = given.trust_inputs == 0;
  if (given.max_trace_bytes != 0 && given.max_trace_bytes < kMinMaxBytes) {
    throw Misuse("max_trace_bytes: expected 0 or at least " + std::to_string(kMinMaxBytes) + ", got " +
                 std::to_string(given.max_trace_bytes));
  }
  recorder.writer.retention.max_bytes = given.max_trace_bytes;

  to.info = make_run_info();
  to.info.framework = text_of(given.framework);
  to.info.device = text_of(given.device);
  to.info.level = given.level == nullptr ? "ops" : given.level;
  if (to.info.level != "live" && to.info.level != "ops" && to.info.level != "steps") {
    throw Misuse("level: expected live, ops or steps, got '" + to.info.level.substr(0, 100) + "'");
  }
  to.info.rank = given.rank;
  to.info.world_size = given.world_size == 0 ? 1 : given.world_size;
  if (given.details != nullptr) add_details(given.details, to.info);
  return to;
}

}  // namespace nanhunt::c_api
