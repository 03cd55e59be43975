// Talking to the server: what is typed, which heads are off, and what came of it.

class Live {
  constructor(view, config) {
    Object.assign(this, { view, config, model: config.model, off: [], how: "zero", reading: null, written: null, writing: false, waiting: {} });
    this.shownText = config.text;  // of which the maps are
    this.restore(location.hash);
    this.panel = new LivePanel(this, config);
    this.panel.set(this);
    view.parts.extra.append(this.panel.element);
    view.state.token = view.store.data.queries.labels.length - 1;
    view.root.addEventListener("keydown", (event) => {
      const name = event.target.dataset?.head;
      if (name && event.code === "KeyO" && !event.ctrlKey && !event.metaKey && !event.altKey) this.toggle([name]);
    });
    const asBegun = this.text === config.text && this.model === config.model && !this.off.length;
    if (asBegun) this.read();
    else this.refresh();
  }

  get about() {
    return this.config.models.find(({ name }) => name === this.model);
  }

  // What a link has to say beside the selection, and back.
  address() {
    const parts = new URLSearchParams();
    if (this.model !== this.config.model) parts.set("live-model", this.model);
    if (this.off.length) parts.set("off", this.off.join("_"));
    if (this.how !== "zero") parts.set("how", this.how);
    if (this.text !== this.config.text) parts.set("text", this.text);
    return parts.size ? `&${parts}` : "";
  }

  restore(hash) {
    const parts = new URLSearchParams(hash.replace(/^#/, ""));
    this.text = parts.get("text") || this.config.text;
    const wanted = parts.get("live-model");
    this.model = this.config.models.some(({ name }) => name === wanted) ? wanted : this.config.model;
    this.off = (parts.get("off") ?? "").split("_").filter((name) => /^\d{1,4}\.\d{1,4}$/.test(name));
    this.how = parts.get("how") === "mean" ? "mean" : "zero";
  }

  // Another link was opened.
  moved() {
    this.restore(location.hash);
    this.panel.set(this);
    this.forget();
    this.refresh();
  }

  typed(pause = 350) {
    if (this.panel.area.value === this.text) return;
    this.text = this.panel.area.value;
    this.forget();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), pause);
  }

  useModel(model) {
    Object.assign(this, { model, off: [] });
    this.forget();
    this.refresh();
  }

  silence(off, how = this.how) {
    const order = (name) => name.split(".").reduce((sum, part) => sum * 10000 + Number(part), 0);
    Object.assign(this, { off: [...off].sort((a, b) => order(a) - order(b)), how });
    this.forget();
    this.follow();
    this.refresh();
  }

  toggle(names) {
    const rest = this.off.filter((name) => !names.includes(name));
    this.silence(names.every((name) => this.off.includes(name)) ? rest : [...rest, ...names]);
  }

  // What was written is of another text, or of other heads.
  forget() {
    this.waiting.write?.abort();
    this.written = null;
    this.panel.wrote.textContent = "";
    this.panel.drawWritten(this);
  }

  // One request of a kind at a time: a new one ends the one before, which the server then stops working at.
  begin(kind) {
    this.waiting[kind]?.abort();
    this.waiting[kind] = new AbortController();
    return this.waiting[kind].signal;
  }

  async ask(what, more, signal) {
    const body = { model: this.model, text: this.text, off: this.off.map((name) => name.split(".").map(Number)), how: this.how, ...more };
    let response;
    try {
      response = await fetch(`api/${what}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error(this.view.t("lost"));
    }
    if (!response.ok) throw new Error((await response.json()).error);
    return response;
  }

  // Do what asks the server; say what went wrong, if nothing newer is asked.
  async carefully(job) {
    try {
      await job();
      this.panel.fault.textContent = "";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.panel.fault.textContent = error.message;
      this.panel.status.textContent = "";
    }
  }

  // What is expected at one token; null for the last.
  async read(at = null, signal = this.begin("read")) {
    const { t } = this.view;
    const { off } = this;
    await this.carefully(async () => {
      const reading = await (await this.ask("read", { at }, signal)).json();
      this.reading = { ...reading, off };
      this.panel.status.textContent = t("ready", reading.tokens, this.about.tokens);
      this.panel.drawReading(this);
    });
  }

  // Everything anew: the expectations first, then the maps.
  async refresh() {
    clearTimeout(this.timer);
    this.waiting.read?.abort();
    const { t, state } = this.view;
    const signal = this.begin("look");
    this.panel.status.textContent = t("working");
    const asked = { text: this.text, off: this.off, model: this.model };
    const fresh = asked.text !== this.shownText || asked.model !== this.shownModel;
    await this.carefully(async () => {
      const at = fresh && !state.locked ? null : this.token();
      const reading = await (await this.ask("read", { at }, signal)).json();
      this.reading = { ...reading, off: asked.off };
      this.panel.drawReading(this);
      const stores = await openStores(await (await this.ask("look", {}, signal)).json());
      if (signal.aborted) return;
      if (stores.b) stores.b.data.title = t("without", stores.a.data.title, asked.off.join(", "));
      Object.assign(this, { shownText: asked.text, shownModel: asked.model });
      this.panel.status.textContent = t("ready", reading.tokens, this.about.tokens);
      await this.view.replace(stores, fresh && !state.locked ? { token: reading.tokens - 1 } : {});
    });
  }

  async write() {
    const { panel, view } = this;
    if (this.writing) {
      this.waiting.write.abort();
      return;
    }
    const signal = this.begin("write");
    this.writing = true;
    this.written = { plain: "", silent: this.off.length ? "" : undefined };
    panel.wrote.textContent = view.t("writing");
    panel.drawWritten(this);
    panel.drawOff(this);
    let ended = "stopped";
    await this.carefully(async () => {
      const asked = { tokens: Number(panel.tokens.value), temperature: Number(panel.temperature.value), seed: Number(panel.seed.value) };
      const response = await this.ask("write", asked, signal);
      for await (const line of linesOf(response.body)) {
        if (line.error) throw new Error(line.error);
        if (line.done) ended = "written";
        this.written.plain += line.plain ?? "";
        if (this.written.silent !== undefined) this.written.silent += line.silent ?? "";
        panel.drawWritten(this);
      }
    });
    if (this.waiting.write?.signal !== signal) return;
    this.writing = false;
    panel.wrote.textContent = this.written ? view.t(ended) : "";
    panel.drawOff(this);
  }

  // The token that the page has chosen, the last of them where it stands for several.
  token() {
    const { shown, state } = this.view;
    const places = state.side === "key" ? shown.columns : shown.rows;
    return places[state.side === "key" ? shown.columnOf(state.token) : shown.rowOf(state.token)].to - 1;
  }

  // Called whenever what the page shows has changed.
  follow() {
    const { view, panel } = this;
    const { t, state } = view;
    const look = `${state.language} ${state.table}`;
    if (look !== this.look) {
      this.look = look;
      panel.relabel(t);
      panel.drawReading(this);
      panel.drawWritten(this);
    }
    panel.drawOff(this);
    for (const cell of view.root.querySelectorAll(".head")) {
      const off = this.off.includes(cell.dataset.head);
      cell.classList.toggle("off", off);
      const suffix = `, ${t("offHead")}`;
      const name = cell.getAttribute("aria-label").replace(suffix, "") + (off ? suffix : "");
      cell.setAttribute("aria-label", name);
      cell.title = name;
    }
    const current = this.reading && this.shownText === this.text;
    if (current && this.reading.tokens > this.token() && this.token() !== this.reading.at) {
      clearTimeout(this.reader);
      this.reader = setTimeout(() => { if (this.token() !== this.reading.at) this.read(this.token()); }, 120);
    }
  }
}

// Lines of JSON as they come.
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
