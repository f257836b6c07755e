// SPDX-License-Identifier: Apache-2.0
// What the page of many ranks was given to draw: the other side of src/fleet/fleet_data.cpp.
import { bytes } from "./base64";
import { find } from "./dom";

// States by how bad they are, as RankState of src/fleet/rank_map.h has them.
export const kMissing = 0;
export const kNothing = 3;
export const kClean = 4;
export const kAfter = 5;
export const kOrigin = 9;
export const kPresent = 10; // of a rank that left a digest

export interface RankFacts {
  status: string;
  attempt: number;
  ended: boolean;
  last_step: number | null;
  clean: number | null;
  began: string[];
  came: string | null;
  card: string; // its name
}

export interface Run {
  from: number;
  to: number; // columns, the last not included
  state: number;
}

export interface Band {
  first: number; // of Grouping.order
  ranks: number;
  runs: Run[];
}

export interface Grouping {
  dimension: string;
  values: string[]; // none: by rank
  value: number[]; // by rank's index; values.length: not known
  order: number[]; // indices of ranks
  bands: Band[];
}

export interface Fleet {
  run: string;
  states: string[];
  first_step: number;
  last_step: number;
  steps_per_column: number;
  columns: number;
  ranks: number[];
  presence: number[];
  found: number[];
  facts: RankFacts[];
  facts_of: number[]; // 1 + index; 0: none on this page
  cards: string[]; // by rank's index; empty: not known
  linked: number[];
  groupings: Grouping[];
  groupings_left_out: string[];
  group_by: string; // the dimension to begin with
}

function numbers(column: { width: number; bytes: string }): number[] {
  const raw = bytes(column.bytes);
  const out: number[] = [];
  for (let at = 0; at < raw.length; at += column.width) {
    let number = 0;
    for (let i = column.width - 1; i >= 0; --i) number = number * 256 + (raw[at + i] ?? 0);
    out.push(number);
  }
  return out;
}

// Ranks by value, then by number: stable, so the index decides.
function order_of(count: number, value: number[]): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  return value.length === 0 ? order : order.sort((a, b) => (value[a] ?? 0) - (value[b] ?? 0) || a - b);
}

function bands_of(raw: { bands: { width: number; bytes: string }; runs: string }, columns: number): Band[] {
  const runs = bytes(raw.runs);
  let at = 0;
  let first = 0;
  return numbers(raw.bands).map((ranks) => {
    const band: Band = { first, ranks, runs: [] };
    first += ranks;
    for (let from = 0; from < columns; ) {
      let code = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = runs[at++] ?? 0;
        code += (byte & 127) * scale;
        if (byte < 128) break;
      }
      const to = from + Math.max(1, code >> 4);
      band.runs.push({ from, to, state: code & 15 });
      from = to;
    }
    return band;
  });
}

export function read_fleet_data(): Fleet | null {
  const holder = find<HTMLScriptElement>("#page-data");
  const raw: any = holder ? JSON.parse(holder.textContent ?? "").fleet : null;
  if (!raw) return null;
  const ranks = numbers(raw.ranks);
  return {
    ...raw,
    ranks,
    presence: numbers(raw.presence),
    found: numbers(raw.found),
    facts_of: numbers(raw.facts_of),
    groupings: raw.groupings.map((one: any) => {
      const value = one.values ? numbers(one.value) : [];
      return {
        dimension: one.dimension,
        values: one.values ?? [],
        value,
        order: order_of(ranks.length, value),
        bands: bands_of(one.map, raw.columns),
      };
    }),
  };
}

export function is_present(fleet: Fleet, index: number): boolean {
  return fleet.presence[index] === kPresent;
}

// "host n3", "not known": of a rank along a dimension.
export function place_of(grouping: Grouping, index: number): string | null {
  return grouping.values[grouping.value[index] ?? -1] ?? null;
}

export function folder_of(fleet: Fleet, index: number, attempt: number): string {
  return `rank-${String(fleet.ranks[index] ?? 0).padStart(5, "0")}/attempt-${attempt}`;
}

export function facts_of(fleet: Fleet, index: number): RankFacts | null {
  return fleet.facts[(fleet.facts_of[index] ?? 0) - 1] ?? null;
}
