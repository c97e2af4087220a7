// One partition: its picture, the lag of its replicas over time, and the explanation of the chosen replica.
import { setText } from "./dom.js";
import { timelines } from "./charts.js";
import { refresh } from "./page.js";
import { drawPartition } from "./picture.js";
import { listen, merge } from "./stream.js";

const picture = document.getElementById("picture");
const { name } = picture.dataset;
const here = new URL(location);
const lags = { series: {} };
const charts = timelines();
let partition = null;

function draw() {
  const selected = Number(here.searchParams.get("replica"));
  // A deleted topic has no picture.
  picture.hidden = !partition;
  if (partition) drawPartition(picture, partition, { selected, onReplica: select });
}

async function select(id) {
  here.searchParams.set("replica", id);
  history.replaceState(null, "", here);
  draw();
  await refresh();
  setText(document.getElementById("spoken"), document.getElementById("explanation").textContent);
}

listen(({ partitions, marks, gaps, time_ms: now_ms }, change) => {
  const isNew = partition !== partitions[name];
  partition = partitions[name];
  if (isNew || change.partitions?.[name]) draw();
  const end = partition?.replicas[partition.leader]?.log_end_offset;
  for (const [id, { log_end_offset: own }] of Object.entries(partition?.replicas ?? {})) {
    const behind = end == null || own == null ? null : Math.max(0, end - own);
    merge(lags, { series: { [`broker ${id}`]: { unit: "records", points: [[now_ms, behind]] } } });
  }
  for (const chart of charts) chart.update({ series: lags.series, marks, gaps, now_ms });
});
new ResizeObserver(draw).observe(picture);
