// SPDX-License-Identifier: Apache-2.0
// nanhunt fleet: one verdict over the ranks of a run, from their digests and a few of their traces.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "reports/views/numbers.h"
#include "src/fleet/fleet_page.h"
#include "src/fleet/fleet_text.h"
#include "src/fleet/fleet_view.h"
#include "src/fleet/read_digests.h"
#include "src/fleet/verdict.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/output/fleet_tables.h"
#include "tools/nanhunt/output/report_output.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/progress.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;

class FleetVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add("RUN", run_, "Run folder, or its URL: of each rank a digest, a trace, or both").required();
    Option text = options.add_flag("--text", text_, "Only the text, to stdout; writes no file");
    Option as_json = options.add_flag("--json", json_, "Only fleet.json (schema nanhunt.fleet), to stdout; writes no file");
    Option html = options.add_flag("--html", html_, "Only fleet.html, to stdout; writes no file");
    text.excludes(as_json).excludes(html);
    as_json.excludes(html);
    Option open = options.add_flag("--open", open_, "Open the page as well, by $BROWSER or xdg-open");
    open.excludes(text).excludes(as_json).excludes(html);
    options.add("-o,--output", output_, "Write to FILE instead; '-' is stdout. Without a format: by its ending")
        .value_name("FILE")
        .excludes(open);
    Option only_digests = options.add_flag("--digests-only", digests_only_, "Reads no trace: neither for a digest that is missing nor for the details");
    options.add("--jobs", jobs_, "Ranks to read at a time; 0: one for each processor").show_default();
    options.add("--tables", tables_.out, "Write what all ranks recorded as Parquet tables into OUT as well")
        .value_name("OUT")
        .excludes(only_digests);
    options.add("--engine", tables_.engine, "Where tables are made: processes of this machine, or a Ray cluster")
        .one_of({"local", "ray"})
        .show_default();
    options.add("--address", tables_.address, "Of the Ray cluster (default: that which this machine is part of, or a new one)")
        .value_name("HOST:PORT");
    options.add("--group", tables_.group, "Ranks whose rows are in one file of a table").in_range(1u, 1'000'000u).show_default();
  }

  int run() override {
    ReportFormat format = text_   ? ReportFormat::kText
                          : json_ ? ReportFormat::kJson
                          : html_ ? ReportFormat::kHtml
                                  : ReportFormat::kAll;
    if (format == ReportFormat::kAll && !output_.empty()) {
      format = format_of_name(output_);
      if (format == ReportFormat::kAll || format == ReportFormat::kMarkdown) {
        return fail({StatusCode::kUsage, "fleet: which format shall '" + output_ +
                                             "' have? Add --text, --json or --html, or name it .txt, .json or .html."});
      }
    }
    if (tables_.out.empty() && (tables_.engine != "local" || !tables_.address.empty() || tables_.group != FleetTables().group)) {
      return fail({StatusCode::kUsage, "fleet: --engine, --address and --group say how --tables OUT is made: add it. See `nanhunt fleet --help`."});
    }
    tables_.run = run_;
    if (is_url(run_)) {
      auto folder = fetch_run(run_, {.digests = true});
      if (!folder) return fail(folder.status());
      url_ = std::exchange(run_, *folder);
    }
    fleet::ReadOptions options;
    options.make = !digests_only_;
    options.workers = jobs_;
    std::unique_ptr<Progress> progress;
    options.progress = [&](std::size_t done, std::size_t all) {
      if (progress == nullptr) progress = std::make_unique<Progress>("digests", all);
      progress->update(done, "");
    };
    auto digests = fleet::read_digests(run_, options);
    progress.reset();
    if (!digests) return fail(digests.status());
    const std::uint64_t made = digests->made;
    const fleet::FleetVerdict verdict = fleet::judge_fleet(std::move(*digests));
    if (made > 0) say(made == 1 ? "made 1 digest from its trace" : "made " + std::to_string(made) + " digests from their traces");
    const int status = format == ReportFormat::kAll ? write_all(verdict) : write_one(verdict, format);
    if (tables_.out.empty()) return status;
    tables_.jobs = jobs_;
    const Status written = write_fleet_tables(tables_);
    return written ? status : fail(written);
  }

 private:
  // The traces that say most, together; none: there are digests alone, or no other is needed.
  std::optional<Analysis> open_traces(const fleet::FleetVerdict& verdict) const {
    if (digests_only_ || verdict.to_open.empty()) return std::nullopt;
    if (!url_.empty()) {
      if (const auto fetched = fetch_run(url_, {.ranks = verdict.to_open}); !fetched) say(fetched.status().message());
    }
    AnalyzeOptions few;
    few.ranks = verdict.to_open;
    auto analysis = analyze_run(run_, few);
    if (!analysis) return std::nullopt;
    return std::move(*analysis);
  }

  static const Analysis* pointer(const std::optional<Analysis>& analysis) { return analysis ? &*analysis : nullptr; }

  int write_one(const fleet::FleetVerdict& verdict, ReportFormat format) const {
    const int status = exit_status(verdict);
    if (format == ReportFormat::kJson) return write_report(output_, render_fleet_json(verdict), status);
    const std::optional<Analysis> opened = open_traces(verdict);
    if (format == ReportFormat::kHtml)
      return write_report(output_, render_fleet_page(verdict, pointer(opened), {.run = run_name(run_)}), status);
    const bool to_stdout = output_.empty() || output_ == "-";
    TextOptions options = to_stdout ? options_of_stdout() : TextOptions{};
    options.run = run_name(run_);
    return write_report(output_, render_fleet_text(verdict, pointer(opened), options), status);
  }

  // Folders of ranks that are links lead out of the run: nothing is written there.
  static bool has_links(const std::string& folder) {
    std::error_code ignored;
    return fs::is_symlink(folder, ignored) || fs::is_symlink(fs::path(folder).parent_path(), ignored);
  }

  // A report of each opened rank beside its trace; the ranks that have one now.
  std::vector<std::uint32_t> write_reports_of_ranks(const fleet::FleetVerdict& verdict) const {
    std::vector<std::uint32_t> written;
    for (const std::uint32_t rank : verdict.to_open) {
      const std::string folder = rank_folder(verdict, run_, rank);
      if (has_links(folder)) continue;
      auto analysis = analyze_run(folder);
      if (analysis && write_reports(*analysis, report_files(folder))) written.push_back(rank);
    }
    return written;
  }

  // A folder that cannot be written keeps nobody from reading the verdict, nor changes it.
  int write_all(const fleet::FleetVerdict& verdict) const {
    const std::optional<Analysis> opened = open_traces(verdict);
    fleet::FleetPageOptions page{.run = run_name(run_)};
    if (opened) page.linked = write_reports_of_ranks(verdict);
    const fs::path folder = run_;
    const std::string data = (folder / "fleet.json").string(), html = (folder / "fleet.html").string();
    Status written = replace_file(data, render_fleet_json(verdict));
    if (written) written = replace_file(html, render_fleet_page(verdict, pointer(opened), page));
    TextOptions options = options_of_stdout();
    options.run = run_name(run_);
    if (written) options.written = html;
    const int printed = print_and_return(render_fleet_text(verdict, pointer(opened), options), exit_status(verdict));
    if (!written) {
      say(written.message());
      return printed;
    }
    const std::size_t count = page.linked.size();
    const std::string more = count == 0 ? "" : ", and " + reports::plural(count, "rank's report", "ranks' reports");
    say("wrote " + data + " and " + html + more);
    if (open_) open_page(html);
    return printed;
  }

  static ExitStatus exit_status(const fleet::FleetVerdict& verdict) {
    if (verdict.status == VerdictStatus::kFault) return kFoundFault;
    if (!verdict.digests.unread.empty()) return kDamagedInput;
    return verdict.status == VerdictStatus::kInconclusive ? kInconclusive : kDone;
  }

  std::string run_, url_, output_;  // `url_`: of which `run_` is a copy; empty: of none
  FleetTables tables_;
  unsigned jobs_ = 0;
  bool text_ = false, json_ = false, html_ = false, open_ = false, digests_only_ = false;
};

const RegisterVerb<FleetVerb> kFleet{{.order = 35,
                                      .name = "fleet",
                                      .summary = "One verdict over many ranks, from a small digest of each; "
                                                 "writes fleet.json and fleet.html",
                                      .exit_statuses = "  0  no fault\n"
                                                       "  1  a fault\n"
                                                       "  2  wrong usage\n"
                                                       "  3  no digest and no trace can be read\n"
                                                       "  4  some digests are damaged, and no fault is in the others\n"
                                                       "  5  inconclusive; also where ranks are missing\n"
                                                       "  6  the answer could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
