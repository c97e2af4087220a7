// Elements of the live page, made and changed without rendering anew. Each module of this folder keeps to two
// rules, so that a page without a server can have it inline: an import is one line, and no two modules declare
// one name.

/** Make an element; an attribute that is a function is a listener, one that is null or false is left out. */
export function h(tag, attributes = {}, ...children) {
  return fitted(document.createElement(tag), attributes, children);
}

/** As h(), of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fitted(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fitted(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Make the children of `parent` one per entry, in order: make(key, value) for a new one, update(element, value, key)
 * for each. With `changed` (a set of keys) the elements of other keys are left as they are.
 */
export function keyed(parent, entries, make, update, changed = null) {
  if (!parent.elementsByKey) parent.replaceChildren();
  const elements = (parent.elementsByKey ??= new Map());
  const left = new Set(elements.keys());
  let place = parent.firstChild;
  for (const [key, value] of entries) {
    left.delete(key);
    let element = elements.get(key);
    const isNew = !element;
    if (isNew) elements.set(key, (element = make(key, value)));
    if (isNew || !changed || changed.has(key)) update(element, value, key);
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
  }
  for (const key of left) {
    elements.get(key).remove();
    elements.delete(key);
  }
}

/** A row of a table whose cells are set by name: row.named.name is the element. */
export function row(names, attributes = {}) {
  const cells = names.map(([name, title], place) =>
    place ? h("td", { "data-title": title, class: name }) : h("th", { scope: "row", class: name }));
  const element = h("tr", attributes, cells);
  element.named = Object.fromEntries(names.map(([name], place) => [name, cells[place]]));
  return element;
}

const NONE = "–";
export const count = (value) => (value == null ? NONE : Math.round(value).toLocaleString("en"));
export const clock = (time_ms) => new Date(time_ms).toLocaleTimeString("en-GB");

export function bytes(value) {
  if (value == null) return NONE;
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10));
  return (value / 1024 ** power).toFixed(power && value / 1024 ** power < 10 ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
}

export function duration(value_ms) {
  if (value_ms == null) return NONE;
  if (value_ms < 10_000) return `${count(value_ms)} ms`;
  return value_ms < 120_000 ? `${count(value_ms / 1000)} s` : `${count(value_ms / 60_000)} min`;
}

/** Ask the server for a change; its answer, a sentence, is shown in the page and returned. */
export async function post(path, values = {}) {
  const place = document.getElementById("outcome");
  try {
    const answer = await fetch(path, {
      method: "POST", body: new URLSearchParams(values), headers: { accept: "application/json" },
    });
    const text = (await answer.text()).trim();
    const outcome = answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : { error: text };
    setText(place, outcome.error ?? outcome.outcome ?? "");
    place.classList.toggle("bad", !answer.ok);
    return outcome;
  } catch (error) {
    setText(place, `No answer from the server of this page: ${error.message}`);
    place.classList.add("bad");
    return { error: error.message };
  }
}
