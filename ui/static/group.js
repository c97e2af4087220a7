// The lag of a group over time.
import { timelines } from "./charts.js";
import { listen, merge } from "./stream.js";

const { id } = document.getElementById("group").dataset;
const [chart] = timelines();
/** The line of a group that the server keeps none for begins with this page. */
const own = {};

listen(({ groups, series, marks, gaps, time_ms: now_ms }) => {
  const lag = groups?.[id]?.lag;
  if (lag != null) merge(own, { series: { [`lag:${id}`]: { unit: "records", points: [[now_ms, lag]] } } });
  chart.update({ series: { ...own.series, ...series }, marks, gaps, now_ms });
});
