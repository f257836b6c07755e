// SPDX-License-Identifier: Apache-2.0
// KernelWatch against a libcupti of the tests' own (hooks/cupti/fake), and against the real one where it is installed.
// What only a GPU can show is not here.
#include "hooks/cupti/kernel_watch.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "hooks/cupti/fake/fake_cupti.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/support/silent_recorder.h"

namespace nanhunt::hooks {
namespace {

using fake::FakeCupti;
using fake::FakeKernel;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

FakeCupti& open_fake(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  FakeCupti& cupti = *reinterpret_cast<FakeCupti* (*)()>(dlsym(library, "fake_cupti"))();
  cupti.start_over();
  return cupti;
}

// A libcupti that was loaded stays in its process: what looks for one is tested in a child, so that no other test finds
// it.
template <typename Check>
void in_a_process_of_its_own(const Check& check) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      check();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see above for what the child said";
}

// Keeps what it is told of kernels, and the notes.
class CollectingRecorder final : public testing_support::SilentRecorder {
 public:
  struct Row {
    std::uint64_t seq;
    std::uint32_t step;
    std::string name;
    bool own;
    std::uint64_t count, timed;
    std::int64_t duration_ns;
    bool operator==(const Row&) const = default;
  };
  void on_kernel(const KernelEvent& e) noexcept override {
    rows.push_back({e.seq, e.step, std::string(e.name), e.own, e.count, e.timed, e.duration_ns});
  }
  void on_note(const NoteEvent& event) noexcept override { notes.emplace_back(event.text); }

  std::vector<Row> rows;
  std::vector<std::string> notes;
};
using Row = CollectingRecorder::Row;

class KernelWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!probe_cupti({.library = "/nowhere"}).built) GTEST_SKIP() << "this build has no CUPTI headers";
  }

  static KernelOptions options(const std::string& path = NANHUNT_FAKE_CUPTI) {
    KernelOptions o;
    o.library = o.driver = path;
    o.flush_ms = 5;
    return o;
  }
  std::unique_ptr<KernelWatch> attach(const KernelOptions& o = options()) {
    auto watch = KernelWatch::attach(o);
    if (!watch) throw std::runtime_error("kernels are not watched: " + watch.status().message());
    attached_before_ = std::exchange(attached_, true);
    return std::move(*watch);
  }
  static std::string refusal(const KernelOptions& o = options()) {
    auto watch = KernelWatch::attach(o);
    EXPECT_FALSE(watch);
    return watch ? "" : watch.status().message();
  }
  // An op that launches these.
  static void op(KernelWatch& watch, const FakeCupti& cupti, std::uint64_t seq, const std::vector<FakeKernel>& kernels,
                 bool graph = false, std::uint32_t step = 3) {
    const std::uint64_t ticket = watch.push_op();
    cupti.launch(kernels, graph);
    watch.pop_op(ticket, seq, step);
  }

  static inline bool attached_ = false, attached_before_ = false;  // in this process; before the last time
  testing_support::TempDir dir_;
  CollectingRecorder recorder_;
};

TEST_F(KernelWatchTest, kernels_come_back_as_rows_of_their_ops_in_whatever_order_cupti_tells_them) {
  for (const unsigned order : {0u, 1u, 2u, 3u}) {
    FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
    cupti.shuffle = order;
    auto watch = attach();
    watch->set_place(3, Phase::kForward);
    const std::uint64_t outer = watch->push_op();
    op(*watch, cupti, 10, {{"gemm", 100, 350}});
    cupti.launch({{"copy", 400, 410}}, false);  // the outer op's own
    watch->pop_op(outer, 11, 3);
    op(*watch, cupti, 12, {{"node_a", 500, 510}, {"node_b", 510, 530}, {"node_a", 530, 535}}, true);
    watch->push_own();
    cupti.launch({{"stats", 600, 604}}, false);
    watch->pop_own();
    cupti.launch({{"", 0, 0}}, false);
    cupti.other_call();
    watch->finish(recorder_);
    watch->detach();
  }
  const auto& rows = recorder_.rows;
  ASSERT_THAT(rows, SizeIs(24));
  for (std::size_t run = 0; run < 4; ++run) {
    EXPECT_THAT(std::vector<Row>(rows.begin() + 6 * static_cast<std::ptrdiff_t>(run),
                                 rows.begin() + 6 * static_cast<std::ptrdiff_t>(run) + 6),
                ElementsAre(Row{10, 3, "gemm", false, 1, 1, 250}, Row{11, 3, "copy", false, 1, 1, 10},
                            Row{12, 3, "node_a", false, 2, 2, 15}, Row{12, 3, "node_b", false, 1, 1, 20},
                            Row{kNoSeq, 3, "", false, 1, 0, 0}, Row{kNoSeq, 3, "stats", true, 1, 1, 4}))
        << run;
  }
  EXPECT_THAT(recorder_.notes, Contains("kernels without times"));
}

TEST_F(KernelWatchTest, rows_come_while_the_run_goes_on_without_asking_for_more_than_what_is_complete) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  op(*watch, cupti, 10, {{"gemm", 100, 350}});
  // when steps end
  EXPECT_TRUE(testing_support::eventually([&] {
    watch->drain(recorder_);
    return watch->stats().join.kernels > 0;
  }));
  watch->drain(recorder_);
  EXPECT_EQ(watch->stats().join.kernels, 1u);
  EXPECT_GT(watch->stats().flushes, 0u);
  watch->detach();
  EXPECT_THAT(recorder_.rows, ElementsAre(Row{10, 3, "gemm", false, 1, 1, 250}));
}

TEST_F(KernelWatchTest, each_thread_has_ops_of_its_own) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  const std::uint64_t ticket = watch->push_op();
  std::thread([&] {
    cupti.launch({{"of_no_op", 1, 2}}, false);
    op(*watch, cupti, 20, {{"backward", 5, 9}});
  }).join();
  cupti.launch({{"forward", 1, 4}}, false);
  watch->pop_op(ticket, 10, 3);
  watch->finish(recorder_);
  watch->detach();
  EXPECT_THAT(recorder_.rows, ElementsAre(Row{10, 3, "forward", false, 1, 1, 3}, Row{20, 3, "backward", false, 1, 1, 4},
                                      Row{kNoSeq, 3, "of_no_op", false, 1, 1, 1}));
}

TEST_F(KernelWatchTest, a_mark_that_cupti_refuses_takes_no_other_one_off) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  const std::uint64_t ticket = watch->push_op();
  cupti.push_result = 1;
  watch->push_own();
  cupti.push_result = 0;
  watch->pop_own();
  cupti.launch({{"gemm", 100, 350}}, false);
  watch->pop_op(ticket, 10, 3);
  watch->finish(recorder_);
  EXPECT_THAT(recorder_.rows, ElementsAre(Row{10, 3, "gemm", false, 1, 1, 250}));
  EXPECT_EQ(watch->stats().tags_failed, 1u);
}

TEST_F(KernelWatchTest, an_incumbent_is_named_and_left_alone) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  cupti.subscribe_result = 39;
  cupti.incumbent = "CUPTI for Kineto";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("room for one client"), HasSubstr("CUPTI for Kineto")));
  EXPECT_THAT(cupti.calls, ElementsAre("subscribe nanhunt"));  // nothing else was touched
  cupti.incumbent = "";
  EXPECT_THAT(refusal(), HasSubstr("does not say its name"));
  // and once it has gone
  cupti.subscribe_result = 0;
  EXPECT_NE(attach(), nullptr);
}

TEST_F(KernelWatchTest, any_refused_subscription_means_no_kernels) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  for (const int result : {1, 15, 35, 999}) {
    cupti.subscribe_result = result;
    EXPECT_THAT(refusal(), HasSubstr(std::to_string(result)));
  }
  EXPECT_THAT(refusal(), HasSubstr("without an NVIDIA driver"));
}

TEST_F(KernelWatchTest, a_refused_kind_takes_everything_back) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  cupti.refused_kind = 10;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("activity kind 10"), HasSubstr("35")));
  EXPECT_THAT(cupti.calls, Contains("disable 39"));
  EXPECT_EQ(cupti.calls.back(), "finalize");
  EXPECT_EQ(cupti.buffers_out, 0);
}

TEST_F(KernelWatchTest, what_a_library_lacks_is_named) {
  EXPECT_THAT(refusal(options(NANHUNT_FAKE_BROKEN)),
              AllOf(HasSubstr("lacks"), HasSubstr("cuptiFinalize"), HasSubstr("cuptiActivityPushExternalCorrelationId"),
                    Not(HasSubstr("cuptiSubscribe"))));
}

TEST_F(KernelWatchTest, a_library_that_is_not_there_is_said_by_name) {
  EXPECT_THAT(refusal(options("/nowhere/libcupti.so.13")), HasSubstr("/nowhere/libcupti.so.13"));
}

TEST_F(KernelWatchTest, versions_are_told_apart_by_both_numberings) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  for (const auto& [version, text] : std::vector<std::pair<std::uint32_t, std::string>>{
           {17, "too old"}, {18, "11.8 (18) is too old"}, {130000, "can hang"}, {140000, "14.0 (140000) is newer"}}) {
    cupti.version = version;
    EXPECT_THAT(refusal(), HasSubstr(text));
  }
  EXPECT_THAT(cupti.calls, IsEmpty());
  for (const std::uint32_t version : {19u, 24u, 28u, 130001u, 130100u, 130300u}) {
    cupti.version = version;
    EXPECT_NE(attach(), nullptr) << version;
  }
}

TEST_F(KernelWatchTest, calls_are_traced_that_launch_and_never_the_kind_that_serialises) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  EXPECT_THAT(cupti.calls, AllOf(Contains("enable 39"), Contains("enable 10"), Contains("enable 4"),
                                 Contains("enable 5"), Not(Contains("enable 3"))));
  // limits and zeroed buffers come before anything is switched on
  const auto at = [&](const std::string& call) {
    return std::find(cupti.calls.begin(), cupti.calls.end(), call) - cupti.calls.begin();
  };
  EXPECT_LT(at("set 2"), at("enable 39"));
  EXPECT_LT(at("set 5"), at("enable 39"));
  EXPECT_LT(at("buffers"), at("enable 39"));
}

TEST_F(KernelWatchTest, an_older_release_is_asked_in_its_own_way) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_OLD);
  cupti.version = 20;
  auto watch = attach(options(NANHUNT_FAKE_OLD));
  EXPECT_THAT(cupti.calls, AllOf(Contains("subscribe without a name"), Contains("enable 4")));
  op(*watch, cupti, 10, {{"gemm", 100, 350}});
  cupti.other_call();
  watch->finish(recorder_);
  EXPECT_EQ(watch->stats().join.launches_without_kernel, 0u);  // the other call is no launch
  watch->detach();
  EXPECT_THAT(cupti.calls, AllOf(Contains("disable 4"), Contains("disable 5")));
  EXPECT_THAT(recorder_.rows, ElementsAre(Row{10, 3, "gemm", false, 1, 1, 250}));
}

TEST_F(KernelWatchTest, detaching_turns_everything_off_and_finalizes_at_the_exit_of_a_driver_call) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  op(*watch, cupti, 10, {{"gemm", 100, 350}});
  cupti.calls.clear();
  watch->detach();
  EXPECT_THAT(cupti.calls, ElementsAre("disable 5", "disable 4", "disable 10", "disable 39", "tell of call 2",
                                       "driver call begins", "driver call ends", "unsubscribe", "finalize"));
  EXPECT_EQ(cupti.buffers_out, 0);
  EXPECT_TRUE(watch->stats().finalized);
  // Afterwards nothing is asked of CUPTI.
  watch->detach();
  EXPECT_EQ(watch->push_op(), 0u);
  watch->pop_op(0, 1, 1);
  watch->set_place(1, Phase::kData);
  watch->drain(recorder_);
  watch->finish(recorder_);
  EXPECT_THAT(cupti.calls, SizeIs(9));
}

TEST_F(KernelWatchTest, detaching_waits_for_a_thread_that_is_inside_of_cupti) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  std::promise<void> inside, go_on;
  cupti.on_push = [&] {
    inside.set_value();
    go_on.get_future().wait();
  };
  std::thread run([&] { watch->pop_op(watch->push_op(), 1, 1); });
  inside.get_future().wait();
  std::atomic<bool> left{false};
  std::thread leaving([&] {
    watch->detach();
    left = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(left);
  go_on.set_value();
  run.join();
  leaving.join();
  cupti.on_push = nullptr;
  EXPECT_TRUE(watch->stats().finalized);
}

TEST_F(KernelWatchTest, where_no_driver_call_can_carry_the_way_out_the_subscription_is_given_back) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  cupti.driver_calls_back = false;
  auto watch = attach();
  watch->detach();
  EXPECT_THAT(cupti.calls, AllOf(Contains("unsubscribe"), Not(Contains("finalize"))));
  EXPECT_FALSE(watch->stats().finalized);
  KernelOptions o = options();
  o.driver = "/nowhere/libcuda.so.1";
  cupti.calls.clear();
  watch = attach(o);
  watch->detach();
  EXPECT_THAT(cupti.calls, AllOf(Contains("unsubscribe"), Not(Contains("finalize"))));
}

TEST_F(KernelWatchTest, it_can_be_attached_again_but_not_twice_at_once) {
  open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  EXPECT_EQ(watch->stats().second_session, attached_before_);
  EXPECT_THAT(refusal(), HasSubstr("already"));
  watch.reset();
  watch = attach();
  EXPECT_TRUE(watch->stats().second_session);
  const auto notes = kernel_notes(watch->stats());
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(),
                          [](const KernelNote& it) { return it.text.find("13.1") != std::string::npos; }));
}

TEST_F(KernelWatchTest, a_context_that_was_there_before_is_noticed) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  EXPECT_FALSE(attach()->stats().late);
  cupti.context_active = true;
  EXPECT_TRUE(attach()->stats().late);
}

TEST_F(KernelWatchTest, buffers_are_bounded_zeroed_and_what_they_lost_is_counted) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  KernelOptions o = options();
  o.buffer_bytes = 4096;
  o.max_buffers = 3;
  auto watch = attach(o);
  // when CUPTI holds all of them and asks for more
  int taken = 0;
  while (taken < 10 && cupti.take_buffer()) ++taken;
  EXPECT_LE(taken, 3);
  EXPECT_GE(watch->stats().buffers_refused, 1u);
  // and hands them back, having dropped records meanwhile
  cupti.dropped = 41;
  cupti.return_buffers(true);
  watch->finish(recorder_);  // they are read, and free again
  for (int round = 0; round < 20; ++round) {
    op(*watch, cupti, static_cast<std::uint64_t>(round), {{"gemm", 100, 350}});
    watch->finish(recorder_);
  }
  const KernelStats stats = watch->stats();
  EXPECT_GE(stats.dropped, 41u);
  EXPECT_EQ(stats.incomplete, static_cast<std::uint64_t>(taken));
  EXPECT_EQ(stats.join.kernels, 20u);
  EXPECT_THAT(cupti.dirty, IsEmpty());
  watch->detach();
  EXPECT_THAT(recorder_.notes, Contains("activity records of kernels that CUPTI dropped for want of buffers"));
  EXPECT_THAT(recorder_.notes, Contains("buffers of activity records that CUPTI was refused"));
}

TEST_F(KernelWatchTest, releases_that_crash_when_refused_a_buffer_are_given_one) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  cupti.version = 24;
  KernelOptions o = options();
  o.buffer_bytes = 4096;
  o.max_buffers = 2;
  auto watch = attach(o);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(cupti.take_buffer());
  EXPECT_EQ(watch->stats().buffers_refused, 0u);
}

// Callbacks come while CUPTI holds locks of its own, and calls into CUPTI take them: a lock of ours across both would
// end in a deadlock here.
TEST_F(KernelWatchTest, launches_flushes_and_drains_of_several_threads_do_not_wait_for_each_other) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  KernelOptions o = options();
  o.flush_ms = 1;
  o.buffer_bytes = 2048;
  auto watch = attach(o);
  std::atomic<std::uint64_t> launched{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        watch->set_place(static_cast<std::uint32_t>(i), Phase::kBackward);
        op(*watch, cupti, static_cast<std::uint64_t>(1000 * t + i), {{"k", 10, 20}});
        ++launched;
        if (i % 50 == 0) cupti.take_buffer(), cupti.return_buffers(false);
      }
    });
  }
  while (launched < 900) watch->drain(recorder_);
  for (std::thread& thread : threads) thread.join();
  watch->finish(recorder_);
  watch->detach();
  const KernelStats stats = watch->stats();
  EXPECT_LE(stats.join.kernels, 900u);
  if (stats.dropped + stats.buffers_refused == 0) {
    EXPECT_EQ(stats.join.kernels, 900u);
  }
  EXPECT_EQ(cupti.buffers_out, 0);
}

TEST_F(KernelWatchTest, kernels_that_are_still_running_at_the_end_are_asked_for_by_force) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  cupti.hold_kernels = true;
  auto watch = attach();
  op(*watch, cupti, 10, {{"gemm", 100, 350}});
  watch->drain(recorder_);
  EXPECT_EQ(watch->stats().join.kernels, 0u);
  watch->finish(recorder_);
  EXPECT_EQ(watch->stats().join.kernels, 1u);
}

TEST_F(KernelWatchTest, a_copy_that_the_process_has_already_is_taken) {
  const std::string copy = dir_.path("libcupti.so.12");
  std::filesystem::copy_file(NANHUNT_FAKE_CUPTI, copy);
  in_a_process_of_its_own([&] {
    FakeCupti& cupti = open_fake(copy);
    KernelOptions o = options();
    o.library = "";
    const CuptiFacts facts = probe_cupti(o);
    EXPECT_TRUE(facts.loaded_before);
    EXPECT_EQ(facts.path, copy);
    EXPECT_TRUE(facts.usable) << facts.why_not;
    EXPECT_EQ(facts.version_text, "13.0 (130001)");
    EXPECT_THAT(cupti.calls, AllOf(Contains("subscribe nanhunt"), Contains("unsubscribe"), Not(Contains("enable 10"))));
  });
}

TEST_F(KernelWatchTest, a_forked_child_leaves_it_to_its_parent) {
  FakeCupti& cupti = open_fake(NANHUNT_FAKE_CUPTI);
  auto watch = attach();
  cupti.calls.clear();
  const pid_t child = fork();
  if (child == 0) {
    watch->detach();
    watch.reset();
    _exit(cupti.calls.empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// The toolkit's own library: without a driver every subscription is refused, whatever else it says.
TEST(RealCupti, says_why_kernels_are_not_watched_where_there_is_no_driver) {
  if (const CuptiFacts facts = probe_cupti({.library = "/nowhere"}); !facts.built) GTEST_SKIP() << facts.why_not;
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "there is a driver here";
  in_a_process_of_its_own([] {
    const CuptiFacts facts = probe_cupti();
    EXPECT_FALSE(facts.usable);
    auto watch = KernelWatch::attach();
    ASSERT_FALSE(watch);
    EXPECT_EQ(watch.status().message(), facts.why_not);
    if (facts.path.empty()) {  // none is installed here
      EXPECT_THAT(facts.why_not, HasSubstr("libcupti was not found"));
      return;
    }
    EXPECT_GE(facts.version, 19u);
    EXPECT_THAT(facts.why_not, AllOf(HasSubstr("refused a subscription"), HasSubstr("999")));
    EXPECT_THAT(not_watched_note(facts.why_not), HasSubstr("kernels: not watched, because CUPTI"));
  });
}

TEST(CuptiVersions, are_named_as_their_toolkits_are) {
  EXPECT_EQ(cupti_version_text(24), "12.6 (24)");
  EXPECT_EQ(cupti_version_text(130001), "13.0 (130001)");
  EXPECT_EQ(cupti_version_text(130205), "13.2 (130205)");
  EXPECT_EQ(cupti_version_text(25), "unknown (25)");
  EXPECT_EQ(cupti_version_refusal(28), "");
  EXPECT_EQ(cupti_version_refusal(130001), "");
  EXPECT_NE(cupti_version_refusal(0), "");
}

TEST(KernelNames, are_told_as_people_write_them) {
  EXPECT_EQ(readable_kernel_name("_ZN2at6native4fillEPfi"), "at::native::fill(float*, int)");
  for (const char* name : {"", "sgemm_128x64_nn", "_Z", "_Znot a name", "_ZN2at6native4fillEPf\x01"})
    EXPECT_EQ(readable_kernel_name(name), name);
  EXPECT_EQ(readable_kernel_name(std::string(5000, 'k')).size(), 1024u);
}

TEST(KernelNotes, say_nothing_where_nothing_was_missed) {
  EXPECT_TRUE(kernel_notes({}).empty());
  KernelStats stats;
  stats.dropped = 3;
  stats.late = true;
  EXPECT_EQ(kernel_notes(stats).size(), 2u);
}

}  // namespace
}  // namespace nanhunt::hooks
