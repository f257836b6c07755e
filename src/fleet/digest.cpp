// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"

namespace nanhunt::fleet {
namespace {

using nlohmann::json;
using reports::json_count;
using reports::json_number;

constexpr std::string_view kSchema = "nanhunt.digest";
constexpr int kVersion = 1;
constexpr std::size_t kNameBytes = 120, kTextBytes = 240;

json name_of(std::string_view text) { return reports::json_text(text, kNameBytes); }
json sentence(std::string_view text) { return reports::json_text(text, kTextBytes); }
template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

json to_json(const DigestOrigin& one) {
  json sinks = json::array();
  for (std::size_t i = 0; i < std::min(one.sinks.size(), kMaxSinks); ++i) sinks.push_back(name_of(one.sinks[i]));
  return {{"step", one.place.step},
          {"micro_batch", one.place.micro_batch},
          {"phase", phase_name(one.place.phase)},
          {"op", one.place.op ? name_of(*one.place.op) : json()},
          {"module", one.place.module ? name_of(*one.place.module) : json()},
          {"class", finding_class_name(one.cls)},
          {"severity", severity_name(one.severity)},
          {"confidence", confidence_name(one.confidence)},
          {"call_site", sentence(one.call_site)},
          {"cause", name_of(one.cause)},
          {"title", sentence(one.title)},
          {"count", json_count(one.count)},
          {"first_step", one.first_step},
          {"last_step", one.last_step},
          {"sinks", std::move(sinks)}};
}

json to_json(const Digest& d) {
  json coordinates = json::object(), origins = json::array(), checksums = json::array();
  for (const auto& [dimension, place] : d.coordinates) {
    if (coordinates.size() < kMaxCoordinates) coordinates[dimension.substr(0, kNameBytes)] = reports::json_integer(place);
  }
  for (std::size_t i = 0; i < std::min(d.origins.size(), kMaxOrigins); ++i) origins.push_back(to_json(d.origins[i]));
  for (const auto& [step, checksum] : d.checksums) checksums.push_back({step, fmt::format("{:016x}", checksum)});
  json out = {{"schema", kSchema},
              {"schema_version", kVersion},
              {"rank", d.rank},
              {"world_size", d.world_size},
              {"attempt", d.attempt},
              {"run", name_of(d.run)},
              {"job", name_of(d.job)},
              {"host", name_of(d.host)},
              {"accelerator", nullptr},
              {"nanhunt", name_of(d.nanhunt)},
              {"framework", name_of(d.framework)},
              {"level", name_of(d.level)},
              {"coordinates", std::move(coordinates)},
              {"replicas", nullptr},
              {"ended", d.ended},
              {"trace_bytes", json_count(d.trace_bytes)},
              {"status", verdict_status_name(d.status)},
              {"steps", json_count(d.steps)},
              {"last_step", or_null(d.last_step)},
              {"clean_through", or_null(d.clean_through)},
              {"origins", std::move(origins)},
              {"arrival", nullptr},
              {"last_call", nullptr},
              {"scaler", nullptr},
              {"checksums", std::move(checksums)},
              {"coverage",
               {{"ops", json_count(d.ops)},
                {"records_dropped", json_count(d.records_dropped)},
                {"chunks_lost", json_count(d.chunks_lost)},
                {"unwatched", json_count(d.unwatched)}}}};
  if (!d.accelerator_name.empty() || !d.accelerator_id.empty())
    out["accelerator"] = {{"name", name_of(d.accelerator_name)}, {"id", name_of(d.accelerator_id)}};
  if (d.replicas) out["replicas"] = {{"lowest", d.replicas->lowest}, {"count", json_count(d.replicas->count)}, {"of", name_of(d.replicas->of)}};
  if (d.arrival) {
    const DigestArrival& a = *d.arrival;
    out["arrival"] = {{"step", a.step},           {"micro_batch", a.micro_batch},
                      {"severity", severity_name(a.severity)},
                      {"through", name_of(a.through)}, {"group", name_of(a.group)},
                      {"call", json_count(a.call)},    {"members", json_count(a.members)},
                      {"lowest", a.lowest}};
  }
  if (d.last_call) {
    out["last_call"] = {{"step", d.last_call->step}, {"group", name_of(d.last_call->group)}, {"call", json_count(d.last_call->call)}};
  }
  if (d.scaler) {
    out["scaler"] = {{"scale", json_number(d.scaler->scale)}, {"steps", json_count(d.scaler->steps)},
                     {"skipped", json_count(d.scaler->skipped)}};
  }
  return out;
}

// What is wrong with a digest, while it is read.
struct Wrong {
  std::string what;
};

// One object, each field of its type or wrong.
class Fields {
 public:
  Fields(const json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) throw Wrong{fmt::format("{} is no object", path_.empty() ? "it" : path_)};
  }

  const json& at(std::string_view key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw Wrong{fmt::format("'{}{}' is missing", path_, key)};
    return *found;
  }
  std::string text(std::string_view key) const {
    const json& value = at(key);
    if (!value.is_string()) throw expected(key, "a text");
    return value.get_ref<const std::string&>().substr(0, 4 * kTextBytes);
  }
  std::optional<std::string> text_or_null(std::string_view key) const {
    return at(key).is_null() ? std::nullopt : std::optional(text(key));
  }
  std::uint64_t count(std::string_view key) const { return whole(key, at(key), UINT64_MAX); }
  std::uint32_t number(std::string_view key) const { return static_cast<std::uint32_t>(whole(key, at(key), UINT32_MAX)); }
  std::optional<std::uint32_t> number_or_null(std::string_view key) const {
    return at(key).is_null() ? std::nullopt : std::optional(number(key));
  }
  bool flag(std::string_view key) const {
    if (!at(key).is_boolean()) throw expected(key, "true or false");
    return at(key).get<bool>();
  }
  double real(std::string_view key) const {
    if (!at(key).is_number()) return std::numeric_limits<double>::quiet_NaN();  // "NaN", "Infinity"
    return at(key).get<double>();
  }
  const json& list(std::string_view key) const {
    if (!at(key).is_array()) throw expected(key, "a list");
    return at(key);
  }
  // One of an enumeration, by the name that it has in JSON.
  template <typename T>
  T named(std::string_view key, T last, std::string_view (*name)(T)) const {
    const std::string given = text(key);
    for (int i = 0; i <= static_cast<int>(last); ++i) {
      if (name(static_cast<T>(i)) == given) return static_cast<T>(i);
    }
    throw expected(key, "a name that this version knows");
  }
  Wrong expected(std::string_view key, const char* what) const {
    return {fmt::format("'{}{}' is not {}", path_, key, what)};
  }

 private:
  // A number, or beyond 2^53 its digits.
  std::uint64_t whole(std::string_view key, const json& value, std::uint64_t most) const {
    std::uint64_t number = 0;
    if (value.is_number_unsigned()) {
      number = value.get<std::uint64_t>();
    } else if (value.is_string()) {
      const std::string& digits = value.get_ref<const std::string&>();
      const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (failed != std::errc() || end != digits.data() + digits.size()) throw expected(key, "a count");
    } else {
      throw expected(key, "a count");
    }
    if (number > most) throw expected(key, "a number of this size");
    return number;
  }

  const json& object_;
  std::string path_;
};

DigestOrigin parse_origin(const json& value) {
  const Fields f(value, "origins.");
  DigestOrigin one;
  one.place.step = f.number("step");
  one.place.micro_batch = f.number("micro_batch");
  const std::optional<Phase> phase = parse_phase(f.text("phase"));
  if (!phase) throw f.expected("phase", "a phase that this version knows");
  one.place.phase = *phase;
  one.place.op = f.text_or_null("op");
  one.place.module = f.text_or_null("module");
  one.cls = f.named("class", FindingClass::kUnexplained, finding_class_name);
  one.severity = f.named("severity", Severity::kFault, severity_name);
  one.confidence = f.named("confidence", Confidence::kInferred, confidence_name);
  one.call_site = f.text("call_site");
  one.cause = f.text("cause");
  one.title = f.text("title");
  one.count = f.count("count");
  one.first_step = f.number("first_step");
  one.last_step = f.number("last_step");
  for (const json& sink : f.list("sinks")) {
    if (sink.is_string() && one.sinks.size() < kMaxSinks) one.sinks.push_back(sink.get<std::string>());
  }
  return one;
}

std::pair<std::uint32_t, std::uint64_t> parse_checksum(const json& value, const Fields& digest) {
  std::uint64_t checksum = 0;
  if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() || value[0].get<std::uint64_t>() > UINT32_MAX ||
      !value[1].is_string())
    throw digest.expected("checksums", "a list of [step, digits]");
  const std::string& digits = value[1].get_ref<const std::string&>();
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), checksum, 16);
  if (failed != std::errc() || end != digits.data() + digits.size()) throw digest.expected("checksums", "a list of [step, digits]");
  return {value[0].get<std::uint32_t>(), checksum};
}

Digest parse_fields(const json& value) {
  const Fields f(value, "");
  if (const std::string schema = f.text("schema"); schema != kSchema)
    throw Wrong{fmt::format("'schema' is '{}', not {}", schema, kSchema)};
  if (const std::uint64_t version = f.count("schema_version"); version == 0 || version > kVersion)
    throw Wrong{fmt::format("its version is {}, and this nanhunt reads {}: use a newer one", version, kVersion)};
  Digest d;
  d.rank = f.number("rank");
  d.world_size = f.number("world_size");
  d.attempt = f.number("attempt");
  d.run = f.text("run");
  d.job = f.text("job");
  d.host = f.text("host");
  d.nanhunt = f.text("nanhunt");
  d.framework = f.text("framework");
  d.level = f.text("level");
  if (!f.at("accelerator").is_null()) {
    const Fields card(f.at("accelerator"), "accelerator.");
    d.accelerator_name = card.text("name");
    d.accelerator_id = card.text("id");
  }
  const json& coordinates = f.at("coordinates");
  if (!coordinates.is_object()) throw f.expected("coordinates", "an object");
  for (const auto& [dimension, place] : coordinates.items()) {
    if (!place.is_number_integer()) throw f.expected("coordinates", "an object of whole numbers");
    if (d.coordinates.size() < kMaxCoordinates) d.coordinates.emplace(dimension.substr(0, kNameBytes), place.get<std::int64_t>());
  }
  if (!f.at("replicas").is_null()) {
    const Fields replicas(f.at("replicas"), "replicas.");
    d.replicas = Replicas{replicas.number("lowest"), replicas.count("count"), replicas.text("of")};
  }
  d.ended = f.flag("ended");
  d.trace_bytes = f.count("trace_bytes");
  d.status = f.named("status", VerdictStatus::kInconclusive, verdict_status_name);
  d.steps = f.count("steps");
  d.last_step = f.number_or_null("last_step");
  d.clean_through = f.number_or_null("clean_through");
  for (const json& origin : f.list("origins")) {
    if (d.origins.size() < kMaxOrigins) d.origins.push_back(parse_origin(origin));
  }
  if (!f.at("arrival").is_null()) {
    const Fields a(f.at("arrival"), "arrival.");
    d.arrival = {a.number("step"),  a.number("micro_batch"), a.named("severity", Severity::kFault, severity_name),
                 a.text("through"), a.text("group"),         a.count("call"),
                 a.count("members"), a.number("lowest")};
  }
  if (!f.at("last_call").is_null()) {
    const Fields call(f.at("last_call"), "last_call.");
    d.last_call = {call.number("step"), call.text("group"), call.count("call")};
  }
  if (!f.at("scaler").is_null()) {
    const Fields scaler(f.at("scaler"), "scaler.");
    d.scaler = {scaler.real("scale"), scaler.count("steps"), scaler.count("skipped")};
  }
  for (const json& checksum : f.list("checksums")) {
    if (d.checksums.size() < kMaxChecksums) d.checksums.push_back(parse_checksum(checksum, f));
  }
  std::sort(d.checksums.begin(), d.checksums.end());
  const Fields coverage(f.at("coverage"), "coverage.");
  d.ops = coverage.count("ops");
  d.records_dropped = coverage.count("records_dropped");
  d.chunks_lost = coverage.count("chunks_lost");
  d.unwatched = coverage.count("unwatched");
  return d;
}

}  // namespace

std::string render_digest(Digest digest) {
  for (;;) {
    std::string text = reports::dump_json(to_json(digest), -1) + "\n";
    if (text.size() <= kMaxDigestBytes) return text;
    if (digest.origins.size() > 1) {
      digest.origins.resize(std::min(digest.origins.size(), kMaxOrigins) - 1);
    } else if (digest.checksums.size() > 8) {
      digest.checksums.erase(digest.checksums.begin(), digest.checksums.end() - 8);
    } else if (!digest.checksums.empty()) {
      digest.checksums.clear();
    } else if (!digest.coordinates.empty()) {
      digest.coordinates.clear();
    } else if (!digest.origins.empty()) {
      digest.origins.clear();
    } else {
      digest.host.clear();  // nothing but names that JSON writes six times as long is left
      digest.framework.clear();
      digest.accelerator_name.clear();
    }
  }
}

Result<Digest> parse_digest(std::string_view text) {
  if (text.size() > kMaxReadBytes) return Status(StatusCode::kUnreadable, "it is larger than a digest may be");
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Status(StatusCode::kUnreadable, "it is not whole, or no JSON");
  try {
    return parse_fields(value);
  } catch (const Wrong& wrong) {
    return Status(StatusCode::kUnreadable, wrong.what);
  }
}

}  // namespace nanhunt::fleet
