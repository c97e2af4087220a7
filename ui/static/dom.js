// Elements of the live page, made and changed without rendering anew. A page without a server has these
// modules inline, so they keep two rules: an import is one line, and no two modules declare one name.

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

/** Make the elements of `parent` one per entry: make(key, value) if new, then update(element, value, key). */
export function keyed(parent, entries, make, update) {
  if (!parent.elementsByKey) parent.replaceChildren();
  const elements = (parent.elementsByKey ??= new Map());
  const left = new Set(elements.keys());
  for (const [key] of entries) left.delete(key);
  // Before the others have their places: an element that is moved loses the focus.
  for (const key of left) {
    elements.get(key).remove();
    elements.delete(key);
  }
  let place = parent.firstElementChild;
  for (const [key, value] of entries) {
    let element = elements.get(key);
    if (!element) elements.set(key, (element = make(key, value)));
    update(element, value, key);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
}

const NONE = "–";
export const count = (value) => (value == null ? NONE : Math.round(value).toLocaleString("en"));
export const clock = (time_ms) => new Date(time_ms).toLocaleTimeString("en-GB");

export function bytes(value) {
  if (value == null) return NONE;
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  const shown = value / 1024 ** power;
  return `${shown.toFixed(power && shown < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function duration(value_ms) {
  if (value_ms == null) return NONE;
  if (value_ms < 10_000) return `${count(value_ms)} ms`;
  return value_ms < 120_000 ? `${count(value_ms / 1000)} s` : `${count(value_ms / 60_000)} min`;
}
