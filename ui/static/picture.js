// The picture of a partition: a bar per replica, all on one axis of offsets, that shows how far each one's log goes,
// what is committed, and what the leader knows of it.
import { bytes, count, duration, h, keyed, setAttribute, setText, svg } from "./dom.js";

const BAR = 26;
const LEAST_SPAN = 12;
const STEPS = [1, 2, 5, 10];
const EPOCH_HUES = [210, 145, 35, 290, 0, 180];

/** The least 1, 2 or 5 times a power of ten that is not below `value`, so that the window changes in steps. */
function stepAbove(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return power * STEPS.find((step) => step * power >= value);
}

/** The offsets that the picture shows: the tail, wide enough for the lag of all replicas that are not far off. */
function windowOf(partition, entries) {
  if (entries) {
    const offsets = Object.values(entries).flat().map(([offset]) => offset);
    return [0, Math.max(8, ...offsets.map((offset) => offset + 2))];
  }
  const known = Object.entries(partition.replicas).filter(([, replica]) => replica.log_end_offset != null);
  if (!known.length) return [0, LEAST_SPAN];
  const end = Math.max(...known.map(([, replica]) => replica.log_end_offset));
  const lowest = (some) => Math.min(end, ...some.flatMap(([, replica]) =>
    [replica.high_watermark, replica.last_stable_offset, replica.log_end_offset, replica.remote_log_end_offset])
    .filter((offset) => offset != null));
  const inSync = known.filter(([id]) => partition.isr.includes(Number(id)));
  const most = Math.max(200, stepAbove((end - lowest(inSync)) * 8));
  const span = Math.min(most, Math.max(LEAST_SPAN, stepAbove((end - lowest(known)) * 1.6)));
  const from = Math.max(0, end - span);
  return [from, from + span + Math.ceil(span / 12)];
}

/** The names of the marks of a bar, by offset: names that share an offset share a label. */
function edgesOf(replica) {
  const edges = new Map();
  for (const [name, offset] of [["start", replica.log_start_offset], ["LSO", replica.last_stable_offset],
    ["HW", replica.high_watermark], ["LEO", replica.log_end_offset]]) {
    if (offset != null) edges.set(offset, [...(edges.get(offset) ?? []), name]);
  }
  return edges;
}

/**
 * Draw `partition` (of the state) into `element`, or change what an earlier call drew there. Options:
 * `onReplica(id)` is called on a click or Enter; `entries` draws the records themselves, small logs only:
 * {"1": [[offset, value, leader_epoch], …]}, with `acknowledged` and `lost`, lists of offsets.
 */
export function drawPartition(element, name, partition, { onReplica, entries, acknowledged = [], lost = [], selected } = {}) {
  element.classList.add("picture");
  const [from, to] = windowOf(partition, entries);
  const width = element.clientWidth || 600;
  // A change of the scale is a jump: moved slowly, old and new marks would stand at two scales.
  element.classList.toggle("jump", element.dataset.scale !== `${to - from} ${width}`);
  element.dataset.scale = `${to - from} ${width}`;
  const scale = { from, to, width, x: (offset) => ((Math.min(to, Math.max(from, offset)) - from) / (to - from)) * width };
  const leader = partition.replicas[partition.leader];
  const ids = Object.keys(partition.replicas).map(Number).sort((one, other) => one - other);
  keyed(element, [...ids.map((id) => [id, partition.replicas[id]]), ["axis", null]],
    (id) => (id === "axis" ? svg("svg", { class: "axis", height: 22, "aria-hidden": "true" }) : replicaElement(id, onReplica)),
    (part, replica, id) => {
      if (id === "axis") return drawAxis(part, scale);
      setAttribute(part, "aria-pressed", selected === id);
      setAttribute(part, "class", `replica ${standingOf(partition, id)[1]}`);
      drawHead(part.head, partition, replica, id);
      drawBar(part.bar, scale, replica, { leader, others: id === partition.leader ? partition.replicas : {}, id });
      drawCells(part.bar.cells, scale, entries?.[id] ?? [], new Set(acknowledged), new Set(lost));
      part.bar.root.classList.toggle("has-cells", Boolean(entries));
    });
}

function replicaElement(id, onReplica) {
  const head = { who: h("strong", {}, `Broker ${id}`), standing: h("span", { class: "tag" }), epoch: h("span"), size: h("span"), note: h("span", { class: "note" }) };
  const layers = Object.fromEntries(["grid", "edges", "heard", "cells"].map((layer) => [layer, svg("g")]));
  const rects = Object.fromEntries(["stable", "open", "uncommitted"].map((kind) => [kind, svg("rect", { class: kind, y: 16, height: BAR })]));
  const past = svg("text", { x: 4, y: 33, class: "past" });
  const goal = svg("line", { class: "goal", y1: 8, y2: 16 + BAR + 6 });
  const root = svg("svg", { class: "bar", height: 64, "aria-hidden": "true" },
    svg("rect", { class: "track", y: 16, height: BAR, width: "100%", rx: 3 }), Object.values(rects), layers.grid, layers.cells, goal, past, layers.edges, layers.heard);
  const element = h("button", { type: "button", click: () => onReplica?.(id) }, h("span", { class: "head" }, Object.values(head)), root);
  element.head = head;
  element.bar = { root, rects, past, goal, ...layers };
  return element;
}

/** The standing of a replica, in words and as a class of the style. */
function standingOf(partition, id) {
  const replica = partition.replicas[id];
  if (replica.is_offline) return ["offline", "offline"];
  if (id === partition.leader) return ["leader", "leader"];
  return partition.isr.includes(id) ? ["in sync", "in-sync"] : ["out of the ISR", "out"];
}

function drawHead(head, partition, replica, id) {
  setText(head.standing, standingOf(partition, id)[0]);
  setText(head.epoch, replica.leader_epoch == null ? "" : `epoch ${replica.leader_epoch}`);
  setText(head.size, replica.size_bytes == null ? "" : bytes(replica.size_bytes));
  const end = partition.replicas[partition.leader]?.log_end_offset;
  const lag = end == null || replica.log_end_offset == null || id === partition.leader ? 0 : end - replica.log_end_offset;
  setText(head.note, replica.failure ?? (lag > 0 ? `${count(lag)} behind` : lag < 0 ? `${count(-lag)} that the leader lacks` : ""));
}

function drawBar(bar, scale, replica, { leader, others, id }) {
  const { from, x } = scale;
  const { log_start_offset: start, high_watermark: high, log_end_offset: end } = replica;
  const stable = replica.last_stable_offset ?? high;
  const first = x(start ?? 0);
  const spans = { stable: [start ?? 0, stable ?? high ?? end], open: [stable, high], uncommitted: [high ?? end, end] };
  for (const [kind, [low, top]] of Object.entries(spans)) {
    const isDrawn = low != null && top != null && end != null;
    bar.rects[kind].style.transform = `translateX(${isDrawn ? Math.max(first, x(low)) : 0}px)`;
    bar.rects[kind].style.width = `${isDrawn ? Math.max(0, x(top) - Math.max(first, x(low))) : 0}px`;
  }
  bar.goal.style.transform = `translateX(${x(leader?.high_watermark ?? 0)}px)`;
  bar.goal.style.opacity = leader?.high_watermark == null || leader === replica ? 0 : 1;
  setText(bar.past, end == null ? "not known" : end < from ? `◂ ends at ${count(end)}` : "");
  drawGrid(bar.grid, scale);
  const edges = end == null ? new Map() : edgesOf(replica);
  placeMarks(bar.edges, scale, [...edges].map(([offset, names]) => [names.join(" "), offset, `${names.join(" = ")} ${count(offset)}`]), 60, 16 + BAR);
  const heard = new Map();
  for (const [other, { remote_log_end_offset: offset }] of Object.entries(others)) {
    if (Number(other) !== id && offset != null) heard.set(offset, [...(heard.get(offset) ?? []), other]);
  }
  placeMarks(bar.heard, scale, [...heard].map(([offset, ids]) => [`heard ${ids.join(" ")}`, offset, (scale.width < 600 ? `▾ ${ids}: ${count(offset)}` : `▾ broker ${ids.join(", ")} asked for ${count(offset)}`)]), 11, 16);
}

/** Lines between single records, where a record is wide enough to be counted. */
function drawGrid(grid, { from, to, x }) {
  const each = x(from + 1);
  const offsets = each < 7 ? [] : Array.from({ length: to - from }, (_, place) => from + place);
  keyed(grid, offsets.map((offset) => [offset - from, offset]), () => svg("line", { y1: 16, y2: 16 + BAR }), (line, offset) => {
    line.style.transform = `translateX(${x(offset)}px)`;
  });
}

/** Lines at offsets with labels that do not lie on each other: each ends where the next begins, the first within the picture. */
function placeMarks(layer, { from, x, width }, marks, y, lineEnd) {
  let right = width;
  const placed = marks.filter(([, offset]) => offset >= from).sort((one, other) => other[1] - one[1]).map(([key, offset, text]) => {
    const wide = text.length * 6.6 + 10;
    right = Math.min(right - wide, x(offset) - wide / 2);
    return [key, { offset, text, wide, left: right }];
  });
  let end = 0;
  for (const [, mark] of placed.reverse()) {
    mark.left = Math.max(end, mark.left);
    end = mark.left + mark.wide;
  }
  keyed(layer, placed, (key) => svg("g", { class: `edge ${key.split(" ").at(-1)} ${key.split(" ")[0]}` },
    svg("line", { y1: lineEnd - (y > 20 ? BAR : 4), y2: lineEnd + 4 }), svg("text", { y })), (edge, { offset, text, left }) => {
    edge.firstChild.style.transform = `translateX(${x(offset)}px)`;
    edge.lastChild.style.transform = `translateX(${left}px)`;
    setText(edge.lastChild, text);
  });
}

function drawCells(layer, { x, from }, entries, acknowledged, lost) {
  const wide = x(from + 1) - 2;
  keyed(layer, entries.map((entry) => [`${entry[0]} ${entry[1]} ${entry[2]}`, entry]), (_, [, value]) =>
    svg("g", {}, svg("rect", { y: 16, height: BAR, rx: 3 }), svg("text", { y: 33, "text-anchor": "middle" }, String(value)), svg("title")),
  (cell, [offset, value, epoch]) => {
    cell.style.transform = `translateX(${x(offset) + 1}px)`;
    cell.firstChild.style.width = `${wide}px`;
    cell.style.setProperty("--hue", EPOCH_HUES[epoch % EPOCH_HUES.length]);
    setAttribute(cell.children[1], "x", wide / 2);
    const words = [acknowledged.has(offset) && "acknowledged", lost.has(offset) && "lost"].filter(Boolean);
    setAttribute(cell, "class", ["cell", ...words].join(" "));
    setText(cell.lastChild, [`offset ${offset}: ${value}, of epoch ${epoch}`, ...words].join(", "));
  });
}

function drawAxis(axis, { from, to, x, width }) {
  const step = Math.max(1, stepAbove(((to - from) / width) * 90));
  const first = Math.ceil(from / step) * step;
  const ticks = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, place) => first + place * step).filter((offset) => offset <= to);
  keyed(axis, ticks.map((offset) => [offset, offset]), (offset) => svg("g", {}, svg("line", { y2: 5 }), svg("text", { y: 17 }, count(offset))), (tick, offset) => {
    tick.style.transform = `translateX(${x(offset)}px)`;
    setAttribute(tick.lastChild, "text-anchor", x(offset) < 20 ? "start" : x(offset) > width - 20 ? "end" : "middle");
  });
}

/** The two rounds of fetch that raise the high watermark, in sentences of this moment's offsets. */
export function explain(name, partition, id) {
  const { leader: leaderId, isr, replicas } = partition;
  const replica = replicas[id];
  const leader = replicas[leaderId];
  if (!replica) return [`Broker ${id} has no replica of ${name} any more.`];
  if (replica.failure) return [`The replica of broker ${id} is offline: ${replica.failure}.`];
  if (replica.is_offline || replica.log_end_offset == null) {
    return [`Broker ${id} does not answer, or may not tell this user, so its offsets are not known. ${isr.includes(id) ? "It is still in the ISR: the controller has not taken it out yet." : "It is out of the ISR, so the high watermark does not wait for it."}`,
      "When it is back, it asks the leader where their histories agree, truncates what the leader lacks, and fetches from there."];
  }
  if (!leader || leader.log_end_offset == null) {
    return [`${name} has no leader that answers: no record can be written or read until a replica of the ISR (${isr.join(", ")}) is back.`];
  }
  return id === leaderId ? ofLeader(name, partition) : ofFollower(partition, id);
}

/** The end of each in-sync log as the leader knows it. */
function endsOf({ leader, isr, replicas }) {
  return isr.map((id) => [id, id === leader ? replicas[id].log_end_offset : replicas[id]?.remote_log_end_offset]).filter(([, end]) => end != null);
}

function ofLeader(name, partition) {
  const { leader: id, isr, replicas } = partition;
  const { log_end_offset: end, high_watermark: high, last_stable_offset: stable } = replicas[id];
  const ends = endsOf(partition);
  const least = Math.min(...ends.map(([, offset]) => offset));
  const slow = ends.filter(([other, offset]) => offset === least && other !== id).map(([other]) => other);
  const sentences = [`Broker ${id} leads ${name} in epoch ${partition.leader_epoch}. It has written up to ${count(end)}: that is the offset of the next record (LEO).`];
  const others = ends.filter(([other]) => other !== id);
  if (isr.length === 1) sentences.push("No other replica is in sync, so each record is committed as soon as the leader has it.");
  else if (others.length) {
    sentences.push(`It knows the other logs by what they last asked for: ${others.map(([other, offset]) => `broker ${other} for ${count(offset)}`).join(", ")}.`);
    sentences.push(`The high watermark is the least of these ends: ${count(high)}. ${least < end ? `It waits for broker ${slow.join(" and ")}.` : "Every replica of the ISR has every record."} Consumers read what is below it.`);
  }
  if (stable != null && high != null && stable < high) sentences.push(`A transaction is open from ${count(stable)} on (LSO): consumers with read_committed stop there, ${count(high - stable)} records short.`);
  if (partition.is_under_min_isr) sentences.push(`Only ${isr.length} of min.insync.replicas=${partition.min_isr} are in sync: writes with acks=all are refused.`);
  return sentences;
}

function ofFollower(partition, id) {
  const { leader: leaderId, isr, replicas } = partition;
  const leader = replicas[leaderId];
  const { log_end_offset: end, high_watermark: high, remote_log_end_offset: heard, caught_up_ms_ago: late_ms } = replicas[id];
  const sentences = [`Broker ${id} has written up to ${count(end)}. Its next fetch asks for ${count(end)}, and so tells broker ${leaderId}, the leader, that it has everything below.`];
  if (heard != null) sentences.push(heard === end ? `The leader knows: the last fetch asked for ${count(heard)} (remote LEO).` : `Until then the leader knows of ${count(heard)} (remote LEO).`);
  if (!isr.includes(id)) {
    sentences.push(`It is out of the ISR, so the high watermark does not wait for it. It comes back in when it has reached ${count(leader.high_watermark)}, and the start of epoch ${partition.leader_epoch}; ${count(Math.max(0, leader.log_end_offset - end))} records are missing${late_ms == null ? "" : `, and it was last caught up ${duration(late_ms)} ago`}.`);
    return sentences;
  }
  const ends = endsOf(partition).map(([other, offset]) => (other === id ? end : offset));
  if (leader.high_watermark != null && ends.length === isr.length) {
    const raised = Math.max(leader.high_watermark, Math.min(...ends));
    sentences.push(raised > leader.high_watermark ? `The leader then raises its high watermark from ${count(leader.high_watermark)} to ${count(raised)}.`
      : raised === leader.log_end_offset ? `The leader's high watermark is at the end of its log, ${count(raised)}: everything is committed.`
        : `The leader's high watermark stays at ${count(raised)}, the least end of the ISR.`);
    if (high != null) sentences.push(high < raised ? `Broker ${id} learns it in the answer after that: its own high watermark is ${count(high)} until then.` : `Broker ${id} has learnt it from an answer: its own high watermark is ${count(high)} too.`);
  }
  return sentences;
}
