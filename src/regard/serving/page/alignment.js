// The alignment: lines between source and output tokens, with widths proportional to the weights.
// The tokens stand in two rows, or in two columns where rows are too wide for the window.
import { END, FONT_FAMILY, direction, displayToken, element, svgElement, textWidth } from "./dom.js";
import { ablationNote } from "./interventions.js";
import { isDrawn } from "./weights.js";

const LENGTH = 110; // pixels between the rows
const PADDING = 18; // with the border, on both sides of a token
const [MIN_GAP, MAX_GAP] = [4, 20]; // between two tokens of a row

const rowWidth = (tokens) => tokens.reduce((total, token) => total + textWidth(displayToken(token), `600 16px ${FONT_FAMILY}`) + PADDING + MIN_GAP, 0);

export const fitsRows = ({ output, width }) => Math.max(rowWidth(output.source_tokens), rowWidth(output.tokens)) <= width;

export class Alignment {
  constructor(view) {
    this.view = view;
    this.svg = svgElement("svg", { class: "links", "aria-hidden": "true" });
    this.container = element("div", { class: "alignment" });
    this.node = element("div", { class: "alignment-box", tabindex: -1, role: "group", "aria-label": "alignment" }, this.container);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.container);
  }

  render() {
    const { output: { source_tokens: source, tokens, unknown }, step } = this.view;
    const isUnknown = new Set(unknown);
    this.vertical = !fitsRows(this.view);
    this.node.classList.toggle("vertical", this.vertical);
    this.node.tabIndex = this.vertical ? 0 : -1;
    this.source = element("div", { class: "sentence source", dir: direction(source) }, ...source.map((token, i) => {
      const help = isUnknown.has(token) ? "unknown" : token === END ? "end" : null;
      return element("span", { class: `token ${isUnknown.has(token) ? "unknown" : ""}`, "data-source": i, ...(help && { "data-help": help, tabindex: 0 }) },
        element("bdi", {}, displayToken(token)));
    }));
    this.target = element("div", { class: "sentence target", dir: direction(tokens) },
      ...tokens.map((token, t) => element("button", {
        type: "button", class: `token ${t === step ? "selected" : ""}`, "data-target": t, "data-step": t,
        "data-focus": `target ${t}`, "aria-pressed": t === step, onclick: () => this.view.selectStep(t),
      }, element("bdi", {}, displayToken(token)))));
    const free = this.view.width - Math.max(rowWidth(source), rowWidth(tokens));
    const gap = MIN_GAP + Math.max(0, free / Math.max(source.length, tokens.length, 1));
    this.container.style.setProperty("--gap", `${this.vertical ? MIN_GAP : Math.min(MAX_GAP, Math.floor(gap))}px`);
    const noLines = element("p", { class: "no-lines" }, this.view.weights.flat().some((weight) => weight > 0) ? "" : ablationNote(this.view));
    this.container.replaceChildren(this.source, this.svg, this.target, noLines);
    this.draw();
    this.selectStep();
  }

  // Lines of the selected step lie above the others; the box scrolls to its token.
  selectStep() {
    this.svg.append(...this.svg.querySelectorAll(".selected"));
    this.scrollToStep();
  }

  draw() {
    if (!this.source) return;
    const { weights, step } = this.view;
    const { svg, vertical } = this;
    svg.setAttribute("width", 0); // otherwise the old size keeps the container large
    svg.setAttribute("height", vertical ? 0 : LENGTH);
    const length = vertical ? this.target.getBoundingClientRect().left - this.source.getBoundingClientRect().right : LENGTH;
    const box = this.container.getBoundingClientRect();
    const center = (node) => {
      const { left, width, top, height } = node.getBoundingClientRect();
      return vertical ? top + height / 2 - box.top : left + width / 2 - box.left;
    };
    const from = [...this.source.children].map(center);
    const to = [...this.target.children].map(center);
    if (vertical) svg.setAttribute("height", this.container.clientHeight);
    svg.setAttribute("width", Math.max(1, vertical ? length : this.container.clientWidth));
    const path = vertical
      ? (i, t) => `M2,${from[i]} C${length / 2},${from[i]} ${length / 2},${to[t]} ${length - 2},${to[t]}`
      : (i, t) => `M${from[i]},2 C${from[i]},${length / 2} ${to[t]},${length / 2} ${to[t]},${length - 2}`;
    svg.replaceChildren(...weights.flatMap((row, t) => row.flatMap((weight, i) => !isDrawn(weight, row) || to[t] === undefined ? [] : [
      svgElement("path", {
        d: path(i, t),
        "stroke-width": (1 + 6 * Math.min(1, weight)).toFixed(2), "stroke-opacity": (0.15 + 0.75 * Math.min(1, weight)).toFixed(2),
        class: t === step ? "selected" : "", "data-source": i, "data-target": t, "data-step": t,
      })])));
  }

  // Scroll the box, not the page, to the selected token and the source token that it attends to most.
  scrollToStep() {
    const { node, vertical, view: { step, weights } } = this;
    if (!vertical || !this.target.children[step]) return;
    const row = weights[step] ?? [];
    const strongest = this.source.children[row.indexOf(Math.max(...row))];
    const middle = (child) => child.offsetTop + child.offsetHeight / 2;
    const token = middle(this.target.children[step]);
    const other = strongest ? middle(strongest) : token;
    const center = Math.abs(token - other) < node.clientHeight - 80 ? (token + other) / 2 : token;
    node.scrollTo({ top: center - node.clientHeight / 2 });
  }
}
