// The charts of a report (ui/report.py): throughput and latency, with the marks and gaps of the run.
import { count } from "./dom.js";
import { timeline } from "./charts.js";

const recording = JSON.parse(document.getElementById("recording").textContent);
const { series, marks, gaps, started_ms, seconds } = recording;

for (const place of document.querySelectorAll("[data-series]")) {
  const names = place.dataset.series.split(",");
  timeline(place, { series, marks, gaps, now_ms: started_ms + seconds * 1000 }, {
    names, title: place.dataset.title, lanes: place.hasAttribute("data-lanes"), height: 180,
    format: (value) => count(value),
  }).update();
}
