// Of every page: parts that the server renders anew after a change, and forms that do not leave the page.
//
// An element with `data-live` and an id is such a part. The value names the entries of the state on which it
// depends, as `brokers` or `partitions/t-0`: after a change of one the page is fetched again, and the element
// takes over what differs.
import { keyed, setAttribute, setText } from "./dom.js";
import { listen } from "./stream.js";

/** How many times as long as a fetch took the next one waits: a page of many topics is drawn less often. */
const REST = 3;
const LONGEST_REST_MS = 2000;
const regions = [...document.querySelectorAll("[data-live]")];
let last = Promise.resolve();
let next = null;
let rest_ms = 0;
let isWaiting = false;

/** Rows by their heading or, without one, by their whole text; of equal ones each has its number. */
function named(rows) {
  const seen = new Map();
  return [...rows].map((row) => {
    const name = (row.querySelector("th")?.firstChild ?? row).textContent;
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return [`${name} ${seen.get(name)}`, row];
  });
}

/** Change `old` to be as `fresh`; elements that are in both stay, and so does the focus. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) return old.replaceWith(fresh);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) setAttribute(old, name, value);
  if (old.nodeName === "TBODY") {
    old.elementsByKey ??= new Map(named(old.rows));
    return keyed(old, named(fresh.rows), (_, row) => row, morph);
  }
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((child, place) => (before[place] ? morph(before[place], child) : old.append(child)));
  for (const child of before.slice(after.length)) child.remove();
}

async function load() {
  next = null;
  const began_ms = performance.now();
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const region of regions) {
    const fresh = page.getElementById(region.id);
    if (fresh) morph(region, fresh);
  }
  rest_ms = Math.min(LONGEST_REST_MS, (performance.now() - began_ms) * REST);
}

/**
 * Fetch the page again, after the fetch that is under way; calls that come meanwhile share one.
 * The stream says so if there is no server.
 */
export const refresh = () => (next ??= last = last.then(load).catch(() => {}));

async function refreshSoon() {
  if (isWaiting) return;
  isWaiting = true;
  await last;
  await new Promise((rested) => setTimeout(rested, rest_ms));
  isWaiting = false;
  refresh();
}

const sending = new Set();

/** Send a form; the answer, a sentence, is shown in the page. The same change is not sent twice at once. */
async function send(form, button) {
  const place = document.getElementById("outcome");
  const body = new URLSearchParams(new FormData(form, button));
  const change = `${form.action} ${body}`;
  if (sending.has(change)) return;
  sending.add(change);
  const say = (text, isBad) => {
    setText(place, text);
    place.classList.toggle("bad", isBad);
  };
  say(`${button.ariaLabel ?? button.textContent} …`, false);
  try {
    const headers = { accept: "application/json" };
    const answer = await fetch(form.action, { method: "POST", body, headers });
    const text = (await answer.text()).trim();
    const outcome = answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : { error: text };
    say(outcome.error ?? outcome.outcome, !answer.ok);
  } catch (error) {
    say(`No answer from the server of this page: ${error.message}`, true);
  }
  sending.delete(change);
  await refresh();
}

const here = new URL(location);
if (here.searchParams.has("outcome")) {
  // It is shown once, not again after a reload.
  here.searchParams.delete("outcome");
  history.replaceState(null, "", here);
}
addEventListener("submit", (event) => {
  if (!event.target.hasAttribute("data-stay")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});
addEventListener("input", ({ target: { form } }) => {
  if (!form?.hasAttribute("data-filter")) return;
  history.replaceState(null, "", `?${new URLSearchParams(new FormData(form))}`);
  refresh();
});
/** Whether a change has the entry: `brokers`, or one of them alone, `brokers/1`. */
export function isIn(change, entry) {
  const [kind, key] = entry.split("/");
  const [changed, gone] = [change[kind], change.gone?.[kind]];
  return Boolean(key ? changed && key in changed || gone?.includes(key) : changed !== undefined || gone);
}

if (regions.length) {
  const entries = new Set(regions.flatMap((region) => region.dataset.live.split(" ")));
  listen((state, change) => {
    // What is not in a whole state may have gone.
    if (change === state || [...entries].some((entry) => isIn(change, entry))) refreshSoon();
  });
}
