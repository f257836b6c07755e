// SPDX-License-Identifier: Apache-2.0
// The chain as a graph: from the origin at the top to the sinks. Arrow keys walk along it, Enter unfolds.
import { type Box, lay_out, type Layout } from "./chain_layout";
import type { Chain } from "./data";
import { find, html, svg } from "./dom";
import { plural } from "./numbers";

const kWidestBox = 340;
const kFont = "13px system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";
const kOpFont = "600 13px ui-monospace, 'SF Mono', 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";

function measurer(font: string): (text: string) => number {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) return (text) => text.length * 8;
  context.font = font;
  return (text) => context.measureText(text).width * 1.04;
}

// What fits, cut in the middle: both ends of a module path matter.
function fitted(text: string, room: number, measure: (text: string) => number): string {
  if (measure(text) <= room) return text;
  let keep = text.length;
  while (keep > 4) {
    keep -= 2;
    const half = keep >> 1;
    const cut = `${text.slice(0, half)}…${text.slice(text.length - half)}`;
    if (measure(cut) <= room) return cut;
  }
  return "…";
}

function spoken(chain: Chain, box: Box): string {
  const node = chain.nodes[box.nodes[0] ?? 0];
  const what = box.fold ? "" : `${node?.badge ?? ""}: `;
  const leads = box.next.length ? ` Leads to ${box.next.map((b) => b.lines[0]).join(", ")}.` : "";
  return `${what}${box.lines.join(", ")}.${leads}${box.fold ? " Enter unfolds." : ""}`;
}

function draw_box(chain: Chain, box: Box, measure: (text: string) => number, measure_op: (text: string) => number): SVGGElement {
  const left = box.x - box.width / 2;
  const top = box.y - box.height / 2;
  const node = chain.nodes[box.nodes[0] ?? 0];
  const group = svg("g", {
    class: `node ${box.role} ${box.fold}`,
    tabindex: -1,
    role: box.fold ? "button" : "img",
    "aria-label": spoken(chain, box),
    "data-key": box.key,
  });
  group.append(svg("rect", { x: left, y: top, width: box.width, height: box.height, rx: box.role === "sink" ? 2 : 8 }));
  const badge = box.fold ? "" : (node?.badge ?? "");
  const badge_room = badge ? measure(badge) * 0.9 + 10 : 0;
  box.lines.forEach((line, i) => {
    const room = box.width - 24 - (i === 0 ? badge_room : 0);
    const text = fitted(line, room, i === 0 && box.fold !== "run" ? measure_op : measure);
    group.append(svg("text", { x: left + 12, y: top + 23 + i * 17, class: i === 0 ? "op" : "place" }, text));
  });
  if (badge) {
    group.append(svg("text", { x: left + box.width - 12, y: top + 22, class: "badge-word", "text-anchor": "end" }, badge));
  }
  const all = box.nodes.map((i) => chain.nodes[i]);
  group.append(svg("title", {}, all.map((n) => `${n?.title} · ${n?.place}${n?.amount ? ` · ${n.amount}` : ""}`).join("\n")));
  return group;
}

function draw_lines(layout: Layout): SVGGElement {
  const lines = svg("g", { class: "lines", "aria-hidden": "true" });
  for (const line of layout.lines) {
    const path = line.points.map((p, i) => `${i === 0 ? "M" : "L"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
    lines.append(svg("path", { d: path, "marker-end": "url(#chain-tip)" }));
  }
  return lines;
}

function neighbour(box: Box, key: string, layout: Layout): Box | undefined {
  const beside = layout.boxes.filter((b) => Math.abs(b.y - box.y) < 20).sort((a, b) => a.x - b.x);
  const at = beside.indexOf(box);
  switch (key) {
    case "ArrowDown":
      return box.next[0];
    case "ArrowUp":
      return box.before[0];
    case "ArrowLeft":
      return beside[at - 1];
    case "ArrowRight":
      return beside[at + 1];
    case "Home":
      return layout.boxes.find((b) => b.role === "origin") ?? layout.boxes[0];
    case "End":
      return [...layout.boxes].sort((a, b) => b.y - a.y)[0];
    default:
      return undefined;
  }
}

export function show_chain(chain: Chain): void {
  const list = find<HTMLOListElement>("#chain ol.chain");
  if (!list || chain.nodes.length < 2 || chain.edges.length === 0) return;
  const measure = measurer(kFont);
  const measure_op = measurer(kOpFont);
  const unfolded = new Set<string>();
  const holder = html("div", { class: "graph" });
  const hint = html(
    "p",
    { class: "more", id: "chain-hint" },
    "Arrow keys walk along the graph, a wide one is dragged; dashed boxes unfold with a click or Enter." +
      (chain.omitted ? ` ${plural(chain.omitted, "more step is", "more steps are")} not shown.` : ""),
  );

  let begin = 0; // where the origin stands
  const draw = (focus_on: number | null) => {
    const layout = lay_out(chain, unfolded, kWidestBox, measure, measure_op);
    const tip = svg("marker", {
      id: "chain-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
    }, svg("path", { d: "M0 0L8 4L0 8Z" }));
    const picture = svg("svg", {
      viewBox: `0 0 ${layout.width} ${layout.height}`,
      width: layout.width,
      height: layout.height,
      role: "group",
      "aria-label": `Graph of what happened, ${plural(chain.nodes.length, "step", "steps")}, from the origin to the sinks`,
      "aria-describedby": "chain-hint",
    }, svg("defs", {}, tip), draw_lines(layout));
    const drawn = new Map<Box, SVGGElement>();
    for (const box of layout.boxes) {
      const group = draw_box(chain, box, measure, measure_op);
      drawn.set(box, group);
      picture.append(group);
      if (box.fold) group.addEventListener("click", () => unfold(box));
      group.addEventListener("keydown", (event) => {
        if (box.fold && (event.key === "Enter" || event.key === " ")) {
          event.preventDefault();
          unfold(box);
          return;
        }
        const to = neighbour(box, event.key, layout);
        if (!to) return;
        event.preventDefault();
        visit(to);
      });
    }
    // One stop for Tab: where the reader was last.
    const visit = (box: Box) => {
      for (const group of drawn.values()) group.setAttribute("tabindex", "-1");
      drawn.get(box)?.setAttribute("tabindex", "0");
      drawn.get(box)?.focus();
    };
    const unfold = (box: Box) => {
      unfolded.add(box.key);
      draw(box.nodes[0] ?? 0);
    };
    holder.replaceChildren(picture);
    const start = layout.boxes.find((b) => b.role === "origin") ?? layout.boxes[0];
    if (focus_on === null && start) begin = start.x;
    if (start) drawn.get(start)?.setAttribute("tabindex", "0");
    if (focus_on !== null) {
      const again = layout.boxes.find((b) => b.nodes.includes(focus_on));
      if (again) visit(again);
    }
  };
  draw(null);
  let held: { x: number; left: number } | null = null;
  holder.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") held = { x: event.clientX, left: holder.scrollLeft };
  });
  holder.addEventListener("pointermove", (event) => {
    if (held) holder.scrollLeft = held.left + held.x - event.clientX;
  });
  for (const end of ["pointerup", "pointerleave"]) holder.addEventListener(end, () => (held = null));
  const twin = html("details", { class: "twin" }, html("summary", {}, "The same as a list"));
  list.before(holder, hint, twin);
  twin.append(list);
  holder.scrollLeft = begin - holder.clientWidth / 2; // what it begins with is seen first
}
