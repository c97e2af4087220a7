// Replays a recorded history step by step: the picture of the partition with its records, what changed, what
// is lost. It fills each element of class "replay" from the <script type="application/json"> inside, or from
// a file that the reader chooses. The documentation has it as a classic script, which runs from a file too.
import { h, setText } from "./dom.js";
import { drawPartition } from "./picture.js";

const PLAY_MS = 2500;

function startReplay(root, recording) {
  const runs = recording.before ? [["With the old mistake", recording.before.frames]] : [];
  runs.push([runs.length ? "With today's rules" : "", recording.frames]);
  let frames = runs[0][1];
  let at = 0;
  let timer = null;
  const picture = h("div");
  const standing = h("p", { class: "state" });
  const words = h("div", { class: "words", "aria-live": "polite" });
  const explained = h("ol", { class: "explained", "aria-live": "polite" });
  const slide = () => go(Number(slider.value));
  const slider = h("input", { type: "range", min: 0, "aria-label": "Step", input: slide });
  const place = h("span", { class: "count" });
  const button = (text, click) => h("button", { type: "button", click }, text);
  const play = button("Play", () => (timer ? pause() : begin()));
  const back = button("Previous", () => turn(at - 1));
  const next = button("Next", () => turn(at + 1));
  const choices = runs.map(([label, own]) => button(label, () => {
    frames = own;
    turn(0);
  }));
  const items = (sentences) => sentences.map((sentence) => h("li", {}, sentence));

  function go(step) {
    at = Math.max(0, Math.min(frames.length - 1, step));
    const frame = frames[at];
    const { entries, acknowledged, lost, diverged, violation } = frame;
    drawPartition(picture, Object.values(frame.state.partitions)[0], {
      entries, acknowledged, lost: [...lost, ...diverged],
      onReplica: (id) => explained.replaceChildren(...items(frames[at].explained[id])),
    });
    explained.replaceChildren();
    setText(standing, frame.standing);
    words.replaceChildren(h("h2", {}, frame.step), h("p", {}, frame.explains),
      h("ul", {}, items(frame.changes)),
      violation ? h("p", { class: "violation" }, `A promise is broken: ${violation}.`) : "");
    slider.max = frames.length - 1;
    slider.value = at;
    setText(place, `${at + 1} of ${frames.length}`);
    back.disabled = at === 0;
    next.disabled = at === frames.length - 1;
    // A disabled button would keep the arrow keys from the player.
    if (document.activeElement?.disabled && player.contains(document.activeElement)) player.focus();
    choices.forEach((choice, index) => choice.setAttribute("aria-pressed", runs[index][1] === frames));
  }
  function turn(step) {
    pause();
    go(step);
  }
  function begin() {
    if (at === frames.length - 1) go(0);
    setText(play, "Pause");
    timer = setInterval(() => (at < frames.length - 1 ? go(at + 1) : pause()), PLAY_MS);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    setText(play, "Play");
  }
  function onKey(event) {
    const step = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
    if (step === undefined || event.target === slider) return;
    event.preventDefault();
    turn(step);
  }
  const role = { keydown: onKey, class: "player", tabindex: 0, role: "group", "aria-label": recording.title };
  const player = h("div", role, runs.length > 1 ? h("p", { class: "runs" }, choices) : null,
    h("p", { class: "steps" }, back, play, next, slider, place), picture, standing, words, explained);
  root.replaceChildren(player);
  go(0);
}

for (const root of document.querySelectorAll(".replay")) {
  const data = root.querySelector("script[type='application/json']");
  if (data) startReplay(root, JSON.parse(data.textContent));
}
document.querySelector("input.recording")?.addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  const root = document.querySelector(".replay");
  try {
    startReplay(root, JSON.parse(await file.text()));
  } catch (error) {
    const words = `${file.name} is no recording (${error.message}); ` +
      "expected is a JSON file of tests.simulation.replays.";
    root.replaceChildren(h("p", { class: "violation", role: "alert" }, words));
  }
});
