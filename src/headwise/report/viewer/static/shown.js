// What is to be seen: the chosen heads' weights after hiding, merging into words and combining.
// Pure functions of the data and the state, so that pictures, tables and copies cannot disagree.

// Rows or columns of a pane: tokens, words, or blocks of tokens.
function places(tokens, [start, end], block, words) {
  const found = [];
  const special = new Set(tokens.special);
  const partial = new Set(tokens.partial);
  const breaks = new Set(tokens.breaks);
  if (block > 1) {
    for (let from = start; from < end; from += block) {
      const to = Math.min(from + block, end);
      const text = tokens.labels.slice(from, Math.min(to, from + 6)).join("");
      found.push({ from, to, label: text.length > 10 || to - from > 6 ? `${[...text].slice(0, 10).join("")}…` : text });
    }
    return found;
  }
  for (let at = start; at < end; at++) {
    const last = found.at(-1);
    if (words && last && tokens.words[at] === tokens.words[at - 1]) {
      last.to = at + 1;
      last.breaks ||= breaks.has(at);
    } else {
      found.push({
        from: at, to: at + 1, special: special.has(at), partial: !words && partial.has(at), breaks: breaks.has(at),
        label: words ? tokens.word_labels[tokens.words[at]] : tokens.labels[at],
        joined: !words && at > start && tokens.words[at] === tokens.words[at - 1],
      });
    }
  }
  return found;
}

// Which columns are left out.
function hiddenColumns(data, pane, state) {
  const { columns, block } = data.panes[pane];
  const tokens = data.keys ?? data.queries;
  const special = new Set(state.hideSpecial ? tokens.special : []);
  const hidden = [];
  if (block > 1) return hidden;
  for (let at = columns[0]; at < columns[1]; at++) {
    if ((state.hideFirst && at === 0) || special.has(at)) hidden.push(at - columns[0]);
  }
  return hidden;
}

// Take columns out; with `renormalise` what is left of each row sums to what the row summed to before.
function without(matrix, rows, columns, hidden, renormalise) {
  if (!hidden.length) return;
  for (let row = 0; row < rows; row++) {
    const here = matrix.subarray(row * columns, (row + 1) * columns);
    let before = 0;
    for (const weight of here) if (weight > 0) before += weight;
    let gone = 0;
    for (const column of hidden) {
      if (here[column] > 0) gone += here[column];
      here[column] = NaN;
    }
    if (!renormalise) continue;
    const rest = before - gone;
    for (let column = 0; column < columns; column++) here[column] = rest > 1e-6 ? here[column] * (before / rest) : NaN;
  }
}

// Sum over the pieces looked at, mean over the pieces that look (Clark et al. 2019). Rows still sum to 1.
function merged(matrix, columns, rowPlaces, columnPlaces, start) {
  if (rowPlaces.length * columnPlaces.length === matrix.length) return matrix;
  const out = new Float32Array(rowPlaces.length * columnPlaces.length).fill(NaN);
  rowPlaces.forEach((place, r) => {
    let looking = 0;
    const sums = new Float64Array(columnPlaces.length).fill(NaN);
    for (let row = place.from - start[0]; row < place.to - start[0]; row++) {
      let any = false;
      columnPlaces.forEach((other, c) => {
        for (let column = other.from - start[1]; column < other.to - start[1]; column++) {
          const weight = matrix[row * columns + column];
          if (weight !== weight) continue;
          sums[c] = (sums[c] === sums[c] ? sums[c] : 0) + weight;
          any = true;
        }
      });
      if (any) looking += 1;
    }
    sums.forEach((sum, c) => { out[r * columnPlaces.length + c] = sum / looking; });
  });
  return out;
}

function combined(matrices, how) {
  if (matrices.length === 1) return matrices[0];
  const out = matrices[0].slice();
  for (const matrix of matrices.slice(1)) {
    for (let at = 0; at < out.length; at++) {
      const weight = matrix[at];
      if (weight !== weight) continue;
      if (out[at] !== out[at]) out[at] = weight;
      else out[at] = how === "max" ? Math.max(out[at], weight) : out[at] + weight;
    }
  }
  return out;
}

function asShares(matrix, rows, columns) {
  for (let row = 0; row < rows; row++) {
    const here = matrix.subarray(row * columns, (row + 1) * columns);
    let total = 0;
    for (const value of here) if (value > 0) total += value;
    if (total > 0) for (let column = 0; column < columns; column++) here[column] /= total;
  }
}

// Of two texts in one: which of them looks, and which is looked at; null for both.
function pairSides(data, state) {
  const pane = data.panes[state.pane];
  const both = data.second !== null && pane.rows[0] < data.second && data.second < pane.rows[1] && pane.block === 1;
  return both && state.pair !== "all" ? [...state.pair] : [null, null];
}

const ofSide = (data, place, side) => !side || (place.from < data.second) === (side === "a");

function part(matrix, rows, columns, rowsKept, columnsKept) {
  if (rows.length === rowsKept.length && columns.length === columnsKept.length) return matrix;
  const [top, left] = [rows.indexOf(rowsKept[0]), columns.indexOf(columnsKept[0])];
  return Float32Array.from({ length: rowsKept.length * columnsKept.length }, (_, at) =>
    matrix[(top + Math.floor(at / columnsKept.length)) * columns.length + left + (at % columnsKept.length)]);
}

// The whole of it. `top` is the value at the end of the colours; where `signed`, −top is at their other end.
function shownMap(store, state) {
  if (store.minus) {
    const [a, b] = [shownMap(store.a, state), shownMap(store.b, state)];
    return shownAs({ ...b, matrix: b.matrix.map((value, at) => value - a.matrix[at]), signed: true });
  }
  const { data } = store;
  const pane = data.panes[state.pane];
  const words = state.words && pane.block === 1;
  const byValue = state.combine === "value" && pane.norms !== null;
  const [rows, columns] = store.sizes(state.pane);
  const rowPlaces = places(data.queries, pane.rows, pane.block, words);
  const columnPlaces = places(data.keys ?? data.queries, pane.columns, pane.block, words);
  const hidden = hiddenColumns(data, state.pane, state);
  const matrices = state.chosen.map((name) => {
    const head = store.byName.get(name);
    const matrix = store.weights(state.pane, head);
    if (byValue) {
      const norms = store.norms(state.pane, head);
      for (let at = 0; at < matrix.length; at++) matrix[at] *= norms[at % columns];
    }
    without(matrix, rows, columns, hidden, !byValue);
    return merged(matrix, columns, rowPlaces, columnPlaces, [pane.rows[0], pane.columns[0]]);
  });
  const largest = !byValue && state.combine === "max";
  const matrix = combined(matrices, largest ? "max" : "sum");
  if (byValue) asShares(matrix, rowPlaces.length, columnPlaces.length);
  const [looking, looked] = pairSides(data, state);
  const rowsKept = rowPlaces.filter((place) => ofSide(data, place, looking));
  const columnsKept = columnPlaces.filter((place) => ofSide(data, place, looked));
  const top = byValue || largest ? 1 : state.chosen.length;
  return shownAs({
    matrix: part(matrix, rowPlaces, columnPlaces, rowsKept, columnsKept), rows: rowsKept, columns: columnsKept, top, byValue, block: pane.block, hides: hidden.length > 0,
    window: pane.columns[1] - pane.columns[0] < (data.keys ?? data.queries).labels.length,
    square: data.keys === null && !looking,
    signed: false,
  });
}

function shownAs(shown) {
  const { matrix, rows, columns } = shown;
  const find = (list) => (token) => list.findIndex((place) => token >= place.from && token < place.to);
  return { ...shown, at: (row, column) => matrix[row * columns.length + column], rowOf: find(rows), columnOf: find(columns) };
}

// The strongest cells among some, as [value, row, column], the first of equals first.
function strongest(shown, cells, most) {
  return cells.map(([row, column]) => [shown.at(row, column), row, column])
    .filter(([value]) => (shown.signed ? Math.abs(value) : value) > 0)
    .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]) || a[1] - b[1] || a[2] - b[2])
    .slice(0, most);
}

const rowCells = (shown, row) => shown.columns.map((_, column) => [row, column]);
const columnCells = (shown, column) => shown.rows.map((_, row) => [row, column]);
