// The running text: tokens shaded by what the chosen one looks at and by who looks at it, and arcs between.

const MOST_ARCS = 10;
const LEAST_ARC = 0.03;
const LISTED = 5;

function textPanel(view) {
  const { state, t, shown } = view;
  const { data } = view.store;
  const sides = shown.square ? [["both", shown.rows]] : [["query", shown.rows], ["key", shown.columns]];
  const tokens = {};
  const boxes = sides.map(([side, list]) => {
    tokens[side] = list.map((place, at) => tokenElement(view, side, place, at, list.length));
    const box = el("div", {
      class: "running", role: "listbox", "data-side": side, "aria-orientation": "horizontal",
      "aria-label": side === "both" ? t("text") : t(side === "query" ? "queries" : "keys"),
      onpointerleave: () => view.point(null),
    }, tokens[side].flatMap((token, at) => (list[at].breaks ? [token, el("br")] : [token])));
    return side === "both" ? box : el("div", {}, el("h3", {}, t(side === "query" ? "queries" : "keys")), box);
  });
  const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const inner = el("div", { class: "passage" }, boxes, arcs);
  const lists = { out: el("div", { class: "list out" }), in: el("div", { class: "list in" }) };
  const panes = data.panes.map((pane, at) => [String(at), paneName(view, pane)]);
  const panel = el("section", { class: "panel text" },
    el("div", { class: "head-line" }, el("h2", {}, t("text")),
      el("div", { class: "controls" },
        data.panes.length > 1 && choice(t("pane"), panes, String(state.pane), (pane) => view.update({ pane: Number(pane) }), { "data-role": "pane" }),
        data.second !== null && shown.block === 1 && choice(t("pair"), CHOICES.pair.map((name) => [name, t(`pair:${name}`)]), state.pair, (pair) => view.update({ pair }), { "data-role": "pair" }),
        choice(t("direction"), ["both", "out", "in"].map((name) => [name, t(name)]), state.direction, (direction) => view.update({ direction }), { "data-role": "direction" }),
        shown.block === 1 && toggle(t("words"), state.words, (words) => view.update({ words }), { title: t("wordsHint"), "data-role": "words" }),
        toggle(t("lock"), state.locked, (locked) => view.update({ locked }), { "data-role": "lock" }))),
    data.panes.length > 1 && el("p", { class: "quiet" }, t("long", data.queries.labels.length)),
    el("div", { class: "text-body" }, el("div", { class: "text-scroll" }, inner), el("div", { class: "lists" }, lists.out, lists.in)));

  panel.paint = (chosen) => {
    shadeTokens(view, tokens, chosen);
    drawArcs(view, arcs, inner, tokens, chosen);
    fillList(view, lists.out, chosen, "out");
    fillList(view, lists.in, chosen, "in");
  };
  // Scrolls nothing but the box of the text.
  panel.reveal = ({ side, at }) => {
    const [token, box] = [tokens[side]?.[at], panel.querySelector(".text-scroll")];
    if (!token) return;
    const [inside, outside] = [token.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inside.top < outside.top || inside.bottom > outside.bottom) box.scrollTop += inside.top - outside.top - outside.height / 2;
  };
  panel.focusToken = (side, at) => tokens[side][at]?.focus();
  panel.tokens = tokens;
  return panel;
}

function paneName({ t, store }, pane) {
  if (pane.block > 1) return t("blocks", pane.block);
  if (pane.rows[1] - pane.rows[0] === store.data.queries.labels.length) return t("whole");
  return t("window", pane.rows[0], pane.rows[1] - 1);
}

function placeName({ t }, place) {
  return place.to - place.from > 1 ? t("block", place.from, place.to - 1) : `${t("position")} ${place.from}`;
}

const STANDS_FOR = { "⏎": "\n", "␣": " ", "⇥": "\t" };  // as labels have it

function codePoint(character) {
  const code = (STANDS_FOR[character] ?? character).codePointAt(0);
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

function tokenElement(view, side, place, at, count) {
  const { t } = view;
  const { prompt } = view.store.data;
  const notes = [place.special && t("special"), place.partial && t("partial"),
    prompt !== null && side !== "key" && (place.from < prompt ? t("prompt") : t("generated"))].filter(Boolean);
  const classes = ["token", place.special && "special", place.partial && "partial", place.joined && "joined",
    prompt !== null && place.from >= prompt && "generated"].filter(Boolean);
  const points = !place.partial && [...place.label].length <= 3 ? ` (${[...place.label].map(codePoint).join(" ")})` : "";
  const name = [`${place.label}, ${placeName(view, place)}`, ...notes].join(", ");
  return el("span", {
    class: classes.join(" "), role: "option", "aria-label": name, title: name + points, tabindex: -1, dir: "auto", "aria-selected": "false",
    onclick: () => view.keep(side, place, at),
    onpointerenter: (event) => { if (event.pointerType !== "touch") view.point({ side, at }); },
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        view.keep(side, place, at);
        return;
      }
      if (event.key === "Escape") { view.update({ locked: false }); return; }
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const target = { Home: 0, End: count - 1 }[event.key] ?? (step ? at + step : -1);
      if (target < 0 || target >= count) return;
      event.preventDefault();
      view.choose(side, target);
    },
  }, place.label);
}

// The row and the column that stand for the chosen token; -1 for none.
function chosenCell(shown, chosen) {
  const row = chosen.side === "key" ? -1 : chosen.at;
  const column = chosen.side === "query" ? -1 : chosen.at;
  return { row: row < shown.rows.length ? row : -1, column: column < shown.columns.length ? column : -1 };
}

function shadeTokens(view, tokens, chosen) {
  const { shown, state } = view;
  const { row, column } = chosenCell(shown, chosen);
  const strength = (value) => (value === value ? level(Math.abs(value), shown.top, state.scale) : 0);
  const paint = (list, own, outgoing, incoming, isChosen) => list.forEach((token, at) => {
    const out = outgoing && row >= 0 && state.direction !== "in" ? shown.at(row, at) : NaN;
    const into = incoming && column >= 0 && state.direction !== "out" ? shown.at(at, column) : NaN;
    token.style.setProperty("--looked-at", (strength(out) * 78).toFixed(1));
    token.style.setProperty("--looks", (strength(into) * 100).toFixed(1));
    token.setAttribute("aria-selected", String(isChosen && at === own));
    token.tabIndex = at === own || (own < 0 && at === 0) ? 0 : -1;
  });
  if (shown.square) paint(tokens.both, row, true, true, true);
  else {
    paint(tokens.query, row, false, true, chosen.side === "query");
    paint(tokens.key, column, true, false, chosen.side === "key");
  }
}

function drawArcs(view, arcs, inner, tokens, chosen) {
  const { shown, state } = view;
  const { row, column } = chosenCell(shown, chosen);
  const origin = inner.getBoundingClientRect();
  const spot = (token) => {
    const box = token.getBoundingClientRect();
    return { x: box.left + box.width / 2 - origin.left, top: box.top - origin.top, bottom: box.bottom - origin.top };
  };
  const curves = [];
  const add = (from, to, value, kind) => {
    const [a, b] = [spot(from), spot(to)];
    const up = kind === "outgoing";
    const [y1, y2] = up ? [a.top, b.top] : [a.bottom, b.bottom];
    const bend = Math.min(26, 6 + Math.abs(a.x - b.x) * 0.12) * (up ? -1 : 1);
    const peak = (up ? Math.min(y1, y2) : Math.max(y1, y2)) + bend;
    curves.push(svg("path", {
      class: value < 0 ? `${kind} less` : kind, d: `M${a.x.toFixed(1)} ${y1.toFixed(1)} C${a.x.toFixed(1)} ${peak.toFixed(1)} ${b.x.toFixed(1)} ${peak.toFixed(1)} ${b.x.toFixed(1)} ${y2.toFixed(1)}`,
      "stroke-width": (0.75 + 3 * level(Math.abs(value), shown.top, "linear")).toFixed(2), "stroke-opacity": (0.3 + 0.7 * level(Math.abs(value), shown.top, "sqrt")).toFixed(2),
    }));
  };
  const keys = shown.square ? tokens.both : tokens.key;
  const queries = shown.square ? tokens.both : tokens.query;
  if (row >= 0 && state.direction !== "in") {
    for (const [value, , to] of strongest(shown, rowCells(shown, row), MOST_ARCS)) {
      if (Math.abs(value) >= LEAST_ARC * shown.top && !(shown.square && to === row)) add(queries[row], keys[to], value, "outgoing");
    }
  }
  if (column >= 0 && state.direction !== "out") {
    for (const [value, from] of strongest(shown, columnCells(shown, column), MOST_ARCS)) {
      if (Math.abs(value) >= LEAST_ARC * shown.top && !(shown.square && from === column)) add(keys[column], queries[from], value, "incoming");
    }
  }
  arcs.replaceChildren(...curves);
}

// Always as many lines, so that nothing below moves.
function fillList(view, box, chosen, kind) {
  const { shown, t } = view;
  const { row, column } = chosenCell(shown, chosen);
  const out = kind === "out";
  const place = out ? shown.rows[row] : shown.columns[column];
  const cells = !place ? [] : out ? rowCells(shown, row) : columnCells(shown, column);
  const lines = strongest(shown, cells, LISTED).map(([value, r, c]) => {
    const other = out ? shown.columns[c] : shown.rows[r];
    return [other.label, String(other.from), valueText(shown, value)];
  });
  while (lines.length < LISTED) lines.push([FILLER, "", ""]);
  const caption = t(out ? "looksAt" : "lookedBy", place ? `${place.label} (${place.from})` : "–");
  box.replaceChildren(dataTable(caption, [t("token"), t("position"), t(shown.byValue ? "share" : "weight")], lines));
}
