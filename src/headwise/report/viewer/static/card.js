// What the last chosen head is, and what it is worth.

const MOST_PAIRS = 8;

function cardPanel(view) {
  const { state, store, t } = view;
  const head = store.byName.get(state.chosen.at(-1));
  return el("section", { class: "panel card" },
    el("h2", {}, `${t("card")}: ${roleName(view, head)}`),
    el("p", { class: "quiet" }, headName(view, head)),
    ...(store.minus ? [rolesOfBoth(view, head), pairs(view)]
      : [roleLines(view, head), worth(view, head), mates(view, head), pairs(view), curve(view, head)]),
    statistics(view, head));
}

function rolesOfBoth(view, head) {
  const { a, b } = view.stores;
  const line = (store) => {
    const there = store.byName.get(nameOf(head));
    const { role } = store.data.roles[there.index];
    const name = role ? view.t(`role:${role}`).replace(/^role:/, "") : view.t("noRole");
    return el("div", {}, el("dt", {}, store.data.title), el("dd", {}, `${name} ${shownNumber(store.number("strength", there))}`));
  };
  return el("dl", { class: "facts" }, line(a), line(b));
}

// Evidence in numbers, so that it reads in any language.
function evidenceOf(view, head) {
  const { store, t } = view;
  const { role, evidence } = roleOf(view, head);
  const rule = store.data.rules.find((one) => one.name === role);
  if (!rule || !store.columns.has(rule.column)) return evidence;
  const uniform = store.number(`${rule.column}_uniform`, head);
  const beside = Number.isFinite(uniform) ? `, ${t("uniform")} ${shownNumber(uniform)}` : "";
  return `${columnName(view, rule.column)} ${shownNumber(store.number(rule.column, head))}${beside}`;
}

function roleLines(view, head) {
  const { store, t } = view;
  const { role, also } = roleOf(view, head);
  const rule = store.data.rules.find((one) => one.name === role);
  const named = also.split(", ").filter(Boolean).map((name) => t(`role:${name}`).replace(/^role:/, "")).join(", ");
  const evidence = evidenceOf(view, head);
  const lines = [
    evidence && [t("evidence"), evidence],
    [t("strength"), shownNumber(store.number("strength", head))],
    rule && [t("rule"), `${columnName(view, rule.column)} ≥ ${rule.threshold}`],
    named && [t("also"), named],
  ].filter(Boolean);
  return el("dl", { class: "facts" }, lines.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function worth(view, head) {
  const { store, t } = view;
  const delta = store.number("delta", head);
  const title = el("h3", {}, t("silencing"));
  if (!Number.isFinite(delta)) return el("div", {}, title, el("p", { class: "quiet" }, t("notMeasured")));
  const [low, high] = ["low", "high"].map((name) => store.number(name, head));
  const most = Math.max(...[...store.columns.get("high"), ...[...store.columns.get("low")].map((value) => -value)].filter(Number.isFinite), 1e-9);
  const x = (value) => 100 + (Math.min(Math.max(value / most, -1), 1)) * 96;
  const bar = svg("svg", { class: "interval", viewBox: "0 0 200 20", "aria-hidden": "true" },
    svg("line", { x1: 100, x2: 100, y1: 1, y2: 19, class: "zero" }),
    svg("line", { x1: x(low), x2: x(high), y1: 10, y2: 10, class: "range" }),
    svg("circle", { cx: x(delta), cy: 10, r: 4, class: "point" }));
  const verdict = low > 0 ? "worse" : high < 0 ? "better" : "unclear";
  return el("div", {}, title, bar, el("p", {}, el("b", {}, t(verdict)), ". ",
    t("silenced", signedNumber(delta), signedNumber(low), signedNumber(high), t(store.data.how))));
}

function mates(view, head) {
  const { store, t } = view;
  const layer = store.heads.filter((other) => other.layer === head.layer);
  const others = layer.filter((other) => other.group === head.group && other !== head);
  if (layer.every((one) => layer.filter((other) => other.group === one.group).length === 1)) return null;
  return el("div", {}, el("h3", {}, t("mates")), others.length === 0 ? el("p", { class: "quiet" }, t("noMates"))
    : el("div", { class: "chips" }, others.map((other) => {
      const name = `${other.layer}.${other.head}`;
      return button(`${name} ${roleName(view, other)}`, () => view.update({ chosen: [name], focus: name }), { class: "chip", "data-mate": name });
    })));
}

const byStrength = (a, b) => Math.abs(b[0]) - Math.abs(a[0]) || a[1] - b[1] || a[2] - b[2];

function pairs(view) {
  const { shown, t } = view;
  const found = [];
  let least = 0;
  for (let at = 0; at < shown.matrix.length; at++) {
    const value = shown.matrix[at];
    if (!((shown.signed ? Math.abs(value) : value) > least)) continue;
    found.push([value, Math.floor(at / shown.columns.length), at % shown.columns.length]);
    if (found.length >= 4 * MOST_PAIRS) {
      found.sort(byStrength);
      found.length = MOST_PAIRS;
      least = Math.abs(found.at(-1)[0]);
    }
  }
  found.sort(byStrength);
  const lines = found.slice(0, MOST_PAIRS).map(([value, row, column]) => [named(shown.rows[row]), named(shown.columns[column]), valueText(shown, value)]);
  return dataTable(t("pairs"), [t("from"), t("to"), t(shown.byValue ? "share" : "weight")], lines, { class: "data pairs" });
}

function curve(view, head) {
  const { store, t } = view;
  const values = store.curves[head.index];
  if (values.length < 2) return null;
  const most = Math.max(...values, 1e-9);
  const [w, h] = [300, 60];
  const points = Array.from(values, (value, at) => `${((at / (values.length - 1)) * w).toFixed(1)},${(h - (value / most) * (h - 4)).toFixed(1)}`);
  return el("figure", {}, el("figcaption", {}, t("curve")),
    svg("svg", { class: "curve", viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img",
      "aria-label": t("curveLabel", shownNumber(Math.min(...values)), shownNumber(most), values.length) },
    svg("polyline", { points: points.join(" ") })),
    el("div", { class: "ends" }, el("span", {}, "0"), el("span", {}, shownNumber(most)), el("span", {}, String(store.data.queries.labels.length - 1))));
}

const FIRST_STATISTICS = ["previous", "self", "next", "first", "special", "induction", "duplicate", "normalised_entropy", "entropy", "confidence", "output_share"];

// The telling ones at once, all others on demand.
function statistics(view, head) {
  const { store, t } = view;
  const names = store.data.columns.filter((name) => !name.endsWith("_uniform") && !["strength", "delta", "low", "high"].includes(name));
  const inA = store.minus && store.a.byName.get(nameOf(head));
  const line = (name) => (store.minus ? [columnName(view, name), shownNumber(store.a.number(name, inA)),
    shownNumber(store.b.number(name, head)), signedNumber(store.number(name, head))] : [columnName(view, name), shownNumber(store.number(name, head)),
    store.columns.has(`${name}_uniform`) ? shownNumber(store.number(`${name}_uniform`, head)) : ""]);
  const heads = store.minus ? [t("statistic"), store.a.data.title, store.b.data.title, t("difference")] : [t("statistic"), t("here"), t("uniform")];
  const first = FIRST_STATISTICS.filter((name) => names.includes(name) && Number.isFinite(store.number(name, head)));
  const rest = names.filter((name) => !first.includes(name));
  const caption = `${t("statistics")} – ${t("statisticsOf", store.data.source || t("onText"))}`;
  const more = el("details", { "data-role": "more", ontoggle: () => { view.more = more.open; } },
    el("summary", { "data-role": "more-statistics" }, t("more", rest.length)),
    dataTable(t("statistics"), heads, rest.map(line), { class: "data statistics" }));
  more.open = Boolean(view.more);
  return el("div", {}, dataTable(caption, heads, first.map(line), { class: "data statistics" }), rest.length > 0 && more);
}
