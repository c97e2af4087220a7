// The live tail of the messages page: rows come as HTML that the server has escaped, the newest first.

const MAX_ROWS = 500;
const button = document.getElementById("tail");
const rows = document.getElementById("rows");
const text = document.getElementById("tail-text");
let source = null;

function stop(words) {
  source?.close();
  source = null;
  button.textContent = "Follow";
  button.setAttribute("aria-pressed", "false");
  text.textContent = words;
}

function insert(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  if (rows.dataset.direction === "newest-first") {
    rows.prepend(template.content);
    while (rows.childElementCount > MAX_ROWS) rows.lastElementChild.remove();
  } else {
    rows.append(...[...template.content.children].reverse());
    while (rows.childElementCount > MAX_ROWS) rows.firstElementChild.remove();
  }
}

function follow() {
  source = new EventSource(button.dataset.tail);
  button.textContent = "Stop following";
  button.setAttribute("aria-pressed", "true");
  text.textContent = "Following.";
  source.onmessage = (event) => {
    const { html, text: words } = JSON.parse(event.data);
    if (html) insert(html);
    text.textContent = words || "Following.";
    if (event.lastEventId) {
      const url = new URL(button.dataset.tail, document.baseURI);
      url.searchParams.set("from", event.lastEventId);
      button.dataset.tail = url.href;
    }
  };
  source.addEventListener("end", (event) => stop(JSON.parse(event.data).text));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) stop("The live tail was refused or has ended.");
    else text.textContent = "Connecting again.";
  };
}

if (button) {
  button.hidden = false;
  button.addEventListener("click", () => (source ? stop("") : follow()));
}
