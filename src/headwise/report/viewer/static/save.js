// Taking things along: pictures and tables.

function fileName(view, ending) {
  const names = view.state.chosen.slice(0, 4).map((name) => name.replace(".", "-head"));
  return `headwise-layer${names.join("-layer")}.${ending}`;
}

function picture(view, width = 900) {
  const chosen = view.chosenNow();
  const look = mapLook(view, chosen);
  look.title = view.stores.b ? look.title : `${view.store.data.title} · ${look.title}`;
  return { look, layout: figureLayout(view.shown, width, { titled: true }), painted: colouredCells(view.shown, view.state.scale, look.palette, look.hidden) };
}

function svgText(view) {
  const { look, layout, painted } = picture(view);
  const surface = new SvgSurface(Math.ceil(layout.width), Math.ceil(layout.height), look.title);
  drawFigure(surface, view.shown, layout, painted, look);
  return surface.toString();
}

function offer(view, blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveSvg(view) {
  offer(view, new Blob([svgText(view)], { type: "image/svg+xml" }), fileName(view, "svg"));
}

function savePng(view) {
  const { look, layout, painted } = picture(view);
  const canvas = document.createElement("canvas");
  drawFigure(new CanvasSurface(canvas, layout.width, layout.height, 2), view.shown, layout, painted, look);
  canvas.toBlob((blob) => offer(view, blob, fileName(view, "png")), "image/png");
}

// Tables are { columns: names, rows: lists of values }.
function headsTable({ store }) {
  const names = store.data.columns;
  return {
    columns: ["layer", "head", "key_value_head", "role", ...names],
    rows: store.heads.map((head) => [head.layer, head.head, head.group, store.data.roles[head.index].role,
      ...names.map((name) => finite(store.number(name, head)))]),
  };
}

function cellsTable({ shown }) {
  const rows = [];
  shown.rows.forEach((row, r) => shown.columns.forEach((column, c) => {
    const value = shown.at(r, c);
    if (value === value) rows.push([row.from, row.label, column.from, column.label, finite(value)]);
  }));
  return { columns: ["query", "query_token", "key", "key_token", shown.byValue ? "share" : "weight"], rows };
}

const finite = (value) => (Number.isFinite(value) ? Number(value.toPrecision(6)) : null);

function csv({ columns, rows }) {
  const field = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${[columns, ...rows].map((row) => row.map(field).join(",")).join("\r\n")}\r\n`;
}

function json({ columns, rows }) {
  return JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]]))), null, 1);
}

async function copyText(view, text, told) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {  // no clipboard for this page: the older way
    const area = el("textarea", { style: "position:fixed;inset:0;opacity:0", readonly: true });
    area.value = text;
    view.root.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  told.textContent = view.t(done ? "copied" : "cannotCopy");
  setTimeout(() => { told.textContent = ""; }, 2500);
}

function copyButtons(view, what, table, name) {
  const told = el("span", { role: "status", class: "quiet" });
  return el("div", { class: "actions" }, el("span", {}, `${view.t("copy")} (${what})`),
    button("CSV", () => copyText(view, csv(table()), told), { "data-copy": `${name}-csv` }),
    button("JSON", () => copyText(view, json(table()), told), { "data-copy": `${name}-json` }), told);
}
