// SPDX-License-Identifier: Apache-2.0
// Columns of numbers, little-endian, as reports/page/html_data.cpp writes them.

export function bytes(text: string): Uint8Array {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) out[i] = raw.charCodeAt(i);
  return out;
}

export function uints(text: string): number[] {
  const view = new DataView(bytes(text).buffer);
  return Array.from({ length: view.byteLength / 4 }, (_, i) => view.getUint32(4 * i, true));
}

// What is not finite is null: a chart must never meet it.
export function floats(text: string): (number | null)[] {
  const view = new DataView(bytes(text).buffer);
  return Array.from({ length: view.byteLength / 4 }, (_, i) => {
    const value = view.getFloat32(4 * i, true);
    return Number.isFinite(value) ? value : null;
  });
}
