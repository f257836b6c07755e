// SPDX-License-Identifier: Apache-2.0
// The options of a verb. CLI11 parses them; its headers take ten seconds to compile, so command_line.cpp alone has them.
//
//   options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
//   options.add("--limit", limit_, "Stop after this many rows").value_name("N").in_range(1u, 100u);
//   options.add_flag("--json", json_, "The same as JSON");
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nanhunt::cli {

// One option of a verb: a handle, valid as long as the Options that gave it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  Option& value_name(const std::string& name);  // what --help calls its value
  Option& show_default();                       // the variable's value at the time of this call
  Option& one_of(const std::vector<std::string>& values);
  Option& in_range(std::uint32_t lowest, std::uint32_t highest);
  Option& in_range(int lowest, int highest);
  Option& in_range(double lowest, double highest);
  Option& excludes(const Option& other);
  Option& needs(const Option& other);

  std::string name() const;
  bool given() const;  // after parsing

 private:
  CLI::Option* option_;
};

class Options {
 public:
  // `runs`: where the places of runs are kept that add_run() was given.
  Options(CLI::App& app, std::vector<std::string*>& runs) : app_(&app), runs_(&runs) {}

  // `value` is set when the option is given, and must outlive the parsing.
  Option add(const std::string& name, std::string& value, const std::string& help);
  // A run to read. Where a URL is given, `run` is its folder on this machine once the verb runs.
  Option add_run(const std::string& name, std::string& run, const std::string& help);
  Option add(const std::string& name, std::uint32_t& value, const std::string& help);
  Option add(const std::string& name, std::uint64_t& value, const std::string& help);
  Option add(const std::string& name, int& value, const std::string& help);
  Option add(const std::string& name, double& value, const std::string& help);
  Option add(const std::string& name, std::optional<std::string>& value, const std::string& help);
  Option add(const std::string& name, std::optional<std::uint32_t>& value, const std::string& help);
  Option add(const std::string& name, std::optional<std::uint64_t>& value, const std::string& help);
  // Given several times: one value each.
  Option add_list(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);

  void describe_further(const std::string& text);  // below the options in --help
  void allow_unknown();                            // words that no option takes are kept, not refused
  std::vector<std::string> unknown() const;
  std::vector<Option> given() const;  // but --help

  // `check` runs when all options are known, and may call refuse_together().
  void after_parsing(std::function<void()> check);
  [[noreturn]] static void refuse_together(const Option& option, const Option& other);

 private:
  CLI::App* app_;
  std::vector<std::string*>* runs_;
};

}  // namespace nanhunt::cli
