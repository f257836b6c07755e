// SPDX-License-Identifier: Apache-2.0
// Loss, scale and norms over the steps, one below the other with one cursor, above the rail of marks.
import uPlot from "uplot";
import { kLossKind, kNaN, kPosInf, kSkipped, type Scale, type Timeline } from "./data";
import { find, html, svg } from "./dom";
import { format_count, format_short } from "./numbers";
import { colour } from "./palette";
import { draw_rail, kinds_of, marks_of, name_of, shape } from "./rail";
import { on_look_change } from "./theme";

type Column = (number | null)[];
interface Series {
  name: string;
  values: Column;
  colour: string; // of the style sheet
  dash?: number[];
}
interface Panel {
  title: string;
  height: number;
  steps: number[];
  series: Series[];
  logarithmic: boolean;
  base: 2 | 10;
  stepped: boolean;
}

const kGutter = 104;
const kLogarithmicFrom = 50; // times the lowest
const kLogarithmicNorms = 8; // two quantities in one panel drift apart sooner

function finite(values: Column): number[] {
  return values.filter((v): v is number => v !== null);
}

function panel(title: string, height: number, steps: number[], series: Series[], from = kLogarithmicFrom): Panel | null {
  const all = series.flatMap((s) => finite(s.values));
  if (all.length === 0) return null;
  const lowest = all.reduce((a, b) => Math.min(a, b));
  const highest = all.reduce((a, b) => Math.max(a, b));
  const logarithmic = lowest > 0 && highest / lowest > from;
  return { title, height, steps, series, logarithmic, base: 10, stepped: false };
}

function panels_of(timeline: Timeline, scaler: Scale | null): Panel[] {
  const out: (Panel | null)[] = [];
  const steps = timeline.step;
  out.push(panel("Loss", 210, steps, [{ name: "loss", values: timeline.loss, colour: "info" }]));
  if (scaler && scaler.step.length > 0) {
    const scale = panel("Loss scale", 130, scaler.step, [{ name: "scale", values: scaler.scale, colour: "warning" }]);
    if (scale) {
      const moves = new Set(finite(scaler.scale)).size > 1;
      const positive = finite(scaler.scale).every((v) => v > 0);
      out.push({ ...scale, base: 2, logarithmic: moves && positive, stepped: true });
    }
  }
  const norms: Series[] = [];
  if (timeline.gradient_norm) norms.push({ name: "gradient norm", values: timeline.gradient_norm, colour: "good" });
  if (timeline.weight_norm) norms.push({ name: "weight norm", values: timeline.weight_norm, colour: "soft", dash: [6, 4] });
  if (norms.length) out.push(panel("Norms of gradients and weights", 130, steps, norms, kLogarithmicNorms));
  return out.filter((p): p is Panel => p !== null);
}

// Every power of the base, or every few when there are many; in a narrow decimal range 1, 2, 5 as well.
function powers(base: 2 | 10, low: number, high: number): number[] {
  const first = Math.ceil(Math.log2(low) / Math.log2(base) - 1e-9);
  const last = Math.floor(Math.log2(high) / Math.log2(base) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / 6));
  const out: number[] = [];
  if (base === 10 && last - first < 2) {
    for (let power = first - 1; power <= last; ++power) {
      for (const digit of [1, 2, 5]) {
        const at = digit * 10 ** power;
        if (at >= low && at <= high) out.push(at);
      }
    }
    return out;
  }
  for (let power = first; power <= last; ++power) if (power % every === 0) out.push(base ** power);
  return out;
}

// Some room above and below; a flat line stays in the middle.
function y_range(panel_: Panel): (u: uPlot, low: number, high: number) => [number, number] {
  return (_u, low, high) => {
    if (panel_.logarithmic) return [low / 1.3, high * 1.3];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  };
}

function options(panel_: Panel, width: number, last: boolean, x: [number, number], hooks: uPlot.Hooks.Arrays): uPlot.Options {
  const axis = { stroke: colour("soft"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const grid = { stroke: colour("line"), width: 1 };
  return {
    width,
    height: panel_.height + (last ? 26 : 0),
    padding: [8, 8, last ? 0 : 6, 0],
    legend: { show: false },
    cursor: { sync: { key: "steps", scales: ["x", null] }, drag: { x: true, y: false }, points: { size: 7 } },
    scales: {
      x: { time: false, range: (_u, low, high) => (low === high ? [low - 1, high + 1] : low === null ? x : [low, high]) },
      y: { distr: panel_.logarithmic ? 3 : 1, log: panel_.base, range: y_range(panel_) },
    },
    axes: [
      {
        ...axis,
        grid,
        size: last ? 26 : 0,
        values: (_u, at) => at.map((v) => (last && Number.isInteger(v) ? format_count(v) : "")),
      },
      {
        ...axis,
        grid,
        size: kGutter,
        gap: 8,
        values: (_u, at) => at.map((v) => (v === null ? "" : format_short(v))),
        ...(panel_.logarithmic
          ? {
              splits: (_u: uPlot, _axis: number, low: number, high: number) => powers(panel_.base, low, high),
              filter: (_u: uPlot, at: number[]) => at,
            }
          : {}),
      },
    ],
    series: [
      {},
      ...panel_.series.map((s): uPlot.Series => ({
        label: s.name,
        stroke: colour(s.colour),
        width: 1.75,
        ...(s.dash ? { dash: s.dash } : {}),
        ...(panel_.stepped && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
        points: { show: s.values.length <= 80 && !panel_.stepped, size: 5, fill: colour(s.colour) },
        spanGaps: false,
      })),
    ],
    hooks,
  };
}

class TimelineView {
  private plots: uPlot[] = [];
  private readonly plots_holder = html("div", {
    class: "plots",
    tabindex: 0,
    role: "group",
    "aria-label": "Charts over the steps. The left and right arrow keys move from step to step.",
  });
  private readonly rail_holder = html("div", { class: "rail-holder" });
  private readonly readout = html(
    "p",
    { class: "readout", role: "status" },
    "Point at a step or walk with the arrow keys to read it. Drag to zoom in, double-click to see all.",
  );
  private readonly panels: Panel[];
  private readonly marks;
  private at = -1;

  constructor(
    private readonly timeline: Timeline,
    private readonly scaler: Scale | null,
    table: Element,
  ) {
    this.panels = panels_of(timeline, scaler);
    this.marks = marks_of(timeline, scaler);
    const holder = html("div", { class: "charts" }, this.plots_holder, this.rail_holder, this.key(), this.readout);
    table.before(holder);
    this.plots_holder.addEventListener("keydown", (event) => this.walk(event));
    this.draw();
    on_look_change(() => this.draw());
    let width = holder.clientWidth;
    new ResizeObserver(() => {
      if (holder.clientWidth === width || holder.clientWidth === 0) return;
      width = holder.clientWidth;
      this.draw();
    }).observe(holder);
  }

  // Only the shapes that stand on this rail.
  private key(): HTMLElement {
    const list = html("ul", { class: "key" });
    for (const kind of kinds_of(this.marks)) {
      const picture = svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, shape(kind, 0, 0));
      list.append(html("li", {}, picture, name_of(kind)));
    }
    return list;
  }

  private draw(): void {
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    this.plots_holder.replaceChildren();
    const width = Math.max(this.plots_holder.clientWidth, 280);
    const steps = this.timeline.step;
    const span: [number, number] = [steps[0] ?? 0, steps[steps.length - 1] ?? 1];
    if (this.panels.length === 0) {
      this.plots_holder.append(html("p", { class: "more" }, "No step has a finite loss."));
      const inner = Math.max(width - kGutter - 8, 1);
      const wide = Math.max(span[1] - span[0], 1);
      this.rail_holder.replaceChildren(draw_rail(this.marks, kGutter, inner, (s) => ((s - span[0]) / wide) * inner));
      return;
    }
    this.panels.forEach((one, i) => {
      const name = one.series.map((s) => `${s.name} between ${this.ends(s.values)}`).join(", ");
      const heading = html("p", { class: "panel-title" }, one.title);
      if (one.series.length > 1) {
        for (const s of one.series) {
          const line = svg("svg", { width: 26, height: 10, viewBox: "0 0 26 10", "aria-hidden": "true" },
            svg("path", { d: "M1 5H25", class: `sample ${s.colour}`, ...(s.dash ? { "stroke-dasharray": s.dash.join(" ") } : {}) }));
          heading.append(html("span", { class: "series" }, line, s.name));
        }
      }
      if (one.logarithmic) heading.append(html("span", { class: "series" }, "logarithmic"));
      const holder = html("div", { class: "panel" }, heading);
      this.plots_holder.append(holder);
      const hooks: uPlot.Hooks.Arrays = {
        setCursor: [(u) => this.read(u)],
        draw: i === 0 ? [(u) => this.draw_rail(u)] : [],
      };
      const plot = new uPlot(
        options(one, width, i + 1 === this.panels.length, span, hooks),
        [one.steps, ...one.series.map((s) => s.values)] as uPlot.AlignedData,
        holder,
      );
      plot.ctx.canvas.setAttribute("role", "img");
      plot.ctx.canvas.setAttribute("aria-label", `${one.title}: ${name}. The steps are in the table below.`);
      this.plots.push(plot);
    });
  }

  private ends(values: Column): string {
    const all = finite(values);
    if (all.length === 0) return "nothing finite";
    return `${format_short(all.reduce((a, b) => Math.min(a, b)))} and ${format_short(all.reduce((a, b) => Math.max(a, b)))}`;
  }

  private draw_rail(u: uPlot): void {
    const x = (step: number) => u.valToPos(step, "x");
    const ratio = devicePixelRatio || 1;
    this.rail_holder.replaceChildren(draw_rail(this.marks, u.bbox.left / ratio, u.bbox.width / ratio, x));
  }

  private walk(event: KeyboardEvent): void {
    const last = this.timeline.step.length - 1;
    const moves: Record<string, number> = {
      ArrowLeft: Math.max(this.at - 1, 0), ArrowRight: Math.min(this.at + 1, last), Home: 0, End: last,
    };
    const to = moves[event.key];
    const plot = this.plots[0];
    if (to === undefined || !plot) return;
    event.preventDefault();
    plot.setCursor({ left: plot.valToPos(this.timeline.step[to] ?? 0, "x"), top: plot.over.clientHeight / 2 });
    this.say(to);
  }

  private read(u: uPlot): void {
    if (u !== this.plots[0] || u.cursor.idx === null || u.cursor.idx === undefined) return;
    this.say(u.cursor.idx);
  }

  private say(i: number): void {
    this.at = i;
    const step = this.timeline.step[i] ?? 0;
    const flags = this.timeline.flags[i] ?? 0;
    const kind = flags & kLossKind;
    const loss = this.timeline.loss[i];
    const parts = [`step ${format_count(step)}`];
    parts.push(`loss ${kind === 0 ? (loss == null ? "—" : format_short(loss)) : kind === kNaN ? "NaN" : kind === kPosInf ? "+Inf" : "-Inf"}`);
    const at = this.scaler ? this.scaler.step.indexOf(step) : -1;
    const scale = at < 0 ? null : this.scaler?.scale[at];
    if (scale != null) parts.push(`scale ${format_short(scale)}`);
    const gradient = this.timeline.gradient_norm?.[i];
    if (gradient != null) parts.push(`gradient norm ${format_short(gradient)}`);
    const weight = this.timeline.weight_norm?.[i];
    if (weight != null) parts.push(`weight norm ${format_short(weight)}`);
    if (flags & kSkipped || (at >= 0 && this.scaler?.skipped[at])) parts.push("skipped");
    this.readout.textContent = parts.join(" · ");
  }
}

export function show_timeline(timeline: Timeline, scaler: Scale | null): void {
  const table = find("#timeline details");
  if (table && timeline.step.length > 0) new TimelineView(timeline, scaler, table);
}
