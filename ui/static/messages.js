// The live tail of the messages page: rows come as HTML that the server has escaped, the newest first.
import { setText } from "./dom.js";

const MAX_ROWS = 500;
const button = document.getElementById("tail");
const rows = document.getElementById("rows");
const text = document.getElementById("tail-text");
let source = null;

function show(words) {
  setText(text, words);
  setText(button, source ? "Stop following" : "Follow");
  button.setAttribute("aria-pressed", Boolean(source));
}

function stop(words) {
  source?.close();
  source = null;
  show(words);
}

function insert(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const isNewestFirst = rows.dataset.direction === "newest-first";
  if (isNewestFirst) rows.prepend(template.content);
  else rows.append(...[...template.content.children].reverse());
  const oldest = isNewestFirst ? "lastElementChild" : "firstElementChild";
  while (rows.childElementCount > MAX_ROWS) rows[oldest].remove();
}

function follow() {
  source = new EventSource(button.dataset.tail);
  show("Following.");
  source.onmessage = ({ data, lastEventId }) => {
    const { html, text: words } = JSON.parse(data);
    if (html) insert(html);
    show(words || "Following.");
    if (!lastEventId) return;
    const url = new URL(button.dataset.tail, document.baseURI);
    url.searchParams.set("from", lastEventId);
    button.dataset.tail = url.href;
  };
  source.addEventListener("end", ({ data }) => stop(JSON.parse(data).text));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) stop("The live tail was refused or has ended.");
    else show("Connecting again.");
  };
}

if (button) {
  button.hidden = false;
  button.addEventListener("click", () => (source ? stop("") : follow()));
}
