// SPDX-License-Identifier: Apache-2.0
// Log row: what one line, row or record of a log says at once. Its step is found among its values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

class LogRows {
 public:
  explicit LogRows(EvidenceBuilder& out) : out_(&out) {}

  void add(std::string_view name, double value);
  void set_step(double step);  // known from elsewhere; a step among the values goes before it
  // Ends the row: hands its values over. True where one of them is judged.
  bool end();

 private:
  double position_of(double step, double epoch);

  struct Meaning {
    std::optional<Unit> unit;
    std::optional<Quantity> quantity;
  };
  Meaning meaning_of(std::string_view name);

  EvidenceBuilder* out_;
  std::unordered_map<std::string, Meaning> meanings_;  // of names: rows repeat them; only ever asked by name
  struct Value {
    Quantity quantity;
    std::string name;
    double value;
  };
  std::vector<Value> values_;
  double step_ = kUnknown, epoch_ = kUnknown, given_ = kUnknown;
  int step_rank_ = 0;  // how surely step_ counts the run's steps
  double last_step_ = kUnknown, last_epoch_ = kUnknown, offset_ = 0;
  std::uint64_t entries_ = 0;
};

// The next line of `text` without its end, at most a mebibyte of it; a line ends at \n, \r or the end.
bool next_line(std::string_view& text, std::string_view& line);
std::string_view trimmed(std::string_view text);

}  // namespace nanhunt::autopsy
