// SPDX-License-Identifier: Apache-2.0
// Log row: what one line, row or record of a log says at once. Its step is found among its values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/autopsy/evidence.h"
#include "src/autopsy/readers/progress.h"

namespace nanhunt::autopsy {

// Where the numbers of training and of evaluation stand in the rows of a table. Where no row has both, pandas and its
// like write NaN for what a row does not have.
struct RowKinds {
  bool both = false, training_alone = false, evaluation_alone = false;
  std::size_t rows_with_training = 0;  // up to the last that has a finite number of training

  bool parted() const { return !both && training_alone && evaluation_alone; }
};

class LogRows {
 public:
  // `kinds`: of all rows, where they are known. `rank`: that wrote them, where the log says it.
  explicit LogRows(EvidenceBuilder& out, RowKinds kinds = {}, std::string rank = {})
      : out_(&out), known_kinds_(kinds), rank_(std::move(rank)) {}
  // Hands nothing over: looks what kinds of rows there are.
  LogRows() = default;

  void add(std::string_view name, double value);
  void add_missing(std::string_view name);  // the row has the column, and nothing in it
  void set_step(double step);               // known from elsewhere; a step among the values goes before it
  void set_progress(const Progress& progress);
  void set_evaluation();  // its loss is that of an evaluation
  // Ends the row: hands its values over. True where one of them is judged.
  bool end();
  const RowKinds& kinds() const { return kinds_; }

 private:
  double position_of(double step, double epoch, bool trains);
  double position_of(const Progress& progress, double epoch);
  void hand_over(bool trains);

  struct Meaning {
    std::optional<Unit> unit;
    std::optional<Quantity> quantity;
  };
  Meaning meaning_of(std::string_view name);

  EvidenceBuilder* out_ = nullptr;
  RowKinds known_kinds_, kinds_;
  std::string rank_;
  bool evaluation_ = false;
  std::unordered_map<std::string, Meaning> meanings_;  // of names: rows repeat them; only ever asked by name
  struct Value {
    Quantity quantity;
    std::string name;
    double value;
    bool is_filler = false;
  };
  std::vector<Value> values_;
  std::vector<std::string> missing_;
  std::optional<Progress> progress_;
  double step_ = kUnknown, epoch_ = kUnknown, given_ = kUnknown;
  int step_priority_ = 0;  // how surely step_ counts the run's steps
  double last_step_ = kUnknown, last_epoch_ = kUnknown, offset_ = 0;
  double named_epoch_ = kUnknown, first_epoch_ = kUnknown, epoch_length_ = kUnknown, last_position_ = 0;  // of progress
  bool last_trains_ = false;
  std::uint64_t entries_ = 0;
  std::size_t rows_ = 0;
};

// A table read twice, for what kinds of rows it has is known at its end alone. `read` hands over every row.
void read_table(EvidenceBuilder& out, const std::function<void(LogRows&)>& read);

// The next line of `text` without its end, at most a mebibyte of it; a line ends at \n, \r or the end.
bool next_line(std::string_view& text, std::string_view& line);
std::string_view trimmed(std::string_view text);

}  // namespace nanhunt::autopsy
