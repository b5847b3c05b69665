// Every layer and head as a thumbnail: cross-attention, and self-attention of encoder and decoder.
import { element, helpButton } from "./dom.js";
import { ablationNote, headPlace, isAblated } from "./interventions.js";
import { headWeights } from "./weights.js";

const PIXELS = 96; // side of a thumbnail's canvas
const KINDS = { cross: "Cross-attention from the output to the source", encoder: "Self-attention of the encoder within the source", decoder: "Self-attention of the decoder within the output so far" };

export class Heads {
  constructor(view) {
    this.view = view;
    this.groups = element("div", { class: "head-groups" });
    this.controls = element("p", { class: "head-controls" });
    this.notice = element("p", { class: "hint", role: "status" });
    this.node = element("div", {}, this.groups, this.notice, this.controls);
    this.own = null; // self-attention of the displayed output
    this.awaiting = false; // whether it has been requested
  }

  get shown() {
    const { layers, heads } = this.view.model;
    return layers * heads > 1 || this.ownKinds.length > 0;
  }

  // What one of the distributions of a step belongs to.
  get unit() {
    return this.view.model.head_name === "member" ? "member of the ensemble" : "layer and head";
  }

  get title() {
    return this.view.model.head_name === "member" ? "Members" : "Layers and heads";
  }

  // A layer and a head in words; an ensemble has no self-attention.
  place(layer, head) {
    const { model } = this.view;
    if (head !== null) return headPlace(model, layer, head);
    return model.head_name === "member" ? "average over members" : `layer ${layer}, average over heads`;
  }

  // The parts of the model that have self-attention, if the engine can compute it.
  get ownKinds() {
    const { model: { self_attention: layers }, page: { engine } } = this.view;
    return engine.selfAttention ? ["encoder", "decoder"].filter((kind) => layers[kind]) : [];
  }

  // A recurrent decoder has one distribution per step, and no heads to ablate; an ensemble has a head per member.
  get canAblate() {
    return this.view.model.kind !== "rnn";
  }

  // Weights, row labels and column labels of the selected thumbnail, unknown columns, and why weights are 0.
  get selection() {
    const { view, own } = this;
    const { source_tokens: source } = view.output;
    if (view.own && own?.[view.own.kind]?.length) {
      const labels = view.own.kind === "encoder" ? source : own.decoder_inputs;
      return { ...view.own, weights: own[view.own.kind][view.own.layer][view.own.head], rows: labels, columns: labels, unknown: [], note: "" };
    }
    return this.cross;
  }

  // The same of cross-attention, which the alignment shows.
  get cross() {
    const { view } = this;
    const { source_tokens: columns, tokens: rows, unknown } = view.output;
    return { kind: "cross", layer: view.layer ?? view.model.attention_layer, head: view.head, weights: view.weights, rows, columns, unknown, note: ablationNote(view) };
  }

  render() {
    if (!this.shown) return;
    const { view } = this;
    const { pins, ablated } = view.interventions;
    const key = JSON.stringify([view.output.source, view.output.tokens, pins, ablated]);
    const weights = (layer, head) => (view.output.tokens.length ? headWeights(view.output.attention_heads, layer, head) : []);
    const { layers, heads, self_attention: own } = view.model;
    const averaged = [null, ...(this.canAblate ? range(heads) : [])];
    this.groups.replaceChildren(
      this.group("cross", layers, (layer) => averaged.map((head) => this.thumbnail("cross", layer, head, weights(layer, head)))),
      ...this.ownKinds.map((kind) => this.group(kind, own[kind], (layer) => range(own.heads).map((head) => this.thumbnail(kind, layer, head)))));
    this.showControls();
    if (this.key === key) return this.showOwn();
    this.key = key;
    if (this.source !== view.output.source) this.own = null; // else the old weights stay until the new ones arrive
    this.source = view.output.source;
    this.request(key);
  }

  async request(key) {
    const { view } = this;
    this.awaiting = this.ownKinds.length > 0 && view.output.tokens.length > 0;
    this.showOwn();
    let own = null, error = "";
    if (this.awaiting)
      try {
        own = await view.page.engine.selfAttention(view.number, view.output.source, view.output.tokens, view.interventions);
      } catch (reason) {
        error = `Self-attention is not available: ${reason.message}`;
      }
    if (key !== this.key) return;
    if (error) this.key = null; // requested again when the heads are rendered next
    Object.assign(this, { own, awaiting: false });
    this.notice.textContent = error;
    this.showOwn();
    if (!view.own) return;
    this.showControls();
    view.showHeatmap();
  }

  // Paint self-attention in its thumbnails, which exist before it arrives: nothing moves below a pointer.
  showOwn() {
    for (const kind of this.ownKinds) {
      const group = this.groups.querySelector(`.${kind}`);
      if (this.awaiting) group.setAttribute("aria-busy", "true");
      else group.removeAttribute("aria-busy");
      const weights = this.own?.[kind]?.flat() ?? [];
      group.querySelectorAll("canvas").forEach((canvas, n) => paint(canvas, weights[n] ?? []));
    }
  }

  group(kind, layers, thumbnails) {
    return element("div", { class: `head-group ${kind}`, role: "group", "aria-label": KINDS[kind] },
      element("h4", {}, KINDS[kind]),
      ...range(layers).map((layer) => element("div", { class: "head-row" },
        element("span", { class: "layer-name" }, this.view.model.head_name === "member" ? "members" : `layer ${layer}`), ...thumbnails(layer))));
  }

  thumbnail(kind, layer, head, weights = []) {
    const { view } = this;
    const isDefault = kind === "cross" && head === null && layer === view.model.attention_layer;
    const selected = kind === "cross"
      ? !view.own && (view.layer === null ? isDefault : view.layer === layer && view.head === head)
      : view.own?.kind === kind && view.own.layer === layer && view.own.head === head;
    const ablated = kind === "cross" && head !== null && isAblated(view.interventions, layer, head);
    const name = head === null ? (this.canAblate ? "average" : "weights") : `${view.model.head_name} ${head}`;
    return element("button", {
      type: "button", class: `head ${selected ? "selected" : ""} ${ablated ? "ablated" : ""}`, "aria-pressed": selected,
      "aria-label": `${kind === "cross" ? "" : `${kind} self-attention, `}${this.place(layer, head)}${ablated ? ", ablated" : ""}`,
      "data-focus": `${kind} ${layer} ${head}`, onclick: () => view.selectHead(kind, isDefault ? null : layer, head),
    }, picture(weights), element("span", {}, name), ablated && element("span", { class: "badge" }, " ablated"));
  }

  showControls() {
    const { view } = this;
    const { layer, head } = view, shown = this.selection;
    if (shown.kind !== "cross") {
      return this.controls.replaceChildren(`The heatmap displays ${shown.kind} self-attention, layer ${shown.layer}, head ${shown.head}. The alignment and the bars still show cross-attention.`);
    }
    const { head_name: name, attention_layer: selected } = view.model;
    if (head === null) {
      const chosen = name === "member" ? "" : layer === null ? `layer ${selected} (default), ` : `layer ${layer}, `;
      return this.controls.replaceChildren(this.canAblate ? `Displayed: cross-attention, ${chosen}average over ${name}s. To ablate a ${name}, select it first.` : "Displayed: cross-attention.");
    }
    const ablated = isAblated(view.interventions, layer, head);
    const checkbox = element("input", { type: "checkbox", checked: ablated, "data-focus": "ablate", onchange: (event) => view.ablateHead(layer, head, event.target.checked) });
    this.controls.replaceChildren(`Displayed: cross-attention, ${headPlace(view.model, layer, head)}.`,
      element("label", {}, checkbox, ` ablate this ${name}`), helpButton(`${name}s`, `${name}s`));
  }
}

const range = (length) => Array.from({ length }, (_, n) => n);

function picture(weights) {
  const canvas = element("canvas", { width: PIXELS, height: PIXELS, "aria-hidden": true });
  paint(canvas, weights);
  return canvas;
}

// The weights as shades of the accent colour.
function paint(canvas, weights) {
  const [rows, columns] = [weights.length, weights[0]?.length ?? 0];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, PIXELS, PIXELS);
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  for (let t = 0; t < rows; t++)
    for (let i = 0; i < columns; i++) {
      context.globalAlpha = Math.min(1, Math.max(0, weights[t][i]));
      context.fillRect((i * PIXELS) / columns, (t * PIXELS) / rows, PIXELS / columns, PIXELS / rows);
    }
}
