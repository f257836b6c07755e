// SPDX-License-Identifier: Apache-2.0
// What the scripts of the page draw from, as JSON that can stand inside <script type="application/json">.
// Read by html/src/data.ts.
#pragma once

#include <cstddef>
#include <string>

#include "nanhunt/analyzer.h"
#include "reports/views/report_model.h"

namespace nanhunt::reports {

// `layer_rows` is how many layers the page's table has: the map has the same rows. About `max_bytes` at most: the map
// of layers gives up columns first, then it is left out.
std::string make_page_data(const Analysis& analysis, const ReportModel& model, std::size_t layer_rows,
                           std::size_t max_bytes);

// JSON as it may stand in a script element: nothing in it can end the element or start a comment.
std::string escape_for_script(std::string json);

}  // namespace nanhunt::reports
