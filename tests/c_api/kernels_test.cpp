// SPDX-License-Identifier: Apache-2.0
// Kernels of ops through the C interface, against the libcupti of hooks/cupti/fake. What only a GPU shows is not here.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/c_api/adapter_fixture.h"
#include "tests/c_api/fresh_cupti.h"
#include "tests/support/eventually.h"

namespace nanhunt::c_api_tests {
namespace {

using nanhunt::fake::FakeCupti;
constexpr std::uint64_t kNone = ~std::uint64_t{0};

// What a process does at its very end, after all that was begun in it.
std::atomic<int> flushes{0};
bool ends_attached = false;
struct AtTheEnd {
  ~AtTheEnd() {
    if (!ends_attached) return;
    const int before = flushes.load();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (flushes.load() != before) _exit(7);
  }
} at_the_end;

// 0: it ended so by itself, and did not hang.
template <typename F>
int status_of_child(F&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);
    body();
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

class CKernels : public CAdapter {
 protected:
  void SetUp() override {
    if (std::string(NANHUNT_FAKE_CUPTI).empty()) GTEST_SKIP() << "this build has no CUPTI headers";
    cupti_ = fresh_fake_cupti();
    ASSERT_NE(cupti_, nullptr) << dlerror();
    CAdapter::SetUp();
  }

  static nanhunt_kernel_options options() {
    nanhunt_kernel_options o{};
    o.struct_size = sizeof o;
    o.flush_ms = 1;
    o.library = o.driver = NANHUNT_FAKE_CUPTI;
    return o;
  }
  nanhunt_status attach() const {
    const nanhunt_kernel_options o = options();
    return nanhunt_kernels_attach(recorder_, &o);
  }
  nanhunt_kernel_counts counts() const {
    nanhunt_kernel_counts c{};
    c.struct_size = sizeof c;
    EXPECT_EQ(nanhunt_kernel_counters(recorder_, &c), NANHUNT_OK) << nanhunt_last_error();
    return c;
  }
  // y = log(x), by this kernel; nanhunt reads y with one of its own.
  void log(const void* x, const void* y, std::int64_t storage, const char* kernel) {
    const std::uint64_t ticket = nanhunt_kernels_push(recorder_);
    cupti_->launch({{kernel, 100, 350}}, false);
    const std::uint64_t seq = nanhunt_recorder_next_seq(recorder_);
    nanhunt_kernels_push_own(recorder_);
    cupti_->launch({{"read", 400, 410}}, false);
    ASSERT_EQ(record(log_row(x, y, storage)), NANHUNT_OK);
    nanhunt_kernels_pop_own(recorder_);
    nanhunt_kernels_pop(recorder_, ticket, seq, 0);
  }
  std::string report() const {
    char* text = nullptr;
    EXPECT_EQ(nanhunt_report(folder_.c_str(), NANHUNT_JSON, &text, nullptr), NANHUNT_OK) << nanhunt_last_error();
    const std::string all = text == nullptr ? "" : text;
    nanhunt_free(text);
    return all;
  }
  static std::uint64_t kernels_of(const RecordBatch& all, std::uint64_t seq, bool own = false) {
    std::uint64_t count = 0;
    for (const KernelRecord& it : all.kernels) count += it.seq == seq && it.own == own ? it.count : 0;
    return count;
  }

  FakeCupti* cupti_ = nullptr;
};

TEST_F(CKernels, the_kernel_of_the_origin_is_named_in_the_report) {
  ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
  // given an op with a bad result after one without
  y_[0] = 0;
  log(x_.data(), y_.data(), 1, "fine_kernel");
  y_[0] = -INFINITY;
  log(x_.data(), y_.data(), 3, "log_kernel");
  cupti_->launch({{"of_nobody", 500, 501}}, false);
  // that is the loss
  Words loss = {NANHUNT_ROW_MARK, NANHUNT_LOSS, 0, 0, text("loss")};
  append(loss, value(y_.data(), 4));
  ASSERT_EQ(record(loss), NANHUNT_OK) << nanhunt_last_error();
  ASSERT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(counts().kernels, 5u);
  EXPECT_EQ(counts().own, 2u);
  EXPECT_EQ(counts().without_op, 1u);
  EXPECT_EQ(counts().lost, 0u);
  EXPECT_EQ(counts().finalized, 1);
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.ops, SizeIs(2));
  EXPECT_EQ(kernels_of(all, all.ops[0].seq), 1u);
  EXPECT_EQ(kernels_of(all, all.ops[1].seq), 1u);
  EXPECT_EQ(kernels_of(all, kNone, true), 2u);
  EXPECT_EQ(kernels_of(all, kNone), 1u);
  const std::string told = report();
  EXPECT_THAT(told, HasSubstr("\"kernel\": \"log_kernel\""));
  EXPECT_THAT(told, HasSubstr("kernels that no watched op launched (1)"));
}

TEST_F(CKernels, of_a_launch_for_many_rows_the_first_bad_one_has_the_kernels) {
  ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
  const std::vector<float> good = {1, 1, 1, 1, 1, 1, 1, 1}, bad = {1, NAN, 1, 1, 1, 1, 1, 1};
  const auto launch_for = [&](std::int64_t storage, const std::vector<const float*>& results) {
    const std::uint64_t ticket = nanhunt_kernels_push(recorder_);
    cupti_->launch({{"foreach", 1, 2}}, false);
    const std::uint64_t seq = nanhunt_recorder_next_seq(recorder_);
    Words rows;
    for (std::size_t i = 0; i < results.size(); ++i) {
      append(rows, log_row(good.data(), results[i], storage + 2 * static_cast<std::int64_t>(i)));
    }
    EXPECT_EQ(record(rows), NANHUNT_OK) << nanhunt_last_error();
    nanhunt_kernels_pop(recorder_, ticket, seq, 0);
    return seq;
  };
  const std::uint64_t one = launch_for(1, {good.data(), bad.data(), bad.data()});
  const std::uint64_t other = launch_for(11, {good.data(), good.data()});
  const RecordBatch all = close_and_read();
  EXPECT_EQ(kernels_of(all, one + 1), 1u);
  EXPECT_EQ(kernels_of(all, one), 0u);
  EXPECT_EQ(kernels_of(all, other), 1u);
}

TEST_F(CKernels, rows_come_at_step_ends_without_anything_being_forced) {
  ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
  log(x_.data(), y_.data(), 1, "log_kernel");
  EXPECT_TRUE(testing_support::eventually([&] {
    EXPECT_EQ(nanhunt_kernels_drain(recorder_), NANHUNT_OK);
    return counts().kernels >= 2;
  }));
  EXPECT_EQ(counts().kernels, 2u);
}

TEST_F(CKernels, closing_the_recorder_detaches) {
  ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
  log(x_.data(), y_.data(), 1, "log_kernel");
  const RecordBatch all = close_and_read();
  EXPECT_EQ(kernels_of(all, all.ops.at(0).seq), 1u);
  EXPECT_EQ(cupti_->calls.back(), "finalize");
}

TEST_F(CKernels, an_incumbent_is_named_under_coverage_and_the_run_goes_on) {
  cupti_->subscribe_result = 39;
  cupti_->incumbent = "CUPTI for Kineto";
  EXPECT_EQ(attach(), NANHUNT_UNSUPPORTED);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("CUPTI for Kineto"));
  EXPECT_EQ(attach(), NANHUNT_UNSUPPORTED);
  log(x_.data(), y_.data(), 1, "log_kernel");
  EXPECT_EQ(nanhunt_kernels_drain(recorder_), NANHUNT_OK);
  EXPECT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  EXPECT_EQ(counts().version, 0u);
  EXPECT_THAT(close_and_read().kernels, IsEmpty());
  EXPECT_THAT(report(), HasSubstr("kernels: not watched, because CUPTI has room for one client and CUPTI for Kineto is "
                                  "there (2)"));
}

TEST_F(CKernels, a_library_that_is_not_there_is_named) {
  nanhunt_kernel_options o = options();
  o.library = "/nowhere/libcupti.so.13";
  EXPECT_EQ(nanhunt_kernels_attach(recorder_, &o), NANHUNT_NOT_FOUND);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("/nowhere/libcupti.so.13"));
}

TEST_F(CKernels, nothing_is_asked_of_cupti_before_and_after) {
  log(x_.data(), y_.data(), 1, "log_kernel");
  EXPECT_EQ(nanhunt_kernels_push(recorder_), 0u);
  nanhunt_kernels_place(recorder_, 1, NANHUNT_PHASE_BACKWARD);
  EXPECT_THAT(cupti_->calls, IsEmpty());
  ASSERT_EQ(attach(), NANHUNT_OK);
  ASSERT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  const auto calls = cupti_->calls.size();
  log(x_.data(), y_.data(), 3, "log_kernel");
  EXPECT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  EXPECT_EQ(cupti_->calls.size(), calls);
}

TEST_F(CKernels, it_can_be_attached_again_and_losses_add_up) {
  for (int session = 0; session < 2; ++session) {
    ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
    cupti_->launch({{"of_nobody", 1, 2}, {"of_nobody", 2, 3}}, false);
    ASSERT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
    EXPECT_EQ(counts().without_op, 2u);
  }
  static_cast<void>(close_and_read());
  EXPECT_THAT(report(), HasSubstr("kernels that no watched op launched (4)"));
}

TEST_F(CKernels, an_op_that_ends_in_a_later_session_is_not_mistaken_for_one_of_it) {
  ASSERT_EQ(attach(), NANHUNT_OK);
  const std::uint64_t old = nanhunt_kernels_push(recorder_);
  ASSERT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  ASSERT_EQ(attach(), NANHUNT_OK);
  const std::uint64_t now = nanhunt_kernels_push(recorder_);
  EXPECT_NE(old, now);
  nanhunt_kernels_pop(recorder_, old, 7, 0);
  cupti_->launch({{"kernel", 1, 2}}, false);
  nanhunt_kernels_pop(recorder_, now, 8, 0);
  const RecordBatch all = close_and_read();
  EXPECT_EQ(kernels_of(all, 8), 1u);
}

TEST_F(CKernels, what_is_wrong_is_refused) {
  nanhunt_kernel_options o = options();
  o.flush_ms = -1;
  EXPECT_EQ(nanhunt_kernels_attach(recorder_, &o), NANHUNT_USAGE);
  o.struct_size = 0;
  EXPECT_EQ(nanhunt_kernels_attach(recorder_, &o), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_kernels_attach(nullptr, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_kernels_drain(nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_kernels_detach(nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_kernel_counters(recorder_, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_kernels_push(nullptr), 0u);
  nanhunt_kernels_pop(nullptr, 1, 1, 1);
  nanhunt_kernels_push_own(nullptr);
  nanhunt_kernels_pop_own(nullptr);
  nanhunt_kernels_place(nullptr, 1, 1);
  nanhunt_kernels_place(recorder_, 1, 99);
  ASSERT_EQ(attach(), NANHUNT_OK);
  nanhunt_kernels_place(recorder_, 1, 99);
  EXPECT_EQ(attach(), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("already"));
}

TEST_F(CKernels, threads_may_be_inside_while_it_is_attached_again) {
  std::atomic<bool> done{false};
  std::vector<std::thread> run;
  for (int i = 0; i < 3; ++i) {
    run.emplace_back([&] {
      while (!done.load()) {
        const std::uint64_t ticket = nanhunt_kernels_push(recorder_);
        nanhunt_kernels_push_own(recorder_);
        nanhunt_kernels_pop_own(recorder_);
        nanhunt_kernels_place(recorder_, 1, NANHUNT_PHASE_FORWARD);
        nanhunt_kernels_pop(recorder_, ticket, kNone, 1);
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(attach(), NANHUNT_OK) << nanhunt_last_error();
    ASSERT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  }
  done = true;
  for (std::thread& thread : run) thread.join();
  EXPECT_EQ(counts().finalized, 1);
  EXPECT_EQ(nanhunt_kernels_push(recorder_), 0u);
}

TEST_F(CKernels, a_forked_child_asks_nothing_of_cupti_and_waits_for_nobody) {
  ASSERT_EQ(attach(), NANHUNT_OK);
  cupti_->hold_kernels = true;
  const std::uint64_t ticket = nanhunt_kernels_push(recorder_);
  const auto calls = cupti_->calls.size();
  EXPECT_EQ(status_of_child([&] {
              if (nanhunt_kernels_push(recorder_) != 0) _exit(1);
              nanhunt_kernels_pop(recorder_, ticket, kNone, 0);
              if (nanhunt_kernels_drain(recorder_) != NANHUNT_OK) _exit(2);
              if (counts().version != 0) _exit(3);
              nanhunt_recorder_close(recorder_);  // in time, though the thread that would answer is not here
              nanhunt_recorder* own = nullptr;
              const nanhunt_recorder_options how = CAdapter::options();
              const nanhunt_kernel_options o = options();
              if (nanhunt_recorder_open(&how, &own) != NANHUNT_OK) _exit(4);
              if (nanhunt_kernels_attach(own, &o) != NANHUNT_UNSUPPORTED) _exit(5);
              if (std::string(nanhunt_last_error()).find("forked") == std::string::npos) _exit(6);
              if (cupti_->calls.size() != calls) _exit(7);
            }),
            0);
  nanhunt_kernels_pop(recorder_, ticket, kNone, 0);
  EXPECT_EQ(nanhunt_kernels_detach(recorder_), NANHUNT_OK);
  EXPECT_EQ(counts().finalized, 1);
}

TEST_F(CKernels, a_process_that_ends_while_attached_is_out_of_cupti_before_that_ends) {
  EXPECT_EQ(status_of_child([&] {
              ends_attached = true;
              cupti_->on_flush = [] { ++flushes; };
              if (attach() != NANHUNT_OK) _exit(1);
              while (flushes.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              std::exit(0);
            }),
            0);
}

TEST_F(CKernels, one_recorder_of_a_process_watches_at_a_time) {
  ASSERT_EQ(attach(), NANHUNT_OK);
  nanhunt_recorder* other = nullptr;
  const nanhunt_recorder_options how = CAdapter::options();
  ASSERT_EQ(nanhunt_recorder_open(&how, &other), NANHUNT_OK) << nanhunt_last_error();
  const nanhunt_kernel_options o = options();
  EXPECT_EQ(nanhunt_kernels_attach(other, &o), NANHUNT_UNSUPPORTED);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("already"));
  nanhunt_recorder_close(other);
  EXPECT_EQ(counts().finalized, 0);
}

}  // namespace
}  // namespace nanhunt::c_api_tests
