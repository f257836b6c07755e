// SPDX-License-Identifier: Apache-2.0
// The page can be read without this. With it, the chain becomes a graph, the steps and the layers become charts, and the
// table of layers can be sorted and searched. On the page of many ranks the map is drawn.
import { show_chain } from "./chain";
import { read_page_data } from "./data";
import { find } from "./dom";
import { read_fleet_data } from "./fleet_data";
import { show_layer_map } from "./layer_map";
import { show_rank_map } from "./rank_map";
import { make_findable } from "./table";
import { add_theme_switch } from "./theme";
import { show_timeline } from "./timeline";

function start(): void {
  document.documentElement.classList.add("scripted");
  add_theme_switch();
  const layers = find<HTMLTableElement>("#layer-table");
  const names = [...(layers?.tBodies[0]?.rows ?? [])].map((row) => row.cells[0]?.textContent ?? "");
  const data = read_page_data();
  if (data) {
    if (data.chain) show_chain(data.chain);
    show_timeline(data.timeline, data.scaler);
    if (data.map) show_layer_map(data.map, data.map.order.map((row) => names[row] ?? ""), data.timeline.step[data.timeline.step.length - 1]);
  }
  const fleet = read_fleet_data();
  if (fleet) show_rank_map(fleet);
  if (layers) make_findable(layers, "layers");
  document.documentElement.dataset["ready"] = String(Math.round(performance.now()));
}

start();
