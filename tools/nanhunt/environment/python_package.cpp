// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/environment/python_package.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kPatience{120};  // importing torch from a slow disk
constexpr std::size_t kMostBytes = 256 * 1024;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

struct Printed {
  std::string text;
  std::string why_not;  // it could not be started, took too long or failed
};

// The child has ended, or is ended, when this returns.
std::string wait_for(pid_t child, bool too_long) {
  if (too_long) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (too_long) return "it did not answer within " + std::to_string(kPatience.count()) + " s";
  if (WIFSIGNALED(status)) return "it was ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "it ended with status " + std::to_string(WEXITSTATUS(status));
  return "";
}

Printed output_of(std::vector<std::string> command) {
  Printed printed;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    printed.why_not = std::strerror(errno);
    return printed;
  }
  posix_spawn_file_actions_t actions{};
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error == 0) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    bool too_long = false;
    std::array<char, 4096> bytes{};
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd waited{.fd = ends[0], .events = POLLIN, .revents = 0};
      const int ready = left.count() <= 0 ? 0 : ::poll(&waited, 1, static_cast<int>(left.count()));
      if (ready < 0 && errno == EINTR) continue;
      too_long = ready <= 0 || printed.text.size() > kMostBytes;
      const ssize_t n = too_long ? 0 : ::read(ends[0], bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      printed.text.append(bytes.data(), static_cast<std::size_t>(n));
    }
    printed.why_not = wait_for(child, too_long);
  } else {
    printed.why_not = std::strerror(error);
  }
  ::close(ends[0]);
  return printed;
}

// As the package looks for it (hooks/torch/nanhunt/_library.py).
void find_library(PythonFacts& facts) {
  const std::string given = variable("NANHUNT_LIBRARY");
  std::vector<fs::path> places;
  if (!given.empty()) {
    places.emplace_back(given);
  } else {
    places = {fs::path(facts.package) / "lib/libnanhunt.so",
              fs::path(facts.package).parent_path().parent_path() / "lib/libnanhunt.so"};
  }
  std::error_code error;
  for (const fs::path& place : places) {
    if (!fs::is_regular_file(place, error)) continue;
    void* const handle = ::dlopen(place.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      facts.why_no_library = why != nullptr ? why : "it could not be loaded";
      return;
    }
    facts.library = place.string();
    if (const auto version = reinterpret_cast<const char* (*)()>(::dlsym(handle, "nanhunt_version"))) {
      facts.library_version = version();
    }
    ::dlclose(handle);
    return;
  }
  facts.why_no_library = "it is not at " + places.front().string();
}

}  // namespace

std::string find_boot_dir() {
  if (std::string given = variable("NANHUNT_BOOT_DIR"); !given.empty()) return given;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const fs::path above = program.parent_path().parent_path();
  for (const char* place : {"boot", "python/nanhunt/boot", "lib/nanhunt/python/nanhunt/boot"}) {
    const fs::path folder = above / place;
    if (fs::is_regular_file(folder / "sitecustomize.py", error)) return folder.string();
  }
  return "";
}

bool parse_python_facts(const std::string& text, PythonFacts& facts) {
  // The last line: what a start-up file of the Python prints stands before it.
  const std::size_t end = text.find_last_not_of("\r\n");
  const std::size_t before = end == std::string::npos ? end : text.rfind('\n', end);
  const json told = json::parse(before == std::string::npos ? text : text.substr(before + 1), nullptr, false);
  if (!told.is_object() || !told.contains("tap")) return false;
  const auto word = [&](const char* name) {
    const auto found = told.find(name);
    return found != told.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  facts.python = word("python");
  facts.python_version = word("python_version");
  facts.torch = word("torch");
  facts.why_no_torch = word("why_no_torch");
  facts.torch_cuda = word("torch_cuda");
  const std::string tap = word("tap");
  facts.tap = tap == "prebuilt"     ? TapState::kPrebuilt
              : tap == "failed"     ? TapState::kFailed
              : tap == "cached"     ? TapState::kCached
              : tap == "to_compile" ? TapState::kToCompile
                                    : TapState::kNotPossible;
  facts.tap_path = word("tap_path");
  facts.why_no_tap = word("why_no_tap");
  facts.listens = word("listens");
  facts.compiler = word("compiler");
  facts.cache = word("cache");
  facts.prebuilt_for.clear();
  if (const auto releases = told.find("prebuilt_for"); releases != told.end() && releases->is_array()) {
    for (const json& release : *releases) {
      if (release.is_string()) facts.prebuilt_for.push_back(release.get<std::string>());
    }
  }
  return true;
}

PythonFacts gather_python_facts() {
  PythonFacts facts;
  const std::string boot = find_boot_dir();
  if (boot.empty()) {
    facts.why_no_library = facts.why_no_python = facts.why_no_tap = "the Python package is not beside this program";
    return facts;
  }
  facts.package = fs::path(boot).parent_path().string();
  find_library(facts);
  const std::string given = variable("NANHUNT_PYTHON"), python = given.empty() ? "python3" : given;
  const Printed printed = output_of({python, facts.package + "/_tap/tap_build.py", "facts"});
  if (!printed.why_not.empty() || !parse_python_facts(printed.text, facts)) {
    facts.why_no_python = python + ": " + (printed.why_not.empty() ? "it did not say what it has" : printed.why_not);
    facts.why_no_tap = "there is no Python to ask";
  }
  return facts;
}

}  // namespace nanhunt::cli
