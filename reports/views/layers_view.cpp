// SPDX-License-Identifier: Apache-2.0
#include "reports/views/layers_view.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "reports/views/numbers.h"

namespace nanhunt::reports {
namespace {

constexpr std::string_view kNoNumber = "—";
constexpr int kDigits = 5;

std::string binades(double headroom) {
  if (std::isnan(headroom)) return std::string(kNoNumber);
  if (std::isinf(headroom)) return "all zero";
  return format_short(std::round(headroom * 10) / 10);
}

std::string share(double part) { return std::isnan(part) ? std::string(kNoNumber) : format_percent(part); }

LayerSide view_side(double amax, double headroom, double underflow) {
  const bool seen = !std::isnan(headroom) || !std::isnan(underflow);
  return {"", seen ? format_short(amax, kDigits) : std::string(kNoNumber), binades(headroom), share(underflow)};
}

LayerRow view_layer(const LayerSummary& layer) {
  LayerRow row;
  row.module = clip(layer.module, kNameLimit);
  if (row.module.empty()) row.module = "(no module)";
  row.dtype = dtype_name(layer.dtype);
  row.operations = format_count(layer.ops);
  row.bad_operations = format_count(layer.bad_ops);
  row.nan = format_signed_count(layer.nan);
  row.inf = format_signed_count(layer.inf);
  row.forward = view_side(layer.amax_forward, layer.headroom_forward, layer.underflow_forward);
  row.gradient = view_side(layer.amax_gradient, layer.headroom_gradient, layer.underflow_gradient);
  row.bad = layer.bad_ops != 0;
  return row;
}

// "1st", "22nd", "113th".
std::string ordinal(std::uint64_t n) {
  const std::uint64_t tens = n % 100, last = n % 10;
  const bool teen = tens >= 11 && tens <= 13;
  return format_count(n) + (teen || last == 0 || last > 3 ? "th" : last == 1 ? "st" : last == 2 ? "nd" : "rd");
}

std::string event_phrase(std::string_view what) {
  if (what == "skip") return "step skipped";
  if (what == "backoff") return "scale lowered";
  if (what == "growth") return "scale raised";
  if (what == "hysteresis") return "scale kept, hysteresis spent";
  if (what == "set") return "scale set";
  if (what == "refused") return "call refused";
  if (what == "gave_up") return "training ended";
  return "other";
}

std::string skips(const ScalerSection& s) {
  if (s.skipped == 0) return "skipped no step of " + format_count(s.steps);
  std::string text = "skipped " + format_count(s.skipped) + " of " + plural(s.steps, "step", "steps");
  if (s.longest_streak > 1) text += ", at most " + format_count(s.longest_streak) + " in a row";
  return text;
}

}  // namespace

std::vector<LayerRow> view_layers(const Analysis& analysis) {
  const std::size_t count = std::min(analysis.layers.size(), kMaxLayers);
  std::vector<std::uint64_t> bad;  // the ops with which sides of layers went bad
  std::vector<std::size_t> order(count);
  const auto first_of = [&](std::size_t i) {
    return std::min(analysis.layers[i].bad_forward.seq, analysis.layers[i].bad_gradient.seq);
  };
  for (std::size_t i = 0; i < count; ++i) {
    order[i] = i;
    for (const LayerSummary::FirstBad* side : {&analysis.layers[i].bad_forward, &analysis.layers[i].bad_gradient}) {
      if (side->seq != kNoSeq) bad.push_back(side->seq);
    }
  }
  std::sort(bad.begin(), bad.end());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return first_of(a) < first_of(b); });
  const auto went_bad = [&](const LayerSummary::FirstBad& side) {
    if (side.seq == kNoSeq) return std::string(kNoNumber);
    const auto place = static_cast<std::uint64_t>(std::lower_bound(bad.begin(), bad.end(), side.seq) - bad.begin());
    return "step " + format_count(side.step) + ", " + ordinal(place + 1);
  };
  std::vector<LayerRow> rows;
  for (const std::size_t i : order) {
    LayerRow& row = rows.emplace_back(view_layer(analysis.layers[i]));
    row.at = i;
    row.forward.went_bad = went_bad(analysis.layers[i].bad_forward);
    row.gradient.went_bad = went_bad(analysis.layers[i].bad_gradient);
  }
  return rows;
}

std::optional<ScalerView> view_scaler(const Analysis& analysis) {
  if (!analysis.scaler) return std::nullopt;
  const ScalerSection& s = *analysis.scaler;
  ScalerView view;
  view.summary = clip(s.family, kNameLimit);
  if (const std::string_view kind = s.dynamic ? "dynamic" : "static"; s.family != kind) {
    view.summary += std::string(", ").append(kind);
  }
  view.summary += ". ";
  view.summary += s.init_scale == s.final_scale
                      ? "Its scale is " + format_short(s.final_scale)
                      : "Its scale went from " + format_short(s.init_scale) + " to " + format_short(s.final_scale);
  view.summary += ". It " + skips(s) + ", lowered its scale " + plural(s.backoffs, "time", "times") +
                  " and raised it " + plural(s.growths, "time", "times") + ".";
  if (s.recommended_init_scale > 0) {
    view.summary += " Steps went through at a scale of " + format_short(s.recommended_init_scale) +
                    ", and none was skipped at it or below: start it there";
    view.summary += s.capped_by.empty() ? "." : "; above it " + clip(s.capped_by, kNameLimit) + " overflows first.";
  }
  if (s.ends_in_streak) view.summary += " The run ends while steps are being skipped.";
  for (const ScalerSection::Event& event : s.events) {
    if (view.events.size() == kMaxScalerEvents) break;
    view.events.push_back({format_count(event.step), event_phrase(event.what), format_short(event.scale),
                           clip(event.text, kSentenceLimit)});
  }
  view.events_omitted = s.events_omitted + (s.events.size() - view.events.size());
  return view;
}

std::string scaler_sentence(const Analysis& analysis, const Finding* origin) {
  if (origin != nullptr && origin->cls == FindingClass::kScalerCalibration) {
    return "Yes, and that is its work: it lowers a scale that is too large.";
  }
  const bool carries_scale = origin != nullptr && origin->cls == FindingClass::kOverflow &&
                             (origin->place.phase == Phase::kBackward || origin->place.phase == Phase::kScale);
  if (carries_scale && analysis.scaler && !analysis.scaler->dynamic && analysis.scaler->final_scale > 1) {
    return "Yes, as far as was seen: these gradients carry its static scale of " +
           format_short(analysis.scaler->final_scale) + ", which never gets lower.";
  }
  if (origin != nullptr && origin->cls == FindingClass::kScalerCollapse) {
    // What goes wrong before the loss is scaled goes wrong at any scale.
    const bool before = origin->place.phase == Phase::kForward || origin->place.phase == Phase::kLoss;
    if (before && origin->place.op) {
      const std::string where = origin->place.module ? " in " + clip(*origin->place.module, kNameLimit) : "";
      return "No. " + clip(*origin->place.op, kNameLimit) + where +
             " goes bad at any scale; the scaler only reacts to it by skipping and halving.";
    }
    return "Yes. Its scale cannot recover; what drove it there is the origin.";
  }
  if (!analysis.scaler) return "";  // nobody asks where there is none
  return "No. This is not a scale being calibrated. The scaler " + skips(*analysis.scaler) + ".";
}

}  // namespace nanhunt::reports
