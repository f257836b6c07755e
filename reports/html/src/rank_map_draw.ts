// SPDX-License-Identifier: Apache-2.0
// The map of steps x ranks on a canvas: rows of runs, what is marked at their left edge, and names of groups.
import { kMissing, kNothing, kOrigin, type Band, type Fleet, type Grouping } from "./fleet_data";
import { colour, rgb } from "./palette";

export const kStateColours = [
  "rank-missing", "rank-missing", "rank-missing", "rank-nothing", "rank-clean", "rank-after", "rank-warning", "rank-arrived",
  "rank-parted", "rank-origin",
];
const kLeast = 4; // pixels: an origin is seen however small its cell
const kMarks = 20; // between names and cells
const kBar = 4;

export interface Layout {
  left: number; // where cells begin
  width: number;
  row_height: number;
}

export interface Edge {
  found: boolean[]; // by band
  absent: boolean[];
}

export function layout_of(width: number, bands: number): Layout {
  const left = (width < 600 ? 84 : 150) + kMarks;
  return { left, width: Math.max(1, width - left), row_height: Math.min(Math.max(Math.floor(440 / bands), 1), 22) };
}

export function edge_of(fleet: Fleet, grouping: Grouping): Edge {
  const indices = (band: Band) => grouping.order.slice(band.first, band.first + band.ranks);
  return {
    found: grouping.bands.map((band) => indices(band).some((index) => fleet.found[index] === 1)),
    absent: grouping.bands.map((band) => indices(band).some((index) => (fleet.presence[index] ?? 0) < kNothing)),
  };
}

function paint_cells(context: CanvasRenderingContext2D, fleet: Fleet, grouping: Grouping, at: Layout): void {
  const colours = kStateColours.map(colour);
  const cell = at.width / fleet.columns;
  grouping.bands.forEach((band, row) => {
    for (const run of band.runs) {
      context.fillStyle = colours[run.state] ?? "";
      context.fillRect(at.left + run.from * cell, row * at.row_height, (run.to - run.from) * cell + 0.25, at.row_height);
    }
  });
  // Over the rest: the least that can be seen.
  context.fillStyle = colours[kOrigin] ?? "";
  grouping.bands.forEach((band, row) => {
    for (const run of band.runs) {
      if (run.state !== kOrigin) continue;
      const width = Math.max((run.to - run.from) * cell, kLeast);
      const x = Math.min(at.left + run.from * cell, at.left + at.width - width);
      const height = Math.max(at.row_height, Math.min(kLeast, 2));
      context.fillRect(x, row * at.row_height, width, height);
    }
  });
}

// Black or white, whichever is read better on it.
export function ink_on(fill: string): string {
  const [r, g, b] = rgb(fill);
  return 0.299 * r + 0.587 * g + 0.114 * b > 120 ? "#111111" : "#ffffff";
}

// Letters in cells that are large enough for them.
function paint_letters(context: CanvasRenderingContext2D, fleet: Fleet, grouping: Grouping, at: Layout): void {
  if (at.row_height < 11) return;
  const cell = at.width / fleet.columns;
  context.font = `600 ${Math.min(at.row_height - 2, 12)}px system-ui, sans-serif`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  grouping.bands.forEach((band, row) => {
    for (const run of band.runs) {
      const letter = kLetters[run.state];
      if (!letter || (run.to - run.from) * cell < 12) continue;
      context.fillStyle = ink_on(colour(kStateColours[run.state] ?? ""));
      context.fillText(letter, at.left + run.from * cell + 3, (row + 0.5) * at.row_height + 0.5);
    }
  });
}

// By state; those that are good or empty have none.
export const kLetters = ["?", "~", "×", "", "", "", "!", "→", "≠", "●"];

// Consecutive rows that have the mark: one bar.
function stretches(marked: boolean[]): [number, number][] {
  const out: [number, number][] = [];
  marked.forEach((is, row) => {
    const last = out[out.length - 1];
    if (is && last && last[1] === row) last[1] = row + 1;
    else if (is) out.push([row, row + 1]);
  });
  return out;
}

function paint_edge(context: CanvasRenderingContext2D, edge: Edge, at: Layout): void {
  context.fillStyle = colour("ink");
  for (const [from, to] of stretches(edge.found)) {
    const top = from * at.row_height;
    const height = Math.max((to - from) * at.row_height, 2);
    context.fillRect(at.left - 3 - kBar, top, kBar, height);
    const middle = top + height / 2;
    context.beginPath();
    context.moveTo(at.left - 3 - kBar - 7, Math.max(middle - 5, 0));
    context.lineTo(at.left - 3 - kBar, Math.max(middle, 5));
    context.lineTo(at.left - 3 - kBar - 7, Math.max(middle + 5, 10));
    context.fill();
  }
  context.fillStyle = colour("soft");
  edge.absent.forEach((is, row) => {
    if (is) context.fillRect(at.left - 2, row * at.row_height, 2, Math.max(at.row_height - (at.row_height > 3 ? 1 : 0), 1));
  });
}

function shorten(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) --end;
  return `${text.slice(0, end)}…`;
}

// A name where there is room for one, and lines between groups of some height.
function paint_names(context: CanvasRenderingContext2D, names: string[], at: Layout): void {
  const room = at.left - kMarks - 6;
  context.font = "11.5px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  let free = 0;
  for (let row = 0; row < names.length; ) {
    let end = row + 1;
    while (end < names.length && names[end] === names[row]) ++end;
    const middle = Math.max(((row + end) / 2) * at.row_height, 7);
    if (middle - 7 >= free) {
      context.fillStyle = colour("soft");
      context.fillText(shorten(context, names[row] ?? "", room), room, middle);
      free = middle + 7;
    }
    if (row > 0 && (end - row) * at.row_height >= 8) {
      context.fillStyle = colour("card");
      context.fillRect(at.left, row * at.row_height - 0.5, at.width, 1);
    }
    row = end;
  }
}

export function paint_map(
  context: CanvasRenderingContext2D, fleet: Fleet, grouping: Grouping, edge: Edge, names: string[], at: Layout,
): void {
  paint_cells(context, fleet, grouping, at);
  paint_letters(context, fleet, grouping, at);
  paint_edge(context, edge, at);
  paint_names(context, names, at);
}

// States that are on the map, worst first.
export function states_shown(grouping: Grouping): number[] {
  const seen = new Set<number>();
  for (const band of grouping.bands) for (const run of band.runs) seen.add(run.state);
  return [...seen].sort((a, b) => b - a).filter((state) => state >= kMissing);
}
