// Charts over time with what happened on the same axis: uPlot draws the lines, elements over them the gaps,
// and below them the marks. They are for the eye: each page has the same marks and gaps as a table too.
import { clock, count, duration, h, keyed, setAttribute, setText } from "./dom.js";

/** The letter and the lane of each kind of mark tell kinds apart; the colour only repeats it. */
const KINDS = {
  fault: ["F", "faults"], broker: ["B", "brokers"], zookeeper: ["Z", "brokers"],
  controller: ["C", "controller"], election: ["E", "elections"], isr: ["I", "ISR"],
};
const LANES = ["faults", "brokers", "controller", "elections", "ISR"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const AXIS_PX = 58;
const BUCKET_PX = 18;
const LABEL_PX = 70;
const LINES_SHOWN = 12;

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => (value >= 10_000 ? `${count(value / 1000)}k` : value.toLocaleString("en"));

/**
 * A chart in an element with `data-series`: names of series, separated by commas, all of them without a name.
 * `data-window`: how many seconds of the past it shows, the whole time without it; `data-height`.
 * update() takes {series, marks, gaps, now_ms}.
 */
export function timeline(element) {
  const height = Number(element.dataset.height ?? 150);
  const chosen = element.dataset.series.split(",").filter(Boolean).map(decodeURIComponent);
  let names = [];
  let latest = {};
  let chart = null;
  const overlay = h("div", { class: "overlay" });
  const lanes = h("div", { class: "lanes" });
  const plot = h("div", { class: "plot" });
  element.classList.add("timeline");
  element.setAttribute("aria-hidden", "true");
  element.append(plot, lanes);

  function draw() {
    chart?.destroy();
    const axis = { stroke: styleOf("--quiet"), ticks: { show: false }, font: "11px system-ui" };
    axis.grid = { stroke: styleOf("--grid"), width: 1 };
    const lines = names.map((name, place) => ({
      label: name.replace(/^lag:.*/, "lag").replaceAll("_", " "), stroke: styleOf(`--line-${place % 4 + 1}`),
      dash: DASHES[place % 4], width: 1.5, points: { show: false }, spanGaps: false,
    }));
    chart = new uPlot({
      width: Math.max(200, plot.clientWidth), height, ms: 1, legend: { live: false },
      cursor: { drag: { x: !("window" in element.dataset), y: false }, y: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.1] } },
      axes: [{ ...axis, values: (_, times) => times.map(clock), space: 70, size: 22 },
        { ...axis, values: (_, values) => values.map(short), size: AXIS_PX, space: 28 }],
      series: [{}, ...lines], hooks: { draw: [place] },
    }, [[], ...names.map(() => [])], plot);
    chart.over.append(overlay);
  }

  function place() {
    const { min, max } = chart.scales.x;
    if (min == null) return;
    const x = (time_ms) => chart.valToPos(Math.min(max, Math.max(min, time_ms)), "x");
    const found = buckets(min, max, x);
    const gaps = (latest.gaps ?? []).filter((gap) => (gap.end_ms ?? max) >= min && gap.start_ms <= max)
      .map((gap) => [gap.id, gap]);
    const width = chart.over.clientWidth;
    const lasts = (gap) => (gap.end_ms ?? max) - gap.start_ms;
    const isFlipped = (gap) => x(gap.start_ms) > width - LABEL_PX;
    const labelX = (gap) => (isFlipped(gap) ? x(gap.start_ms) - LABEL_PX : x(gap.end_ms ?? max));
    // Of labels that would overlap the longest gap keeps its own; all are in the title, and in the table.
    const labelled = [];
    for (const [, gap] of [...gaps].sort(([, one], [, other]) => lasts(other) - lasts(one))) {
      if (labelled.every((each) => Math.abs(labelX(each) - labelX(gap)) >= LABEL_PX)) labelled.push(gap);
    }
    keyed(overlay, gaps, () => h("div", { class: "gap" }, h("span")), (bar, gap) => {
      const left = x(gap.start_ms);
      bar.style.left = `${left}px`;
      bar.style.width = `${Math.max(3, x(gap.end_ms ?? max) - left)}px`;
      bar.classList.toggle("flip", isFlipped(gap));
      setAttribute(bar, "title", gap.text);
      const label = `${duration(lasts(gap))}${gap.end_ms ? "" : " …"}`;
      setText(bar.firstChild, labelled.includes(gap) ? label : "");
    });
    keyed(lanes, LANES.map((lane) => [lane, found.filter(([, bucket]) => bucket.lane === lane)]),
      (lane) => h("div", { class: "lane" },
        h("span", { class: "lane-name" }, lane), h("div", { class: "marks" })),
      (lane, own) => keyed(lane.lastChild, own, () => h("span"), drawMark));
  }

  /** Marks of one lane that would lie on each other are one element with a count. */
  function buckets(min, max, x) {
    const found = new Map();
    const bucket_ms = ((max - min) * BUCKET_PX) / Math.max(1, chart.over.clientWidth);
    for (const mark of latest.marks ?? []) {
      if (mark.time_ms < min || mark.time_ms > max) continue;
      const [letter, lane] = KINDS[mark.kind];
      const key = `${lane} ${Math.floor(mark.time_ms / bucket_ms)}`;
      if (!found.has(key)) found.set(key, { x: x(mark.time_ms), letter, lane, kind: mark.kind, marks: [] });
      found.get(key).marks.push(mark);
    }
    return [...found];
  }

  function drawMark(element, { x, letter, kind, marks }) {
    element.style.left = `${x}px`;
    setAttribute(element, "class", `mark ${kind}`);
    setText(element, letter + (marks.length > 1 ? `×${marks.length}` : ""));
    const lines = marks.slice(-LINES_SHOWN).map((mark) => `${clock(mark.time_ms)} ${mark.text}`);
    if (marks.length > LINES_SHOWN) lines.push(`and ${marks.length - LINES_SHOWN} more`);
    setAttribute(element, "title", lines.join("\n"));
  }

  function update(changed = {}) {
    latest = { ...latest, ...changed };
    const width = plot.clientWidth;
    if (!width) return;
    const { series = {}, marks = [], gaps = [] } = latest;
    const shown = (chosen.length ? chosen : Object.keys(series)).filter((name) => series[name]);
    if (!chart || shown.join() !== names.join()) {
      names = shown;
      draw();
    }
    if (chart.width !== width) chart.setSize({ width, height });
    const tables = names.map((name) => series[name].points);
    const window_ms = Number(element.dataset.window ?? 0) * 1000;
    const times = [...tables.flat().map(([time_ms]) => time_ms), ...marks.map((mark) => mark.time_ms),
      ...gaps.map((gap) => gap.start_ms)];
    const max = latest.now_ms ?? times.reduce((one, other) => Math.max(one, other), 0);
    const min = window_ms ? max - window_ms : times.reduce((one, other) => Math.min(one, other), max - 1000);
    const columns = tables.map((points) => points.filter(([time_ms]) => time_ms >= min - 2000))
      .map((points) => [points.map(([time_ms]) => time_ms), points.map(([, value]) => value)]);
    chart.batch(() => {
      chart.setData(columns.length ? uPlot.join(columns) : [[]], false);
      chart.setScale("x", { min, max });
    });
  }

  new ResizeObserver(() => update()).observe(plot);
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => {
    if (chart) draw();
    update();
  });
  return { update };
}

/** All charts of the page. */
export const timelines = () => [...document.querySelectorAll("[data-series]")].map(timeline);
