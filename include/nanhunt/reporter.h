// SPDX-License-Identifier: Apache-2.0
// Three views of one Analysis. Pure functions: same analysis, same bytes.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"

namespace nanhunt {

struct TextOptions {
  bool colour = false;
  int width = 100;
  std::string run = "RUN";  // what to call the run in commands
  std::string written = {};      // the files that hold all of it; empty: they have not been written
};

std::string render_text(const Analysis& analysis, const TextOptions& options = {});
std::string render_json(const Analysis& analysis);  // nanhunt.report, version 1
std::string render_html(const Analysis& analysis);  // one offline file

}  // namespace nanhunt
