"use strict";

// Attention maps: small ones in the grid, the chosen one large in the dialog.
// A weight is one byte: 0 is hidden, b is ((b - 1) / 254)², so that small weights stay apart.
(function () {
  const island = document.getElementById("maps");
  if (!island) return;
  const data = JSON.parse(island.textContent);
  const rows = data.queries.length;
  const columns = data.keys.length;
  const $ = (id) => document.getElementById(id);
  const HIDDEN = [23, 23, 28];
  const palette = data.palette.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const layers = data.layers.map((heads) =>
    heads.map((text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0))));

  const weightOf = (byte) => ((byte - 1) / 254) ** 2;
  function colourOf(byte) {
    if (byte === 0) return HIDDEN;
    const level = $("sqrt").checked ? (byte - 1) / 254 : weightOf(byte);
    return palette[Math.round(level * 255)];
  }

  function paint(canvas, bytes) {
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    bytes.forEach((byte, at) => image.data.set([...colourOf(byte), 255], at * 4));
    context.putImageData(image, 0, 0);
  }

  // The grid: one button per head; arrow keys move, as in any grid.
  const buttons = [...document.querySelectorAll(".map")];
  const placeOf = (button) => [Number(button.dataset.layer), Number(button.dataset.head)];
  function paintGrid() {
    for (const button of buttons) {
      const [layer, head] = placeOf(button);
      paint(button.firstElementChild, layers[layer][head]);
    }
    const ramp = $("ramp").getContext("2d");
    for (let x = 0; x < 256; x++) {
      const level = $("sqrt").checked ? Math.sqrt(x / 255) : x / 255;
      ramp.fillStyle = data.palette[Math.round(level * 255)];
      ramp.fillRect(x, 0, 1, 1);
    }
  }
  function focusButton(button) {
    buttons.forEach((other) => { other.tabIndex = other === button ? 0 : -1; });
    button.focus();
  }
  function buttonAt(layer, head) {
    return buttons.find((button) => {
      const [l, h] = placeOf(button);
      return l === layer && h === head;
    });
  }
  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  buttons.forEach((button, index) => {
    button.tabIndex = index === 0 ? 0 : -1;
    button.addEventListener("click", () => open(index));
    button.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      const [layer, head] = placeOf(button);
      const target = buttonAt(layer + move[0], head + move[1]);
      if (target) focusButton(target);
    });
  });

  // The dialog: the chosen head, with labels, a read-out, and the passage coloured by one token's view.
  const dialog = $("zoom");
  const large = $("large");
  let current = 0;
  let query = rows - 1;
  let layout = null;
  const bytesNow = () => {
    const [layer, head] = placeOf(buttons[current]);
    return layers[layer][head];
  };

  const tokens = data.keys.map((label, at) => {
    const token = document.createElement("span");
    token.className = "token";
    token.textContent = label;
    token.setAttribute("role", "option");
    token.setAttribute("aria-label", `${label}, position ${at}`);
    $("passage").append(token);
    return token;
  });
  // Tokens can be chosen as queries only where queries and keys are the same text.
  const sameText = rows === columns && data.queries.every((label, at) => label === data.keys[at]);
  tokens.forEach((token, at) => {
    if (!sameText) return;
    token.addEventListener("click", () => choose(at, true));
    token.addEventListener("mouseenter", () => choose(at));
    token.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const target = { Home: 0, End: rows - 1 }[event.key] ?? (step ? at + step : -1);
      if (target < 0 || target >= rows) return;
      event.preventDefault();
      event.stopPropagation();
      choose(target, true);
    });
  });

  function name(label, at) {
    return `${label} (${at})`;
  }

  function choose(row, focus) {
    query = row;
    const bytes = bytesNow();
    const weights = data.keys.map((_, key) => {
      const byte = bytes[row * columns + key];
      return byte === 0 ? null : weightOf(byte);
    });
    tokens.forEach((token, key) => {
      const weight = weights[key];
      token.style.background = weight === null ? "" : `rgba(var(--accent-rgb), ${(Math.sqrt(weight) * 0.7).toFixed(3)})`;
      token.style.opacity = weight === null ? 0.45 : 1;
      token.setAttribute("aria-selected", String(sameText && key === row));
      token.tabIndex = sameText && key === row ? 0 : -1;
    });
    if (focus && sameText) tokens[row].focus();
    $("strongest").textContent = `${name(data.queries[row], row)} looks most at`;
    const best = weights.map((weight, key) => [weight, key]).filter(([weight]) => weight !== null)
      .sort((a, b) => b[0] - a[0]).slice(0, 5);
    const lines = best.map(([weight, key]) => [data.keys[key], key, weight.toFixed(2)]);
    while (lines.length < Math.min(5, columns)) lines.push(["\u00a0", "", ""]);  // so that nothing below moves
    $("links").replaceChildren(...lines.map((texts) => {
      const line = document.createElement("tr");
      for (const text of texts) {
        const cell = document.createElement("td");
        cell.textContent = text;
        line.append(cell);
      }
      return line;
    }));
  }

  function readout(row, key) {
    const byte = bytesNow()[row * columns + key];
    const strong = (text) => Object.assign(document.createElement("b"), { textContent: text });
    const weight = byte === 0 ? "hidden" : weightOf(byte).toFixed(2);
    $("readout").replaceChildren("query ", strong(name(data.queries[row], row)), " looks at key ",
      strong(name(data.keys[key], key)), ": ", strong(weight));
  }

  function hatching(context) {
    const tile = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
    const pen = tile.getContext("2d");
    pen.strokeStyle = "#3a3a44";
    for (const shift of [-8, 0, 8]) {
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  }

  function drawLarge(mark) {
    const style = getComputedStyle(document.body);
    const context = large.getContext("2d");
    const font = (size) => `${size}px ${style.fontFamily}`;
    const room = Math.min(window.innerWidth < 780 ? window.innerWidth - 60 : window.innerWidth * 0.55, 760);
    const height = Math.max(260, window.innerHeight * 0.94 - 190);
    const clip = (label) => ([...label].length > 12 ? [...label].slice(0, 11).join("") + "…" : label);
    const queries = data.queries.map(clip);
    const keys = data.keys.map(clip);
    context.font = font(12);
    const widest = (labels) => Math.max(...labels.map((label) => context.measureText(label).width));
    const left = Math.ceil(widest(queries)) + 8;
    const cell = Math.max(5, Math.min(40, Math.floor((room - left) / columns), Math.floor((height - 20) / rows)));
    const size = Math.max(8, Math.min(12, cell - 1));
    const upright = widest(keys) <= cell;
    const top = upright ? 20 : Math.ceil(widest(keys)) + 8;
    const every = Math.ceil(9 / cell);
    const width = left + cell * columns + 2;
    const total = top + cell * rows + 2;
    const ratio = window.devicePixelRatio || 1;
    large.width = Math.round(width * ratio);
    large.height = Math.round(total * ratio);
    large.style.width = `${width}px`;
    large.style.height = `${total}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    layout = { left, top, cell };
    const bytes = bytesNow();
    context.imageSmoothingEnabled = false;
    context.drawImage(buttons[current].firstElementChild, left, top, cell * columns, cell * rows);
    context.fillStyle = hatching(context);  // "may not be read" is not "read as 0"
    for (let row = 0; row < rows; row++) {
      let start = 0;
      for (let key = 0; key <= columns; key++) {
        if (key < columns && bytes[row * columns + key] === 0) continue;
        if (key > start) context.fillRect(left + start * cell, top + row * cell, (key - start) * cell, cell);
        start = key + 1;
      }
    }
    context.font = font(size);
    context.textBaseline = "middle";
    const tint = (on) => { context.fillStyle = style.getPropertyValue(on ? "--accent" : "--quiet"); };
    context.textAlign = "right";
    for (let row = 0; row < rows; row++) {
      const on = mark && mark[0] === row;
      if (row % every && !on) continue;
      tint(on);
      context.fillText(queries[row], left - 6, top + (row + 0.5) * cell);
    }
    for (let key = 0; key < columns; key++) {
      const on = mark && mark[1] === key;
      if (key % every && !on) continue;
      tint(on);
      context.save();
      context.translate(left + (key + 0.5) * cell, upright ? top - 9 : top - 5);
      context.textAlign = upright ? "center" : "left";
      if (!upright) context.rotate(-Math.PI / 2);
      context.fillText(keys[key], 0, 0);
      context.restore();
    }
    if (mark) {
      context.strokeStyle = "#ffffff";
      context.lineWidth = 1.5;
      context.strokeRect(left + mark[1] * cell, top + mark[0] * cell, cell, cell);
    }
  }

  function show() {
    const [layer, head] = placeOf(buttons[current]);
    $("zoom-title").textContent = `Layer ${layer}, head ${head}`;
    large.setAttribute("aria-label", `Heatmap of layer ${layer}, head ${head}; the table beside it says the same in words`);
    $("previous").disabled = current === 0;
    $("next").disabled = current === buttons.length - 1;
    $("readout").textContent = "Point at a cell to read it: the row is the token that looks, the column the token looked at.";
    drawLarge();
    choose(query);
  }
  function open(index) {
    current = index;
    dialog.showModal();
    show();
    $("close").focus();
  }
  function turn(step) {
    const target = current + step;
    if (target < 0 || target >= buttons.length) return;
    current = target;
    show();
  }
  large.addEventListener("pointermove", (event) => {
    const box = large.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
    const row = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
    if (row < 0 || key < 0 || row >= rows || key >= columns) return;
    readout(row, key);
    choose(row);
    drawLarge([row, key]);
  });
  large.addEventListener("pointerleave", () => drawLarge());
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") turn(-1);
    if (event.key === "ArrowRight") turn(1);
  });
  dialog.addEventListener("close", () => focusButton(buttons[current]));
  $("sqrt").addEventListener("change", paintGrid);
  window.addEventListener("resize", () => { if (dialog.open) drawLarge(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (dialog.open) drawLarge(); });
  paintGrid();
})();

// Copy buttons appear only where the browser lets a page copy.
for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
