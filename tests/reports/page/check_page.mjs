// SPDX-License-Identifier: Apache-2.0
// node check_page.mjs BROWSER PACKAGES: starts one browser and answers lines of [case, page] on stdin with one line of JSON
// each: what the case saw on that page, or {"failed": why}. Ends, and the browser with it, when stdin does. PACKAGES is the
// folder that holds node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , executablePath, packages] = process.argv;
const require = createRequire(join(packages, "package.json"));
const { chromium } = require("playwright-core");
const kArguments = [
  "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync",
];
const kPatience = 600_000;

// A page that keeps what it asked for, what of it was let through, and what it complained about.
async function open(visit, options = {}) {
  const { browser, page_path } = visit;
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  visit.contexts.push(context);
  const page = await context.newPage();
  page.setDefaultTimeout(kPatience);
  const seen = { requests: [], fetched: [], errors: [], dialogs: 0 };
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("requestfinished", (request) => seen.fetched.push(request.url()));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) seen.errors.push(message.text());
  });
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("dialog", (dialog) => {
    ++seen.dialogs;
    dialog.dismiss();
  });
  await page.goto(pathToFileURL(page_path).href, { waitUntil: "load", timeout: kPatience });
  return { page, seen };
}

const pressed = async (page, ...keys) => {
  for (const key of keys) await page.keyboard.press(key);
};
const first_column = (page) =>
  page.$$eval("#layer-table tbody tr:not([hidden])", (rows) => rows.map((row) => row.cells[0].textContent));
const cases = {
  async quiet(visit) {
    const { page, seen } = await open(visit);
    await page.waitForTimeout(300);
    return { ...seen, ready: await page.evaluate(() => document.documentElement.dataset.ready) };
  },

  // By how much the page is wider than a phone and than a desk's screen, and what it asked for.
  async fits(visit) {
    const out = { requests: [], wider: {} };
    for (const [width, height] of [[390, 844], [1280, 800]]) {
      const { page, seen } = await open(visit, { viewport: { width, height } });
      await page.waitForTimeout(300);
      out.requests.push(...seen.requests);
      out.wider[width] = await page.evaluate((width) => document.documentElement.scrollWidth - width, width);
    }
    return out;
  },

  async hostile(visit) {
    const { page, seen } = await open(visit);
    await page.waitForTimeout(300);
    return {
      ...seen,
      foreign: await page.evaluate(() => document.querySelectorAll("img, iframe, object, [onerror], [onload]").length),
      scripts: await page.evaluate(() => document.scripts.length),
      pwned: await page.evaluate(() => typeof window.pwned !== "undefined"),
      title: await page.title(),
      graph: (await page.locator("#chain .graph").count()) ? await page.locator("#chain .graph").textContent() : "",
    };
  },

  async accessible(visit) {
    const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
    const out = {};
    for (const colorScheme of ["light", "dark"]) {
      const { page } = await open(visit, { colorScheme, bypassCSP: true });
      await page.$$eval("details", (all) => all.forEach((one) => (one.open = true)));
      await page.evaluate(source);
      const result = await page.evaluate(() => window.axe.run());
      out[colorScheme] = result.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target).join(" ")}`);
    }
    return out;
  },

  async names_of_canvases(visit) {
    const { page } = await open(visit);
    return page.$$eval("canvas", (all) => all.map((c) => ({ role: c.getAttribute("role"), name: c.getAttribute("aria-label") })));
  },

  async table(visit) {
    const { page } = await open(visit);
    const order = await first_column(page);
    const sort = page.locator("#layer-table thead button", { hasText: "Headroom" }).first();
    await sort.focus();
    await pressed(page, "Enter");
    const figures = () => page.$$eval("#layer-table tbody tr", (rows) => rows.map((r) => parseFloat(r.cells[8].textContent)));
    const descending = await figures();
    await pressed(page, "Enter");
    const ascending = await figures();
    const said = await page.$eval("#layer-table th[aria-sort]", (th) => [th.textContent, th.getAttribute("aria-sort")]);
    await page.locator("#layer-table-filter").focus();
    await page.keyboard.type("MLP.fc2");
    const found = await first_column(page);
    const count = await page.locator("#layers .count").textContent();
    await pressed(page, "Tab", "Space");
    return { order, descending, ascending, said, found, count, bad: await first_column(page) };
  },

  async without_scripts(visit) {
    const { page, seen } = await open(visit, { javaScriptEnabled: false });
    return {
      ...seen,
      headline: await page.locator("h1").textContent(),
      answers: await page.locator(".verdict .answers").innerText(),
      chain: await page.locator("#chain .chain").first().isVisible(),
      still: await page.locator("#curve svg.chart").isVisible(),
      layers: await page.locator("#layer-table tbody tr").count(),
    };
  },

  async precision(visit) {
    const look = async (page) => ({
      headline: await page.locator("h1").textContent(),
      answers: await page.locator(".verdict .answers").innerText(),
      curves: await page.$$eval("#curves svg title", (all) => all.filter((t) => t.id).map((t) => t.textContent)),
      visible: await page.locator("#curves svg.chart").first().isVisible(),
      dashed: await page.$eval("#curves .reference", (line) => getComputedStyle(line).strokeDasharray !== "none"),
      regions: await page.locator(".scroll table").count(),
      focusable: await page.locator(".scroll[tabindex='0'][aria-label]").count(),
    });
    const plain = await look((await open(visit, { javaScriptEnabled: false })).page);
    const { page } = await open(visit);
    const scripted = await look(page);
    await page.locator("#layer-table-filter").focus();
    await page.keyboard.type("FFN.wo");
    const found = await first_column(page);
    for (let i = 0; i < "ffn.wo".length; ++i) await page.keyboard.press("Backspace");
    await pressed(page, "Tab", "Space");
    return { plain, scripted, found, alone: await first_column(page) };
  },

  async rail(visit) {
    const { page } = await open(visit);
    const marks = () =>
      page.$$eval(".rail .mark", (all) => all.map((m) => [m.getAttribute("class"), m.getAttribute("d"), m.textContent]));
    const whole = await marks();
    await page.locator(".plots .u-over").first().scrollIntoViewIfNeeded();
    const plot = await page.locator(".plots .u-over").first().boundingBox();
    await page.mouse.move(plot.x + plot.width * 0.75, plot.y + 40);
    await page.mouse.down();
    await page.mouse.move(plot.x + plot.width * 0.95, plot.y + 40, { steps: 4 });
    await page.mouse.up();
    await page.waitForTimeout(200);
    return {
      whole, zoomed: await marks(), key: await page.locator(".charts .key").innerText(),
      name: await page.locator(".rail").getAttribute("aria-label"),
      painted: await page.$$eval(".plots canvas", (all) =>
        all.map((c) => {
          const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
          return pixels.some((value, i) => i % 4 === 3 && value !== 0);
        })),
    };
  },

  async steps_by_keyboard(visit) {
    const { page } = await open(visit);
    await page.locator(".plots").focus();
    await pressed(page, "Home");
    const first = await page.locator(".charts .readout").textContent();
    await pressed(page, "ArrowRight");
    const second = await page.locator(".charts .readout").textContent();
    await pressed(page, "End");
    return { first, second, last: await page.locator(".charts .readout").textContent() };
  },

  async graph(visit) {
    const { page } = await open(visit);
    const focused = () => page.evaluate(() => document.activeElement?.getAttribute("aria-label"));
    const stops = await page.locator(".graph [tabindex='0']").count();
    await page.locator(".graph [tabindex='0']").focus();
    const start = await focused();
    await pressed(page, "ArrowDown");
    const next = await focused();
    await pressed(page, "End");
    const end = await focused();
    const folds = await page.locator(".graph [role='button']").count();
    let unfolded = null;
    if (folds) {
      const before = await page.locator(".graph .node").count();
      await page.locator(".graph [role='button']").first().focus();
      await pressed(page, "Enter");
      unfolded = (await page.locator(".graph .node").count()) - before;
    }
    return { stops, start, next, end, folds, unfolded, list: await page.locator("#chain details .chain > li").count() };
  },

  async map(visit) {
    const { page } = await open(visit);
    const pixels = async () =>
      page.$eval(".map canvas", (c) => Array.from(c.getContext("2d").getImageData(c.width - 5, 5, 1, 1).data));
    const headroom = await pixels();
    await page.locator(".map-frame").focus();
    await pressed(page, "End", "ArrowDown");
    const readout = await page.locator(".map .readout").textContent();
    await page.locator("#map-underflow").check();
    const underflow = await pixels();
    await page.locator(".map details summary").click();
    const caption = await page.locator(".map details caption").textContent(); // waits: a toggle is told after the click
    return {
      headroom, underflow, readout, legend: await page.locator(".map .key").innerText(),
      twin: await page.locator(".map details tbody tr").count(), caption,
    };
  },

  async rank_map(visit) {
    const { page, seen } = await open(visit, { reducedMotion: "reduce" }); // nothing scrolls between two moves
    const frame = page.locator(".rank-frame");
    const readout = () => page.locator("#map .readout").textContent();
    const pixel = (x, y) => page.$eval(".rank-frame canvas", (c, [px, py]) =>
      Array.from(c.getContext("2d").getImageData(Math.round(c.width * px), Math.round(c.height * py), 1, 1).data), [x, y]);
    const initially = await page.$eval("#rank-map-by", (by) => by.selectedOptions[0].textContent);
    await page.selectOption("#rank-map-by", { label: "rank" });
    const out = { initially, start: await pixel(0.3, 0.5), end: await pixel(0.99, 0.6), legend: await page.locator("#map .key").innerText() };
    await frame.focus();
    await pressed(page, "End");
    out.first = await readout();
    await pressed(page, "PageDown", "PageDown", "End");
    out.walked = await readout();
    await pressed(page, "Enter");
    out.panel = await page.locator(".rank-panel").innerText();
    out.focused = await page.evaluate(() => document.activeElement.tagName);
    await pressed(page, "Escape");
    out.closed = await page.locator(".rank-panel").isHidden();
    out.back = await page.evaluate(() => document.activeElement.className);
    const box = await page.locator(".rank-frame canvas").boundingBox();
    await page.mouse.move(box.x + box.width * 0.5, box.y + box.height * 0.56);
    out.tip = await page.locator(".tip").textContent();
    await page.mouse.click(box.x + box.width * 0.5, box.y + box.height * 0.56);
    out.clicked = await page.locator(".rank-panel h3").textContent();
    out.link = await page.locator(".rank-panel a").count() ? await page.locator(".rank-panel a").getAttribute("href") : "";
    out.groupings = await page.$$eval("#rank-map-by option", (all) => all.map((one) => one.textContent));
    await page.selectOption("#rank-map-by", { label: "pipeline" });
    await frame.focus();
    await pressed(page, "Home");
    out.grouped = await readout();
    await page.fill("#rank-map-rank", "5");
    await pressed(page, "Enter");
    out.asked = await page.locator(".rank-panel").innerText();
    await page.fill("#rank-map-rank", "123456");
    await pressed(page, "Enter");
    out.unknown = await page.locator("#map .count").textContent();
    return { ...seen, ...out };
  },

  async fleet_without_scripts(visit) {
    const { page, seen } = await open(visit, { javaScriptEnabled: false });
    return {
      ...seen,
      headline: await page.locator("h1").textContent(),
      facts: await page.locator(".verdict .facts").innerText(),
      groups: await page.$$eval("#groups .scroll:first-of-type tbody tr", (rows) => rows.map((row) => row.innerText.split("\t"))),
      found: await page.locator("#found tbody tr").count(),
      next: await page.locator("#next").innerText(),
      states: await page.locator("#map dt").count(),
    };
  },

  async look(visit) {
    const paper = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const { page: light } = await open(visit, { colorScheme: "light" });
    const { page: dark } = await open(visit, { colorScheme: "dark" });
    const out = { light: await paper(light), dark: await paper(dark) };
    await light.locator("button.theme").click();
    out.chosen_dark = await paper(light);
    out.label = await light.locator("button.theme").textContent();
    await light.locator("button.theme").click();
    out.chosen_light = await paper(light);
    await dark.emulateMedia({ media: "print" });
    out.print = await paper(dark);
    return out;
  },

  async print(visit) {
    const { page } = await open(visit, { colorScheme: "dark" });
    await page.emulateMedia({ media: "print" });
    const visible = (selector) => page.locator(selector).first().isVisible();
    return {
      headline: await visible("h1"), still: await visible("#curve svg.chart"), charts: await visible(".charts"),
      theme: await visible("button.theme"), tools: await visible(".tools"), map: await visible(".map"),
      bytes: (await page.pdf({ format: "A4" })).length,
    };
  },

  async still(visit) {
    const { page } = await open(visit, { reducedMotion: "reduce" });
    return page.evaluate(() => ({
      scrolling: getComputedStyle(document.documentElement).scrollBehavior,
      moving: document.getAnimations().length,
    }));
  },

  async first_screen(visit) {
    const look = async (options) => {
      const { page } = await open(visit, options);
      return page.evaluate(() => {
        const box = (selector) => {
          const found = document.querySelector(selector)?.getBoundingClientRect();
          return found ? { top: found.top, bottom: found.bottom } : null;
        };
        const label = document.querySelector("#curve text");
        const scale = label ? label.getScreenCTM().a : 0;
        return {
          headline: box("h1"), cure: box(".verdict .cure"), code: box(".verdict .source"), curve: box("#curve"),
          origin: box("#curve .origin-name"),
          text_px: label ? parseFloat(getComputedStyle(label).fontSize) * scale : 0,
          wider: document.documentElement.scrollWidth - innerWidth,
        };
      });
    };
    const desk = { width: 1400, height: 900 };
    return {
      desk: await look({ viewport: desk }), dark: await look({ viewport: desk, colorScheme: "dark" }),
      dense: await look({ viewport: desk, deviceScaleFactor: 2 }),
      phone: await look({ viewport: { width: 390, height: 844 } }),
    };
  },

  async remembered(visit) {
    const { page } = await open(visit, { colorScheme: "light" });
    await page.locator("button.theme").click();
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const chosen = await theme();
    await page.reload();
    return { chosen, again: await theme() };
  },

  async graph_in_view(visit) {
    const look = async (viewport) => {
      const { page } = await open(visit, { viewport });
      return page.evaluate(() => {
        const frame = document.querySelector(".graph");
        const holder = frame.getBoundingClientRect();
        const origin = document.querySelector(".graph .node.origin");
        const box = origin.getBoundingClientRect();
        const op = origin.querySelector(".op");
        const overlaps = [...document.querySelectorAll(".graph .node")].filter((node) => {
          const name = node.querySelector(".op")?.getBoundingClientRect();
          const badge = node.querySelector(".badge-word")?.getBoundingClientRect();
          return name && badge && name.right > badge.left;
        }).map((node) => node.textContent);
        return {
          px: parseFloat(getComputedStyle(op).fontSize) * op.getScreenCTM().a, overlaps, width: holder.width,
          scrolled: frame.scrollLeft,
          wanted: Math.min(Math.max((box.left + box.right) / 2 + frame.scrollLeft - holder.left - frame.clientWidth / 2, 0),
            frame.scrollWidth - frame.clientWidth),
          left: box.left - holder.left, right: box.right - holder.left,
        };
      });
    };
    return { desk: await look({ width: 1400, height: 900 }), phone: await look({ width: 390, height: 844 }) };
  },

  async narrow(visit) {
    const { page, seen } = await open(visit, { viewport: { width: 360, height: 740 } });
    return { ...seen, wider: await page.evaluate(() => document.documentElement.scrollWidth - innerWidth) };
  },

  async time(visit) {
    const times = [];
    for (let i = 0; i < 5; ++i) {
      const { page } = await open(visit);
      times.push(Number(await page.evaluate(() => document.documentElement.dataset.ready)));
    }
    return { ready_ms: times };
  },
};

const browser = await chromium.launch({ executablePath, args: kArguments, timeout: kPatience });
for await (const line of createInterface({ input: process.stdin })) {
  const [wanted, page_path] = JSON.parse(line);
  const visit = { browser, page_path, contexts: [] };
  let answer;
  try {
    answer = await cases[wanted](visit);
  } catch (error) {
    answer = { failed: String(error) };
  }
  for (const context of visit.contexts) await context.close();
  console.log(JSON.stringify(answer));
}
await browser.close();
