// SPDX-License-Identifier: Apache-2.0
// doctor --env: what is made of facts, for machines that are made up, and the text and JSON of this one.
#include "tools/nanhunt/environment/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"
#include "tests/tools/run_program.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;
using testing_tools::Outcome;
using testing_tools::run_nanhunt;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A machine on which everything fits.
EnvironmentFacts good_machine() {
  EnvironmentFacts f;
  f.cpu_path = f.cpu_best = "avx512";
  f.built_with_cuda = true;
  f.runtime_version = 13000;
  f.built_for = parse_architectures("75-virtual;80-real;90-real");
  f.toolkit_path = "/usr/local/cuda";
  f.toolkit_version = 13000;
  f.driver = {"libcuda.so.1", "/usr/lib/libcuda.so.1", "", ""};
  f.driver_version = 13000;
  f.devices = {{0, "Some GPU", 9, 0, std::uint64_t{80} << 30, 132, 13000, 13000}};
  f.cupti.built = f.cupti.usable = true;
  f.cupti.path = "/usr/local/cuda/lib64/libcupti.so.13";
  f.cupti.version = 130001;
  f.cupti.version_text = "13.0 (130001)";
  f.libraries = {{"libcublas.so.13", "/usr/lib/libcublas.so.13", "13.1.0", ""}};
  f.python.package = "/venv/nanhunt";
  f.python.library = "/venv/nanhunt/lib/libnanhunt.so";
  f.python.python = "/venv/bin/python3";
  f.python.python_version = "3.12.3";
  f.python.torch = "2.13.0+cu130";
  f.python.torch_cuda = "13.0";
  f.python.tap = TapState::kPrebuilt;
  f.python.tap_path = "/venv/nanhunt/lib/tap-torch-2.13.0+cu130-0.so";
  return f;
}

std::vector<std::string> keys(const EnvironmentFacts& facts) {
  std::vector<std::string> out;
  for (const EnvironmentFinding& one : judge_environment(facts)) {
    EXPECT_FALSE(one.what.empty());
    out.push_back(one.key);
  }
  return out;
}

TEST(Environment, a_machine_on_which_everything_fits_gives_nothing_to_know) {
  EXPECT_THAT(keys(good_machine()), IsEmpty());
  EXPECT_THAT(environment_to_text(good_machine(), false, 100),
              AllOf(HasSubstr("compute capability 9.0"),
                    HasSubstr("tensor cores take fp16, int8, bf16, tf32, fp64, e4m3, e5m2"), HasSubstr("13.0 (130001)"),
                    Not(HasSubstr("What to know"))));
}

TEST(Environment, without_a_driver_the_cpu_is_used_and_nothing_else_is_blamed) {
  EnvironmentFacts f = good_machine();
  f.driver = {"libcuda.so.1", "", "", "libcuda.so.1: cannot open shared object file"};
  f.driver_version = 0;
  f.devices.clear();
  f.why_no_device = "no CUDA driver is installed";
  f.cupti.usable = false;
  f.libraries[0].path.clear();
  EXPECT_THAT(keys(f), ElementsAre("no_driver", "torch_cuda_unused"));
  EXPECT_THAT(environment_to_text(f, false, 100),
              AllOf(HasSubstr("[info]"), HasSubstr("cannot open shared object file"), HasSubstr("do: ")));
}

TEST(Environment, a_build_without_cuda_says_so_and_how_to_change_it) {
  EnvironmentFacts f;
  f.cpu_path = f.cpu_best = "avx2";
  f.toolkit_path = "";
  f.python = good_machine().python;
  f.python.torch_cuda = "";
  EXPECT_THAT(keys(f), ElementsAre("built_without_cuda"));
  EXPECT_THAT(environment_to_text(f, false, 100),
              AllOf(HasSubstr("without CUDA"), HasSubstr("NANHUNT_CUDA=ON"), HasSubstr("Toolkit      not found")));
}

TEST(Environment, a_driver_that_is_too_old_is_told_by_both_versions) {
  EnvironmentFacts f = good_machine();
  f.driver_version = 12040;
  f.python.torch_cuda = "12.6";
  f.toolkit_version = 12060;
  f.devices.clear();
  f.why_no_device = "CUDA driver version is insufficient for CUDA runtime version";
  ASSERT_THAT(keys(f), ElementsAre("driver_too_old"));
  EXPECT_THAT(judge_environment(f)[0].what, AllOf(HasSubstr("12.4"), HasSubstr("13.0")));
  // its twin: a minor version behind is no reason to worry, as long as there is code that needs no compiling
  f = good_machine();
  f.runtime_version = 13010;
  EXPECT_THAT(keys(f), IsEmpty());
}

TEST(Environment, devices_without_code_of_their_own_are_told_apart) {
  EnvironmentFacts f = good_machine();
  f.devices[0].compute_major = 12;
  EXPECT_THAT(keys(f), ElementsAre("ptx_only"));
  f.runtime_version = 13010;  // newer than the driver, which then cannot compile it
  EXPECT_THAT(keys(f), ElementsAre("ptx_too_new"));
  f = good_machine();
  f.devices[0].compute_major = 7;
  EXPECT_THAT(keys(f), ElementsAre("unsupported_device"));
  f = good_machine();
  f.built_for = parse_architectures("100-real");
  EXPECT_THAT(keys(f), ElementsAre("no_code_for_device"));
  EXPECT_THAT(judge_environment(f)[0].todo, HasSubstr("CMAKE_CUDA_ARCHITECTURES=90"));
  f.built_for.clear();  // "native": not known
  EXPECT_THAT(keys(f), IsEmpty());
}

TEST(Environment, cupti_and_cublas_are_missed_only_where_there_is_a_gpu) {
  EnvironmentFacts f = good_machine();
  f.cupti.usable = false;
  f.cupti.why_not = "CUPTI has room for one client and CUPTI for Kineto is there";
  f.libraries[0] = {"libcublas.so", "", "", "not there"};
  EXPECT_THAT(keys(f), ElementsAre("no_cublas", "no_cupti"));  // in order of weight
  EXPECT_THAT(judge_environment(f)[1].what, HasSubstr("Kineto"));
}

TEST(Environment, an_override_of_vector_instructions_is_told) {
  EnvironmentFacts f = good_machine();
  f.simd_override = "avx1024";
  EXPECT_THAT(keys(f), ElementsAre("simd_override"));
  f.simd_override = f.cpu_path = "avx2";
  EXPECT_THAT(keys(f), ElementsAre("simd_lowered"));
  f.simd_override = f.cpu_path = "avx512";
  EXPECT_THAT(keys(f), IsEmpty());
}

TEST(Environment, a_pytorch_for_another_cuda_than_the_driver_or_the_toolkit_is_told) {
  EnvironmentFacts f = good_machine();
  f.python.torch_cuda = "14.0";
  ASSERT_THAT(keys(f), ElementsAre("torch_cuda_too_new", "torch_other_toolkit"));
  EXPECT_THAT(judge_environment(f)[0].what, AllOf(HasSubstr("14.0"), HasSubstr("13.0")));
  f.python.torch_cuda = "12.6";  // the driver runs older ones
  EXPECT_THAT(keys(f), ElementsAre("torch_other_toolkit"));
  f.python.torch_cuda = "13.2";  // and newer ones of its generation
  EXPECT_THAT(keys(f), IsEmpty());
  f.python.torch_cuda = "";
  EXPECT_THAT(keys(f), ElementsAre("torch_without_cuda"));
}

TEST(Environment, where_the_tap_comes_from_is_told_and_what_works_without) {
  EnvironmentFacts f = good_machine();
  EXPECT_THAT(environment_to_text(f, false, 200),
              HasSubstr("prebuilt, /venv/nanhunt/lib/tap-torch-2.13.0+cu130-0.so\n"));
  f.python.listens = "below_autograd";
  EXPECT_THAT(environment_to_text(f, false, 200), HasSubstr("-0.so, listens below autograd\n"));
  f.python.tap = TapState::kCached;
  EXPECT_THAT(keys(f), IsEmpty());
  f.python.tap = TapState::kToCompile;
  f.python.compiler = "/usr/bin/c++";
  EXPECT_THAT(keys(f), ElementsAre("tap_to_compile"));
  f.python.tap = TapState::kNotPossible;
  f.python.why_no_tap = "there is no C++ compiler";
  ASSERT_THAT(keys(f), ElementsAre("no_tap"));
  EXPECT_THAT(judge_environment(f)[0].todo, HasSubstr("Losses, gradients"));
  EXPECT_THAT(environment_to_text(f, false, 200), HasSubstr("not possible: there is no C++ compiler"));
  f.python.tap = TapState::kFailed;
  f.python.why_no_tap = "c++ could not compile it";
  f.python.tap_path = "/cache/tap.failed";
  ASSERT_THAT(keys(f), ElementsAre("no_tap"));
  EXPECT_THAT(judge_environment(f)[0].todo, AllOf(HasSubstr("Remove /cache/tap.failed"), HasSubstr("CXX")));
  EXPECT_THAT(environment_to_text(f, false, 200), HasSubstr("failed to compile: c++ could not compile it"));
}

TEST(Environment, its_first_line_says_which_pytorch_which_tap_and_which_cuda) {
  EnvironmentFacts f = good_machine();
  EXPECT_EQ(pytorch_line(f), "2.13.0 (Python 3.12) · tap built in · CUDA 13.0, Some GPU");
  EXPECT_THAT(environment_to_text(f, false, 40),
              StartsWith("  PyTorch      2.13.0 (Python 3.12) · tap built in · CUDA 13.0, Some GPU\n\n"));
  f.devices.push_back(f.devices[0]);
  f.python.tap = TapState::kCached;
  EXPECT_EQ(pytorch_line(f), "2.13.0 (Python 3.12) · tap in the cache · CUDA 13.0, 2 GPUs");
  f.devices.clear();
  f.driver.path = "";
  f.python.tap = TapState::kToCompile;
  EXPECT_EQ(pytorch_line(f), "2.13.0 (Python 3.12) · tap compiled at first use (about 20 s) · CUDA 13.0, no GPU here");
  f.python.torch_cuda = "";
  EXPECT_THAT(pytorch_line(f), EndsWith(" · without CUDA"));
  f = good_machine();  // a build without CUDA looks for no device
  f.devices.clear();
  f.built_with_cuda = false;
  EXPECT_THAT(pytorch_line(f), EndsWith(" · CUDA 13.0, a driver for CUDA up to 13.0"));
  f.driver_version = 0;
  EXPECT_THAT(pytorch_line(f), EndsWith(" · CUDA 13.0, a driver"));
}

TEST(Environment, its_first_line_says_what_to_do_where_something_is_missing) {
  EnvironmentFacts f = good_machine();
  f.python.tap = TapState::kNotPossible;
  f.python.why_no_tap = "there is no C++ compiler to build it with: install g++ (Debian: apt install g++), or set CXX";
  EXPECT_THAT(pytorch_line(f), HasSubstr("· no tap, because there is no C++ compiler to build it with: install g++ "
                                         "(Debian: apt install g++), or set CXX ·"));
  f.python.why_no_tap = "PyTorch 2.4 or newer is needed, this is 2.3.1";
  EXPECT_THAT(pytorch_line(f), HasSubstr("this is 2.3.1: install PyTorch 2.4 or newer ·"));
  EXPECT_THAT(judge_environment(f)[0].todo, StartsWith("Install PyTorch 2.4 or newer. Losses, gradients"));
  f.python.tap = TapState::kFailed;
  f.python.why_no_tap = "c++ could not compile it for PyTorch 2.13.0: error";
  f.python.tap_path = "/cache/tap.failed";
  EXPECT_THAT(pytorch_line(f), HasSubstr(": error: remove /cache/tap.failed to have it compiled again, or"));
  f = good_machine();
  f.python.torch_cuda = "14.0";
  EXPECT_THAT(pytorch_line(f), HasSubstr("CUDA 14.0, the driver runs 13.0: update the driver, or install a build"));
  f.python.torch_cuda = "";
  EXPECT_THAT(pytorch_line(f), HasSubstr("without CUDA, though there is a GPU: install a build of PyTorch for CUDA 13.0"));
  f = good_machine();
  f.devices.clear();
  f.why_no_device = "none is visible";
  EXPECT_THAT(pytorch_line(f), HasSubstr("no GPU that can be used: none is visible: look at nvidia-smi"));
  f.python.library = "";
  f.python.why_no_library = "it is not there";
  EXPECT_THAT(pytorch_line(f), HasSubstr("· no libnanhunt.so, because it is not there: install the package again"));
  f.python.torch = "";
  f.python.why_no_torch = "it is not installed";
  EXPECT_THAT(pytorch_line(f), StartsWith("none in /venv/bin/python3: name the Python that trains in NANHUNT_PYTHON"));
  f.python.why_no_torch = "OSError: libcudart.so.13";
  EXPECT_THAT(pytorch_line(f), StartsWith("cannot be imported by /venv/bin/python3, because OSError: libcudart.so.13: "
                                          "install PyTorch again"));
  f.python.python = "";
  f.python.why_no_python = "python3: No such file or directory";
  EXPECT_THAT(pytorch_line(f), HasSubstr("No such file or directory: name the one that trains in NANHUNT_PYTHON"));
  f.python.package = "";
  EXPECT_THAT(pytorch_line(f), HasSubstr("not beside this program: install both with `pip install .`"));
}

TEST(Environment, a_python_without_pytorch_is_no_problem_and_one_that_cannot_import_it_is) {
  EnvironmentFacts f = good_machine();
  f.python.torch = "";
  f.python.why_no_torch = "it is not installed";
  EXPECT_THAT(keys(f), ElementsAre("no_torch"));
  EXPECT_EQ(judge_environment(f)[0].level, Readiness::kInfo);
  f.python.why_no_torch = "OSError: libcudart.so.13";
  EXPECT_THAT(keys(f), ElementsAre("broken_torch"));
  EXPECT_EQ(judge_environment(f)[0].level, Readiness::kProblem);
  f.python.python = "";
  f.python.why_no_python = "python3: No such file or directory";
  EXPECT_THAT(keys(f), ElementsAre("no_python"));
  f.python.library = "";
  f.python.why_no_library = "it is not there";
  EXPECT_THAT(keys(f), ElementsAre("no_library", "no_python"));
  f.python.package = "";
  EXPECT_THAT(keys(f), ElementsAre("no_package"));
}

TEST(Environment, what_a_python_prints_is_read_and_nonsense_is_refused) {
  PythonFacts f;
  ASSERT_TRUE(parse_python_facts("welcome {\n{\"tap\": \"cached\", \"torch\": \"2.13.0\", \"why_no_tap\": null, "
                                 "\"prebuilt_for\": [\"2.12.0\", 3]}\n", f));
  EXPECT_EQ(f.tap, TapState::kCached);
  EXPECT_EQ(f.torch, "2.13.0");
  EXPECT_THAT(f.prebuilt_for, ElementsAre("2.12.0"));
  for (const char* wrong : {"", "\n", "hello", "[]", "{}", "{\"tap\""}) EXPECT_FALSE(parse_python_facts(wrong, f)) << wrong;
  ASSERT_TRUE(parse_python_facts("{\"tap\": \"failed\", \"listens\": \"above_autograd\"}", f));
  EXPECT_EQ(f.tap, TapState::kFailed);
  EXPECT_EQ(f.listens, "above_autograd");
  EXPECT_TRUE(parse_python_facts("{\"tap\": \"cached\", \"listens\": null}", f));
  EXPECT_EQ(f.listens, "");
  EXPECT_TRUE(parse_python_facts("{\"tap\": 7}", f));
  EXPECT_EQ(f.tap, TapState::kNotPossible);
}

TEST(Environment, architectures_are_read_as_cmake_writes_them) {
  EXPECT_THAT(parse_architectures("75-virtual;80-real;90"),
              ElementsAre(BuiltArchitecture{7, 5, true}, BuiltArchitecture{8, 0, false}, BuiltArchitecture{9, 0, false},
                          BuiltArchitecture{9, 0, true}));
  EXPECT_THAT(parse_architectures("90a-real,100-real"),
              ElementsAre(BuiltArchitecture{9, 0, false}, BuiltArchitecture{10, 0, false}));
  EXPECT_THAT(parse_architectures("native;;x;5;99999"), IsEmpty());
  const auto built = parse_architectures("75-virtual;80-real");
  EXPECT_EQ(code_path(built, 8, 0), CodePath::kBinary);
  EXPECT_EQ(code_path(built, 8, 9), CodePath::kBinary);
  EXPECT_EQ(code_path(built, 7, 5), CodePath::kPtx);
  EXPECT_EQ(code_path(built, 9, 0), CodePath::kPtx);
  EXPECT_EQ(code_path(built, 7, 0), CodePath::kNone);
  EXPECT_EQ(code_path({}, 9, 0), CodePath::kUnknown);
}

TEST(Environment, formats_follow_the_compute_capability) {
  EXPECT_THAT(arithmetic_formats(7, 5), Not(Contains("bf16")));
  EXPECT_THAT(arithmetic_formats(8, 0), Contains("bf16"));
  EXPECT_THAT(tensor_core_formats(7, 5), ElementsAre("fp16", "int8"));
  EXPECT_THAT(tensor_core_formats(8, 6), Not(Contains("e4m3")));
  EXPECT_THAT(tensor_core_formats(8, 9), Contains("e5m2"));
  EXPECT_THAT(tensor_core_formats(6, 1), IsEmpty());
}

TEST(Environment, names_that_could_steer_a_terminal_are_made_visible) {
  const std::string evil = "\x1b[31m\r\x7f\xe2\x80\xae\xff";
  EnvironmentFacts f = good_machine();
  f.devices[0].name = f.toolkit_path = f.driver.path = f.driver.version = f.cupti.path = f.cupti.why_not = evil;
  f.python.library = f.python.library_version = f.python.python = f.python.torch = f.python.torch_cuda = evil;
  f.python.python_version = f.python.tap_path = f.python.package = f.python.compiler = f.python.cache = evil;
  f.python.prebuilt_for = {evil};
  f.python.listens = f.python.why_no_tap = f.python.why_no_library = f.python.why_no_torch = f.python.why_no_python = evil;
  f.libraries[0] = {evil, evil, evil, evil};
  f.simd_override = f.cpu_best = evil;
  f.cupti.usable = false;
  f.devices[0].compute_major = 12;
  std::vector<EnvironmentFacts> machines;
  for (const TapState tap : {TapState::kPrebuilt, TapState::kFailed, TapState::kNotPossible}) {
    f.python.tap = tap;
    machines.push_back(f);
  }
  for (std::string* missing : {&f.python.library, &f.python.torch, &f.python.python}) {
    missing->clear();
    machines.push_back(f);
  }
  for (const EnvironmentFacts& one : machines) {
    const std::string text = environment_to_text(one, false, 80), as_json = reports::dump_json(environment_to_json(one));
    for (const char* raw : {"\x1b", "\r", "\x7f", "\xe2\x80\xae", "\xff"}) {
      EXPECT_EQ(text.find(raw), std::string::npos);
      EXPECT_EQ(as_json.find(raw), std::string::npos);
    }
  }
}

TEST(DoctorEnv, tells_of_this_machine_and_asks_for_no_run) {
  const Outcome text = run_nanhunt({"doctor", "--env"});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* label : {"CPU", "Build", "Toolkit", "Driver", "CUPTI", "libcublas", "GPU", "libnanhunt", "Python", "PyTorch", "Tap"})
    EXPECT_THAT(text.out, HasSubstr(label));
  EXPECT_THAT(text.out, StartsWith("  PyTorch"));

  const Outcome out = run_nanhunt({"doctor", "--env", "--json"});
  EXPECT_EQ(out.status, 0) << out.err;
  const json env = json::parse(out.out);
  EXPECT_EQ(env["schema"], "nanhunt.environment");
  EXPECT_EQ(env["schema_version"], 1);
  EXPECT_TRUE(env["python"]["tap"].contains("listens"));
  EXPECT_EQ(env["devices"].empty(), !env["why_no_device"].is_null());
  EXPECT_EQ(env["cupti"]["usable"].get<bool>(), env["cupti"]["why_not"].is_null());
  if (!env["driver"]["found"].get<bool>() && env["build"]["cuda"].get<bool>()) {
    EXPECT_EQ(env["findings"][0]["key"], "no_driver");
  }
}

TEST(DoctorEnv, an_unsupported_override_of_vector_instructions_shows) {
  const Outcome out = run_nanhunt({"doctor", "--env", "--json"}, {.environment = {"NANHUNT_SIMD=avx9"}});
  EXPECT_THAT(out.out, HasSubstr("simd_override"));
}

TEST(DoctorEnv, the_python_that_is_named_is_asked_and_one_that_is_not_there_is_no_error) {
  const Outcome out = run_nanhunt({"doctor", "--env", "--json"}, {.environment = {"NANHUNT_PYTHON=/no/such/python"}});
  EXPECT_EQ(out.status, 0);
  const json python = json::parse(out.out)["python"];
  EXPECT_TRUE(python["path"].is_null());
  EXPECT_THAT(python["why_not"].get<std::string>(), HasSubstr("/no/such/python: No such file"));
  EXPECT_EQ(python["tap"]["state"], "not_possible");
  const Outcome silent = run_nanhunt({"doctor", "--env", "--json"}, {.environment = {"NANHUNT_PYTHON=true"}});
  EXPECT_THAT(json::parse(silent.out)["python"]["why_not"].get<std::string>(), HasSubstr("did not say"));
}

TEST(DoctorEnv, a_run_besides_is_wrong_usage_and_so_is_neither) {
  EXPECT_EQ(run_nanhunt({"doctor", "RUN", "--env"}).status, 2);
  EXPECT_EQ(run_nanhunt({"doctor", "--env", "--salvage", "x"}).status, 2);
  EXPECT_EQ(run_nanhunt({"doctor"}).status, 2);
  EXPECT_EQ(run_nanhunt({"doctor", "--json"}).status, 2);
  EXPECT_THAT(run_nanhunt({"doctor", "--help"}).out, HasSubstr("--env"));
}

}  // namespace
}  // namespace nanhunt::cli
