// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/output/fleet_tables.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "tools/nanhunt/children/python_program.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

Status write_fleet_tables(const FleetTables& tables) {
  std::vector<std::string> words = {tables.run,  tables.out, "--engine", tables.engine, "--jobs", std::to_string(tables.jobs),
                                    "--group", std::to_string(tables.group)};
  if (!tables.address.empty()) words.insert(words.end(), {"--address", tables.address});
  auto program = PythonProgram::start("nanhunt.fleet", words);
  if (!program) return program.status();
  std::string last;
  for (std::string line = program->read_line(); !line.empty(); line = program->read_line()) last = line;
  const auto answer = nlohmann::json::parse(last, nullptr, false);
  if (!answer.is_object()) {
    return {StatusCode::kWriteFailed, "the tables were not made: Python ended without an answer; what it said stands above. "
                                      "NANHUNT_PYTHON names another Python."};
  }
  if (answer.contains("error")) {
    return {StatusCode::kWriteFailed, printable(answer.value("error", std::string("no reason was given")))};
  }
  const std::uint64_t ranks = answer.value("ranks", std::uint64_t{0}), unread = answer.value("unread", std::uint64_t{0});
  say("tables: " + reports::plural(answer.value("rows", std::uint64_t{0}), "row", "rows") + " of " +
      reports::plural(ranks, "rank", "ranks") + " in " + printable(tables.out));
  if (unread > 0) {
    say(reports::plural(unread, "rank", "ranks") + " could not be read:");
    for (const auto& line : answer.value("failures", nlohmann::json::array())) say("  " + printable(line.get<std::string>()));
  }
  return {};
}

}  // namespace nanhunt::cli
