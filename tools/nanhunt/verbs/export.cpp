// SPDX-License-Identifier: Apache-2.0
// nanhunt export: the records of one kind as CSV, row by row as they are read.
//
// Names in a trace are whatever the run called things: no cell may start a formula in a spreadsheet.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/json/json_values.h"
#include "src/core/text.h"
#include "tools/nanhunt/attempts.h"
#include "tools/nanhunt/dump/dump_rows.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;

struct ReaderLeft {};  // thrown out of the trace reader once nobody wants more rows

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// A number stays a number; minus infinity is one that every reader of numbers takes as such and no spreadsheet as a
// formula. Any other text that could start a formula gets an apostrophe before it. Lists and structs are JSON.
std::string cell_of(const json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return csv_text(reports::dump_json(value, -1));
  if (value == "-Infinity") return "-1e999";
  std::string text = printable(value.get_ref<const std::string&>());
  if (!text.empty() && std::strchr("=+-@", text.front()) != nullptr) text.insert(0, 1, '\'');
  return csv_text(text);
}

// Where rows go: stdout, or a file that is there only once it is whole.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const std::string& text) = 0;
  virtual bool closed() const = 0;  // nobody reads, or it failed
  virtual ExitStatus finish() = 0;
};

class StdoutSink final : public Sink {
 public:
  void write(const std::string& text) override { out_.write(text); }
  bool closed() const override { return out_.closed(); }
  ExitStatus finish() override { return out_.finish(); }

 private:
  DataOut out_;
};

class FileSink final : public Sink {
 public:
  explicit FileSink(std::string path) : path_(std::move(path)) {
    std::error_code ignored;
    const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
    if (std::filesystem::exists(status) && status.type() != std::filesystem::file_type::regular) {
      if (status.type() == std::filesystem::file_type::directory) {
        error_ = EISDIR;
        return;
      }
      file_ = std::fopen(path_.c_str(), "we");  // a device or a pipe
    } else {
      made_ = path_ + ".XXXXXX";
      const int fd = ::mkostemp(made_.data(), O_CLOEXEC);
      if (fd < 0) {
        made_.clear();
      } else {
        const mode_t mask = ::umask(0);
        ::umask(mask);
        static_cast<void>(::fchmod(fd, 0666 & ~mask));
        file_ = ::fdopen(fd, "w");
      }
    }
    if (file_ == nullptr) error_ = errno;
  }
  ~FileSink() override {
    if (file_ != nullptr) std::fclose(file_);
    if (!made_.empty()) ::unlink(made_.c_str());
  }

  void write(const std::string& text) override {
    if (error_ == 0 && std::fwrite(text.data(), 1, text.size(), file_) != text.size()) error_ = errno;
  }
  bool closed() const override { return error_ != 0; }
  ExitStatus finish() override {
    if (file_ != nullptr && std::fclose(std::exchange(file_, nullptr)) != 0 && error_ == 0) error_ = errno;
    if (error_ == 0 && !made_.empty()) {
      if (std::rename(made_.c_str(), path_.c_str()) != 0) {
        error_ = errno;
      } else {
        made_.clear();
      }
    }
    if (error_ == 0) return kDone;
    fail({StatusCode::kWriteFailed, "export: '" + path_ + "' could not be written: " + std::strerror(error_) +
                                        ". Name a file in a folder that can be written."});
    return kNotWritten;
  }

 private:
  std::string path_, made_;
  std::FILE* file_ = nullptr;
  int error_ = 0;
};

class ExportVerb final : public Verb {
 public:
  void declare(Options options) override {
    std::string names;
    for (const DumpKind& kind : dump_kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
    options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
    options.add("--kind", kind_, "Kind of record: " + names).show_default();
    options.add("--out", out_, "The CSV file; - for stdout").show_default();
    options.add("--rank", rank_, "Only this rank");
    options.add("--attempt", attempt_, "This attempt; otherwise the newest of each rank");
    options.describe_further(
        "Infinity is written as Infinity, minus infinity as -1e999, which reads as the same number. Text\n"
        "that could start a formula in a spreadsheet gets an apostrophe before it; lists are JSON.");
  }

  int run() override {
    const DumpKind* kind = find_dump_kind(kind_);
    if (kind == nullptr) {
      return fail(
          {StatusCode::kUsage, "export: there is no kind '" + kind_ + "'. `nanhunt export --help` lists them."});
    }
    auto attempts = choose_attempts(run_, rank_, attempt_);
    if (!attempts) return fail(attempts.status());
    std::unique_ptr<Sink> out;
    if (out_ == "-") {
      out = std::make_unique<StdoutSink>();
    } else {
      out = std::make_unique<FileSink>(out_);
    }
    std::string header = "rank,attempt";
    for (const std::string_view column : kind->all_columns) header += "," + csv_text(std::string(column));
    out->write(header + "\r\n");
    try {
      const int read = read_each(
          *attempts, [&](const AttemptTrace& attempt) { return write_attempt(*kind, attempt, *out); });
      if (read != kDone) return read;  // and no file is made
    } catch (const ReaderLeft&) {
    }
    return out->finish();
  }

 private:
  static Status write_attempt(const DumpKind& kind, const AttemptTrace& attempt, Sink& out) {
    TraceNames names;
    TraceHealth health;
    const std::string place = std::to_string(attempt.info.rank) + "," + std::to_string(attempt.info.attempt);
    const auto emit = [&](const RowPlace&, const json& row) {
      if (out.closed()) throw ReaderLeft{};
      std::string line = place;
      for (const std::string_view column : kind.all_columns) line += "," + cell_of(row.at(std::string(column)));
      out.write(line + "\r\n");
    };
    const auto on_batch = [&](const RecordBatch& batch) {
      names.add(batch);
      kind.rows(batch, names, emit);
    };
    return read_attempt(attempt, on_batch, health);
  }

  std::string run_, out_ = "-", kind_ = "ops";
  std::optional<std::uint32_t> rank_, attempt_;
};

const RegisterVerb<ExportVerb> kExport{{.order = 55,
                                        .name = "export",
                                        .summary = "The records of a run as CSV",
                                        .exit_statuses = kRowsExitStatuses}};

}  // namespace
}  // namespace nanhunt::cli
