// SPDX-License-Identifier: Apache-2.0
// From a chain to boxes and lines. What only carries bad numbers on is folded, and so are equals beside each other, until
// the reader unfolds them.
import * as dagre from "@dagrejs/dagre";
import type { Chain, ChainNode } from "./data";

export interface Box {
  key: string;
  nodes: number[]; // of the chain; more than one in a fold
  lines: string[];
  role: string;
  fold: "" | "run" | "equals";
  x: number; // centre
  y: number;
  width: number;
  height: number;
  next: Box[];
  before: Box[];
}
export interface Line {
  from: Box;
  to: Box;
  points: { x: number; y: number }[];
}
export interface Layout {
  boxes: Box[];
  lines: Line[];
  width: number;
  height: number;
}

const kLeastRun = 3;
const kLeastEquals = 4;
const kLineHeight = 17;
const kPadding = 12;

type Links = number[][];

function links(chain: Chain): { next: Links; before: Links } {
  const next: Links = chain.nodes.map(() => []);
  const before: Links = chain.nodes.map(() => []);
  for (const [from, to] of chain.edges) {
    if (from === to || next[from]?.includes(to)) continue;
    next[from]?.push(to);
    before[to]?.push(from);
  }
  return { next, before };
}

// Which nodes share a box: box of each node, by key.
function fold(chain: Chain, next: Links, before: Links, unfolded: ReadonlySet<string>): Map<string, number[]> {
  const groups = new Map<string, number[]>();
  const taken = new Set<number>();
  const plain = (i: number) => {
    const node = chain.nodes[i] as ChainNode;
    return node.role === "carrier" && node.badge === "passed on" && next[i]?.length === 1 && before[i]?.length === 1;
  };
  chain.nodes.forEach((_, start) => {
    const previous = before[start]?.[0];
    if (taken.has(start) || !plain(start) || (previous !== undefined && plain(previous))) return;
    const run: number[] = [];
    for (let i: number | undefined = start; i !== undefined && plain(i) && !run.includes(i); i = next[i]?.[0]) run.push(i);
    const key = `run-${start}`;
    if (run.length < kLeastRun || unfolded.has(key)) return;
    run.forEach((i) => taken.add(i));
    groups.set(key, run);
  });
  const equals = new Map<string, number[]>();
  chain.nodes.forEach((node, i) => {
    if (taken.has(i)) return;
    const same = JSON.stringify([node.role, node.badge, node.title, next[i], before[i]]);
    equals.set(same, [...(equals.get(same) ?? []), i]);
  });
  for (const nodes of equals.values()) {
    const key = `equals-${nodes[0]}`;
    if (nodes.length >= kLeastEquals && !unfolded.has(key)) groups.set(key, nodes);
    else for (const i of nodes) groups.set(`node-${i}`, [i]);
  }
  return groups;
}

function lines_of(chain: Chain, key: string, nodes: number[]): string[] {
  const first = chain.nodes[nodes[0] ?? 0] as ChainNode;
  if (key.startsWith("run-")) {
    const names = [...new Set(nodes.map((i) => chain.nodes[i]?.title ?? ""))];
    const shown = names.slice(0, 3).join(", ") + (names.length > 3 ? " …" : "");
    return [`${nodes.length} operations carry it on`, shown];
  }
  if (key.startsWith("equals-")) return [`${nodes.length} × ${first.title}`, `${first.place} …`];
  return [first.title, first.place, ...(first.amount ? [first.amount] : [])];
}

export function lay_out(chain: Chain, unfolded: ReadonlySet<string>, widest: number, measure: (text: string) => number,
  measure_op: (text: string) => number): Layout {
  const { next, before } = links(chain);
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 34, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  const box_of = new Map<number, Box>();
  const boxes: Box[] = [];
  for (const [key, nodes] of fold(chain, next, before, unfolded)) {
    const lines = lines_of(chain, key, nodes);
    const role = chain.nodes[nodes[0] ?? 0]?.role ?? "carrier";
    const badge = 92; // beside the first line
    const need = Math.max((key.startsWith("run-") ? measure : measure_op)(lines[0] ?? "") + badge, ...lines.slice(1).map(measure)) + 2 * kPadding;
    const box: Box = {
      key,
      nodes,
      lines,
      role,
      fold: key.startsWith("run-") ? "run" : key.startsWith("equals-") ? "equals" : "",
      x: 0,
      y: 0,
      width: Math.min(Math.max(need, 170), widest),
      height: lines.length * kLineHeight + 18,
      next: [],
      before: [],
    };
    boxes.push(box);
    for (const i of nodes) box_of.set(i, box);
    graph.setNode(key, { width: box.width, height: box.height });
  }
  const pairs = new Map<string, [Box, Box]>();
  for (const [from, to] of chain.edges) {
    const a = box_of.get(from);
    const b = box_of.get(to);
    if (!a || !b || a === b || pairs.has(`${a.key} ${b.key}`)) continue;
    pairs.set(`${a.key} ${b.key}`, [a, b]);
    a.next.push(b);
    b.before.push(a);
    graph.setEdge(a.key, b.key);
  }
  dagre.layout(graph);
  for (const box of boxes) {
    const place = graph.node(box.key);
    box.x = place.x;
    box.y = place.y;
  }
  const lines = [...pairs.values()].map(([from, to]) => ({ from, to, points: graph.edge(from.key, to.key).points }));
  const size = graph.graph();
  return { boxes, lines, width: Math.ceil(size.width ?? 0), height: Math.ceil(size.height ?? 0) };
}
