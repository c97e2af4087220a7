// The chart and the rates of the overview.
import { bytes, count, setText } from "./dom.js";
import { timelines } from "./charts.js";
import { listen } from "./stream.js";

const [chart] = timelines();
const rates = [...document.querySelectorAll("[data-rate]")];

listen(({ series, marks, gaps, time_ms: now_ms }) => {
  chart.update({ series, marks, gaps, now_ms });
  for (const cell of rates) {
    const { unit, points } = series[cell.dataset.rate] ?? { unit: "", points: [] };
    setText(cell, `${(unit === "bytes/s" ? bytes : count)(points.at(-1)?.[1])}/s`);
  }
});
document.getElementById("window").addEventListener("change", ({ target }) => {
  document.getElementById("timeline").dataset.window = target.value;
  chart.update();
});
