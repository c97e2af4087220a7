// The charts of a report (ui/report.py): throughput and latency, with the marks and gaps of the run.
import { timelines } from "./charts.js";

const recording = JSON.parse(document.getElementById("recording").textContent);
const { series, marks, gaps, started_ms, seconds } = recording;
for (const chart of timelines()) chart.update({ series, marks, gaps, now_ms: started_ms + seconds * 1000 });
