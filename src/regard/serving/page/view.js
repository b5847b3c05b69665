// The output of one model: its state, its requests, and the parts that display it.
import { Alignment, fitsRows } from "./alignment.js";
import { Bars } from "./bars.js";
import { calculation } from "./calculation.js";
import { displayToken, element, panel } from "./dom.js";
import { downloads } from "./download.js";
import { Heads } from "./heads.js";
import { heatmap } from "./heatmap.js";
import { isEmpty, listed, noInterventions, pinsBefore, withHead } from "./interventions.js";
import { EMPTY, nBest } from "./n_best.js";
import { NextToken } from "./next_token.js";
import { alignmentPicture, heatmapPicture } from "./picture.js";
import { tree } from "./tree.js";
import { headWeights } from "./weights.js";

const LONG_TEXT = 140; // characters from which the output is set smaller
const CALCULATION_DELAY = 150; // milliseconds that the slider rests before the calculation is requested

// The result of a request that a newer one of the same view has replaced.
export const SUPERSEDED = Symbol("superseded");

// Distinct tokens in quotation marks, each with its own direction of writing.
const quoted = (tokens) => [...new Set(tokens.map(displayToken))].flatMap((token, i) => [i ? ", “" : "“", element("bdi", {}, token), "”"]);

export class View {
  // `page`: engine, options(), setStatus(text), translated(text) after a request has succeeded, changed() after
  // every change of the state, selected(view) after the user has selected a step.
  constructor(number, model, page) {
    Object.assign(this, { number, model, page });
    this.interventions = noInterventions();
    this.line = null; // the text of the displayed translation, with its features; null: that of the first one
    this.wanted = null; // the interventions that are being requested
    this.searchOptions = page.options(); // beam size and number of outputs of the displayed translation
    this.layer = this.head = this.own = null; // null: the model's selected layer; own: a head of self-attention
    this.step = this.rank = this.requests = this.calculations = 0;
    this.width = 800;
    this.hasAttention = model.attention !== "none";
    this.alignment = new Alignment(this);
    this.bars = new Bars(this);
    this.nextToken = new NextToken(this);
    this.heads = new Heads(this);
    this.build();
    this.node.addEventListener("pointerover", (event) => this.highlight(event));
    this.node.addEventListener("focusin", (event) => this.highlight(event));
    new ResizeObserver(() => this.resize()).observe(this.measured);
  }

  // The interventions that are displayed or, while they are being requested, the next ones.
  get latest() {
    return this.wanted ?? this.interventions;
  }

  get editable() {
    return !this.loading && this.hasAttention && this.output.tokens.length > 0;
  }

  build() {
    this.text = element("p", { class: "output", dir: "auto", tabindex: -1, "aria-live": "polite" });
    this.warning = element("p", { class: "warning", role: "status" });
    this.note = element("p", { class: "note" });
    this.chips = element("p", { class: "chips" });
    this.measured = element("div", { class: "measure" });
    this.heatmapTitle = element("p", { class: "hint" });
    this.heatmap = element("div");
    this.nBest = element("div");
    this.calculation = element("div");
    this.tree = element("div");
    const absent = () => element("div"); // keeps the rows of two views aligned
    this.node = element("section", { class: "view", "aria-label": `model ${this.model.name}` },
      element("div", { class: "result" }, element("h2", {}, this.model.name), this.text, this.warning, this.note, this.chips, this.measured),
      this.stepPanel(),
      this.heads.shown && this.hasAttention ? panel(this.heads.title, { help: `${this.model.head_name}s`, hint: `Attention weights of every ${this.heads.unit}: queries are rows, keys are columns. Click a thumbnail to display its weights.` }, this.heads.node)
        : this.page.sideBySide && this.hasAttention ? panel("Layers and heads", { hint: "This model has one attention layer with one head; its weights are shown above." }) : absent(),
      this.hasAttention ? panel("Attention at every step", {
        tools: downloads("heatmap", () => heatmapPicture(this.heads.selection), () => this.data(this.heads.selection), this.page.setStatus),
      }, this.heatmapTitle, this.heatmap) : absent(),
      panel("N-best outputs", { hint: "The best outputs of beam search, ranked by score. Click one to display it." }, this.nBest),
      this.hasAttention && this.page.engine.explain ? this.details("Attention calculation for this step", this.calculation, () => this.showCalculation()) : absent(),
      this.details("Search tree", element("div", {},
        element("p", { class: "hint" }, "Every hypothesis that beam search kept, with the probability of each token. Click a token to force the output up to and including that token."), this.tree),
      () => this.tree.replaceChildren(tree(this))));
  }

  stepPanel() {
    this.slider = element("input", { type: "range", min: 0, value: 0, "aria-label": "output step", oninput: () => this.selectStep(Number(this.slider.value)) });
    this.stepLabel = element("output", { class: "step-label" });
    if (!this.hasAttention)
      return panel("Steps", { hint: "This model has no attention: the decoder receives the source as a single fixed-size vector." },
        element("div", { class: "step" }, this.slider, this.stepLabel), this.nextToken.node);
    this.parts = element("div", { class: "parts" }, this.alignment.node,
      panel("Attention at this step", { help: "weights", name: "weights", hint: `Drag a bar, or focus it and use the arrow keys, to change a weight${this.reach}. The output is then decoded again from this step.` }, this.bars.node),
      this.nextToken.node);
    return panel("Alignment", {
      help: "alignment", hint: "Each line connects an output token with a source token that it attends to. Click an output token to select its step.",
      tools: downloads("alignment", () => alignmentPicture(this.heads.cross), () => this.data(this.heads.cross), this.page.setStatus),
    }, element("div", { class: "step" }, this.slider, this.stepLabel), this.parts);
  }

  // What a pinned weight applies to, where the model has several distributions per step.
  get reach() {
    return this.model.layers * this.model.heads > 1 ? `, which applies to every ${this.heads.unit}` : "";
  }

  details(title, body, onOpen) {
    const details = element("details", { class: "panel", ontoggle: () => details.open && onOpen() }, element("summary", {}, title), body);
    (this.sections ??= []).push([details, onOpen]);
    return details;
  }

  // Translate a new text without interventions. Returns the error message, if any, or SUPERSEDED.
  translate(text, agree) {
    this.loading = true; // until the newest request ends
    this.bars.cancel();
    return this.request(noInterventions(), text, this.page.options(), agree);
  }

  async apply(change) {
    if (this.loading) return this.bars.update();
    const error = await this.request({ ...this.latest, ...change });
    if (error !== SUPERSEDED) this.page.setStatus(error ?? "");
  }

  // The state that a link holds. Returns the error message, if any, or SUPERSEDED.
  async restore({ text, step, view: { interventions, layer, head, rank } }, agree) {
    const { layers, heads } = this.model;
    const exists = layer !== null && layer < layers && (head === null || head < heads);
    const error = await this.translate(text, agree) ?? (isEmpty(interventions) ? undefined : await this.request(interventions));
    if (error) return error;
    Object.assign(this, { own: null, layer: exists ? layer : null, head: exists ? head : null });
    this.show(this.translation, rank < (this.translation.n_best?.length ?? 1) ? rank : 0);
    this.goToStep(step);
  }

  // Translate with these interventions; an error leaves the view unchanged. `agree` receives the error of this view, if
  // any, and returns that of any view.
  async request(interventions, text = this.line ?? this.translation.source, searchOptions = this.searchOptions, agree = (error) => error) {
    const id = ++this.requests;
    const baseline = isEmpty(this.interventions) ? this.translation?.text : this.baseline;
    this.wanted = interventions;
    this.node.setAttribute("aria-busy", "true");
    let translation, error;
    try {
      translation = await this.page.engine.translate(this.number, text, searchOptions, interventions);
    } catch (reason) {
      error = reason.message;
    }
    error = await agree(error);
    if (id !== this.requests) return SUPERSEDED;
    this.node.removeAttribute("aria-busy");
    Object.assign(this, { wanted: null, loading: false });
    if (error !== undefined) {
      this.keepFocus(() => { this.bars.update(); if (this.hasAttention) this.heads.render(); });
      return error;
    }
    Object.assign(this, { interventions, baseline, searchOptions, line: text });
    this.page.translated(text);
    this.show(translation);
  }

  show(translation, rank = 0) {
    const output = { ...translation, ...(translation.n_best?.[rank] ?? {}) };
    const step = Math.min(this.step, Math.max(0, output.tokens.length - 1));
    // a change of a bar that has not been sent remains if it is for the same step of the same output
    const context = ({ source_tokens: source, tokens }) => JSON.stringify([source, tokens.slice(0, step)]);
    if (!this.output || step !== this.step || context(output) !== context(this.output)) this.bars.cancel();
    Object.assign(this, { translation, rank, output, step });
    this.render();
    this.page.changed();
  }

  // The displayed weights: of the model's selected layer, or of the selected layer and head.
  get weights() {
    if (this.layer === null) return this.output.attention ?? [];
    return headWeights(this.output.attention_heads, this.layer, this.head);
  }

  // What the JSON downloads hold; `displayed`: the weights of the picture.
  data(displayed) {
    const { source, text, source_tokens, tokens, score, log_prob } = this.output;
    return { model: this.model.name, source, text, source_tokens, tokens, score, log_prob, interventions: this.interventions, displayed };
  }

  // The user selects a step, and the other view follows.
  selectStep(step) {
    this.goToStep(step);
    this.page.selected(this);
  }

  goToStep(step) {
    this.bars.cancel();
    this.step = Math.min(Math.max(0, step), Math.max(0, this.output.tokens.length - 1));
    for (const node of this.node.querySelectorAll("[data-step]")) {
      const selected = Number(node.dataset.step) === this.step;
      node.classList.toggle("selected", selected);
      if (node.hasAttribute("aria-pressed")) node.setAttribute("aria-pressed", String(selected));
    }
    this.showStep();
    if (this.hasAttention) this.alignment.selectStep();
    for (const [details, onOpen] of this.sections) if (details.open && details.contains(this.calculation)) onOpen();
    this.page.changed();
  }

  selectOutput(rank) {
    this.bars.cancel();
    this.show(this.translation, rank);
  }

  selectHead(kind, layer, head) {
    if (kind === "cross") Object.assign(this, { layer, head, own: null });
    else this.own = { kind, layer, head };
    this.render();
    this.page.changed();
  }

  // Pin weights of this step. Pins of later steps are dropped: they belong to another output.
  pin(pins) {
    return this.apply({ pins: { ...pinsBefore(this.latest, this.step), [this.step]: pins }, prefix: this.output.tokens.slice(0, this.step) });
  }

  forcePrefix(tokens) {
    return this.apply({ pins: pinsBefore(this.latest, tokens.length), prefix: tokens });
  }

  ablateHead(layer, head, ablate) {
    return this.apply(withHead(this.latest, layer, head, ablate));
  }

  render() {
    this.keepFocus(() => this.renderOutput());
  }

  // Rendering replaces nodes: the focus moves to the new one or, if there is none, to the slider; to the output if the slider is disabled.
  keepFocus(render) {
    const focus = this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    render();
    if (focus) (this.node.querySelector(`[data-focus="${CSS.escape(focus)}"]`) ?? (this.slider.disabled ? this.text : this.slider)).focus({ preventScroll: true });
  }

  renderOutput() {
    const { output } = this;
    const isBlank = !output.source_tokens.length;
    this.node.classList.toggle("blank", isBlank);
    this.text.textContent = isBlank ? "" : output.text || EMPTY;
    this.text.classList.toggle("long", output.text.length > LONG_TEXT);
    this.warning.textContent = output.warning ?? "";
    this.note.replaceChildren(...(isBlank ? ["The text is empty: there is nothing to translate."] : this.notes()));
    this.chips.replaceChildren(...this.interventionChips());
    this.nBest.replaceChildren(nBest(this));
    if (this.hasAttention) this.showAttention();
    this.showStep();
    this.renderDetails();
  }

  renderDetails() {
    for (const [details, onOpen] of this.sections) if (details.open) onOpen();
  }

  notes() {
    const notes = [];
    const { unknown, left_out: leftOut, complete } = this.output;
    if (unknown.length) notes.push("Not in the vocabulary: ", ...quoted(unknown), ". ");
    if (leftOut.length) notes.push("Ignored punctuation that is not in the vocabulary: ", ...quoted(leftOut), ". ");
    if (!complete) notes.push("Output truncated at the length limit. ");
    if (!isEmpty(this.interventions))
      notes.push(...(this.baseline === this.translation.text ? ["The interventions did not change the best output."] : ["Best output without interventions: ", element("bdi", {}, this.baseline || EMPTY)]));
    return notes;
  }

  showAttention() {
    this.parts.classList.toggle("vertical", !fitsRows(this));
    this.alignment.render();
    this.heads.render();
    this.showHeatmap();
    if (!this.output.tokens.length) this.calculation.replaceChildren();
  }

  showHeatmap() {
    const { kind, layer, head, ...shown } = this.heads.selection;
    const place = this.heads.shown ? ` (${this.heads.place(layer, head)})` : "";
    this.heatmapTitle.textContent = kind === "cross"
      ? `Each row shows one step: an output token and its weights over the source tokens${place}.`
      : `Self-attention of the ${kind}${place}: each row shows a token and its weights over ${kind === "encoder" ? "the source" : "the tokens up to and including it"}.`;
    const cross = kind === "cross" ? { step: this.step, onSelect: (step) => this.selectStep(step) } : {};
    this.heatmap.replaceChildren(...(shown.rows.length ? [heatmap({ ...shown, width: this.width, ...cross })] : []));
  }

  showStep() {
    const { tokens } = this.output;
    this.slider.max = Math.max(0, tokens.length - 1);
    this.slider.value = this.step;
    this.slider.disabled = tokens.length < 2;
    const label = tokens.length ? `step ${this.step} (0 to ${tokens.length - 1}): ${displayToken(tokens[this.step])}` : "no steps";
    this.slider.setAttribute("aria-valuetext", label);
    this.stepLabel.textContent = label;
    if (this.hasAttention) this.bars.render();
    this.nextToken.render();
  }

  showCalculation() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const { output, step } = this, id = ++this.calculations;
      if (!output.tokens.length) return;
      const result = await calculation(this).catch((error) => element("p", { class: "hint" }, error.message));
      if (id === this.calculations && output === this.output && step === this.step) this.calculation.replaceChildren(result);
    }, CALCULATION_DELAY);
  }

  // One button per intervention, which removes it.
  interventionChips() {
    const chip = (text, remove, label = `Remove intervention: ${text}`) => element("button", { type: "button", class: "chip", "data-focus": `chip ${text}`, "aria-label": label, onclick: () => this.apply(remove(this.latest)) }, text, element("span", { "aria-hidden": "true" }, " ×"));
    const chips = [...listed(this.interventions, this.output.source_tokens, this.model)].map(([text, remove]) => chip(text, remove));
    return chips.length ? [...chips, chip("reset", noInterventions, "Reset all interventions")] : [];
  }

  // The layout of alignment and heatmap depends on the width.
  resize() {
    const width = this.measured.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    if (!this.output) return;
    this.keepFocus(() => {
      if (this.hasAttention) this.showAttention();
      this.renderDetails();
    });
  }

  // Highlight everything that belongs to the tokens under the pointer.
  highlight(event) {
    const target = event.target.closest?.("[data-source], [data-target]");
    this.node.querySelectorAll(".highlighted").forEach((node) => node.classList.remove("highlighted"));
    if (!target) return;
    const { source: i, target: t } = target.dataset;
    const selectors = [];
    if (i !== undefined) selectors.push(`[data-source="${i}"]:not([data-target])`);
    if (t !== undefined) selectors.push(`[data-target="${t}"]:not([data-source])`);
    if (i !== undefined && t !== undefined) selectors.push(`[data-source="${i}"][data-target="${t}"]`);
    this.node.querySelectorAll(selectors.join(",")).forEach((node) => node.classList.add("highlighted"));
  }
}
