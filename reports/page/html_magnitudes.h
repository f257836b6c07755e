// SPDX-License-Identifier: Apache-2.0
// Magnitudes against the ranges of number formats, as a still picture with a table beside it.
#pragma once

#include "reports/page/html_writer.h"
#include "reports/views/magnitudes.h"

namespace nanhunt::reports {

void write_magnitudes(HtmlWriter& out, const MagnitudeView& view);

}  // namespace nanhunt::reports
