// The alignment: lines between source and output tokens, with widths proportional to the weights.
import { direction, displayToken, element, svgElement } from "./dom.js";

const HEIGHT = 110;
const MIN_WEIGHT = 0.04;

export function alignment(view) {
  const { output: { source_tokens: source, tokens }, weights, step } = view;
  const above = element("div", { class: "sentence source", dir: direction(source) },
    ...source.map((token, i) => element("span", { class: "token", "data-source": i }, element("bdi", {}, displayToken(token)))));
  const below = element("div", { class: "sentence target", dir: direction(tokens) },
    ...tokens.map((token, t) => element("button", {
      type: "button", class: `token ${t === step ? "selected" : ""}`, "data-target": t, "data-step": t,
      "data-focus": `target ${t}`, "aria-pressed": t === step, onclick: () => view.selectStep(t),
    }, element("bdi", {}, displayToken(token)))));
  const svg = svgElement("svg", { class: "links", height: HEIGHT, "aria-hidden": "true" });
  const container = element("div", { class: "alignment" }, above, svg, below);
  const draw = () => {
    svg.setAttribute("width", 0); // otherwise the old width keeps the container wide
    const box = container.getBoundingClientRect();
    const center = (node) => { const { left, width } = node.getBoundingClientRect(); return left + width / 2 - box.left; };
    const from = [...above.children].map(center);
    const to = [...below.children].map(center);
    svg.setAttribute("width", Math.max(container.scrollWidth, 1));
    svg.replaceChildren(...weights.flatMap((row, t) => row.flatMap((weight, i) => weight < MIN_WEIGHT || to[t] === undefined ? [] : [
      svgElement("path", {
        d: `M${from[i]},2 C${from[i]},${HEIGHT / 2} ${to[t]},${HEIGHT / 2} ${to[t]},${HEIGHT - 2}`,
        "stroke-width": (1 + 7 * Math.min(1, weight)).toFixed(2), "stroke-opacity": (0.15 + 0.75 * Math.min(1, weight)).toFixed(2),
        class: t === view.step ? "selected" : "", "data-source": i, "data-target": t, "data-step": t,
      })])));
  };
  view.resizeObserver?.disconnect();
  view.resizeObserver = new ResizeObserver(draw);
  view.resizeObserver.observe(container);
  return element("div", { class: "scroll" }, container);
}
