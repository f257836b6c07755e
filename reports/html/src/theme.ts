// SPDX-License-Identifier: Apache-2.0
// Light and dark: as the system has it, until the reader chooses.
import { find, html } from "./dom";

const listeners: (() => void)[] = [];
const system_dark = matchMedia("(prefers-color-scheme: dark)");

// Calls back whenever colours on the page may have changed.
export function on_look_change(listener: () => void): void {
  listeners.push(listener);
}

function look_changed(): void {
  for (const listener of listeners) listener();
}

function is_dark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : system_dark.matches;
}

const kKey = "theme-of-nanhunt";

// Where a page may keep nothing, it keeps nothing.
function remembered(): string | null {
  try {
    return localStorage.getItem(kKey);
  } catch {
    return null;
  }
}

function remember(theme: string): void {
  try {
    localStorage.setItem(kKey, theme);
  } catch {
    /* a frame without an origin */
  }
}

export function add_theme_switch(): void {
  const masthead = find(".masthead");
  if (!masthead) return;
  const before = remembered();
  if (before === "light" || before === "dark") document.documentElement.dataset["theme"] = before;
  const button = html("button", { type: "button", class: "theme" });
  const label = () => (button.textContent = is_dark() ? "Light view" : "Dark view");
  button.addEventListener("click", () => {
    const theme = is_dark() ? "light" : "dark";
    document.documentElement.dataset["theme"] = theme;
    remember(theme);
    label();
    look_changed();
  });
  for (const media of [system_dark, matchMedia("print")]) {
    media.addEventListener("change", () => {
      label();
      look_changed();
    });
  }
  label();
  masthead.append(button);
}
