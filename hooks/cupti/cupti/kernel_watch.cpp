// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/kernel_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "hooks/cupti/cupti/buffers.h"
#include "hooks/cupti/cupti/library.h"
#include "hooks/cupti/cupti/session.h"

namespace nanhunt::hooks {
namespace {

constexpr std::size_t kMaxRawNameBytes = 4096;
constexpr std::size_t kMaxKnownNames = 4096;
constexpr int kTicketBits = 40;  // below the number of the session
constexpr std::chrono::seconds kLastFlush{5};     // a driver that hangs may not take the end of the run with it
constexpr std::chrono::seconds kLastCall{5};      // nor may a thread that never comes back from CUPTI
constexpr std::uint32_t kMayRefuseBuffers = 27;   // 12.9; before, CUPTI crashes when it is given none
constexpr auto kOpKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;
constexpr auto kPlaceKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;

std::atomic<bool> watching{false};
std::atomic<std::uint32_t> sessions{0};

// What of this process CUPTI calls back into, or is called by; nullptr where nothing is attached.
class KernelWatchImpl;
std::atomic<KernelWatchImpl*> live{nullptr};
std::mutex leaving;  // at the end of the process or before: not looked at once
std::atomic<bool> forked_while_live{false};
void when_forked() noexcept;
void at_exit() noexcept;
// After CUPTI was loaded, so that its own end comes later.
void learn_of_ends() {
  [[maybe_unused]] static const bool registered =
      pthread_atfork(nullptr, nullptr, &when_forked) == 0 && std::atexit(&at_exit) == 0;
}

// The place that this thread has pushed, and in which session.
struct ThreadPlace {
  std::uint32_t session = 0;
  std::uint64_t place = 0;
};
thread_local ThreadPlace thread_place;
// Marks of nanhunt's own work that CUPTI refused on this thread: what would take them off takes nothing off.
struct ThreadRefused {
  std::uint32_t session = 0, count = 0;
};
thread_local ThreadRefused thread_refused;

class KernelWatchImpl final : public KernelWatch {
 public:
  KernelWatchImpl(const KernelOptions& options, const CuptiLibrary& library)
      : options_(options), library_(library), session_(library), pid_(getpid()), join_(options.join) {}

  ~KernelWatchImpl() override { detach(); }

  Status start() {
    late_ = has_context(options_.driver);
    Status status = session_.subscribe();
    if (!status) return status;
    ActivityBuffers::instance().open(library_.calls, options_.buffer_bytes, options_.max_buffers,
                                     library_.version >= kMayRefuseBuffers);
    status = session_.start();
    if (!status) {
      ActivityBuffers::instance().close(session_.end(options_.driver));
      return status;
    }
    learn_of_ends();
    session_number_ = ++sessions;
    next_ticket_.store((std::uint64_t{session_number_} << kTicketBits) + 1);
    attached_ = true;
    active_.store(true);
    live.store(this);
    try {
      flusher_->thread = std::thread([this] { run(); });
    } catch (const std::exception& e) {
      detach();
      return {StatusCode::kUnsupported, std::string("no thread could be started for it: ") + e.what()};
    }
    return {};
  }

  std::uint64_t push_op() noexcept override {
    const Entry entry(*this);
    if (!entry) return 0;
    const std::uint64_t ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
    return push(kOpKind, ticket) ? ticket : 0;
  }

  void pop_op(std::uint64_t ticket, std::uint64_t seq, std::uint32_t step) noexcept override {
    const Entry entry(*this);
    if (ticket >> kTicketBits != session_number_ || !entry) return;  // none, or of a session that is over
    pop(kOpKind);
    step_.store(step, std::memory_order_relaxed);
    try {
      std::lock_guard lock(bind_mutex_);
      if (binds_.size() < options_.join.max_pending) {
        binds_.push_back({ticket, seq, step});
      } else {
        ++binds_lost_;
      }
    } catch (...) {  // no memory: the kernels go without their op
    }
  }

  void push_own() noexcept override {
    const Entry entry(*this);
    if (!entry || push(kOpKind, kOwnTicket)) return;
    if (thread_refused.session != session_number_) thread_refused = {session_number_, 0};
    ++thread_refused.count;
  }
  void pop_own() noexcept override {
    const Entry entry(*this);
    if (!entry) return;
    if (thread_refused.session == session_number_ && thread_refused.count > 0) {
      --thread_refused.count;
    } else {
      pop(kOpKind);
    }
  }

  void set_place(std::uint32_t step, Phase phase) noexcept override {
    const Entry entry(*this);
    if (!entry) return;
    step_.store(step, std::memory_order_relaxed);
    const std::uint64_t place = place_id(step, phase);
    const bool pushed = thread_place.session == session_number_;
    if (pushed && thread_place.place == place) return;
    if (pushed) pop(kPlaceKind);
    thread_place = {push(kPlaceKind, place) ? session_number_ : 0, place};
  }

  void drain(Recorder& recorder) noexcept override {
    if (is_forked()) return;
    try {
      const std::uint64_t flushes = flushes_.load();
      if (flushes == collected_) return;
      std::unique_lock lock(join_mutex_, std::try_to_lock);
      if (!lock) return;  // records are being read: the next step asks again
      collected_ = flushes;
      tell(recorder, std::move(lock), false);
    } catch (...) {  // no memory: nothing is told
    }
  }

  void finish(Recorder& recorder) noexcept override {
    if (is_forked()) return;
    try {
      if (active_.load()) flush_and_wait();
      tell(recorder, std::unique_lock(join_mutex_), true);
      for (KernelNote& note : kernel_notes(stats())) {
        for (const KernelNote& before : options_.earlier) note.count += before.text == note.text ? before.count : 0;
        recorder.on_note({step_.load(), note.text, note.count});
      }
    } catch (...) {
    }
  }

  void detach() noexcept override {
    if (!attached_) return;
    attached_ = false;
    active_.store(false);
    if (is_forked()) {  // the thread, and all that CUPTI is, stayed behind
      static_cast<void>(flusher_.release());
      session_.abandon();
      return;
    }
    try {
      const std::lock_guard one_end(leaving);
      live.store(nullptr);
      stop_flusher();
      if (flusher_->thread.joinable()) flusher_->thread.join();
      finalized_ = session_.end(all_have_left() ? options_.driver : std::string());
      const ActivityBuffers::Counts counts = ActivityBuffers::instance().counts();
      ActivityBuffers::instance().close(finalized_);
      std::lock_guard lock(join_mutex_);
      last_counts_ = counts;
    } catch (...) {  // a lock failed: nothing can be done about it
    }
    watching.store(false);
  }

  bool is_attached() const noexcept override { return attached_.load() && !is_forked(); }

  // In a forked child, before anything else runs there.
  void close_in_child() noexcept { active_.store(false); }

  // The process ends while this is attached: what CUPTI and the driver are goes next, so nobody may be in them.
  void leave_at_exit() noexcept {
    active_.store(false);
    try {
      stop_flusher();
      std::unique_lock lock(flusher_->mutex);
      flusher_->flushed.wait_for(lock, kLastFlush, [&] { return flusher_->ended; });
      lock.unlock();
      static_cast<void>(all_have_left());
    } catch (...) {  // a lock failed: nothing can be done about it
    }
    session_.abandon();
  }

  KernelStats stats() const override {
    if (is_forked()) return {};  // whoever held the lock is not here
    std::lock_guard lock(join_mutex_);
    const ActivityBuffers::Counts counts = attached_ ? ActivityBuffers::instance().counts() : last_counts_;
    KernelStats stats;
    stats.join = join_.stats();
    {
      std::lock_guard bind_lock(bind_mutex_);
      stats.join.given_up += binds_lost_;
    }
    stats.dropped = counts.dropped;
    stats.incomplete = incomplete_;
    stats.buffers_refused = counts.refused;
    stats.buffers_given_up = counts.given_up;
    stats.flushes = flushes_.load();
    stats.tags_failed = tags_failed_.load();
    stats.late = late_;
    stats.second_session = session_number_ > 1;
    stats.finalized = finalized_;
    stats.version = library_.version;
    return stats;
  }

 private:
  bool is_forked() const noexcept { return pid_ != getpid(); }
  void stop_flusher() {
    {
      std::lock_guard lock(flusher_->mutex);
      flusher_->stopping = true;
    }
    flusher_->wake.notify_all();
  }

  // A call of the run into CUPTI, which detach() waits for: what is taken down under such a call corrupts memory.
  class Entry {
   public:
    explicit Entry(KernelWatchImpl& watch) noexcept : watch_(watch) {
      if (!watch_.active_.load(std::memory_order_relaxed)) return;
      watch_.inside_.fetch_add(1);
      open_ = watch_.active_.load();  // in this order, and detach() in the other: one of them sees the other
      if (!open_) watch_.inside_.fetch_sub(1);
    }
    ~Entry() {
      if (open_) watch_.inside_.fetch_sub(1);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    explicit operator bool() const { return open_; }

   private:
    KernelWatchImpl& watch_;
    bool open_ = false;
  };
  bool all_have_left() const {
    const auto end = std::chrono::steady_clock::now() + kLastCall;
    while (inside_.load() != 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

  struct Bind {
    std::uint64_t ticket = 0, seq = kNoSeq;
    std::uint32_t step = 0;
  };

  bool push(CUpti_ExternalCorrelationKind kind, std::uint64_t id) noexcept {
    if (library_.calls.push_id(kind, id) == CUPTI_SUCCESS) return true;
    tags_failed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  void pop(CUpti_ExternalCorrelationKind kind) noexcept {
    std::uint64_t last = 0;
    static_cast<void>(library_.calls.pop_id(kind, &last));  // an empty stack is not worth a word
  }

  // The thread of this hook: asks for what is complete, and reads it.
  void run() noexcept {
    for (;;) {
      bool stop = false, forced = false;
      {
        std::unique_lock lock(flusher_->mutex);
        flusher_->wake.wait_for(lock, std::chrono::milliseconds(options_.flush_ms),
                                [&] { return flusher_->stopping || flusher_->wanted; });
        stop = flusher_->ended = flusher_->stopping;
        forced = std::exchange(flusher_->wanted, false);
        if (stop) flusher_->flushed.notify_all();
      }
      if (stop) return;
      library_.calls.flush_all(forced ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
      read_filled();
      {
        std::lock_guard lock(flusher_->mutex);
        flushes_.fetch_add(1);
        flusher_->forced_done = flusher_->forced_done || forced;
      }
      flusher_->flushed.notify_all();
    }
  }

  void read_filled() noexcept {
    try {
      for (const ActivityBuffers::Filled& buffer : ActivityBuffers::instance().take_filled()) {
        read(buffer);
        ActivityBuffers::instance().give_back(buffer);
      }
    } catch (...) {  // no memory: what was taken stays unread
    }
  }

  void read(const ActivityBuffers::Filled& buffer) {
    std::vector<OpTag> ops;
    std::vector<PlaceTag> places;
    std::vector<KernelRun> kernels;
    std::vector<Launch> launches;
    CUpti_Activity* record = nullptr;
    CUptiResult result = CUPTI_SUCCESS;
    while ((result = library_.calls.get_next_record(buffer.data, buffer.valid, &record)) == CUPTI_SUCCESS) {
      switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
          const auto& it = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
          if (it.externalKind == kOpKind) ops.push_back({it.correlationId, it.externalId});
          if (it.externalKind == kPlaceKind) places.push_back({it.correlationId, it.externalId});
          break;
        }
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
          // Its fields up to graphId lie where they did in CUPTI 12.0.
          const auto& it = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
          const std::size_t length = it.name == nullptr ? 0 : strnlen(it.name, kMaxRawNameBytes);
          kernels.push_back({it.correlationId, std::string_view(it.name, length), it.start, it.end, it.graphNodeId});
          break;
        }
        case CUPTI_ACTIVITY_KIND_DRIVER: {
          const auto& it = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
          const bool graph = it.cbid == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch ||
                             it.cbid == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz;
          if (graph || is_launch(it.cbid)) launches.push_back({it.correlationId, graph});
          break;
        }
        case CUPTI_ACTIVITY_KIND_RUNTIME: {
          const auto& it = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
          const bool graph = it.cbid == CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000 ||
                             it.cbid == CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000;
          if (graph) launches.push_back({it.correlationId, true});
          break;
        }
        default:
          break;
      }
    }
    std::lock_guard lock(join_mutex_);
    incomplete_ += result != CUPTI_ERROR_MAX_LIMIT_REACHED;
    for (const OpTag& it : ops) join_.add(it);
    for (const PlaceTag& it : places) join_.add(it);
    for (const Launch& it : launches) join_.add(it);
    for (const KernelRun& it : kernels) join_.add(it);
  }

  // With every driver call traced most of them launch nothing.
  static bool is_launch(CUpti_CallbackId call) {
    switch (call) {
      case CUPTI_DRIVER_TRACE_CBID_cuLaunch:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchGrid:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchGridAsync:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz:
        return true;
      default:
        return false;
    }
  }

  void flush_and_wait() {
    std::unique_lock lock(flusher_->mutex);
    flusher_->wanted = true;
    flusher_->forced_done = false;
    flusher_->wake.notify_all();
    flusher_->flushed.wait_for(lock, kLastFlush, [&] { return flusher_->forced_done; });
  }

  void tell(Recorder& recorder, std::unique_lock<std::mutex> join_lock, bool all) {
    std::vector<Bind> binds;
    {
      std::lock_guard lock(bind_mutex_);
      binds.swap(binds_);
    }
    for (const Bind& it : binds) join_.bind(it.ticket, it.seq, it.step);
    const std::uint32_t now = step_.load(std::memory_order_relaxed);
    const std::vector<JoinedKernels> rows = all ? join_.finish(now) : join_.collect(now);
    join_lock.unlock();
    for (const JoinedKernels& row : rows) {
      recorder.on_kernel({row.seq, row.step, readable(row.name), row.own, row.count, row.timed, row.duration_ns});
    }
  }

  // There are few names, and each comes every step.
  const std::string& readable(const std::string& name) {
    if (names_.size() >= kMaxKnownNames) names_.clear();
    const auto [found, added] = names_.try_emplace(name);
    if (added) found->second = readable_kernel_name(name);
    return found->second;
  }

  const KernelOptions options_;
  const CuptiLibrary library_;
  CuptiSession session_;
  const pid_t pid_;
  bool late_ = false;
  std::uint32_t session_number_ = 0;
  std::atomic<bool> attached_{false}, active_{false}, finalized_{false};
  std::atomic<int> inside_{0};  // threads of the run in a call into CUPTI
  std::atomic<std::uint64_t> next_ticket_{0}, tags_failed_{0}, flushes_{0};
  std::atomic<std::uint32_t> step_{0};
  std::uint64_t collected_ = 0;  // flushes; this and the next by drain's thread
  std::map<std::string, std::string> names_;

  mutable std::mutex join_mutex_;  // never taken by CUPTI's callbacks
  KernelJoin join_;
  std::uint64_t incomplete_ = 0;
  ActivityBuffers::Counts last_counts_;

  mutable std::mutex bind_mutex_;  // taken by the run for moments
  std::vector<Bind> binds_;
  std::uint64_t binds_lost_ = 0;

  // Apart, so that a forked child can leave them as they are: what a thread waits on that is not there cannot be
  // destroyed.
  struct Flusher {
    std::mutex mutex;
    std::condition_variable wake, flushed;
    bool stopping = false, wanted = false, forced_done = false, ended = false;
    std::thread thread;
  };
  std::unique_ptr<Flusher> flusher_ = std::make_unique<Flusher>();
};

void when_forked() noexcept {
  KernelWatchImpl* const watch = live.exchange(nullptr);
  if (watch == nullptr) return;
  watch->close_in_child();
  forked_while_live.store(true);
}

void at_exit() noexcept {
  if (live.load() == nullptr) return;  // also in a forked child, where nobody may be there to give the lock back
  try {
    const std::lock_guard one_end(leaving);
    if (KernelWatchImpl* const watch = live.exchange(nullptr)) watch->leave_at_exit();
  } catch (...) {  // the lock failed: nothing can be done about it
  }
}

}  // namespace

Result<std::unique_ptr<KernelWatch>> KernelWatch::attach(const KernelOptions& options) {
  if (forked_while_live.load()) {
    return Status(StatusCode::kUnsupported, "this process was forked from one whose kernels were watched");
  }
  if (watching.exchange(true)) {
    return Status(StatusCode::kUnsupported, "another part of this program watches kernels with nanhunt already");
  }
  Status status;
  try {
    CuptiLibrary library;
    status = library.open(options.library);
    if (status) {
      auto watch = std::make_unique<KernelWatchImpl>(options, library);
      status = watch->start();
      if (status) return std::unique_ptr<KernelWatch>(std::move(watch));
    }
  } catch (const std::exception& e) {
    status = {StatusCode::kUnsupported, e.what()};
  }
  watching.store(false);
  return status;
}

CuptiFacts probe_cupti(const KernelOptions& options) {
  CuptiFacts facts;
  facts.built = true;
  CuptiLibrary library;
  Status status = library.open(options.library);
  facts.path = library.path;
  facts.loaded_before = library.loaded_before;
  facts.version = library.version;
  if (library.version != 0) facts.version_text = cupti_version_text(library.version);
  if (status && watching.load()) {
    status = {StatusCode::kUnsupported, "this program watches kernels right now"};
  } else if (status) {
    CuptiSession session(library);
    status = session.subscribe();
    session.end(options.driver);
  }
  facts.usable = status.is_ok();
  facts.why_not = status.message();
  return facts;
}

}  // namespace nanhunt::hooks
