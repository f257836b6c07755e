// SPDX-License-Identifier: Apache-2.0
#include "src/trace/run/run_info.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "src/trace/segments/files.h"
#include "src/trace/encoding/limits.h"

namespace nanhunt::trace {
namespace {

using Json = nlohmann::json;
constexpr const char* kSchema = "nanhunt.run";
constexpr int kSchemaVersion = 1;

void read(const Json& object, const char* key, std::string& out) {
  if (const auto at = object.find(key); at != object.end() && at->is_string()) out = at->get<std::string>();
}

template <typename Integer>
void read_integer(const Json& object, const char* key, Integer& out) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return;
  if (at->is_number_unsigned()) {
    const auto value = at->get<std::uint64_t>();
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) out = static_cast<Integer>(value);
  } else if (const auto value = at->get<std::int64_t>();
             std::numeric_limits<Integer>::is_signed && value >= std::numeric_limits<Integer>::min()) {
    out = static_cast<Integer>(value);
  }
}

void read(const Json& object, const char* key, std::vector<std::pair<std::string, std::string>>& out) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return;
  for (const Json& pair : *at) {
    if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string())
      out.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json out = Json::array();
  for (const auto& [name, value] : pairs) out.push_back(Json::array({name, value}));
  return out;
}

void read(const Json& object, const char* key, std::vector<std::string>& out) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return;
  for (const Json& item : *at) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
}

}  // namespace

std::string run_info_text(const RunInfo& info) {
  Json object = {
      {"schema", kSchema},
      {"schema_version", kSchemaVersion},
      {"volatile", Json::array({"host", "pid", "started"})},
      {"command", info.command},
      {"nanhunt_version", info.nanhunt_version},
      {"framework", info.framework},
      {"device", info.device},
      {"level", info.level},
      {"scenario", info.scenario},
      {"dtypes", info.dtypes},
      {"rank", info.rank},
      {"world_size", info.world_size},
      {"attempt", info.attempt},
      {"options", pairs_json(info.options)},
      {"packages", pairs_json(info.packages)},
      {"commit", info.commit},
      {"tree", info.tree},
      {"started", info.started},
      {"host", info.host},
      {"pid", info.pid},
  };
  if (!info.run.empty()) {
    object["run"] = info.run;
    object["volatile"] = Json::array({"host", "pid", "run", "started"});
  }
  return object.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

bool parse_run_info(std::string_view text, RunInfo& info) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return false;
  std::string schema;
  read(object, "schema", schema);
  if (schema != kSchema) return false;
  RunInfo found;
  read(object, "command", found.command);
  read(object, "nanhunt_version", found.nanhunt_version);
  read(object, "framework", found.framework);
  read(object, "device", found.device);
  read(object, "level", found.level);
  read(object, "scenario", found.scenario);
  read(object, "dtypes", found.dtypes);
  read_integer(object, "rank", found.rank);
  read_integer(object, "world_size", found.world_size);
  read_integer(object, "attempt", found.attempt);
  read(object, "started", found.started);
  read(object, "host", found.host);
  read_integer(object, "pid", found.pid);
  read(object, "options", found.options);
  read(object, "packages", found.packages);
  read(object, "commit", found.commit);
  read(object, "tree", found.tree);
  read(object, "run", found.run);
  info = std::move(found);
  return true;
}

bool read_run_info(const std::string& folder, RunInfo& info) {
  auto file = InputFile::open(folder + "/run.json", /*follow_links=*/false);
  if (!file || file->size() > kMaxRunInfoBytes) return false;
  const auto bytes = file->view(0, kMaxRunInfoBytes);
  return parse_run_info({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, info);
}

}  // namespace nanhunt::trace
