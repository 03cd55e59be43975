// Making elements. Texts only ever become text nodes and attributes, so no label is read as markup.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function choice(label, values, current, onchange, attributes = {}) {
  const select = el("select", { onchange: () => onchange(select.value), ...attributes },
    values.map(([value, text]) => el("option", { value, selected: value === current }, text)));
  return el("label", { class: "field" }, el("span", {}, label), select);
}

function toggle(label, on, onchange, attributes = {}) {
  const box = el("input", { type: "checkbox", onchange: () => onchange(box.checked), ...attributes });
  box.checked = on;
  return el("label", { class: "switch", title: attributes.title }, box, label);
}

function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

const FILLER = "\u00a0";  // the first cell of a line that only keeps its place

// A table of texts; the first column names its rows.
function dataTable(caption, heads, lines, attributes = {}) {
  return el("table", { class: "data", ...attributes }, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, lines.map(([first, ...rest]) => (first === FILLER ? el("tr", { "aria-hidden": "true" }, el("td", {}, first), rest.map(() => el("td")))
      : el("tr", {}, el("th", { scope: "row", title: typeof first === "string" ? first : null }, first),
        rest.map((cell) => el("td", { title: typeof cell === "string" ? cell : null }, cell)))))));
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
