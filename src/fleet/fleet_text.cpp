// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/fleet_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reports/text/text_layout.h"
#include "reports/views/numbers.h"
#include "reports/views/report_model.h"
#include "src/analyze/ranks/rank_propagation.h"
#include "src/core/text.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::fleet {
namespace {

using reports::Ink;

constexpr std::size_t kLabels = 6, kMostNotes = 12;

// "rank 192: host n24, card GPU-…, data 0, pipeline 3".
std::string place_of(const FleetVerdict& verdict, std::uint32_t rank) {
  std::string text = fmt::format("rank {}", rank);
  const Digest* one = verdict.digests.find(rank);
  if (one == nullptr) return text;
  std::vector<std::string> parts;
  if (!one->host.empty()) parts.push_back("host " + one->host);
  if (!one->accelerator_name.empty() || !one->accelerator_id.empty())
    parts.push_back(fmt::format("card {}{}{}", one->accelerator_name, one->accelerator_id.empty() ? "" : " ", one->accelerator_id));
  for (const auto& [dimension, place] : one->coordinates) parts.push_back(fmt::format("{} {}", dimension, place));
  return parts.empty() ? text : fmt::format("{}: {}", text, fmt::join(parts, ", "));
}

// "9,700 of 10,000: it began on 8 and came to 9,692".
std::string ranks_of(const FleetVerdict& verdict) {
  std::map<VerdictStatus, std::uint64_t> others;
  std::uint64_t came = 0;
  for (const Digest& one : verdict.digests.ranks) {
    const bool began = std::binary_search(verdict.ranks.begin(), verdict.ranks.end(), one.rank);
    const bool reached = std::binary_search(verdict.reached.begin(), verdict.reached.end(), one.rank);
    if (!began && reached) ++came;
    if (!began && !reached) ++others[one.status];
  }
  std::vector<std::string> parts;
  if (!verdict.ranks.empty()) parts.push_back("it began on " + reports::format_count(verdict.ranks.size()));
  if (came > 0) parts.push_back("it came to " + reports::format_count(came));
  for (const auto& [status, count] : others)
    parts.push_back(reports::format_count(count) + " " + std::string(verdict_status_name(status)));
  return fmt::format("{} of {} read: {}", reports::format_count(verdict.digests.ranks.size()),
                     reports::format_count(verdict.digests.world_size), fmt::join(parts, ", "));
}

// Is this finding of the traces that were opened what the digests say?
bool tells_of(const Finding& f, const FleetVerdict& verdict) {
  if (!verdict.first) return verdict.parting && f.title == verdict.headline;
  const bool there = std::find(f.ranks.begin(), f.ranks.end(), *verdict.first_rank) != f.ranks.end();
  return there && f.cls == verdict.first->cls && f.place.op == verdict.first->place.op && f.place.step == verdict.first->place.step;
}

}  // namespace

std::string render_fleet_text(const FleetVerdict& verdict, const Analysis* opened, const TextOptions& options) {
  std::string word(verdict_status_name(verdict.status));
  std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  reports::TextLayout out(options.colour, options.width);
  out.paragraph(printable(verdict.headline), 0, word + "  ");
  const auto fact = [&](const char* label, const std::string& text) { out.fact(label, printable(text), kLabels); };
  fact("Ranks", ranks_of(verdict));
  if (verdict.clean_through)
    fact("Clean", fmt::format("through step {}, on all ranks that left a digest with steps", *verdict.clean_through));
  if (verdict.first_rank && !verdict.origin_is_missing) {
    fact(verdict.first_ranks.size() > 1 ? "E.g." : "First", place_of(verdict, *verdict.first_rank));
    fact("What", verdict.first->title);
  }
  if (const Finding* f = opened == nullptr ? nullptr : reports::find_origin(*opened); f != nullptr && tells_of(*f, verdict)) {
    const reports::ReportModel model = reports::make_report_model(*opened);
    if (verdict.first) fact("Cause", model.origin->cause);  // of replicas that part the notes say all
    fact("Cure", model.origin->cure);
  }
  for (std::size_t i = 0; i < std::min(verdict.notes.size(), kMostNotes); ++i) fact(i == 0 ? "Note" : "", verdict.notes[i]);
  if (!verdict.to_open.empty()) {
    const std::uint32_t rank = verdict.to_open.front();
    const Digest* one = verdict.digests.find(rank);
    const std::string folder = options.run + "/" + trace::rank_folder_name(rank) + "/" + trace::attempt_folder_name(one == nullptr ? 0 : one->attempt);
    out.raw("  " + out.ink("Rest", Ink::kDim) + "    nanhunt report " + shell_word(printable(folder)) +
            (opened == nullptr ? "   (where its trace is)" : ""));
  }
  return out.take();
}

}  // namespace nanhunt::fleet
