// The alignment as lines between the two sentences, as thick as the weights.
import { direction, drawn, element, spelled } from "./dom.js";

const HEIGHT = 110;
const LEAST = 0.04;

export function lines(view) {
  const { output: { source_tokens: source, tokens }, rows, step } = view;
  const above = element("div", { class: "sentence source", dir: direction(source) },
    ...source.map((token, i) => element("span", { class: "token", "data-source": i }, element("bdi", {}, spelled(token)))));
  const below = element("div", { class: "sentence target", dir: direction(tokens) },
    ...tokens.map((token, t) => element("button", {
      type: "button", class: `token ${t === step ? "chosen" : ""}`, "data-target": t, "data-step": t,
      "data-focus": `target ${t}`, "aria-pressed": t === step, onclick: () => view.choose(t),
    }, element("bdi", {}, spelled(token)))));
  const canvas = drawn("svg", { class: "lines", height: HEIGHT, "aria-hidden": "true" });
  const inner = element("div", { class: "between" }, above, canvas, below);
  const draw = () => {
    canvas.setAttribute("width", 0); // else it would keep the sentence as wide as it was
    const box = inner.getBoundingClientRect();
    const middle = (node) => { const at = node.getBoundingClientRect(); return at.left + at.width / 2 - box.left; };
    const from = [...above.children].map(middle);
    const to = [...below.children].map(middle);
    canvas.setAttribute("width", Math.max(inner.scrollWidth, 1));
    canvas.replaceChildren(...rows.flatMap((row, t) => row.flatMap((weight, i) => weight < LEAST || to[t] === undefined ? [] : [
      drawn("path", {
        d: `M${from[i]},2 C${from[i]},${HEIGHT / 2} ${to[t]},${HEIGHT / 2} ${to[t]},${HEIGHT - 2}`,
        "stroke-width": (1 + 7 * Math.min(1, weight)).toFixed(2), "stroke-opacity": (0.15 + 0.75 * Math.min(1, weight)).toFixed(2),
        class: t === view.step ? "chosen" : "", "data-source": i, "data-target": t, "data-step": t,
      })])));
  };
  view.resized?.disconnect();
  view.resized = new ResizeObserver(draw);
  view.resized.observe(inner);
  return element("div", { class: "scroll" }, inner);
}
