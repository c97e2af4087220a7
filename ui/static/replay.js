// Replays a recorded history step by step: the picture of the partition with its records, what changed, what is lost.
// It fills each element of class "replay" from the <script type="application/json"> inside, or from a file that the
// reader chooses. The documentation has it as a classic script, which runs from a file too.
import { h } from "./dom.js";
import { drawPartition, explain } from "./picture.js";

const PLAY_MS = 2500;

/** The role that each process believes to have, which may differ from ZooKeeper's. */
function beliefs(frame, partition) {
  return Object.entries(partition.replicas).map(([id, replica]) => {
    const { state } = frame.state.brokers[id];
    if (state === "gone") return `Broker ${id} is dead`;
    const role = { leader: `leads in epoch ${replica.leader_epoch}`, follower: `follows in epoch ${replica.leader_epoch}` }[replica.role];
    return `Broker ${id} ${role ?? "has no role"}${state === "paused" ? ", paused" : ""}`;
  });
}

function drawRecorded(picture, beside, frame) {
  const [name, partition] = Object.entries(frame.state.partitions)[0];
  drawPartition(picture, name, partition, {
    entries: frame.entries,
    acknowledged: frame.acknowledged,
    lost: [...frame.lost, ...frame.diverged],
    onReplica: (id) => beside.replaceChildren(h("ol", {}, explain(name, partition, id).map((text) => h("li", {}, text)))),
  });
  const leader = partition.leader === null ? "nobody" : `broker ${partition.leader}`;
  return `In ZooKeeper: leader ${leader}, epoch ${partition.leader_epoch}, ISR ${partition.isr.join(", ") || "empty"}. ${beliefs(frame, partition).join(". ")}.${frame.visible ? ` A consumer with read_committed sees offset ${frame.visible.join(", ") || "none"}.` : ""}`;
}

function startReplay(root, recording) {
  const runs = recording.before ? [["With the old mistake", recording.before.frames], ["With today's rules", recording.frames]]
    : [["", recording.frames]];
  let run = 0;
  let at = 0;
  let timer = null;
  const picture = h("div", {});
  const state = h("p", { class: "state" });
  const words = h("div", { class: "words", "aria-live": "polite" });
  const beside = h("div", { class: "beside", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Step", input: () => go(Number(slider.value)) });
  const place = h("span", { class: "count" });
  const play = h("button", { type: "button", click: () => (timer ? pause() : begin()) }, "Play");
  const back = h("button", { type: "button", click: () => turn(at - 1) }, "Previous");
  const next = h("button", { type: "button", click: () => turn(at + 1) }, "Next");
  const choices = runs.map(([label], index) => h("button", { type: "button", click: () => { run = index; turn(0); } }, label));

  function go(step) {
    const frames = runs[run][1];
    at = Math.max(0, Math.min(frames.length - 1, step));
    const frame = frames[at];
    beside.replaceChildren();
    state.textContent = drawRecorded(picture, beside, frame);
    words.replaceChildren(h("h3", {}, frame.step), h("p", {}, frame.explains),
      h("ul", {}, frame.changes.map((change) => h("li", {}, change))),
      frame.violation ? h("p", { class: "violation" }, `A promise is broken: ${frame.violation}.`) : "");
    slider.max = `${frames.length - 1}`;
    slider.value = `${at}`;
    place.textContent = `${at + 1} of ${frames.length}`;
    back.disabled = at === 0;
    next.disabled = at === frames.length - 1;
    // A disabled button would keep the arrow keys from the player.
    if (document.activeElement?.disabled && player.contains(document.activeElement)) player.focus();
    choices.forEach((choice, index) => choice.setAttribute("aria-pressed", `${index === run}`));
  }
  function turn(step) {
    pause();
    go(step);
  }
  function begin() {
    if (at === runs[run][1].length - 1) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => (at < runs[run][1].length - 1 ? go(at + 1) : pause()), PLAY_MS);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function onKey(event) {
    const step = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
    if (step === undefined || event.target === slider) return;
    event.preventDefault();
    turn(step);
  }
  const player = h("div", { class: "player", tabindex: "0", role: "group", "aria-label": recording.title, keydown: onKey },
    runs.length > 1 ? h("p", { class: "runs" }, choices) : null,
    h("p", { class: "steps" }, back, play, next, slider, place), picture, state, words, beside);
  root.replaceChildren(player);
  go(0);
}

for (const root of document.querySelectorAll(".replay")) {
  const data = root.querySelector("script[type='application/json']");
  if (data) startReplay(root, JSON.parse(data.textContent));
}
document.querySelector("input.recording")?.addEventListener("change", async (event) => {
  const root = document.querySelector(".replay");
  const [file] = event.target.files;
  try {
    startReplay(root, JSON.parse(await file.text()));
  } catch (error) {
    root.replaceChildren(h("p", { class: "violation", role: "alert" },
      `${file.name} is no recording (${error.message}); expected is a JSON file of tests.simulation.replays.`));
  }
});
