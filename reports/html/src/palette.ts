// SPDX-License-Identifier: Apache-2.0
// Colours come from the style sheet, so that canvases follow the page: light, dark, print.

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

type Rgb = [number, number, number];

export function rgb(hex: string): Rgb {
  const digits = hex.replace("#", "");
  const wide = digits.length === 3 ? [...digits].map((d) => d + d).join("") : digits;
  const n = parseInt(wide, 16) || 0;
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

// The colour `at` 0..1 of the way through the stops of the style sheet called --NAME-0, --NAME-1, ...
export function ramp(name: string, stops: number): (at: number) => Rgb {
  const colours = Array.from({ length: stops }, (_, i) => rgb(colour(`${name}-${i}`)));
  return (at) => {
    const place = Math.min(Math.max(at, 0), 1) * (stops - 1);
    const i = Math.min(Math.floor(place), stops - 2);
    const from = colours[i] ?? [0, 0, 0];
    const to = colours[i + 1] ?? [0, 0, 0];
    const part = place - i;
    return [0, 1, 2].map((k) => Math.round((from[k] ?? 0) + ((to[k] ?? 0) - (from[k] ?? 0)) * part)) as Rgb;
  };
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${r}, ${g}, ${b})`;
}
