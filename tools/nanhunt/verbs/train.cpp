// SPDX-License-Identifier: Apache-2.0
// nanhunt train: trains a bundled scenario, watched or not; when it went wrong, tries its fixes on the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "hooks/cupti/kernel_watch.h"
#include "hooks/engine/engine_hooks.h"
#include "nanhunt/analyzer.h"
#include "nanhunt/engine/anomaly.h"
#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/lr_finder.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "src/core/version.h"
#include "src/hunt/hunt.h"
#include "src/trace/run/process_run_info.h"
#include "tools/nanhunt/lr_table.h"
#include "tools/nanhunt/mpi_ranks.h"
#include "tools/nanhunt/neutrality.h"
#include "tools/nanhunt/progress.h"
#include "tools/nanhunt/recipe.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/train_outcome.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using engine::RankGroup;
using scenarios::Scenario;

constexpr int kNotNeutral = 1, kRankEnded = 7;

class TrainVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("SCENARIO", scenario_, "What to train; --list names them");
    options.add("--out", out_, "Run folder for the trace, or a URL to copy it to (default: nanhunt-SCENARIO); a new attempt if it exists")
        .value_name("RUN");
    options.add("--steps", steps_, "Steps to train (default: the scenario's own)").in_range(1u, 1000000u);
    options.add("--seed", seed_, "Seed of weights and batch order").show_default();
    options.add("--level", level_, "Whether it is watched: ops (every op is heard and written), off")
        .one_of({"ops", "off"})
        .show_default();
    options.add("--device-stats", device_stats_,
                   "On a device: deferred reads every tensor there without a wait, sync copies it to the host")
        .one_of({"deferred", "sync"})
        .show_default();
    options.add("--max-trace-mb", max_trace_mb_,
                   "Keep the trace within so many megabytes (10^6 bytes; at least 5): first and last steps and every "
                   "anomaly stay; others are retired when it is 5/8 full, for a rewrite needs room (default: no limit)")
        .in_range(5u, 1000000000u);
    options.add("--ranks", ranks_,
                "Train on so many ranks, each a process of mpirun with its rows of every batch and a trace of its own. "
                "A scenario that needs several has them in one process otherwise")
        .in_range(1u, 64u);
    options.add("--scaler", scaler_, "Train with another loss scaler than the scenario's: " + scaler_names())
        .value_name("NAME");
    options.add("--precision", precision_,
                "Train in another recipe of mixed precision than the scenario's own, from fp32 weights: fp32, fp16, "
                "bf16, O1, fastai, 16-mixed, ...; `nanhunt compare-precision --list` names them. What repairs a scenario by its "
                "own recipe falls away, and no fixes are tried")
        .value_name("NAME");
    options.add("--rename-seed", rename_seed_, "Randomise every module name (nothing may depend on them)");
    options.add("--device", device_name_, "Where to train: cpu, cuda (the CPU where there is no GPU) or cuda:N").show_default();
    options.add_flag("--anomaly", anomaly_,
                 "Look at what every backward op gives, and stop at the first NaN with PyTorch's words, as its anomaly mode "
                 "does; the report has these words beside the origin");
    options.add_flag("--allow-tf32", allow_tf32_, "On a GPU: fp32 products may round their inputs to TF32");
    options.add_flag("--allow-reduced-sums", allow_reduced_sums_,
                 "On a GPU: 16-bit products may be added up in 16 bits where cuBLAS splits a product");
    options.add_flag("--no-verify", no_verify_, "Do not try fixes on a run that went wrong");
    options.add_flag("--no-captures", no_captures_,
                 "Do not keep the numbers that the failing op read (they may be training data) in the run folder");
    options.add("--recipe", recipe_, "Change the run as a recipe of `nanhunt advise` says; - for stdin")
        .value_name("FILE");
    const Option prove = options.add_flag("--prove-neutral", prove_neutral_,
                                          "Train unwatched and watched, and compare losses, parameters, "
                                          "buffers and optimizer state bit for bit; leaves no trace");
    options.add_flag("--find-lr", find_lr_,
                     "Instead of training: raise the learning rate from 1e-7 to 10 in 100 steps (or --steps) until the "
                     "loss diverges, restore the model, and say what rate to train with");
    const Option list = options.add_flag("--list", list_, "List the scenarios and what each must turn out to be");
    options.add_flag("--json", json_, "Print the outcome as JSON");
    // What a list or a proof has no use for is refused, not ignored. excludes() would say so at every option's help.
    options.after_parsing([options, prove, list] {
      for (const Option& option : options.given()) {
        const std::string name = option.name();
        if (name == "--json") continue;
        if (list.given() && name != list.name()) Options::refuse_together(option, list);
        const bool of_traces = name == "--out" || name == "--level" || name == "--max-trace-mb" ||
                               name == "--no-verify" || name == "--no-captures" || name == "--device-stats" ||
                               name == "--find-lr" || name == "--anomaly" || name == "--ranks";
        if (prove.given() && of_traces) Options::refuse_together(option, prove);
      }
    });
  }

  int run() override {
    if (list_) return print_and_return(scenario_list(json_));
    if (scenario_.empty()) {
      return fail({StatusCode::kUsage, "train: say which scenario. `nanhunt train --list` names them."});
    }
    const Scenario* scenario = scenarios::find_scenario(scenario_);
    if (scenario == nullptr) {
      return fail(
          {StatusCode::kUsage, "train: there is no scenario '" + scenario_ + "'. `nanhunt train --list` names them."});
    }
    if (std::max(ranks_, scenario->ranks) > 1 && (find_lr_ || anomaly_)) {
      return fail({StatusCode::kUsage, fmt::format("train: {} stops one rank while others wait for it. Train a scenario of "
                                                   "one rank, without --ranks.", find_lr_ ? "--find-lr" : "--anomaly")});
    }
    if (Status usable = choose_device(); !usable) return fail(usable);
    if (!scaler_.empty() && !is_scaler(scaler_)) {
      return fail({StatusCode::kUsage, "train: there is no scaler '" + scaler_ + "'. There are " + scaler_names() + "."});
    }
    if (Status chosen = choose_precision(*scenario); !chosen) return fail(chosen);
    if (Status changed = apply_recipe(*scenario); !changed) return fail(changed);
    if (prove_neutral_) return prove(*scenario);
    if (ranks_ != 0 && !started_by_mpirun()) {
      const auto ended = run_under_mpirun(ranks_);
      return ended ? *ended : fail(ended.status());
    }
    if (level_ == "off" && (!out_.empty() || max_trace_mb_ != 0)) {
      say("--level off records nothing: --out and --max-trace-mb have no effect.");
    }
    if (device_stats_ != "deferred" && (device_.is_cpu() || level_ != "ops")) {
      say("--device-stats has no effect on the CPU, nor at --level off.");
    }
    if ((allow_tf32_ || allow_reduced_sums_) && device_.is_cpu()) {
      say("--allow-tf32 and --allow-reduced-sums have no effect on the CPU.");
    }
    if (out_.empty()) out_ = "nanhunt-" + scenario->name;
    if (std::error_code ignored; level_ != "off" && std::filesystem::is_regular_file(out_, ignored)) {
      return fail({StatusCode::kWriteFailed, "train: '" + out_ + "' is a file. Name a folder for the trace."});
    }
    return is_url(out_) && level_ != "off" ? train_and_copy(*scenario) : train(*scenario);
  }

 private:
  int train(const Scenario& scenario) {
    TrainOutcome outcome;
    if (ranks_ != 0) return train_as_rank(scenario);
    if (Status trained = train_all(scenario, outcome); !trained) return fail(trained);
    return tell(scenario, outcome);
  }

  int train_and_copy(const Scenario& scenario) {
    auto upload = Upload::begin(out_);
    if (!upload) return fail(upload.status());
    shown_out_ = std::exchange(out_, upload->folder());
    const int status = train(scenario);
    const Status copied = upload->finish();
    return copied || status != kDone ? status : fail(copied);
  }

  int tell(const Scenario& scenario, TrainOutcome outcome) const {
    if (!shown_out_.empty() && outcome.attempt_dir.starts_with(out_)) outcome.attempt_dir.replace(0, out_.size(), shown_out_);
    if (!outcome.trace_status)
      say(outcome.trace_status.message() + " Training went on; the trace ends where it failed.");
    return print_and_return(json_ ? outcome_json(scenario, outcome)
                                  : outcome_text(scenario, outcome, shown_out_.empty() ? out_ : shown_out_));
  }

  // One process of mpirun. What goes wrong ends it at once, and so the others.
  int train_as_rank(const Scenario& scenario) const {
    auto group = open_mpi_ranks(ranks_);
    if (!group) return fail(group.status());
    const std::uint32_t rank = (*group)->rank();
    TrainOutcome outcome;
    Status trained;
    try {
      trained = train(scenario, with_devices(*group, device_), outcome);
    } catch (const std::exception& lost) {
      trained = {StatusCode::kUsage, fmt::format("train: {}", lost.what())};
    }
    if (!trained) {
      say(fmt::format("rank {}: {}", rank, printable(trained.message())));
      std::_Exit(kRankEnded);  // without MPI's farewell, which waits for all
    }
    return rank == 0 ? tell(scenario, outcome) : kDone;
  }

  Status train_all(const Scenario& scenario, TrainOutcome& outcome) const {
    if (scenario.ranks == 1) return train(scenario, nullptr, outcome);
    std::vector<Status> ended(scenario.ranks);
    try {
      engine::run_ranks(scenario.ranks, [&](const std::shared_ptr<RankGroup>& ranks) {
        TrainOutcome own;
        ended[ranks->rank()] = train(scenario, ranks, own);
        if (!ended[ranks->rank()]) throw std::runtime_error(ended[ranks->rank()].message());
        if (ranks->rank() == 0) outcome = std::move(own);
      });
    } catch (const std::exception& error) {
      for (const Status& status : ended) {
        if (!status) return status;
      }
      return {StatusCode::kUsage, fmt::format("train: {}", error.what())};
    }
    return {};
  }

  scenarios::ScenarioConfig config(const std::string& fix) const {
    scenarios::ScenarioConfig config;
    config.seed = seed_;
    config.rename_seed = rename_seed_;
    config.fix = fix.empty() ? changed_by_ : fix;
    config.device = device_;
    config.scaler = scaler_;
    config.anomaly = anomaly_;
    config.recipe = chosen_recipe_;
    return config;
  }

  static bool is_scaler(const std::string& name) {
    return std::ranges::any_of(engine::named_scalers(), [&](const auto& known) { return known.name == name; });
  }
  static std::string scaler_names() {
    std::string names;
    for (const engine::NamedScaler& known : engine::named_scalers()) {
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    return names;
  }

  // Where no GPU can be used the CPU, the reference, takes its place; one that was asked for by its number is missed.
  Status choose_device() {
    std::optional<engine::Device> device = engine::parse_device(device_name_);
    if (!device) {
      return {StatusCode::kUsage, "train: there is no device '" + device_name_ + "'. Say cpu, cuda or cuda:N."};
    }
    if (device_name_ == "cuda" && started_by_mpirun()) device = device_of_rank();
    const std::string why = engine::why_unusable(*device);
    if (!why.empty() && device_name_ == "cuda") {
      say("cuda cannot be used: " + why + ". Training runs on the CPU instead.");
      device = engine::Device{};
    } else if (!why.empty()) {
      return {StatusCode::kUsage, "train: " + describe(*device) + " cannot be used: " + why + "."};
    }
    device_ = *device;
    engine::set_product_math(device_, {.tf32 = allow_tf32_, .reduced_sums = allow_reduced_sums_});
    return {};
  }

  Status choose_precision(const Scenario& scenario) {
    if (precision_.empty()) return {};
    chosen_recipe_ = engine::find_recipe(precision_);
    if (chosen_recipe_ == nullptr) {
      return {StatusCode::kUsage, "train: there is no recipe '" + precision_ +
                                      "'. `nanhunt compare-precision --list` names them."};
    }
    no_verify_ = true;  // a scenario's fixes are made for its own recipe, and would be told as no help
    const std::string why = scenarios::why_in_its_own_recipe(scenario);
    if (why.empty()) return {};
    return {StatusCode::kUsage, "train: " + scenario.name + " trains in its own recipe alone: " + why +
                                    ". Leave --precision out, or train another."};
  }

  // A scenario knows one change at a time.
  Status apply_recipe(const Scenario& scenario) {
    if (recipe_.empty()) return {};
    const auto recipe = read_recipe(recipe_);
    if (!recipe) return recipe.status();
    for (const std::string& id : recipe->changes) {
      std::string known;
      for (const hunt::Fix& fix : scenario.fixes) {
        known += (known.empty() ? "" : ", ") + fix.id;
        if (fix.id == id && !changed_by_.empty() && changed_by_ != id) {
          return {StatusCode::kUsage, "train: " + scenario.name +
                                          " can be changed in one way at a time, and the recipe says " + changed_by_ +
                                          " and " + id + ". Leave one of them in it."};
        }
        if (fix.id == id) changed_by_ = id;
      }
      if (changed_by_ != id) {
        return {StatusCode::kUsage, "train: the recipe says '" + id + "', which " + scenario.name + " does not know" +
                                        (known.empty() ? "." : ". It knows " + known + ".")};
      }
    }
    if (recipe->changes.empty()) say("the recipe changes nothing: " + scenario.name + " is trained as it is.");
    return {};
  }

  // What is left to try on the changed run.
  std::vector<hunt::Fix> fixes_of(const Scenario& scenario) const {
    std::vector<hunt::Fix> fixes = scenario.fixes;
    std::erase_if(fixes, [&](const hunt::Fix& fix) { return fix.id == changed_by_; });
    return fixes;
  }

  int prove(const Scenario& scenario) const {
    const auto make = [this, &scenario] { return std::move(scenario.make(config("")).trainer); };
    const auto proof = prove_neutral(make, steps_ != 0 ? steps_ : scenario.steps);
    if (!proof) return fail(proof.status());
    const int printed =
        print_and_return(json_ ? neutrality_json(scenario.name, *proof) : neutrality_text(scenario.name, *proof));
    return printed != kDone || proof->neutral() ? printed : kNotNeutral;
  }

  // `ranks`: as one of these; null: alone.
  Status train(const Scenario& scenario, const std::shared_ptr<RankGroup>& ranks, TrainOutcome& outcome) const {
    if (ranks) outcome.ranks = ranks->size();
    std::unique_ptr<Recorder> recorder;
    if (level_ != "off") {
      RecorderOptions options;
      options.run_dir = out_;
      options.writer.retention.max_bytes = std::uint64_t{max_trace_mb_} * 1'000'000;
      auto opened = Recorder::open(options, run_info(scenario, ranks.get()));
      if (!opened) return opened.status();
      recorder = std::move(*opened);
      outcome.attempt_dir = recorder->attempt_dir();
    }
    train_steps(scenario, ranks, recorder.get(), outcome);
    if (outcome.steps == 0 && !outcome.ended_by.empty()) {
      const std::string what = chosen_recipe_ != nullptr ? std::string(chosen_recipe_->name) + " does not take this scenario: " : "";
      if (ranks || !what.empty()) return {StatusCode::kUsage, "train: " + what + outcome.ended_by};
    }
    if (!recorder) return {};
    if (ranks) {
      static_cast<void>(recorder->flush());  // what cannot be written is told when it is closed
      wait_for_all(*ranks);
    }
    hunt_fault(scenario, ranks.get(), *recorder, outcome);
    outcome.trace_status = recorder->close();
    if (ranks) wait_for_all(*ranks);
    outcome.counters = recorder->counters();
    if (outcome.trace_status && outcome.counters.write_errors != 0) {
      outcome.trace_status = {StatusCode::kWriteFailed, outcome.counters.first_write_error};
    }
    if (outcome.trace_status && outcome.hunted && (!ranks || ranks->rank() == 0)) read_whole_trace(outcome);
    return {};
  }

  std::uint32_t steps_of(const Scenario& scenario) const {
    if (steps_ != 0) return steps_;
    return find_lr_ ? engine::LrFinderOptions{}.steps : scenario.steps;
  }

  // With --find-lr its steps are those of a finder, which is its last callback.
  scenarios::ScenarioRun make_run(const Scenario& scenario, const scenarios::ScenarioConfig& config,
                                  const engine::LrFinder** finder = nullptr) const {
    scenarios::ScenarioRun run = scenario.make(config);
    if (!find_lr_) return run;
    auto made = std::make_unique<engine::LrFinder>(*run.trainer, engine::LrFinderOptions{.steps = steps_of(scenario)});
    if (finder != nullptr) *finder = made.get();
    run.trainer->add_callback(std::move(made));
    return run;
  }

  static void wait_for_all(RankGroup& ranks) {
    const std::byte mine{};
    std::vector<std::byte> all(ranks.size());
    ranks.gather({&mine, 1}, all);
  }

  // Traces that were judged for trying fixes had no end yet, and the rank of the headline has tried them.
  void read_whole_trace(TrainOutcome& outcome) const {
    auto analysis = analyze_run(out_);
    if (!analysis) return;
    outcome.hunted->trials.experiments = analysis->experiments;
    outcome.hunted->analysis = std::move(*analysis);
  }

  void train_steps(const Scenario& scenario, const std::shared_ptr<RankGroup>& ranks, Recorder* recorder,
                   TrainOutcome& outcome) const {
    const std::uint32_t steps = steps_of(scenario);
    std::unique_ptr<hooks::KernelWatch> kernels;  // before anything runs on a device
    if (recorder != nullptr && !device_.is_cpu()) {
      auto attached = hooks::KernelWatch::attach();
      if (attached) {
        kernels = std::move(*attached);
      } else {
        recorder->on_note({0, hooks::not_watched_note(attached.status().message()), 1});
      }
    }
    scenarios::ScenarioConfig its = config("");
    its.ranks = ranks;
    const engine::LrFinder* finder = nullptr;
    const scenarios::ScenarioRun run = make_run(scenario, its, &finder);
    std::optional<hooks::TrainerWatch> watch;
    if (recorder != nullptr) {
      watch.emplace(*run.trainer, *recorder,
                    hooks::WatchOptions{.device_stats = *hooks::parse_device_stats(device_stats_),
                                        .kernels = kernels.get()});
    }
    const bool talks = ranks == nullptr || ranks->rank() == 0;
    std::optional<Progress> progress;
    if (talks) progress.emplace("training " + scenario.name, steps);
    for (std::uint32_t i = 0; i < steps; ++i) {
      engine::StepResult result;
      try {
        result = run.trainer->step();
      } catch (const std::invalid_argument& refused) {  // by a scaler that does not fit the scenario
        outcome.ended_by = refused.what();
        break;
      } catch (const engine::AnomalyError& nan) {
        outcome.ended_by = nan.what();
        outcome.by_anomaly = true;
        outcome.steps = i + 1;
        break;
      }
      if (!result.message.empty() && outcome.scaler_messages++ == 0) outcome.scaler_said = result.message;
      if (i == 0) outcome.first_loss = result.loss;
      outcome.last_loss = result.loss;
      if (!std::isfinite(result.loss) && !outcome.first_bad_loss) outcome.first_bad_loss = result.step;
      outcome.steps = i + 1;
      if (progress) progress->update(i + 1, "loss " + reports::format_short(result.loss));
      if (outcome.ended_by = result.ended_by; !outcome.ended_by.empty()) break;
      if (finder != nullptr && finder->finished()) break;
    }
    if (finder != nullptr) outcome.ramp = ramp_of(finder->curve());
    if (outcome.scaler_messages != 0 && talks) {
      say("the loss scaler says: " + printable(outcome.scaler_said) +
          (outcome.scaler_messages == 1 ? "" : fmt::format(" (and {} more)", outcome.scaler_messages - 1)));
    }
    watch.reset();
    if (kernels) kernels->finish(*recorder);
  }

  // Computes the failing op again and tries fixes, where something failed.
  void hunt_fault(const Scenario& scenario, const RankGroup* ranks, Recorder& recorder, TrainOutcome& outcome) const {
    auto replay = hooks::make_engine_replay(
        [&](const std::string& fix) {
          scenarios::ScenarioConfig again = config(fix);
          again.anomaly = false;  // it would stop where what is asked comes after
          if (ranks != nullptr) again = scenarios::with_others(scenario.make, again, ranks->rank(), ranks->size());
          return std::move(make_run(scenario, again).trainer);
        },
        fixes_of(scenario));
    hunt::HuntOptions options;
    if (ranks != nullptr) {
      options.run_dir = out_;
      options.rank = ranks->rank();
    }
    options.try_fixes = !no_verify_;
    options.captures.write = !no_captures_;
    auto hunted = hunt::hunt_run(*replay, recorder, options);
    // A trace that cannot be read back is the report's business to explain; training is done.
    if (!hunted) {
      // That the trace could not be written is said when it is closed.
      if (recorder.counters().write_errors == 0) say(hunted.status().message() + " No fix was tried.");
      return;
    }
    for (const std::string& why : hunted->trials.broken_off) {
      say("a fix could not be tried to its end, so nothing is known of it: " + printable(why));
    }
    if (!hunted->trials.not_tried.empty()) say(hunted->trials.not_tried + ".");
    if (!hunted->not_captured.empty())
      say("the failing op's numbers were not kept: " + printable(hunted->not_captured));
    outcome.hunted = std::move(*hunted);
  }

  RunInfo run_info(const Scenario& scenario, const RankGroup* ranks = nullptr) const {
    RunInfo info = make_run_info();
    if (ranks != nullptr) {
      info.rank = ranks->rank();
      info.world_size = ranks->size();
    }
    info.command = {"nanhunt", "train", scenario.name};
    if (chosen_recipe_ != nullptr) info.command.insert(info.command.end(), {"--precision", std::string(chosen_recipe_->name)});
    info.framework = "nanhunt-engine " + std::string(version());
    info.device = engine::device_details(device_);
    info.level = level_;
    info.scenario = scenario.name;
    info.dtypes = scenario.dtypes;
    if (chosen_recipe_ != nullptr) {
      info.dtypes = {std::string(dtype_name(chosen_recipe_->dtype))};
      if (chosen_recipe_->dtype != DType::kF32) info.dtypes.emplace_back("fp32");
    }
    info.options = {{"seed", std::to_string(seed_)}, {"steps", std::to_string(steps_of(scenario))}};
    if (chosen_recipe_ != nullptr) info.options.emplace_back("precision", chosen_recipe_->name);
    if (find_lr_) info.options.emplace_back("find_lr", "true");
    if (max_trace_mb_ != 0) info.options.emplace_back("max_trace_mb", std::to_string(max_trace_mb_));
    if (!device_.is_cpu()) info.options.emplace_back("device_stats", device_stats_);
    if (rename_seed_) info.options.emplace_back("rename_seed", std::to_string(*rename_seed_));
    if (!changed_by_.empty()) info.options.emplace_back("recipe", changed_by_);
    if (!scaler_.empty()) info.options.emplace_back("scaler", scaler_);
    if (anomaly_) info.options.emplace_back("anomaly", "true");
    return info;
  }

  std::string precision_;
  std::string shown_out_ = {};  // the URL to which `out_` is copied; empty: none
  std::string scenario_, out_, level_ = "ops", recipe_, scaler_, device_name_ = "cpu", device_stats_ = "deferred";
  engine::Device device_;
  const engine::NamedRecipe* chosen_recipe_ = nullptr;  // of --precision
  std::string changed_by_;  // id of the fix that the recipe applies
  std::uint32_t steps_ = 0, ranks_ = 0;  // 0: the scenario's own
  std::uint32_t max_trace_mb_ = 0;
  std::uint64_t seed_ = 1;
  std::optional<std::uint64_t> rename_seed_;
  bool list_ = false, no_verify_ = false, no_captures_ = false, json_ = false, prove_neutral_ = false, find_lr_ = false,
       anomaly_ = false;
  bool allow_tf32_ = false, allow_reduced_sums_ = false;
};

const RegisterVerb<TrainVerb> kTrain{
    {.order = 10,
     .name = "train",
     .summary = "Trains a bundled scenario: real data with a planted fault, or its repaired twin, NAME-fixed",
     .exit_statuses = "  0  trained, whatever became of the numbers\n"
                      "  1  with --prove-neutral: watching changed the run\n  2  wrong usage\n"
                      "  6  the run folder could not be written\n"
                      "  7  --ranks: a rank ended before its work was done, and the others too"}};

}  // namespace
}  // namespace nanhunt::cli
