// The picture of a partition: a bar per replica, all on one axis of offsets, with how far each one's log
// goes, what is committed, and what the leader knows of it.
import { bytes, count, h, keyed, setAttribute, setText, svg } from "./dom.js";

const TOP = 16;
const BAR = 26;
const LEAST_SPAN = 12;
const CHARACTER_PX = 7;
const EPOCH_HUES = [210, 145, 35, 290, 0, 180];

/** The least 1, 2 or 5 times a power of ten not below `value`, so that the window changes in steps. */
function stepAbove(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

/** The offsets that the picture shows: the tail, wide enough for the lag of all replicas not far off. */
function windowOf({ replicas, isr }, entries) {
  if (entries) return [0, Math.max(8, ...Object.values(entries).flat().map(([offset]) => offset + 2))];
  const known = Object.entries(replicas).filter(([, replica]) => replica.log_end_offset != null);
  const end = Math.max(0, ...known.map(([, replica]) => replica.log_end_offset));
  const lowest = (some) => Math.min(end, ...some.flatMap(([, it]) =>
    [it.high_watermark, it.last_stable_offset, it.log_end_offset, it.remote_log_end_offset])
    .filter((offset) => offset != null));
  const inSync = known.filter(([id]) => isr.includes(Number(id)));
  const most = Math.max(200, stepAbove((end - lowest(inSync)) * 8));
  const span = Math.min(most, Math.max(LEAST_SPAN, stepAbove((end - lowest(known)) * 1.6)));
  const from = Math.max(0, end - span);
  return [from, from + span + Math.ceil(span / 12)];
}

/**
 * Draw `partition` (of the state) into `element`, or change what an earlier call drew there. Options:
 * `onReplica(id)` is called on a click or Enter; `entries` draws the records themselves, small logs only:
 * {"1": [[offset, value, leader_epoch], …]}, with `acknowledged` and `lost`, lists of offsets.
 */
export function drawPartition(element, partition, options) {
  const { selected, onReplica, entries, acknowledged = [], lost = [] } = options;
  const [from, to] = windowOf(partition, entries);
  const width = element.clientWidth || 600;
  const x = (offset) => ((Math.min(to, Math.max(from, offset)) - from) / (to - from)) * width;
  const scale = { from, to, width, x };
  element.classList.add("picture");
  element.classList.toggle("has-cells", Boolean(entries));
  // A change of the scale is a jump: moved slowly, old and new marks would stand at two scales.
  element.classList.toggle("jump", element.dataset.scale !== `${to - from} ${width}`);
  element.dataset.scale = `${to - from} ${width}`;
  const parts = Object.keys(partition.replicas).map((id) => [Number(id), id]);
  const make = (id) => (id === "axis" ? makeAxis() : makeReplica(id, onReplica));
  keyed(element, [...parts, ["axis", null]], make, (part, _, id) => {
    if (id === "axis") return drawAxis(part, scale);
    setAttribute(part, "aria-pressed", selected === id);
    setAttribute(part, "class", `replica ${standingOf(partition, id)[1]}`);
    drawHead(part.head, partition, id);
    drawBar(part.bar, scale, partition, id);
    drawCells(part.bar.cells, scale, entries?.[id] ?? [], { acknowledged, lost });
  });
}

const makeAxis = () => svg("svg", { class: "axis", height: 22, "aria-hidden": "true" });
const moveTo = (element, x) => { element.style.transform = `translateX(${x}px)`; };

function makeReplica(id, onReplica) {
  const heads = ["tag", "epoch", "size", "note"].map((name) => [name, h("span", { class: name })]);
  const head = Object.fromEntries(heads);
  const rect = (kind, more = {}) => svg("rect", { class: kind, y: TOP, height: BAR, ...more });
  const bar = {
    stable: rect("stable"), open: rect("open"), uncommitted: rect("uncommitted"), cells: svg("g"),
    goal: svg("line", { class: "goal", y1: TOP / 2, y2: TOP + BAR + 6 }),
    past: svg("text", { x: 4, y: TOP + 17, class: "past" }), edges: svg("g"), remote: svg("g"),
  };
  const root = svg("svg", { class: "bar", height: 64, "aria-hidden": "true" },
    rect("track", { width: "100%", rx: 3 }), Object.values(bar));
  const element = h("button", { type: "button", click: () => onReplica?.(id) },
    h("span", { class: "head" }, h("strong", {}, `Broker ${id}`), Object.values(head)), root);
  return Object.assign(element, { head, bar });
}

/** The role of a replica in words, and as a class of the style. */
function standingOf({ leader, isr, replicas }, id) {
  if (replicas[id].is_offline) return ["offline", "offline"];
  if (id === leader) return ["leader", "leader"];
  return isr.includes(id) ? ["in sync", "in-sync"] : ["out of the ISR", "out"];
}

function drawHead(head, partition, id) {
  const { leader_epoch: epoch, size_bytes, failure, log_end_offset: own } = partition.replicas[id];
  const end = partition.replicas[partition.leader]?.log_end_offset;
  const lag = end == null || own == null ? 0 : end - own;
  setText(head.tag, standingOf(partition, id)[0]);
  setText(head.epoch, epoch == null ? "" : `epoch ${epoch}`);
  setText(head.size, size_bytes == null ? "" : bytes(size_bytes));
  const difference = lag > 0 ? `${count(lag)} behind` : lag < 0 ? `${count(-lag)} that the leader lacks` : "";
  setText(head.note, failure ?? difference);
}

/** A label is [key, offset, text]; names that share an offset share a label. */
function edgesOf(replica) {
  const { log_start_offset: start, high_watermark: high, log_end_offset: end } = replica;
  const stable = replica.last_stable_offset === high ? null : replica.last_stable_offset;
  if (end == null) return [];
  if (start === end) return [["LEO", end, `empty, next offset ${count(end)}`]];
  // Without an open transaction the LSO is the HW.
  const edges = [["start", start], ["LSO", stable], ["HW", high], ["LEO", end]];
  const byOffset = Map.groupBy(edges.filter(([, offset]) => offset != null), ([, offset]) => offset);
  return [...byOffset].map(([offset, names]) => {
    const words = names.map(([name]) => name);
    return [words.join(" "), offset, `${words.join(" = ")} ${count(offset)}`];
  });
}

/** On the leader's bar: the offsets that the followers last asked for. */
function remoteEdges({ leader, replicas }, isWide) {
  const asked = Object.entries(replicas).filter(([id, replica]) =>
    Number(id) !== leader && replica.remote_log_end_offset != null);
  return [...Map.groupBy(asked, ([, replica]) => replica.remote_log_end_offset)].map(([offset, those]) => {
    const ids = those.map(([id]) => id).join(", ");
    const words = isWide ? `broker ${ids} asked for` : `${ids}:`;
    return [`remote ${ids}`, offset, `▾ ${words} ${count(offset)}`];
  });
}

function drawBar(bar, scale, partition, id) {
  const { from, x, width } = scale;
  const replica = partition.replicas[id];
  const { log_start_offset: start, high_watermark: high, log_end_offset: end } = replica;
  const stable = replica.last_stable_offset ?? high ?? end;
  const spans = { stable: [start ?? 0, stable], open: [stable, high], uncommitted: [high ?? end, end] };
  for (const [kind, [low, top]] of Object.entries(spans)) {
    const left = Math.max(x(start ?? 0), x(low ?? 0));
    moveTo(bar[kind], left);
    bar[kind].style.width = `${end == null || top == null ? 0 : Math.max(0, x(top) - left)}px`;
  }
  const goal = id === partition.leader ? null : partition.replicas[partition.leader]?.high_watermark;
  moveTo(bar.goal, x(goal ?? 0));
  bar.goal.style.opacity = goal == null ? 0 : 1;
  setText(bar.past, end == null ? "not known" : end < from ? `◂ ends at ${count(end)}` : "");
  placeEdges(bar.edges, scale, edgesOf(replica), [60, TOP, TOP + BAR + 4]);
  const remote = id === partition.leader ? remoteEdges(partition, width >= 600) : [];
  placeEdges(bar.remote, scale, remote, [11, 12, 20]);
}

/** Lines at offsets. Their labels do not overlap: each ends where the next begins, the first is not cut. */
function placeEdges(layer, { from, x, width }, edges, [y, y1, y2]) {
  let right = width;
  const shown = edges.filter(([, offset]) => offset >= from).sort((one, other) => other[1] - one[1]);
  const placed = shown.map(([key, offset, text]) => {
    const wide = text.length * CHARACTER_PX + 10;
    right = Math.min(right - wide, x(offset) - wide / 2);
    return [key, { offset, text, wide, left: right }];
  });
  let end = 0;
  for (const [, edge] of placed.reverse()) {
    edge.left = Math.max(end, edge.left);
    end = edge.left + edge.wide;
  }
  const make = (key) => svg("g", { class: `edge ${key}` }, svg("line", { y1, y2 }), svg("text", { y }));
  keyed(layer, placed, make, (edge, { offset, text, left }) => {
    moveTo(edge.firstChild, x(offset));
    moveTo(edge.lastChild, left);
    setText(edge.lastChild, text);
  });
}

function drawCells(layer, { from, x }, entries, { acknowledged, lost }) {
  const wide = x(from + 1) - 2;
  const make = (_, [, value]) => svg("g", {}, svg("rect", { y: TOP, height: BAR, rx: 3 }),
    svg("text", { y: TOP + 17, "text-anchor": "middle" }, String(value)), svg("title"));
  const standings = Object.entries({ acknowledged, lost });
  keyed(layer, entries.map((entry) => [entry.join(" "), entry]), make, (cell, [offset, value, epoch]) => {
    const words = standings.filter(([, offsets]) => offsets.includes(offset)).map(([word]) => word);
    moveTo(cell, x(offset) + 1);
    cell.style.setProperty("--hue", EPOCH_HUES[epoch % EPOCH_HUES.length]);
    cell.firstChild.style.width = `${wide}px`;
    setAttribute(cell.children[1], "x", wide / 2);
    setAttribute(cell, "class", ["cell", ...words].join(" "));
    setText(cell.lastChild, [`offset ${offset}: ${value}, of epoch ${epoch}`, ...words].join(", "));
  });
}

function drawAxis(axis, { from, to, x, width }) {
  const step = Math.max(1, stepAbove(((to - from) / width) * 90));
  const ticks = [];
  for (let offset = Math.ceil(from / step) * step; offset <= to; offset += step) ticks.push([offset, offset]);
  keyed(axis, ticks, (offset) => svg("g", {}, svg("line", { y2: 5 }), svg("text", { y: 17 }, count(offset))),
    (tick, offset) => {
      const anchor = x(offset) < 20 ? "start" : x(offset) > width - 20 ? "end" : "middle";
      moveTo(tick, x(offset));
      setAttribute(tick.lastChild, "text-anchor", anchor);
    });
}
