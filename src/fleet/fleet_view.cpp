// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/fleet_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reports/views/numbers.h"
#include "reports/views/wording.h"
#include "src/core/text.h"
#include "src/trace/segments/segment.h"

namespace nanhunt::fleet {
namespace {

// "host n24, card GPU-…, data 0, pipeline 3"; nothing is known: "".
std::string place_of(const FleetVerdict& verdict, std::uint32_t rank) {
  const Digest* one = verdict.digests.find(rank);
  if (one == nullptr) return "";
  std::vector<std::string> parts;
  if (!one->host.empty()) parts.push_back("host " + one->host);
  if (!one->accelerator_name.empty() || !one->accelerator_id.empty())
    parts.push_back(
        fmt::format("card {}{}{}", one->accelerator_name, one->accelerator_id.empty() ? "" : " ", one->accelerator_id));
  for (const auto& [dimension, place] : one->coordinates) parts.push_back(fmt::format("{} {}", dimension, place));
  return reports::join(parts, ", ");
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
bool matches(const Finding& f, const FleetVerdict& verdict) {
  if (!verdict.first) return verdict.parting && f.title == verdict.headline;
  const bool there = std::find(f.ranks.begin(), f.ranks.end(), *verdict.first_rank) != f.ranks.end();
  return there && f.cls == verdict.first->cls && f.place.op == verdict.first->place.op &&
         f.place.step == verdict.first->place.step;
}

// The title without the operation and the module that it begins with: the headline has named them.
std::string what_of(const DigestOrigin& first) {
  std::string known = first.place.op.value_or("");
  if (first.place.module) known += " in " + *first.place.module;
  known += " ";
  return known.size() > 1 && first.title.starts_with(known) ? first.title.substr(known.size()) : first.title;
}

}  // namespace

FleetView view_fleet(const FleetVerdict& verdict, const Analysis* opened) {
  FleetView view;
  view.word = std::string(reports::verdict_word(verdict.status));
  view.headline = reports::clip(verdict.headline, reports::kSentenceLimit);
  const auto fact = [&](const char* label, const std::string& text) {
    if (!text.empty()) view.facts.push_back({label, reports::clip(text, reports::kSentenceLimit)});
  };
  fact("Ranks", ranks_of(verdict));
  if (verdict.clean_through)
    fact("Clean", fmt::format("through step {}, on all ranks that left a digest with steps", *verdict.clean_through));
  if (verdict.first_rank && !verdict.origin_is_missing) {
    const std::string place = place_of(verdict, *verdict.first_rank),
                      rank = fmt::format("rank {}", *verdict.first_rank);
    const std::string named = place.empty() ? rank : fmt::format("{}: {}", rank, place);
    if (verdict.ranks.size() == 1 && !verdict.parting_leads) {
      fact("Where", place);
    } else {
      fact(verdict.first_ranks.size() > 1 ? "E.g." : "First", named);
    }
    fact("What", what_of(*verdict.first));
  }
  if (const Finding* f = opened == nullptr ? nullptr : reports::find_origin(*opened);
      f != nullptr && matches(*f, verdict)) {
    const reports::ReportModel model = reports::make_report_model(*opened);
    if (verdict.first) fact("Cause", model.origin->cause);  // of replicas that part the notes say all
    fact("Cure", model.origin->cure);
  }
  for (const std::string& note : verdict.notes) {
    if (view.notes.shown.size() == kMaxFleetNotes) {
      ++view.notes.omitted;
    } else {
      view.notes.shown.push_back(reports::clip(note, reports::kSentenceLimit));
    }
  }
  return view;
}

std::string rank_folder(const FleetVerdict& verdict, const std::string& run, std::uint32_t rank) {
  const Digest* one = verdict.digests.find(rank);
  const std::string folder =
      trace::rank_folder_name(rank) + "/" + trace::attempt_folder_name(one == nullptr ? 0 : one->attempt);
  return run.empty() ? folder : run + "/" + folder;
}

}  // namespace nanhunt::fleet
