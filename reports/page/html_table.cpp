// SPDX-License-Identifier: Apache-2.0
#include "reports/page/html_table.h"

#include "reports/page/html_finding.h"

namespace nanhunt::reports {
namespace {

void write_head(HtmlWriter& out, const TableView& table) {
  out.markup("<thead><tr>");
  for (std::size_t i = 0; i < table.heads.size(); ++i) {
    if (table.numeric[i]) {
      out.markup("<th scope=\"col\" class=\"num\">");
    } else {
      out.markup("<th scope=\"col\">");
    }
    out.text(table.heads[i]).markup("</th>");
  }
  out.markup("</tr></thead>");
}

void write_name(HtmlWriter& out, const TableView::Row& row, bool numeric, bool code) {
  const std::string& name = row.cells.front();
  if (numeric) {
    out.markup("<th scope=\"row\" class=\"num\">");
  } else {
    out.markup("<th scope=\"row\">");
  }
  if (!row.link.empty()) {
    out.markup("<a href=\"").text(row.link).markup("\">").text(name).markup("</a>");
  } else if (code) {
    out.element("code", "", name);
  } else {
    out.text(name);
  }
  out.markup("</th>");
}

}  // namespace

void write_table(HtmlWriter& out, const TableView& table, std::string_view label, std::string_view id, bool code) {
  if (table.rows.empty()) return;
  out.markup("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"").text(label).markup("\"><table");
  if (!id.empty()) out.markup(" id=\"").text(id).markup("\"");
  out.markup("><caption>").text(table.caption).markup("</caption>");
  write_head(out, table);
  out.markup("<tbody>");
  for (const TableView::Row& row : table.rows) {
    if (row.bad) {
      out.markup("<tr class=\"bad\">");
    } else {
      out.markup("<tr>");
    }
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      if (i == 0) {
        write_name(out, row, table.numeric[i], code);
      } else {
        out.element("td", table.numeric[i] ? "num" : "", row.cells[i]);
      }
    }
    out.markup("</tr>");
  }
  out.markup("</tbody></table></div>");
  write_and_more(out, table.omitted);
}

}  // namespace nanhunt::reports
