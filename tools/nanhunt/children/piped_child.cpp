// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/children/piped_child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "src/core/detached_process.h"

namespace nanhunt::cli {
namespace {

struct Pipe {
  int read = -1, write = -1;

  bool open() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  ~Pipe() {
    close_end(read);
    close_end(write);
  }
};

}  // namespace

void close_end(int& end) {
  if (end >= 0) ::close(end);
  end = -1;
}

void end_with_parent() {
  const char* const parent = std::getenv(kParent);
  if (parent == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(::getppid()) != parent) std::_Exit(128 + SIGKILL);  // it has ended meanwhile
  ::unsetenv(kParent);
}

PipedChild start_piped(PipedProgram program) {
  PipedChild child;
  Pipe in, out, errors;
  if ((program.reads_input && !in.open()) || !out.open() || (program.pipes_errors && !errors.open())) {
    child.start_error = errno;
    return child;
  }
  posix_spawn_file_actions_t actions{};
  posix_spawn_file_actions_init(&actions);
  if (program.reads_input) {
    posix_spawn_file_actions_adddup2(&actions, in.read, STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  if (program.pipes_errors) posix_spawn_file_actions_adddup2(&actions, errors.write, STDERR_FILENO);
  posix_spawnattr_t attributes{};
  posix_spawnattr_init(&attributes);
  if (program.own_group) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const std::vector<char*> argv = argv_of(program.command), envp = argv_of(program.environment);
  child.start_error = ::posix_spawnp(&child.pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (child.start_error != 0) {
    child.pid = -1;
    return child;
  }
  child.input = std::exchange(in.write, -1);
  child.output = std::exchange(out.read, -1);
  child.errors = std::exchange(errors.read, -1);
  return child;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace nanhunt::cli
