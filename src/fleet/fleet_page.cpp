// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/fleet_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reports/page/html_finding.h"
#include "reports/page/html_frame.h"
#include "reports/page/html_table.h"
#include "reports/views/numbers.h"
#include "src/core/text.h"
#include "src/fleet/fleet_view.h"

namespace nanhunt::fleet {
namespace {

using reports::format_count;
using reports::HtmlWriter;
using reports::TableView;

constexpr std::size_t kPageBytes = 4'800'000, kTableRows = 64, kFoundRows = 16, kTables = 8, kCellLimit = 120,
                      kListedRanges = 200;

// What the ranks of one row of a table have come to.
struct RankTotals {
  std::string name;
  std::uint64_t ranks = 0, found = 0, reached = 0, unended = 0, absent = 0;
  std::optional<std::uint32_t> clean, last;  // the least of them
  bool never_clean = false;
  RankState worst = RankState::kMissing;

  void add(const MapRank& one) {
    ++ranks;
    found += one.found ? 1 : 0;
    worst = std::max(worst, one.digest == nullptr ? one.absent : RankState::kNothing);
    for (const StateSpan& span : one.spans) worst = std::max(worst, span.state);
    if (one.digest == nullptr) {
      ++absent;
      return;
    }
    reached += one.digest->arrival ? 1 : 0;
    unended += one.digest->ended ? 0 : 1;
    if (!one.digest->last_step) return;
    last = std::min(last.value_or(UINT32_MAX), *one.digest->last_step);
    if (one.digest->clean_through) clean = std::min(clean.value_or(UINT32_MAX), *one.digest->clean_through);
    never_clean = never_clean || !one.digest->clean_through;
  }
};

std::string number_text(const std::optional<std::uint32_t>& number) { return number ? format_count(*number) : "—"; }

std::vector<RankTotals> totals_of_values(const RankMap& map, const RankGrouping& by) {
  std::vector<RankTotals> totals(by.values.size() + 1);
  for (std::size_t i = 0; i < by.values.size(); ++i)
    totals[i].name = reports::clip(by.dimension + " " + by.values[i], kCellLimit);
  totals.back().name = by.dimension + " not known";
  for (std::size_t i = 0; i < map.ranks.size(); ++i) totals[by.value[i]].add(map.ranks[i]);
  std::erase_if(totals, [](const RankTotals& one) { return one.ranks == 0; });
  return totals;
}

// Where nothing but their numbers tells ranks apart.
std::vector<RankTotals> totals_of_bands(const RankMap& map) {
  std::vector<RankTotals> totals;
  const BandedMap banded = aggregate_ranks(map, 0, kTableRows);
  std::size_t next = 0;
  for (const RankBand& band : banded.bands) {
    RankTotals& one = totals.emplace_back();
    const std::uint32_t first = map.ranks[banded.order[next]].rank;
    for (std::uint32_t i = 0; i < band.ranks; ++i) one.add(map.ranks[banded.order[next++]]);
    const std::uint32_t last = map.ranks[banded.order[next - 1]].rank;
    one.name = first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
  }
  return totals;
}

TableView table_of(std::vector<RankTotals> totals, const std::string& caption) {
  // Of too many those with a fault of their own stay.
  if (totals.size() > kTableRows)
    std::stable_partition(totals.begin(), totals.end(), [](const RankTotals& one) { return one.found > 0; });
  TableView table;
  table.caption = caption;
  table.heads = {"Ranks",           "How many",  "It began on", "It came to", "All clean through step",
                 "First last step", "Not ended", "No digest",   "Worst"};
  table.numeric = {false, true, true, true, true, true, true, true, false};
  for (const RankTotals& one : totals) {
    if (table.rows.size() == kTableRows) break;
    table.rows.push_back(
        {{one.name, format_count(one.ranks), format_count(one.found), format_count(one.reached),
          one.never_clean ? "none" : number_text(one.clean), number_text(one.last), format_count(one.unended),
          format_count(one.absent), std::string(rank_state_words(one.worst).name)},
         one.found > 0});
  }
  table.omitted = totals.size() - table.rows.size();
  return table;
}

// The dimension of the shape first: its rows show it.
std::vector<std::size_t> order_of_tables(const FleetVerdict& verdict, const RankMap& map) {
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < map.groupings.size(); ++i) order.push_back(i);
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) {
    const std::vector<Place>& places = verdict.shape.places;
    return std::any_of(places.begin(), places.end(),
                       [&](const Place& place) { return place.dimension == map.groupings[i].dimension; });
  });
  return order;
}

void write_groups(HtmlWriter& out, const FleetVerdict& verdict, const RankMap& map) {
  reports::begin_wide_part(out, "groups", "The map in numbers");
  const std::vector<std::size_t> order = order_of_tables(verdict, map);
  if (order.empty()) reports::write_table(out, table_of(totals_of_bands(map), "By rank"), "Ranks in numbers");
  for (std::size_t i = 0; i < std::min(order.size(), kTables); ++i) {
    const RankGrouping& by = map.groupings[order[i]];
    const std::string caption = "By " + reports::clip(by.dimension, kCellLimit);
    if (i > 0) out.markup("<details><summary>").text(caption).markup("</summary>");
    reports::write_table(out, table_of(totals_of_values(map, by), caption), caption);
    if (i > 0) out.markup("</details>");
  }
  if (order.size() > kTables) out.element("p", "more", fmt::format("… and {} more dimensions", order.size() - kTables));
  reports::end_part(out);
}

// What is said in sentences has a line of its own.
void write_facts_of(HtmlWriter& out, const FleetView& view) {
  std::vector<reports::Fact> facts;
  for (const reports::Fact& fact : view.facts) {
    if (fact.label != "Cause" && fact.label != "Cure") {
      facts.push_back(fact);
      continue;
    }
    out.markup("<p class=\"cure\"><b>").text(fact.label).markup("</b> ").text(fact.value).markup("</p>");
  }
  reports::write_facts(out, facts);
}

void write_map(HtmlWriter& out, const RankMap& map) {
  reports::begin_wide_part(out, "map", "Steps × ranks");
  const bool has_steps = std::any_of(map.ranks.begin(), map.ranks.end(),
                                     [](const MapRank& one) { return one.digest != nullptr && one.digest->last_step; });
  const std::string steps =
      has_steps ? fmt::format(" over steps {} to {}", format_count(map.first_step), format_count(map.last_step))
                : ", of which no step is known";
  out.element("p", "",
              fmt::format("{}{}, from one digest of each that left one. A digest keeps what happened first and last, "
                          "not each step.",
                          reports::plural(map.ranks.size(), "rank", "ranks"), steps));
  if (map.omitted > 0)
    out.element(
        "p", "more",
        reports::plural(map.omitted, "rank is", "ranks are") + " not drawn; all that left a digest come first.");
  out.markup("<div id=\"rank-map\"></div><details><summary>What the states mean</summary><dl class=\"words\">");
  for (std::size_t i = kRankStates; i-- > 0;) {
    const RankStateWords& words = rank_state_words(static_cast<RankState>(i));
    out.markup("<div>").element("dt", "", words.name).element("dd", "", words.meaning).markup("</div>");
  }
  out.markup(
      "</dl></details><p class=\"more\">Of several ranks or steps in one cell the worst is drawn. Ranks without a "
      "digest are marked at "
      "the left edge.</p>");
  reports::end_part(out);
}

std::string or_dash(const std::string& text) { return text.empty() ? "—" : reports::clip(text, kCellLimit); }

std::string coordinates_text(const Digest& one) {
  std::vector<std::string> parts;
  for (const auto& [name, place] : one.coordinates) parts.push_back(fmt::format("{} {}", name, place));
  return or_dash(reports::join(parts, ", "));
}

// Ranks that the verdict names, each with its own first origin.
void write_found(HtmlWriter& out, const FleetVerdict& verdict, const RankMap& map, const FleetPageOptions& options) {
  TableView table;
  table.caption = "Ranks that the verdict names";
  table.heads = {"Rank", "Host", "Card", "Coordinates", "Step", "What"};
  table.numeric = {false, false, false, false, true, false};
  std::vector<std::uint32_t> found;
  for (const MapRank& one : map.ranks) {
    if (!one.found || one.digest == nullptr) continue;
    found.push_back(one.rank);
    if (table.rows.size() == kFoundRows) {
      ++table.omitted;
      continue;
    }
    const Digest& d = *one.digest;
    const std::string card =
        d.accelerator_name + (d.accelerator_name.empty() || d.accelerator_id.empty() ? "" : " ") + d.accelerator_id;
    const DigestOrigin* origin = d.origins.empty() ? nullptr : &d.origins.front();
    const bool linked = std::find(options.linked.begin(), options.linked.end(), one.rank) != options.linked.end();
    const std::string step = verdict.parting_leads ? format_count(verdict.parting->step)
                             : origin == nullptr   ? "—"
                                                   : format_count(origin->place.step);
    table.rows.push_back(
        {{std::to_string(one.rank), or_dash(d.host), or_dash(card), coordinates_text(d), step,
          verdict.parting_leads || origin == nullptr ? "its parameters differ from those of its replicas"
                                                     : reports::clip(origin->title, reports::kNameLimit)},
         true,
         linked ? rank_folder(verdict, "", one.rank) + "/report.html" : ""});
  }
  if (table.rows.empty()) return;
  const bool parted = verdict.parting_leads;
  reports::begin_wide_part(out, "found", parted ? "Ranks whose parameters differ" : "Ranks it began on");
  if (table.omitted > 0)
    out.element("p", "", (parted ? "They are " : "It began on ") + ranges_text(ranges_of(found, kListedRanges), found.size()) + ".");
  reports::write_table(out, table, parted ? "Table of ranks whose parameters differ" : "Table of ranks it began on");
  reports::end_part(out);
}

void write_next(HtmlWriter& out, const FleetVerdict& verdict, const FleetPageOptions& options) {
  if (verdict.to_open.empty()) return;
  reports::begin_part(out, "next", "Read next");
  out.markup("<p>The traces of these ranks say most: where it began first, then one other.</p><ul class=\"plain\">");
  for (const std::uint32_t rank : verdict.to_open) {
    out.markup("<li>").text(fmt::format("Rank {}: ", rank));
    if (std::find(options.linked.begin(), options.linked.end(), rank) != options.linked.end()) {
      const std::string page = rank_folder(verdict, "", rank) + "/report.html";
      out.markup("<a href=\"").text(page).markup("\">").text(page).markup("</a></li>");
    } else {
      out.element("code", "path", "nanhunt report " + shell_word(printable(rank_folder(verdict, options.run, rank))))
          .markup(", where its trace is</li>");
    }
  }
  out.markup("</ul>");
  reports::end_part(out);
}

std::string sentence_of(const char* what, const std::vector<RankRange>& ranges, std::uint64_t all) {
  return fmt::format("{}: {}", what, ranges_text(ranges, all));
}

void write_absent(HtmlWriter& out, const FleetVerdict& verdict) {
  const Digests& d = verdict.digests;
  reports::Lines lines;
  if (const std::uint64_t missing = d.missing_count(); missing > 0)
    lines.shown.push_back(sentence_of(d.unread.empty() && d.older.empty() ? "No digest" : "No digest of this launch that can be read", d.missing_ranges(kListedRanges), missing));
  if (!d.older.empty())
    lines.shown.push_back(sentence_of("Of another launch alone", ranges_of(d.older, kListedRanges), d.older.size()));
  for (const UnreadDigest& one : d.unread) {
    if (lines.shown.size() == kTableRows) {
      ++lines.omitted;
    } else {
      lines.shown.push_back(reports::clip("Damaged: " + one.path + ": " + one.why, reports::kSentenceLimit));
    }
  }
  if (!verdict.unended.empty() && verdict.unended.size() < d.ranks.size())
    lines.shown.push_back(sentence_of("Not ended", ranges_of(verdict.unended, kListedRanges), verdict.unended.size()));
  if (lines.empty()) return;
  reports::begin_part(out, "absent", "Ranks that are not known");
  reports::write_list(out, lines);
  reports::end_part(out);
}

}  // namespace

std::string render_fleet_page(const FleetVerdict& verdict, const Analysis* opened, const FleetPageOptions& options) {
  const FleetView view = view_fleet(verdict, opened);
  const RankMap map = make_rank_map(verdict);
  HtmlWriter out;
  out.markup("<header class=\"masthead\"><p class=\"brand\">nanhunt</p>");
  out.element("p", "run",
              fmt::format("{} of {} read", format_count(verdict.digests.ranks.size()),
                          reports::plural(verdict.digests.world_size, "rank", "ranks")));
  out.markup("</header>\n<main>\n");
  reports::open_verdict(out, verdict.status);
  out.text(view.word).markup("</p><h1 id=\"headline\">").text(view.headline).markup("</h1>");
  write_facts_of(out, view);
  if (!view.notes.empty()) reports::write_list(out, view.notes);
  out.markup("</section>\n");
  write_map(out, map);
  write_found(out, verdict, map, options);
  write_next(out, verdict, options);
  write_groups(out, verdict, map);
  write_absent(out, verdict);
  out.markup("</main>\n");
  reports::write_footer(out, "from the digests of the ranks, and of at most five of their traces");
  const std::string body = out.take();
  const std::size_t taken = body.size() + reports::frame_bytes();
  const std::string data = make_fleet_data(map, options, taken < kPageBytes ? kPageBytes - taken : 0);
  return reports::fill_page(view.word + ": " + view.headline + " · nanhunt", body, data);
}

}  // namespace nanhunt::fleet
