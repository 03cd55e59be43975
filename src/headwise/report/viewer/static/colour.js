// Numbers to colours.

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// How far up the colours a value is, 0 to 1. The logarithm spans four decades.
function level(value, top, scale) {
  const share = Math.min(Math.max(value / top, 0), 1);
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return share > 0 ? Math.max(0, 1 + Math.log10(share) / 4) : 0;
  return share;
}

const LEAST = { linear: "0", sqrt: "0", log: "≤ 10⁻⁴" };

// Text that is read on a colour: black or white, whichever stands out more.
function ink(hex) {
  const [r, g, b] = rgb(hex).map((part) => {
    const c = part / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}

// How a column of numbers is placed on colours: those that mean better and worse have 0 in the middle.
const SIGNED = new Set(["retrieval_low", "retrieval_high", "delta", "low", "high", "delta_first", "delta_copied", "delta_punctuation", "delta_other", "delta_retrieval", "predicted"]);

function columnColours(data, name, values, signed) {
  const known = values.filter(Number.isFinite);
  if (signed || SIGNED.has(name)) {
    const most = Math.max(...known.map(Math.abs), 0) || 1;
    return { low: -most, high: most, palette: data.palettes.signed };
  }
  let low = Math.min(0, ...known);
  let high = known.length ? Math.max(...known) : 1;
  if (high <= low) high = low + 1;
  return { low, high, palette: data.palettes.rising };
}

function colourAt({ low, high, palette }, value) {
  return palette[Math.round((Math.min(Math.max(value, low), high) - low) / (high - low) * 255)];
}

// Numbers as read: enough digits to compare, no more than the bytes hold.
function shownNumber(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000 || (size > 0 && size < 0.0005)) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size < 0.1 ? 4 : 3);
}

const signedNumber = (value) => (value > 0 ? "+" : "") + shownNumber(value).replace("-", "−");
