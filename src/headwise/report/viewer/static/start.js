// Putting it together: the state, and what is drawn anew when it changes.

const FIRST_TOKEN = 31;  // which has something to look at, and stands near the beginning of the text
const SCROLLING = ".text-scroll, .map-body, .heads > .scroll";

class View {
  constructor(host, stores, standalone, css) {
    this.host = host;
    this.stores = stores;
    this.state = { model: "a" };
    const { store } = this;
    this.standalone = standalone;
    this.root = host.attachShadow({ mode: "open" });
    this.root.append(el("style", {}, css));
    this.parts = { header: el("header"), extra: el("div"), panels: el("div"), footer: el("footer") };
    this.page = el("div", { class: "page" }, this.parts.header, el("main", {}, this.parts.extra, this.parts.panels), this.parts.footer);
    this.probe = el("span", { class: "probe", "aria-hidden": "true" });
    this.root.append(this.page, this.probe);
    const { data } = store;
    const first = this.mostTelling();
    this.state = {
      model: "a", pane: 0, chosen: [first], focus: first, pair: "all", several: false, combine: "sum", colour: "strength", direction: "both", scale: "sqrt",
      side: data.keys === null ? "both" : "query", token: Math.min(data.panes[0].rows[1] - 1, FIRST_TOKEN), locked: false,
      hideFirst: false, hideSpecial: false, words: false, table: false,
      language: (navigator.language || "en").startsWith("ko") ? "ko" : "en", theme: "auto",
    };
    if (!store.columns.has("strength")) this.state.colour = data.columns.find((name) => !name.endsWith("_uniform"));
    this.pointed = null;
    this.ticket = 0;
  }

  // The first head to look at: that of the first rule that any head fits, and of those the clearest.
  mostTelling() {
    const { heads, data } = this.store;
    const rank = (head) => {
      const at = data.rules.findIndex((rule) => rule.name === data.roles[head.index].role);
      return (at < 0 ? data.rules.length : at) - (this.store.number("strength", head) || 0) / 2;
    };
    return nameOf(heads.reduce((a, b) => (rank(b) < rank(a) ? b : a)));
  }

  // The model on show, or the difference of two.
  get store() {
    return this.stores[this.state.model];
  }

  get t() {
    return translator(this.state.language);
  }

  // Change the state and show it. What needs other parts of the page is built anew, with the focus kept.
  async update(changes) {
    Object.assign(this.state, changes);
    const { state } = this;
    const { byName, heads } = this.store;
    state.chosen = state.chosen.filter((name) => byName.has(name));
    if (!state.chosen.length) state.chosen = [byName.has(state.focus) ? state.focus : nameOf(heads[0])];
    if (!byName.has(state.focus)) state.focus = state.chosen.at(-1);
    if (!this.store.columns.has(state.colour)) state.colour = this.store.data.columns[0];
    const ticket = ++this.ticket;
    await this.store.load(state.pane, state.chosen.map((name) => this.store.byName.get(name)), state.combine === "value");
    if (ticket !== this.ticket) return;
    this.shown = shownMap(this.store, state);
    if (this.shown.square) state.side = "both";
    else if (state.side === "both") state.side = "query";
    const places = state.side === "key" ? this.shown.columns : this.shown.rows;
    state.token = Math.min(Math.max(state.token, places[0].from), places.at(-1).to - 1);
    this.pointed = null;
    const only = Object.keys(changes).every((name) => name === "chosen" || name === "focus");
    if (only && this.grid && this.grid.isConnected) this.drawHeads();
    else this.drawAll();
    if (this.standalone) this.remember();
  }

  // Other models, or the same on another text, in the place of those on show.
  replace(stores, changes = {}) {
    this.stores = stores;
    if (!stores[this.state.model]) this.state.model = "a";
    if (!this.store.data.panes[this.state.pane]) this.state.pane = 0;
    return this.update({ model: this.state.model, ...changes });
  }

  title() {
    const { a, b } = this.stores;
    return b && !this.live ? `${a.data.title} – ${b.data.title}` : a.data.title;
  }

  // What of an address restores the selection.
  address() {
    return toHash(this.state) + (this.live?.address() ?? "");
  }

  remember() {
    const hash = this.address();
    if (location.hash !== hash) history.replaceState(history.state, "", hash);
    this.live?.follow();
  }

  drawHeads() {
    const kept = this.kept();
    this.map.replaceWith((this.map = mapPanel(this)));
    this.card.replaceWith((this.card = cardPanel(this)));
    this.grid.mark();
    this.paint();
    this.refocus(kept);
  }

  drawAll() {
    const kept = this.kept();
    const { t, state } = this;
    this.host.dataset.theme = state.theme;
    this.host.lang = state.language;
    if (this.standalone) {
      document.documentElement.style.colorScheme = state.theme === "auto" ? "light dark" : state.theme;
      document.documentElement.lang = state.language;
    }
    this.text = textPanel(this);
    this.grid = gridPanel(this);
    this.map = mapPanel(this);
    this.card = cardPanel(this);
    const told = el("span", { role: "status", class: "quiet" });
    const { parts, stores } = this;
    parts.header.replaceWith((parts.header = el("header", {},
      el("div", {}, el("p", { class: "brand" }, "headwise"), el("h1", {}, this.title()), el("p", { class: "intro" }, t("intro"))),
      el("div", { class: "controls" },
        stores.b && choice(t(this.live ? "mapsOf" : "model"), [["a", stores.a.data.title], ["b", stores.b.data.title], ...(stores.difference ? [["difference", t("difference")]] : [])], state.model, (model) => this.update({ model }), { "data-role": "model" }),
        toggle(t("table"), state.table, (table) => this.update({ table }), { "data-role": "table" }),
        choice(t("theme"), ["auto", "light", "dark"].map((name) => [name, t(name)]), state.theme, (theme) => this.update({ theme }), { "data-role": "theme" }),
        choice(t("lang"), Object.keys(STRINGS).map((name) => [name, STRINGS[name].name]), state.language, (language) => this.update({ language }), { "data-role": "language" }),
        this.standalone && button(t("link"), () => copyText(this, location.href.split("#")[0] + this.address(), told), { title: t("linkHint"), "data-role": "link" }), told))));
    if (this.live) this.live.panel.place.replaceChildren(this.grid);  // beside what switching its heads off changes
    parts.panels.replaceChildren(...this.store.data.notes.map((note) => el("p", { class: "note" }, note)), this.text,
      el("div", { class: this.live ? "columns two" : "columns" }, !this.live && this.grid, this.map, this.card));
    parts.footer.replaceChildren(t(this.live ? "footerLive" : "footer", this.store.data.version));
    this.grid.mark();
    this.paint();
    this.refocus(kept);
  }

  // What a reader would miss if parts of the page are made anew: the focus, and how far boxes are scrolled.
  kept() {
    return { find: this.focused(), scrolled: [...this.root.querySelectorAll(SCROLLING)].map((box) => [box.scrollLeft, box.scrollTop]) };
  }

  // The control that has the focus, by where it stands, so that its successor can have it.
  focused() {
    const active = this.root.activeElement;
    if (!active) return null;
    const name = ["data-role", "data-head", "data-save", "data-copy", "data-mate"].find((one) => active.hasAttribute(one));
    if (name) return (root) => root.querySelector(`[${name}="${active.getAttribute(name)}"]`);
    if (active.classList.contains("token")) return () => this.text.tokens[this.chosenNow().side]?.[this.chosenNow().at];
    return active.matches("canvas.large") ? (root) => root.querySelector("canvas.large") : null;
  }

  refocus({ find, scrolled }) {
    this.root.querySelectorAll(SCROLLING).forEach((box, at) => {
      [box.scrollLeft, box.scrollTop] = scrolled[at] ?? [0, 0];
    });
    if (find) (find(this.root) ?? this.root.querySelector('.head[tabindex="0"]'))?.focus({ preventScroll: true });
  }

  // The token that is looked into: the one pointed at, or else the one kept.
  chosenNow() {
    if (this.pointed && !this.state.locked) return this.pointed;
    const { side, token } = this.state;
    return { side, at: side === "key" ? this.shown.columnOf(token) : this.shown.rowOf(token) };
  }

  paint() {
    const chosen = this.chosenNow();
    this.text.paint(chosen);
    this.map.paint(chosen);
  }

  point(place) {
    if (this.state.locked || (place?.side === this.pointed?.side && place?.at === this.pointed?.at)) return;
    this.pointed = place;
    this.paint();
  }

  // By the keyboard: look into another token, with the focus on it.
  choose(side, at, focus = true) {
    const place = side === "key" ? this.shown.columns[at] : this.shown.rows[at];
    Object.assign(this.state, { side, token: place.from });
    this.pointed = null;
    this.paint();
    if (focus) this.text.focusToken(side, at);
    if (this.standalone) this.remember();
  }

  // Keep a token while pointing at others; once more lets it go.
  keep(side, place, at) {
    const again = this.state.locked && this.state.side === side && this.state.token === place.from;
    Object.assign(this.state, { side, token: place.from, locked: !again });
    this.pointed = null;
    this.paint();
    this.text.querySelector('[data-role="lock"]').checked = this.state.locked;
    if (this.root.activeElement?.classList.contains("token")) this.text.focusToken(side, at);
    else this.text.reveal(this.chosenNow());
    if (this.standalone) this.remember();
  }
}

async function openStores(data) {
  const stores = { a: new Store(data) };
  await stores.a.open();
  if (data.other) {
    stores.b = new Store(data.other);
    await stores.b.open();
    stores.difference = new Difference(stores.a, stores.b);
    if (!stores.difference.heads.length) delete stores.difference;
  }
  return stores;
}

async function startOne(host, css, standalone, live) {
  const data = JSON.parse(host.querySelector('script[type="application/json"]').textContent);
  if (typeof DecompressionStream === "undefined") {
    host.append(el("p", {}, translator("en")("noInflate")));
    return;
  }
  const stores = await openStores(data);
  const view = new View(host, stores, standalone, css);
  if (live) view.live = new Live(view, live);
  await view.update(standalone ? fromHash(location.hash, stores) : {});
  view.text.reveal(view.chosenNow());
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now && now !== width) view.paint();  // also when a notebook shows what it had folded away
    width = now;
  }).observe(host);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.paint());
  if (standalone) addEventListener("hashchange", () => { view.live?.moved(); view.update(fromHash(location.hash, view.stores)); });
  performance.mark("headwise-ready");
}

// A notebook may hold several copies of one output; each starts those that are not yet running.
function startAll(key, css, standalone, live) {
  for (const host of document.querySelectorAll(`.headwise-view[data-key="${key}"]`)) {
    if (host.dataset.started) continue;
    host.dataset.started = "yes";
    startOne(host, css, standalone, live);
  }
}
