// Of every page: the outcome of a change is shown once, not again after a reload.
const here = new URL(location);
if (here.searchParams.has("outcome")) {
  here.searchParams.delete("outcome");
  history.replaceState(null, "", here);
}
