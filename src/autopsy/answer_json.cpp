// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "src/autopsy/answer.h"

namespace nanhunt::autopsy {
namespace {

using nlohmann::json;
using reports::json_count;
using reports::json_number;
using reports::json_text;
using reports::json_text_or_null;
using reports::json_texts;

json json_began(const Began& began) {
  const auto number = [](const std::optional<double>& value) { return value ? json_number(*value) : json(); };
  return {
      {"unit", unit_name(began.unit)}, {"last_good", number(began.last_good)}, {"first_bad", number(began.first_bad)}};
}

json json_guess(const Evidence& evidence, const Guess& guess) {
  json seen = json::array();
  for (const Sentence& one : guess.evidence) {
    seen.push_back({{"text", json_text(one.text)}, {"source", json_text(evidence.sources[one.source].path)}});
  }
  return {{"pattern", guess.pattern},
          {"title", guess.title},
          {"confidence", guess.confidence == Confidence::kLikely ? "likely" : "possible"},
          {"began", json_began(guess.began)},
          {"evidence", seen},
          {"unlikely", json_texts(guess.unlikely)},
          {"checks", json_texts(guess.checks)}};
}

json json_series(const Evidence& evidence, const Series& series) {
  std::uint64_t nan = 0, plus_inf = 0, minus_inf = 0;
  double lowest = kUnknown, highest = kUnknown, first_bad = kUnknown;
  for (const Point& point : series.points) {
    if (is_finite(point.value)) {
      if (!is_finite(lowest) || point.value < lowest) lowest = point.value;
      if (!is_finite(highest) || point.value > highest) highest = point.value;
      continue;
    }
    ++(point.value > 0 ? plus_inf : point.value < 0 ? minus_inf : nan);
    if (!is_finite(first_bad)) first_bad = point.at;
  }
  const Point last = series.points.empty() ? Point{} : series.points.back();
  return {{"name", json_text(series.name)},
          {"quantity", quantity_name(series.quantity)},
          {"source", json_text(evidence.sources[series.source].path)},
          {"unit", unit_name(series.unit)},
          {"points", json_count(series.points.size())},
          {"nan", json_count(nan)},
          {"plus_inf", json_count(plus_inf)},
          {"minus_inf", json_count(minus_inf)},
          {"lowest", reports::json_number_or_null(lowest)},
          {"highest", reports::json_number_or_null(highest)},
          {"first_bad", reports::json_number_or_null(first_bad)},
          {"last_at", json_number(last.at)},
          {"last", json_number(last.value)},
          {"restarts", json_count(series.restarts.size())}};
}

json json_traceback(const Evidence& evidence, const Traceback* one) {
  if (one == nullptr) return nullptr;
  return {
      {"exception", json_text_or_null(one->exception)}, {"message", json_text_or_null(one->message)},
      {"file", json_text_or_null(one->file)},           {"line", one->file.empty() ? json() : json_count(one->line)},
      {"function", json_text_or_null(one->function)},   {"backward", json_text_or_null(one->backward)},
      {"numeric", one->ended != Ended::kOtherwise},     {"source", json_text(evidence.sources[one->source].path)}};
}

}  // namespace

std::string answer_json(const std::string& run, const Evidence& evidence, const Judgement& judgement,
                        const std::optional<Resume>& resume, int exit_status) {
  json guesses = json::array(), series = json::array(), sources = json::array(), settings = json::array();
  for (const Guess& guess : judgement.guesses) guesses.push_back(json_guess(evidence, guess));
  for (const Series& one : evidence.series) series.push_back(json_series(evidence, one));
  for (const Source& source : evidence.sources) {
    sources.push_back({{"path", json_text(source.path)},
                       {"format", json_text_or_null(source.format)},
                       {"damage", json_text_or_null(source.damage)}});
  }
  for (const Setting& setting : evidence.settings) {
    settings.push_back({{"key", json_text(setting.key)},
                        {"value", json_text(setting.value)},
                        {"source", json_text(evidence.sources[setting.source].path)}});
  }
  json command = nullptr, from = nullptr;
  if (judgement.outcome == Outcome::kBadNumbers) {
    const NextCommand next = next_command(evidence, judgement);
    command = {{"text", json_text(next.text(), 65536)}, {"words", json_texts(next.words)}, {"known", next.known}};
    if (resume) {
      const Checkpoint* one = resume->checkpoint;
      from = {{"path", one != nullptr ? json_text(one->path) : json()},
              {"step", one != nullptr ? json_count(one->step) : json()},
              {"weights", weights_word(resume->weights)},
              {"bad", json_texts(resume->bad)},
              {"text", json_text(resume->text)}};
    }
  }
  const json answer = {{"schema", "nanhunt.autopsy"},
                       {"schema_version", 1},
                       {"run", json_text(run)},
                       {"outcome", outcome_name(judgement.outcome)},
                       {"exit_status", exit_status},
                       {"headline", json_text(judgement.headline)},
                       {"began", judgement.began ? json_began(*judgement.began) : json()},
                       {"guesses", guesses},
                       {"traceback", json_traceback(evidence, judgement.traceback)},
                       {"command", command},
                       {"resume", from},
                       {"settings", settings},
                       {"series", series},
                       {"sources", sources},
                       {"cut", evidence.cut}};
  return reports::dump_json(answer) + "\n";
}

}  // namespace nanhunt::autopsy
