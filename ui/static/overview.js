// The overview: problems, brokers, rates, and the timeline.
import { bytes, count, h, keyed, post, row, setAttribute, setText } from "./dom.js";
import { connect } from "./stream.js";
import { timeline } from "./charts.js";
import { brokerActions, fitActions } from "./faults.js";

const COLUMNS = [["broker", "Broker"], ["state", "State"], ["leaders", "Leaders"], ["replicas", "Replicas"], ["size", "Size"],
  ["disk", "Disk free"], ["cpu", "CPU"], ["actions", "Faults"]];
const RATES = { records_in: "records in", records_out: "records out", acknowledged: "acknowledged", bytes_in: "bytes in" };

const at = (id) => document.getElementById(id);
const canBreak = document.body.dataset.faults === "yes";
const columns = canBreak ? COLUMNS : COLUMNS.slice(0, -1);
const chart = timeline(at("timeline"), {}, {
  names: Object.keys(RATES).slice(0, 3), window_ms: 60_000, title: "Records a second", format: (value) => (value >= 10_000 ? `${value / 1000}k` : `${value}`),
});

function makeBroker(id) {
  const made = row(columns, { "data-broker": id });
  made.named.actions?.append(...brokerActions(Number(id)));
  return made;
}

function fillBroker({ named, classList }, broker) {
  setText(named.broker, `${broker.id}${broker.is_controller ? " · controller" : ""}`);
  setAttribute(named.broker, "title", [broker.endpoint, broker.rack && `rack ${broker.rack}`, broker.pid && `pid ${broker.pid}`].filter(Boolean).join(", "));
  setText(named.state, broker.state);
  setAttribute(named.state, "title", broker.error ?? "");
  for (const state of ["running", "paused", "gone", "silent"]) classList.toggle(state, broker.state === state);
  if (named.actions) fitActions(named.actions, broker.state);
  setText(named.leaders, count(broker.leaders));
  setText(named.replicas, count(broker.replicas));
  setText(named.size, bytes(broker.size_bytes));
  setText(named.disk, broker.disk_free_bytes == null ? "–" : bytes(broker.disk_free_bytes));
  setAttribute(named.disk, "title", broker.disk_total_bytes == null ? "" : `of ${bytes(broker.disk_total_bytes)}`);
  setText(named.cpu, broker.cpu_percent == null ? "–" : `${Math.round(broker.cpu_percent)} %`);
}

function fillRates(series) {
  keyed(at("rates"), Object.entries(RATES).filter(([name]) => series[name]).map(([name, title]) => [name, title]),
    (_, title) => h("div", {}, h("dt", {}, title), h("dd")), (tile, _, name) => {
      const { unit, points } = series[name];
      const value = points.at(-1)?.[1];
      setText(tile.lastChild, `${(unit.startsWith("byte") || unit === "B/s" ? bytes : count)(value)}/s`);
    });
}

/** Commands in a sentence are between backticks. */
const withCode = (sentence) => sentence.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));

connect([], (state, change) => {
  if (change.problems) {
    keyed(at("problems"), (change.problems.length ? change.problems : [""]).map((sentence) => [sentence, sentence]),
      (sentence) => h("li", { class: sentence ? "problem" : "fine" }, sentence ? withCode(sentence) : "No problem: every partition has a leader, and every replica is in sync."), () => {});
  }
  if (change.brokers || change.gone) keyed(at("brokers"), Object.entries(state.brokers), makeBroker, fillBroker, change.brokers && new Set(Object.keys(change.brokers)));
  if ("zookeeper" in change) {
    const { zookeeper } = state;
    setText(at("zookeeper"), zookeeper ? `ZooKeeper ${zookeeper.endpoint}: ${zookeeper.state}` : "");
    at("zookeeper").classList.toggle("bad", Boolean(zookeeper) && zookeeper.state !== "running");
  }
  if ("is_pulsing" in change && at("pulse")) setText(at("pulse").firstElementChild, change.is_pulsing ? "Stop the pulse" : "Write a pulse");
  if (change.series) fillRates(state.series);
  chart.update({ series: state.series, marks: state.marks, gaps: state.gaps, now_ms: state.time_ms });
});

at("window").addEventListener("change", (event) => chart.setWindow(Number(event.target.value) * 1000));
at("pulse")?.addEventListener("submit", (event) => {
  event.preventDefault();
  post("pulse");
});
