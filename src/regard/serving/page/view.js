// One model's output and everything that can be seen of it and done to it.
import { translate } from "./api.js";
import { Bars } from "./bars.js";
import { element, share, spelled } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { lines } from "./lines.js";
import { moves } from "./steps.js";
import { tree } from "./tree.js";
import { ofHead } from "./weights.js";

const nothing = () => ({ pins: {}, prefix: [], dropped: [] });

export class View {
  constructor(number, model, options, say) {
    Object.assign(this, { number, model, options, say });
    this.pushes = nothing();
    this.layer = this.head = null;
    this.step = 0;
    this.rank = 0;
    this.asked = 0;
    this.bars = new Bars(this);
    this.build();
    this.node.addEventListener("pointerover", (event) => this.point(event));
    this.node.addEventListener("focusin", (event) => this.point(event));
  }

  get pushable() {
    return !this.asking && this.model.attention !== "none" && this.output.tokens.length > 0;
  }

  build() {
    this.text = element("p", { class: "output", dir: "auto", "aria-live": "polite" });
    this.note = element("p", { class: "note" });
    this.chips = element("p", { class: "chips" });
    this.picture = element("div");
    this.slider = element("input", { type: "range", min: 0, value: 0, "aria-label": "output step", oninput: () => this.choose(Number(this.slider.value)) });
    this.where = element("output", { class: "where" });
    this.heads = element("div", { class: "heads" });
    this.map = element("div");
    this.best = element("ol", { class: "best" });
    this.walk = element("div");
    this.tree = element("div");
    const looks = [
      this.picture,
      element("section", { class: "look", "aria-label": "where one step looks" },
        element("div", { class: "step" }, this.slider, this.where), this.heads, this.bars.node,
        element("p", { class: "hint" }, "Drag a bar (or use the arrow keys) to push the look; the model goes on from there.")),
      element("section", {}, element("h3", {}, "Every step"), this.map),
      (this.moves = this.section("The three moves of this step", this.walk, () => this.showMoves())),
    ];
    if (this.model.attention === "none") looks.splice(0, looks.length, element("p", { class: "hint" }, "This model has no attention: it sees the source through one state alone."));
    this.node = element("section", { class: "view", "aria-label": `model ${this.model.name}` },
      element("h2", {}, this.model.name), this.text, this.note, this.chips, ...looks,
      element("section", {}, element("h3", {}, "Outputs, best first"), this.best,
        element("p", { class: "hint" }, "Probability of the whole output; their order also minds its length.")),
      this.section("What the search tried", this.tree, () => this.tree.replaceChildren(tree(this))));
  }

  section(title, body, open) {
    const details = element("details", { ontoggle: () => details.open && open() }, element("summary", {}, title), body);
    (this.details ??= []).push([details, open]);
    return details;
  }

  // A new text: nothing is pushed. Gives what is wrong, or nothing.
  async ask(text) {
    this.asking = true;
    this.bars.forget();
    const wrong = await this.run(nothing(), text);
    this.asking = false;
    return wrong;
  }

  async apply(change) {
    if (this.asking) return this.bars.update();
    this.say((await this.run({ ...this.pushes, ...change })) ?? "");
  }

  // Ask with these pushes; a refusal leaves everything as it is.
  async run(pushes, text = this.answer.source) {
    const asked = ++this.asked;
    const before = this.pushed ? this.before : this.answer?.text;
    this.node.setAttribute("aria-busy", "true");
    try {
      const found = await translate(this.number, text, this.options(), pushes);
      if (asked !== this.asked) return;
      Object.assign(this, { pushes, before });
      this.show(found);
    } catch (error) {
      this.bars.update();
      return error.message;
    } finally {
      if (asked === this.asked) this.node.removeAttribute("aria-busy");
    }
  }

  show(answer, rank = 0) {
    this.bars.forget();
    this.answer = answer;
    this.rank = rank;
    this.output = { ...answer, ...(answer.n_best?.[rank] ?? {}) };
    this.step = Math.min(this.step, Math.max(0, this.output.tokens.length - 1));
    this.render();
  }

  // The weights that are shown: of the best layer, or of the chosen layer and head.
  get rows() {
    if (this.layer === null) return this.output.attention ?? [];
    return ofHead(this.output.attention_heads, this.layer, this.head);
  }

  choose(step) {
    this.bars.forget();
    this.step = Math.min(Math.max(0, step), Math.max(0, this.output.tokens.length - 1));
    for (const node of this.node.querySelectorAll("[data-step]")) {
      const chosen = Number(node.dataset.step) === this.step;
      node.classList.toggle("chosen", chosen);
      if (node.hasAttribute("aria-pressed")) node.setAttribute("aria-pressed", String(chosen));
    }
    this.showStep();
    if (this.moves.open) this.showMoves();
  }

  // Weights pinned at this step; what was pushed after it belonged to another output.
  pin(pins) {
    return this.apply({ pins: { ...this.pinsBefore(this.step), [this.step]: pins }, prefix: this.output.tokens.slice(0, this.step) });
  }

  begin(tokens) {
    return this.apply({ pins: this.pinsBefore(tokens.length), prefix: tokens });
  }

  drop(layer, head, dropped) {
    const others = this.pushes.dropped.filter(([l, h]) => l !== layer || h !== head);
    return this.apply({ dropped: dropped ? [...others, [layer, head]] : others });
  }

  pinsBefore(end) {
    return Object.fromEntries(Object.entries(this.pushes.pins).filter(([step]) => Number(step) < end));
  }

  get pushed() {
    return Object.keys(this.pushes.pins).length + this.pushes.prefix.length + this.pushes.dropped.length > 0;
  }

  render() {
    const { output } = this;
    const focus = this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    this.text.textContent = output.text || "(nothing)";
    const unknown = output.unknown.length ? `not in its vocabulary: ${output.unknown.join(" ")}. ` : "";
    const cut = output.complete ? "" : "cut at its length limit. ";
    const was = !this.pushed ? "" : this.before === this.answer.text ? "the same as without pushing" : `without pushing: ${this.before}`;
    this.note.textContent = unknown + cut + was;
    this.chips.replaceChildren(...this.chip());
    this.showBest();
    if (this.model.attention !== "none") this.showLooks();
    for (const [details, open] of this.details) if (details.open) open();
    if (focus) this.node.querySelector(`[data-focus="${focus}"]`)?.focus({ preventScroll: true });
  }

  showLooks() {
    this.showHeads();
    if (this.output.tokens.length) {
      this.picture.replaceChildren(lines(this));
      this.map.replaceChildren(heatmap(this));
    } else [this.picture, this.map, this.walk].forEach((part) => part.replaceChildren());
    this.showStep();
  }

  showStep() {
    const { tokens } = this.output;
    this.slider.max = Math.max(0, tokens.length - 1);
    this.slider.value = this.step;
    this.slider.disabled = tokens.length < 2;
    const said = tokens.length ? `step ${this.step + 1} of ${tokens.length}: ${spelled(tokens[this.step])}` : "no step";
    this.slider.setAttribute("aria-valuetext", said);
    this.where.textContent = said;
    this.bars.render();
  }

  showHeads() {
    const { layers, heads } = this.model;
    if (layers * heads === 1) return;
    const choices = [element("option", { value: "" }, `layer ${this.model.attention_layer}, its heads' average (shown everywhere)`)];
    for (let layer = 0; layer < layers; layer++) {
      choices.push(element("option", { value: `${layer}`, selected: this.layer === layer && this.head === null }, `layer ${layer}, average`));
      for (let head = 0; head < heads; head++)
        choices.push(element("option", { value: `${layer},${head}`, selected: this.layer === layer && this.head === head }, `layer ${layer}, head ${head}`));
    }
    const select = element("select", { "aria-label": "layer and head", onchange: () => {
      const [layer, head] = select.value === "" ? [null, null] : select.value.split(",").map(Number);
      Object.assign(this, { layer, head: head ?? null });
      this.render();
    }, "data-focus": "heads" }, ...choices);
    const dropped = this.pushes.dropped.some(([l, h]) => l === this.layer && h === this.head);
    const box = element("input", { type: "checkbox", checked: dropped, "data-focus": "drop", onchange: (event) => this.drop(this.layer, this.head, event.target.checked) });
    this.heads.replaceChildren(select, ...(this.head === null ? [] : [element("label", {}, box, " drop this head")]));
  }

  showBest() {
    const all = this.answer.n_best ?? [this.answer];
    this.best.replaceChildren(...all.map((output, rank) => element("li", {},
      element("button", { type: "button", "data-focus": `best ${rank}`, "aria-pressed": rank === this.rank, class: rank === this.rank ? "chosen" : "", onclick: () => this.show(this.answer, rank) },
        element("bdi", {}, output.text || "(nothing)"),
        element("span", { class: "probability" }, `${(100 * Math.exp(output.log_prob)).toPrecision(3)} %`)))));
  }

  // Asked for when the slider rests.
  showMoves() {
    clearTimeout(this.walking);
    this.walking = setTimeout(async () => {
      const { output, step } = this;
      if (!output.tokens.length) return;
      const found = await moves(this).catch((error) => element("p", { class: "hint" }, error.message));
      if (output === this.output && step === this.step) this.walk.replaceChildren(found);
    }, 150);
  }

  // What is pushed, each with a way back.
  *chip() {
    const { pins, prefix, dropped } = this.pushes;
    const one = (text, change) => element("button", { type: "button", class: "chip", "aria-label": `${text}: let go`, onclick: () => this.apply(change) }, text, element("span", { "aria-hidden": "true" }, " ×"));
    if (prefix.length) yield one(`begins with ${prefix.map(spelled).join(" ")}`, { prefix: [] });
    for (const [step, each] of Object.entries(pins))
      for (const [i, weight] of Object.entries(each)) {
        const { [i]: _, ...rest } = each;
        const { [step]: __, ...others } = pins;
        yield one(`step ${Number(step) + 1}: ${spelled(this.output.source_tokens[i])} ${share(weight)}`,
          { pins: Object.keys(rest).length ? { ...others, [step]: rest } : others });
      }
    for (const [layer, head] of dropped)
      yield one(`without layer ${layer}, head ${head}`, { dropped: dropped.filter(([l, h]) => l !== layer || h !== head) });
    if (this.pushed) yield one("as it was", nothing());
  }

  // Whatever belongs to the tokens under the pointer is marked everywhere.
  point(event) {
    const marked = event.target.closest?.("[data-source], [data-target]");
    this.node.querySelectorAll(".pointed").forEach((node) => node.classList.remove("pointed"));
    if (!marked) return;
    const { source, target } = marked.dataset;
    const wanted = [];
    if (source !== undefined) wanted.push(`[data-source="${source}"]:not([data-target])`);
    if (target !== undefined) wanted.push(`[data-target="${target}"]:not([data-source])`);
    if (source !== undefined && target !== undefined) wanted.push(`[data-source="${source}"][data-target="${target}"]`);
    this.node.querySelectorAll(wanted.join(",")).forEach((node) => node.classList.add("pointed"));
  }
}
