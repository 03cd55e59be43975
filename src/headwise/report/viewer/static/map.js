// The chosen heads large: a picture, or a table instead.

const TABLE_SIDE = 24;

function mapTitle(view) {
  const { state, store, t, shown } = view;
  const heads = state.chosen.map((name) => store.byName.get(name));
  const names = heads.length === 1 ? headName(view, heads[0]) : t("theHeads", heads.length);
  const how = shown.byValue ? t("value") : heads.length > 1 ? t(state.combine === "max" ? "max" : "sum") : null;
  const left = [state.hideFirst && t("hideFirst"), state.hideSpecial && t("hideSpecial")].filter(Boolean);
  if (left.length && shown.block === 1) left.push(t("renormalised"));
  const side = pairSides(store.data, state)[0] && t(`pair:${state.pair}`);
  const merged = state.words && shown.block === 1 ? t("words") : null;
  const model = store.minus ? t("minus", store.b.data.title, store.a.data.title) : view.stores.b ? store.data.title : null;
  return [names, model, side, how, merged, ...(shown.block === 1 ? left : []), shown.block > 1 && t("blocks", shown.block)].filter(Boolean).join(" · ");
}

function mapLook(view, chosen) {
  const style = getComputedStyle(view.host);
  const colour = (name) => {  // light-dark() is only resolved where a property uses it
    view.probe.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(view.probe).color.match(/\d+/g).map(Number);
    return `#${[r, g, b].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  };
  const { shown, state } = view;
  return {
    ...chosenCell(shown, chosen), direction: style.direction,
    ink: colour("ink"), quiet: colour("quiet"), surface: colour("surface"), hidden: colour("hidden"), outgoing: colour("out"), incoming: colour("in"),
    palette: mapPalette(view), title: mapTitle(view), least: leastText(view), most: `${shown.top} (${view.t(state.scale)})`,
  };
}

function mapPalette({ shown, stores }) {
  return stores.a.data.palettes[shown.signed ? "signed" : "rising"];
}

function leastText({ shown, state }) {
  return shown.signed ? `−${shown.top}` : LEAST[state.scale];
}

function mapPanel(view) {
  const { state, t, shown, store } = view;
  const readout = el("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  const canvas = el("canvas", { class: "large", role: "img", tabindex: 0 });
  const body = el("div", { class: "map-body" }, state.table ? el("div") : canvas);
  const valued = store.data.panes[state.pane].norms !== null;
  const hows = [["sum", t("sum")], ["max", t("max")], ...(valued ? [["value", t("value")]] : [])];
  const special = (store.data.keys ?? store.data.queries).special.length > 0;
  const chips = el("div", { class: "chips" }, state.chosen.length > 1 && state.chosen.map((name) => {
    const head = store.byName.get(name);
    return el("span", { class: "chip" }, `${head.layer}.${head.head} ${roleName(view, head)}`,
      button("✕", () => view.update({ chosen: state.chosen.filter((other) => other !== name) }),
        { "aria-label": t("removeHead", head.layer, head.head) }));
  }));
  const ramp = el("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
  const context = ramp.getContext("2d");
  mapPalette(view).forEach((colour, x) => { context.fillStyle = colour; context.fillRect(x, 0, 1, 1); });
  const panel = el("section", { class: "panel map" },
    el("h2", { class: "map-title" }, mapTitle(view)),
    el("div", { class: "controls" },
      choice(t("combine"), hows, valued || state.combine !== "value" ? state.combine : "sum", (combine) => view.update({ combine }), { "data-role": "combine", title: t("valueHint") }),
      choice(t("scale"), ["linear", "sqrt", "log"].map((name) => [name, t(name)]), state.scale, (scale) => view.update({ scale }), { "data-role": "scale" }),
      shown.block === 1 && toggle(t("hideFirst"), state.hideFirst, (hideFirst) => view.update({ hideFirst }), { "data-role": "first" }),
      shown.block === 1 && special && toggle(t("hideSpecial"), state.hideSpecial, (hideSpecial) => view.update({ hideSpecial }), { "data-role": "special" })),
    chips, body,
    el("div", { class: "legend" }, el("span", {}, leastText(view)), ramp, el("span", {}, String(shown.top)),
      el("span", { class: "swatch" }), el("span", {}, t("hidden"))),
    readout,
    el("div", { class: "actions" }, el("span", {}, t("save")), button("PNG", () => savePng(view), { "data-save": "png" }),
      button("SVG", () => saveSvg(view), { "data-save": "svg" })),
    copyButtons(view, t("thisMap"), () => cellsTable(view), "map"));

  let layout = null;
  let painted = null;
  panel.paint = (chosen) => {
    if (state.table) {
      body.replaceChildren(cellsAsTable(view, chosen));
      sayRow(view, readout, chosen);
      return;
    }
    const look = mapLook(view, chosen);
    const width = Math.max(240, Math.min(body.clientWidth || 480, 640));
    if (layout?.asked !== width) layout = { asked: width, ...figureLayout(shown, width, { titled: false, most: Math.max(320, window.innerHeight * 0.55) }) };
    if (painted?.hidden !== look.hidden) painted = { hidden: look.hidden, ...colouredCells(shown, state.scale, look.palette, look.hidden) };
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
    drawFigure(new CanvasSurface(canvas, layout.width, layout.height, Math.max(1, window.devicePixelRatio)), shown, layout, painted, look);
    canvas.setAttribute("aria-label", `${t("map")}. ${mapTitle(view)}. ${t("mapKeys")}`);
    sayRow(view, readout, chosen);
  };
  const cellAt = (event) => {
    const column = Math.floor((event.offsetX - layout.left) / layout.dx);
    const row = Math.floor((event.offsetY - layout.top) / layout.dy);
    return row >= 0 && column >= 0 && row < shown.rows.length && column < shown.columns.length ? [row, column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = layout && cellAt(event);
    if (!cell) return;
    view.point({ side: shown.square ? "both" : "query", at: cell[0] });
    sayCell(view, readout, ...cell);
  });
  canvas.addEventListener("pointerleave", () => view.point(null));
  canvas.addEventListener("click", (event) => {
    const cell = layout && cellAt(event);
    if (cell) view.keep(shown.square ? "both" : "query", shown.rows[cell[0]], cell[0]);
  });
  const cursor = { row: -1, column: -1 };
  canvas.addEventListener("keydown", (event) => {
    const at = chosenCell(shown, view.chosenNow());
    if (cursor.row < 0) Object.assign(cursor, { row: Math.max(0, at.row), column: Math.max(0, at.row < shown.columns.length ? at.row : 0) });
    if (event.key === "Enter") {
      view.keep(shown.square ? "both" : "query", shown.rows[cursor.row], cursor.row);
      return;
    }
    if (!MOVES[event.key]) return;
    event.preventDefault();
    cursor.row = Math.min(Math.max(cursor.row + MOVES[event.key][0], 0), shown.rows.length - 1);
    cursor.column = Math.min(Math.max(cursor.column + MOVES[event.key][1], 0), shown.columns.length - 1);
    view.choose(shown.square ? "both" : "query", cursor.row, false);
    sayCell(view, readout, cursor.row, cursor.column);
  });
  return panel;
}

const named = (place) => `${place.label} (${place.to - place.from > 1 ? `${place.from}–${place.to - 1}` : place.from})`;

function sayCell({ shown, t }, readout, row, column) {
  const value = shown.at(row, column);
  readout.textContent = t("readout", named(shown.rows[row]), named(shown.columns[column]), value === value ? valueText(shown, value) : t("hidden"));
}

// What the chosen row is about when no cell is pointed at; in a window, how much of it is not to be seen.
function sayRow({ shown, t, state }, readout, chosen) {
  const { row } = chosenCell(shown, chosen);
  readout.textContent = "\u00a0";
  if (row < 0 || shown.byValue || shown.signed || shown.block > 1) return;
  let total = 0;
  for (const [r, c] of rowCells(shown, row)) if (shown.at(r, c) > 0) total += shown.at(r, c);
  const away = 1 - total / state.chosen.length;
  if (shown.window && state.combine === "sum" && away > 0.02) readout.textContent = `${named(shown.rows[row])}: ${t("outside", `${Math.round(away * 100)} %`)}`;
}

function cellsAsTable(view, chosen) {
  const { shown, t } = view;
  const { row, column } = chosenCell(shown, chosen);
  const range = (at, count) => {
    const start = Math.max(0, Math.min((at < 0 ? 0 : at) - TABLE_SIDE / 2, count - TABLE_SIDE));
    return [start, Math.min(start + TABLE_SIDE, count)];
  };
  const [r0, r1] = range(row, shown.rows.length);
  const [c0, c1] = range(column < 0 ? row : column, shown.columns.length);
  const lines = shown.rows.slice(r0, r1).map((place, r) => [named(place), ...shown.columns.slice(c0, c1).map((_, c) => {
    const value = shown.at(r0 + r, c0 + c);
    return value === value ? value.toFixed(3) : "–";
  })]);
  const cut = shown.rows.length > r1 - r0 || shown.columns.length > c1 - c0;
  const caption = mapTitle(view) + (cut ? ` – ${t("first64", r0, r1 - 1, shown.rows.length, c0, c1 - 1, shown.columns.length)}` : "");
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": mapTitle(view) },
    dataTable(caption, [`${t("from")} \\ ${t("to")}`, ...shown.columns.slice(c0, c1).map(named)], lines, { class: "data cells" }));
}
