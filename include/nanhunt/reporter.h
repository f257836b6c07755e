// SPDX-License-Identifier: Apache-2.0
// Three views of one Analysis. Pure functions: same analysis, same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt {

struct TextOptions {
  bool colour = false;
  int width = 100;
  std::string run = "RUN";  // what to call the run in commands
  std::string written = {};  // the files that hold all of it; empty: they have not been written
  std::vector<std::uint32_t> going = {};  // ranks that are known to go on: their end is missing because it has not come
};

// Ten lines: what happened, the code, when, why, the cure, and the command that shows the rest. A terminal that is
// narrower than 80 columns may take more.
std::string render_answer(const Analysis& analysis, const TextOptions& options = {});
// All of it.
std::string render_text(const Analysis& analysis, const TextOptions& options = {});
std::string render_json(const Analysis& analysis);  // nanhunt.report, version 1
// The verdict and what it rests on as one object of at most 16 KiB, for programs that read it themselves: nanhunt.brief,
// version 1.
std::string render_brief(const Analysis& analysis, const TextOptions& options = {});
// An issue ready to paste.
std::string render_markdown(const Analysis& analysis);
// Findings as workflow commands of GitHub's ("::error file=train.py,line=12::..."). `root`: the checkout, to which files
// are named relative.
std::string render_annotations(const Analysis& analysis, const std::string& root);
// One offline file. going: as in TextOptions.
std::string render_html(const Analysis& analysis, const std::vector<std::uint32_t>& going = {});
// The answer as a piece of HTML for a notebook: headline, cure, code and the curve of the loss; no script.
std::string render_card(const Analysis& analysis, const TextOptions& options = {});

}  // namespace nanhunt
