// The weights of one step as bars that can be dragged: what would it say had it looked elsewhere?
import { direction, element, share, spelled } from "./dom.js";
import { pinned, total } from "./weights.js";

export class Bars {
  constructor(view) {
    this.view = view;
    this.row = element("div", { class: "bars" });
    this.sum = element("output", { class: "sum" });
    this.node = element("div", {}, element("div", { class: "scroll" }, this.row), this.sum);
    this.trial = {}; // what is being dragged, not yet asked of the server
  }

  render() {
    const { source_tokens: source } = this.view.output;
    // bars of the same tokens stay: somebody may have one in hand
    const written = source.join("\n");
    if (this.written !== written) {
      this.written = written;
      this.row.dir = direction(source);
      this.row.replaceChildren(...source.map((token, i) => this.bar(token, i)));
    }
    this.update();
  }

  update() {
    const { step } = this.view;
    const pins = { ...(this.view.pushes.pins[step] ?? {}), ...this.trial };
    const weights = Object.keys(this.trial).length ? pinned(this.view.rows[step], pins) : this.view.rows[step] ?? [];
    [...this.row.children].forEach((bar, i) => {
      const weight = weights[i] ?? 0;
      bar.classList.toggle("pinned", i in pins);
      bar.style.setProperty("--weight", Math.min(1, Math.max(0, weight)));
      const track = bar.querySelector(".track");
      track.setAttribute("aria-valuenow", weight.toFixed(3));
      track.setAttribute("aria-valuetext", `${weight.toFixed(2)}${i in pins ? ", pinned" : ""}`);
      bar.querySelector(".value").textContent = share(weight);
    });
    this.sum.textContent = `sum ${total(weights).toFixed(2)}`;
  }

  bar(token, i) {
    const track = element("div", {
      class: "track", role: "slider", tabindex: 0, "aria-orientation": "vertical",
      "aria-label": `weight of ${token}`, "aria-valuemin": 0, "aria-valuemax": 1,
      title: "drag to push the look",
    }, element("div", { class: "fill" }));
    const at = (event) => {
      const box = track.getBoundingClientRect();
      return Math.min(1, Math.max(0, 1 - (event.clientY - box.top) / box.height));
    };
    track.addEventListener("pointerdown", (event) => {
      if (!this.view.pushable) return;
      track.setPointerCapture(event.pointerId);
      event.preventDefault();
      track.focus();
      this.drag(i, at(event));
    });
    track.addEventListener("pointermove", (event) => {
      if (track.hasPointerCapture(event.pointerId)) this.drag(i, at(event));
    });
    track.addEventListener("pointerup", () => this.drop());
    track.addEventListener("pointercancel", () => this.forget());
    track.addEventListener("keydown", (event) => this.key(event, i));
    return element("div", { class: "bar", "data-source": i },
      element("span", { class: "value" }), track, element("bdi", { class: "token" }, spelled(token)));
  }

  key(event, i) {
    const now = Number(event.currentTarget.getAttribute("aria-valuenow"));
    const to = { ArrowUp: now + 0.05, ArrowDown: now - 0.05, Home: 0, End: 1, PageUp: now + 0.2, PageDown: now - 0.2 }[event.key];
    if (event.key === "Escape") this.forget();
    if (to === undefined || !this.view.pushable) return;
    event.preventDefault();
    this.drag(i, Math.min(1, Math.max(0, to)));
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.drop(), 350);
  }

  // Other pins of this step give way if together they would be more than everything.
  drag(i, wanted) {
    const weight = Math.round(wanted * 1000) / 1000;
    const others = { ...(this.view.pushes.pins[this.view.step] ?? {}) };
    delete others[i];
    const held = total(Object.values(others));
    const fits = held + weight <= 1 ? 1 : (1 - weight) / held;
    this.trial = Object.fromEntries(Object.entries(others).map(([key, each]) => [key, each * fits]));
    this.trial[i] = weight;
    this.update();
  }

  drop() {
    clearTimeout(this.waiting);
    if (!Object.keys(this.trial).length) return;
    const pins = this.trial;
    this.trial = {};
    this.view.pin(pins);
  }

  forget() {
    clearTimeout(this.waiting);
    if (!Object.keys(this.trial).length) return;
    this.trial = {};
    this.update();
  }
}
