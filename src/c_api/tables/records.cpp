// SPDX-License-Identifier: Apache-2.0
// The records of a saved run as an Arrow stream. The trace reader pushes and the stream is pulled: a thread reads ahead
// by one batch, and goes when the stream is released.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "src/c_api/tables/arrow_abi.h"
#include "src/c_api/convert.h"
#include "src/c_api/error.h"
#include "src/c_api/tables/record_tables.h"
#include "src/core/text.h"
#include "src/core/waiting.h"
#include "src/trace/cells.h"

namespace nanhunt::c_api {
namespace {

constexpr std::int64_t kBatchRows = 16384;
constexpr std::size_t kBatchBytes = 8u << 20;

struct Released {};  // thrown out of the trace reader once nobody wants more

// Damage is no failure: what is good is delivered, and the report says what is lost. A rank that cannot be read is
// one only if no other can. `full(i)` is called when the table of kinds[i] shall be handed over, and of each at the end.
Status read_tables(const std::vector<AttemptTrace>& attempts, std::span<const TableKind* const> kinds,
                   std::span<Table> tables, const std::function<void(std::size_t)>& full) {
  Status first_failure;
  bool any_read = false;
  for (const AttemptTrace& attempt : attempts) {
    trace::TraceNames names;
    TraceHealth health;
    const auto on_batch = [&](const RecordBatch& batch) {
      names.add(batch);
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        add_rows(*kinds[i], {attempt.info, names, batch}, tables[i], [&] {
          if (tables[i].rows() >= kBatchRows || tables[i].bytes() >= kBatchBytes) full(i);
        });
      }
    };
    const Status status = read_attempt(attempt, on_batch, health);
    any_read = any_read || status || status.code() == StatusCode::kDamaged;
    if (!status && first_failure.is_ok()) first_failure = status;
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) full(i);
  return any_read ? Status::ok() : first_failure;
}

class RecordStream {
 public:
  RecordStream(std::vector<AttemptTrace> attempts, const TableKind& kind)
      : attempts_(std::move(attempts)), kind_(&kind) {
    declare_table(*kind_, table_);
  }

  ~RecordStream() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (ready_.release != nullptr) ready_.release(&ready_);
  }

  // A forked child has no reading thread to wait for.
  bool is_ours() const { return getpid() == pid_; }

  void schema(ArrowSchema& out) const {
    Table empty;
    declare_table(*kind_, empty);
    empty.export_schema(out);
  }

  // 0 and a batch, or no batch at the end; else an errno.
  int next(ArrowArray& out) {
    std::unique_lock lock(mutex_);
    if (!started_) {
      thread_ = std::thread([this] { read(); });
      started_ = true;
    }
    wait_until_true(changed_, lock, [this] { return ready_.release != nullptr || done_; });
    if (ready_.release != nullptr) {
      out = std::exchange(ready_, {});
      changed_.notify_all();
      return 0;
    }
    return error_;
  }

  int fail(int error, std::string message) {
    error_ = error;
    message_ = std::move(message);
    return error;
  }
  const char* last_error() const { return message_.empty() ? nullptr : message_.c_str(); }

 private:
  void read() noexcept {
    int error = 0;
    std::string message;
    try {
      Status status = read_tables(attempts_, {&kind_, 1}, {&table_, 1}, [this](std::size_t) { hand_over(); });
      if (!status) {
        error = EIO;
        message = status.message();
      }
    } catch (const Released&) {
    } catch (const std::bad_alloc&) {
      error = ENOMEM;
    } catch (const std::exception& problem) {
      error = EIO;
      message = problem.what();
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = error;
    message_ = std::move(message);
    changed_.notify_all();
  }

  void hand_over() {
    if (table_.rows() == 0) return;
    ArrowArray made;
    table_.export_rows(made);
    std::unique_lock lock(mutex_);
    wait_until_true(changed_, lock, [this] { return ready_.release == nullptr || released_; });
    if (released_) {
      lock.unlock();
      made.release(&made);
      throw Released{};
    }
    ready_ = made;
    changed_.notify_all();
  }

  const std::vector<AttemptTrace> attempts_;
  const TableKind* const kind_;
  const pid_t pid_ = getpid();
  Table table_;  // the reading thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  ArrowArray ready_ = {};
  bool started_ = false, done_ = false, released_ = false;
  int error_ = 0;
  std::string message_;
  std::thread thread_;
};

RecordStream* stream_of(ArrowArrayStream* stream) {
  return stream == nullptr ? nullptr : static_cast<RecordStream*>(stream->private_data);
}

// What a caller's mistake or a lack of memory gives; a message needs memory of its own.
template <typename F>
int guarded_errno(RecordStream& records, F&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::system_error& error) {  // no thread
    try {
      return records.fail(EAGAIN, error.what());
    } catch (...) {
      return EAGAIN;
    }
  } catch (...) {
    return EIO;
  }
}

int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
  RecordStream* records = stream_of(stream);
  if (records == nullptr || out == nullptr) return EINVAL;
  out->release = nullptr;
  return guarded_errno(*records, [&] {
    records->schema(*out);
    return 0;
  });
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) {
  RecordStream* records = stream_of(stream);
  if (records == nullptr || out == nullptr) return EINVAL;
  out->release = nullptr;
  if (!records->is_ours()) return EINVAL;
  return guarded_errno(*records, [&] { return records->next(*out); });
}

const char* get_last_error(ArrowArrayStream* stream) {
  RecordStream* records = stream_of(stream);
  return records == nullptr ? nullptr : records->last_error();
}

void release(ArrowArrayStream* stream) {
  RecordStream* records = stream_of(stream);
  if (records == nullptr) return;
  stream->private_data = nullptr;
  stream->release = nullptr;
  if (records->is_ours()) delete records;
}

// The newest attempt of each rank, as the analyzer has it.
std::vector<AttemptTrace> newest_of_each_rank(std::vector<AttemptTrace> all) {
  std::vector<AttemptTrace> chosen;
  for (AttemptTrace& attempt : all) {  // by rank, then attempt
    if (!chosen.empty() && chosen.back().info.rank == attempt.info.rank) chosen.pop_back();
    chosen.push_back(std::move(attempt));
  }
  return chosen;
}

const std::string& kind_names() {
  static const std::string kNames = [] {
    std::string names;
    for (const TableKind& kind : table_kinds()) {
      if (!names.empty()) names.push_back(' ');
      names.append(kind.name);
    }
    return names;
  }();
  return kNames;
}

// nullptr: there is none, and the error is set.
const TableKind* known_kind(const char* asker, std::string_view name) {
  const TableKind* kind = find_table_kind(name);
  if (kind == nullptr) {
    (void)fail(NANHUNT_USAGE, fmt::format("{}: expected a kind of records ({}), got '{}'", asker, kind_names(), printable(name)));
  }
  return kind;
}

nanhunt_status open_stream(const char* run, const char* kind_name, ArrowArrayStream* stream) {
  if (stream == nullptr) return fail(NANHUNT_USAGE, "nanhunt_records: expected a stream to fill, got NULL");
  *stream = {};
  const TableKind* kind = known_kind("nanhunt_records", text_of(kind_name));
  if (kind == nullptr) return NANHUNT_USAGE;
  auto attempts = find_attempts(std::string(text_of(run)));
  if (!attempts) return result_of(attempts.status());
  auto records = std::make_unique<RecordStream>(newest_of_each_rank(std::move(*attempts)), *kind);
  *stream = {get_schema, get_next, get_last_error, release, records.release()};
  return NANHUNT_OK;
}

nanhunt_status push_records(const char* run, const char* kind_words, nanhunt_rows_fn rows, void* user) {
  if (rows == nullptr) return fail(NANHUNT_USAGE, "nanhunt_read_records: expected a function to call, got NULL");
  std::vector<const TableKind*> kinds;
  for (const std::string_view word : trace::words_of(text_of(kind_words))) {
    kinds.push_back(known_kind("nanhunt_read_records", word));
    if (kinds.back() == nullptr) return NANHUNT_USAGE;
  }
  auto attempts = find_attempts(std::string(text_of(run)));
  if (!attempts) return result_of(attempts.status());
  std::vector<Table> tables(kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) declare_table(*kinds[i], tables[i]);
  std::vector<bool> given(kinds.size());
  const auto full = [&](std::size_t i) {
    if (tables[i].rows() == 0 && given[i]) return;
    given[i] = true;
    ArrowSchema schema;
    ArrowArray batch;
    Table empty;
    declare_table(*kinds[i], empty);
    empty.export_schema(schema);
    tables[i].export_rows(batch);
    if (rows(user, static_cast<std::int32_t>(i), &schema, &batch) != 0) throw Released{};
  };
  try {
    return result_of(read_tables(newest_of_each_rank(std::move(*attempts)), kinds, tables, full));
  } catch (const Released&) {
    return fail(NANHUNT_USAGE, "nanhunt_read_records: the function that it called asked to end");
  }
}

}  // namespace
}  // namespace nanhunt::c_api

extern "C" {

nanhunt_status nanhunt_records(const char* run, const char* kind, struct ArrowArrayStream* stream) {
  return nanhunt::c_api::guarded([&] { return nanhunt::c_api::open_stream(run, kind, stream); });
}

nanhunt_status nanhunt_read_records(const char* run, const char* kinds, nanhunt_rows_fn rows, void* user) {
  return nanhunt::c_api::guarded([&] { return nanhunt::c_api::push_records(run, kinds, rows, user); });
}

const char* nanhunt_record_kinds(void) {
  try {
    return nanhunt::c_api::kind_names().c_str();
  } catch (...) {
    return "";
  }
}

}  // extern "C"
