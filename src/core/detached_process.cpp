// SPDX-License-Identifier: Apache-2.0
#include "src/core/detached_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

namespace nanhunt {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

struct Start {
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  int input = -1, output = -1, null = -1;
  std::byte* stack = nullptr;  // two of them
  int error = 0;               // memory is shared: the caller reads it
};

std::byte* top(std::byte* stack) { return stack + kStackBytes; }  // mapped memory: aligned

// In the process that becomes the program: system calls alone.
int become_detached(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &plain, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::setsid();
  const int output = start.output >= 0 ? start.output : start.null;
  const bool wired = ::dup2(start.input, STDIN_FILENO) >= 0 && ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(output, STDERR_FILENO) >= 0;
  if (wired) {
    ::close_range(STDERR_FILENO + 1, ~0u, 0);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvpe(start.argv[0], start.argv, start.environment);
  }
  start.error = errno;
  ::_exit(127);
}

// In the process between: what it starts has no parent once it has ended.
int start_and_leave(void* argument) {
  auto& start = *static_cast<Start*>(argument);
  if (::clone(become_detached, top(start.stack + kStackBytes), CLONE_VM | CLONE_VFORK | SIGCHLD, argument) < 0) start.error = errno;
  ::_exit(0);
}

// A file in memory that holds `text`, above the standard descriptors; -1: none.
int file_of(const std::string& text) {
  const int made = ::memfd_create("nanhunt", MFD_CLOEXEC);
  if (made < 0) return -1;
  const int file = ::fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::close(made);
  const bool written = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::lseek(file, 0, SEEK_SET) == 0;
  if (!written && file >= 0) ::close(file);
  return written ? file : -1;
}

}  // namespace

std::vector<char*> argv_of(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

int start_detached(const DetachedProgram& program) {
  std::vector<std::string> words = program.command, settings = program.environment;
  const std::vector<char*> argv = argv_of(words), environment = argv_of(settings);
  Start start;
  start.argv = argv.data();
  start.environment = environment.data();
  start.input = file_of(program.input);
  if (start.input < 0) return errno != 0 ? errno : EIO;
  const int opened = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  start.null = opened < 0 ? -1 : ::fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (opened >= 0) ::close(opened);
  start.output = program.output;
  void* const stacks = ::mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (start.null < 0 || stacks == MAP_FAILED) {
    start.error = errno;
  } else {
    start.stack = static_cast<std::byte*>(stacks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler of ours runs where memory is shared
    // Without an ending signal, so that neither SIGCHLD nor a plain wait() ever speaks of it.
    const pid_t between = ::clone(start_and_leave, top(start.stack), CLONE_VM | CLONE_VFORK, &start);
    if (between < 0) start.error = errno;
    if (between > 0) {
      while (::waitpid(between, nullptr, __WCLONE) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (stacks != MAP_FAILED) ::munmap(stacks, 2 * kStackBytes);
  if (start.null >= 0) ::close(start.null);
  ::close(start.input);
  return start.error;
}

}  // namespace nanhunt
