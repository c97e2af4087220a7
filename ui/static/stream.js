// The state of the cluster as the server sends it: once whole, then what has changed, twice a second.
import { setText } from "./dom.js";

const BY_KEY = ["brokers", "partitions", "groups", "transactions"];
const BY_ID = { marks: 500, gaps: 500, log: 500 };
const MAX_POINTS = 1300;
const SILENT_MS = 4000;

/**
 * Take a change into the state: entries by their keys or ids, points at the end of their series.
 * Keys are names that users choose: a group may be called `constructor`.
 */
export function merge(state, change) {
  for (const [name, value] of Object.entries(change)) {
    if (BY_KEY.includes(name)) Object.assign((state[name] ??= Object.create(null)), value);
    else if (name in BY_ID) {
      const byId = new Map([...(state[name] ?? []), ...value].map((entry) => [entry.id, entry]));
      state[name] = [...byId.values()].slice(-BY_ID[name]);
    } else if (name === "series") mergeSeries((state.series ??= Object.create(null)), value);
    else if (name === "gone") {
      for (const [kind, keys] of Object.entries(value)) for (const key of keys) delete state[kind]?.[key];
    } else state[name] = value;
  }
}

function mergeSeries(series, changed) {
  for (const [name, { unit, points }] of Object.entries(changed)) {
    const kept = series[name]?.points ?? [];
    series[name] = { unit, points: kept.concat(points).slice(-MAX_POINTS) };
  }
}

const listeners = [];
let state = null;

/** A hidden page draws nothing; what it has missed it draws as a whole once it is seen again. */
const tell = (change) => document.hidden || listeners.forEach((listener) => listener(state, change));

function say(word, isLive) {
  const place = document.getElementById("connection");
  setText(place, word);
  place.classList.toggle("bad", !isLive);
  document.body.classList.toggle("stale", !isLive);
}

let silence = null;

function sayLive() {
  say("live", true);
  clearTimeout(silence);
  silence = setTimeout(say, SILENT_MS, "no news from the server of this page", false);
}

/** Another server has another token; this one refuses a page only if too many are open. */
async function refusal() {
  const answer = await fetch("./", { method: "HEAD" }).catch(() => null);
  return answer?.ok ? "too many pages are open: close some, then reload"
    : "the page was started again: open its new URL";
}

function connect() {
  const parts = document.body.dataset.with;
  const source = new EventSource(parts ? `stream?with=${encodeURIComponent(parts)}` : "stream");
  source.addEventListener("state", (event) => {
    state = {};
    merge(state, JSON.parse(event.data));
    sayLive();
    tell(state);
  });
  source.addEventListener("change", (event) => {
    if (!state) return;
    const change = JSON.parse(event.data);
    merge(state, change);
    sayLive();
    tell(change);
  });
  source.addEventListener("error", async () => {
    clearTimeout(silence);
    say("connection lost, trying again", false);
    // The server has answered with a refusal, after which a browser does not try again.
    if (source.readyState === EventSource.CLOSED) say(await refusal(), false);
  });
  document.addEventListener("visibilitychange", () => state && tell(state));
  addEventListener("pagehide", () => source.close());
}

/** Call listener(state, change) with each message; `change` is the whole state for the first one. */
export function listen(listener) {
  if (!listeners.length) connect();
  listeners.push(listener);
  if (state) listener(state, state);
}
