// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/places/run_place.h"

#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/core/text.h"
#include "tools/nanhunt/children/python_program.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

constexpr const char* kStore = "nanhunt.store";

// An answer of nanhunt.store: one JSON object a line, with what failed under "error".
Result<json> answer_of(PythonProgram& program, const std::string& url) {
  const std::string line = program.read_line();
  json answer = json::parse(line, nullptr, false);
  if (!answer.is_object()) {
    return Status(StatusCode::kUnreadable, shown_url(url) + ": Python ended without an answer; what it said stands above. "
                                           "NANHUNT_PYTHON names another Python.");
  }
  if (answer.contains("error")) {
    const StatusCode code = answer.value("nothing", false) ? StatusCode::kNotFound : StatusCode::kUnreadable;
    return Status(code, printable(answer.value("error", std::string("no reason was given"))));
  }
  return answer;
}

// Folders of this machine's cache, and the URLs of the runs that were copied there.
std::map<std::string, std::string>& fetched() {
  static std::map<std::string, std::string> all;
  return all;
}

}  // namespace

std::string shown_url(std::string_view url) {
  const std::size_t scheme = url.find("://"), path = url.find('/', scheme + 3), user = url.substr(0, path).rfind('@');
  std::string text(url.substr(0, url.find('?')));
  if (user != std::string_view::npos && user > scheme) text.erase(scheme + 3, user - scheme - 2);
  return printable(text);
}

bool is_url(std::string_view place) {
  const std::size_t end = place.find("://");
  if (end == std::string_view::npos || end == 0 || end + 3 == place.size()) return false;
  for (const char c : place.substr(0, end)) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '+' && c != '-' && c != '.') return false;
  }
  return true;
}

Result<std::string> fetch_run(const std::string& url, const Fetch& what) {
  std::vector<std::string> words = {"fetch", url};
  if (what.digests) words.emplace_back("--digests");
  if (what.quiet) words.emplace_back("--quiet");
  std::string ranks;
  for (const std::uint32_t rank : what.ranks) ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
  if (!ranks.empty()) words.insert(words.end(), {"--ranks", ranks});
  auto program = PythonProgram::start(kStore, words);
  if (!program) return program.status();
  const auto answer = answer_of(*program, url);
  if (!answer) return answer.status();
  if (const std::uint64_t failed = answer->value("failed", std::uint64_t{0}); failed > 0 && !what.quiet) {
    say(std::to_string(failed) + " files of " + shown_url(url) + " could not be copied; the rest is read:");
    for (const json& line : answer->value("failures", json::array())) say("  " + printable(line.get<std::string>()));
  }
  const std::string folder = answer->value("folder", std::string());
  fetched()[folder] = shown_url(url);
  return folder;
}

std::string run_name(const std::string& folder) {
  const auto found = fetched().find(folder);
  return found == fetched().end() ? folder : found->second;
}

Upload::Upload(std::string url, std::string folder, std::unique_ptr<PythonProgram> program)
    : url_(std::move(url)), folder_(std::move(folder)), program_(std::move(program)) {}
Upload::Upload(Upload&&) noexcept = default;
Upload& Upload::operator=(Upload&&) noexcept = default;
Upload::~Upload() = default;

Result<Upload> Upload::begin(const std::string& url) {
  auto program = PythonProgram::start(kStore, {"upload", url}, PythonProgram::Terminal::kApart);
  if (!program) return program.status();
  auto kept = std::make_unique<PythonProgram>(std::move(*program));
  const auto answer = answer_of(*kept, url);
  if (!answer) return answer.status();
  return Upload(url, answer->value("folder", std::string()), std::move(kept));
}

Status Upload::finish() {
  program_->close_input();
  const auto answer = answer_of(*program_, url_);
  const std::string again = "`python -m nanhunt.store upload " + shell_word(url_) + " --from " + shell_word(folder_) + "` tries again.";
  if (!answer) return {StatusCode::kWriteFailed, answer.status().message() + " The run is kept in '" + folder_ + "': " + again};
  if (answer->value("goes_on", false)) {
    say("processes of this run still record: what they do is copied as they end");
    program_->leave();
  }
  const std::uint64_t left = answer->value("left", std::uint64_t{0});
  if (left == 0) return {};
  const std::string why = printable(answer->value("why", std::string()));
  return {StatusCode::kWriteFailed, std::to_string(left) + " files could not be copied to " + shown_url(url_) +
                                        (why.empty() ? "" : " (" + why + ")") + ". They are kept in '" + folder_ + "': " + again};
}

}  // namespace nanhunt::cli
