// SPDX-License-Identifier: Apache-2.0
// Cells to pixels: one pixel a cell, blown up without smoothing, so that a hundred thousand cells cost nothing.
import { headroom_of, is_bad, type LayerMap, underflow_of } from "./data";
import { colour, css, ramp, rgb } from "./palette";

export type Quantity = "headroom" | "underflow";

const kMostHeadroom = 26; // binades; more looks the same. 27 = 3 * 3 * 3: the legend's colours stand for 0, 2, 8 and 26.
const kLeastShare = 1e-4;

// 0: worst, 1: nothing to see.
function ease(quantity: Quantity, byte: number): number | null {
  if (quantity === "headroom") {
    const binades = headroom_of(byte);
    return binades === null ? null : Math.log(1 + binades) / Math.log(1 + kMostHeadroom);
  }
  const share = underflow_of(byte);
  if (share === null) return null;
  return share <= kLeastShare ? 1 : Math.log10(share) / Math.log10(kLeastShare);
}

export function cell_image(map: LayerMap, quantity: Quantity): HTMLCanvasElement {
  const image = new ImageData(map.columns, map.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const plane = map[quantity];
  const pack = ([r, g, b]: [number, number, number]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const shade = ramp(quantity, 4);
  const unseen = pack(rgb(colour("map-unseen")));
  const bad = pack(rgb(colour("map-bad")));
  const look_up = Array.from({ length: 256 }, (_, byte) => {
    const at = ease(quantity, byte);
    return at === null ? unseen : pack(shade(at));
  });
  for (let cell = 0; cell < pixels.length; ++cell) {
    pixels[cell] = is_bad(map, cell) ? bad : (look_up[plane[cell] ?? 0] ?? unseen);
  }
  const canvas = document.createElement("canvas");
  canvas.width = map.columns;
  canvas.height = map.rows;
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

// Colours and words of the legend, worst first.
export function legend_of(quantity: Quantity): { colour: string; text: string }[] {
  const shade = ramp(quantity, 4);
  const words =
    quantity === "headroom"
      ? ["0 binades: at the edge", "2", "8", `${kMostHeadroom} and more`]
      : ["all", "5 %", "0.2 %", "none"];
  return [
    ...words.map((text, i) => ({ colour: css(shade(i / 3)), text })),
    { colour: colour("map-bad"), text: "NaN or Inf" },
    { colour: colour("map-unseen"), text: "nothing seen" },
  ];
}
