// Faults of a broker of a cluster on this machine: the buttons of its row in the overview.
import { h, post } from "./dom.js";

const ACTIONS = { kill: "Kill", stop: "Stop", pause: "Pause", resume: "Resume", restart: "Restart" };
const STATES = { resume: ["paused"], pause: ["running", "silent"], restart: ["running", "silent", "paused", "gone"] };

export function brokerActions(id) {
  return Object.entries(ACTIONS).map(([name, label]) =>
    h("button", { type: "button", "data-fault": name, "aria-label": `${label} broker ${id}`, click: (event) => act(event.target, name, id) }, label));
}

/** Leave only the buttons that make sense for a broker in this state. */
export function fitActions(cell, state) {
  for (const button of cell.children) {
    button.disabled = button.dataset.isBusy === "yes" || !(STATES[button.dataset.fault] ?? ["running", "silent", "paused"]).includes(state);
  }
}

async function act(button, name, target) {
  button.dataset.isBusy = "yes";
  button.disabled = true;
  await post("faults", { name, target });
  button.dataset.isBusy = "";
  button.disabled = false;
}
