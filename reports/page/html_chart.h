// SPDX-License-Identifier: Apache-2.0
// The loss over the steps as one still picture, with rails for what is not a point of a line.
#pragma once

#include "reports/page/html_writer.h"
#include "reports/views/timeline_view.h"

namespace nanhunt::reports {

void write_loss_chart(HtmlWriter& out, const TimelineView& view);

}  // namespace nanhunt::reports
