// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/children/python_program.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tools/nanhunt/children/child.h"
#include "tools/nanhunt/children/piped_child.h"
#include "tools/nanhunt/environment/python_package.h"

namespace nanhunt::cli {
namespace {

// Not `-m`, which looks for every module in the working directory first.
std::string run_module(const std::string& module) {
  return "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; runpy.run_module('" + module +
         "', run_name='__main__', alter_sys=True)";
}

}  // namespace

Result<PythonProgram> PythonProgram::start(const std::string& module, const std::vector<std::string>& words,
                                           Terminal terminal) {
  const std::string boot = find_boot_dir();
  const char* const given = std::getenv("NANHUNT_PYTHON");
  if (boot.empty()) {
    return Status(StatusCode::kNotFound, "the Python package, which has '" + module + "', does not stand beside this program. "
                                         "Install both with `pip install .`, or name its folder 'boot' in NANHUNT_BOOT_DIR.");
  }
  const std::string package = std::filesystem::path(boot).parent_path().string();
  std::vector<std::string> command = {given != nullptr && *given != '\0' ? given : "python3", "-c", run_module(module)};
  command.insert(command.end(), words.begin(), words.end());
  const char* const path = std::getenv("PYTHONPATH");
  const std::string above = std::filesystem::path(package).parent_path().string();
  std::vector<std::string> settings =
      environment_with({{"PYTHONPATH", path != nullptr && *path != '\0' ? above + ":" + path : above}});
  const PipedChild child = start_piped({command, std::move(settings), true, false, terminal == Terminal::kApart});
  if (child.start_error != 0) {
    return Status(StatusCode::kNotFound, "'" + command[0] + "' could not be started: " + std::strerror(child.start_error) +
                                             ". Name a Python in NANHUNT_PYTHON.");
  }
  return PythonProgram(child.pid, child.input, child.output);
}

PythonProgram::PythonProgram(PythonProgram&& from) noexcept
    : child_(std::exchange(from.child_, -1)),
      input_(std::exchange(from.input_, -1)),
      output_(std::exchange(from.output_, -1)),
      status_(from.status_),
      read_(std::move(from.read_)) {}

PythonProgram::~PythonProgram() { (void)wait(); }

bool PythonProgram::write_line(std::string_view line) {
  std::string text(line);
  text += '\n';
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t n = input_ < 0 ? -1 : ::write(input_, rest.data(), rest.size());
    if (n < 0 && input_ >= 0 && errno == EINTR) continue;
    if (n < 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void PythonProgram::close_input() { close_end(input_); }

std::string PythonProgram::read_line() {
  std::array<char, 4096> bytes{};
  for (;;) {
    if (const std::size_t end = read_.find('\n'); end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    const ssize_t n = output_ < 0 ? 0 : ::read(output_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::exchange(read_, {});
    read_.append(bytes.data(), static_cast<std::size_t>(n));
  }
}

void PythonProgram::leave() {
  close_input();
  close_end(output_);
  child_ = -1;
}

int PythonProgram::wait() {
  close_input();
  if (child_ > 0) {
    status_ = wait_for(child_);
    child_ = -1;
  }
  close_end(output_);
  return status_;
}

}  // namespace nanhunt::cli
