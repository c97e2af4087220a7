// Of every page: parts that the server renders anew after a change, and forms that do not leave the page.
//
// An element with `data-live` and an id is such a part. The value names the entries of the state on which it
// depends: after a change of one the page is fetched again, and what differs in the element is taken over.
import { setAttribute, setText } from "./dom.js";
import { listen } from "./stream.js";

/** How many times as long as a fetch took the next one waits: a page of many topics is drawn less often. */
const REST = 3;
const LONGEST_REST_MS = 2000;
const regions = [...document.querySelectorAll("[data-live]")];
let last = Promise.resolve();
let isBusy = false;
let isStale = false;

/** Change `old` to be as `fresh`; elements that are in both stay, and so does the focus. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) return old.replaceWith(fresh);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) setAttribute(old, name, value);
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((child, place) => (before[place] ? morph(before[place], child) : old.append(child)));
  for (const child of before.slice(after.length)) child.remove();
}

async function load() {
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const region of regions) {
    const fresh = page.getElementById(region.id);
    if (fresh) morph(region, fresh);
  }
}

/** Fetch the page again, after the fetch that is under way. The stream says so if there is no server. */
export const refresh = () => (last = last.then(load).catch(() => {}));

async function refreshSoon() {
  isStale = true;
  if (isBusy) return;
  isBusy = true;
  while (isStale) {
    isStale = false;
    const began_ms = performance.now();
    await refresh();
    const rest_ms = Math.min(LONGEST_REST_MS, (performance.now() - began_ms) * REST);
    await new Promise((rested) => setTimeout(rested, rest_ms));
  }
  isBusy = false;
}

/** Send a form; the answer, a sentence, is shown in the page. */
async function send(form, button) {
  const place = document.getElementById("outcome");
  const body = new URLSearchParams(new FormData(form, button));
  button.disabled = true;
  try {
    const headers = { accept: "application/json" };
    const answer = await fetch(form.action, { method: "POST", body, headers });
    const text = (await answer.text()).trim();
    const outcome = answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : { error: text };
    setText(place, outcome.error ?? outcome.outcome);
    place.classList.toggle("bad", !answer.ok);
  } catch (error) {
    setText(place, `No answer from the server of this page: ${error.message}`);
    place.classList.add("bad");
  }
  button.disabled = false;
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
if (regions.length) {
  const entries = regions.flatMap((region) => region.dataset.live.split(" "));
  listen((_, change) => {
    if (entries.some((name) => name in change || name in (change.gone ?? {}))) refreshSoon();
  });
}
