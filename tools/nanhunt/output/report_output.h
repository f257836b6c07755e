// SPDX-License-Identifier: Apache-2.0
// Where a verdict goes: one format to stdout or a file, or the text to stdout and the rest into the run's folder.
#pragma once

#include <string>
#include <string_view>

#include "nanhunt/reporter.h"
#include "tools/nanhunt/options.h"

namespace nanhunt::cli {

enum class ReportFormat { kAll, kText, kJson, kHtml, kMarkdown, kGithub };

// By the ending of a file's name; kAll: it names none.
ReportFormat format_of_name(const std::string& name);
// For a terminal where stdout is one.
TextOptions options_of_stdout();
// Writes to stdout where `output` is "" or "-", and returns `status` then or once the file is whole.
int write_report(const std::string& output, std::string_view content, int status);
// Opens a page that is written already: where nothing does, its path is enough.
void open_page(const std::string& page);

}  // namespace nanhunt::cli
