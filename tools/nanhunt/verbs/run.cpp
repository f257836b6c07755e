// SPDX-License-Identifier: Apache-2.0
// nanhunt run: runs a command, lets the Python package attach to what trains in it, and says what was found.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nanhunt/trace.h"
#include "reports/json/json_values.h"
#include "reports/views/wording.h"
#include "src/core/redact.h"
#include "src/core/text.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/boot_log.h"
#include "tools/nanhunt/children/child.h"
#include "tools/nanhunt/environment/python_package.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kDefaultRun = "nanhunt-run";
constexpr int kMostDefaultRuns = 10'000;
constexpr std::size_t kMostOtherFindings = 4;
constexpr int kCouldNotStart = 127;

// The attempts that there are, by folder.
std::set<std::string> attempts_in(const std::string& run) {
  std::set<std::string> folders;
  if (const auto attempts = find_attempts(run)) {
    for (const AttemptTrace& attempt : *attempts) folders.insert(attempt.dir);
  }
  return folders;
}

// The option by which a Python was told to ignore PYTHONPATH or start-up files: "-I", "-E", "-S", or empty.
std::string isolating_option(const std::vector<std::string>& command) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string name = fs::path(command[i]).filename().string();
    if (!name.starts_with("python") && !name.starts_with("pypy")) continue;
    for (std::size_t k = i + 1; k < command.size() && command[k].size() > 1 && command[k][0] == '-'; ++k) {
      for (const char c : command[k].substr(1)) {
        if (c == 'I' || c == 'E' || c == 'S') return std::string("-") + c;
        if (c == '-' || c == 'c' || c == 'm' || c == 'W' || c == 'X') break;
      }
      if (command[k] == "-W" || command[k] == "-X") ++k;
      if (command[k].starts_with("-c") || command[k].starts_with("-m")) break;
    }
  }
  return "";
}

// A signal's name for people: "SIGSEGV".
std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

class RunVerb final : public Verb {
 public:
  void declare(Options options) override {
    options_ = options;
    options.allow_unknown();  // refused in run(), with a better word
    options.add("--level", level_,
                   "What is heard: live (every op of every step, written where a step is bad, the first, or given up), ops "
                   "(the same, and all of it written), steps (loss, gradients, scaler and parameters alone)")
        .one_of({"live", "ops", "steps"})
        .show_default();
    options.add("--out", out_, "Run folder for the trace, or a URL to copy it to; a new attempt if it exists (default: a "
                               "new nanhunt-run, nanhunt-run-2, ... here)")
        .value_name("RUN");
    options.add("--budget", budget_, "At level live: percent of the time that hearing ops may take. Steps without room are "
                                     "left out, but for the first and those after a bad one (default: none is left out)")
        .value_name("PERCENT");
    options.add("--keep", keep_, "Steps whose norms are kept in memory, and written when one goes bad (default: 16)")
        .value_name("K")
        .in_range(1u, 1'000'000u);
    options.add_flag("--kernels", kernels_,
                 "Name the kernels that an NVIDIA GPU ran for an op, through CUPTI, at level ops");
    options.add_flag("--eager", eager_,
                 "Run with torch.compile off (TORCH_COMPILE_DISABLE=1): each op is heard as it is written");
    options.add("--error-exitcode", error_exitcode_, "Exit with N, not COMMAND's status, when a fault was found")
        .value_name("N")
        .in_range(1, 255);
    options.add_flag("--strict", strict_,
                 "Exit with 5, not 0, where no fault was found and not all could be judged, also when nothing was "
                 "recorded");
    options.add("--max-trace-mb", max_trace_mb_,
                   "Keep each trace within so many megabytes (10^6 bytes; at least 5; default: 1024)")
        .in_range(5u, 1'000'000'000u);
    options.add("--config", config_, "TOML file that names what is harmless in this run (default: nanhunt.toml beside the program)")
        .value_name("FILE");
    options.add_flag("--stop-on-fault", stop_on_fault_,
                     "End the process after the first step with a fault, once it is recorded, with status 10");
    options.add("--on-fault", on_fault_, "Hand each fault, while the run goes on, to a URL (JSON is posted) or a command of "
                                         "the shell (JSON on stdin); nothing waits for it")
        .value_name("URL|COMMAND");
    options.add_flag("--guard-checkpoints", guard_checkpoints_, "Judge each checkpoint that is saved, say which is bad, and keep a copy of the newest good one in the run folder");
    options.add("--log-to", log_to_, "auto: write bad steps, scale and more to the experiment trackers that the program has open; off: to none").one_of({"auto", "off"}).show_default();
    options.add_flag("--quiet", quiet_, "Say nothing while the run goes on: what was found is said at its end");
    options.add_flag("--no-captures", no_captures_,
                 "Do not keep the numbers that a failing op read (they may be training data) in the run folder");
  }

  void take_command(std::vector<std::string> command) override { command_ = std::move(command); }

  int run() override {
    if (Status usable = check_usage(); !usable) return fail(usable);
    if (std::error_code ignored; fs::is_regular_file(out_, ignored)) {
      return fail({StatusCode::kWriteFailed, "run: '" + out_ + "' is a file. Name a folder for the trace."});
    }
    const BootLogFile boot_log;
    const std::string boot_dir = find_boot_dir();
    begin_upload();
    const bool watched = can_be_watched(boot_dir);
    const std::set<std::string> before = watched ? attempts_in(out_) : std::set<std::string>();
    const ChildEnd end = run_child(command_, watched ? environment(boot_dir, boot_log.path()) : Environment());
    if (end.start_error != 0) {
      if (made_out_) remove_empty();
      end_upload();
      say("run: '" + command_[0] + "' could not be started: " + std::strerror(end.start_error) +
          ". Check its spelling, PATH and permissions.");
      return kCouldNotStart;
    }
    if (end.signal != 0) say("'" + command_[0] + "' was ended by " + signal_name(end.signal) + ".");
    const int unknown = strict_ && end.status == 0 ? static_cast<int>(kInconclusive) : end.status;
    if (!watched) return unknown;
    const std::set<std::string> after = attempts_in(out_);
    if (std::includes(before.begin(), before.end(), after.begin(), after.end())) {
      explain_nothing(boot_log.read());
      if (made_out_) remove_empty();
      end_upload();
      return unknown;
    }
    const VerdictStatus found = tell_findings();
    end_upload();
    switch (found) {
      case VerdictStatus::kFault: return error_exitcode_ != 0 ? error_exitcode_ : end.status;
      case VerdictStatus::kInconclusive: return unknown;
      default: return end.status;
    }
  }

 private:
  Status check_usage() const {
    const std::string how = "`nanhunt run [OPTIONS] -- COMMAND ...`. See `nanhunt run --help`.";
    if (!budget_.empty() && !is_percentage(budget_)) {
      return {StatusCode::kUsage,
              "run: --budget: expected percent of the time, from 0 to 100, got '" + budget_ + "': `--budget 3%`. " +
                  "See `nanhunt run --help`."};
    }
    if (std::error_code ignored; !config_.empty() && !fs::is_regular_file(config_, ignored)) {
      return {StatusCode::kUsage, "run: --config: there is no file '" + config_ + "'. See `nanhunt run --help`."};
    }
    if (const auto extras = options_->unknown(); !extras.empty()) {
      std::string words;
      for (const std::string& word : extras) words += (words.empty() ? "" : " ") + word;
      const bool option = extras.front().starts_with('-');
      const std::string wrong = option ? "run: there is no option '" + words + "'. The command stands after `--`: "
                                       : "run: put `--` before the command '" + words + "': ";
      return {StatusCode::kUsage, wrong + how};
    }
    if (command_.empty() || command_[0].empty()) {
      return {StatusCode::kUsage, "run: say what to run, after `--`: " + how};
    }
    return {};
  }

  void begin_upload() {
    if (!is_url(out_)) return;
    if (auto upload = Upload::begin(out_)) {
      upload_.emplace(std::move(*upload));
      url_ = std::exchange(out_, upload_->folder());
    } else {
      say(upload.status().message());
      say("the run is recorded in a folder here instead.");
      out_.clear();
    }
  }

  void end_upload() {
    if (!upload_) return;
    say("copying what is left to " + shown_url(url_) + " (Ctrl-C: it goes on in the background)");
    const Status copied = upload_->finish();
    say(copied ? "report: `nanhunt report " + shell_word(url_) + "`" : copied.message());
    upload_.reset();
  }

  // Whatever is in the way of watching keeps nobody from training.
  bool can_be_watched(const std::string& boot_dir) {
    if (boot_dir.empty()) {
      say("the Python package does not stand beside this program, so the run goes unwatched. Install both with `pip "
          "install .`, or name the package's folder 'boot' in NANHUNT_BOOT_DIR.");
      return false;
    }
    if (boot_dir.find(':') != std::string::npos) {
      say("'" + boot_dir +
          "' has a ':' in it, which PYTHONPATH cannot hold, so the run goes unwatched. Install nanhunt elsewhere.");
      return false;
    }
    std::error_code error;
    if (out_.empty()) {
      for (int i = 1; i <= kMostDefaultRuns && !made_out_ && !error; ++i) {
        out_ = std::string(kDefaultRun) + (i == 1 ? "" : "-" + std::to_string(i));
        made_out_ = fs::create_directory(out_, error);
        if (error == std::errc::file_exists) error.clear();  // a file of that name
      }
    } else {
      made_out_ = fs::create_directories(out_, error);
    }
    if (!error && ::access(out_.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
    if (error) {
      say("cannot write into the run folder '" + out_ + "': " + error.message() +
          ". The run goes unwatched; name another folder with --out.");
      return false;
    }
    return true;
  }

  Environment environment(const std::string& boot_dir, const std::string& boot_log) const {
    const std::string boot = fs::absolute(boot_dir).string();
    const char* path = std::getenv("PYTHONPATH");
    // An empty entry would be the working directory.
    const std::string rest = path != nullptr && *path != '\0' ? std::string(":") + path : "";
    const auto number = [](std::uint32_t n) { return n == 0 ? std::string() : std::to_string(n); };
    Environment settings = {
        {"PYTHONPATH", boot + rest},
        {"NANHUNT_RUN_DIR", fs::absolute(out_).string()},
        {"NANHUNT_RUN_ID", run_id()},
        {"NANHUNT_LEVEL", level_},
        {"NANHUNT_BUDGET", budget_},
        {"NANHUNT_KEEP", number(keep_)},
        {"NANHUNT_MAX_TRACE_MB", number(max_trace_mb_)},
        {"NANHUNT_CAPTURES", no_captures_ ? "0" : ""},
        {"NANHUNT_CONFIG", config_.empty() ? "" : fs::absolute(config_).string()},
        {"NANHUNT_STOP_ON_FAULT", stop_on_fault_ ? "1" : ""},
        {"NANHUNT_RUN_URL", upload_ ? url_ : ""},
        {"NANHUNT_COMMAND", reports::dump_json(redacted_command(), -1)},
        {"NANHUNT_BOOT_LOG", boot_log}};
    // Without the option the user's own stays.
    if (kernels_) settings.emplace_back("NANHUNT_KERNELS", "1");
    if (eager_) settings.emplace_back("TORCH_COMPILE_DISABLE", "1");
    if (guard_checkpoints_) {
      std::error_code unknown;
      settings.emplace_back("NANHUNT_GUARD_CHECKPOINTS", "1");
      settings.emplace_back("NANHUNT_PROGRAM", std::filesystem::read_symlink("/proc/self/exe", unknown).string());
    }
    if (log_to_ == "off") settings.emplace_back("NANHUNT_LOG_TO", "off");
    if (quiet_) settings.emplace_back("NANHUNT_QUIET", "1");
    if (!on_fault_.empty()) settings.emplace_back("NANHUNT_ON_FAULT", on_fault_);
    return settings;
  }

  // Of all processes of this run, so that what each of them recorded is judged together.
  static std::string run_id() {
    return std::to_string(::getpid()) + "-" + std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
  }

  json redacted_command() const {
    json words = json::array();
    std::vector<std::string> command = command_;
    redact_command(command);
    for (const std::string& word : command) words.push_back(reports::json_text(word));
    return words;
  }

  void remove_empty() const {
    std::error_code ignored;
    fs::remove(out_, ignored);  // only an empty folder
  }

  // Why there is no trace, and what to do about it.
  void explain_nothing(const BootLog& log) const {
    const std::string by_hand =
        " Or attach by hand: `import nanhunt; nanhunt.watch(model, optimizer, out=\"" + out_ + "\")`.";
    if (!log.failures.empty()) {
      for (const std::string& failure : log.failures) say("could not attach: " + failure);
      say("nothing was recorded; the run itself was not disturbed.");
    } else if (log.attached > 0) {
      say("nothing was recorded: torch was imported, but no model was called (no module that has parameters), and no "
          "optimizer stepped.");
    } else if (log.started > 0) {
      say("nothing was recorded: " + (log.started == 1 ? "the Python that ran did not import torch."
                                                       : "none of the " + std::to_string(log.started) +
                                                             " Pythons that ran imported torch."));
    } else if (const std::string option = isolating_option(command_); !option.empty()) {
      say("nothing was recorded: Python's " + option +
          " keeps it from reading PYTHONPATH or start-up files, by which nanhunt attaches. Run it without " + option +
          "." + by_hand);
    } else {
      say("nothing was recorded: no Python started here read nanhunt's start-up file, which PYTHONPATH names.");
      say("where Python did train, let the program add to PYTHONPATH (`export PYTHONPATH=src:$PYTHONPATH`) and start it "
          "without -I, -E, -S, sudo or a container." + by_hand);
    }
  }

  // A short word on stderr, the report beside the trace. The verdict; a fault where any finding is one.
  VerdictStatus tell_findings() const {
    const auto analysis = load_analysis(out_);
    if (!analysis) {
      say(analysis.status().message());
      return VerdictStatus::kInconclusive;
    }
    say(verdict_line(*analysis));
    const auto& findings = analysis->findings;
    std::size_t others = 0;
    for (const Finding& finding : findings) {
      if (finding.severity == Severity::kInfo || finding.id == analysis->verdict.origin) continue;
      if (++others > kMostOtherFindings) continue;
      say("also, " + std::string(severity_name(finding.severity)) + ": " + finding.title + call_site_text(finding));
    }
    if (others > kMostOtherFindings) say("and " + std::to_string(others - kMostOtherFindings) + " more");
    if (const Finding* origin = origin_of(*analysis)) {
      const auto advice = std::find_if(origin->advice.begin(), origin->advice.end(),
                                       [](const Advice& a) { return tried(a) != Tried::kFailed; });
      if (advice != origin->advice.end()) {
        const Tried seen = tried(*advice);
        say("try: " + advice->text + (seen == Tried::kNotTried ? "" : " (" + std::string(reports::tried_phrase(seen)) + ")"));
      }
    }
    const ReportFiles files = report_files(out_);
    if (const Status written = upload_ ? Status() : write_reports(*analysis, files); !written) {
      say(written.message());
    } else if (!upload_) {
      say("report: " + files.html + " (for programs: " + files.json + "); `nanhunt report " + shell_word(out_) + "` prints it");
    }
    const auto is_fault = [](const Finding& finding) { return finding.severity == Severity::kFault; };
    if (std::any_of(findings.begin(), findings.end(), is_fault)) return VerdictStatus::kFault;
    const std::string& unjudged = analysis->coverage.unjudged;
    if (unjudged.empty()) return analysis->verdict.status;
    // Beside a warning, too, what was not judged may hold a fault.
    if (analysis->verdict.status == VerdictStatus::kWarning) {
      say("beside this not all could be judged: " + printable(unjudged));
    }
    return VerdictStatus::kInconclusive;
  }

  static const Finding* origin_of(const Analysis& analysis) {
    const auto found = std::find_if(analysis.findings.begin(), analysis.findings.end(),
                                    [&](const Finding& f) { return f.id == analysis.verdict.origin; });
    return found == analysis.findings.end() ? nullptr : &*found;
  }

  std::optional<Options> options_;
  std::vector<std::string> command_;
  // "3", "3%", "0.5%".
  static bool is_percentage(std::string text) {
    if (text.ends_with('%')) text.pop_back();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= 100;
  }

  std::string level_ = "live", out_, url_, budget_, config_, on_fault_, log_to_ = "auto";  // `url_`: of what is recorded in `out_`
  std::optional<Upload> upload_;
  std::uint32_t keep_ = 0, max_trace_mb_ = 0;  // 0: not given
  int error_exitcode_ = 0;
  bool no_captures_ = false, kernels_ = false, eager_ = false, stop_on_fault_ = false, quiet_ = false, guard_checkpoints_ = false;
  bool strict_ = false;
  bool made_out_ = false;  // by us, in this run
};

const RegisterVerb<RunVerb> kRun{
    {.order = 5,
     .name = "run",
     .summary = "Runs a command, watches what PyTorch trains, generates or evaluates in it, and keeps its exit status: "
                "nanhunt run [OPTIONS] -- python train.py",
     .exit_statuses = "  0  and any other: the command's own; 128 + N when signal N ended it\n"
                      "  N  of --error-exitcode: a fault was found\n  2  wrong usage\n"
                      "  5  --strict: inconclusive, or nothing was recorded, where the command's own is 0\n"
                      "  6  --out is a file\n  10  --stop-on-fault: the run was ended at its first fault\n  127  the "
                      "command could not be started",
     .takes_command = true}};

}  // namespace
}  // namespace nanhunt::cli
