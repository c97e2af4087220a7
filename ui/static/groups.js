// The groups as they are now: the table of all of them, or one with its members, its partitions and its lag over time.
import { count, h, keyed, row, setText } from "./dom.js";
import { connect } from "./stream.js";
import { timeline } from "./charts.js";

const COLUMNS = [["group", "Group"], ["state", "State"], ["protocol", "Protocol"], ["members", "Members"], ["lag", "Lag"]];
const PARTITION = [["name", "Partition"], ["committed", "Committed"], ["end", "End"], ["lag", "Lag"], ["client", "Client"]];
const MEMBER = [["client", "Client id"], ["host", "Host"], ["assignment", "Assignment"], ["id", "Member id"]];
const table = document.getElementById("groups");
const one = document.getElementById("group");

function partitionLink(name) {
  const [, topic, partition] = name.match(/^(.*)-(\d+)$/);
  return h("a", { href: `partition?${new URLSearchParams({ topic, partition })}` }, name);
}

function fillTable({ groups, groups_note: note }) {
  const body = table.tBodies[0];
  setText(document.getElementById("groups-note"), note ?? "");
  const shown = Object.entries(groups).filter(([id]) => id.includes(table.dataset.filter)).sort(([a], [b]) => (a < b ? -1 : 1));
  keyed(body, shown, (id) => {
    const made = row(COLUMNS);
    made.named.group.append(h("a", { href: `group?${new URLSearchParams({ id })}` }, id));
    return made;
  }, ({ named }, group) => {
    setText(named.state, group.state);
    setText(named.protocol, group.protocol || "–");
    setText(named.members, group.members.length);
    setText(named.lag, count(group.lag));
    named.lag.title = group.lag_text;
  });
}

/** The line of a group that the server keeps none for begins with this page. */
const own = { unit: "records", points: [] };
const chart = one && timeline(document.getElementById("chart"), {}, { lanes: false, height: 120, title: "Lag of the group" });

function fillGroup({ groups, series, marks, gaps, time_ms: now_ms }) {
  const [group, members, partitions] = [groups[one.dataset.id], document.getElementById("members"), document.getElementById("partitions")];
  if (group?.lag != null) own.points = [...own.points, [now_ms, group.lag]].slice(-600);
  chart.update({ series: { lag: series?.[`lag:${one.dataset.id}`] ?? own }, marks, gaps, now_ms });
  if (!group) return;
  for (const [field, text] of [["state", group.state], ["members", group.members.length], ["lag", group.lag_text.slice(4)]]) setText(one.querySelector(`[data-field=${field}]`), text);
  keyed(members, group.members.map((member) => [member.id, member]), () => row(MEMBER), ({ named }, member) => {
    for (const [name, text] of [["client", member.client_id], ["host", member.host], ["assignment", member.assignment.join(" ") || "–"], ["id", member.instance_id ?? member.id]]) setText(named[name], text);
  });
  keyed(partitions, Object.entries(group.partitions), (name) => {
    const made = row(PARTITION);
    made.named.name.append(partitionLink(name));
    return made;
  }, ({ named }, { committed, end, lag, client_id: client }) => {
    for (const [name, text] of [["committed", count(committed)], ["end", count(end)], ["lag", count(lag)], ["client", client ?? "–"]]) setText(named[name], text);
  });
}

connect(["groups"], (state) => state.groups && (one ? fillGroup(state) : table && fillTable(state)));
