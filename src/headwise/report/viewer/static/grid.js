// All heads: a table with a button per head, coloured by a number, marked by the role's initial.

function roleOf(view, head) {
  return view.store.data.roles[head.index];
}

function roleName(view, head) {
  const { role } = roleOf(view, head);
  return role ? view.t(`role:${role}`).replace(/^role:/, "") : view.t("noRole");
}

function columnName(view, name) {
  return name === "special" ? view.t("special_mass") : view.t(name);
}

function headName(view, head) {
  return view.t("theHead", head.layer, head.head);
}

function spoken(view, head) {
  const { store, t } = view;
  const strength = store.number("strength", head);
  const parts = [`${headName(view, head)}: ${roleName(view, head)} ${Number.isFinite(strength) ? shownNumber(strength) : ""}`.trim()];
  const { colour } = view.state;
  if (colour !== "strength" && colour !== "delta") parts.push(`${columnName(view, colour)} ${shownNumber(store.number(colour, head))}`);
  const delta = store.number("delta", head);
  if (Number.isFinite(delta)) parts.push(t("costs", signedNumber(delta)));
  return parts.join(", ");
}

function gridPanel(view) {
  const { store, state, t } = view;
  const { data } = store;
  const layers = [...new Set(view.stores.a.data.layers.concat(view.stores.b?.data.layers ?? []).map((layer) => layer.index))].sort((x, y) => x - y);
  const columns = data.columns.filter((name) => !name.endsWith("_uniform"));
  const { a, b } = view.stores;
  const both = b ? [a, b] : [a];  // gaps and colours are the same whichever of two models is on show
  const widest = Math.max(...both.flatMap((one) => one.heads.map((head) => head.head))) + 1;
  const values = (store.minus ? [store] : both).flatMap((one) => [...(one.columns.get(state.colour) ?? [])]);
  const colours = columnColours(a.data, state.colour, values, store.minus);
  const buttons = new Map();
  const order = new Map(layers.map((layer, at) => [layer, at]));
  const rows = layers.map((layer) => el("tr", {}, el("th", { scope: "row" }, String(layer)),
    Array.from({ length: widest }, (_, number) => {
      const head = store.byName.get(`${layer}.${number}`);
      if (!head) return el("td", { role: "gridcell", class: "gap", "aria-label": t("noHead"), title: t("noHead") });
      const cell = headButton(view, head, colours, (moved) => move(moved, head));
      buttons.set(`${layer}.${number}`, cell);
      return el("td", { role: "gridcell" }, cell);
    })));

  // Over gaps to the next head there is.
  function move([down, across], from) {
    let [row, column] = [order.get(from.layer), from.head];
    for (;;) {
      row += down;
      column += across;
      if (row < 0 || row >= layers.length || column < 0 || column >= widest) return;
      const name = `${layers[row]}.${column}`;
      if (!buttons.has(name)) continue;
      focusOn(name);
      if (!state.several) view.update({ chosen: [name], focus: name });
      return;
    }
  }
  function focusOn(name) {
    for (const [other, cell] of buttons) cell.tabIndex = other === name ? 0 : -1;
    buttons.get(name).focus();
  }

  const ramp = el("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
  const context = ramp.getContext("2d");
  colours.palette.forEach((colour, x) => { context.fillStyle = colour; context.fillRect(x, 0, 1, 1); });
  const legend = el("div", { class: "legend" }, el("span", {}, shownNumber(colours.low)), ramp, el("span", {}, shownNumber(colours.high)));
  const table = el("table", { class: state.table ? "grid numbers" : "grid", role: "grid", "aria-label": t("heads"), style: `--across:${widest}` },
    el("thead", {}, el("tr", {}, el("td", {}),
      Array.from({ length: widest }, (_, at) => el("th", { scope: "col", "aria-label": `${t("head")} ${at}` }, String(at))))),
    el("tbody", {}, rows));
  const marks = new Map(data.rules.map((rule) => [rule.name, rule.initial]));
  const used = [...new Set(store.heads.map((head) => roleOf(view, head).role))].filter(Boolean);
  const panel = el("section", { class: "panel heads" },
    el("h2", {}, t("heads")),
    el("div", { class: "controls" },
      choice(t("colourBy"), columns.map((name) => [name, columnName(view, name)]), state.colour, (colour) => view.update({ colour }), { "data-role": "colour" }),
      toggle(t("several"), state.several, (several) => view.update({ several, chosen: several ? state.chosen : state.chosen.slice(-1) }),
        { title: t("severalHint"), "data-role": "several" })),
    el("div", { class: "scroll" }, table),
    legend,
    el("p", { class: "quiet initials" }, used.map((role) => el("span", {}, el("b", {}, marks.get(role)), ` ${t(`role:${role}`).replace(/^role:/, "")}`)),
      store.heads.some((head) => !roleOf(view, head).role) && el("span", {}, el("b", {}, "·"), ` ${t("noRole")}`)),
    copyButtons(view, t("allHeads"), () => headsTable(view), "heads"));

  // The chosen ones, without making everything anew, so that the focus stays.
  panel.mark = () => {
    const last = state.chosen.at(-1);
    for (const [name, cell] of buttons) {
      cell.setAttribute("aria-pressed", String(state.chosen.includes(name)));
      cell.tabIndex = name === (state.focus ?? last) ? 0 : -1;
    }
  };
  return panel;
}

function headButton(view, head, colours, move) {
  const { state, store } = view;
  const name = `${head.layer}.${head.head}`;
  const value = store.number(state.colour, head);
  const colour = Number.isFinite(value) ? colourAt(colours, value) : null;
  const rule = store.data.rules.find((one) => one.name === roleOf(view, head).role);
  const mark = state.table ? shownNumber(value) : rule ? rule.initial : "·";
  return el("button", {
    type: "button", class: "head", "data-head": name, "aria-label": spoken(view, head), title: spoken(view, head), tabindex: -1,
    style: colour ? `background:${colour};color:${ink(colour)}` : "",
    onclick: (event) => {
      if (state.several || event.shiftKey || event.ctrlKey || event.metaKey) {
        const rest = state.chosen.filter((other) => other !== name);
        const chosen = rest.length === state.chosen.length ? [...rest, name] : rest.length ? rest : [name];
        view.update({ chosen, focus: name, several: true });
      } else {
        view.update({ chosen: [name], focus: name });
      }
    },
    onkeydown: (event) => {
      if (!MOVES[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      move(MOVES[event.key]);
    },
  }, mark);
}
