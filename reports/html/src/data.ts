// SPDX-License-Identifier: Apache-2.0
// What the page was given to draw: the other side of reports/page/html_data.cpp and reports/views/layer_planes.h.
import { bytes, floats, uints } from "./base64";
import { find } from "./dom";

export interface ChainNode {
  role: string;
  badge: string;
  title: string;
  place: string;
  amount: string;
}
export interface Chain {
  nodes: ChainNode[];
  edges: [number, number][];
  omitted: number;
}

export interface Timeline {
  step: number[];
  loss: (number | null)[];
  flags: Uint8Array;
  gradient_norm: (number | null)[] | null;
  weight_norm: (number | null)[] | null;
}
export const kNaN = 1;
export const kPosInf = 2;
export const kNegInf = 3;
export const kLossKind = 3;
export const kSkipped = 4;
export const kBadOps = 8;

export interface Scale {
  step: number[];
  scale: (number | null)[];
  skipped: Uint8Array;
}

export interface LayerMap {
  first_step: number;
  steps_per_column: number;
  columns: number;
  rows: number;
  order: number[]; // of each row: the row of the table that names it
  headroom: Uint8Array;
  underflow: Uint8Array;
  nonfinite: Uint8Array;
}

export interface PageData {
  chain: Chain | null;
  timeline: Timeline;
  scaler: Scale | null;
  map: LayerMap | null;
}

// Null: nothing seen. Binades.
export function headroom_of(byte: number): number | null {
  return byte === 0 ? null : (byte - 1) / 4;
}

// Null: nothing seen. A share of 1.
export function underflow_of(byte: number): number | null {
  if (byte === 0) return null;
  if (byte === 1) return 0;
  const level = byte - 2;
  return (0.5 + (level % 12) / 24) * 2 ** (Math.floor(level / 12) - 20);
}

export function is_bad(map: LayerMap, cell: number): boolean {
  return (((map.nonfinite[cell >> 3] ?? 0) >> (cell & 7)) & 1) === 1;
}

export function read_page_data(): PageData | null {
  const holder = find<HTMLScriptElement>("#page-data");
  if (!holder) return null;
  const raw: any = JSON.parse(holder.textContent ?? "");
  const t = raw.timeline;
  if (!t) return null; // the page of many ranks: fleet_data.ts reads it
  return {
    chain: raw.chain,
    timeline: {
      step: uints(t.step),
      loss: floats(t.loss),
      flags: bytes(t.flags),
      gradient_norm: t.gradient_norm === null ? null : floats(t.gradient_norm),
      weight_norm: t.weight_norm === null ? null : floats(t.weight_norm),
    },
    scaler: raw.scaler && {
      step: uints(raw.scaler.step),
      scale: floats(raw.scaler.scale),
      skipped: bytes(raw.scaler.skipped),
    },
    map: raw.map && {
      ...raw.map,
      headroom: bytes(raw.map.headroom),
      underflow: bytes(raw.map.underflow),
      nonfinite: bytes(raw.map.nonfinite),
    },
  };
}
