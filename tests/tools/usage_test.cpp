// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kVerbs[] = {"run",     "train", "report", "check", "advise", "repro",
                                  "info",    "dump",  "export", "diff",  "doctor", "compare-precision",
                                  "autopsy", "mcp",   "watch",  "fleet"};

TEST(Usage, help_lists_every_verb_on_stdout) {
  const Outcome run = run_nanhunt({"--help"});
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.err, "");
  for (const char* verb : kVerbs) EXPECT_THAT(run.out, HasSubstr(std::string("\n  ") + verb));
}

// Of a document, the first table of verbs: a row each, without links and marks of code.
std::vector<std::string> verb_rows(const std::string& document) {
  const std::string text = read_file(std::string(NANHUNT_SOURCE_DIR) + "/" + document);
  const std::size_t begin = text.find("| verb | what it does |");
  EXPECT_NE(begin, std::string::npos) << document;
  std::string table = text.substr(begin, text.find("\n\n", begin) - begin);
  table = std::regex_replace(table, std::regex("\\[([^\\]]*)\\]\\([^)]*\\)|`"), "$1");
  std::vector<std::string> rows;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  return rows;
}

TEST(Usage, documents_describe_each_verb_in_the_words_of_the_help) {
  const std::string help = run_nanhunt({"--help"}).out;
  for (const char* document : {"README.md", "tools/nanhunt/GUIDE.md"}) {
    const std::vector<std::string> rows = verb_rows(document);
    for (const char* verb : kVerbs) {
      std::smatch found;
      ASSERT_TRUE(std::regex_search(help, found, std::regex(std::string("\n  ") + verb + " +([^\n]+)"))) << verb;
      std::string words = found[1];
      words[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(words[0])));
      const bool told = std::any_of(rows.begin(), rows.end(), [&](const std::string& row) {
        return row.find(verb) < row.find(" | ") && row.find(words) != std::string::npos;
      });
      EXPECT_TRUE(told) << document << ": " << verb << ": " << words;
    }
  }
}

TEST(Usage, every_verb_has_help_with_its_exit_statuses) {
  for (const char* verb : kVerbs) {
    const Outcome run = run_nanhunt({verb, "--help"});
    EXPECT_EQ(run.status, 0) << verb;
    EXPECT_THAT(run.out, HasSubstr("Exit status:\n  0  ")) << verb;
    EXPECT_EQ(run.err, "") << verb;
  }
}

TEST(Usage, the_version_is_a_line_and_commit_and_taps_are_the_next) {
  const Outcome run = run_nanhunt({"--version"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.out, ::testing::MatchesRegex("nanhunt [0-9]+\\.[0-9]+\\.[0-9]+\ncommit [^\n]+ · [^\n]+\n"));
}

TEST(Usage, no_verb_is_wrong_usage) {
  const Outcome run = run_nanhunt({});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, StartsWith("nanhunt: say what to do: "));
}

TEST(Usage, an_unknown_verb_is_told_with_the_known_ones) {
  const Outcome run = run_nanhunt({"frobnicate"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("no verb 'frobnicate'"));
  EXPECT_THAT(run.err, HasSubstr("report, check"));
}

TEST(Usage, a_later_word_that_names_a_verb_does_not_hide_that_the_first_is_none) {
  for (const char* wrong : {"html", "trian"}) {
    const Outcome run = run_nanhunt({wrong, "run"});  // a run's folder is often called run
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.err, HasSubstr(std::string("no verb '") + wrong + "'"));
  }
  EXPECT_THAT(run_nanhunt({"info", "run", "report"}).err, StartsWith("nanhunt: info: "));
}

TEST(Usage, a_device_that_cannot_be_used_is_told_with_the_reason) {
  const Outcome unknown = run_nanhunt({"train", "adam-eps", "--level", "off", "--device", "gpu"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("train: there is no device 'gpu'. Say cpu, cuda or cuda:N."));
  // No machine has so many: without a GPU, a driver or a CUDA build the reason is another, and it is always there.
  const Outcome missing = run_nanhunt({"train", "adam-eps", "--level", "off", "--device", "cuda:999"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, ::testing::ContainsRegex("train: cuda:999 cannot be used: .+\\."));
}

TEST(Usage, an_unknown_option_is_wrong_usage_and_names_the_help) {
  for (const char* verb : kVerbs) {
    std::vector<std::string> words = {verb, "RUN", "--no-such-option"};
    if (words[0] == "diff") words.insert(words.begin() + 2, "RUN");
    const Outcome run = run_nanhunt(words);
    EXPECT_EQ(run.status, 2) << verb;
    EXPECT_EQ(run.out, "") << verb;
    EXPECT_THAT(run.err, HasSubstr("--no-such-option")) << verb;
    EXPECT_THAT(run.err, HasSubstr(std::string("nanhunt ") + verb + " --help")) << verb;
  }
}

TEST(Usage, a_missing_run_is_wrong_usage) {
  for (const char* verb : {"report", "check", "info", "dump", "doctor"}) {
    const Outcome run = run_nanhunt({verb});
    EXPECT_EQ(run.status, 2) << verb;
    EXPECT_THAT(run.err, HasSubstr("RUN")) << verb;
  }
}

TEST(Usage, values_outside_the_choice_are_wrong_usage) {
  const std::string run = make_folder();
  write_sample_trace(run);
  EXPECT_EQ(run_nanhunt({"check", run, "--fail-on", "info"}).status, 2);
  EXPECT_EQ(run_nanhunt({"report", run, "--json", "--html"}).status, 2);
  EXPECT_EQ(run_nanhunt({"report", run, "-o", "report.pdf"}).status, 2);
  EXPECT_EQ(run_nanhunt({"dump", run, "--kind", "planets"}).status, 2);
  EXPECT_EQ(run_nanhunt({"dump", run, "--step", "-1"}).status, 2);
  EXPECT_EQ(run_nanhunt({"dump", run, "--step", "99999999999"}).status, 2);
  EXPECT_EQ(run_nanhunt({"dump", run, "--kind", "steps", "--module", "fc1"}).status, 2);
  EXPECT_EQ(run_nanhunt({"dump", run, "--rank", "7"}).status, 2);
}

TEST(Usage, a_number_that_would_become_another_is_wrong_usage) {
  for (const char* seed : {"-1", "18446744073709551616"}) {
    const Outcome run = run_nanhunt({"train", "adam-eps", "--seed", seed});
    EXPECT_EQ(run.status, 2) << seed;
    EXPECT_THAT(run.err, HasSubstr(seed));
  }
  for (const char* tolerance : {"nan", "inf", "-nan"}) {
    const Outcome run = run_nanhunt({"diff", "a", "b", "--tolerance", tolerance});
    EXPECT_EQ(run.status, 2) << tolerance;
    EXPECT_THAT(run.err, HasSubstr(std::string("Value ") + tolerance));
  }
  EXPECT_EQ(run_nanhunt({"train", "adam-eps", "--rename-seed", "-1"}).status, 2);
}

TEST(Usage, train_does_not_stop_one_rank_of_several) {
  for (const std::string option : {"--find-lr", "--anomaly"}) {
    const Outcome refused = run_nanhunt({"train", "ddp-one-rank-overflows", option});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, HasSubstr("train: " + option + " stops one rank while others wait for it"));
  }
}

TEST(Usage, train_lists_scenarios_by_recipe) {
  EXPECT_THAT(run_nanhunt({"train", "--list"}).out, HasSubstr("\nApex:\n  o2-no-masters "));
}

TEST(Usage, train_ignores_nothing_silently) {
  const std::string folder = make_folder(), file = folder + "/text.txt";
  EXPECT_EQ(run_nanhunt({"train", "adam-eps", "--list"}).status, 2);
  EXPECT_EQ(run_nanhunt({"train", "--list", "--steps", "3"}).status, 2);
  EXPECT_THAT(run_nanhunt({"train", "--list", "--steps", "3"}).err, HasSubstr("--steps excludes --list"));
  EXPECT_EQ(run_nanhunt({"train", "--list"}).status, 0);
  EXPECT_EQ(run_nanhunt({"train", "--list", "--json"}).status, 0);

  const Outcome off = run_nanhunt({"train", "adam-eps", "--steps", "1", "--level", "off", "--out", folder + "/run"});
  EXPECT_EQ(off.status, 0);
  EXPECT_THAT(off.err, HasSubstr("records nothing"));
  const Outcome stats = run_nanhunt({"train", "adam-eps", "--steps", "1", "--level", "off", "--device-stats", "sync"});
  EXPECT_EQ(stats.status, 0);
  EXPECT_THAT(stats.err, HasSubstr("--device-stats has no effect on the CPU"));
  EXPECT_EQ(run_nanhunt({"train", "adam-eps", "--steps", "1", "--level", "off", "--device-stats", "never"}).status, 2);

  const Outcome math = run_nanhunt({"train", "adam-eps", "--steps", "1", "--level", "off", "--allow-tf32"});
  EXPECT_EQ(math.status, 0);
  EXPECT_THAT(math.err, HasSubstr("--allow-tf32 and --allow-reduced-sums have no effect on the CPU"));

  write_file(file, "mine");
  const Outcome train = run_nanhunt({"train", "adam-eps", "--out", file});
  EXPECT_EQ(train.status, 6);
  EXPECT_THAT(train.err, HasSubstr("text.txt' is a file. Name a folder"));
  EXPECT_EQ(read_file(file), "mine");
  EXPECT_THAT(run_nanhunt({"info", file}).err, HasSubstr("Name a run folder, an attempt folder or a .nht file."));
}

TEST(Usage, losses_are_printed_with_six_digits) {
  const Outcome train = run_nanhunt({"train", "grad-underflow", "--steps", "2", "--level", "off"});
  EXPECT_THAT(train.out, ::testing::MatchesRegex(
                             "grad-underflow: 2 steps, loss [0-9.]{1,8}(e-[0-9]+)? -> [0-9.]{1,8}(e-[0-9]+)?\n.*"));
}

TEST(Usage, hostile_arguments_cannot_steer_the_terminal) {
  const Outcome run = run_nanhunt({"check", "\x1b[31m\xe2\x80\xae"});
  EXPECT_EQ(run.status, 3);
  EXPECT_EQ(run.err.find('\x1b'), std::string::npos);
  EXPECT_THAT(run.err, HasSubstr("\\x1b[31m"));
}

// A bare chroot has no pseudo-terminals.
bool pseudo_terminals_exist() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return false;
  std::array<char, 128> name{};
  const bool opens = ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0 &&
                     ::ptsname_r(terminal, name.data(), name.size()) == 0 && ::access(name.data(), R_OK | W_OK) == 0;
  ::close(terminal);
  return opens;
}

// What `nanhunt info` writes to a terminal.
std::string info_on_a_terminal(const std::string& run, std::vector<std::string> environment) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
  std::array<char, 128> name{};
  EXPECT_EQ(::ptsname_r(terminal, name.data(), name.size()), 0);
  // Held open, or what the child wrote would be gone with it.
  const int held = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_EQ(run_nanhunt({"info", run}, {.stdout_to = name.data(), .environment = std::move(environment)}).status, 0);
  std::array<char, 8192> buffer{};
  const ssize_t n = ::read(terminal, buffer.data(), buffer.size());
  ::close(held);
  ::close(terminal);
  return n > 0 ? std::string(buffer.data(), static_cast<std::size_t>(n)) : std::string();
}

TEST(Usage, colours_come_on_a_terminal_that_has_them_and_never_with_no_color) {
  if (!pseudo_terminals_exist()) GTEST_SKIP() << "there are no pseudo-terminals here (/dev/pts is not mounted)";
  const std::string run = make_folder();
  write_sample_trace(run);
  EXPECT_THAT(info_on_a_terminal(run, {"TERM=xterm"}), HasSubstr("\x1b[1mrank 0"));
  EXPECT_THAT(info_on_a_terminal(run, {"TERM=xterm", "NO_COLOR=1"}), StartsWith("rank 0"));
  EXPECT_THAT(info_on_a_terminal(run, {"TERM=dumb"}), StartsWith("rank 0"));
  EXPECT_THAT(run_nanhunt({"info", run}, {.environment = {"TERM=xterm"}}).out, StartsWith("rank 0"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
