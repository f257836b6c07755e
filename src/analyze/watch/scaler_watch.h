// SPDX-License-Identifier: Apache-2.0
// What the loss scaler did over a run, from its own records and the steps: its section of the report, whether it can
// still recover, and calls that were made wrongly. Thresholds: src/analyze/rules/GUIDE.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/analyze/graph/step_outcome.h"
#include "src/analyze/graph/value_graph.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/watch/scaled_gradients.h"
#include "src/analyze/watch/scaler_points.h"

namespace nanhunt::analyze {

inline constexpr double kLowScale = 1;                 // below: gradients overflow the format without any scale
inline constexpr double kHopelessScale = 0x1p-8;       // a skip below: lowering does not help, in a row or not
inline constexpr double kSmallestScale = 0x1p-126;     // below, 1 / scale is infinite in fp32
inline constexpr std::uint32_t kSkipsBelowOne = 4;     // in a row at a scale below kLowScale: it does not help
inline constexpr std::uint32_t kSkipsAtFloor = 8;      // in a row at one scale: it cannot go lower
inline constexpr std::uint32_t kSkipsWithoutEnd = 40;  // in a row: from 2^32 this passes 2^-8
inline constexpr double kSameFactor = 1e-2;            // relative: a number of 16 bits that gradients are multiplied by
inline constexpr std::uint64_t kStableSteps = 20;      // clean steps at a scale after which it is worth recommending

class ScalerWatch {
 public:
  explicit ScalerWatch(const Names& names) : names_(names), scaled_gradients_(names) {}

  void on_scaler(const ScalerRecord& record) {
    told_ = told_ || record.action != ScalerAction::kClip;
    follow(record);
  }
  // Of a scaler of the program's own, as it was recognised (own_scaler.h).
  void on_own(const ScalerRecord& record) {
    own_ = true;
    follow(record);
  }
  // ... multiplied gradients by a number of its own before it unscales them.
  void on_own_clip(double by, std::uint32_t step);
  // An op, and by what it multiplies gradients, where that is one number: does the program unscale by itself?
  void on_op(const OpInView& op, std::optional<double> factor);
  void set_dynamic() { section_.dynamic = true; }  // its scale has changed
  StepOutcome on_step_end(const StepRecord& step);

  // What the gradients of the step at hand are multiplied by now.
  double gradient_factor() const { return in_step_ && scaled_ && !unscaled_ ? step_scale_ : 1; }
  std::optional<ScalerSection> section() const;  // nullopt: no scaler was seen
  bool told() const { return told_; }  // one told of itself
  bool seen() const { return seen_; }  // a scaler did anything at all
  bool is_own() const { return own_; }  // the program's own: the loss that it gives to backward is scaled
  bool dynamic() const { return section_.dynamic; }
  bool skips_itself() const { return own_ && section_.skipped > 0; }  // the program has given steps up before
  std::uint32_t streak() const { return streak_; }  // steps skipped in a row, up to now; a gap in the steps ends it

  // Why a dynamic scale cannot recover.
  enum class Collapse : std::uint8_t { kZero, kInfinite, kFloor, kEndless, kBelowOne, kNeverGrows, kGaveUp, kRemade };
  struct CollapseState {
    Collapse kind = Collapse::kEndless;
    bool fault = true;             // else a warning
    std::uint32_t step = 0;        // in which the threshold was passed
    std::uint32_t streak_from = 0;  // first step of the streak of skips that led there
    std::uint32_t skips = 0;       // of that streak; kGaveUp: since the scale last grew
    std::uint32_t absorbed = 0;    // kGaveUp: those that hysteresis took
    double scale = 1, from_scale = 1;  // kRemade: scale is the one that each new scaler starts with
    std::int64_t tracker = 0, interval = 0;
  };
  const std::optional<CollapseState>& collapse() const { return collapse_; }

  // A call that the scaler refused, that was made in the wrong order, or that is missing.
  enum class Misuse : std::uint8_t {
    kRefused,
    kClipBeforeUnscale,
    kUnscaleTwice,
    kStepTwice,
    kNeverUnscaled,
    kSteppedAfterSkip,
    kSteppedPast
  };
  struct MisuseState {
    Misuse kind = Misuse::kRefused;
    std::uint64_t seq = 0, count = 0, steps = 0;  // count: of calls
    std::uint32_t micro_batch = 0, first_step = 0, last_step = 0;
    double scale = 1, total_norm = 0, max_norm = 0;
    double clipped_by = 1;  // where no norm is known
    bool did_harm = false;  // numbers were changed by it
    bool went_on = false;   // the program did: a later step finished, or the scaler was called again
    bool sizes_count = true;  // kNeverUnscaled, kSteppedPast: updates are as large as the gradients, as those of SGD are
    std::string text, call_site;
    std::vector<std::string> parameters;  // kSteppedAfterSkip, kSteppedPast: updated by the first such step
  };
  const std::vector<MisuseState>& misuses() const { return misuses_; }
  const std::string& clip_site() const { return clip_site_; }
  // The scaler has only ever multiplied the loss, and optimizers step with what came of it.
  std::optional<MisuseState> never_unscaled() const;

  // The largest scale below all at which steps were skipped that held for kStableSteps. nullopt: none, or none was
  // needed.
  struct StableScale {
    double scale = 1;
    std::uint64_t steps = 0;
  };
  std::optional<StableScale> recommended_scale() const;
  std::optional<double> least_skipped() const { return least_skipped_; }  // smallest scale at which a step was skipped

 private:
  void follow(const ScalerRecord& record);
  void note(const ScalerRecord& record, const char* what);
  void misuse(Misuse kind, const ScalerRecord& record, bool did_harm);
  void follow_scale(const ScalerRecord& record);
  void give_up(const ScalerRecord& record);
  void note_step_after_skip(const OpInView& op);
  void note_step_past(const OpInView& op);
  MisuseState* misuse_of_op(Misuse kind, const OpInView& op, bool did_harm);
  void judge_streak(const StepOutcome& outcome, std::uint32_t step);
  void collapse(Collapse kind, bool fault, std::uint32_t step);

  static constexpr std::size_t kKeptEvents = 512;   // first ones, and as many last ones
  static constexpr std::size_t kMaxMisuses = 64;    // different ones
  static constexpr std::size_t kMaxOptimizers = 4096;
  static constexpr std::size_t kMaxParameters = 64;

  const Names& names_;
  ScalerSection section_;
  bool seen_ = false, created_ = false, told_ = false, own_ = false;
  bool several_ = false;  // a second scaler has told of itself; whose later records are is not said
  ScalerPoints points_;
  std::vector<ScalerSection::Event> first_events_;
  std::deque<ScalerSection::Event> last_events_;
  std::uint64_t events_ = 0;

  // Of the step at hand.
  std::uint32_t step_ = 0;
  bool in_step_ = false, scaled_ = false, unscaled_ = false;
  bool skip_ = false;   // an optimizer was held back
  bool made_ = false;   // a scaler was
  bool found_ = false;  // a check found something, and no optimizer was told to run or not to
  double step_scale_ = 1;
  std::optional<std::uint32_t> last_skip_;  // the step before, where the scaler held an optimizer back
  std::optional<ScalerRecord> early_clip_;  // before it was known that a scaler of the program's own is at work
  // Of each optimizer since the last update.
  struct Optimizer {
    bool unscaled = false, stepped = false;
  };
  std::map<std::uint32_t, Optimizer> optimizers_;

  double scale_ = 1;  // now
  std::uint32_t next_step_ = 0;  // after the last one that ended
  std::uint32_t streak_ = 0, streak_from_ = 0, same_scale_skips_ = 0, low_skips_ = 0;
  std::uint32_t made_steps_ = 0;  // in a row, in each of which a scaler was made
  double streak_scale_ = 1, last_skip_scale_ = 1;
  std::uint32_t hysteresis_ = 0;  // overflows that do not lower the scale
  bool absorbed_ = false;         // hysteresis took the overflow of this step
  // Overflows since the scale last grew or was set, in a row or not.
  struct Decline {
    std::uint32_t from = 0, skips = 0, absorbed = 0;
    double scale = 1;  // before the first
  };
  Decline decline_;
  std::optional<CollapseState> collapse_;
  std::vector<MisuseState> misuses_;
  ScaledGradients scaled_gradients_;
  std::string clip_site_;     // of the first op that clips
  MisuseState stepped_past_;  // steps of optimizers that the scaler was not asked for
  bool unscales_ = false;   // it was called for more than to scale, or the program divides gradients itself, or may
  bool optimizes_ = false;  // an op of an optimizer was seen
  bool divides_by_size_ = false;  // ... that divides gradients by their own magnitude, as Adam's does

  // For the recommendation.
  std::uint64_t held_steps_ = 0;  // clean ones in a row at one scale
  double held_scale_ = 0;
  static constexpr std::size_t kMaxScales = 1024;
  std::map<double, std::uint64_t> clean_steps_;  // by scale
  std::optional<double> least_skipped_;
};

}  // namespace nanhunt::analyze
