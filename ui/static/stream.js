// The state of the cluster as the server sends it: once whole, then what has changed, twice a second.
import { h, setText } from "./dom.js";

const BY_KEY = ["brokers", "partitions", "groups", "transactions"];
const BY_ID = { marks: 500, gaps: 500, log: 500 };
const MAX_POINTS = 1300;

/**
 * Take a change into the state: entries by their keys, marks by their ids, points at the end of their series.
 * Keys are names that users choose: a group may be called `constructor`.
 */
export function merge(state, change) {
  for (const [name, value] of Object.entries(change)) {
    if (BY_KEY.includes(name)) Object.assign((state[name] ??= Object.create(null)), value);
    else if (name in BY_ID) state[name] = mergedById(state[name] ?? [], value).slice(-BY_ID[name]);
    else if (name === "series") mergeSeries((state.series ??= Object.create(null)), value);
    else if (name === "gone") {
      for (const [kind, keys] of Object.entries(value)) for (const key of keys) delete state[kind]?.[key];
    } else state[name] = value;
  }
}

function mergedById(entries, changed) {
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  for (const entry of changed) byId.set(entry.id, entry);
  return [...byId.values()];
}

function mergeSeries(series, changed) {
  for (const [name, { unit, points }] of Object.entries(changed)) {
    const kept = series[name]?.points ?? [];
    series[name] = { unit, points: kept.concat(points).slice(-MAX_POINTS) };
  }
}

/** Another server has another token; this one refuses a page only if too many are open. */
async function refusal() {
  const answer = await fetch("./", { method: "HEAD" }).catch(() => null);
  return answer?.ok ? "too many pages are open: close some, then reload" : "the page was started again: open its new URL";
}

/**
 * Call listener(state, change) with each message; `change` is the whole state for the first one, and after
 * the page was hidden: a hidden page draws nothing. `also`: parts that only some pages need ("groups", "log").
 */
export function connect(also, listener) {
  const source = new EventSource(also.length ? `stream?with=${also.join(",")}` : "stream");
  const place = document.getElementById("connection") ?? document.body.appendChild(h("p", { id: "connection" }));
  let state = null;
  const say = (word, isLive) => {
    setText(place, word);
    place.classList.toggle("bad", !isLive);
    document.body.classList.toggle("stale", !isLive);
  };
  const tell = (change) => document.hidden || listener(state, change);
  source.addEventListener("state", (event) => {
    state = {};
    merge(state, JSON.parse(event.data));
    say("live", true);
    tell(state);
  });
  source.addEventListener("change", (event) => {
    if (!state) return;
    const change = JSON.parse(event.data);
    merge(state, change);
    tell(change);
  });
  source.addEventListener("error", async () => {
    say("connection lost, trying again", false);
    // The server has answered with a refusal, after which a browser does not try again.
    if (source.readyState === EventSource.CLOSED) say(await refusal(), false);
  });
  document.addEventListener("visibilitychange", () => state && tell(state));
  addEventListener("pagehide", () => source.close());
}
