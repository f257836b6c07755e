// SPDX-License-Identifier: Apache-2.0
// What is known of one rank, and where its report is; of a band of several, which ranks they are.
import { html } from "./dom";
import { type Band, facts_of, type Fleet, folder_of, type Grouping, is_present, place_of } from "./fleet_data";
import { format_count } from "./numbers";

const kMostRanks = 64; // of a band, as buttons

function fact(name: string, ...value: (Node | string)[]): HTMLElement {
  return html("div", {}, html("dt", {}, name), html("dd", {}, ...value));
}

// A word as a shell reads it back.
function shell_word(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function command(text: string): HTMLElement {
  const code = html("code", { class: "path" }, text);
  const button = html("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", () => {
    getSelection()?.selectAllChildren(code);
    const done = () => (button.textContent = "Copied");
    navigator.clipboard?.writeText(text).then(done, () => (button.textContent = "Selected"));
  });
  return html("span", {}, code, " ", button);
}

function step(number: number | null): string {
  return number === null ? "none" : `step ${format_count(number)}`;
}

export class RankPanel {
  readonly root = html("section", { class: "rank-panel", "aria-label": "Rank", hidden: "" });
  private readonly title = html("h3", { tabindex: -1 });
  private readonly facts = html("dl", { class: "facts" });
  private readonly more = html("div", {});

  constructor(
    private readonly fleet: Fleet,
    private readonly back: () => void,
    private readonly choose: (index: number) => void,
  ) {
    const close = html("button", { type: "button", class: "close" }, "Close");
    close.addEventListener("click", () => this.close());
    this.root.append(close, this.title, this.facts, this.more);
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  private close(): void {
    this.root.hidden = true;
    this.back();
  }

  private open(title: string, facts: HTMLElement[], more: (Node | string)[]): void {
    this.title.textContent = title;
    this.facts.replaceChildren(...facts);
    this.more.replaceChildren(...more);
    this.root.hidden = false;
    this.root.scrollIntoView({ block: "nearest" });
    this.title.focus({ preventScroll: true });
  }

  show_rank(index: number): void {
    const { fleet } = this;
    const rank = fleet.ranks[index] ?? 0;
    const title = `Rank ${format_count(rank)}${fleet.found[index] ? ": it began here" : ""}`;
    const places = fleet.groupings
      .filter((one) => place_of(one, index) !== null)
      .map((one) => fact(one.dimension, place_of(one, index) ?? ""));
    const card = [facts_of(fleet, index)?.card, fleet.cards[index]].filter((text) => text).join(" ");
    if (card) places.push(fact("card", card));
    if (!is_present(fleet, index)) {
      this.open(title, [fact("state", fleet.states[fleet.presence[index] ?? 0] ?? ""), ...places], []);
      return;
    }
    const known = facts_of(fleet, index);
    if (!known) {
      const digest = `${folder_of(fleet, index, 0).replace(/\d+$/, "*")}/digest.json`;
      this.open(title, places, [html("p", { class: "more" }, `There was no room for more on this page: ${digest} has it.`)]);
      return;
    }
    const all = [
      ...places,
      fact("alone", known.status),
      fact("clean through", step(known.clean)),
      fact("last step", `${step(known.last_step)}${known.ended ? ", ended" : ", not ended"}`),
    ];
    const more: Node[] = known.began.map((text) => html("p", {}, html("b", {}, "Began here: "), text));
    if (known.came) more.push(html("p", {}, html("b", {}, "Came from another rank: "), known.came));
    more.push(this.report_of(index, known.attempt));
    this.open(title, all, more);
  }

  private report_of(index: number, attempt: number): HTMLElement {
    const folder = folder_of(this.fleet, index, attempt);
    const linked = this.fleet.linked.includes(this.fleet.ranks[index] ?? -1);
    const page = `${folder}/report.html`;
    const to_run = `nanhunt report ${shell_word(`${this.fleet.run}/${folder}`)}`;
    return html("p", { class: "report-of" }, html("b", {}, "Report: "), linked ? html("a", { href: page }, page) : command(to_run));
  }

  // Ranks that the verdict names first.
  show_band(name: string, grouping: Grouping, band: Band): void {
    const indices = grouping.order.slice(band.first, band.first + band.ranks);
    const found = indices.filter((index) => this.fleet.found[index] === 1);
    const shown = [...found, ...indices.filter((index) => this.fleet.found[index] !== 1)].slice(0, kMostRanks);
    const absent = indices.filter((index) => !is_present(this.fleet, index)).length;
    const list = html("ul", { class: "rank-list" }, ...shown.map((index) => html("li", {}, this.button_of(index))));
    const more: Node[] = [list];
    if (shown.length < indices.length) more.push(html("p", { class: "more" }, `… and ${format_count(indices.length - shown.length)} more`));
    const counts: [string, number][] = [["ranks", indices.length], ["it began on", found.length], ["no digest", absent]];
    this.open(name, counts.map(([what, count]) => fact(what, format_count(count))), more);
  }

  private button_of(index: number): HTMLButtonElement {
    const mark = this.fleet.found[index] ? "▶ " : is_present(this.fleet, index) ? "" : "? ";
    const words = this.fleet.found[index] ? ", it began here" : is_present(this.fleet, index) ? "" : ", no digest";
    const rank = this.fleet.ranks[index] ?? 0;
    const button = html("button", { type: "button", "aria-label": `Rank ${rank}${words}` }, `${mark}${rank}`);
    button.addEventListener("click", () => this.choose(index));
    return button;
  }
}
