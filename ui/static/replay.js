// Replays a recorded history step by step: the logs of all replicas, what changed, what is lost.
// A classic script without imports, so that it runs from a file too. It fills each element of class "replay":
// with the recording in <script type="application/json"> inside, or with files that the reader chooses.
(() => {
  "use strict";
  const NONE = "–";
  const NUMBERS = [["high_watermark", "HW", "High watermark"], ["log_end_offset", "LEO", "Log end offset"],
    ["remote_log_end_offset", "remote LEO", "Log end offset as the leader knows it"],
    ["log_start_offset", "start", "Log start offset"]];

  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  // A row of the picture: one replica's log, one cell for each offset.
  function drawReplica(frame, partition, id, offsets) {
    const replica = partition.replicas[id];
    const broker = frame.state.brokers[id] || { state: "running" };
    const entries = new Map(frame.entries[id].map((entry) => [entry[0], entry]));
    const inSync = partition.isr.includes(Number(id));
    const cells = offsets.map((offset) => {
      const entry = entries.get(offset);
      if (!entry) return h("td", { class: "empty" });
      const marks = [`epoch-${entry[2] % 6}`];
      if (frame.diverged.includes(offset)) marks.push("diverged");
      if (replica.high_watermark !== null && offset < replica.high_watermark) marks.push("committed");
      const visible = frame.visible && frame.visible.includes(offset) && typeof entry[1] === "number";
      const title = `offset ${offset}, written in leader epoch ${entry[2]}`;
      return h("td", { class: marks.join(" "), title }, h("b", {}, `${entry[1]}`), h("small", {}, `epoch ${entry[2]}`),
        visible ? h("small", { class: "visible" }, "visible") : null);
    });
    const words = [broker.state === "gone" ? "dead" : broker.state, inSync ? "in the ISR" : "not in the ISR"];
    if (replica.role === "leader") words.push(`leads in epoch ${replica.leader_epoch}`);
    if (replica.role === "follower") words.push(`follows in epoch ${replica.leader_epoch}`);
    if (broker.is_controller) words.push("controller");
    const marks = [replica.role, broker.state, inSync ? "in-sync" : "out-of-sync"].join(" ");
    return h("tr", { class: marks },
      h("th", { scope: "row" }, `Broker ${id}`, words.map((word) => h("small", {}, word))),
      cells,
      NUMBERS.map(([name]) => h("td", { class: "number" }, replica[name] === null ? NONE : `${replica[name]}`)));
  }

  function drawFrame(frame, offsets) {
    const [name, partition] = Object.entries(frame.state.partitions)[0];
    const ids = Object.keys(partition.replicas);
    const note = (offset) => frame.lost.includes(offset) ? h("small", { class: "lost" }, "lost")
      : frame.acknowledged.includes(offset) ? h("small", { class: "acknowledged" }, "acknowledged") : null;
    const leader = partition.leader === null ? "nobody" : `broker ${partition.leader}`;
    return [
      h("p", { class: "state" }, `Partition ${name} in ZooKeeper: leader ${leader}, epoch ${partition.leader_epoch}, ` +
        `ISR ${partition.isr.join(", ") || NONE}`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Logs of all replicas" }, h("table", { class: "logs" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Offset"),
          offsets.map((offset) => h("th", { scope: "col" }, `${offset}`, note(offset))),
          NUMBERS.map(([, short, long]) => h("th", { scope: "col", title: long }, short)))),
        h("tbody", {}, ids.map((id) => drawReplica(frame, partition, id, offsets))))),
    ];
  }

  // All offsets of a run, so that the columns stay while the reader steps.
  function offsetsOf(frames) {
    const offsets = new Set();
    for (const frame of frames) {
      for (const entries of Object.values(frame.entries)) for (const [offset] of entries) offsets.add(offset);
    }
    return [...offsets].sort((a, b) => a - b);
  }

  function start(root, recording) {
    const runs = recording.before ? [["Before", recording.before.frames], ["Today", recording.frames]]
      : [["", recording.frames]];
    let run = 0, at = 0, timer = null;
    const picture = h("div", { class: "picture" });
    const words = h("div", { class: "words", "aria-live": "polite" });
    const slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Step", oninput: () => go(Number(slider.value)) });
    const count = h("span", { class: "count" });
    const play = h("button", { type: "button", onclick: () => (timer ? pause() : begin()) }, "Play");
    const back = h("button", { type: "button", onclick: () => { pause(); go(at - 1); } }, "Previous");
    const next = h("button", { type: "button", onclick: () => { pause(); go(at + 1); } }, "Next");
    const choices = runs.map(([label], index) => h("button", { type: "button", onclick: () => { pause(); run = index; go(0); } },
      label === "Before" ? "With the old mistake" : "With today's rules"));

    function go(step) {
      const frames = runs[run][1];
      at = Math.max(0, Math.min(frames.length - 1, step));
      const frame = frames[at];
      picture.replaceChildren(...drawFrame(frame, offsetsOf(frames)));
      words.replaceChildren(h("h3", {}, frame.step), h("p", {}, frame.explains),
        h("ul", {}, frame.changes.map((change) => h("li", {}, change))),
        frame.violation ? h("p", { class: "violation", role: "status" }, `A promise is broken: ${frame.violation}.`) : "");
      slider.max = `${frames.length - 1}`;
      slider.value = `${at}`;
      count.textContent = `${at + 1} of ${frames.length}`;
      back.disabled = at === 0;
      next.disabled = at === frames.length - 1;
      choices.forEach((choice, index) => choice.setAttribute("aria-pressed", `${index === run}`));
    }
    function begin() {
      if (at === runs[run][1].length - 1) go(0);
      play.textContent = "Pause";
      timer = setInterval(() => (at < runs[run][1].length - 1 ? go(at + 1) : pause()), 2500);
    }
    function pause() {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    }
    const player = h("div", { class: "player", tabindex: "0", role: "group", "aria-label": recording.title,
      onkeydown: (event) => {
        const step = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity }[event.key];
        if (step === undefined || event.target === slider) return;
        event.preventDefault();
        pause();
        go(step);
      } },
      runs.length > 1 ? h("p", { class: "runs" }, choices) : null,
      h("p", { class: "steps" }, back, play, next, slider, count), picture, words);
    root.replaceChildren(player);
    go(0);
  }

  for (const root of document.querySelectorAll(".replay")) {
    const data = root.querySelector("script[type='application/json']");
    if (data) start(root, JSON.parse(data.textContent));
  }
  // The live page: a file that the reader chooses.
  const chosen = document.querySelector("input.recording");
  if (chosen) chosen.addEventListener("change", async () => {
    const root = document.querySelector(".replay");
    const file = chosen.files[0];
    try {
      start(root, JSON.parse(await file.text()));
    } catch (error) {
      root.replaceChildren(h("p", { class: "violation", role: "alert" },
        `${file.name} is no recording: ${error.message}. Expected is a file of "make replays".`));
    }
  });
})();
