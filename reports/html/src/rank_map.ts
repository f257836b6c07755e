// SPDX-License-Identifier: Apache-2.0
// Steps x ranks as a picture that mouse and arrow keys read out; a click, or Enter, opens a rank. The tables of the page
// say the same.
import { find, html, svg } from "./dom";
import { type Band, type Fleet, type Grouping, is_present, place_of } from "./fleet_data";
import { format_count, plural } from "./numbers";
import { colour } from "./palette";
import { type Edge, edge_of, ink_on, kLetters, kStateColours, layout_of, paint_map, states_shown } from "./rank_map_draw";
import { RankPanel } from "./rank_panel";
import { on_look_change } from "./theme";

class RankMapView {
  private row = 0;
  private column = 0;
  private marked = false;
  private grouping: Grouping;
  private edge: Edge;
  private names: string[];
  private readonly canvas = html("canvas", { role: "img" });
  private readonly frame: HTMLElement;
  private readonly tip = html("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  private readonly readout = html(
    "p",
    { class: "readout", role: "status" },
    "Point at a cell or walk with the arrow keys to read it; a click or Enter opens its ranks.",
  );
  private readonly legend = html("ul", { class: "key", "aria-label": "What the colours and marks mean" });
  private readonly axis = html("div", { class: "map-axis", "aria-hidden": "true" });
  private readonly panel: RankPanel;

  constructor(private readonly fleet: Fleet, first: Grouping, holder: Element) {
    this.grouping = first;
    this.edge = edge_of(fleet, first);
    this.names = this.names_of_rows();
    this.panel = new RankPanel(fleet, () => this.frame.focus(), (index) => this.open_rank(index));
    const label = "Map of steps over ranks. Arrow keys move from cell to cell, Enter opens the ranks of a row.";
    this.frame = html("div", { class: "rank-frame", tabindex: 0, role: "group", "aria-label": label }, this.canvas, this.tip);
    for (const step of [fleet.first_step, fleet.last_step]) this.axis.append(html("span", {}, `step ${format_count(step)}`));
    holder.append(html("div", { class: "map" }, this.tools(), this.frame, this.axis, this.legend, this.readout, this.panel.root));
    this.frame.addEventListener("keydown", (event) => this.walk(event));
    this.frame.addEventListener("mousemove", (event) => this.point(event));
    this.frame.addEventListener("mouseleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => {
      this.point(event);
      this.open();
    });
    on_look_change(() => this.redraw());
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.redraw();
  }

  private tools(): HTMLElement {
    const options = this.fleet.groupings.map((one, i) => html("option", { value: i }, one.dimension));
    const by = html("select", { id: "rank-map-by" }, ...options);
    by.value = String(this.fleet.groupings.indexOf(this.grouping));
    by.addEventListener("change", () => this.group_by(this.fleet.groupings[Number(by.value)] ?? this.grouping));
    const rank = html("input", { type: "number", id: "rank-map-rank", min: 0, step: 1, inputmode: "numeric" });
    const answer = html("span", { class: "count", role: "status" });
    rank.addEventListener("change", () => {
      const index = rank.value === "" ? -1 : this.fleet.ranks.indexOf(Number(rank.value));
      answer.textContent = index < 0 && rank.value !== "" ? `No rank ${rank.value} here` : "";
      if (index >= 0) this.open_rank(index);
    });
    const labels = [html("label", { for: by.id }, "Group by"), html("label", { for: rank.id }, "Open rank")] as const;
    const bar = html("div", { class: "tools" }, labels[0], by, labels[1], rank, answer);
    const left_out = this.fleet.groupings_left_out;
    if (left_out.length > 0) bar.append(html("span", { class: "more" }, `No room for: ${left_out.join(", ")}`));
    return bar;
  }

  private group_by(grouping: Grouping): void {
    this.grouping = grouping;
    this.edge = edge_of(this.fleet, grouping);
    this.names = this.names_of_rows();
    this.row = Math.min(this.row, grouping.bands.length - 1);
    this.redraw();
    this.say();
  }

  private indices(band: Band): number[] {
    return this.grouping.order.slice(band.first, band.first + band.ranks);
  }

  // What stands beside the rows: by rank the first of each, else the value that they share.
  private names_of_rows(): string[] {
    return this.grouping.bands.map((band) => {
      const first = this.grouping.order[band.first] ?? 0;
      if (this.grouping.values.length === 0) return `rank ${format_count(this.fleet.ranks[first] ?? 0)}`;
      return `${this.grouping.dimension} ${place_of(this.grouping, first) ?? "not known"}`;
    });
  }

  private redraw(): void {
    const fleet = this.fleet;
    const swatch = (fill: string, letter: string) => svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
      svg("rect", { class: "swatch", width: 13, height: 13, x: 0.5, y: 0.5, fill }),
      svg("text", { class: "letter", x: 7, y: 11, "text-anchor": "middle", fill: ink_on(fill) }, letter));
    const items = states_shown(this.grouping).map((state) =>
      html("li", {}, swatch(colour(kStateColours[state] ?? ""), kLetters[state] ?? ""), fleet.states[state] ?? ""));
    const edge_mark = (d: string, words: string) => html("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
      svg("path", { d, fill: colour("ink") })), words);
    if (this.edge.found.includes(true)) items.push(edge_mark("M1 2L8 7L1 12ZM9 1H13V13H9Z", "ranks that the verdict names"));
    if (this.edge.absent.includes(true)) {
      items.push(edge_mark("M10 1H12V4H10ZM10 5.5H12V8.5H10ZM10 10H12V13H10Z", "some of these ranks left no digest"));
    }
    this.legend.replaceChildren(...items);
    const rows = plural(this.grouping.bands.length, "row", "rows");
    this.canvas.setAttribute(
      "aria-label",
      `${plural(fleet.ranks.length, "rank", "ranks")} in ${rows} by ${this.grouping.dimension}, over steps ` +
        `${format_count(fleet.first_step)} to ${format_count(fleet.last_step)}. The map in numbers holds the same.`,
    );
    this.draw();
  }

  private draw(): void {
    const width = this.frame.clientWidth;
    if (width === 0) return;
    const at = layout_of(width, this.grouping.bands.length);
    const height = this.grouping.bands.length * at.row_height;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.axis.style.paddingLeft = `${at.left}px`;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    paint_map(context, this.fleet, this.grouping, this.edge, this.names, at);
    if (!this.marked) return;
    const cell = at.width / this.fleet.columns;
    // Seen on any colour: a light line inside of a dark one.
    for (const [name, out] of [["ink", 2], ["card", 0.5]] as const) {
      context.strokeStyle = colour(name);
      context.lineWidth = 1.5;
      const [wide, high] = [Math.max(cell, 4) + 2 * out, Math.max(at.row_height, 4) + 2 * out];
      context.strokeRect(at.left + this.column * cell - out, this.row * at.row_height - out, wide, high);
    }
  }

  private point(event: MouseEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const at = layout_of(box.width, this.grouping.bands.length);
    const column = Math.floor(((event.clientX - box.left - at.left) / at.width) * this.fleet.columns);
    const row = Math.floor((event.clientY - box.top) / at.row_height);
    this.tip.hidden = row < 0 || row >= this.grouping.bands.length || column >= this.fleet.columns;
    if (this.tip.hidden) return;
    this.visit(row, Math.max(column, 0));
    this.tip.textContent = this.readout.textContent;
    const left = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(left + 14, box.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  private walk(event: KeyboardEvent): void {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-20, 0], PageDown: [20, 0],
      Home: [0, -this.fleet.columns], End: [0, this.fleet.columns],
    };
    const move = moves[event.key];
    if (!move && event.key !== "Enter") return;
    event.preventDefault();
    this.tip.hidden = true;
    if (!move) this.open();
    else if (this.marked) this.visit(this.row + move[0], this.column + move[1]);
    else this.visit(this.row, this.column); // the first key shows where it begins
  }

  private visit(row: number, column: number): void {
    this.row = Math.min(Math.max(row, 0), this.grouping.bands.length - 1);
    this.column = Math.min(Math.max(column, 0), this.fleet.columns - 1);
    this.marked = true;
    this.draw();
    this.say();
  }

  private state_at(band: Band, column: number): number {
    return band.runs.find((run) => run.from <= column && column < run.to)?.state ?? 0;
  }

  private name_of(band: Band): string {
    const ranks = this.indices(band).map((index) => this.fleet.ranks[index] ?? 0);
    const first = Math.min(...ranks);
    const last = Math.max(...ranks);
    if (ranks.length === 1) return `rank ${format_count(first)}`;
    if (last - first + 1 === ranks.length) return `ranks ${format_count(first)} to ${format_count(last)}`;
    return `${format_count(ranks.length)} ranks from ${format_count(first)} to ${format_count(last)}`;
  }

  // Along each dimension the place that all of them share, or how many there are.
  private places_of(band: Band): string[] {
    const indices = this.indices(band);
    return this.fleet.groupings.filter((one) => one.values.length > 0).map((one) => {
      const values = new Set(indices.map((index) => one.value[index] ?? one.values.length));
      values.delete(one.values.length);
      if (values.size === 0) return "";
      if (values.size > 1) return `${format_count(values.size)} values of ${one.dimension}`;
      return `${one.dimension} ${one.values[[...values][0] ?? 0] ?? ""}`;
    }).filter((text) => text !== "");
  }

  private steps_of(column: number): string {
    const from = this.fleet.first_step + column * this.fleet.steps_per_column;
    const to = Math.min(from + this.fleet.steps_per_column - 1, this.fleet.last_step);
    return from === to ? `step ${format_count(from)}` : `steps ${format_count(from)} to ${format_count(to)}`;
  }

  private say(): void {
    const band = this.grouping.bands[this.row];
    if (!this.marked || !band) return;
    const state = this.fleet.states[this.state_at(band, this.column)] ?? "";
    const parts = [this.name_of(band), ...this.places_of(band), this.steps_of(this.column), state];
    const indices = this.indices(band);
    const absent = indices.filter((index) => !is_present(this.fleet, index)).length;
    if (absent > 0 && absent < indices.length) parts.push(`${format_count(absent)} left no digest`);
    const found = indices.filter((index) => this.fleet.found[index] === 1).length;
    if (found > 0) parts.push(indices.length === 1 ? "it began on this rank" : `it began on ${format_count(found)} of them`);
    this.readout.textContent = parts.join(" · ");
  }

  private open(): void {
    const band = this.grouping.bands[this.row];
    if (!band) return;
    const [only] = this.indices(band);
    const name = this.name_of(band);
    if (band.ranks === 1 && only !== undefined) this.panel.show_rank(only);
    else this.panel.show_band(`${name.charAt(0).toUpperCase()}${name.slice(1)}`, this.grouping, band);
  }

  private open_rank(index: number): void {
    const at = this.grouping.order.indexOf(index);
    const row = this.grouping.bands.findIndex((band) => band.first <= at && at < band.first + band.ranks);
    if (row >= 0) this.visit(row, this.column);
    this.panel.show_rank(index);
  }
}

export function show_rank_map(fleet: Fleet): void {
  const holder = find("#rank-map");
  const first = fleet.groupings.find((one) => one.dimension === fleet.group_by) ?? fleet.groupings[0];
  if (holder && first && fleet.columns > 0 && first.bands.length > 0) new RankMapView(fleet, first, holder);
}
