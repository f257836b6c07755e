// SPDX-License-Identifier: Apache-2.0
// `nanhunt repro`: the program it writes shows the bad number of the run, and nothing in a trace can get into its code.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "nanhunt/trace.h"
#include "src/core/ops/op_info.h"
#include "src/trace/run/safetensors.h"
#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt {
namespace {

using namespace testing_tools;

Outcome run_python(const std::string& arguments) {
  Outcome outcome;
  std::FILE* pipe = ::popen(("/usr/bin/python3 " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.out.append(buffer.data(), n);
  outcome.status = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

bool has_numpy() { return run_python("-c 'import numpy'").status == 0; }

std::string trained(const std::string& scenario, const std::vector<std::string>& more = {}) {
  const std::string run = make_folder() + "/run";
  std::vector<std::string> arguments = {"train", scenario, "--out", run, "--no-verify"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_nanhunt(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return run;
}

struct Shown {
  const char* scenario;
  const char* op;
  const char* in_run;    // what the run recorded
  const char* in_double; // what float64 gives
};
class Repro : public testing::TestWithParam<Shown> {};
INSTANTIATE_TEST_SUITE_P(
    Scenarios, Repro,
    testing::Values(Shown{"adam-eps", "addcdiv", "NaN", "nan"}, Shown{"overflow-forward", "addmm", "Infinity", "1267"},
                    Shown{"sqrt-backward", "sqrt_backward", "Infinity", "inf"},
                    Shown{"log-zero", "log", "-Infinity", "-inf"}, Shown{"log-negative", "log", "NaN", "nan"},
                    Shown{"masked-softmax", "softmax", "NaN", "nan"}, Shown{"where-branch", "exp", "Infinity", "1.3"},
                    Shown{"scale-collapse", "mm", "Infinity", ""}),
    [](const auto& at) {
      std::string name = at.param.scenario;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

TEST_P(Repro, shows_the_number_that_was_bad_in_the_run) {
  if (!has_numpy()) GTEST_SKIP() << "/usr/bin/python3 has no NumPy: tools/setup installs python3-numpy";
  const Shown& shown = GetParam();
  const std::string run = trained(shown.scenario), out = make_folder() + "/repro";
  const Outcome written = run_nanhunt({"repro", run, "--out", out});
  ASSERT_EQ(written.status, 0) << written.err;
  const Outcome program = run_python(out + "/repro.py");
  EXPECT_EQ(program.status, 0) << program.out;
  EXPECT_EQ(program.out.rfind(std::string(shown.op) + ", ", 0), 0u) << program.out;
  EXPECT_NE(program.out.find(std::string("in the run it was ") + shown.in_run + ": shown again"), std::string::npos)
      << program.out;
  EXPECT_NE(program.out.find(std::string("result in float64: ") + shown.in_double), std::string::npos) << program.out;
}

TEST(ReproProgram, shows_no_count_of_the_recorder_among_what_the_op_was_given) {
  const std::string run = make_folder() + "/run", out = make_folder() + "/repro";
  ASSERT_EQ(run_nanhunt({"train", "adam-eps", "--out", run, "--no-verify", "--level", "ops"}).status, 0);
  ASSERT_EQ(run_nanhunt({"repro", run, "--out", out}).status, 0);
  EXPECT_EQ(read_file(out + "/repro.py").find("nanhunt.updates"), std::string::npos);
}

TEST(ReproProgram, knows_the_ops_that_the_command_line_offers) {
  if (!has_numpy()) GTEST_SKIP() << "/usr/bin/python3 has no NumPy: tools/setup installs python3-numpy";
  const std::string folder = NANHUNT_SOURCE_DIR "/tools/nanhunt/repro";
  const Outcome listed = run_python("-B -c 'import sys; sys.path.insert(0, \"" + folder +
                                    "\"); import show_op; print(chr(10).join(sorted(show_op.OPS)))'");
  ASSERT_EQ(listed.status, 0) << listed.out;
  std::set<std::string> offered;
  for (const OpInfo& row : op_rows()) {
    if (row.has(kNumpy)) offered.emplace(row.name);
    if (row.has(kNumpyGradient)) offered.insert(std::string(row.name) + "_backward");
  }
  std::string lines;
  for (const std::string& op : offered) lines += op + "\n";
  EXPECT_EQ(lines, listed.out);
}

TEST(ReproProgram, adds_up_the_statistics_of_a_norm_in_fp16_where_the_run_did) {
  if (!has_numpy()) GTEST_SKIP() << "/usr/bin/python3 has no NumPy: tools/setup installs python3-numpy";
  // given: 64 numbers near 2000, whose sum passes 65504
  const std::string program = make_folder() + "/norm.py";
  std::FILE* file = std::fopen(program.c_str(), "w");
  std::fputs("import sys\nimport numpy as np\nsys.path.insert(0, '" NANHUNT_SOURCE_DIR "/tools/nanhunt/repro')\n"
             "import show_op\nfor compute in ('fp16', 'fp32'):\n"
             "    show_op.CASE.update(op='native_layer_norm', compute=compute, scalars={'eps': 1e-5},\n"
             "                        inputs=[{'array': 'x', 'slot': 'input'}],\n"
             "                        output={'shape': [1, 64], 'slot': 'out'})\n"
             "    x = np.arange(1970, 2034, dtype=np.float16).reshape(1, 64)\n"
             "    with np.errstate(all='ignore'):\n"
             "        y = show_op.layer_norm(show_op.Use({'x': x}, show_op.work_type()))\n"
             "    print(np.isnan(y).sum(), y.dtype)\n",
             file);
  std::fclose(file);
  EXPECT_EQ(run_python("-B " + program).out, "64 float16\n0 float32\n");
}

// A trace and a capture of a sqrt in a module of that name; `slot` is the capture's.
std::string hostile_run(const std::string& module, const std::string& file, const std::string& slot = "self") {
  const std::string run = make_folder() + "/run";
  TraceOptions options;
  options.module = module;
  options.capture = file;
  write_sample_trace(run, options);
  const std::string captures = run + "/rank-00000/attempt-0/captures";
  std::filesystem::create_directory(captures);
  const std::array<float, 4> numbers = {0.25f, -1, 4, 1};
  std::vector<std::byte> bytes(sizeof numbers);
  std::memcpy(bytes.data(), numbers.data(), sizeof numbers);
  EXPECT_TRUE(trace::write_safetensors(captures + "/op-4.safetensors", {{{slot, DType::kF32, {4}, bytes}}, {}}));
  return run;
}

TEST(ReproProgram, takes_hostile_names_for_data) {
  if (!has_numpy()) GTEST_SKIP() << "/usr/bin/python3 has no NumPy: tools/setup installs python3-numpy";
  for (const std::string& name :
       {std::string("\"); open('pwned','w'); (\""), std::string("'''\n\"\"\"\nraise SystemExit(9)\n#\\"),
        std::string("\\"), std::string("\x1b[2J\xff\xc0 \xe2\x80\xae\xf0\x9f\x98\x80"),
        std::string("{}\\u0022)\\N{BEL}%s{0}")}) {
    const std::string out = make_folder() + "/repro";
    const Outcome written = run_nanhunt({"repro", hostile_run(name, "op-4.safetensors"), "--out", out});
    ASSERT_EQ(written.status, 0) << written.err;
    const std::string source = read_file(out + "/repro.py");
    for (const char c : source) ASSERT_TRUE((c >= ' ' && c <= '~') || c == '\n') << "not plain ASCII";
    const Outcome program = run_python(out + "/repro.py");
    EXPECT_EQ(program.status, 0) << program.out;
    EXPECT_NE(program.out.find("in the run it was NaN: shown again"), std::string::npos) << program.out;
    for (const char c : program.out) ASSERT_TRUE((c >= ' ' && c <= '~') || c == '\n') << program.out;
    EXPECT_FALSE(std::filesystem::exists("pwned"));
  }
}

TEST(ReproVerb, reads_no_capture_outside_of_the_run) {
  for (const std::string& file : {std::string("../../../../etc/passwd"), std::string("/etc/passwd"),
                                  std::string("op-5.safetensors"), std::string("op-4.safetensors/..")}) {
    const Outcome outcome = run_nanhunt({"repro", hostile_run("fc1", file), "--out", make_folder() + "/repro"});
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(outcome.err.find("was not kept"), std::string::npos) << outcome.err;
  }
  // a folder of captures that leads elsewhere
  const std::string run = hostile_run("fc1", "op-4.safetensors"), captures = run + "/rank-00000/attempt-0/captures";
  std::filesystem::rename(captures, run + "/elsewhere");
  std::filesystem::create_directory_symlink(run + "/elsewhere", captures);
  EXPECT_EQ(run_nanhunt({"repro", run, "--out", make_folder() + "/repro"}).status, 3);
  // a capture that does not hold what the op read
  const Outcome other =
      run_nanhunt({"repro", hostile_run("fc1", "op-4.safetensors", "other"), "--out", make_folder() + "/repro"});
  EXPECT_EQ(other.status, 3);
  EXPECT_NE(other.err.find("does not hold 'self'"), std::string::npos) << other.err;
}

TEST(ReproVerb, says_what_it_cannot_show_and_why) {
  const std::string run = trained("adam-eps", {"--no-captures"});
  const auto expect = [&](const std::vector<std::string>& arguments, int status, const char* words) {
    std::vector<std::string> all = {"repro"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_nanhunt(all);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  };
  expect({run}, 3, "was not kept");
  expect({run, "--finding", "F99"}, 2, "there is no finding 'F99'");
  expect({trained("bad-batch")}, 2, "no finding of this run has an operation");
  expect({hostile_run("fc1", "op-4.safetensors"), "--out", make_folder()}, 6, "is there already");
}

}  // namespace
}  // namespace nanhunt
