// SPDX-License-Identifier: Apache-2.0
// Evidence: what the files of a dead run hold, in the form that patterns are judged from. Numbers are kept as they were
// logged: NaN, +Inf and -Inf are apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanhunt::autopsy {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

enum class Quantity : std::uint8_t { kLoss, kEvalLoss, kGradNorm, kLearningRate, kLossScale, kSkipped, kNanSteps };
std::string_view quantity_name(Quantity quantity);

// What a logged name means: "train/loss", "lm loss", "learning_rate"; nothing for what is not judged.
std::optional<Quantity> quantity_of(std::string_view name);
// A loss beside the one that is minimised, or a part of it: "kl_loss", "aux/loss".
bool is_part_of_loss(std::string_view name);

// "val", "Validation", "test" and their like, in any case.
bool means_evaluation(std::string_view word);
// The key of a row that says what it is of: {"mode": "val"}.
bool names_split(std::string_view key);

// What the positions of points count.
enum class Unit : std::uint8_t { kStep, kEpoch, kEntry };
std::string_view unit_name(Unit unit);
// The unit that a column or a word of this name gives: "global_step", "iteration", "epoch".
std::optional<Unit> unit_of(std::string_view name);

struct Point {
  double at = 0;  // step, epoch or number of the entry
  double value = 0;
};

// Rows in a row without a value.
struct Gap {
  double at = 0;           // of the first
  std::size_t before = 0;  // points of the series before it
  std::size_t rows = 0;
};

struct Series {
  std::string name;
  Quantity quantity = Quantity::kLoss;
  Unit unit = Unit::kStep;
  std::size_t source = 0;             // in Evidence::sources
  std::vector<Point> points;          // as they were logged
  std::vector<std::size_t> restarts;  // points with which another process, or an earlier step, begins
  Gap longest_gap, last_gap;          // the last is not counted in the longest
};

// A file, or the text on stdin.
struct Source {
  std::string path;    // below the run folder
  std::string format;  // of the reader; "" for none
  std::string damage;  // what could not be read of it; "" for nothing
};

// A step that a loss scaler left out.
struct SkippedStep {
  double scale_after = kUnknown;
  std::size_t entries_before = 0;  // losses that the same text logged before
  std::size_t source = 0;
};

// A line of text, cut.
struct Statement {
  std::string text;                // "" for none
  std::size_t entries_before = 0;  // losses that the same text logged before
  std::size_t source = 0;
};

// Why a program ended, as its exception or last message has it.
enum class Ended : std::uint8_t { kOtherwise, kByBadNumber, kByScaleExhausted };

struct Traceback {
  std::string exception, message;
  std::string file, function;  // of the last frame that is no installed package's; "" where there is none
  std::uint64_t line = 0;
  std::string backward;  // "LogBackward0" where anomaly mode named a function
  Ended ended = Ended::kOtherwise;
  std::size_t source = 0;
};

struct Setting {
  std::string key, value;
  std::size_t source = 0;
};

struct Checkpoint {
  std::string path;
  std::uint64_t step = 0;
  std::size_t source = 0;
  bool has_bad_number = false;  // its trainer_state.json holds a bad loss or gradient norm
};

// That started a run.
struct Command {
  std::vector<std::string> words;
  std::size_t source = 0;
};

struct Evidence {
  std::string place;  // the folder that was read; "" for what lies in none
  std::vector<Source> sources;
  std::vector<Series> series;
  std::vector<SkippedStep> skipped;
  std::vector<Traceback> tracebacks;
  std::vector<Setting> settings;
  std::vector<Checkpoint> checkpoints;
  std::vector<Command> commands;  // at most one of each source
  // Of text, the first line of each kind: with a bare "nan" or "inf"; that says in words that a number was bad; that
  // says that the run goes on from a checkpoint.
  Statement nan_line, said_bad, said_resume;
  std::uint64_t files_seen = 0;
  std::uint64_t points = 0;  // of all series
  bool cut = false;          // more files, or more points, than are read
};

// Collects what one reader finds. Bounds what is kept, whatever the file says.
class EvidenceBuilder {
 public:
  EvidenceBuilder(Evidence& out, std::size_t source) : out_(&out), source_(source) {}

  // `name` decides what the value is; what is not judged is dropped.
  void add(std::string_view name, double at, Unit unit, double value);
  void add(Quantity quantity, std::string_view name, double at, Unit unit, double value);
  // A row has the column of a series, and nothing in it. Counts once the series has a point.
  void add_missing(std::string_view name, double at, Unit unit);
  // The next point of each series comes from another process.
  void mark_restart();
  void add_setting(std::string_view key, std::string_view value);
  void set_command(std::vector<std::string> command);
  void add_traceback(Traceback traceback);
  void add_skipped(double scale_after);
  void set_damage(std::string what);
  void note(Statement Evidence::*which, std::string_view line);

  std::size_t source() const { return source_; }

 private:
  Series* find(Quantity quantity, std::string_view name, Unit unit);

  Evidence* out_;
  std::size_t source_;
  std::size_t last_ = 0;  // the series that was found last: rows come in one order
  std::size_t losses_ = 0;
};

bool is_finite(double value);
// "NaN", "Infinity", "-Infinity" or the number, six digits at most.
std::string number_text(double value);

}  // namespace nanhunt::autopsy
