// SPDX-License-Identifier: Apache-2.0
// A table of the page: it scrolls by itself and can be reached by keyboard.
#pragma once

#include <string_view>

#include "reports/page/html_writer.h"
#include "reports/views/precision_view.h"

namespace nanhunt::reports {

// Nothing where it has no rows. `label`: what the region is called. `id` of the table, or none. `code`: the first
// column holds names of the program's.
void write_table(HtmlWriter& out, const TableView& table, std::string_view label, std::string_view id = "",
                 bool code = false);

}  // namespace nanhunt::reports
