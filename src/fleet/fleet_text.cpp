// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/fleet_text.h"

#include <algorithm>

#include "reports/text/text_layout.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "src/fleet/fleet_view.h"

namespace nanhunt::fleet {
namespace {

using reports::Ink;

constexpr std::size_t kLabels = 6;

}  // namespace

std::string render_fleet_text(const FleetVerdict& verdict, const Analysis* opened, const TextOptions& options) {
  const FleetView view = view_fleet(verdict, opened);
  std::string word = view.word;
  std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  reports::TextLayout out(options.colour, options.width);
  out.paragraph(view.headline, 0, word + "  ");
  for (const reports::Fact& fact : view.facts) out.fact(fact.label, fact.value, kLabels);
  for (std::size_t i = 0; i < view.notes.shown.size(); ++i) out.fact(i == 0 ? "Note" : "", view.notes.shown[i], kLabels);
  if (view.notes.omitted > 0) out.fact("", "… and " + reports::format_count(view.notes.omitted) + " more", kLabels);
  const auto raw = [&](const char* label, const std::string& text) { out.raw("  " + out.ink(label, Ink::kDim) + "    " + text); };
  if (!options.written.empty()) raw("Page", printable(options.written));
  if (!verdict.to_open.empty()) {
    raw("Rest", "nanhunt report " + shell_word(printable(rank_folder(verdict, options.run, verdict.to_open.front()))) +
                    (opened == nullptr ? "   (where its trace is)" : ""));
  }
  return out.take();
}

}  // namespace nanhunt::fleet
