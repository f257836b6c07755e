// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "nanhunt/recorder.h"
#include "tests/fleet/rank_program.h"
#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

namespace fs = std::filesystem;
using fleet_tests::RankPlan;
using fleet_tests::train_rank;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int kPatienceMs = 600'000;  // ends what hangs

// A training that goes as far as a test lets it.
class LiveTraining {
 public:
  explicit LiveTraining(const std::string& run) {
    RecorderOptions options;
    options.run_dir = run;
    RunInfo info;
    info.framework = "simulated";
    info.level = "steps";
    auto opened = Recorder::open(options, info);
    if (opened) recorder_ = std::move(*opened);
  }
  void step(double loss) {
    HealthEvent health;
    health.step = step_;
    health.bad = std::isfinite(loss) ? 0u : 1u;
    health.gradient_norm = health.weight_norm = 1;
    recorder_->on_health(health);
    StepEvent event;
    event.step = step_++;
    event.loss = loss;
    event.lr = 0.1;
    recorder_->on_step_end(event);
    EXPECT_TRUE(recorder_->flush());
  }
  void close() { EXPECT_TRUE(recorder_->close()); }

 private:
  std::unique_ptr<Recorder> recorder_;
  std::uint32_t step_ = 0;
};

// `nanhunt watch` while it runs. Ended with this.
class WatchProcess {
 public:
  explicit WatchProcess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {NANHUNT_BIN_DIR "/nanhunt", "watch", "--every", "0.05"});
    std::vector<char*> argv;
    for (std::string& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::array<int, 2> out{};
    if (::pipe2(out.data(), O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
    EXPECT_EQ(::posix_spawn(&child_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    out_ = out[0];
  }
  ~WatchProcess() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      wait();
    }
    ::close(out_);
  }
  WatchProcess(const WatchProcess&) = delete;
  WatchProcess& operator=(const WatchProcess&) = delete;

  // The next line; empty: it has ended.
  std::string line() {
    for (;;) {
      if (const std::size_t end = read_.find('\n'); end != std::string::npos) {
        std::string next = read_.substr(0, end);
        read_.erase(0, end + 1);
        return next;
      }
      pollfd polled{out_, POLLIN, 0};
      std::array<char, 4096> bytes{};
      if (::poll(&polled, 1, kPatienceMs) != 1) return "(nothing came)";
      const ssize_t n = ::read(out_, bytes.data(), bytes.size());
      if (n <= 0) return "";
      read_.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }
  // The first line in which `key` is `value`.
  json line_where(const std::string& key, const json& value) {
    for (std::string text = line(); !text.empty(); text = line()) {
      const json read = json::parse(text, nullptr, false);
      if (read.is_discarded()) break;
      if (read.value(json::json_pointer(key), json()) == value) return read;
    }
    ADD_FAILURE() << key << " never became " << value;
    return json::object();
  }
  void send(int signal) const { ::kill(child_, signal); }
  int wait() {
    int status = 0;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t child_ = -1;
  int out_ = -1;
  std::string read_;
};

std::string a_run() { return make_folder() + "/run"; }

// A run of four ranks; `hit` overflows in step 2.
std::string fleet_of_four(int hit) {
  const std::string run = a_run();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    RankPlan plan;
    plan.group = {0, 1, 2, 3};
    if (hit >= 0) (rank == static_cast<std::uint32_t>(hit) ? plan.overflows : plan.arrives) = 2;
    train_rank(run, {rank, 4, {{"data", rank}}, "n0", {}}, plan);
  }
  return run;
}

TEST(Watch, follows_a_run_until_it_ends_with_a_line_for_each_change) {
  const std::string run = a_run();
  LiveTraining training(run);
  training.step(3);
  WatchProcess watch({run, "--json"});
  const json first = watch.line_where("/step/highest", 0);
  EXPECT_EQ(first["schema"], "nanhunt.watch");
  EXPECT_EQ(first["schema_version"], 1);
  EXPECT_EQ(first["state"], "training");
  EXPECT_EQ(first["loss"], 3.0);
  training.step(2);
  EXPECT_EQ(watch.line_where("/step/highest", 1)["loss"], 2.0);
  training.close();
  const json last = watch.line_where("/state", "ended");
  EXPECT_EQ(last["status"], "clean");
  EXPECT_EQ(last["clean_through"], 1);
  EXPECT_EQ(watch.line(), "");
  EXPECT_EQ(watch.wait(), 0);
}

TEST(Watch, shows_a_fault_when_it_comes_and_ends_with_status_1) {
  const std::string run = a_run();
  LiveTraining training(run);
  training.step(3);
  WatchProcess watch({run, "--json"});
  EXPECT_EQ(watch.line_where("/step/highest", 0)["faults"], json::array());
  training.step(kNotANumber);
  const json bad = watch.line_where("/bad_steps", 1);
  EXPECT_EQ(bad["status"], "fault");
  ASSERT_EQ(bad["faults"].size(), 1u);
  EXPECT_EQ(bad["faults"][0]["step"], 1);
  EXPECT_EQ(bad["clean_through"], 0);
  training.close();
  watch.line_where("/state", "ended");
  EXPECT_EQ(watch.wait(), 1);
}

TEST(Watch, waits_for_a_run_that_has_not_begun_and_says_so) {
  const std::string run = a_run();
  WatchProcess watch({run});
  std::set<std::string> said = {watch.line(), watch.line()};
  EXPECT_EQ(said, (std::set<std::string>{"not begun", "nanhunt: '" + run + "' holds no run yet: waiting for it"}));
  LiveTraining training(run);
  training.step(3);
  training.close();
  std::string last;
  for (std::string line = watch.line(); !line.empty(); line = watch.line()) last = line;
  EXPECT_THAT(last, StartsWith("ended  step 0  loss 3"));
  EXPECT_EQ(watch.wait(), 0);
}

TEST(Watch, once_looks_once) {
  const std::string run = a_run();
  EXPECT_EQ(run_nanhunt({"watch", "--once", run}).status, 3);
  EXPECT_EQ(json::parse(run_nanhunt({"watch", "--once", "--json", run}).out)["state"], "not_begun");
  LiveTraining training(run);
  training.step(3);
  const Outcome seen = run_nanhunt({"watch", "--once", run});
  EXPECT_EQ(seen.status, 0);
  EXPECT_EQ(seen.out, "training  step 0  loss 3  clean through step 0; 0 bad steps, 0 skipped\n");
}

TEST(Watch, says_that_nothing_new_comes_and_is_then_inconclusive) {
  const std::string run = a_run();
  LiveTraining training(run);
  training.step(3);
  WatchProcess watch({run, "--quiet-after", "0.2"});
  std::string line = watch.line();
  while (!line.empty() && line.find("hangs, or was killed") == std::string::npos) line = watch.line();
  EXPECT_THAT(line, StartsWith("nothing new for "));
  watch.send(SIGTERM);
  EXPECT_EQ(watch.line(), "");
  EXPECT_EQ(watch.wait(), 5);
}

TEST(Watch, a_signal_ends_it_with_the_status_so_far) {
  const std::string run = a_run();
  LiveTraining training(run);
  training.step(kNotANumber);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    WatchProcess watch({run, "--json"});
    watch.line_where("/bad_steps", 1);
    watch.send(signal);
    EXPECT_EQ(watch.wait(), 1) << signal;
  }
}

TEST(Watch, of_many_ranks_shows_counts_and_the_headline_of_the_fleet) {
  const Outcome seen = run_nanhunt({"watch", "--json", fleet_of_four(2)});
  EXPECT_EQ(seen.status, 1) << seen.err;
  const json status = json::parse(seen.out);
  EXPECT_EQ(status["ranks"], (json{{"seen", 4}, {"training", 0}, {"ended", 4}, {"quiet", 0}}));
  EXPECT_EQ(status["world_size"], 4);
  EXPECT_THAT(status["headline"].get<std::string>(), StartsWith("Rank 2 alone: overflow at mul in block (train.py:10), step 2"));
  EXPECT_EQ(status["clean_through"], 1);
  ASSERT_EQ(status["groups"].size(), 4u);
  EXPECT_EQ(status["groups"][2]["dimension"], "data");
  EXPECT_EQ(status["groups"][2]["value"], "2");
  const Outcome text = run_nanhunt({"watch", fleet_of_four(2)});
  EXPECT_THAT(text.out, HasSubstr("ranks 4 of 4 seen: 4 ended"));
  EXPECT_THAT(text.out, HasSubstr("FAULT  "));
  EXPECT_EQ(run_nanhunt({"watch", fleet_of_four(-1)}).status, 0);
}

TEST(Watch, a_damaged_digest_is_status_4_where_the_others_are_healthy) {
  const std::string run = fleet_of_four(-1);
  write_file(run + "/rank-00001/attempt-0/digest.json", "{\"schema\":");
  const Outcome seen = run_nanhunt({"watch", run, "--json"});
  EXPECT_EQ(seen.status, 4);
  EXPECT_EQ(json::parse(seen.out)["damaged"], 1);
}

TEST(Watch, names_of_a_program_cannot_steer_a_terminal) {
  RankPlan plan;
  plan.overflows = 1;
  const std::string run = make_folder() + "/run\x1b[31m";
  train_rank(run, {0, 2, {}, "\x1b[31mhost\n", {}}, plan);
  const Outcome seen = run_nanhunt({"watch", run, "--once"});
  EXPECT_THAT(seen.out + seen.err, Not(HasSubstr("\x1b")));
}

TEST(Watch, ends_when_nobody_reads_it_any_more) {
  const std::string run = a_run();
  LiveTraining training(run);
  std::atomic<bool> watched = true;
  std::thread steps([&] {  // goes on as long as it is watched
    while (watched) {
      training.step(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  RunOptions options;
  options.close_stdout_early = true;
  EXPECT_EQ(run_nanhunt({"watch", run, "--every", "0.05"}, options).status, 0);
  watched = false;
  steps.join();
}

TEST(Watch, what_is_no_folder_is_refused) {
  const std::string file = make_folder() + "/file";
  write_file(file, "x");
  const Outcome seen = run_nanhunt({"watch", file});
  EXPECT_EQ(seen.status, 3);
  EXPECT_THAT(seen.err, HasSubstr("is a file. Name the folder of a run."));
  EXPECT_EQ(run_nanhunt({"watch", file, "--every", "0"}).status, 2);
}

}  // namespace
}  // namespace nanhunt::testing_tools
