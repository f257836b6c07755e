// SPDX-License-Identifier: Apache-2.0
// Makes a table of the page sortable and its rows easy to find. What is shown is what is sorted.
import { html } from "./dom";
import { format_count } from "./numbers";

type Direction = "ascending" | "descending";

// The number a cell shows, or null for "—" and for words. "< 0.01 %" counts as its figure, "not finite" as the largest.
function figure(text: string): number | null {
  if (text === "not finite") return Infinity;
  const power = /^(-?)2\^(-?\d+)$/.exec(text);
  if (power) return (power[1] ? -1 : 1) * 2 ** Number(power[2]);
  const match = /-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?/.exec(text);
  return match ? Number(match[0].replaceAll(",", "")) : null;
}

function cell_text(row: HTMLTableRowElement, column: number): string {
  return row.cells[column]?.textContent ?? "";
}

function compare(a: HTMLTableRowElement, b: HTMLTableRowElement, column: number, numeric: boolean, sign: number): number {
  const left = cell_text(a, column);
  const right = cell_text(b, column);
  if (!numeric) return sign * left.localeCompare(right, "en", { numeric: true });
  const x = figure(left);
  const y = figure(right);
  if (x === null || y === null) return Number(x === null) - Number(y === null); // unknown last, either way
  return x === y ? 0 : sign * (x - y);
}

function add_sorting(table: HTMLTableElement, body: HTMLTableSectionElement, status: (text: string) => void): void {
  const heads = [...(table.tHead?.rows[table.tHead.rows.length - 1]?.cells ?? [])];
  heads.forEach((head, column) => {
    const name = head.textContent ?? "";
    const button = html("button", { type: "button", class: "sort" }, name);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("num");
      const now = head.getAttribute("aria-sort") as Direction | null;
      // The first click shows what is largest, or what comes first in the alphabet.
      const first: Direction = numeric ? "descending" : "ascending";
      const other: Direction = numeric ? "ascending" : "descending";
      const next = now === first ? other : first;
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => compare(a, b, column, numeric, sign));
      body.append(...rows);
      status(`Sorted by ${name}, ${next}.`);
    });
  });
}

export function make_findable(table: HTMLTableElement, what: string): void {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  const filter = html("input", { type: "search", id: `${table.id}-filter`, autocomplete: "off", spellcheck: "false" });
  const bad_only = html("input", { type: "checkbox", id: `${table.id}-bad` });
  const count = html("span", { class: "count", role: "status" });
  const total = body.rows.length;

  const apply = () => {
    const wanted = filter.value.toLowerCase();
    let shown = 0;
    for (const row of body.rows) {
      const fits = cell_text(row, 0).toLowerCase().includes(wanted) && (!bad_only.checked || row.classList.contains("bad"));
      row.hidden = !fits;
      if (fits) ++shown;
    }
    count.textContent = `${format_count(shown)} of ${format_count(total)} ${what}`;
  };
  filter.addEventListener("input", apply);
  bad_only.addEventListener("change", apply);
  const bar = html(
    "div",
    { class: "tools" },
    html("label", { for: filter.id }, "Find"),
    filter,
    html("span", { class: "check" }, bad_only, html("label", { for: bad_only.id }, "only with NaN or Inf")),
    count,
  );
  (table.closest(".scroll") ?? table).before(bar);
  add_sorting(table, body, (text) => (count.textContent = text));
  apply();
}
