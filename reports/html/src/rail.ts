// SPDX-License-Identifier: Apache-2.0
// What is not a point of a line: steps whose loss is NaN or infinite, skipped steps, operations with bad output. Always
// there, whatever the lines show; each kind has a shape of its own.
import { kBadOps, kLossKind, kNaN, kNegInf, kPosInf, kSkipped, type Scale, type Timeline } from "./data";
import { svg } from "./dom";
import { format_count } from "./numbers";

export type MarkKind = "nan" | "pos-inf" | "neg-inf" | "skipped" | "bad-ops";

interface Mark {
  step: number;
  kind: MarkKind;
}

const kNames: Record<MarkKind, string> = {
  nan: "loss is NaN",
  "pos-inf": "loss is +Inf",
  "neg-inf": "loss is -Inf",
  skipped: "step skipped",
  "bad-ops": "operations with NaN or Inf in their output",
};
const kRows: { name: string; kinds: MarkKind[] }[] = [
  { name: "loss NaN, Inf", kinds: ["nan", "pos-inf", "neg-inf"] },
  { name: "skipped", kinds: ["skipped"] },
  { name: "bad ops", kinds: ["bad-ops"] },
];
// Round the origin, 10 wide.
const kShapes: Record<MarkKind, string> = {
  nan: "M-4.5 -4.5L4.5 4.5M-4.5 4.5L4.5 -4.5",
  "pos-inf": "M-5 4.5L5 4.5L0 -5Z",
  "neg-inf": "M-5 -4.5L5 -4.5L0 5Z",
  skipped: "M0 -4.5A4.5 4.5 0 1 1 -0.01 -4.5Z",
  "bad-ops": "M-4 -4H4V4H-4Z",
};
const kRowHeight = 22;
const kEdge = 8; // the last mark is whole
const kRoom = 11; // marks stand no closer than this

export function shape(kind: MarkKind, x: number, y: number): SVGPathElement {
  return svg("path", { class: `mark ${kind}`, d: kShapes[kind], transform: `translate(${x.toFixed(1)} ${y})` });
}

export function marks_of(timeline: Timeline, scaler: Scale | null): Mark[] {
  const marks: Mark[] = [];
  const skipped = new Set<number>();
  timeline.step.forEach((step, i) => {
    const flags = timeline.flags[i] ?? 0;
    const loss = flags & kLossKind;
    if (loss === kNaN) marks.push({ step, kind: "nan" });
    if (loss === kPosInf) marks.push({ step, kind: "pos-inf" });
    if (loss === kNegInf) marks.push({ step, kind: "neg-inf" });
    if (flags & kBadOps) marks.push({ step, kind: "bad-ops" });
    if (flags & kSkipped) skipped.add(step);
  });
  scaler?.step.forEach((step, i) => {
    if (scaler.skipped[i]) skipped.add(step);
  });
  for (const step of skipped) marks.push({ step, kind: "skipped" });
  return marks.sort((a, b) => a.step - b.step);
}

export function kinds_of(marks: Mark[]): MarkKind[] {
  return (Object.keys(kNames) as MarkKind[]).filter((kind) => marks.some((m) => m.kind === kind));
}

export function name_of(kind: MarkKind): string {
  return kNames[kind];
}

// `left` and `width` are the plot's; `x` puts a step into it and may lie outside when the reader has zoomed in.
export function draw_rail(marks: Mark[], left: number, width: number, x: (step: number) => number): SVGSVGElement {
  const rows = kRows.filter((row) => marks.some((m) => row.kinds.includes(m.kind)));
  const height = rows.length * kRowHeight + 4;
  const counts = kinds_of(marks).map((kind) => {
    const steps = marks.filter((m) => m.kind === kind);
    return `${kNames[kind]} in ${format_count(steps.length)} of the steps shown, first in step ${format_count(steps[0]?.step ?? 0)}`;
  });
  const picture = svg("svg", {
    class: "rail",
    width: left + width + kEdge,
    height,
    viewBox: `0 0 ${left + width + kEdge} ${height}`,
    role: "img",
    "aria-label": counts.join("; ") || "No bad and no skipped steps",
  });
  rows.forEach((row, at) => {
    const y = at * kRowHeight + kRowHeight / 2 + 2;
    picture.append(svg("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, row.name));
    picture.append(svg("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }));
    for (const kind of row.kinds) {
      const shown = marks.filter((m) => m.kind === kind && x(m.step) >= 0 && x(m.step) <= width);
      for (let i = 0; i < shown.length; ) {
        const from = shown[i] as Mark;
        let end = i + 1;
        while (end < shown.length && x((shown[end] as Mark).step) - x(from.step) < kRoom) ++end;
        const more = end - i > 1 ? ` (${format_count(end - i)} steps here)` : "";
        const mark = shape(kind, left + x(from.step), y);
        mark.append(svg("title", {}, `step ${format_count(from.step)}: ${kNames[kind]}${more}`));
        picture.append(mark);
        i = end;
      }
    }
  });
  return picture;
}
