// The selection as the part of an address after #, and back. What is not understood is left as it was.

const FLAGS = ["hideFirst", "hideSpecial", "words", "table", "locked", "several"];
const CHOICES = { pair: ["all", "aa", "ab", "ba", "bb"], model: ["a", "b", "difference"], combine: ["sum", "max", "value"], direction: ["both", "out", "in"], scale: ["sqrt", "linear", "log"], language: Object.keys(STRINGS), theme: ["auto", "light", "dark"] };

function toHash(state) {
  const parts = new URLSearchParams();
  parts.set("heads", state.chosen.join("_"));
  parts.set("token", `${state.side}.${state.token}`);
  parts.set("colour", state.colour);
  if (state.pane) parts.set("pane", state.pane);
  for (const name of Object.keys(CHOICES)) if (state[name] !== CHOICES[name][0]) parts.set(name, state[name]);
  const flags = FLAGS.filter((name) => state[name]);
  if (flags.length) parts.set("with", flags.join("_"));
  return `#${parts}`;
}

function fromHash(hash, stores) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const changes = {};
  if (!parts.has("heads")) return changes;
  const store = stores[parts.get("model") ?? "a"] ?? stores.a;
  const chosen = parts.get("heads").split("_").filter((name) => store.byName.has(name));
  if (chosen.length) changes.chosen = [...new Set(chosen)];
  const [, side, token] = /^(both|query|key)\.(\d+)$/.exec(parts.get("token") ?? "") ?? [];
  const sides = ["both", "query", "key"];  // which of them there are is settled when the map is made
  const tokens = side === "key" ? store.data.keys ?? store.data.queries : store.data.queries;
  if (sides.includes(side) && Number(token) < tokens.labels.length) Object.assign(changes, { side, token: Number(token) });
  if (store.columns.has(parts.get("colour"))) changes.colour = parts.get("colour");
  const pane = Number(parts.get("pane") ?? 0);
  if (store.data.panes[pane]) changes.pane = pane;
  for (const [name, values] of Object.entries(CHOICES)) {
    const value = parts.get(name) ?? values[0];
    if (values.includes(value) && (name !== "model" || stores[value]) && !(name === "language" && !parts.has(name))) changes[name] = value;
  }
  const flags = (parts.get("with") ?? "").split("_");
  for (const name of FLAGS) changes[name] = flags.includes(name);
  return changes;
}
