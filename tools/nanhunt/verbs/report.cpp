// SPDX-License-Identifier: Apache-2.0
// nanhunt report: the verdict on a recorded run as text, JSON and HTML.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "nanhunt/reporter.h"
#include "src/core/text.h"
#include "tools/nanhunt/analysis.h"
#include "tools/nanhunt/output/report_output.h"
#include "tools/nanhunt/places/run_place.h"
#include "tools/nanhunt/terminal.h"
#include "tools/nanhunt/verb.h"

namespace nanhunt::cli {
namespace {

namespace fs = std::filesystem;

using Format = ReportFormat;

class ReportVerb final : public Verb {
 public:
  void declare(Options options) override {
    options.add_run("RUN", run_, "Run folder, attempt folder or .nht file").required();
    Option text = options.add_flag("--text", text_, "Only the text, to stdout; writes no file");
    Option as_json = options.add_flag("--json", json_, "Only report.json, to stdout; writes no file");
    Option brief = options.add_flag("--brief", brief_, "With --json: one object of at most 16 KiB, for agents and programs");
    brief.needs(as_json);
    Option html = options.add_flag("--html", html_, "Only report.html, to stdout; writes no file");
    text.excludes(as_json).excludes(html);
    as_json.excludes(html);
    Option markdown = options.add_flag("--markdown", markdown_, "Only an issue ready to paste, to stdout; writes no file");
    Option github = options.add_flag(
        "--github", github_, "Only annotations for GitHub Actions (::error file=..,line=..::), to stdout; writes no file");
    for (Option* other : {&text, &as_json, &html}) {
      markdown.excludes(*other);
      github.excludes(*other);
    }
    markdown.excludes(github);
    Option full = options.add_flag("--full", full_, "The whole text instead of ten lines");
    Option open = options.add_flag("--open", open_, "Open the page as well, by $BROWSER or xdg-open");
    for (Option* other : {&as_json, &html, &markdown, &github}) {
      full.excludes(*other);
      open.excludes(*other);
    }
    open.excludes(text);
    options.add("-o,--output", output_, "Write to FILE instead; '-' is stdout. Without a format: by its ending")
        .value_name("FILE")
        .excludes(open);
  }

  int run() override {
    Format format = text_       ? Format::kText
                    : json_     ? Format::kJson
                    : html_     ? Format::kHtml
                    : markdown_ ? Format::kMarkdown
                    : github_   ? Format::kGithub
                                : Format::kAll;
    if (format == Format::kAll && !output_.empty()) {
      format = format_of_name(output_);
      if (format == Format::kAll) {
        return fail({StatusCode::kUsage, "report: which format shall '" + output_ +
                                             "' have? Add --text, --json, --html, --markdown or --github, or name it .txt, .json, "
                                             ".html or .md."});
      }
    }
    auto analysis = load_analysis(run_);
    if (!analysis) return fail(analysis.status());
    if (format == Format::kAll) return write_all(*analysis);
    return write_one(*analysis, format);
  }

 private:
  // Where GitHub checked the program out; else where the command runs.
  static std::string checkout() {
    const char* given = std::getenv("GITHUB_WORKSPACE");
    if (given != nullptr && *given != '\0') return given;
    std::error_code ignored;
    return fs::current_path(ignored).string();
  }

  TextOptions run_options() const {
    TextOptions options;
    options.run = run_name(run_);
    return options;
  }

  std::string text_of(const Analysis& analysis, const TextOptions& options) const {
    return full_ ? render_text(analysis, options) : render_answer(analysis, options);
  }

  int write_one(const Analysis& analysis, Format format) const {
    const bool to_stdout = output_.empty() || output_ == "-";
    std::string content;
    if (format == Format::kJson) content = brief_ ? render_brief(analysis, run_options()) : render_json(analysis);
    if (format == Format::kHtml) content = render_html(analysis);
    if (format == Format::kMarkdown) content = render_markdown(analysis);
    if (format == Format::kGithub) content = render_annotations(analysis, checkout());
    if (format == Format::kText) content = text_of(analysis, to_stdout ? options_of_stdout() : TextOptions{});
    return write_report(output_, content, kDone);
  }

  // A folder that cannot be written keeps nobody from reading the verdict.
  int write_all(const Analysis& analysis) const {
    std::error_code ignored;
    fs::path folder = run_;
    const bool one_segment = !fs::is_directory(folder, ignored);
    if (one_segment) folder = folder.has_parent_path() ? folder.parent_path() : ".";
    const ReportFiles paths = report_files(folder.string());
    const Status written = write_reports(analysis, paths);
    const std::string files = paths.json + " and " + paths.html;
    TextOptions options = options_of_stdout();
    options.run = run_name(run_);
    if (written) options.written = files;
    const int printed = print_and_return(text_of(analysis, options));
    if (!written) return fail(written);
    say("wrote " + files);
    if (one_segment) {
      say("they stand beside '" + run_ + "' and tell of this one segment. `nanhunt report " + shell_word(folder.string()) +
          "` reports the whole attempt.");
    }
    if (open_) open_page(paths.html);
    return printed;
  }

  std::string run_, output_;
  bool text_ = false, json_ = false, html_ = false, markdown_ = false, github_ = false, full_ = false, open_ = false, brief_ = false;
};

const RegisterVerb<ReportVerb> kReport{
    {.order = 20,
     .name = "report",
     .summary = "The verdict of a run in ten lines; writes report.json and report.html into its folder",
     .exit_statuses = "  0  done\n  2  wrong usage\n  3  the run cannot be read\n"
                      "  6  a report could not be written"}};

}  // namespace
}  // namespace nanhunt::cli
