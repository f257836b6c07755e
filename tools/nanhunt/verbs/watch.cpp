// SPDX-License-Identifier: Apache-2.0
// nanhunt watch: a run shown while it goes on, to people, programs and metrics.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "reports/json/json_values.h"
#include "src/core/detached_process.h"
#include "src/core/text.h"
#include "src/fleet/live_run.h"
#include "tools/nanhunt/children/child.h"
#include "tools/nanhunt/environment/python_package.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/children/python_program.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"
#include "tools/nanhunt/watch/live_page.h"

namespace nanhunt::cli {
namespace {

using Seconds = std::chrono::duration<double>;
using Steady = std::chrono::steady_clock;

constexpr double kRestFactor = 10;  // times as long as a look took

int signal_pipe[2] = {-1, -1};  // written to by a handler

// Signals that end the watch, and that of a window of another size. Libraries have threads of their own here, so blocking
// them in this one would not keep them from the process.
class WatchSignals {
 public:
  WatchSignals() {
    if (::pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
    struct sigaction note {};
    note.sa_handler = [](int signal) {
      const int error = errno;
      const auto byte = static_cast<unsigned char>(signal);
      static_cast<void>(!::write(signal_pipe[1], &byte, 1));
      errno = error;
    };
    note.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &note, &before_[i]);
      const bool kept_away = kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN;  // nohup
      if (kept_away) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  ~WatchSignals() {
    if (signal_pipe[0] < 0) return;
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
    for (int& end : signal_pipe) ::close(std::exchange(end, -1));
  }
  WatchSignals(const WatchSignals&) = delete;
  WatchSignals& operator=(const WatchSignals&) = delete;

  // Waits so long at most: the signal that came, or 0.
  int wait(double seconds) const {
    const double milliseconds = std::min(std::ceil(seconds * 1e3), 1e9);
    pollfd polled{signal_pipe[0], POLLIN, 0};
    unsigned char signal = 0;
    static_cast<void>(::poll(&polled, 1, static_cast<int>(milliseconds)));
    return ::read(signal_pipe[0], &signal, 1) == 1 ? signal : 0;
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
  std::array<struct sigaction, kSignals.size()> before_{};
};

int stdout_height() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

bool stdout_is_terminal() {
  const char* const term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

class WatchVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("RUN", run_, "Run folder, also one that is not there yet, or the URL of a run").required();
    options.add("--every", every_, "Seconds between two looks; longer where a look takes more than a tenth of it")
        .value_name("SECONDS")
        .in_range(0.05, 86'400.0)
        .show_default();
    options.add_flag("--once", once_, "Look once");
    options.add_flag("--json", json_, "A JSON object a line, each time something changed (schema nanhunt.watch)");
    options.add("--quiet-after", quiet_after_, "Call a rank quiet after so many seconds without anything new")
        .value_name("SECONDS")
        .in_range(0.05, 1e9)
        .show_default();
    options.add("--otlp", otlp_, "Send metrics to an OpenTelemetry collector, by OTLP over HTTP").value_name("URL");
    options.add("--prometheus", prometheus_, "Offer metrics to Prometheus: a text file for node_exporter, or a port to be asked")
        .value_name("FILE|[HOST:]PORT");
    options.add("--on-fault", on_fault_, "Hand each kind of fault to a URL (JSON is posted) or a command of the shell (JSON on stdin)")
        .value_name("URL|COMMAND");
  }

  int run() override {
    if (std::error_code ignored; std::filesystem::is_regular_file(run_, ignored)) {
      return fail({StatusCode::kUnreadable, "watch: '" + run_ + "' is a file. Name the folder of a run."});
    }
    if (is_url(run_)) {
      url_ = run_;
      const Status fetched = fetch();
      if (!fetched && fetched.code() != StatusCode::kNotFound) return fail(fetched);
    }
    if (const Status started = start_metrics(); !started) return fail(started);
    if (!on_fault_.empty() && find_boot_dir().empty()) {
      return fail({StatusCode::kUsage, "watch: --on-fault needs the Python package, which does not stand beside this program. "
                                       "Name its folder 'boot' in NANHUNT_BOOT_DIR."});
    }
    const int status = watch();
    const ExitStatus written = out_.finish();
    return written == kDone ? status : written;
  }

 private:
  int watch() {
    const WatchSignals signals;
    std::optional<fleet::LiveRun> run;
    for (std::string followed;;) {
      const Steady::time_point began = Steady::now();
      if (!url_.empty() && run) (void)fetch().is_ok();  // what is here already is shown
      if (!run || followed != run_) run.emplace(followed = run_, quiet_after_);
      status_ = run->refresh(fleet::LiveRun::Clock::now());
      const double took = Seconds(Steady::now() - began).count();
      const bool ends = once_ ? !run->behind() : status_.state == fleet::LiveState::kEnded && !run->behind();
      if (!once_ || ends) show();
      feed_metrics();
      hand_over_faults();
      if (ends || out_.closed()) return exit_status();
      for (double rest = std::max(once_ ? 0.0 : every_, kRestFactor * took); rest > 0;) {
        const Steady::time_point from = Steady::now();
        const int signal = signals.wait(rest);
        if (signal != 0 && signal != SIGWINCH) return exit_status();
        if (signal == SIGWINCH) show();
        rest = rest - Seconds(Steady::now() - from).count();
      }
    }
  }

  const std::string& place() const { return url_.empty() ? run_ : url_; }

  // Of a run behind a URL: digests, and traces of ranks that have none.
  Status fetch() {
    auto folder = fetch_run(url_, {.digests = true, .quiet = true});
    if (folder) run_ = std::move(*folder);
    return folder.status();
  }

  void show() {
    if (json_) {
      fleet::LiveStatus lasting = status_;
      lasting.quiet_seconds = 0;
      write_if_new(render_live_json(lasting, place()), render_live_json(status_, place()));
    } else if (terminal_) {
      PageOptions options;
      options.run = place();
      options.width = stdout_width();
      options.height = stdout_height();
      options.colour = stdout_has_colour();
      out_.write(page_.draw(live_page(status_, options), options.width));
    } else {
      const bool quiet = status_.state == fleet::LiveState::kQuiet;
      write_if_new(quiet ? "quiet" : live_line(status_), live_line(status_));
      for (const fleet::LiveFault& fault : status_.faults) {
        if (shown_.insert(fault.key()).second) out_.write("FAULT  " + fault_line(fault, status_.world_size) + "\n");
      }
      if (status_.state == fleet::LiveState::kNotBegun && !said_waiting_ && !once_) {
        said_waiting_ = true;
        say("'" + run_ + "' holds no run yet: waiting for it");
      }
    }
    out_.flush();
  }

  // `state`: what makes a line worth writing.
  void write_if_new(const std::string& state, const std::string& line) {
    if (state == last_) return;
    last_ = state;
    out_.write(line + "\n");
  }

  int exit_status() const {
    if (status_.state == fleet::LiveState::kNotBegun) {
      say("'" + run_ + "' holds no run. Give a run folder made by nanhunt.");
      return kUnreadable;
    }
    if (status_.status == VerdictStatus::kFault) return kFoundFault;
    if (status_.damaged > 0) return kDamagedInput;
    const bool open = status_.status == VerdictStatus::kInconclusive || status_.state == fleet::LiveState::kQuiet;
    return open ? kInconclusive : kDone;
  }

  Status start_metrics() {
    if (otlp_.empty() && prometheus_.empty()) return {};
    std::vector<std::string> words;
    if (!otlp_.empty()) words.insert(words.end(), {"--otlp", otlp_});
    if (!prometheus_.empty()) words.insert(words.end(), {"--prometheus", prometheus_});
    Result<PythonProgram> program = PythonProgram::start("nanhunt.metrics", words, PythonProgram::Terminal::kApart);
    if (!program) return {StatusCode::kUsage, "watch: " + program.status().message()};
    metrics_.emplace(std::move(*program));
    if (metrics_->read_line() == "ready") return {};
    metrics_.reset();
    return {StatusCode::kUsage, "watch: metrics cannot be offered, for the reason above."};
  }

  void feed_metrics() {
    if (!metrics_ || metrics_->write_line(render_live_json(status_, place()))) return;
    metrics_.reset();
    say("the program that offers metrics has ended; the watch goes on without it");
  }

  // Each kind of fault once.
  void hand_over_faults() {
    if (on_fault_.empty()) return;
    const std::string run = url_.empty() ? std::filesystem::absolute(run_).string() : url_;
    for (const fleet::LiveFault& fault : status_.faults) {
      if (!handed_over_.insert(fault.key()).second) continue;
      const nlohmann::json text = {{"schema", "nanhunt.fault"},
                                   {"schema_version", 1},
                                   {"run", reports::json_text(run)},
                                   {"rank", fault.rank},
                                   {"step", fault.step},
                                   {"headline", reports::json_text(fault.title)},
                                   {"class", reports::json_text(fault.cls)},
                                   {"op", reports::json_text_or_null(fault.op)},
                                   {"module", reports::json_text_or_null(fault.module)},
                                   {"call_site", reports::json_text_or_null(fault.call_site)},
                                   {"report", reports::json_text("nanhunt report " + shell_word(run))}};
      const char* const python = std::getenv("NANHUNT_PYTHON");
      const std::string package = std::filesystem::path(find_boot_dir()).parent_path().string();
      DetachedProgram program;
      program.command = {python != nullptr && *python != '\0' ? python : "python3", "-I", "-S", package + "/on_fault/__main__.py", on_fault_};
      program.environment = environment_with({});
      program.input = reports::dump_json(text, -1);
      program.output = STDERR_FILENO;
      if (const int error = start_detached(program); error != 0) {
        say("--on-fault: '" + program.command[0] + "' could not be started: " + std::strerror(error) + ". Name a Python in NANHUNT_PYTHON.");
      }
    }
  }

  std::string run_, url_, otlp_, prometheus_, on_fault_;
  double every_ = 2, quiet_after_ = 60;
  bool once_ = false, json_ = false, said_waiting_ = false;
  const bool terminal_ = stdout_is_terminal();
  fleet::LiveStatus status_;
  DataOut out_;
  PageOnTerminal page_;
  std::string last_;
  std::set<std::string> shown_, handed_over_;
  std::optional<PythonProgram> metrics_;
};

const RegisterVerb<WatchVerb> kWatch{
    {.order = 12,
     .name = "watch",
     .summary = "Shows a run while it goes on: steps, loss, scale, ranks, faults as they come",
     .exit_statuses = "  0  no fault\n"
                      "  1  a fault\n"
                      "  2  wrong usage, or metrics that cannot be offered\n"
                      "  3  nothing is there\n"
                      "  4  something is damaged, and no fault is in the rest\n"
                      "  5  inconclusive; also where nothing new comes any more\n"
                      "  6  stdout could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
