// SPDX-License-Identifier: Apache-2.0
// The layers of a run as a table that scripts make sortable, and the loss scaler.
#pragma once

#include <cstddef>

#include "reports/page/html_writer.h"
#include "reports/views/report_model.h"

namespace nanhunt::reports {

// Returns how many rows were written: fewer than there are once the page is `stop_at` bytes long.
std::size_t write_layers(HtmlWriter& out, const ReportModel& model, std::size_t stop_at);
void write_scaler(HtmlWriter& out, const ScalerView& scaler);

}  // namespace nanhunt::reports
