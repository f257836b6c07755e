// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/output/report_output.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "tools/nanhunt/children/child.h"
#include "tools/nanhunt/terminal.h"

namespace nanhunt::cli {

namespace fs = std::filesystem;

ReportFormat format_of_name(const std::string& name) {
  const std::string ending = fs::path(name).extension().string();
  if (ending == ".json") return ReportFormat::kJson;
  if (ending == ".html" || ending == ".htm") return ReportFormat::kHtml;
  if (ending == ".txt") return ReportFormat::kText;
  if (ending == ".md") return ReportFormat::kMarkdown;
  return ReportFormat::kAll;
}

TextOptions options_of_stdout() {
  TextOptions options;
  options.colour = stdout_has_colour();
  options.width = stdout_width();
  return options;
}

int write_report(const std::string& output, std::string_view content, int status) {
  if (output.empty() || output == "-") return print_and_return(content, status);
  if (Status written = write_output(output, content); !written) return fail(written);
  say("wrote " + output);
  return status;
}

void open_page(const std::string& page) {
  std::error_code ignored;
  const std::string path = fs::absolute(page, ignored).string();
  const char* named = std::getenv("BROWSER");
  const std::string program = named != nullptr && *named != '\0' ? named : "xdg-open";
  const ChildEnd end = run_child({program, path}, {});
  if (end.start_error != 0 || end.status != 0)
    say("'" + program + "' could not open the page. Open it in a browser: file://" + path);
}

}  // namespace nanhunt::cli
