// What can be done to a broker of a cluster on this machine.
export function brokerActions() {
  return [];
}
