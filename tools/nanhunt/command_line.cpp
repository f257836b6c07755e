// SPDX-License-Identifier: Apache-2.0
// The command line: finds the verb, parses its options, runs it. Implements options.h; the only file that knows CLI11.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/nanhunt/children/piped_child.h"
#include "tools/nanhunt/environment/build_facts.h"
#include "tools/nanhunt/options.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

// What CLI11 would take for another number than the one that was written.
std::string check_whole(const std::string& text) {
  if (text.starts_with('-')) return "Value " + text + " is below 0";
  errno = 0;
  static_cast<void>(std::strtoull(text.c_str(), nullptr, 10));
  return errno == ERANGE ? "Value " + text + " does not fit into 64 bits" : "";
}
std::string check_finite(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : "Value " + text + " is not a finite number";
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::value_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option& Option::in_range(std::uint32_t lowest, std::uint32_t highest) {
  option_->check(CLI::Range(lowest, highest));
  return *this;
}

Option& Option::in_range(int lowest, int highest) {
  option_->check(CLI::Range(lowest, highest));
  return *this;
}

Option& Option::in_range(double lowest, double highest) {
  option_->check(CLI::Range(lowest, highest));
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

std::string Option::name() const { return option_->get_name(); }
bool Option::given() const { return !option_->empty(); }

Option Options::add(const std::string& name, std::string& value, const std::string& help) {
  return Option(app_->add_option(name, value, help));
}
Option Options::add_run(const std::string& name, std::string& run, const std::string& help) {
  runs_->push_back(&run);
  return add(name, run, help + ", or the URL of one");
}
Option Options::add(const std::string& name, std::uint32_t& value, const std::string& help) {
  return Option(app_->add_option(name, value, help)->check(check_whole));
}
Option Options::add(const std::string& name, std::uint64_t& value, const std::string& help) {
  return Option(app_->add_option(name, value, help)->check(check_whole));
}
Option Options::add(const std::string& name, int& value, const std::string& help) {
  return Option(app_->add_option(name, value, help));
}
Option Options::add(const std::string& name, double& value, const std::string& help) {
  return Option(app_->add_option(name, value, help)->check(check_finite));
}
Option Options::add(const std::string& name, std::optional<std::string>& value, const std::string& help) {
  return Option(app_->add_option(name, value, help));
}
Option Options::add_list(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return Option(app_->add_option(name, values, help)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
}
Option Options::add(const std::string& name, std::optional<std::uint32_t>& value, const std::string& help) {
  return Option(app_->add_option(name, value, help)->check(check_whole));
}
Option Options::add(const std::string& name, std::optional<std::uint64_t>& value, const std::string& help) {
  return Option(app_->add_option(name, value, help)->check(check_whole));
}
Option Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}

void Options::describe_further(const std::string& text) { app_->footer(text + "\n\n" + app_->get_footer()); }
void Options::allow_unknown() { app_->allow_extras(); }
std::vector<std::string> Options::unknown() const { return app_->remaining(); }

std::vector<Option> Options::given() const {
  std::vector<Option> given;
  for (CLI::Option* option : app_->get_options()) {
    if (option != app_->get_help_ptr() && !option->empty()) given.push_back(Option(option));
  }
  return given;
}

void Options::after_parsing(std::function<void()> check) { app_->parse_complete_callback(std::move(check)); }

void Options::refuse_together(const Option& option, const Option& other) {
  throw CLI::ExcludesError(option.name(), other.name());
}

}  // namespace nanhunt::cli

namespace {

using namespace nanhunt::cli;

constexpr const char* kAbout =
    "Which operation made the first number that did harm, why, and does it matter?\n"
    "nanhunt watches training and turns what it recorded into a verdict.";

constexpr const char* kFirstSteps =
    "First steps:\n"
    "  nanhunt run --out run -- python train.py   train with PyTorch as before, watched\n"
    "  nanhunt report run                         the verdict; run/report.html is the page\n"
    "  nanhunt train adam-eps --out run           no training at hand: a bundled run with a planted fault\n"
    "\n"
    "`nanhunt VERB --help` lists a verb's options and exit statuses.";

struct Parsed {
  CLI::App* app = nullptr;
  std::unique_ptr<Verb> verb;
  std::unique_ptr<std::vector<std::string*>> runs = std::make_unique<std::vector<std::string*>>();
};

// Those behind URLs are copied here first.
nanhunt::Status fetch_runs(const std::vector<std::string*>& runs) {
  for (std::string* run : runs) {
    if (!is_url(*run)) continue;
    auto folder = fetch_run(*run);
    if (!folder) return folder.status();
    *run = std::move(*folder);
  }
  return {};
}

// Takes the words after `--` off the command line of a verb that wants them: nothing may parse them.
std::vector<std::string> split_command(int& argc, char** argv) {
  const auto entries = registered_verbs();
  const bool takes_command = argc > 1 && std::any_of(entries.begin(), entries.end(), [&](const VerbEntry& entry) {
                               return entry.info.takes_command && entry.info.name == argv[1];
                             });
  if (!takes_command) return {};
  char** const mark = std::find(argv + 2, argv + argc, std::string_view("--"));
  if (mark == argv + argc) return {};
  std::vector<std::string> command(mark + 1, argv + argc);
  argc = static_cast<int>(mark - argv);
  return command;
}

std::string names_of(const std::vector<Parsed>& verbs) {
  std::string names;
  for (const Parsed& one : verbs) names += (names.empty() ? "" : ", ") + one.app->get_name();
  return names;
}

// What was wrong with the command line, and what to do about it.
int usage_error(const CLI::App& app, const std::vector<Parsed>& verbs, const CLI::ParseError& error, int argc,
                char** argv) {
  const auto chosen = app.get_subcommands();
  // A later word may be a verb's name: a run's folder is often called run.
  const bool is_verb = argc > 1 && std::ranges::any_of(verbs, [&](const Parsed& one) {
    return one.app->get_name() == std::string_view(argv[1]);
  });
  if (!chosen.empty() && (is_verb || argc < 2 || argv[1][0] == '-')) {
    const std::string verb = chosen.front()->get_name();
    say(verb + ": " + error.what() + ". See `nanhunt " + verb + " --help`.");
    return kWrongUsage;
  }
  if (argc > 1 && argv[1][0] != '-') {
    say("there is no verb '" + std::string(argv[1]) + "'. Verbs: " + names_of(verbs) + ". See `nanhunt --help`.");
  } else if (argc > 1) {
    say("there is no option '" + std::string(argv[1]) + "' before a verb. See `nanhunt --help`.");
  } else {
    say("say what to do: " + names_of(verbs) + ". See `nanhunt --help`.");
  }
  return kWrongUsage;
}

int run(int argc, char** argv) {
  const std::vector<std::string> command = split_command(argc, argv);
  CLI::App app(kAbout, "nanhunt");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.footer(kFirstSteps);
  std::vector<Parsed> verbs;
  for (const VerbEntry& entry : registered_verbs()) {
    Parsed parsed;
    parsed.app = app.add_subcommand(std::string(entry.info.name), std::string(entry.info.summary));
    parsed.app->group("Verbs");
    parsed.app->footer("Exit status:\n" + std::string(entry.info.exit_statuses));
    parsed.verb = entry.make();
    parsed.verb->declare(Options(*parsed.app, *parsed.runs));
    verbs.push_back(std::move(parsed));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return print_and_return(app.help());
  } catch (const CLI::CallForVersion&) {
    return print_and_return(app.version() + "\n");
  } catch (const CLI::ParseError& error) {
    return usage_error(app, verbs, error, argc, argv);
  }
  for (const Parsed& one : verbs) {
    if (!one.app->parsed()) continue;
    if (nanhunt::Status here = fetch_runs(*one.runs); !here) {
      const int status = fail(here);
      const std::string name = one.app->get_name();
      if (here.code() == nanhunt::StatusCode::kNotFound && (name == "check" || name == "diff"))
        say("a checkpoint behind a URL is not read: copy it here first.");
      return status;
    }
    one.verb->take_command(command);
    return one.verb->run();
  }
  return kWrongUsage;
}

}  // namespace

int main(int argc, char** argv) {
  end_with_parent();
  // A reader that goes away must show as a failed write, not kill us half-way through a file.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    say("out of memory. Try on a machine with more, or with a smaller trace.");
  } catch (const std::exception& error) {
    say(std::string("stopped by an unexpected error: ") + error.what() +
        ". This is a fault of nanhunt: please report it with the command you ran.");
  }
  return kUnreadable;
}
