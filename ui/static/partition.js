// One partition: its picture, and the explanation of the chosen replica.
import { count, h, keyed, setText } from "./dom.js";
import { connect } from "./stream.js";
import { drawPartition, explain } from "./picture.js";

const at = (id) => document.getElementById(id);
const { name } = at("picture").dataset;
let selected = null;
let latest = null;

function draw() {
  const partition = latest?.partitions[name];
  at("absent").hidden = Boolean(partition);
  if (!partition) return;
  const { leader, leader_epoch: epoch, isr, min_isr: least, records_per_s: rate, moving } = partition;
  const facts = {
    leader: leader == null || leader < 0 ? "none" : `broker ${leader}`, epoch, ISR: isr.join(", ") || "empty", "min.insync.replicas": least ?? "–", "records/s": count(rate),
    ...(moving ? { "moves to": moving.target.join(", ") } : {}),
  };
  keyed(at("facts"), Object.entries(facts), (title) => h("div", {}, h("dt", {}, title), h("dd")), (tile, value) => setText(tile.lastChild, value ?? "–"));
  drawPartition(at("picture"), name, partition, { selected, onReplica: select });
  if (selected == null) return;
  setText(at("explained"), `Broker ${selected}`);
  keyed(at("explanation"), explain(name, partition, selected).map((sentence, place) => [place, sentence]), () => h("li"), (item, sentence) => setText(item, sentence));
}

function select(id) {
  selected = id;
  draw();
  setText(at("spoken"), explain(name, latest.partitions[name], id).join(" "));
}

connect([], (state, change) => {
  latest = state;
  if (!change.partitions || change.partitions[name] || change.gone) draw();
});
new ResizeObserver(draw).observe(at("picture"));
