// The data as it comes out of its compressed form. A weight is one byte: 0 is hidden, b is ((b - 1) / 254)².

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

const WEIGHTS = Float32Array.from({ length: 256 }, (_, byte) => (byte ? ((byte - 1) / 254) ** 2 : NaN));

// Heads in the order of the data, and their numbers; maps are unpacked a layer at a time, when first looked at.
class Store {
  constructor(data) {
    this.data = data;
    this.heads = data.layers.flatMap((layer, at) =>
      layer.heads.map((head, h) => ({ layer: layer.index, head, group: layer.groups[h], at, h })));
    this.heads.forEach((head, index) => { head.index = index; });
    this.byName = new Map(this.heads.map((head) => [`${head.layer}.${head.head}`, head]));
    this.unpacked = new Map();
  }

  async open() {
    const numbers = new Float32Array(await inflate(this.data.numbers));
    const count = this.heads.length;
    this.columns = new Map(this.data.columns.map((name, at) => [name, numbers.subarray(at * count, (at + 1) * count)]));
    const values = new Float32Array(await inflate(this.data.curve_values));
    let end = 0;
    this.curves = this.data.curves.map((length) => values.subarray(end, (end += length)));
  }

  number(name, head) {
    return this.columns.get(name)?.[head.index] ?? NaN;
  }

  sizes(pane) {
    const { rows, columns, block } = this.data.panes[pane];
    return [rows, columns].map(([start, end]) => Math.ceil((end - start) / block));
  }

  async load(pane, heads, norms) {
    const wanted = new Map(heads.map((head) => [`${pane}:${head.at}`, this.data.panes[pane].layers[head.at]]));
    if (norms && this.data.panes[pane].norms) wanted.set(`${pane}:norms`, this.data.panes[pane].norms);
    await Promise.all([...wanted].map(async ([name, text]) => {
      if (!this.unpacked.has(name)) this.unpacked.set(name, await inflate(text));
    }));
  }

  // One head's weights, rows × columns, NaN where hidden.
  weights(pane, head) {
    const [rows, columns] = this.sizes(pane);
    const { triangle } = this.data.panes[pane];
    const cells = triangle ? (rows * (rows + 1)) / 2 : rows * columns;
    const bytes = new Uint8Array(this.unpacked.get(`${pane}:${head.at}`), head.h * cells, cells);
    const matrix = new Float32Array(rows * columns).fill(NaN);
    let from = 0;
    for (let row = 0; row < rows; row++) {
      const end = triangle ? row + 1 : columns;
      for (let column = 0; column < end; column++) matrix[row * columns + column] = WEIGHTS[bytes[from++]];
    }
    return matrix;
  }

  // ‖f(x)‖ of each key in a pane.
  norms(pane, head) {
    const columns = this.sizes(pane)[1];
    return new Float32Array(this.unpacked.get(`${pane}:norms`), head.index * columns * 4, columns);
  }
}
