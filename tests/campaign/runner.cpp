// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/runner.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <stdexcept>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/recorder.h"
#include "tests/campaign/baselines/baselines.h"

namespace nanhunt::campaign {
namespace {

namespace fs = std::filesystem;

void require(const Status& status) {
  if (!status) throw std::runtime_error(status.message());
}

// Trains the rig, watched at a level, into `folder`.
RunLog train_watched(Rig& rig, const std::string& level, const std::string& folder) {
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = level;
  RecorderOptions options;
  options.run_dir = folder;
  auto recorder = Recorder::open(options, info);
  require(recorder.status());
  RunLog log;
  {
    hooks::WatchOptions watch_options;
    watch_options.level = *hooks::parse_watch_level(level);
    const hooks::TrainerWatch watch(rig.trainer(), **recorder, watch_options);
    log = train(rig);
  }
  require((*recorder)->close());
  return log;
}

LevelResult judge(const std::string& level, const std::string& folder) {
  LevelResult out;
  out.level = level;
  out.trace = folder;
  auto analysis = analyze_run(folder);
  require(analysis.status());
  out.answer = answer_of(*analysis);
  return out;
}

void drop_trace(LevelResult& level, bool keep) {
  if (keep) return;
  std::error_code ignored;
  fs::remove_all(level.trace, ignored);
  fs::remove(fs::path(level.trace).parent_path(), ignored);  // if it was the last
  level.trace.clear();
}


void run_baselines(const Expected& expected, const std::string& trace, RunResult& result) {
  auto ops = read_ops(trace);
  require(ops.status());
  for (const Baseline* baseline : all_baselines()) {
    result.baselines[std::string(baseline->name)] = baseline_right(*baseline, expected, baseline->find(*ops));
  }
}

// Unlike the engine's observers, which look at every op, the sentinel watches these.
bool sentinel_can_see(const Witness& witness) { return witness.first_bad_step().has_value(); }

// One draw of a fault: true if it did harm as planned, and `result` is filled.
bool try_fault(const Drawn& drawn, const std::string& folder, const RunnerOptions& options, RunResult& result) {
  const Settings& settings = drawn.settings;
  Planted planted = drawn.planted;
  planted.target.from_step = std::max(planted.target.from_step, planted.plan.first_step);
  Rig clean_rig(settings, planted.plan, /*faulty=*/false);
  const RunLog clean = train(clean_rig);
  std::optional<Expected> expected;
  for (const std::string& level : options.levels) {
    const std::string trace = folder + "/" + level;
    Rig rig(settings, planted.plan, /*faulty=*/true);
    Witness witness(rig, &planted.target);
    RunLog log;
    {
      const engine::HookHandle handle = engine::add_observer(witness);
      log = train_watched(rig, level, trace);
    }
    if (!expected) {  // the first level decides: each trains the same bits
      const Harm harm = compare(log, clean);
      expected = expect(planted.target, planted.plan, rig, witness, log);
      if (!harm.harmful || !expected) {
        ++(harm.harmful ? result.unintended : result.harmless);
        return false;
      }
      result.drawn = drawn;
      result.settings = settings.text();
      result.variant = planted.variant;
      result.harm = harm.why;
      result.expected_class = finding_class_name(expected->cls);
      result.expected_place = text_of(expected->place);
      if (!expected->modules.empty()) {
        result.expected_place += fmt::format(", one of {}", fmt::join(expected->modules, ", "));
      }
    }
    if (level == "ops") run_baselines(*expected, trace, result);
    LevelResult judged = judge(level, trace);
    judged.origin_right = origin_right(*expected, judged.answer);
    judged.class_right = class_right(*expected, judged.answer);
    if (level == "sentinel" && said_not_reproducible(*expected, judged.answer)) {
      judged.origin_right = judged.class_right = true;
    }
    judged.visible = level == "ops" || sentinel_can_see(witness);
    drop_trace(judged, options.keep_trace || (judged.visible && !(judged.origin_right && judged.class_right)));
    result.levels.push_back(std::move(judged));
  }
  return true;
}

void run_fault(const RunId& id, const RunnerOptions& options, const std::string& folder, RunResult& result) {
  const auto families = all_families();
  const Family* family = options.only_family.empty() ? families[id.index % families.size()]
                                                     : find_family(options.only_family);
  if (family == nullptr) throw std::invalid_argument("no family is called '" + options.only_family + "'");
  result.family = family->name;
  for (int n = 0; n < kMaxDraws; ++n) {
    const Drawn drawn = draw_fault(*family, mix_seeds(id.campaign_seed, id.index, static_cast<std::uint64_t>(n)));
    try {
      if (try_fault(drawn, folder, options, result)) return;
    } catch (const std::exception& error) {
      ++result.failed;
      result.failure = fmt::format("{} ({}): {}", drawn.settings.text(), drawn.planted.variant, error.what());
    }
    fs::remove_all(folder);
  }
  result.planted = false;
}

void run_healthy(const RunId& id, const RunnerOptions& options, const std::string& folder, RunResult& result) {
  const auto kinds = healthy_kinds();
  const HealthyKind& kind = kinds[id.index % kinds.size()];
  result.family = kind.name;
  Draw draw(mix_seeds(id.campaign_seed, id.index, std::uint64_t{1} << 32));
  Settings settings = draw_settings(draw);
  const Plan plan = kind.plan(draw, settings);
  result.settings = settings.text();
  for (const std::string& level : options.levels) {
    Rig rig(settings, plan, /*faulty=*/false);
    const std::string trace = folder + "/" + level;
    train_watched(rig, level, trace);
    LevelResult judged = judge(level, trace);
    judged.origin_right = judged.class_right = !judged.answer.fault;
    drop_trace(judged, options.keep_trace || judged.answer.fault);
    result.levels.push_back(std::move(judged));
  }
}

}  // namespace

std::string RunId::text() const { return fmt::format("{}-{:04}", healthy ? "healthy" : "fault", index); }

RunId parse_run_id(const std::string& text, std::uint64_t campaign_seed) {
  const std::size_t dash = text.find('-');
  RunId id{.campaign_seed = campaign_seed, .healthy = text.substr(0, dash) == "healthy", .index = 0};
  const char* first = text.data() + (dash == std::string::npos ? text.size() : dash + 1);
  const auto [end, error] = std::from_chars(first, text.data() + text.size(), id.index);
  const bool known = id.healthy || text.substr(0, dash) == "fault";
  if (!known || error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("expected fault-N or healthy-N, got '" + text + "'");
  }
  return id;
}

Drawn draw_fault(const Family& family, std::uint64_t run_seed) {
  Draw draw(run_seed);
  Drawn out{.settings = draw_settings(draw), .planted = {}};
  out.planted = family.plant(draw, out.settings);
  return out;
}

Answer judge_twin(const Drawn& drawn, const std::string& folder) {
  Rig rig(drawn.settings, drawn.planted.plan, /*faulty=*/false);
  train_watched(rig, "ops", folder);
  return judge("ops", folder).answer;
}

RunResult run_one(const RunId& id, const RunnerOptions& options) {
  RunResult result;
  result.id = id;
  const std::string folder = options.scratch + "/" + id.text();
  fs::remove_all(folder);
  (id.healthy ? run_healthy : run_fault)(id, options, folder, result);
  return result;
}

nlohmann::json to_json(const RunResult& r) {
  nlohmann::json out{{"id", r.id.text()},
                     {"seed", r.id.campaign_seed},
                     {"family", r.family},
                     {"variant", r.variant},
                     {"settings", r.settings},
                     {"harm", r.harm},
                     {"planted", r.planted},
                     {"redrawn", {{"harmless", r.harmless}, {"unintended", r.unintended}, {"failed", r.failed}}},
                     {"failure", r.failure},
                     {"expected", {{"class", r.expected_class}, {"place", r.expected_place}}},
                     {"baselines", r.baselines},
                     {"levels", nlohmann::json::array()}};
  for (const LevelResult& level : r.levels) {
    const Answer& a = level.answer;
    out["levels"].push_back({{"level", level.level},
                             {"visible", level.visible},
                             {"origin_right", level.origin_right},
                             {"class_right", level.class_right},
                             {"fault", a.fault},
                             {"got",
                              {{"class", a.cls ? std::string(finding_class_name(*a.cls)) : ""},
                               {"place", a.given ? text_of(a.place) : ""},
                               {"headline", a.headline}}},
                             {"trace", level.trace}});
  }
  return out;
}

}  // namespace nanhunt::campaign
