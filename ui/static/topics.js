// All topics: partitions as a strip of squares that tell the leader and whether its ISR is whole.
import { bytes, count, h, keyed, row, setAttribute, setText } from "./dom.js";
import { connect } from "./stream.js";

const COLUMNS = [["topic", "Topic"], ["strip", "Partitions, by leader"], ["size", "Size"], ["rate", "Records/s"], ["links", "See"]];

/** A square: its class, its text, and the same in words. */
function looks(name, { leader, isr, replicas, is_under_min_isr: isUnder }) {
  const missing = Object.keys(replicas).filter((id) => !isr.includes(Number(id)));
  if (leader == null || leader < 0) return ["offline", "!", `${name} has no leader`];
  const words = `${name}: leader ${leader}, in sync ${isr.join(" ")}`;
  if (isUnder) return ["under-min", `${leader}`, `${words}, below min.insync.replicas`];
  return missing.length ? ["under", `${leader}`, `${words}, not in sync ${missing.join(" ")}`] : ["whole", `${leader}`, words];
}

function fillTopic({ named }, { topic, partitions }, changed) {
  setText(named.topic, topic);
  let size_bytes = null;
  let rate = 0;
  for (const [, partition] of partitions) {
    rate += partition.records_per_s ?? 0;
    for (const replica of Object.values(partition.replicas)) if (replica.size_bytes != null) size_bytes += replica.size_bytes;
  }
  setText(named.size, bytes(size_bytes));
  setText(named.rate, count(rate));
  keyed(named.strip, partitions, (_, { partition }) => h("a", { href: `partition?${new URLSearchParams({ topic, partition })}` }),
    (square, partition, name) => {
      const [kind, text, words] = looks(name, partition);
      setText(square, text);
      setAttribute(square, "class", `square ${kind}`);
      setAttribute(square, "title", words);
      setAttribute(square, "aria-label", words);
    }, changed);
}

function makeTopic(topic) {
  const made = row(COLUMNS);
  for (const page of ["messages", "settings"]) made.named.links.append(h("a", { href: `${page}?${new URLSearchParams({ topic })}`, "aria-label": `${page} of ${topic}` }, page), " ");
  return made;
}

connect([], (state, change) => {
  if (!change.partitions && !change.gone?.partitions) return;
  const changed = new Set(Object.keys(change.partitions ?? {}));
  const topics = new Map();
  for (const [name, partition] of Object.entries(state.partitions)) {
    const { topic, is_internal: isInternal } = partition;
    if (!topics.has(topic)) topics.set(topic, { topic, isInternal, isChanged: false, partitions: [] });
    topics.get(topic).partitions.push([name, partition]);
    if (changed.has(name)) topics.get(topic).isChanged = true;
  }
  for (const { partitions } of topics.values()) partitions.sort((one, other) => one[1].partition - other[1].partition);
  const sorted = [...topics].sort(([one], [other]) => one.localeCompare(other));
  for (const [id, isInternal] of [["topics", false], ["internal", true]]) {
    const own = sorted.filter(([, topic]) => topic.isInternal === isInternal);
    keyed(document.getElementById(id), own, makeTopic, (made, topic) => (topic.isChanged || change.gone) && fillTopic(made, topic, changed));
    setText(document.getElementById(`${id}-count`), own.length);
  }
});
