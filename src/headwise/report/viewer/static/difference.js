// Two models on the same tokens: the second minus the first, head by head. Stands where a `Store` stands.

class Difference {
  constructor(a, b) {
    Object.assign(this, { a, b });
    this.heads = b.heads.filter((head) => a.byName.has(nameOf(head)));
    this.byName = new Map(this.heads.map((head) => [nameOf(head), head]));
    const columns = b.data.columns.filter((name) => a.columns.has(name));
    const both = a.data.panes.map((pane, at) => ({ ...pane, norms: pane.norms && b.data.panes[at].norms }));
    this.data = { ...b.data, columns, panes: both };
    this.columns = new Map(columns.map((name) => [name, Float32Array.from(this.heads, (head) => this.number(name, head))]));
    this.minus = true;
  }

  number(name, head) {
    return this.b.number(name, head) - this.a.number(name, this.a.byName.get(nameOf(head)));
  }

  load(pane, heads, norms) {
    const there = heads.map((head) => this.a.byName.get(nameOf(head)));
    return Promise.all([this.a.load(pane, there, norms), this.b.load(pane, heads, norms)]);
  }
}

const nameOf = (head) => `${head.layer}.${head.head}`;

// A number of the page where several models may be on show: differences carry their sign.
const valueText = (shown, value) => (shown.signed ? signedNumber(value) : shownNumber(value));
