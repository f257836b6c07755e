// SPDX-License-Identifier: Apache-2.0
// How steps ended that no optimizer ended: what the program did, and what it said.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

class Endings {
 public:
  explicit Endings(const Names& names) : names_(names) {}

  void on_mark(const MarkRecord& mark);
  // `bad`: what it ended with was not finite.
  void on_step_end(const StepRecord& step, bool bad);
  // The run ended in this step, and what a validation in it gave was not finite.
  void on_last_validation(std::uint32_t step);
  // Adds to findings what the program did about them. What it skipped and got over is a warning.
  void conclude(std::vector<Finding>& findings, bool trained) const;
  void fill_coverage(Coverage& coverage) const;
  std::uint64_t finished() const { return finished_; }  // steps that an optimizer ended

 private:
  static constexpr std::size_t kMost = 4096;  // steps that are remembered; the others are counted

  struct Ending {
    StepEnding how = StepEnding::kEnd;
    std::string message;
    bool bad = false;
  };
  // Bad steps that the next forward ended, or that went on without a batch.
  std::uint64_t given_up_in(std::uint32_t first, std::uint32_t last) const;
  std::string sentence(std::uint32_t step, const Ending& ending) const;

  const Names& names_;
  std::map<std::uint32_t, Ending> endings_;
  std::uint64_t steps_ = 0, finished_ = 0, skipped_bad_ = 0, forgotten_ = 0;
  std::optional<std::uint32_t> without_batch_;  // the last step that went on without one
  std::string exception_;  // that ended the program; "": none did
  std::uint32_t last_good_ = 0;  // the last step that an optimizer ended
  bool any_good_ = false;
  std::optional<std::uint32_t> with_loss_;        // the last step with a loss
  std::optional<std::uint32_t> last_validation_;  // the unfinished last step, of which only a validation was bad
};

}  // namespace nanhunt::analyze
