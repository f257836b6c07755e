// SPDX-License-Identifier: Apache-2.0
// Judging: which patterns the curves of a dead run fit. A log proves nothing, so nothing is surer than `likely`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/autopsy/curves.h"
#include "src/autopsy/evidence.h"

namespace nanhunt::autopsy {

enum class Confidence : std::uint8_t { kLikely, kPossible };

// Between what it began: the last good log and the first bad one.
struct Began {
  Unit unit = Unit::kStep;
  std::optional<double> last_good, first_bad;
};

struct Sentence {
  std::string text;
  std::size_t source = 0;
};

struct Guess {
  std::string_view pattern;
  std::string_view title;
  Confidence confidence = Confidence::kPossible;
  Began began;
  std::vector<Sentence> evidence;
  std::vector<std::string> unlikely;
  std::vector<std::string> checks;
};

// What a pattern says of the run. kUnsure: nothing bad is known, nor that nothing is.
enum class Says : std::uint8_t { kBad, kUnsure, kHarmless };

// One row of the table of patterns. `judge` fills in what fits, or returns nothing.
struct Pattern {
  std::string_view id;
  std::string_view title;
  Says says;
  std::optional<Guess> (*judge)(const Curves& curves);
};

std::optional<Guess> judge_hidden_by_filter(const Curves& curves);
std::optional<Guess> judge_scaler_collapsing(const Curves& curves);
std::optional<Guess> judge_after_resume(const Curves& curves);
std::optional<Guess> judge_lr_event(const Curves& curves);
std::optional<Guess> judge_periodic(const Curves& curves);
std::optional<Guess> judge_eval_only(const Curves& curves);
std::optional<Guess> judge_exploding(const Curves& curves);
std::optional<Guess> judge_gradient_only(const Curves& curves);
std::optional<Guess> judge_first_step(const Curves& curves);
std::optional<Guess> judge_sudden(const Curves& curves);
std::optional<Guess> judge_stopped_by_check(const Curves& curves);
std::optional<Guess> judge_noted_by_program(const Curves& curves);
std::optional<Guess> judge_lost_values(const Curves& curves);
std::optional<Guess> judge_scaler_calibrating(const Curves& curves);
std::optional<Guess> judge_died_otherwise(const Curves& curves);
std::optional<Guess> judge_healthy(const Curves& curves);

enum class Outcome : std::uint8_t { kNothingBad, kBadNumbers, kDamaged, kNothingToJudge };
std::string_view outcome_name(Outcome outcome);

struct Judgement {
  Outcome outcome = Outcome::kNothingBad;
  std::vector<Guess> guesses;  // the first, and at most two others
  std::optional<Began> began;  // of the first bad number, where there is one
  std::optional<std::size_t> source;  // of what is judged; in Evidence::sources
  std::string headline;
  const Traceback* traceback = nullptr;  // the last that says something
};

Judgement judge(const Evidence& evidence);

// For the patterns.
Began began_at(const Curve& curve, std::size_t bad);
std::string position_text(Unit unit, double at);  // "step 40", "epoch 0.5", "entry 7"
std::string growth_text(std::string_view what, const Growth& growth);

}  // namespace nanhunt::autopsy
