// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/ending_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "src/hunt/step_judge.h"
#include "src/record/recorder.h"

namespace nanhunt::c_api {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGHUP};
constexpr int kMostSeconds = 2;  // that the end may be put off
constexpr int kWaitMs = 300;     // that the interrupted thread stands still for the file

std::mutex g_mutex;
record::NumberingRecorder* g_recorder = nullptr;  // under the mutex, also while it is flushed
std::filesystem::path g_attempt;                  // its folder, wherever the program goes
const hunt::StepJudge* g_judge = nullptr;         // of its steps
bool g_ends_between = false;
std::atomic<pid_t> g_pid{0};                      // in which the thread below runs
std::atomic<int> g_came{0};
int g_wake = -1;
std::array<timer_t, kSignals.size()> g_timers;  // of each signal

// As it would have been without us. Only what a signal's handler may do.
void end_by(int signal) noexcept {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(signal, &plain, nullptr);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::kill(::getpid(), signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void came(int signal) {
  const int saved = errno;
  int first = 0;
  // In a forked child there is no thread that flushes. A second signal, or the timer's, waits for nothing.
  if (g_pid.load() != ::getpid() || !g_came.compare_exchange_strong(first, signal)) return end_by(first != 0 ? first : signal);
  itimerspec in_time{};
  in_time.it_value.tv_sec = kMostSeconds;
  const std::uint64_t one = 1;
  timer_t& timer = g_timers[signal == kSignals[0] ? 0 : 1];
  if (::timer_settime(timer, 0, &in_time, nullptr) != 0 || ::write(g_wake, &one, sizeof one) != sizeof one) return end_by(signal);
  // The program must not go on as if nothing had come. But this thread may be recording: then nobody else can before it
  // has returned.
  ::poll(nullptr, 0, kWaitMs);
  errno = saved;
}

// The attempt, and the folders of its rank and run where they are empty then.
void remove_attempt(const std::filesystem::path& attempt) {
  std::error_code ignored;
  std::filesystem::remove_all(attempt, ignored);
  for (const auto& above : {attempt.parent_path(), attempt.parent_path().parent_path()})
    std::filesystem::remove(above, ignored);
}

void end(record::NumberingRecorder& recorder) {
  if (g_judge != nullptr && g_judge->state() == hunt::StepState::kBegun) return remove_attempt(g_attempt);
  if (g_judge != nullptr && g_ends_between && !g_judge->is_open()) {
    (void)recorder.close();
  } else {
    (void)recorder.flush();
  }
}

void flush_when_woken() noexcept {
  std::uint64_t count = 0;
  while (::read(g_wake, &count, sizeof count) != sizeof count) {
    if (errno != EINTR) return;
  }
  {
    const std::lock_guard lock(g_mutex);
    try {
      if (g_recorder != nullptr) end(*g_recorder);
    } catch (...) {  // no memory: what was written before is there
    }
  }
  end_by(g_came.load());
}

// Once a process. The thread waits for as long as the process lives.
bool start() {
  if (g_pid.load() == ::getpid()) return true;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigevent at_end{};
    at_end.sigev_notify = SIGEV_SIGNAL;
    at_end.sigev_signo = kSignals[i];
    if (::timer_create(CLOCK_MONOTONIC, &at_end, &g_timers[i]) != 0) return false;
  }
  g_wake = ::eventfd(0, EFD_CLOEXEC);
  if (g_wake < 0) return false;
  g_came.store(0);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(flush_when_woken).detach();
    g_pid.store(::getpid());
  } catch (...) {  // no thread, no handlers
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return g_pid.load() == ::getpid();
}

}  // namespace

bool flush_at_ending_signals(record::NumberingRecorder* recorder) noexcept {
  try {
    const std::lock_guard lock(g_mutex);
    if (!start()) return false;
    g_recorder = recorder;
    g_judge = nullptr;
    g_attempt = std::filesystem::absolute(recorder->attempt_dir());
    for (const int signal : kSignals) {
      struct sigaction now {}, ours {};
      if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) continue;
      ours.sa_handler = came;
      ours.sa_flags = SA_RESTART | SA_ONSTACK;
      ::sigemptyset(&ours.sa_mask);
      ::sigaction(signal, &ours, nullptr);
    }
    return true;
  } catch (...) {
    return false;
  }
}

void judge_at_ending_signals(const record::NumberingRecorder* recorder, const hunt::StepJudge* judge,
                             bool ends_between) noexcept {
  if (recorder == nullptr || recorder->in_forked_child()) return;
  try {
    const std::lock_guard lock(g_mutex);
    if (g_recorder != recorder) return;
    g_judge = judge;
    g_ends_between = ends_between;
  } catch (...) {
  }
}

void forget_ending_signals(const record::NumberingRecorder* recorder) noexcept {
  // In a forked child whoever held the mutex is not there.
  if (recorder == nullptr || recorder->in_forked_child()) return;
  try {
    const std::lock_guard lock(g_mutex);
    if (g_recorder != recorder) return;
    g_recorder = nullptr;
    g_judge = nullptr;
    for (const int signal : kSignals) {
      struct sigaction now {}, plain {};
      if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != came) continue;
      plain.sa_handler = SIG_DFL;
      ::sigaction(signal, &plain, nullptr);
    }
  } catch (...) {
  }
}

}  // namespace nanhunt::c_api
