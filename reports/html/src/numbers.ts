// SPDX-License-Identifier: Apache-2.0
// Numbers as reports/views/numbers.cpp writes them.

export function format_count(n: number): string {
  return Math.trunc(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

// Exact powers of two are written as such where digits would hide that they are.
const kPowersBelow = -14;
const kPowersFrom = 20;

// At most 6 significant digits.
export function format_short(value: number): string {
  if (value === 0) return "0";
  const binade = Math.log2(Math.abs(value));
  if (Number.isInteger(binade) && (binade <= kPowersBelow || binade >= kPowersFrom)) return `${value < 0 ? "-" : ""}2^${binade}`;
  const digits = Number(value.toPrecision(6));
  const exponent = Math.floor(Math.log10(Math.abs(digits)));
  if (exponent >= -4 && exponent < 6) return digits.toString();
  return digits.toExponential().replace("e+", "e");
}

export function format_percent(share: number): string {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  const figure = percent.toFixed(percent >= 10 || percent === 0 ? 0 : percent >= 1 ? 1 : 2);
  return `${share < 1 && figure === "100" ? "> 99" : figure} %`;
}

export function plural(n: number, one: string, many: string): string {
  return `${format_count(n)} ${n === 1 ? one : many}`;
}
