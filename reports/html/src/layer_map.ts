// SPDX-License-Identifier: Apache-2.0
// Layers x steps as a picture that mouse and arrow keys read out, with a table beside it.
import { headroom_of, is_bad, type LayerMap, underflow_of } from "./data";
import { find, html, svg } from "./dom";
import { cell_image, legend_of, type Quantity } from "./layer_map_draw";
import { format_count, format_percent } from "./numbers";
import { colour } from "./palette";
import { on_look_change } from "./theme";

const kGutter = 190;
const kTwinRows = 200;
const kTwinColumns = 12;

function height_of_row(rows: number): number {
  return Math.min(Math.max(Math.floor(420 / rows), 3), 20);
}

class LayerMapView {
  private quantity: Quantity = "headroom";
  private row = 0;
  private column = 0;
  private marked = false;
  private readonly row_height: number;
  private readonly canvas = html("canvas", { role: "img" });
  private readonly frame: HTMLElement;
  private readonly readout = html(
    "p",
    { class: "readout", role: "status" },
    "Point at a cell or walk with the arrow keys to read it.",
  );
  private readonly legend = html("ul", { class: "key", "aria-label": "What the colours mean" });
  private readonly axis = html("div", { class: "map-axis", "aria-hidden": "true" });
  private readonly twin = html("details", {}, html("summary", {}, "The map in numbers"));
  private image: HTMLCanvasElement;

  constructor(
    private readonly map: LayerMap,
    private readonly names: string[],
    private readonly last_step: number,
    before: Element,
  ) {
    this.row_height = height_of_row(map.rows);
    this.image = cell_image(map, this.quantity);
    this.frame = html(
      "div",
      {
        class: "map-frame",
        tabindex: 0,
        role: "group",
        "aria-label": "Map of layers over steps. Arrow keys move from cell to cell.",
      },
      this.canvas,
    );
    this.axis.append(
      html("span", {}, `step ${format_count(map.first_step)}`),
      html("span", {}, `step ${format_count(last_step)}`),
    );
    before.before(
      html("div", { class: "map" }, this.choice(), this.frame, this.axis, this.legend, this.readout, this.twin),
    );
    this.frame.addEventListener("keydown", (event) => this.walk(event));
    this.frame.addEventListener("mousemove", (event) => this.point(event));
    this.twin.addEventListener("toggle", () => this.fill_twin());
    on_look_change(() => this.redraw());
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.redraw();
  }

  private choice(): HTMLElement {
    const set = html("fieldset", { class: "choice" }, html("legend", {}, "Show"));
    const words: [Quantity, string][] = [
      ["headroom", "Headroom before overflow"],
      ["underflow", "Share lost to underflow"],
    ];
    for (const [quantity, words_] of words) {
      const radio = html("input", { type: "radio", name: "map-quantity", id: `map-${quantity}`, value: quantity });
      radio.checked = quantity === this.quantity;
      radio.addEventListener("change", () => {
        this.quantity = quantity;
        this.redraw();
        this.fill_twin();
        this.say();
      });
      set.append(radio, html("label", { for: radio.id }, words_));
    }
    return set;
  }

  private redraw(): void {
    this.image = cell_image(this.map, this.quantity);
    this.legend.replaceChildren(
      ...legend_of(this.quantity).map(({ colour: fill, text }) =>
        html("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" },
          svg("rect", { class: "swatch", width: 13, height: 13, x: 0.5, y: 0.5, fill })), text)),
    );
    this.canvas.setAttribute(
      "aria-label",
      `${this.quantity === "headroom" ? "Headroom" : "Underflow"} of ${format_count(this.map.rows)} layers over ` +
        `${format_count(this.map.columns)} stretches of ${format_count(this.map.steps_per_column)} steps. ` +
        "The map in numbers and the table of layers hold the same.",
    );
    this.draw();
  }

  private draw(): void {
    const width = this.frame.clientWidth;
    if (width === 0) return;
    const gutter = this.gutter();
    const height = this.map.rows * this.row_height;
    const ratio = Math.min(devicePixelRatio || 1, 16000 / height);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.axis.style.paddingLeft = `${gutter}px`;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, gutter, 0, width - gutter, height);
    context.fillStyle = colour("soft");
    context.font = `${Math.min(Math.max(this.row_height - 5, 11), 13)}px ui-monospace, "DejaVu Sans Mono", monospace`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(13 / this.row_height));
    for (let row = every >> 1; row < this.map.rows; row += every) {
      context.fillText(this.short_name(row, context, gutter - 14), gutter - 8, (row + 0.5) * this.row_height);
    }
    // Thin lines between tall rows keep the eye in its row.
    if (this.row_height >= 10) {
      context.fillStyle = colour("card");
      for (let row = 1; row < this.map.rows; ++row) context.fillRect(gutter, row * this.row_height - 0.5, width - gutter, 1);
    }
    if (this.marked) {
      const cell = (width - gutter) / this.map.columns;
      context.strokeStyle = colour("ink");
      context.lineWidth = 2;
      context.strokeRect(gutter + this.column * cell - 1, this.row * this.row_height - 1, Math.max(cell, 3) + 2, this.row_height + 2);
    }
  }

  private gutter(): number {
    return this.frame.clientWidth < 600 ? 110 : kGutter;
  }

  private short_name(row: number, context: CanvasRenderingContext2D, room: number): string {
    let name = this.names[row] ?? "";
    if (context.measureText(name).width <= room) return name;
    while (name.length > 1 && context.measureText(`…${name}`).width > room) name = name.slice(1);
    return `…${name}`;
  }

  private point(event: MouseEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const gutter = this.gutter();
    const column = Math.floor(((event.clientX - box.left - gutter) / (box.width - gutter)) * this.map.columns);
    const row = Math.floor((event.clientY - box.top) / this.row_height);
    if (column < 0 || column >= this.map.columns || row < 0 || row >= this.map.rows) return;
    this.visit(row, column);
  }

  private walk(event: KeyboardEvent): void {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0],
      Home: [0, -this.map.columns], End: [0, this.map.columns],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    this.visit(this.row + move[0], this.column + move[1]);
    const top = this.row * this.row_height;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    const below = top + this.row_height - this.frame.clientHeight;
    if (below > this.frame.scrollTop) this.frame.scrollTop = below;
  }

  private visit(row: number, column: number): void {
    this.row = Math.min(Math.max(row, 0), this.map.rows - 1);
    this.column = Math.min(Math.max(column, 0), this.map.columns - 1);
    this.marked = true;
    this.draw();
    this.say();
  }

  private stretch(column: number, columns = 1): string {
    const from = this.map.first_step + column * this.map.steps_per_column;
    const to = Math.max(from, Math.min(from + columns * this.map.steps_per_column - 1, this.last_step));
    return from === to ? format_count(from) : `${format_count(from)} to ${format_count(to)}`;
  }

  private value(byte: number): string {
    if (this.quantity === "headroom") {
      const binades = headroom_of(byte);
      return binades === null ? "—" : binades >= 63.5 ? "63.5 or more" : binades.toString();
    }
    const share = underflow_of(byte);
    return share === null ? "—" : format_percent(share);
  }

  private say(): void {
    if (!this.marked) return;
    const cell = this.row * this.map.columns + this.column;
    const headroom = headroom_of(this.map.headroom[cell] ?? 0);
    const share = underflow_of(this.map.underflow[cell] ?? 0);
    const parts = [this.names[this.row] ?? "", `step ${this.stretch(this.column)}`];
    if (headroom !== null) parts.push(`headroom ${headroom >= 63.5 ? "63.5 or more" : headroom} binades`);
    if (share !== null) parts.push(`underflow ${format_percent(share)}`);
    if (is_bad(this.map, cell)) parts.push("NaN or Inf");
    else if (headroom === null && share === null) parts.push("nothing seen");
    this.readout.textContent = parts.join(" · ");
  }

  // The worst of each stretch: the smallest headroom, the largest share.
  private worst(row: number, from: number, to: number): string {
    const plane = this.map[this.quantity];
    let worst = 0;
    let bad = false;
    for (let column = from; column < to; ++column) {
      const cell = row * this.map.columns + column;
      const byte = plane[cell] ?? 0;
      bad ||= is_bad(this.map, cell);
      if (byte === 0) continue;
      worst = worst === 0 ? byte : this.quantity === "headroom" ? Math.min(worst, byte) : Math.max(worst, byte);
    }
    return bad ? `${this.value(worst)}, NaN or Inf` : this.value(worst);
  }

  private fill_twin(): void {
    for (const old of [...this.twin.children].slice(1)) old.remove();
    if (!this.twin.open) return;
    const columns = Math.min(this.map.columns, kTwinColumns);
    const edges = Array.from({ length: columns + 1 }, (_, i) => Math.floor((i * this.map.columns) / columns));
    const head = html("tr", {}, html("th", { scope: "col" }, "Layer"));
    for (let i = 0; i < columns; ++i) {
      const from = edges[i] ?? 0;
      head.append(html("th", { scope: "col", class: "num" }, this.stretch(from, (edges[i + 1] ?? 0) - from)));
    }
    const body = html("tbody");
    const rows = Math.min(this.map.rows, kTwinRows);
    for (let row = 0; row < rows; ++row) {
      const line = html("tr", {}, html("th", { scope: "row" }, html("code", {}, this.names[row] ?? "")));
      for (let i = 0; i < columns; ++i) {
        line.append(html("td", { class: "num" }, this.worst(row, edges[i] ?? 0, edges[i + 1] ?? 0)));
      }
      body.append(line);
    }
    const what = this.quantity === "headroom" ? "Smallest headroom in binades" : "Largest share lost to underflow";
    const table = html("table", {}, html("caption", {}, `${what}, by steps`), html("thead", {}, head), body);
    this.twin.append(
      html("div", { class: "scroll tall", role: "region", "aria-label": "The map in numbers", tabindex: 0 }, table),
    );
    if (rows < this.map.rows) {
      this.twin.append(html("p", { class: "more" }, `The first ${format_count(rows)} layers; the table below has all of them.`));
    }
  }
}

// The last stretch may reach past the last step.
export function show_layer_map(map: LayerMap, names: string[], last_seen: number | undefined): void {
  const table = find("#layers .scroll");
  const end = map.first_step + map.columns * map.steps_per_column - 1;
  const in_last = last_seen !== undefined && last_seen > end - map.steps_per_column && last_seen < end;
  if (table && map.rows > 0) new LayerMapView(map, names, in_last ? last_seen : end, table);
}
