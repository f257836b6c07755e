// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <sstream>

#include "tests/support/temp_dir.h"

namespace nanhunt::testing_tools {
namespace {

struct Pipe {
  int read_end = -1, write_end = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  return {ends[0], ends[1]};
}

// In the child: only calls that are safe after fork.
[[noreturn]] void become_program(char* const* argv, char* const* environment, int out, int err, const char* stdout_to) {
  if (stdout_to != nullptr) out = ::open(stdout_to, O_WRONLY | O_CREAT, 0644);
  if (out < 0 || ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0) ::_exit(126);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(argv[0], argv, environment);
  ::_exit(127);
}

void read_both(Pipe out, Pipe err, bool close_early, Outcome& outcome) {
  std::array<pollfd, 2> polled = {pollfd{out.read_end, POLLIN, 0}, pollfd{err.read_end, POLLIN, 0}};
  std::array<std::string*, 2> into = {&outcome.out, &outcome.err};
  std::array<char, 65536> buffer{};
  for (int open = 2; open > 0;) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) std::abort();
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      const std::size_t wanted = close_early && i == 0 ? 1 : buffer.size();
      const ssize_t n = ::read(polled[i].fd, buffer.data(), wanted);
      if (n > 0) into[i]->append(buffer.data(), static_cast<std::size_t>(n));
      if (n > 0 && !(close_early && i == 0)) continue;
      ::close(polled[i].fd);
      polled[i].fd = -1;
      --open;
    }
  }
}

}  // namespace

Outcome run_nanhunt(const std::vector<std::string>& arguments, const RunOptions& options) {
  std::vector<std::string> words = {NANHUNT_BIN_DIR "/nanhunt"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = {"PATH=/usr/bin:/bin", "LC_ALL=C"};
  for (const char* kept : {"LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = std::getenv(kept)) environment.push_back(std::string(kept).append("=").append(value));
  }
  environment.insert(environment.end(), options.environment.begin(), options.environment.end());
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& setting : environment) envp.push_back(setting.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const Pipe out = make_pipe(), err = make_pipe();
  const char* stdout_to = options.stdout_to.empty() ? nullptr : options.stdout_to.c_str();
  const pid_t child = ::fork();
  if (child == 0) become_program(argv.data(), envp.data(), out.write_end, err.write_end, stdout_to);
  ::close(out.write_end);
  ::close(err.write_end);
  Outcome outcome;
  read_both(out, err, options.close_stdout_early, outcome);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

std::string make_folder() {
  static std::deque<testing_support::TempDir> folders;
  return folders.emplace_back().path();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace nanhunt::testing_tools
