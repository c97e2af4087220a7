// Charts over time with what happened on the same axis: uPlot draws the lines, elements over it the marks and gaps.
import { clock, duration, h, keyed, setAttribute, setText } from "./dom.js";

/** Each kind of mark: its letter, its lane. The letter and the lane tell kinds apart, colour only repeats it. */
const KINDS = {
  fault: ["F", "faults"], broker: ["B", "brokers"], zookeeper: ["Z", "brokers"], controller: ["C", "controller"],
  election: ["E", "elections"], isr: ["I", "ISR"],
};
const LANES = ["faults", "brokers", "controller", "elections", "ISR"];
const COLORS = ["--line-1", "--line-2", "--line-3", "--line-4"];
const BUCKET_PX = 18;
const LINES_SHOWN = 12;

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A chart in `element`, whose update() takes {series, marks, gaps, now_ms}. Options: `names` of the series to draw
 * (all), `window_ms` (the whole range when 0), `lanes` (marks in a lane per kind; else as lines), `height`, `format`
 * of values, `title` for readers of the screen.
 */
export function timeline(element, first = {}, options = {}) {
  const { names, lanes = true, height = 150, format = (value) => value.toLocaleString("en"), title = "" } = options;
  let window_ms = options.window_ms ?? 0;
  let latest = first;
  let chart = null;
  let drawn = "";
  const overlay = h("div", { class: "overlay" });
  const lanesElement = lanes ? h("div", { class: "lanes", role: "group", "aria-label": `Events. ${title}` }) : null;
  const told = lanes ? h("p", { class: "told", role: "status" }) : null;
  const plot = h("div", { class: "plot" });
  element.classList.add("timeline");
  element.append(plot, ...(lanes ? [lanesElement, told] : []));

  function make(shown) {
    chart?.destroy();
    const axis = { stroke: styleOf("--quiet"), grid: { stroke: styleOf("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    chart = new uPlot({
      width: Math.max(200, plot.clientWidth), height, ms: 1, legend: { live: false },
      cursor: { drag: { x: !window_ms, y: false }, y: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.1] } },
      axes: [{ ...axis, values: (_, times) => times.map(clock), space: 70, size: 22 },
        { ...axis, values: (_, values) => values.map(format), size: 58, space: 28 }],
      series: [{}, ...shown.map((name, place) => ({
        label: name.replaceAll("_", " "), stroke: styleOf(COLORS[place % 4]), width: 1.5, dash: [[], [6, 3], [2, 3], [8, 3, 2, 3]][place % 4],
        points: { show: false }, spanGaps: false,
      }))],
      hooks: { draw: [place] },
    }, [[], ...shown.map(() => [])], plot);
    chart.over.append(overlay);
    if (lanes) lanesElement.style.marginLeft = "58px";
  }

  /** Marks of one lane that would lie on each other are one element with a count. */
  function buckets(left_ms, right_ms) {
    const found = new Map();
    for (const mark of latest.marks ?? []) {
      if (mark.time_ms < left_ms || mark.time_ms > right_ms) continue;
      const x = chart.valToPos(mark.time_ms, "x");
      const lane = KINDS[mark.kind]?.[1] ?? "brokers";
      const key = `${lane} ${Math.floor(mark.time_ms / ((right_ms - left_ms) * BUCKET_PX / Math.max(1, chart.over.clientWidth)))}`;
      const bucket = found.get(key);
      if (bucket) bucket.marks.push(mark);
      else found.set(key, { x, lane, kind: mark.kind, marks: [mark] });
    }
    return found;
  }

  function place() {
    const { min, max } = chart.scales.x;
    if (min == null) return;
    const found = buckets(min, max);
    const gaps = (latest.gaps ?? []).filter((gap) => (gap.end_ms ?? max) >= min && gap.start_ms <= max);
    keyed(overlay, [
      ...gaps.map((gap) => [gap.id, gap]),
      ...[...found].filter(([, { kind }]) => !lanes || kind === "fault").map(([key, bucket]) => [`line ${key}`, bucket]),
    ], (_, value) => h("div", { class: value.marks ? `rule ${value.kind}` : "gap" }, h("span")), (line, value) => {
      const [left, right] = value.marks ? [value.x, value.x]
        : [value.start_ms, value.end_ms ?? max].map((time_ms) => chart.valToPos(Math.min(max, Math.max(min, time_ms)), "x"));
      line.style.left = `${left}px`;
      if (value.marks) return setAttribute(line, "title", textOf(value.marks));
      line.style.width = `${Math.max(3, right - left)}px`;
      line.classList.toggle("flip", left > chart.over.clientWidth - 70);
      setAttribute(line, "title", value.text);
      setText(line.firstChild, duration((value.end_ms ?? max) - value.start_ms) + (value.end_ms ? "" : " …"));
    });
    if (lanes) placeLanes(found);
  }

  function placeLanes(found) {
    keyed(lanesElement, LANES.map((lane) => [lane, [...found].filter(([, bucket]) => bucket.lane === lane)]),
      (lane) => h("div", { class: "lane" }, h("span", { class: "lane-name" }, lane), h("div", { class: "marks" })),
      (lane, own) => keyed(lane.lastChild, own, () => h("button", {
        type: "button", focus: tell, mouseenter: tell, keydown: walk, tabindex: "-1",
      }), (button, { x, kind, marks }) => {
        button.style.left = `${x}px`;
        setAttribute(button, "class", `mark ${kind}`);
        setText(button, KINDS[kind]?.[0] + (marks.length > 1 ? `×${marks.length}` : ""));
        setAttribute(button, "aria-label", textOf(marks));
      }));
    // One stop of the Tab key for all marks, the newest; the arrow keys go from mark to mark.
    const all = [...lanesElement.querySelectorAll("button")];
    const stop = all.find((button) => button === document.activeElement) ?? all.at(-1);
    for (const button of all) button.tabIndex = button === stop ? 0 : -1;
  }

  const tell = (event) => setText(told, event.currentTarget.getAttribute("aria-label"));

  function walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...lanesElement.querySelectorAll("button")].sort((one, other) => parseFloat(one.style.left) - parseFloat(other.style.left));
    all[all.indexOf(event.currentTarget) + step]?.focus();
  }

  function update(change = {}) {
    latest = { ...latest, ...change };
    const series = latest.series ?? {};
    const shown = (names ?? Object.keys(series)).filter((name) => series[name]);
    const times = shown.flatMap((name) => series[name].points);
    const width = plot.clientWidth;
    if (!width) return;
    if (!chart || drawn !== shown.join()) {
      make(shown);
      drawn = shown.join();
    }
    if (chart.width !== width) chart.setSize({ width, height });
    const events = window_ms ? [] : [...(latest.marks ?? []).map((mark) => mark.time_ms), ...(latest.gaps ?? []).map((gap) => gap.start_ms)];
    const all = times.map((point) => point[0]).concat(events);
    const max = latest.now_ms ?? all.reduce((one, other) => Math.max(one, other), 0);
    const min = window_ms ? max - window_ms : all.reduce((one, other) => Math.min(one, other), max - 1000);
    const tables = shown.map((name) => {
      const points = series[name].points.filter(([time_ms]) => time_ms >= min - 2000);
      return [points.map((point) => point[0]), points.map((point) => point[1])];
    });
    chart.batch(() => {
      chart.setData(tables.length ? uPlot.join(tables) : [[]], false);
      chart.setScale("x", { min, max });
    });
  }

  new ResizeObserver(() => update()).observe(plot);
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => { drawn = null; update(); });
  return { update, setWindow: (value_ms) => { window_ms = value_ms; update(); } };
}

function textOf(marks) {
  const lines = marks.slice(-LINES_SHOWN).map((mark) => `${clock(mark.time_ms)} ${mark.text}`);
  if (marks.length > LINES_SHOWN) lines.push(`and ${marks.length - LINES_SHOWN} more`);
  return lines.join("; ");
}
