// The output of one model: displays it and sends interventions.
import { sourceFields, translate } from "./api.js";
import { alignment } from "./alignment.js";
import { Bars } from "./bars.js";
import { calculation } from "./calculation.js";
import { displayToken, element, formatWeight } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { tree } from "./tree.js";
import { headWeights } from "./weights.js";

const CALCULATION_DELAY = 150; // milliseconds that the slider rests before the calculation is requested
const EMPTY = "(empty output)";
const noInterventions = () => ({ pins: {}, prefix: [], ablated: [] });

export class View {
  constructor(number, model, options, setStatus) {
    Object.assign(this, { number, model, options, setStatus });
    this.interventions = noInterventions();
    this.layer = this.head = null;
    this.step = 0;
    this.rank = 0;
    this.requests = 0;
    this.bars = new Bars(this);
    this.build();
    this.node.addEventListener("pointerover", (event) => this.highlight(event));
    this.node.addEventListener("focusin", (event) => this.highlight(event));
  }

  get editable() {
    return !this.loading && this.model.attention !== "none" && this.output.tokens.length > 0;
  }

  build() {
    this.text = element("p", { class: "output", dir: "auto", "aria-live": "polite" });
    this.note = element("p", { class: "note" });
    this.chips = element("p", { class: "chips" });
    this.alignment = element("div");
    this.slider = element("input", { type: "range", min: 0, value: 0, "aria-label": "output step", oninput: () => this.selectStep(Number(this.slider.value)) });
    this.stepLabel = element("output", { class: "step-label" });
    this.heads = element("div", { class: "heads" });
    this.heatmap = element("div");
    this.nBest = element("ol", { class: "n-best" });
    this.calculation = element("div");
    this.tree = element("div");
    const attention = this.model.attention === "none"
      ? [element("p", { class: "hint" }, "This model has no attention: the decoder receives the source as a single fixed-size vector.")]
      : [
        this.alignment,
        element("section", { "aria-label": "attention of one step" },
          element("div", { class: "step" }, this.slider, this.stepLabel), this.heads, this.bars.node,
          element("p", { class: "hint" }, "Drag a bar, or focus it and use the arrow keys, to change a weight. The output is then decoded again from this step.")),
        element("section", {}, element("h3", {}, "Attention at every step"), this.heatmap),
        (this.calculationSection = this.section("Attention calculation for this step", this.calculation, () => this.showCalculation())),
      ];
    this.node = element("section", { class: "view", "aria-label": `model ${this.model.name}` },
      element("h2", {}, this.model.name), this.text, this.note, this.chips, ...attention,
      element("section", {}, element("h3", {}, "N-best outputs"), this.nBest,
        element("p", { class: "hint" }, "Percentages are the probability of the complete output. The ranking also applies a length penalty, so it may differ.")),
      this.section("Search tree", this.tree, () => this.tree.replaceChildren(tree(this))));
  }

  section(title, body, onOpen) {
    const details = element("details", { ontoggle: () => details.open && onOpen() }, element("summary", {}, title), body);
    (this.sections ??= []).push([details, onOpen]);
    return details;
  }

  // Translate a new text without interventions. Returns the error message, if any.
  async translate(text) {
    this.loading = true;
    this.bars.cancel();
    const error = await this.request(noInterventions(), text);
    this.loading = false;
    return error;
  }

  async apply(change) {
    if (this.loading) return this.bars.update();
    this.setStatus((await this.request({ ...this.interventions, ...change })) ?? "");
  }

  // Translate with these interventions; an error leaves the view unchanged.
  async request(interventions, text = this.translation.source) {
    const id = ++this.requests;
    const baseline = this.hasInterventions ? this.baseline : this.translation?.text;
    this.node.setAttribute("aria-busy", "true");
    try {
      const translation = await translate(this.number, sourceFields(this.model, text), this.options(), interventions);
      if (id !== this.requests) return;
      Object.assign(this, { interventions, baseline });
      this.show(translation);
    } catch (error) {
      this.bars.update();
      return error.message;
    } finally {
      if (id === this.requests) this.node.removeAttribute("aria-busy");
    }
  }

  show(translation, rank = 0) {
    this.bars.cancel();
    this.translation = translation;
    this.rank = rank;
    this.output = { ...translation, ...(translation.n_best?.[rank] ?? {}) };
    this.step = Math.min(this.step, Math.max(0, this.output.tokens.length - 1));
    this.render();
  }

  // The displayed weights: of the model's selected layer, or of the layer and head chosen in the menu.
  get weights() {
    if (this.layer === null) return this.output.attention ?? [];
    return headWeights(this.output.attention_heads, this.layer, this.head);
  }

  selectStep(step) {
    this.bars.cancel();
    this.step = Math.min(Math.max(0, step), Math.max(0, this.output.tokens.length - 1));
    for (const node of this.node.querySelectorAll("[data-step]")) {
      const selected = Number(node.dataset.step) === this.step;
      node.classList.toggle("selected", selected);
      if (node.hasAttribute("aria-pressed")) node.setAttribute("aria-pressed", String(selected));
    }
    this.showStep();
    if (this.calculationSection.open) this.showCalculation();
  }

  // Pin weights of this step. Pins of later steps are dropped: they belong to another output.
  pin(pins) {
    return this.apply({ pins: { ...this.pinsBefore(this.step), [this.step]: pins }, prefix: this.output.tokens.slice(0, this.step) });
  }

  forcePrefix(tokens) {
    return this.apply({ pins: this.pinsBefore(tokens.length), prefix: tokens });
  }

  ablateHead(layer, head, ablate) {
    const others = this.interventions.ablated.filter(([l, h]) => l !== layer || h !== head);
    return this.apply({ ablated: ablate ? [...others, [layer, head]] : others });
  }

  pinsBefore(end) {
    return Object.fromEntries(Object.entries(this.interventions.pins).filter(([step]) => Number(step) < end));
  }

  get hasInterventions() {
    const { pins, prefix, ablated } = this.interventions;
    return Object.keys(pins).length + prefix.length + ablated.length > 0;
  }

  render() {
    const { output } = this;
    const focus = this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    this.text.textContent = output.text || EMPTY;
    this.note.textContent = this.notes().join(" ");
    this.chips.replaceChildren(...this.interventionChips());
    this.showNBest();
    if (this.model.attention !== "none") this.showAttention();
    for (const [details, onOpen] of this.sections) if (details.open) onOpen();
    if (focus) this.node.querySelector(`[data-focus="${focus}"]`)?.focus({ preventScroll: true });
  }

  notes() {
    const notes = [];
    if (this.output.unknown.length) notes.push(`Not in the vocabulary: ${this.output.unknown.join(" ")}.`);
    if (!this.output.complete) notes.push("Output truncated at the length limit.");
    if (this.hasInterventions)
      notes.push(this.baseline === this.translation.text ? "The interventions did not change the output." : `Without interventions: ${this.baseline || EMPTY}`);
    return notes;
  }

  showAttention() {
    this.showHeads();
    if (this.output.tokens.length) {
      this.alignment.replaceChildren(alignment(this));
      this.heatmap.replaceChildren(heatmap(this));
    } else [this.alignment, this.heatmap, this.calculation].forEach((part) => part.replaceChildren());
    this.showStep();
  }

  showStep() {
    const { tokens } = this.output;
    this.slider.max = Math.max(0, tokens.length - 1);
    this.slider.value = this.step;
    this.slider.disabled = tokens.length < 2;
    const label = tokens.length ? `step ${this.step + 1} of ${tokens.length}: ${displayToken(tokens[this.step])}` : "no step";
    this.slider.setAttribute("aria-valuetext", label);
    this.stepLabel.textContent = label;
    this.bars.render();
  }

  showHeads() {
    const { layers, heads, attention_layer: selectedLayer } = this.model;
    if (layers * heads <= 1) return;
    const choices = [element("option", { value: "" }, `layer ${selectedLayer} (default), average over heads`)];
    for (let layer = 0; layer < layers; layer++) {
      choices.push(element("option", { value: `${layer}`, selected: this.layer === layer && this.head === null }, `layer ${layer}, average over heads`));
      for (let head = 0; head < heads; head++)
        choices.push(element("option", { value: `${layer},${head}`, selected: this.layer === layer && this.head === head }, `layer ${layer}, head ${head}`));
    }
    const select = element("select", { "aria-label": "layer and head", onchange: () => {
      const [layer, head] = select.value === "" ? [null, null] : select.value.split(",").map(Number);
      Object.assign(this, { layer, head: head ?? null });
      this.render();
    }, "data-focus": "heads" }, ...choices);
    const ablated = this.interventions.ablated.some(([l, h]) => l === this.layer && h === this.head);
    const checkbox = element("input", { type: "checkbox", checked: ablated, "data-focus": "ablate", onchange: (event) => this.ablateHead(this.layer, this.head, event.target.checked) });
    this.heads.replaceChildren(select, ...(this.head === null ? [] : [element("label", {}, checkbox, " ablate this head")]));
  }

  showNBest() {
    const outputs = this.translation.n_best ?? [this.translation];
    this.nBest.replaceChildren(...outputs.map((output, rank) => element("li", {},
      element("button", { type: "button", "data-focus": `n-best ${rank}`, "aria-pressed": rank === this.rank, class: rank === this.rank ? "selected" : "", onclick: () => this.show(this.translation, rank) },
        element("bdi", {}, output.text || EMPTY),
        element("span", { class: "probability" }, `${(100 * Math.exp(output.log_prob)).toPrecision(3)} %`)))));
  }

  showCalculation() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const { output, step } = this;
      if (!output.tokens.length) return;
      const result = await calculation(this).catch((error) => element("p", { class: "hint" }, error.message));
      if (output === this.output && step === this.step) this.calculation.replaceChildren(result);
    }, CALCULATION_DELAY);
  }

  // One button per intervention, which removes it.
  *interventionChips() {
    const { pins, prefix, ablated } = this.interventions;
    const chip = (text, change) => element("button", { type: "button", class: "chip", "aria-label": `${text}: remove`, onclick: () => this.apply(change) }, text, element("span", { "aria-hidden": "true" }, " ×"));
    if (prefix.length) yield chip(`prefix ${prefix.map(displayToken).join(" ")}`, { prefix: [] });
    for (const [step, weights] of Object.entries(pins))
      for (const [i, weight] of Object.entries(weights)) {
        const { [i]: _, ...otherWeights } = weights;
        const { [step]: __, ...otherSteps } = pins;
        yield chip(`step ${Number(step) + 1}: ${displayToken(this.output.source_tokens[i])} ${formatWeight(weight)}`,
          { pins: Object.keys(otherWeights).length ? { ...otherSteps, [step]: otherWeights } : otherSteps });
      }
    for (const [layer, head] of ablated)
      yield chip(`layer ${layer}, head ${head} ablated`, { ablated: ablated.filter(([l, h]) => l !== layer || h !== head) });
    if (this.hasInterventions) yield chip("reset", noInterventions());
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
