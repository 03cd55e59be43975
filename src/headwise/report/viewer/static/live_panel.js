// What the live page adds: a text to type into, heads that are off, and what the model makes of both.

const PERCENT = (share) => `${(share * 100).toFixed(share < 0.0995 ? 2 : 1)} %`;

// The controls. They stay while the page around them is made anew, so that whoever types is not disturbed.
class LivePanel {
  constructor(live, config) {
    this.live = live;
    this.texts = [];  // elements with what they say, to be said again in another language
    const id = "live-text";
    this.area = el("textarea", { id, "data-role": id, rows: 2, spellcheck: "false", dir: "auto", autocomplete: "off",
      oninput: (event) => { if (!event.isComposing) live.typed(); }, oncompositionend: () => live.typed(),
      onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) live.typed(0); } });
    this.area.value = config.text;
    this.status = el("p", { class: "quiet live-status", role: "status" });
    this.fault = el("p", { class: "live-fault", role: "alert" });
    this.models = this.field("model", el("select", { "data-role": "live-model", onchange: () => live.useModel(this.models.value) },
      config.models.map(({ name }) => el("option", { value: name, selected: name === config.model }, name))));
    this.how = this.field("how", el("select", { "data-role": "live-how", onchange: () => live.silence(live.off, this.how.value) },
      ["zero", "mean"].map((name) => this.say(el("option", { value: name }), name))));
    this.toggle = el("button", { type: "button", "data-role": "live-switch", onclick: () => live.toggle(live.view.state.chosen) });
    this.allOn = this.say(el("button", { type: "button", "data-role": "live-all-on", onclick: () => { live.silence([]); this.toggle.focus(); } }), "allOn");
    this.offList = el("div", { class: "chips" });
    this.place = el("div", { class: "live-grid" });  // where the grid of heads goes
    this.next = el("div", { class: "live-box" });
    this.losses = el("div");
    this.tokens = this.field("newTokens", el("input", { type: "number", min: 1, max: config.most, value: Math.min(60, config.most), "data-role": "live-tokens" }));
    this.temperature = this.field("temperature", el("input", { type: "number", min: 0, max: 5, step: 0.1, value: 0, "data-role": "live-temperature" }));
    this.seed = this.field("seed", el("input", { type: "number", min: 0, value: 0, "data-role": "live-seed" }));
    this.writer = el("button", { type: "button", "data-role": "live-write", onclick: () => live.write() });
    this.wrote = el("span", { class: "quiet", role: "status" });
    this.written = el("div", { class: "live-written" });
    this.writing = el("div", {}, this.say(el("h3"), "writes"),
      el("div", { class: "controls" }, [this.tokens, this.temperature, this.seed].map((input) => input.parentNode), this.writer, this.wrote), this.written);
    this.element = el("section", { class: "panel live" },
      el("div", { class: "head-line" }, this.say(el("h2"), "live"),
        el("div", { class: "controls" }, config.models.length > 1 && this.models.parentNode)),
      this.say(el("label", { for: id, class: "quiet" }), "liveText"), this.area,
      el("div", { class: "live-line" }, this.status, this.say(el("p", { class: "quiet" }), "liveHint")), this.fault,
      el("div", { class: "live-off" }, this.say(el("span", { class: "quiet" }), "off"), this.offList, this.toggle, this.allOn, this.how.parentNode),
      el("div", { class: "live-results" }, this.place, this.next, el("div", { class: "live-box" }, this.losses, this.writing)));
  }

  set({ text, model, how }) {
    this.area.value = text;
    this.models.value = model;
    this.how.value = how;
  }

  say(element, name) {
    this.texts.push([element, name]);
    return element;
  }

  // An input with its label; what comes back is the input.
  field(name, input) {
    el("label", { class: "field" }, this.say(el("span"), name), input);
    return input;
  }

  relabel(t) {
    for (const [element, name] of this.texts) element.textContent = t(name);
  }

  drawOff({ off, view, writing }) {
    const { t } = view;
    this.offList.replaceChildren(...(off.length ? off.map((name) => el("span", { class: "chip" }, name,
      button("✕", () => { view.live.toggle([name]); this.toggle.focus(); }, { "aria-label": `${t("switchOn")}: ${t("theHead", ...name.split("."))}` })))
      : [el("span", { class: "quiet" }, t("offNone"))]));
    const { chosen } = view.state;
    this.toggle.textContent = `${t(chosen.every((name) => off.includes(name)) ? "switchOn" : "switchOff")}: ${chosen.join(", ")}`;
    this.allOn.hidden = off.length === 0;
    this.writer.textContent = t(writing ? "stop" : "write");
  }

  drawReading({ reading, view, about }) {
    const { t } = view;
    this.writing.hidden = about.predicts !== "next token";
    if (!reading) return;
    const { loss, losses, labels, at, candidates } = reading;
    const sides = reading.off.length ? [["plain", t("untouched")], ["silent", t("silent")]] : [["plain", t("untouched")]];
    const bar = (share) => el("span", { class: "share", style: `--share:${(share * 100).toFixed(2)}%` }, PERCENT(share));
    const caption = t(about.predicts === "next token" ? "nextAfter" : "inPlaceOf", `${labels[at]} (${at})`);
    this.next.hidden = about.predicts === "nothing";
    this.next.replaceChildren(candidates.length ? dataTable(caption, [t("token"), ...sides.map(([, name]) => name)],
      candidates.map((one) => [one.label, ...sides.map(([side]) => bar(one[side]))]), { class: "data candidates" })
      : el("p", { class: "quiet" }, `${caption}: ${t("noCandidates")}`));

    const turns = about.predicts === "nothing";
    const shown = losses.silent ?? losses.plain;
    const parts = [el("h3", {}, t(turns ? "turnTitle" : "lossTitle"))];
    if (!shown) parts.push(el("p", { class: "quiet" }, t(turns ? "turnNone" : "lossNone")));
    else {
      const facts = turns ? [[t("turnMean"), loss.silent]] : [[t("untouched"), loss.plain], ...(losses.silent ? [[t("silent"), loss.silent], [t("change"), loss.delta]] : [])];
      parts.push(el("dl", { class: "facts live-loss" }, facts.map(([name, value], n) => el("div", {}, el("dt", {}, name),
        el("dd", { "data-loss": turns ? "silent" : ["plain", "silent", "delta"][n] }, n === 2 ? signedNumber(value) : shownNumber(value))))));
      parts.push(view.state.table ? this.lossTable(view, reading, turns) : this.lossStrip(view, reading));
    }
    this.losses.replaceChildren(...parts);
  }

  lossStrip({ t }, { labels, losses }) {
    const compared = losses.silent && losses.plain;
    const values = labels.map((_, at) => {
      const [plain, silent] = [losses.plain?.[at] ?? null, losses.silent?.[at] ?? null];
      return compared ? (silent === null ? null : silent - plain) : silent ?? plain;
    });
    const most = Math.max(...values.map((value) => Math.abs(value ?? 0)), 1e-3);
    const told = (at) => (values[at] === null ? t("notPredicted") : [losses.plain && shownNumber(losses.plain[at]), losses.silent && `${t("silent")} ${shownNumber(losses.silent[at])}`].filter(Boolean).join(", "));
    return el("div", {}, el("div", { class: "strip" }, labels.flatMap((label, at) => {
      const value = values[at];
      const share = value === null ? 0 : (Math.abs(value) / most) * 50;
      const token = el("span", { class: value === null ? "token special" : "token", dir: "auto", title: `${label}: ${told(at)}`,
        style: `background:color-mix(in srgb, var(--${!compared || value > 0 ? "in" : "out"}) ${share.toFixed(1)}%, transparent)` }, label);
      return label.includes("⏎") ? [token, el("br")] : [token];
    })), el("p", { class: "quiet" }, t(compared ? "changeHint" : "lossHint", shownNumber(most))));
  }

  lossTable({ t }, { labels, losses }, turns) {
    const sides = [losses.plain && ["plain", t("untouched")], losses.silent && ["silent", t("silent")]].filter(Boolean);
    return el("div", { class: "scroll live-table", tabindex: 0, role: "region", "aria-label": t(turns ? "turnTitle" : "lossTitle") },
      dataTable("", [t("token"), t("position"), ...sides.map(([, name]) => name)], labels.map((label, at) => [label, String(at),
        ...sides.map(([side]) => (losses[side][at] === null ? "–" : shownNumber(losses[side][at])))])));
  }

  drawWritten({ written, view, text }) {
    const { t } = view;
    const column = (side, ...inner) => el("div", {}, el("h4", {}, t(side === "plain" ? "untouched" : "silent")),
      el("p", { class: "written", "data-side": side, dir: "auto" }, el("span", { class: "quiet" }, text), ...inner));
    if (!written) {
      this.written.replaceChildren();
      return;
    }
    const { plain, silent } = written;
    let same = 0;
    while (silent !== undefined && same < Math.min(plain.length, silent.length) && plain[same] === silent[same]) same++;
    this.written.replaceChildren(column("plain", plain), ...(silent === undefined ? []
      : [column("silent", silent.slice(0, same), silent.length > same && el("mark", {}, silent.slice(same)))].filter(Boolean)));
  }
}
