// The large map, drawn alike on the screen, into a PNG and into an SVG.

const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans KR", "Noto Sans CJK KR", sans-serif';
const MOST_RECTANGLES = 4096;  // an SVG of more cells holds them as one picture

class CanvasSurface {
  constructor(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
  }
  rect(x, y, w, h, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, w, h);
  }
  frame(x, y, w, h, stroke, width = 1.5) {
    this.context.strokeStyle = stroke;
    this.context.lineWidth = width;
    this.context.strokeRect(x, y, w, h);
  }
  text(x, y, text, { size = 11, fill, anchor = "start", turn = 0, weight = 400 }) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    context.rotate((turn * Math.PI) / 180);
    context.font = `${weight} ${size}px ${FONT}`;
    context.textAlign = { start: "left", end: "right", middle: "center" }[anchor];
    context.textBaseline = "middle";
    context.fillStyle = fill;
    context.fillText(text, 0, 0);
    context.restore();
  }
  cells(bitmap, x, y, w, h) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(bitmap, x, y, w, h);
  }
}

// XML knows no control characters; labels show them as ‹U+0000› already, titles may not.
const xml = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
  .replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

class SvgSurface {
  constructor(width, height, title) {
    this.parts = [`<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${xml(FONT)}" role="img"><title>${xml(title)}</title>`];
  }
  rect(x, y, w, h, fill) {
    this.parts.push(`<rect x="${+x.toFixed(2)}" y="${+y.toFixed(2)}" width="${+w.toFixed(2)}" height="${+h.toFixed(2)}" fill="${fill}"/>`);
  }
  frame(x, y, w, h, stroke, width = 1.5) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="none" stroke="${stroke}" stroke-width="${width}"/>`);
  }
  text(x, y, text, { size = 11, fill, anchor = "start", turn = 0, weight = 400 }) {
    const turned = turn ? ` transform="rotate(${turn} ${+x.toFixed(2)} ${+y.toFixed(2)})"` : "";
    this.parts.push(`<text x="${+x.toFixed(2)}" y="${+y.toFixed(2)}" dominant-baseline="central" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" fill="${fill}" xml:space="preserve"${turned}>${xml(text)}</text>`);
  }
  cells(bitmap, x, y, w, h, colours) {
    if (bitmap.width * bitmap.height > MOST_RECTANGLES) {
      this.parts.push(`<image x="${x}" y="${y}" width="${w}" height="${h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${bitmap.toDataURL("image/png")}"/>`);
      return;
    }
    const [dx, dy] = [w / bitmap.width, h / bitmap.height];
    this.parts.push('<g shape-rendering="crispEdges">');
    colours.forEach((colour, at) => {
      if (colour) this.rect(x + (at % bitmap.width) * dx, y + Math.floor(at / bitmap.width) * dy, dx, dy, colour);
    });
    this.parts.push("</g>");
  }
  toString() {
    return `${this.parts.join("\n")}\n</svg>\n`;
  }
}

// The colour of each cell, null where hidden, and the same as a small canvas, one pixel per cell.
function colouredCells(shown, scale, palette, hiddenColour) {
  const bitmap = document.createElement("canvas");
  bitmap.width = shown.columns.length;
  bitmap.height = shown.rows.length;
  const context = bitmap.getContext("2d");
  const image = context.createImageData(bitmap.width, bitmap.height);
  const parts = palette.map(rgb);
  const blank = rgb(hiddenColour);
  const place = (value) => (shown.signed ? 0.5 + 0.5 * Math.sign(value) * level(Math.abs(value), shown.top, scale) : level(value, shown.top, scale));
  const colours = Array.from(shown.matrix, (value, at) => {
    const step = value === value ? Math.round(place(value) * 255) : -1;
    const [r, g, b] = step < 0 ? blank : parts[step];
    const to = at * 4;
    image.data[to] = r;
    image.data[to + 1] = g;
    image.data[to + 2] = b;
    image.data[to + 3] = 255;
    return step < 0 ? null : palette[step];
  });
  context.putImageData(image, 0, 0);
  return { bitmap, colours };
}

let measuring = null;
function textWidth(text, size) {
  measuring ??= document.createElement("canvas").getContext("2d");
  measuring.font = `400 ${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

function shortened(text, size, most) {
  if (textWidth(text, size) <= most) return text;
  const characters = [...text];
  while (characters.length > 1 && textWidth(`${characters.join("")}…`, size) > most) characters.pop();
  return `${characters.join("")}…`;
}

const LABEL = 11;
const LONGEST = 92;  // pixels of a label

// Where everything goes, for a picture at most so wide.
function figureLayout(shown, width, { titled, most = Infinity }) {
  const longest = (list) => Math.min(LONGEST, Math.max(...list.map((place) => textWidth(place.label, LABEL)))) + 8;
  const left = Math.ceil(longest(shown.rows));
  const top = Math.ceil(longest(shown.columns)) + (titled ? 30 : 0);
  const room = width - left - 2;
  const cell = Math.max(1, Math.min(28, room / Math.max(shown.columns.length, shown.rows.length * 0.75), (most - top) / shown.rows.length));
  const w = Math.min(Math.max(1, cell) * shown.columns.length, Math.max(room, shown.columns.length));
  const dx = w / shown.columns.length;
  const dy = Math.min(dx, 28);
  const h = dy * shown.rows.length;
  return { left, top, dx, dy, w, h, width: left + w + 2, height: top + h + (titled ? 46 : 2), titled };
}

function drawFigure(surface, shown, layout, painted, look) {
  const { left, top, dx, dy, w, h } = layout;
  if (layout.titled) surface.rect(0, 0, layout.width, layout.height, look.surface);
  surface.rect(left, top, w, h, look.hidden);
  surface.cells(painted.bitmap, left, top, w, h, painted.colours);
  const every = (pitch) => Math.max(1, Math.ceil((LABEL + 1) / pitch));
  shown.rows.forEach((place, row) => {
    if (row % every(dy) && row !== look.row) return;
    if (look.row >= 0 && row !== look.row && Math.abs(row - look.row) * dy < LABEL) return;
    surface.text(left - 5, top + (row + 0.5) * dy, shortened(place.label, LABEL, LONGEST),
      { size: LABEL, fill: row === look.row ? look.ink : look.quiet, anchor: "end", weight: row === look.row ? 700 : 400 });
  });
  shown.columns.forEach((place, column) => {
    if (column % every(dx) && column !== look.column) return;
    if (look.column >= 0 && column !== look.column && Math.abs(column - look.column) * dx < LABEL) return;
    surface.text(left + (column + 0.5) * dx, top - 5, shortened(place.label, LABEL, LONGEST),
      { size: LABEL, fill: column === look.column ? look.ink : look.quiet, turn: -90, weight: column === look.column ? 700 : 400 });
  });
  if (look.row >= 0) surface.frame(left, top + look.row * dy, w, Math.max(dy, 2), look.outgoing);
  if (look.column >= 0) surface.frame(left + look.column * dx, top, Math.max(dx, 2), h, look.incoming);
  if (!layout.titled) return;
  surface.text(4, 14, shortened(look.title, 13, layout.width - 8), { size: 13, fill: look.ink, weight: 600 });
  const bar = Math.min(160, w);
  for (let at = 0; at < 64; at++) {
    surface.rect(left + (bar * at) / 64, top + h + 12, bar / 64 + 0.5, 10, look.palette[Math.round((at / 63) * 255)]);
  }
  surface.text(left, top + h + 32, look.least, { size: LABEL, fill: look.quiet });
  surface.text(left + bar, top + h + 32, look.most, { size: LABEL, fill: look.quiet, anchor: "end" });
}
