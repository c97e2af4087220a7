// The event log: lines of the brokers' logs and marks, newest first, filtered by broker, level and text.
import { h, keyed } from "./dom.js";
import { connect } from "./stream.js";

const field = (id) => document.getElementById(id);
const hasFiles = field("source").options.length > 1;
let known = null;

function filteredEvents() {
  const marks = (known.marks ?? []).filter((mark) => !hasFiles || mark.kind === "fault")
    .map((mark) => ({ ...mark, id: `mark ${mark.id}`, source: mark.broker ? `broker-${mark.broker}` : "cluster", level: mark.kind }));
  const byId = new Map([...(known.log ?? []), ...marks].map((entry) => [entry.id, entry]));
  const [source, level, text] = ["source", "level", "text"].map((id) => field(id).value.toLowerCase());
  return [...byId.values()]
    .filter((entry) => (!source || entry.source === source) && (!level || entry.level !== "INFO" && entry.level !== "DEBUG")
      && entry.text.toLowerCase().includes(text))
    .sort((one, other) => other.time_ms - one.time_ms);
}

function exactTime(time_ms) {
  const at = new Date(time_ms);
  return `${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

function drawEvents() {
  if (!known) return;
  const shown = filteredEvents();
  field("none").hidden = shown.length > 0;
  keyed(field("events"), shown.map((entry) => [entry.id, entry]), (_, entry) => h("tr", {},
    h("td", { class: "mono" }, exactTime(entry.time_ms)), h("td", {}, entry.source),
    h("td", { class: /WARN|ERR|CRIT|fault/.test(entry.level) ? "bad" : null }, entry.level), h("td", { class: "mono" }, entry.text)), () => {});
}

connect(["log"], (state, change) => {
  known = state;
  if (change.log || change.marks) drawEvents();
});
for (const id of ["source", "level", "text"]) field(id).addEventListener("input", drawEvents);
