// SPDX-License-Identifier: Apache-2.0
// node build.mjs FOLDER: bundles src/main.ts into FOLDER/page.js and the styles it needs into FOLDER/page.css. The
// licences of what is bundled travel at the end of page.js. The same sources give the same bytes.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2];
if (!folder) {
  console.error("build.mjs: say which folder the bundle goes to");
  process.exit(2);
}

const result = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2021",
  charset: "ascii",
  legalComments: "none",
  metafile: true,
  write: false,
  outfile: "page.js",
});

// node_modules/uplot/dist/uPlot.esm.js -> uplot; node_modules/@dagrejs/dagre/index.js -> @dagrejs/dagre
const packages = new Set();
for (const path of Object.keys(result.metafile.inputs)) {
  const name = /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
  if (name) packages.add(name[1]);
}
let notices = "";
for (const name of [...packages].sort()) {
  const root = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const text = readFileSync(join(root, "LICENSE"), "utf8").replaceAll("*/", "* /").trim();
  notices += `\n${name} ${version} (${license})\n\n${text}\n`;
}
const script = result.outputFiles[0].text.trimEnd();
writeFileSync(join(folder, "page.js"), `${script}\n/* Bundled with it:\n${notices}*/\n`);
writeFileSync(join(folder, "page.css"), readFileSync(join(here, "node_modules/uplot/dist/uPlot.min.css"), "utf8"));
