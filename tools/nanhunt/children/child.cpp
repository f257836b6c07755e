// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/children/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string_view>

#include "src/core/detached_process.h"

namespace nanhunt::cli {
namespace {

constexpr std::array kPassedOn = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// While it lives these signals wait until somebody asks for them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&held_);
    sigaddset(&held_, SIGCHLD);
    for (const int signal : kPassedOn) sigaddset(&held_, signal);
    // An ignored SIGCHLD would take the child's status away; the child gets it back as it was.
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &plain, &child_ended_);
    sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  ~BlockedSignals() {
    // A Ctrl-C meant the child, which has ended: it shall not keep anyone from the report. The next one does.
    const timespec now{};
    while (sigtimedwait(&held_, nullptr, &now) > 0) {
    }
    restore();
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  void restore() const {
    sigaction(SIGCHLD, &child_ended_, nullptr);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  // The next one; its sender in `info`.
  int wait(siginfo_t& info) const {
    int signal = -1;
    do signal = sigwaitinfo(&held_, &info);
    while (signal < 0 && errno == EINTR);
    return signal;
  }

 private:
  sigset_t held_{}, before_{};
  struct sigaction child_ended_ {};
};

// In the child: only calls that are safe after fork. `report` closes by itself when the program starts.
[[noreturn]] void become(char* const* argv, char* const* environment, const BlockedSignals& signals, int report) {
  std::signal(SIGPIPE, SIG_DFL);  // main ignores it, for itself
  signals.restore();
  ::execvpe(argv[0], argv, environment);
  const int error = errno;
  static_cast<void>(!::write(report, &error, sizeof error));
  ::_exit(127);
}

int start_error_of(int report) {
  int error = 0;
  ssize_t n = 0;
  do n = ::read(report, &error, sizeof error);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof error) ? error : 0;
}

int wait_passing_on(pid_t child, const BlockedSignals& signals) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return status;
    siginfo_t info{};
    const int signal = signals.wait(info);
    // Positive codes are the kernel's: a terminal sends to the whole group, so the child has it already.
    if (signal > 0 && signal != SIGCHLD && info.si_code <= 0) ::kill(child, signal);
  }
}

}  // namespace

std::vector<std::string> environment_with(const Environment& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view setting = *entry;
    const std::string_view name = setting.substr(0, setting.find('='));
    bool changed = false;
    for (const auto& [changed_name, value] : changes) changed = changed || changed_name == name;
    if (!changed) merged.emplace_back(setting);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) merged.push_back(name + "=" + value);
  }
  return merged;
}

ChildEnd run_child(const std::vector<std::string>& command, const Environment& environment) {
  std::vector<std::string> words = command, settings = environment_with(environment);
  const std::vector<char*> argv = argv_of(words), envp = argv_of(settings);
  ChildEnd end;
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0) {
    end.start_error = errno;
    return end;
  }
  const BlockedSignals signals;
  const pid_t child = ::fork();
  if (child == 0) become(argv.data(), envp.data(), signals, report[1]);
  if (child < 0) end.start_error = errno;
  ::close(report[1]);
  if (child > 0) {
    end.start_error = start_error_of(report[0]);
    const int status = wait_passing_on(child, signals);
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    end.status = end.signal != 0 ? 128 + end.signal : WEXITSTATUS(status);
  }
  ::close(report[0]);
  return end;
}

}  // namespace nanhunt::cli
