// The open transactions as they are now; their ages go on between the answers of the coordinators.
import { count, h, keyed, row, setText } from "./dom.js";
import { connect } from "./stream.js";

const COLUMNS = [["id", "Transactional id"], ["state", "State"], ["age", "Age"], ["producer", "Producer"], ["held", "Holds back"], ["actions", "End it"]];
const body = document.getElementById("transactions");

/** The two largest units, as the server writes an age. */
function age(start_ms, now_ms) {
  if (start_ms == null) return "-";
  const seconds = Math.max(0, Math.floor((now_ms - start_ms) / 1000));
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
  while (parts.length > 1 && !parts[0][0]) parts.shift();
  return parts.slice(0, 2).map(([number, unit]) => `${number}${unit}`).join(" ");
}

function make(id, { is_prepared: isPrepared }) {
  const made = row(COLUMNS);
  setText(made.named.id, id);
  const words = isPrepared ? "commit or abort…" : "abort…";
  if (document.body.dataset.rights !== "see") made.named.actions.append(h("a", { href: `transaction?${new URLSearchParams({ id })}` }, words));
  return made;
}

connect(["transactions"], ({ transactions, transactions_note: note, time_ms: now_ms }) => {
  if (!transactions) return;
  setText(document.getElementById("transactions-note"), note ?? "");
  const entries = Object.entries(transactions).sort(([, a], [, b]) => b.is_prepared - a.is_prepared || (a.start_time_ms ?? 0) - (b.start_time_ms ?? 0));
  const keys = entries.map(([id, entry]) => [`${entry.is_prepared} ${id}`, entry]);
  keyed(body, keys, (_, entry) => make(entry.transactional_id, entry), ({ named }, entry) => {
    setText(named.state, entry.is_prepared ? `${entry.state}, prepared` : entry.state);
    setText(named.age, age(entry.start_time_ms, now_ms));
    setText(named.producer, `${entry.producer_id}, epoch ${entry.producer_epoch}`);
    setText(named.held, entry.holds_back.map(({ partition, records }) => `${partition}: ${count(records)}`).join(" ") || "–");
  });
});
