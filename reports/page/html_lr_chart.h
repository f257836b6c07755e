// SPDX-License-Identifier: Apache-2.0
// The loss over the learning rate as one still picture with a table: what a learning rate finder found.
#pragma once

#include "reports/page/html_writer.h"
#include "reports/views/lr_ramp_view.h"

namespace nanhunt::reports {

void write_lr_ramp(HtmlWriter& out, const LrRampView& view);

}  // namespace nanhunt::reports
