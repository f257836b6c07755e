// SPDX-License-Identifier: Apache-2.0
// The loss over the steps as one still picture, with rails for what is not a point of a line.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "reports/page/html_writer.h"
#include "reports/views/timeline_view.h"

namespace nanhunt::reports {

// What several charts on one page need. The reference is another course, drawn as a dashed line without marks. The origin
// is a step that is marked by a line and named.
struct LossChartOptions {
  std::string_view id = "loss", title = "Loss by step";
  const TimelineView* reference = nullptr;
  std::optional<std::uint32_t> origin = {};
  bool small = false;
};
void write_loss_chart(HtmlWriter& out, const TimelineView& view, const LossChartOptions& options = {});

}  // namespace nanhunt::reports
