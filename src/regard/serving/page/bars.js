// The attention weights of one step as bars that can be dragged.
import { direction, displayToken, element, formatWeight, helpButton, position } from "./dom.js";
import { ablationNote } from "./interventions.js";
import { applyPins, sum } from "./weights.js";

const MANY = 24; // bars from which they are drawn lower
const KEY_DELAY = 350; // milliseconds after the last key before the change is sent

export class Bars {
  constructor(view) {
    this.view = view;
    this.row = element("div", { class: "bars" });
    this.sum = element("output", { class: "sum" });
    this.ablated = element("span", { class: "ablated-note" });
    this.node = element("div", {}, this.row, element("p", { class: "sum-line" }, this.sum, helpButton("sum", "sum of the weights"), this.ablated));
    this.draft = {}; // pins being dragged, not yet sent to the server
    this.dragged = null; // the bar of the draft
  }

  render() {
    const { source_tokens: source, unknown } = this.view.output;
    // bars of the same tokens are kept: one may be being dragged
    const key = source.join("\n");
    if (this.key !== key) {
      this.key = key;
      this.row.dir = direction(source);
      this.row.classList.toggle("many", source.length > MANY);
      this.row.replaceChildren(...source.map((token, i) => this.bar(token, i, unknown.includes(token), position(source, i))));
    }
    this.update();
  }

  update() {
    const { step } = this.view;
    const pins = { ...(this.view.interventions.pins[step] ?? {}), ...this.draft };
    const weights = Object.keys(this.draft).length ? applyPins(this.view.weights[step], pins) : this.view.weights[step] ?? [];
    [...this.row.children].forEach((bar, i) => {
      const weight = weights[i] ?? 0;
      bar.classList.toggle("pinned", i in pins);
      bar.style.setProperty("--weight", Math.min(1, Math.max(0, weight)));
      const track = bar.querySelector(".track");
      track.setAttribute("aria-valuenow", weight.toFixed(3));
      track.setAttribute("aria-valuetext", `${weight.toFixed(2)}${i in pins ? ", pinned" : ""}`);
      bar.querySelector(".value").textContent = formatWeight(weight);
    });
    this.sum.textContent = `sum ${sum(weights).toFixed(2)}`;
    this.ablated.textContent = ablationNote(this.view);
  }

  bar(token, i, isUnknown, place) {
    const track = element("div", {
      class: "track", role: "slider", tabindex: 0, "aria-orientation": "vertical",
      "aria-label": `weight of ${displayToken(token)}${place}`, "aria-valuemin": 0, "aria-valuemax": 1,
      title: "Drag to change this weight.",
    }, element("div", { class: "fill" }));
    const weightAt = (event) => {
      const box = track.getBoundingClientRect();
      return Math.min(1, Math.max(0, 1 - (event.clientY - box.top) / box.height));
    };
    track.addEventListener("pointerdown", (event) => {
      if (!this.view.editable || event.button !== 0) return;
      track.setPointerCapture(event.pointerId);
      event.preventDefault();
      track.focus();
      this.drag(i, weightAt(event));
    });
    track.addEventListener("pointermove", (event) => {
      if (track.hasPointerCapture(event.pointerId)) this.drag(i, weightAt(event));
    });
    track.addEventListener("pointerup", () => this.commit());
    track.addEventListener("pointercancel", () => this.cancel());
    track.addEventListener("keydown", (event) => this.keydown(event, i));
    return element("div", { class: "bar", "data-source": i },
      element("span", { class: "value" }), track, element("bdi", { class: `token ${isUnknown ? "unknown" : ""}`, title: `${displayToken(token)}${place}` }, displayToken(token)));
  }

  keydown(event, i) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    // with ablated heads and posterior attention, the bar of a pinned weight shows another one
    const weight = this.draft[i] ?? this.view.latest.pins[this.view.step]?.[i] ?? Number(event.currentTarget.getAttribute("aria-valuenow"));
    const changed = { ArrowUp: weight + 0.05, ArrowDown: weight - 0.05, Home: 0, End: 1, PageUp: weight + 0.2, PageDown: weight - 0.2 }[event.key];
    if (event.key === "Escape") this.cancel();
    if (changed === undefined || !this.view.editable) return;
    event.preventDefault();
    this.drag(i, Math.min(1, Math.max(0, changed)));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.commit(), KEY_DELAY);
  }

  // Pin weight i; other pins of this step shrink where the sum would exceed 1.
  drag(i, requested) {
    if (i !== this.dragged) this.commit(); // the change of another bar
    this.dragged = i;
    const weight = Math.round(requested * 1000) / 1000;
    const others = { ...(this.view.latest.pins[this.view.step] ?? {}) };
    delete others[i];
    const pinned = sum(Object.values(others));
    const scale = pinned + weight <= 1 ? 1 : (1 - weight) / pinned;
    this.draft = Object.fromEntries(Object.entries(others).map(([source, other]) => [source, other * scale]));
    this.draft[i] = weight;
    this.update();
  }

  commit() {
    clearTimeout(this.timer);
    if (!Object.keys(this.draft).length) return;
    const pins = this.draft;
    this.draft = {};
    this.view.pin(pins);
  }

  cancel() {
    clearTimeout(this.timer);
    if (!Object.keys(this.draft).length) return;
    this.draft = {};
    this.update();
  }
}
